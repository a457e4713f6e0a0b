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


class Remembering:
    """A provider that keeps its requests; the inner one answers them."""

    name = "scripted"

    def __init__(self, *replies: Any) -> None:
        self.inner = leviath.Scripted.of(*replies)
        self.requests: list[leviath.InferenceRequest] = []

    async def infer(
        self, request: leviath.InferenceRequest, on_text: Any
    ) -> leviath.InferenceReply:
        self.requests.append(request)
        return await self.inner.infer(request, on_text)


def test_a_reason_that_is_longer_than_reasons_are_is_refused_before_it_enters(
    tmp_path: Path,
) -> None:
    provider = Remembering(leviath.tool_call("edit_document", content="old"), "Done.")
    agent = leviath.parse_blueprint(
        '[stages.main]\navailable_tools = ["edit_document"]\n'
        'model = { provider = "scripted", model = "any" }\n',
        where="editor",
    )

    async def main() -> None:
        with trio.fail_after(60):
            async with leviath.open_world(tmp_path / "home", providers=[provider]) as world:
                run = await world.spawn(agent, workdir=tmp_path)
                question = await asked(world)
                with pytest.raises(leviath.ConfigError, match="reason of a no has 16,385 bytes"):
                    await run.answer(question.id, approved=False, text="x" * 16_385)
                await run.answer(question.id, approved=False, text="x" * 16_384)
                await run.wait()

    trio.run(main)
    said = [message.text for message in provider.requests[1].messages if message.role == "tool"]
    assert said == ["not accepted: " + "x" * 16_384]
