"""Questions over real homes: restarts, hostile answers, and the loss of power at any point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

import leviath
from leviath.engine.profiles import check_profiles

if TYPE_CHECKING:
    from pathlib import Path

AGENT = leviath.parse_blueprint(
    """
    [agent]
    name = "asker"
    [stages.main]
    available_tools = ["ask_user_text", "submit_output"]
    model = { provider = "scripted", model = "any" }
    """,
    where="asker",
)


def script() -> leviath.Scripted:
    """A model that asks, hands in, and stops."""
    return leviath.Scripted.of(
        leviath.tool_call("ask_user_text", question="Which?"),
        leviath.tool_call("submit_output", content="took it"),
        "Done.",
    )


async def asked(world: leviath.OpenWorld) -> leviath.Question:
    """The question of a run that is about to ask."""
    async for event in world.events(after=0):
        if isinstance(event, leviath.events.QuestionAsked):
            break
    (question,) = world.questions()
    return question


def test_a_question_is_answered_after_a_restart_under_its_old_id(tmp_path: Path) -> None:
    async def main() -> None:
        with trio.fail_after(60):
            async with leviath.open_world(tmp_path / "home", providers=[script()]) as world:
                run = await world.spawn(AGENT, workdir=tmp_path)
                first = await asked(world)
            async with leviath.open_world(tmp_path / "home", drive=False) as world:
                assert world.questions() == [first]
                await world.run(run.run_id).pause()
            async with leviath.open_world(tmp_path / "home", drive=False) as world:
                (held,) = world.questions()
                assert held.is_held
                assert held.id == first.id
                await world.run(run.run_id).answer(first.id, text="this")
                with pytest.raises(leviath.RunConflict, match="no open question"):
                    await world.run(run.run_id).answer(first.id, text="that")
            async with leviath.open_world(tmp_path / "home", providers=[script()]) as world:
                found = world.run(run.run_id)
                await found.resume()
                await found.wait()
                assert found.result() == "took it"

    trio.run(main)


def test_odd_answers_and_messages_are_refused_or_made_fit(tmp_path: Path) -> None:
    async def main() -> None:
        with trio.fail_after(60):
            async with leviath.open_world(providers=[script()], durability="memory") as world:
                run = await world.spawn(AGENT, workdir=tmp_path)
                question = await asked(world)
                huge = "x" * 10_000_000
                with pytest.raises(leviath.ConfigError, match="10,000,000 bytes"):
                    await run.answer(question.id, text=huge)
                with pytest.raises(leviath.ConfigError, match="10,000,000 bytes"):
                    await run.message(huge)
                odd: list[dict[str, Any]] = [{}, {"text": ""}, {"choice": -1}, {"choice": True}]
                for wrong in odd:
                    with pytest.raises(leviath.ConfigError):
                        await run.answer(question.id, **wrong)
                with pytest.raises(leviath.RunConflict, match="not a choice"):
                    await run.answer(question.id, choice=0)
                with pytest.raises(leviath.RunConflict, match="no open question"):
                    await run.answer("\ud83d\0", text="x")
                with pytest.raises(leviath.RunNotFound):
                    await world.run("nobody").message("hello")
                await run.answer(question.id, text="half \ud83d and \0 NUL")
                await run.wait()
                assert world.questions() == []

    trio.run(main)


def test_profiles_that_contradict_themselves_are_refused() -> None:
    for profile in (
        leviath.Profile(allow=("a",), deny=("a",)),
        leviath.Profile(attended=False),
        leviath.Profile(otherwise="maybe"),
        {"allow": ["a"]},
    ):
        with pytest.raises(leviath.ConfigError, match="profile 'p'"):
            check_profiles({"p": profile})
