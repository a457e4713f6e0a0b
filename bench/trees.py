"""What trees of runs cost: a cancel of 10,000, totals on each call, a parked parent, a fan-out."""

from __future__ import annotations

import gc
import json
import sys
import time
import tracemalloc
from functools import partial
from pathlib import Path

import fleet
import trio
import trio.testing
from harness import Benchmark, Row, measured, median, scratch
from msgspec.structs import replace

from leviath.components.blueprint import Blueprint, digest
from leviath.components.commands import Infer
from leviath.components.context import AskedCall
from leviath.components.events import Ended
from leviath.components.identity import Launch, Tree
from leviath.components.inputs import Configured, HostOpened, InferenceFinished, Spawn
from leviath.components.parts import WORLD_OWNER
from leviath.components.progress import Cost
from leviath.components.run_status import RunStatus
from leviath.components.text import Text, inline
from leviath.components.world_facts import Offer, OfferedTool, Policy, Seed
from leviath.engine.blueprints import parse_blueprint
from leviath.engine.ports import InferenceReply, InferenceRequest, Usage
from leviath.engine.step import Stepper
from leviath.engine.world import OpenWorld, open_world
from leviath.systems.agent_calls import ITEM
from leviath.systems.caches import Caches
from leviath.systems.run import Now
from leviath.systems.schedule import RULES
from leviath.systems.world import World

MODEL = 'models = [{ provider = "scripted", model = "m" }]'
WIDTHS = (10, 10, 10)
"""Children of each run, level by level, where 10,000 runs make a tree of depth 4."""


def splitter(max_workers: int) -> Blueprint:
    """Splits among workers of its own, and ends with their results."""
    text = f"""
        [agent]
        name = "splitter"
        [stages.split]
        mode = "fan_out"
        worker_stage = "work"
        max_workers = {max_workers}
        [stages.split.transitions]
        [stages.split.model]
        {MODEL}
        [stages.work]
        allow_as_worker = true
        [stages.work.model]
        {MODEL}
    """
    return parse_blueprint(text, where="bench")


class Splits:
    """Answers without latency: a split of so many items, then each of them."""

    name = "scripted"

    def __init__(self, items: int) -> None:
        self._items = json.dumps([f"item {number}" for number in range(items)])

    async def infer(self, request: InferenceRequest, on_text: object) -> InferenceReply:
        text = self._items if request.stage == "split" else "done with it"
        return InferenceReply(text=text, usage=Usage(prompt=10, completion=2), cost_nano_usd=1_000)


class Never:
    """A provider that does not answer."""

    name = "scripted"

    async def infer(self, request: InferenceRequest, on_text: object) -> InferenceReply:
        await trio.sleep_forever()
        raise AssertionError("nobody wakes it")


# --- a fan-out ----------------------------------------------------------------------------------


async def _fan_out(folder: Path, items: int) -> float:
    """Workers a second, from the split to the end of the run that joins them."""
    async with open_world(
        folder / "home", providers=[Splits(items)], builtins=False, slots=fleet.SLOTS
    ) as world:
        began = time.perf_counter()
        with measured():
            run = await world.spawn(splitter(0), workdir=folder)
            await run.wait()
            span = time.perf_counter() - began
        assert run.total().runs == items + 1
        return items / span


def fan_out(*, quick: bool) -> list[Row]:
    """A fan-out of a thousand workers that answer at once, durably."""
    items = 100 if quick else 1_000
    rates: list[float] = []
    for _ in range(1 if quick else 3):
        with scratch() as folder:
            rates.append(trio.run(_fan_out, folder, items))
    note = f"{items} workers, full"
    return [Row("fan_out", median(rates), "workers/s", 3_000, "higher", note)]


# --- a cancel -----------------------------------------------------------------------------------


