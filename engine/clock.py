"""The only module that reads outside time.

A host tells two times apart: monotonic milliseconds drive everything that decides, wall
milliseconds are records only. ``WorldTime`` continues the world's own monotonic time across
restarts and leaves out the time that the machine slept.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Protocol

from leviath.engine.limits import SLEEP_GAP_MS

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock(Protocol):
    """What a host reads time from."""

    def monotonic_ms(self) -> int:
        """Milliseconds that never go back."""
        ...

    def wall_ms(self) -> int:
        """Unix milliseconds."""
        ...

    def timeout_s(self, span_ms: int) -> float:
        """How long a host should sleep at most when it has something due in ``span_ms``; infinity
        when the clock wakes it itself."""
        ...

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` whenever time is moved by hand."""
        ...


class RealClock:
    """The machine's clocks."""

    def monotonic_ms(self) -> int:
        """Milliseconds of the machine's monotonic clock."""
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        """Unix milliseconds, 0 before the epoch."""
        return max(0, time.time_ns() // 1_000_000)

    def timeout_s(self, span_ms: int) -> float:
        """The span itself, in seconds."""
        return span_ms / 1_000

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Real time wakes nobody."""


class ManualClock:
    """A clock that moves when it is told to, for tests: nothing sleeps."""

    def __init__(self, *, monotonic_ms: int = 1_000_000, wall_ms: int = 1_790_000_000_000) -> None:
        self._monotonic_ms = monotonic_ms
        self._wall_ms = wall_ms
        self._wakes: list[Callable[[], None]] = []

    def monotonic_ms(self) -> int:
        """Where ``advance`` has brought it."""
        return self._monotonic_ms

    def wall_ms(self) -> int:
        """Unix milliseconds, as ``advance`` left them."""
        return self._wall_ms

    def timeout_s(self, span_ms: int) -> float:
        """Infinity: nothing is due until somebody moves the clock."""
        return math.inf

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` after every ``advance``."""
        self._wakes.append(wake)

    def advance(self, span_ms: int, *, wall_ms: int | None = None) -> None:
        """Move both clocks; ``wall_ms`` moves the wall clock by another span."""
        self._monotonic_ms += span_ms
        self._wall_ms += span_ms if wall_ms is None else wall_ms
        for wake in self._wakes:
            wake()


class WorldTime:
    """World milliseconds: where the last host left them, plus what passed while this one was
    awake."""

    def __init__(self, clock: Clock, start_ms: int) -> None:
        self._clock = clock
        self._last_ms = clock.monotonic_ms()
        self._world_ms = start_ms
        self._waited_ms: int | None = 0
        self.slept_ms: int = 0
        """Left out since the last ``take_slept``."""

    def waiting(self, span_ms: int | None) -> None:
        """The host is about to wait for so long; None for until something happens."""
        self._waited_ms = span_ms

    def now_ms(self) -> int:
        """World time, moved on by what passed; a gap far beyond what was waited for is a sleep."""
        now = self._clock.monotonic_ms()
        passed = max(0, now - self._last_ms)
        self._last_ms = now
        waited = self._waited_ms
        if waited is not None and passed > waited + SLEEP_GAP_MS:
            self.slept_ms += passed - waited
            passed = waited
        if waited is not None:
            self._waited_ms = max(0, waited - passed)
        self._world_ms += passed
        return self._world_ms

    def take_slept(self) -> int:
        """The gap that the next step records, once."""
        slept, self.slept_ms = self.slept_ms, 0
        return slept


def perf_ns() -> int:
    """Nanoseconds of a counter, for spans within one process."""
    return time.perf_counter_ns()
