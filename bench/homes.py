"""Homes full of parked runs: how soon they are loaded, what they cost, how soon they are listed."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import fleet
import trio
from harness import Benchmark, Row, measured, median

from leviath.components.parts import WORLD_OWNER
from leviath.components.world_facts import Counters
from leviath.engine.clock import Clock, ManualClock
from leviath.engine.world import OpenWorld, open_world

FOLDER = "LEVIATH_BENCH_HOMES"
"""Where the homes of one ``run.py`` are; it removes them."""
_ABSENT = "elsewhere"
"""A provider that no host has: its runs are parked."""


def home_of(count: int) -> Path:
    """A home of ``count`` parked runs, made by a process of its own when there is none yet."""
    home = Path(os.environ[FOLDER]) / f"home-{count}"
    if not home.exists():
        subprocess.run([sys.executable, __file__, str(count)], check=True)
    return home


def _make(count: int) -> None:
    folder = Path(os.environ[FOLDER])
    home, making = folder / f"home-{count}", folder / f"making-{count}"

    async def fill() -> None:
        # The clock stands: else the heartbeat of the runs that are there delays those to come.
        async with open_world(
            making,
            tools=[fleet.count_words],
            builtins=False,
            durability="process",
            checks=False,
            clock=ManualClock(),
        ) as world:
            agent = fleet.blueprint(1, provider=_ABSENT)
            await fleet.spawn_all(world, agent, count, folder)

    trio.run(fill)
    making.rename(home)


def open_parked(home: Path, clock: Clock | None = None) -> AbstractAsyncContextManager[OpenWorld]:
    """Open a home whose runs stay parked."""
    return open_world(
        home, tools=[fleet.count_words], builtins=False, durability="process", clock=clock
    )


async def first_step(world: OpenWorld) -> None:
    """Until the first step of this opening is durable."""
    host = fleet.host_of(world)
    while not (host.is_settled and host.world.get(WORLD_OWNER, Counters).step):  # noqa: ASYNC110
        await trio.sleep(0.001)


def resident_kib() -> int:
    """Memory of this process that is in RAM."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


# --- loading ------------------------------------------------------------------------------------


def _load(count: int, times: int) -> tuple[float, float]:
    """(seconds, KiB a run)."""
    home = home_of(count)
    spans: list[float] = []
    sizes: list[float] = []

    async def once() -> None:
        before = resident_kib()
        began = time.perf_counter()
        with measured():
            async with open_parked(home) as world:
                await first_step(world)
                spans.append(time.perf_counter() - began)
                assert len(world.runs()) == count, "the home lost runs"
                sizes.append((resident_kib() - before) / count)

    for _ in range(times):
        trio.run(once)
    return median(spans), sizes[0]


def _load_10k(*, quick: bool) -> list[Row]:
    span, _ = _load(500 if quick else 10_000, 1 if quick else 3)
    return [Row("load_10k", span, "s", 0.5, "lower", "to the first durable step")]


def _load_100k(*, quick: bool) -> list[Row]:
    span, size = _load(2_000 if quick else 100_000, 1)
    return [
        Row("load_100k", span, "s", 5, "lower", "to the first durable step"),
        Row("memory_per_parked_run", size, "KiB", 5, "lower", "resident memory after the load"),
    ]


# --- the heartbeat ------------------------------------------------------------------------------


def _heartbeat(*, quick: bool) -> list[Row]:
    count, seconds = (500, 5) if quick else (10_000, 60)
    home = home_of(count)
    clock = ManualClock()
    used: list[float] = []
    rows: list[int] = []

    async def once() -> None:
        async with open_parked(home, clock) as world:
            await first_step(world)
            host = fleet.host_of(world)
            commits = host.commits
            with measured():
                for _ in range(seconds):
                    began = time.process_time()
                    clock.advance(1_000)
                    await trio.sleep(0.03)  # costs no processor; the writer's thread gets done
                    while not host.is_settled:  # noqa: ASYNC110
                        await trio.sleep(0.005)
                    used.append(time.process_time() - began)
            rows.append(host.commits - commits)

    trio.run(once)
    note = f"of a second in which a thirtieth of the runs beats; {rows[0]} commits in {seconds} s"
    return [Row("heartbeat_10k", sum(used) / seconds * 100, "% of a core", 5, "lower", note)]


# --- the listing --------------------------------------------------------------------------------


def _listing(*, quick: bool) -> list[Row]:
    home = home_of(500 if quick else 10_000)
    with_home = {**os.environ, "LEVIATH_HOME": str(home.parent / "listing")}
    nested = home.parent / "listing" / ".leviath"
    nested.parent.mkdir(exist_ok=True)
    shutil.copytree(home, nested, dirs_exist_ok=True)
    spans: list[float] = []
    for _ in range(3 if quick else 7):
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "leviath.lev", "ps"],
            env=with_home,
            capture_output=True,
            check=False,
        )
        spans.append((time.perf_counter() - began) * 1_000)
        if done.returncode:
            reason = done.stderr.decode(errors="replace").strip().splitlines()
            return [Row("lev_ps_10k", None, "ms", 150, "lower", f"failed: {reason[-1:]}")]
    lines = len(done.stdout.splitlines())
    note = f"a process from start to end, files warm; {lines} lines"
    return [Row("lev_ps_10k", median(spans), "ms", 150, "lower", note)]


BENCHMARKS = [
    Benchmark("load_10k", "10,000 parked runs to the first step", _load_10k),
    Benchmark("load_100k", "100,000 parked runs to the first step, and their memory", _load_100k),
    Benchmark("heartbeat_10k", "what 10,000 parked runs cost while nothing happens", _heartbeat),
    Benchmark("lev_ps_10k", "`lev ps` of 10,000 runs, first page, cold process", _listing),
]


if __name__ == "__main__":
    _make(int(sys.argv[1]))
