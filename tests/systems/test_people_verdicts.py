"""What a yes and a no say to each kind of question, alone and with words beside them."""

from __future__ import annotations

from typing import Any

import pytest
from hand_agents import texts, word
from people_worlds import ASKER, answer, asks, hand, point_agent, pose, prompts, says
from tree_hands import results

from leviath.components.commands import CallTool
from leviath.components.context import AskedCall
from leviath.components.inputs import Answered
from leviath.components.text import Text, inline, text_digest
from leviath.simulation.hand import Hand

POSED: dict[str, AskedCall] = {
    "text": pose("ask_user_text", question="Which?"),
    "choice": pose("ask_user_choice", question="?", options=["a", "b"]),
    "confirm": pose("ask_user_confirm", question="Go?"),
    "review": pose("present_for_review", content="the document"),
    "edit": pose("edit_document", content="the document"),
    "approval": AskedCall("c", "send", inline("{}")),
}
NO = "[error] ann denied this call of send"
REFUSED: str | None = None


def asked(kind: str) -> tuple[Hand, int, str]:
    """A run that waits for the answer to a question of that kind, and the question's id."""
    world = hand()
    run = world.spawn(ASKER)
    asks(world, run, POSED["approval" if kind == "unknown" else kind])
    if kind == "unknown":
        assert answer(world, run, prompts(world, run)[0].id, verdict="yes") == ""
        world.restart()
    (prompt,) = prompts(world, run)
    assert prompt.kind == kind
    return world, run, prompt.id


@pytest.mark.parametrize(
    ("kind", "verdict", "words", "result"),
    [
        ("text", "yes", "", REFUSED),
        ("text", "no", "", REFUSED),
        ("text", "yes", "w", REFUSED),
        ("text", "no", "w", REFUSED),
        ("choice", "yes", "", REFUSED),
        ("choice", "no", "", REFUSED),
        ("choice", "yes", "w", REFUSED),
        ("choice", "no", "w", REFUSED),
        ("confirm", "yes", "", "yes"),
        ("confirm", "no", "", "no"),
        ("confirm", "yes", "w", REFUSED),
        ("confirm", "no", "w", REFUSED),
        ("review", "yes", "", "approved"),
        ("review", "no", "", "not approved"),
        ("review", "yes", "w", "approved: w"),
        ("review", "no", "w", "not approved: w"),
        ("review", "no", "approved", "not approved: approved"),
        ("edit", "yes", "", "unchanged"),
        ("edit", "no", "", "not accepted"),
        ("edit", "yes", "w", "w"),
        ("edit", "no", "w", "not accepted: w"),
        ("approval", "yes", "", "made"),
        ("approval", "no", "", NO),
        ("approval", "yes", "w", REFUSED),
        ("approval", "no", "w", f"{NO}: w"),
        ("unknown", "yes", "", "made"),
        ("unknown", "no", "", "taken as done"),
        ("unknown", "yes", "w", REFUSED),
        ("unknown", "no", "w", "taken as done: w"),
    ],
)
def test_what_the_model_reads_of_a_verdict(
    kind: str, verdict: str, words: str, result: str | None
) -> None:
    world, run, question = asked(kind)
    before = prompts(world, run)
    out = sum(isinstance(one, CallTool) for one in world.commands)
    given: dict[str, Any] = {"verdict": verdict} | ({"text": words} if words else {})
    fault = answer(world, run, question, **given)
    if result is None:
        assert kind in fault
        assert prompts(world, run) == before, "a refused answer settles nothing"
        return
    assert fault == ""
    assert prompts(world, run) == ()
    if result == "made":
        assert sum(isinstance(one, CallTool) for one in world.commands) == out + 1
        return
    if result.startswith("taken as done"):
        lost = "[may have happened] ann says that this call of send was done; its result is lost"
        result = result.replace("taken as done", lost)
    assert results(world, run) == [result]


@pytest.mark.parametrize("kind", ["review", "edit", "approval", "unknown"])
def test_a_reason_that_is_kept_elsewhere_is_never_taken_for_the_whole(kind: str) -> None:
    world, run, question = asked(kind)
    long = Text("", text_digest(b"x" * 70_000), 70_000)
    result = world.post(Answered(run, question, "no", text=long, ticket=1, actor="ann"))
    (ack,) = result.acks
    assert "too long (70,000 bytes); shorten them" in ack.message
    assert [prompt.id for prompt in prompts(world, run)] == [question]


POINT = """name = "plan"
prompt = "Good?"
document_region = "task"
"""
TASK = "[context.regions.task]\nkind = 'pinned'\nseed = 'task_input'\n"


@pytest.mark.parametrize("style", ["free_text", "confirm"])
@pytest.mark.parametrize(
    ("given", "stage_passed"),
    [
        ({"verdict": "yes"}, True),
        ({"verdict": "no"}, False),
        ({"verdict": "yes", "text": "w"}, True),
        ({"verdict": "no", "text": "w"}, False),
    ],
)
def test_a_verdict_at_a_point_leaves_its_document(
    style: str, given: dict[str, str], *, stage_passed: bool
) -> None:
    world = hand()
    run = world.spawn(point_agent(f'{POINT}style = "{style}"', rest=TASK), task="the task")
    says(world, run, "the plan")
    assert answer(world, run, prompts(world, run)[0].id, **given) == ""
    assert word(world, run) == "running"
    assert texts(world, run, "task") == ["the task"]
    assert ("w" in texts(world, run)) == ("text" in given)
    says(world, run, "the plan again")
    assert (word(world, run) == "complete") == stage_passed


@pytest.mark.parametrize("verdict", ["yes", "no"])
def test_a_verdict_and_a_choice_are_not_given_together(verdict: str) -> None:
    world = hand()
    point = f'{POINT}style = "confirm"\noptions = ["go"]\nedit_options = ["edit"]'
    run = world.spawn(point_agent(point, rest=TASK), task="the task")
    says(world, run, "the plan")
    question = prompts(world, run)[0].id
    said = answer(world, run, question, verdict=verdict, choice=1, text="another task")
    assert "yes or no or a choice, not both" in said
    assert texts(world, run, "task") == ["the task"]
    assert prompts(world, run)[0].id == question