async def _plant(world: OpenWorld, agent: Blueprint, folder: Path, count: int) -> list[str]:
    """A tree of depth 4 with so many runs, as spawns that name their parents."""
    host = fleet.host_of(world)
    root = await world.spawn(agent, workdir=folder)
    launch = host.world.get(root.ordinal, Launch)
    level, ids, left = [root.ordinal], [root.run_id], count - 1
    for depth in range(1, 5):
        width = WIDTHS[depth - 1] if depth < 4 else -(-left // len(level))
        made: list[int] = []
        for parent in level:
            for _ in range(min(width, left)):
                host.post(Spawn(0, agent.name, "", launch, parent=parent))
                left -= 1
        while host.inbox:
            await trio.lowlevel.checkpoint()
        await host.until_durable(host.step)
        rows = host.world
        made = [n for n in rows.owners() if rows.get(n, Tree).depth == depth]
        ids += [rows.run_id(n) for n in made]
        level = made
    return ids


async def _cancel(folder: Path, count: int) -> tuple[float, float]:
    agent = parse_blueprint(
        f'[agent]\nname = "tree"\n[stages.main]\n[stages.main.model]\n{MODEL}\n',
        where="bench",
    )
    async with open_world(
        folder / "home", providers=[Never()], builtins=False, slots=fleet.SLOTS, grace_ms=0
    ) as world:
        ids = await _plant(world, agent, folder, count)
        assert len(ids) == count
        metas = [folder / "home" / "runs" / run_id / "meta.json" for run_id in ids]
        while not all(meta.exists() for meta in metas):  # noqa: ASYNC110 - a file rings no bell
            await trio.sleep(0.1)
        ended = trio.Event()

        async def hear() -> None:
            heard = 0
            async for event in world.events():
                heard += isinstance(event, Ended)
                if heard == count:
                    ended.set()
                    return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hear)
            await trio.testing.wait_all_tasks_blocked()
            with measured():
                began = time.perf_counter()
                await world.run(ids[0]).cancel()
                await ended.wait()
                durable = time.perf_counter() - began
        word = f'"status": "{RunStatus.CANCELLED.value}"'
        for meta in metas:
            while word not in meta.read_text(encoding="utf-8"):  # noqa: ASYNC110 - as above
                await trio.sleep(0.02)
        return durable, time.perf_counter() - began


def cancel(*, quick: bool) -> list[Row]:
    """Cancel of the root of a tree of depth 4, until every run has ended."""
    count = 1_000 if quick else 10_000
    with scratch() as folder:
        durable, mirrored = trio.run(_cancel, folder, count)
    note = f"{count} runs, depth 4"
    return [
        Row("cancel_tree", durable, "s", 2, "lower", note + ", durable"),
        Row("cancel_tree_files", mirrored, "s", 10, "lower", note + ", every file"),
    ]


# --- totals -------------------------------------------------------------------------------------


def _stepper() -> Stepper:
    world = World()
    stepper = Stepper(world, Caches(world))
    world.load(WORLD_OWNER, [Seed("bench", 1)])
    offer = Offer(("scripted",), (OfferedTool("fan_out", "step", 0, b"fan_out"),))
    stepper.step(
        [
            HostOpened(1, RULES),
            Configured(Policy(slots_default=fleet.SLOTS, tree_children_max=20_000), offer),
        ],
        Now(0, 1_790_000_000_000),
    )
    return stepper


def _spawn(stepper: Stepper, agent: Blueprint, parent: int, count: int) -> list[int]:
    world = stepper.world
    key = digest(agent)
    world.blueprints[key] = agent
    launch = Launch(inline("x"), "/w", key, 0, num_stages=1)
    made: list[int] = []
    for at in range(0, count, 256):
        spawns = [
            Spawn(0, agent.name, "", launch, parent=parent) for _ in range(min(256, count - at))
        ]
        result = stepper.step(spawns, Now(1, 1_790_000_000_001))
        made += [ack.run for ack in result.acks]
    return made


