"""What a load makes of a store: the same world at every step, at a cost that is known."""

from __future__ import annotations

import gc
import itertools
import sys
import zlib
from typing import TYPE_CHECKING, Any

import apsw
import pytest
import trio
from engine_worlds import (
    Counting,
    Gate,
    in_trio,
    one,
    opened,
    priced,
    three,
    tool_call,
    until,
)

from leviath.components.identity import Identity
from leviath.components.inputs import Pause
from leviath.components.world_facts import OfferedTool, Policy
from leviath.engine.blueprints import parse_blueprint
from leviath.engine.clock import ManualClock
from leviath.engine.loading import load_world
from leviath.engine.opening import _blame, open_home
from leviath.engine.texts import Texts
from leviath.engine.tools import tool
from leviath.persistence.database import Database, open_database
from leviath.simulation.hand import Hand
from leviath.systems.caches import Caches
from leviath.systems.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from leviath.components.blueprint import Blueprint
    from leviath.engine.world import OpenWorld

SUBMIT = tool_call("submit_output", content="the result")


@tool(effect="idempotent")
def put(text: str) -> str:
    "Put."
    return text


LARGE = """
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


def script() -> Counting:
    call = tool_call("put", text="x")
    return Counting(
        priced("a" * 2_000, call, call),
        priced("planned"),
        priced("", call),
        priced("worked"),
        priced("", SUBMIT),
        priced("reported"),
    )


def copy(home: Path, to: Path) -> Path:
    """A copy of a home's database as of one moment, while a host has it."""
    to.mkdir(mode=0o700)
    source = apsw.Connection(str(home / "world.db"), flags=apsw.SQLITE_OPEN_READONLY)
    target = apsw.Connection(str(to / "world.db"))
    with target.backup("main", source, "main") as backup:
        backup.step()
    source.close()
    target.close()
    (to / "world.db").chmod(0o600)
    return to


def cut_off(home: Path, step: int) -> None:
    """Make a home what it was after one of its steps. It has no cut."""
    with apsw.Connection(str(home / "world.db")) as db:
        assert db.execute("select cut from world").fetchone() == (0,)
        db.execute("delete from journal where step > ?", (step,))
        db.execute("delete from ledger where step > ?", (step,))
        (newest,) = db.execute("select step from world").fetchone() or (0,)
        if step < newest:  # the run ends in the last step
            db.execute("update run set status = 'running', ended_ms = null")
        db.execute("update world set step = ?", (step,))


@pytest.mark.parametrize("with_cut", [False, True])
def test_a_run_reloaded_at_any_step_ends_alike(tmp_path: Path, with_cut: bool) -> None:
    agent = three("put", "submit_output")

    async def first() -> int:
        async with opened(tmp_path / "home", [script()], tools=[put]) as world:
            run = await world.spawn(agent, task="x" * 3_000, key="k", workdir=tmp_path)
            await run.wait()
            await until(lambda: world._host.is_settled)
            copy(tmp_path / "home", tmp_path / "copy")
            steps: int = world._host.step
            return steps

    async def again(home: Path) -> tuple[Any, ...]:
        found: tuple[Any, ...] = ()
        for closes in (True, False) if with_cut else (False,):
            async with opened(home, [script()], tools=[put], drive=not closes) as world:
                if closes:
                    # Its last cut must hold what came from the journal.
                    continue
                run = await world.spawn(agent, key="k", workdir=tmp_path)
                row = await run.wait()
                certain = [line.certainty for line in run.ledger()]
                assert certain.count("interrupted") <= 1
                assert len(world.listing()) == 1
                tokens = (row.prompt_tokens, row.completion_tokens)
                paid = certain.count("provider")
                result = (row.status, run.result(), paid)
                found = (*result, row.cost_priced_nano, row.tool_calls, tokens)
        return found

    steps = trio.run(first)
    assert steps >= 8
    spawned = 2
    for step in range(spawned, steps + 1):
        home = tmp_path / f"step-{step}"
        copy(tmp_path / "copy", home)
        cut_off(home, step)
        found = trio.run(again, home)
        assert found == ("complete", "the result", 6, 6_000, 4, (60, 12)), step


