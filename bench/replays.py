"""Replaying a home with every change compared, and what a long history takes on disk."""

from __future__ import annotations

import time
from pathlib import Path

import fleet
import trio
from harness import Benchmark, Row, measured, scratch

from leviath.engine.blueprints import parse_blueprint
from leviath.engine.tools import tool
from leviath.engine.world import open_world
from leviath.providers.scripted import Scripted, tool_call
from leviath.simulation.replay import replay

_TURNS = 20
_LARGE = """
[agent]
name = "large"
[stages.main]
available_tools = ["put"]
max_iterations = 2000
[stages.main.model]
models = [{ provider = "scripted", model = "m" }]
[context.regions]
brief = { kind = "pinned", max_tokens = 1000000, seed = { caller = "brief" } }
conversation = { kind = "sliding_window", max_items = 20, max_tokens = 4000 }
"""


@tool(effect="pure")
async def put(text: str) -> str:
    """Put a text."""
    return text


async def _fleet(home: Path, runs: int, workdir: Path) -> None:
    agent = fleet.blueprint(_TURNS)
    async with fleet.open_gated(home, turns=_TURNS, durability="process") as world:
        await fleet.spawn_all(world, agent, runs, workdir)
        await fleet.drive(world, runs)


def _replay(*, quick: bool) -> list[Row]:
    runs = 50 if quick else 1_000
    with scratch() as folder:
        home = folder / "home"
        trio.run(_fleet, home, runs, folder)
        replay(home, upto=1)
        began = time.perf_counter()
        with measured():
            report = replay(home)
        span_s = time.perf_counter() - began
    report.expect_same()
    turns = runs * (_TURNS + 1)
    note = f"{turns:,} turns in {report.steps:,} steps, read, run and compared"
    return [Row("replay", turns / span_s, "turns/s", 8_000, "higher", note)]


async def _long(home: Path, turns: int, workdir: Path) -> None:
    calls = [tool_call("put", text=str(number)) for number in range(turns)]
    agent = parse_blueprint(_LARGE, where="bench")
    brief = {"brief": "b" * 1_048_576}
    model = Scripted.of(*calls, "done")
    async with open_world(home, providers=[model], tools=[put], durability="process") as world:
        run = await world.spawn(agent, task="x", workdir=workdir, regions=brief)
        await run.wait()


def _history(*, quick: bool) -> list[Row]:
    turns = 100 if quick else 1_000
    with scratch() as folder:
        home = folder / "home"
        trio.run(_long, home, turns, folder)
        size = sum(path.stat().st_size for path in home.rglob("*") if path.is_file())
        report = replay(home)
    report.expect_same()
    note = f"{turns:,} turns beside a constant 1 MB region, {report.steps:,} steps, all files"
    return [Row("history_size", size / 1024 / 1024, "MiB", 8, "lower", note)]


BENCHMARKS = [
    Benchmark("replay", "replay of a home with every change compared", _replay),
    Benchmark("history_size", "disk that the history of a long run takes", _history),
]
