"""Turns a second of a busy fleet, and the turn time of a run alone."""

from __future__ import annotations

import gc
from pathlib import Path

import fleet
import trio
from harness import Benchmark, Row, median, scratch

from leviath.engine.opening import Durability
from leviath.engine.tools import Tool

TURNS = 20
"""Tool turns of a run. The last word, one more model call, is not counted."""


def _rate(durability: Durability, counter: Tool, *, runs: int, times: int) -> tuple[float, str]:
    rates: list[float] = []

    async def once(folder: Path) -> None:
        home = None if durability == "memory" else folder / "home"
        async with fleet.open_gated(
            home, turns=TURNS, durability=durability, counter=counter
        ) as world:
            await fleet.spawn_all(world, fleet.blueprint(TURNS), runs, folder)
            commits = world._host.commits
            span = await fleet.drive(world, runs)
            rates.append(runs * TURNS / span)
            per_commit.append(runs * TURNS / max(1, world._host.commits - commits))

    per_commit: list[float] = []
    for _ in range(times):
        with scratch() as folder:
            trio.run(once, folder)
        gc.collect()
    note = "" if durability == "memory" else f"{median(per_commit):.0f} turns a commit"
    return median(rates), note


def _benchmark(
    name: str, what: str, durability: Durability, counter: Tool, target: int
) -> Benchmark:
    def measure(quick: bool) -> list[Row]:
        runs, times = (200, 1) if quick else (1_000, 3)
        value, note = _rate(durability, counter, runs=runs, times=times)
        return [Row(name, value, "turns/s", target, "higher", note)]

    return Benchmark(name, what, measure)


BENCHMARKS = [
    _benchmark(
        "turns_full", "1,000 runs, an async tool a turn, full", "full", fleet.count_words, 8_000
    ),
    _benchmark(
        "turns_full_plain_tool",
        "the same with a plain function as tool",
        "full",
        fleet.plain_count_words,
        5_000,
    ),
    _benchmark(
        "turns_memory",
        "1,000 runs, an async tool a turn, memory",
        "memory",
        fleet.count_words,
        12_000,
    ),
]
