"""What a world of an asyncio program has awaited by that program's loop: its async tools, and
providers whose clients need asyncio."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, TypeVar, cast

import trio

from leviath.components.errors import ConfigError
from leviath.engine.tools import FunctionTool, Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from leviath.engine.ports import InferenceReply, InferenceRequest, Provider

R = TypeVar("R")


def running_loop(what: str) -> asyncio.AbstractEventLoop:
    """The loop that runs here. Raises ConfigError naming ``what`` and what to use without one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigError(
            f"{what} needs an asyncio loop, and none runs here; use leviath.open_world under "
            "trio, or leviath.blocking.open_world without a loop"
        ) from None


async def _await_on(
    loop: asyncio.AbstractEventLoop, make: Callable[[], Coroutine[Any, Any, R]]
) -> R:
    """Await an asyncio coroutine from trio. Cancelled: so is the coroutine, to its end."""
    task = loop.create_task(make())
    done = trio.Event()
    task.add_done_callback(lambda _: done.set())
    try:
        await done.wait()
    except trio.Cancelled:
        task.cancel()
        with trio.CancelScope(shield=True):
            await done.wait()
        if not task.cancelled():
            task.exception()
        raise
    if task.cancelled():
        raise RuntimeError("the asyncio task was cancelled by somebody else")
    return task.result()


def on_asyncio(loop: asyncio.AbstractEventLoop, tool: Tool) -> Tool:
    """The same tool, its function awaited by the asyncio loop where it is an async one."""
    if not (tool.is_async and isinstance(tool, FunctionTool)):
        return tool
    function = cast("Callable[..., Coroutine[Any, Any, object]]", tool.__wrapped__)

    @functools.wraps(function)
    async def call(*args: object, **kwargs: object) -> object:
        return await _await_on(loop, lambda: function(*args, **kwargs))

    return Tool(
        call,
        name=tool.name,
        description=tool.description,
        effect=tool.effect,
        deadline_ms=tool.deadline_ms,
        modifies=tool.modifies,
        searches=tool.searches,
    )


class OnAsyncio:
    """A provider whose ``infer`` needs asyncio, made fit for a world of the running loop."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._loop = running_loop("leviath.aio.OnAsyncio")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    @property
    def name(self) -> str:
        """The name that blueprints use."""
        return self._provider.name

    async def infer(
        self, request: InferenceRequest, on_text: Callable[[str], None] | None
    ) -> InferenceReply:
        """One model call, awaited by asyncio. Raises what the provider raises."""

        async def ask() -> InferenceReply:
            return await self._provider.infer(request, on_text)

        return await _await_on(self._loop, ask)
