"""How many random histories a second are played and held to every invariant."""

from __future__ import annotations

import time

from harness import Benchmark, Row, measured

from leviath.simulation.histories import acts_of, play
from leviath.simulation.torture_cast import built_in

_TARGET_S = 10_000 / 300 / 2
"""Ten thousand in five minutes of two cores."""


def _histories(*, quick: bool) -> list[Row]:
    cast, count = built_in(), 50 if quick else 1_000
    for seed in range(20):
        play(cast, seed, acts_of(seed))
    steps = 0
    began = time.perf_counter()
    with measured():
        for seed in range(count):
            steps += play(cast, seed, acts_of(seed)).steps
    span_s = time.perf_counter() - began
    note = f"one process; {steps / count:.1f} steps each, all invariants after every step"
    return [Row("histories", count / span_s, "histories/s", _TARGET_S, "higher", note)]


BENCHMARKS = [
    Benchmark("histories", "random histories with all invariants on", _histories),
]
