"""Worlds on real homes for tests of the engine: agents, providers that wait, ways to run trio."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import trio
import trio.testing

from leviath.engine.blueprints import parse_blueprint
from leviath.engine.world import open_world
from leviath.providers.scripted import Reply, Scripted, Usage, tool_call

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from leviath.components.blueprint import Blueprint
    from leviath.engine.clock import ManualClock
    from leviath.engine.ports import InferenceReply, InferenceRequest

LIMIT_S = 60
"""A test that hangs fails after this."""

MODEL = 'models = [{ provider = "scripted", model = "m" }]'


def one(*tools: str, name: str = "one", more: str = "", head: str = "") -> Blueprint:
    """An agent of one stage that may use these tools."""
    listed = ", ".join(f'"{tool}"' for tool in tools)
    text = f"""
[agent]
name = "{name}"
{head}
[stages.main]
available_tools = [{listed}]
{more}
[stages.main.model]
{MODEL}
"""
    return parse_blueprint(text, where=name)


def three(*tools: str) -> Blueprint:
    """An agent of three stages in a row."""
    listed = ", ".join(f'"{tool}"' for tool in tools)
    stages = ""
    for stage, after in (("plan", "work"), ("work", "report"), ("report", "")):
        edge = f'[[stages.{stage}.edges]]\nto = "{after}"\n' if after else ""
        stages += f"""
[stages.{stage}]
available_tools = [{listed}]
{edge}
[stages.{stage}.model]
{MODEL}
"""
    return parse_blueprint(f'[agent]\nname = "three"\n{stages}', where="three")


def priced(text: str = "", *calls: Any, cost: int = 1_000, delay_ms: int = 0) -> Reply:
    """A reply with token usage and the provider's own price."""
    return Reply(
        text=text,
        calls=calls,
        usage=Usage(prompt=10, completion=2),
        cost_nano_usd=cost,
        delay_ms=delay_ms,
    )


def in_trio(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test function; its fixtures come as keywords."""

    @functools.wraps(test)
    def sync(**fixtures: Any) -> None:
        async def main() -> None:
            with trio.fail_after(LIMIT_S):
                await test(**fixtures)

        trio.run(main)

    return sync


class Gate:
    """A provider that answers only when it is let; it counts what it was asked."""

    def __init__(self, *replies: str | Reply | Any, name: str = "scripted") -> None:
        self._script = Scripted.of(*replies, name=name)
        self.name = name
        self.asked: list[InferenceRequest] = []
        self.open = trio.Event()
        self.waiting = trio.Event()

    async def infer(
        self, request: InferenceRequest, on_text: Callable[[str], None] | None
    ) -> InferenceReply:
        self.asked.append(request)
        self.waiting.set()
        await self.open.wait()
        return await self._script.infer(request, on_text)


class Counting:
    """A provider that counts what it is asked."""

    def __init__(self, *replies: str | Reply | Any, loop: bool = False) -> None:
        self._script = Scripted.of(*replies, loop=loop)
        self.name = "scripted"
        self.asked: list[InferenceRequest] = []

    async def infer(
        self, request: InferenceRequest, on_text: Callable[[str], None] | None
    ) -> InferenceReply:
        self.asked.append(request)
        return await self._script.infer(request, on_text)


async def until(condition: Callable[[], object], clock: ManualClock | None = None) -> None:
    """Wait until a condition holds; with a clock, moving it by a second at a time."""
    while not condition():
        if clock is not None:
            clock.advance(1_000)
        await trio.testing.wait_all_tasks_blocked(0.0005)


async def pass_time(clock: ManualClock, span_ms: int) -> None:
    """Let time pass in seconds, as a loop that is awake sees it."""
    for _ in range(span_ms // 1_000):
        clock.advance(1_000)
        await trio.testing.wait_all_tasks_blocked()


async def heard(stream: Any, kind: type[Any]) -> Any:
    """The next event of that kind."""
    async for event in stream:
        if isinstance(event, kind):
            return event
    raise AssertionError(f"the stream ended without {kind.__name__}")


def opened(home: Any, providers: Sequence[Any], **more: Any) -> Any:
    """``open_world`` without fsync, and closing without grace: tests are fast."""
    more.setdefault("grace_ms", 0)
    more.setdefault("durability", "process")
    return open_world(home, providers=providers, **more)


__all__ = [
    "Counting",
    "Gate",
    "heard",
    "in_trio",
    "one",
    "opened",
    "pass_time",
    "priced",
    "three",
    "tool_call",
    "until",
]
