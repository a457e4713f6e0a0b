"""A world that is not open yet, and says so when it is used like one that is."""

from __future__ import annotations

import functools
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

P = ParamSpec("P")
W = TypeVar("W")


class _Unopened(AbstractAsyncContextManager[W]):
    """Opened by ``async with``; any other use is an AttributeError that says how to write it."""

    def __init__(self, manager: AbstractAsyncContextManager[W], call: str) -> None:
        self._manager = manager
        self._call = call

    async def __aenter__(self) -> W:
        return await self._manager.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._manager.__aexit__(kind, error, traceback)

    def __getattr__(self, name: str) -> object:
        raise AttributeError(
            f"the world is not open yet, so it has no {name!r}; "
            f"write: async with {self._call}(...) as world:"
        )


def opened_by_async_with(
    call: str,
) -> Callable[
    [Callable[P, AbstractAsyncContextManager[W]]], Callable[P, AbstractAsyncContextManager[W]]
]:
    """Decorate what makes the context manager of a world; ``call`` is its name for users."""

    def decorate(
        function: Callable[P, AbstractAsyncContextManager[W]],
    ) -> Callable[P, AbstractAsyncContextManager[W]]:
        @functools.wraps(function)
        def manager(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[W]:
            return _Unopened(function(*args, **kwargs), call)

        return manager

    return decorate
