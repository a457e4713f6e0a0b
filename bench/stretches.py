"""How long the host's loop is held: between two looks at I/O, and by one task alone."""

from __future__ import annotations

import time
from pathlib import Path

import fleet
import homes
import trio
from harness import Benchmark, Row, percentile, scratch

from leviath.engine.world import OpenWorld

TARGET_MS = 20


class LoopWatch(trio.abc.Instrument):
    """Spans in milliseconds: whole passes of the loop, and single stretches of one task."""

    def __init__(self) -> None:
        self.passes: list[float] = []
        self.stretches: list[float] = []
        self._pass_began = self._stretch_began = 0.0  # 0 until the first whole one begins

    def after_io_wait(self, timeout: float) -> None:
        self._pass_began = time.perf_counter()

    def before_io_wait(self, timeout: float) -> None:
        if self._pass_began:
            self.passes.append((time.perf_counter() - self._pass_began) * 1_000)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._stretch_began = time.perf_counter()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._stretch_began:
            self.stretches.append((time.perf_counter() - self._stretch_began) * 1_000)

    def row(self, name: str) -> Row:
        """The p99 of the passes: nothing else of the loop waits longer, 99 times in 100."""
        note = (
            f"passes of the loop: max {max(self.passes, default=0):.1f} of {len(self.passes):,}; "
            f"one task: p99 {percentile(self.stretches, 99):.1f}, "
            f"max {max(self.stretches, default=0):.1f}"
        )
        return Row(name, percentile(self.passes, 99), "ms p99", TARGET_MS, "lower", note)


async def _after_the_start(world: OpenWorld, watch: LoopWatch) -> None:
    """Look once every run is busy: that all get a slot in one step is the benchmark's doing."""
    host = fleet.host_of(world)
    await host.feed.changed(1)
    trio.lowlevel.add_instrument(watch)


def _busy(*, quick: bool) -> list[Row]:
    runs = 200 if quick else 1_000
    watch = LoopWatch()

    async def once(folder: Path) -> None:
        async with fleet.open_gated(folder / "home", turns=20, durability="full") as world:
            await fleet.spawn_all(world, fleet.blueprint(20), runs, folder)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_after_the_start, world, watch)
                await fleet.drive(world, runs)
            trio.lowlevel.remove_instrument(watch)

    with scratch() as folder:
        trio.run(once, folder)
    return [watch.row("stretch_busy")]


def _loading(*, quick: bool) -> list[Row]:
    home = homes.home_of(2_000 if quick else 100_000)
    watch = LoopWatch()

    async def once() -> None:
        await trio.lowlevel.checkpoint()
        trio.lowlevel.add_instrument(watch)
        async with homes.open_parked(home) as world:
            await homes.first_step(world)
            trio.lowlevel.remove_instrument(watch)

    trio.run(once)
    return [watch.row("stretch_loading")]


BENCHMARKS = [
    Benchmark("stretch_busy", "how long the loop is held, 1,000 busy runs", _busy),
    Benchmark("stretch_loading", "how long the loop is held while 100,000 runs load", _loading),
]