def totals(*, quick: bool) -> list[Row]:
    """What a change of a leaf's cost adds to the sums of the runs above it."""
    agent = parse_blueprint(
        f'[agent]\nname = "leaf"\n[stages.main]\n[stages.main.model]\n{MODEL}\n',
        where="bench",
    )
    rows: list[Row] = []
    for siblings in (0, 200 if quick else 10_000):
        stepper = _stepper()
        above = _spawn(stepper, agent, 0, 1)[0]
        for _ in range(3):
            above = _spawn(stepper, agent, above, 1)[0]
        leaf = _spawn(stepper, agent, above, 1 + siblings)[0]
        world = stepper.world
        rounds = 2_000
        costs = [replace(world.get(leaf, Cost), prompt=n + 1) for n in range(rounds)]
        index = world.trees
        spans: list[float] = []
        old = world.get(leaf, Cost)
        for cost in costs:
            began = time.perf_counter()
            index.cost_put(leaf, old, cost)
            index.total(leaf)
            spans.append((time.perf_counter() - began) * 1e6)
            old = cost
        name = "subtree_totals" if siblings else "subtree_totals_alone"
        note = f"depth 4, {siblings} siblings; the whole of a change"
        rows.append(Row(name, median(spans), "us", 50, "lower", note))
    return rows


# --- a parked parent ----------------------------------------------------------------------------


def parked(*, quick: bool) -> list[Row]:
    """Memory of a parent whose thousand workers have ended and left, one still at work."""
    count = 100 if quick else 1_000
    agent = splitter(0)
    sizes = [_parked(agent, count, by_digest=by_digest) for by_digest in (True, False)]
    note = f"{count} ended workers, results by digest; {sizes[1]:.0f} KB with results of 100 bytes"
    return [Row("parked_parent", sizes[0], "KB", 64, "lower", note)]


def _parked(agent: Blueprint, count: int, *, by_digest: bool) -> float:
    stepper = _stepper()
    world = stepper.world
    # The world's own tables grow with the runs that are in it at once, whoever their parent is.
    tracemalloc.start()
    for _ in range(3):
        _park(stepper, agent, count, by_digest=by_digest)
    gc.collect()
    before = tracemalloc.take_snapshot()
    boss = _park(stepper, agent, count, by_digest=by_digest)
    gc.collect()
    after = tracemalloc.take_snapshot()
    tracemalloc.stop()
    # esper's sets take and give tables of 32 KB as others come and go.
    own = [tracemalloc.Filter(False, "*esper*")]
    changes = after.filter_traces(own).compare_to(before.filter_traces(own), "filename")
    used = sum(stat.size_diff for stat in changes)
    names = world.trees.departed[boss].names
    ids = sum(_size(name) for name in names) + _size(names) + 32 * len(names)
    return (used - ids) / 1024


def _park(stepper: Stepper, agent: Blueprint, count: int, *, by_digest: bool) -> int:
    """A parent that waits for one more worker; ``count`` have ended and left memory."""
    world = stepper.world
    boss = _spawn(stepper, agent, 0, 1)[0]
    step = partial(_step, stepper)
    fields = tuple((f"{ITEM}{number}", inline(f"item {number}")) for number in range(count + 1))
    call = AskedCall("c", "fan_out", inline("{}"), "", fields)
    commands = step([InferenceFinished(boss, 1, 1, 1, calls=(call,))])
    del fields, call
    while stepper.next_due_ms(2) == 2:
        commands += step([])
    infers = [command for command in commands if isinstance(command, Infer)]
    assert len(infers) == count + 1
    for number, infer in enumerate(infers[:count]):
        body = Text("", number.to_bytes(16, "big"), 5_000)
        if not by_digest:
            body = inline(f"{number:0100d}")
        step([InferenceFinished(infer.run, infer.effect, infer.attempt, 1, body)])
    del infers, commands
    for n in [n for n in world.owners() if stepper.is_over(n)]:
        world.evict(n)
    stepper.caches.refresh()
    return boss


def _size(value: object) -> int:
    return sys.getsizeof(value)


def _step(stepper: Stepper, inputs: list[InferenceFinished]) -> list[object]:
    return list(stepper.step(inputs, Now(2, 1_790_000_000_002)).commands)


BENCHMARKS = [
    Benchmark("fan_out", "a fan-out of 1,000 workers", fan_out),
    Benchmark("cancel_tree", "cancel of a tree of 10,000 runs", cancel),
    Benchmark("subtree_totals", "totals of a tree on each change of a leaf", totals),
    Benchmark("parked_parent", "memory of a parent of 1,000 ended workers", parked),
]