@in_trio
async def test_a_loaded_world_equals_the_live_one(tmp_path: Path) -> None:
    """Components and caches; with runs that think, call, are paused, wait and have ended."""
    gate = Gate(priced("", tool_call("hang"), tool_call("put", text="x")), priced("done"))
    begun = trio.Event()

    @tool(effect="once")
    async def hang() -> str:
        "Hang."
        begun.set()
        await trio.sleep_forever()
        return ""

    homes = itertools.count()
    asks = one("put", name="asks", more='tool_permissions = { put = "ask" }')
    calls = Counting(priced("", tool_call("put", text="x")), loop=True)
    calls.name = "calls"
    async with opened(
        tmp_path / "home", [gate, calls], tools=[hang, put], slots=2, seed=3
    ) as world:

        async def compare() -> None:
            await until(lambda: world._host.is_settled)
            live = world._host.stepper
            home = copy(tmp_path / "home", tmp_path / f"copy{next(homes)}")
            found = await open_home(home, durability="process", clock=ManualClock(), seed=None)
            try:
                assert found.loaded.step == world._host.step
                owners = sorted(live.world.owners())
                assert sorted(found.world.owners()) == owners
                for owner in (0, *owners):
                    assert found.world.row(owner) == live.world.row(owner)
                assert found.caches.snapshot() == live.caches.snapshot()
                assert found.world.queues() == live.world.queues()
            finally:
                found.release()

        runs = [await world.spawn(one("hang", "put"), workdir=tmp_path) for _ in range(4)]
        await gate.waiting.wait()
        await compare()
        await runs[0].pause()
        await runs[3].cancel()
        waits = await world.spawn(asks, model="calls/m", workdir=tmp_path)
        await until(lambda: waits.status.waiting)
        await compare()
        gate.open.set()
        await begun.wait()
        await until(lambda: len(world.runs()) == 5)
        await compare()
        cutting = world._host.cutting
        assert cutting is not None
        cutting.hasten()
        await runs[0].resume()
        await until(lambda: not cutting.dirty.parts or cutting.is_under_way)
        await until(lambda: not cutting.is_under_way)
        found = await open_home(
            copy(tmp_path / "home", tmp_path / "cut"),
            durability="process",
            clock=ManualClock(),
            seed=None,
        )
        assert found.database is not None
        row = found.database.world()
        assert row is not None
        assert row.cut > 0
        found.release()
        for run in world.runs():
            if not run.status.status.is_ended:
                await run.cancel()


def parked_home(tmp_path: Path, count: int) -> Path:
    """A home of that many paused runs, closed in order."""

    async def main() -> None:
        async with opened(tmp_path / f"parked-{count}", [Counting("x")], drive=False) as world:
            agent = one()
            async with trio.open_nursery() as nursery:
                for _ in range(count):
                    nursery.start_soon(_park, world, agent, tmp_path)

    trio.run(main)
    return tmp_path / f"parked-{count}"


async def _park(world: OpenWorld, agent: Blueprint, workdir: Path) -> None:
    run = await world.spawn(agent, workdir=workdir)
    await run.pause()


def loaded(home: Path) -> tuple[int, int, World]:
    """Load; how many slices that took, how many statements, and the world."""
    statements = 0

    def count(*_: object) -> bool:
        nonlocal statements
        statements += 1
        return True

    with open_database(home / "world.db", level="process", read_only=True) as db:
        connection: Any = db._db
        connection.exec_trace = count
        world = World()
        slices = sum(1 for _ in load_world(world, Caches(world), db, Texts(db.entry).body))
        return slices, statements, world


def test_a_load_is_made_in_slices_and_asks_as_much_for_many_runs_as_for_few(
    tmp_path: Path,
) -> None:
    few_slices, few, world = loaded(parked_home(tmp_path, 50))
    assert world.resident_count() == 50
    many_slices, many, world = loaded(parked_home(tmp_path, 1_000))
    assert world.resident_count() == 1_000
    assert many == few <= 10
    assert few_slices <= 4
    assert many_slices >= 2 * 1_000 // 64


