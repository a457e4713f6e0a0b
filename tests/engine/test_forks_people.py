"""Forks of runs that ask: what people said to the other run, they said to it alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from engine_worlds import MODEL, Counting, in_trio, opened, tool_call, until

from leviath.components.errors import RunConflict, SpawnError
from leviath.engine.blueprints import parse_blueprint
from leviath.engine.tools import tool
from leviath.persistence.history import History
from leviath.persistence.saved import open_saved
from leviath.simulation.replay import replay

if TYPE_CHECKING:
    from pathlib import Path

HEAD = '[agent]\nname = "shipper"\n[tool_permissions]\nship = "ask"\n'
STAGE = '[stages.main]\navailable_tools = ["ship", "submit_output"]\n'
TAIL = f"[stages.main.model]\n{MODEL}\n"
POINT = '[[stages.main.interaction_points]]\nname = "ok"\nprompt = "Go on?"\nstyle = "confirm"\n'
SHIPPER = parse_blueprint(HEAD + STAGE + TAIL, where="shipper")
POINTED = parse_blueprint('[agent]\nname = "pointed"\n[stages.main]\n' + POINT + TAIL, where="p")
PLAIN = parse_blueprint('[agent]\nname = "pointed"\n[stages.main]\n' + TAIL, where="plain")
LONG = parse_blueprint(
    '[agent]\nname = "pointed"\n[stages.main]\nsystem_prompt = "'
    + "word " * 45_000
    + f'"\n{POINT}{TAIL}',
    where="long",
)


class Ships:
    """A tool that must not be repeated, and what it shipped."""

    def __init__(self) -> None:
        self.items: list[str] = []

    def tool(self) -> Any:
        @tool(effect="once")
        def ship(item: str) -> str:
            "Ship."
            self.items.append(item)
            return "shipped"

        return ship


def script() -> Counting:
    calls = [tool_call("ship", item=item) for item in "abc"]
    return Counting(*calls, tool_call("submit_output", content="o"), "done")


def newest(home: Path) -> int:
    with open_saved(home) as saved:
        return saved.last


@in_trio
async def test_what_people_allowed_the_other_run_a_fork_asks_about(tmp_path: Path) -> None:
    home, theirs = tmp_path / "home", Ships()
    async with opened(home, [script()], tools=[theirs.tool()]) as world:
        run = await world.spawn(SHIPPER, task="t", workdir=tmp_path)
        await until(world.questions)
        (question,) = world.questions()
        await run.answer(question.id, approved=True, scope="run")
        await run.wait()
        assert theirs.items == ["a", "b", "c"]
    with open_saved(home) as saved:
        steps = [cause.step for cause in History(saved).why(run.run_id)][:-1]
    asked: set[str] = {question.id}
    for step in steps:
        own = Ships()
        async with opened(home, [script()], tools=[own.tool()]) as world:
            fork = await world.fork(run.run_id, at=step, workdir=tmp_path)

            async def rests(world: Any = world, fork: Any = fork) -> None:
                await until(lambda: world.questions() or fork.row().status == "complete")

            await rests()
            for open_question in world.questions():
                assert open_question.run_id == fork.run_id
                assert open_question.id not in asked
                asked.add(open_question.id)
            if fork.row().status != "complete":
                # Whatever it has not shipped yet is asked about: nothing was, before this word.
                assert own.items == []
                await fork.cancel()
    assert len(asked) > 3
    replay(home).expect_same()


@in_trio
async def test_a_fork_at_a_point_asks_itself_or_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with opened(home, [Counting("x", loop=True)]) as world:
        run = await world.spawn(POINTED, task="t", workdir=tmp_path)
        await until(world.questions)
        (question,) = world.questions()
        asking = newest(home)
        await run.pause()
        await run.answer(question.id, approved=True)
        held = newest(home)
        with pytest.raises(RunConflict, match="an answer that it had not used yet"):
            await world.fork(run.run_id, at=held, workdir=tmp_path)
        with pytest.raises(RunConflict, match="was asking a point"):
            await world.fork(run.run_id, at=asking, workdir=tmp_path, blueprint=PLAIN)
        fork = await world.fork(run.run_id, at=asking, workdir=tmp_path)
        (own,) = [each for each in world.questions() if each.run_id == fork.run_id]
        assert own.id != question.id
        await fork.answer(own.id, approved=True)
        assert (await fork.wait()).status == "complete"
    replay(home).expect_same()


@in_trio
async def test_instructions_that_do_not_fit_refuse_the_fork_and_nobody_else(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    async with opened(home, [Counting("x", loop=True)]) as world:
        run = await world.spawn(POINTED, task="t", workdir=tmp_path)
        await until(world.questions)
        at = newest(home)
        with pytest.raises(SpawnError, match="do not fit their region"):
            await world.fork(run.run_id, at=at, workdir=tmp_path, blueprint=LONG, key="k")
        assert [each.run_id for each in world.runs()] == [run.run_id]
        fork = await world.fork(run.run_id, at=at, workdir=tmp_path, key="k")
        assert fork.run_id != run.run_id
    replay(home).expect_same()
