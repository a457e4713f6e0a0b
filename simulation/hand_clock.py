"""A clock for tests in plain code: it moves when the test says so, in the world's own thread."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import trio
import trio.testing

from leviath.components.errors import ConfigError
from leviath.engine.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from leviath.engine.blocking import World

_STRIDE_MS: Final = 1_000
"""Time passes in seconds, as a host that is awake sees it: a longer stride would be a sleep."""
_CUSHION_S: Final = 0.001
"""How long all tasks have to be at rest: the writer's thread is none of them."""


class HandClock(ManualClock):
    """Moved by a test, from any thread, while it drives one world of ``leviath.blocking``."""

    def __init__(self, *, monotonic_ms: int = 1_000_000, wall_ms: int = 1_790_000_000_000) -> None:
        super().__init__(monotonic_ms=monotonic_ms, wall_ms=wall_ms)
        self._world: World | None = None

    @contextmanager
    def driving(self, world: World) -> Generator[None]:
        """Be the clock of ``world`` inside the block. Raises ConfigError when it is another's."""
        if self._world is not None:
            raise ConfigError(
                "this clock drives a world already; give the second one clock=HandClock()"
            )
        self._world = world
        try:
            yield
        finally:
            self._world = None

    def advance(self, span_ms: int, *, wall_ms: int | None = None) -> None:
        """Let ``span_ms`` pass, a second at a time; after each the world does what is due.

        ``wall_ms`` moves the wall clock by another span, at the end. Returns when the world is at
        rest: all is durable, and what is outside has nothing to do before more time passes.
        """
        world = self._world
        if world is None:
            super().advance(span_ms, wall_ms=wall_ms)
            return
        world.thread.call(lambda: self._pass(world, span_ms))
        if wall_ms is not None:
            self._wall_ms += wall_ms - span_ms

    def until(self, condition: Callable[[], object], *, within_ms: int = 3_600_000) -> None:
        """Let time pass until ``condition()`` is true. Raises TimeoutError after ``within_ms``."""
        passed = 0
        self.advance(0)
        while not condition():
            if passed >= within_ms:
                raise TimeoutError(f"it did not become true within {within_ms:,} ms of world time")
            self.advance(_STRIDE_MS)
            passed += _STRIDE_MS

    async def _pass(self, world: World, span_ms: int) -> None:
        await _at_rest(world)
        left = span_ms
        while left > 0:
            stride = min(left, _STRIDE_MS)
            left -= stride
            super().advance(stride)
            await _at_rest(world)


async def _at_rest(world: World) -> None:
    while True:
        await trio.testing.wait_all_tasks_blocked(_CUSHION_S)
        if world.world.is_at_rest:
            return
