"""Forks: only what comes after the step is done again, and nothing of the other run leaks in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from engine_worlds import Counting, Gate, in_trio, one, opened, priced, three, tool_call, until
from tree_worlds import answers, splitter

import leviath
from leviath.components.errors import ConfigError, RunConflict, RunNotFound, SpawnError
from leviath.components.identity import Forked
from leviath.components.progress import Visits
from leviath.components.status import Position
from leviath.persistence.exporting import export_world
from leviath.persistence.history import History
from leviath.persistence.saved import open_saved
from leviath.simulation.replay import replay

if TYPE_CHECKING:
    from pathlib import Path

    from leviath.persistence.history import WorldState

LOOK = tool_call("look", q="x")


def script() -> Counting:
    """Three stages, with a tool call in the first: four turns."""
    return Counting(priced("", LOOK), priced("plan"), priced("work"), priced("report"), loop=True)


class Looks:
    """A tool that counts how often it is called."""

    def __init__(self) -> None:
        self.calls = 0

    def tool(self, effect: Any = "pure") -> leviath.Tool:
        @leviath.tool(effect=effect)
        def look(q: str) -> str:
            """Look."""
            self.calls += 1
            return q * 3

        return look


def states(home: Path, run_id: str) -> list[WorldState]:
    """The world after each step in which the run was there and had not ended."""
    with open_saved(home) as saved:
        history = History(saved)
        causes = history.why(run_id)
        steps = range(causes[0].step, causes[-1].step)
        return [history.at(step) for step in steps]


async def ended(home: Path) -> tuple[str, int]:
    """A run that ended under an earlier host; its id, and how many turns it took."""
    async with opened(home, [script()], tools=[Looks().tool()]) as world:
        run = await world.spawn(three("look"), task="mine " * 500, workdir=home)
        await run.wait()
        return str(run.run_id), len(run.ledger())


@in_trio
async def test_a_fork_at_each_step_runs_only_what_comes_after_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    run_id, turns = await ended(home)
    before = states(home, run_id)
    assert len(before) > 8
    for state in before:
        (owner,) = (n for n in state.owners if state.run_id(n) == run_id)
        visits = state.owners[owner].get(Visits)
        done = visits.turn_calls if isinstance(visits, Visits) else 0
        model, looks = script(), Looks()
        async with opened(home, [model], tools=[looks.tool()]) as world:
            run = await world.fork(run_id, at=state.step, workdir=tmp_path)
            assert (await run.wait()).status == "complete"
            assert [asked.ordinal for asked in model.asked] == list(range(done + 1, turns + 1))
            assert looks.calls == run.row().tool_calls
            assert run.row().prompt_tokens == 10 * (turns - done)
            assert run.row().cost_priced_nano == 1_000 * (turns - done)
            assert len(run.ledger()) == turns - done
    replay(home).expect_same()


@in_trio
async def test_a_fork_of_a_run_with_runs_below_it_at_each_step(tmp_path: Path) -> None:
    """The fork has no child of the other run: it splits again, or its model hears of it, and its
    own turns before the step are not made again."""
    home = tmp_path / "home"
    async with opened(home, [answers(2)]) as world:
        other = await world.spawn(splitter(), task="all", workdir=tmp_path)
        await other.wait()
        theirs = [child.run_id for child in other.children()]
    markers: set[str] = set()
    for state in states(home, other.run_id):
        (owner,) = (n for n in state.owners if state.run_id(n) == other.run_id)
        parts = state.owners[owner]
        visits, position = parts.get(Visits), parts.get(Position)
        done = visits.turn_calls if isinstance(visits, Visits) else 0
        assert isinstance(position, Position)
        markers.add(position.marker.value)
        model = answers(2)
        async with opened(home, [model]) as world:
            run = await world.fork(other.run_id, at=state.step, workdir=tmp_path)
            assert (await run.wait()).status == "complete"
            own = [asked.ordinal for asked in model.asked if asked.run_id == run.run_id]
            assert own[0] == done + 1
            assert own == list(range(done + 1, done + 1 + len(own)))
            below = [child.run_id for child in run.children()]
            assert not set(below) & set(theirs)
            assert {asked.run_id for asked in model.asked} == {run.run_id, *below}
            assert run.total().runs == 1 + len(below)
            assert [child.run_id for child in world.run(other.run_id).children()] == theirs
    assert "fan_out_waiting" in markers
    replay(home).expect_same()


@in_trio
async def test_a_fork_names_where_it_began_and_the_other_run_is_untouched(tmp_path: Path) -> None:
    home = tmp_path / "home"
    run_id, turns = await ended(home)
    step = states(home, run_id)[-1].step
    async with opened(home, [script()], tools=[Looks().tool()]) as world:
        was = world.run(run_id).row()
        run = await world.fork(run_id, at=step, workdir=tmp_path, key="again")
        assert (
            await world.fork(run_id, at=step, workdir=tmp_path, key="again")
        ).run_id == run.run_id
        assert run.run_id != run_id
        await run.wait()
        assert world.run(run_id).row() == was
        assert run.row().workdir == str(tmp_path)
    with open_saved(home) as saved:
        state = History(saved).at(saved.last)
    forked = state.owners[run.ordinal][Forked]
    assert isinstance(forked, Forked)
    assert (forked.run_id, forked.step) == (run_id, step)
    assert forked.prefix.priced_nano == 1_000 * (turns - 1)


@in_trio
async def test_an_answer_that_the_other_run_waits_for_is_not_the_forks(tmp_path: Path) -> None:
    home = tmp_path / "home"
    gate = Gate(priced("the other's answer"), priced("the fork's answer"))
    async with opened(home, [gate]) as world:
        first = await world.spawn(one(), workdir=tmp_path)
        await gate.waiting.wait()
        fork = await world.fork(first.run_id, at=newest_step(home), workdir=tmp_path)
        await until(lambda: len(gate.asked) == 2)
        gate.open.set()
        await first.wait()
        await fork.wait()
        assert len(gate.asked) == 2
        assert len(first.ledger()) == len(fork.ledger()) == 1
        assert fork.row().unpriced_calls == 0
    replay(home).expect_same()


def newest_step(home: Path) -> int:
    with open_saved(home) as saved:
        return saved.last


@in_trio
async def test_another_blueprint_goes_on_from_there(tmp_path: Path) -> None:
    home = tmp_path / "home"
    run_id, _ = await ended(home)
    step = states(home, run_id)[-1].step
    model = Counting(priced("other"), loop=True)
    async with opened(home, [model], tools=[Looks().tool()]) as world:
        run = await world.fork(run_id, at=step, workdir=tmp_path, blueprint=three())
        await run.wait()
        assert len(model.asked) == 1
        with pytest.raises(RunConflict, match=r"has none of that name; it has main"):
            await world.fork(run_id, at=step, workdir=tmp_path, blueprint=one())
    replay(home).expect_same()


@in_trio
async def test_a_fork_of_an_exported_world_brings_its_texts(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "out"
    run_id, _ = await ended(home)
    step = states(home, run_id)[-1].step
    with open_saved(home) as saved:
        export_world(saved, folder)
    model = Counting(priced("done"), loop=True)
    async with opened(tmp_path / "new", [model], tools=[Looks().tool()]) as world:
        run = await world.fork(run_id, at=step, workdir=tmp_path, source=folder)
        assert (await run.wait()).status == "complete"
    replay(tmp_path / "new").expect_same()
    with open_saved(tmp_path / "new") as saved:
        assert export_world(saved, tmp_path / "again").texts > 1
    assert b"mine mine" in b"".join(p.read_bytes() for p in (tmp_path / "again/texts").iterdir())


@in_trio
async def test_a_fork_that_cannot_be_leaves_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    run_id, _ = await ended(home)
    last = newest_step(home)
    async with opened(home, [script()], tools=[Looks().tool()]) as world:
        count = len(world.listing())
        for error, at, name, folder in (
            (RunConflict, last, run_id, tmp_path),
            (ConfigError, last + 999, run_id, tmp_path),
            (SpawnError, 1, run_id, tmp_path),
            (RunNotFound, last, "nobody", tmp_path),
            (SpawnError, 3, run_id, tmp_path / "missing"),
        ):
            with pytest.raises(error):
                await world.fork(name, at=at, workdir=folder)
        assert len(world.listing()) == count
    replay(home).expect_same()


@in_trio
async def test_a_world_in_memory_has_no_history(tmp_path: Path) -> None:
    async with leviath.open_world(durability="memory") as world:
        with pytest.raises(ConfigError, match="source="):
            await world.fork("x", at=1, workdir=tmp_path)