def test_a_step_costs_as_much_among_parked_runs_as_without_them() -> None:
    """Counted in calls of Python functions: the same to the last one, also after all were busy."""
    agent = one("look")
    look = OfferedTool("look", "pure", 60_000, b"look")

    def turn(hand: Hand, run: int) -> int:
        calls = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        before = sys.getprofile()
        # A collection calls whoever listens to it, at a moment that depends on other tests.
        gc.disable()
        sys.setprofile(count)
        try:
            hand.reply("", ("c", "look", "{}"))
            hand.tool("seen")
        finally:
            sys.setprofile(before)
            gc.enable()
        assert hand.status(run).status.value == "running"
        return calls

    def cost(parked: int) -> int:
        hand = Hand(tools=(look,), check=False, policy=Policy(slots_default=10_000))
        for _ in range(parked):
            hand.spawn(agent)
            hand.reply("", ("c", "look", "{}"))
            hand.tool("seen")
        for run in list(hand.world.owners()):
            hand.post(Pause(run))
        hand.commands.clear()
        run = hand.spawn(agent)
        turn(hand, run)
        return turn(hand, run)

    assert cost(0) == cost(1) == cost(600)


@in_trio
async def test_a_thousand_turns_beside_a_megabyte_leave_a_few_megabytes(tmp_path: Path) -> None:
    agent = parse_blueprint(LARGE, where="large")
    turns = [priced("", tool_call("put", text=f"{number}")) for number in range(1_000)]
    home = tmp_path / "home"
    async with opened(home, [Counting(*turns, priced("done"))], tools=[put]) as world:
        run = await world.spawn(
            agent, task="x", workdir=tmp_path, regions={"brief": "b" * 1_048_576}
        )
        row = await run.wait()
        assert (row.status, row.tool_calls, row.error) == ("complete", 1_000, None)
    size = sum(path.stat().st_size for path in home.rglob("*") if path.is_file())
    assert size < 8 * 1024 * 1024


# --- blame --------------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "world.db", level="process") as db:
        db.initialise("w", 1)
        yield db


def opening(database: Database, loading: int | None, *, done: bool = False) -> None:
    database.claim(1, "1")
    database.set_loading(loading)
    if done:
        database.mark_loaded()


def test_a_run_is_blamed_when_two_hosts_died_over_it(database: Database) -> None:
    assert _blame(database) == (frozenset(), False)
    opening(database, 3)
    assert _blame(database) == (frozenset(), True)
    opening(database, 3)
    assert _blame(database) == (frozenset({3}), True)
    # It was skipped: that a load finished without it clears it of nothing.
    opening(database, None, done=True)
    assert _blame(database) == (frozenset({3}), False)


def test_a_host_that_was_killed_from_outside_is_forgotten_once_a_load_finished(
    database: Database,
) -> None:
    opening(database, 3)
    opening(database, None, done=True)
    opening(database, 3)
    opening(database, 4)
    assert _blame(database) == (frozenset(), True)
    opening(database, None, done=True)
    opening(database, 4)
    assert _blame(database) == (frozenset(), True)


@in_trio
async def test_a_run_that_cannot_be_decoded_keeps_no_other_from_running(tmp_path: Path) -> None:
    home = tmp_path / "home"
    gate = Gate(priced("done"))
    async with opened(home, [gate]) as world:
        runs = [await world.spawn(one(), task="x", workdir=tmp_path) for _ in range(3)]
    with apsw.Connection(str(home / "world.db")) as db:
        db.execute("update state set body = x'c1', crc = 0 where owner = 2 and part = 'Launch'")
        db.execute("update state set crc = ? where body = x'c1'", (zlib.crc32(b"\xc1"),))
    gate.open.set()
    for _ in range(2):
        async with opened(home, [gate]) as world:
            assert list(world._opened.loaded.quarantined) == [2]
            for run in (runs[0], runs[2]):
                assert (await world.run(run.run_id).wait()).status == "complete"
            # Not ended: nobody knows.
            assert world.run(runs[1].run_id).row().status == "running"
            found = [world._host.world.get(n, Identity).run_id for n in world._host.world.owners()]
            assert runs[1].run_id not in found
