"""What every benchmark shares: rows, the calibration loop, medians, and a place for homes."""

from __future__ import annotations

import cProfile
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Protocol

Better = Literal["higher", "lower"]


@dataclasses.dataclass
class Row:
    """One figure. ``value`` None was not measured, and ``note`` says why."""

    name: str
    value: float | None
    unit: str
    target: float | None
    better: Better
    note: str = ""
    calibration_ms: float = 0.0

    @property
    def verdict(self) -> str:
        """ok, short of the target, or nothing for a row that is only printed."""
        if self.value is None or self.target is None:
            return ""
        met = self.value >= self.target if self.better == "higher" else self.value <= self.target
        return "ok" if met else "short"


class Measure(Protocol):
    """Takes the figures; ``quick`` for smaller sizes, which only say that it works."""

    def __call__(self, *, quick: bool) -> list[Row]: ...


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A function that measures some rows, in a process of its own."""

    name: str
    what: str
    measure: Measure


def calibrate(times: int = 3) -> float:
    """Milliseconds of a fixed pure-Python loop: what this machine is worth right now."""
    spans: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        table: dict[int, int] = {}
        total = 0
        for number in range(200_000):
            table[number & 1023] = total
            total = (total * 31 + number) & 0xFFFF
        spans.append((time.perf_counter() - began) * 1_000)
    return min(spans)


def median(values: list[float]) -> float:
    return statistics.median(values)


def percentile(values: list[float], percent: float) -> float:
    """The value that ``percent`` of all values do not exceed; 0 for none."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


profile: cProfile.Profile | None = None
"""Set by ``run.py --profile``: collects what happens within ``measured``."""


@contextmanager
def measured() -> Iterator[None]:
    """The part of a benchmark whose time counts, and which a profile shows."""
    if profile is None:
        yield
        return
    profile.enable()
    try:
        yield
    finally:
        profile.disable()


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for homes and workdirs, removed afterwards. ``TMPDIR`` says on which disk."""
    with tempfile.TemporaryDirectory(prefix="leviath-bench-") as folder:
        yield Path(folder)
