"""A fleet of runs that do nothing but take turns: what the benchmarks drive."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
import trio.testing
from harness import measured
from msgspec.structs import replace

from leviath.components.blueprint import Blueprint
from leviath.components.inputs import Configured
from leviath.components.parts import WORLD_OWNER
from leviath.components.world_facts import Offer
from leviath.engine.blueprints import parse_blueprint
from leviath.engine.host import Host
from leviath.engine.opening import Durability
from leviath.engine.tools import Tool, tool
from leviath.engine.world import OpenWorld, open_world
from leviath.providers.scripted import Scripted, tool_call

SLOTS = 100_000
"""More than there are runs, so that no run waits for another."""
_SPAWNERS = 256


@tool(effect="pure")
async def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


def _count_words_plainly(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


plain_count_words = tool(name="count_words", effect="pure")(_count_words_plainly)
"""The same as a plain function, which runs in a thread."""


def blueprint(turns: int, *, provider: str = "scripted") -> Blueprint:
    """One stage, one tool, and no cap that ``turns`` turns could reach."""
    text = f"""
        [agent]
        name = "fleet"
        [stages.main]
        available_tools = ["count_words"]
        max_iterations = {turns + 10}
        [stages.main.model]
        models = [{{ provider = "{provider}", model = "m" }}]
    """
    return parse_blueprint(text, where="bench")


def script(turns: int) -> Scripted:
    """``turns`` replies that ask for the tool, then the last word. No latency."""
    call = tool_call("count_words", text="one two three")
    return Scripted.of(*([call] * turns), "done")


@asynccontextmanager
async def open_gated(
    home: Path | None,
    *,
    turns: int,
    durability: Durability,
    counter: Tool = count_words,
    vfs: str | None = None,
) -> AsyncIterator[OpenWorld]:
    """A world without slots: its runs come as far as their first model call, until ``let_go``."""
    async with open_world(
        home,
        providers=[script(turns)],
        tools=[counter],
        builtins=False,
        durability=durability,
        vfs=vfs,
        policy=lambda policy: replace(policy, slots_default=0),
    ) as world:
        yield world


def host_of(world: OpenWorld) -> Host:
    """The loop inside, whose counters are read here and nowhere else from outside."""
    return world._host  # noqa: SLF001


def let_go(world: OpenWorld) -> None:
    """Give every run its slot at once."""
    host = host_of(world)
    policy = replace(host.world.policy, slots_default=SLOTS)
    host.post(Configured(policy, host.world.get(WORLD_OWNER, Offer)))


async def spawn_all(world: OpenWorld, agent: Blueprint, count: int, workdir: Path) -> None:
    """Spawn through the public API, many at a time."""
    numbers = iter(range(count))

    async def some() -> None:
        for _ in numbers:
            await world.spawn(agent, task="count", workdir=workdir)

    async with trio.open_nursery() as nursery:
        for _ in range(_SPAWNERS):
            nursery.start_soon(some)
    await until_written(world)


async def until_written(world: OpenWorld) -> None:
    """Until all run files that are due are written: what spawning left to do is not of the
    turns."""
    host = host_of(world)
    while not (host.is_settled and (host.mirror is None or host.mirror.is_idle)):  # noqa: ASYNC110
        await trio.sleep(0.01)


async def hear_ends(world: OpenWorld, count: int, ended: trio.Event) -> None:
    """The one subscriber: hears every durable event and sets ``ended`` after ``count`` ends."""
    async for event in world.events():
        if type(event).__name__ == "Ended":
            count -= 1
            if not count:
                ended.set()
                return


async def drive(world: OpenWorld, count: int) -> float:
    """Let a gated fleet go; seconds until the last of ``count`` runs has ended durably."""
    ended = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hear_ends, world, count, ended)
        await trio.testing.wait_all_tasks_blocked()
        with measured():
            began = time.perf_counter()
            let_go(world)
            await ended.wait()
            return time.perf_counter() - began
    raise AssertionError("a nursery ends with its block")
