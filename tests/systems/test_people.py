"""Questions to people: asked, answered, held, refused; points of stages; profiles."""

from __future__ import annotations

from typing import Any

import pytest
from hand_agents import agent, stage, texts, word
from people_worlds import ASKER, answer, asks, hand, point_agent, pose, prompts, says
from tree_hands import results

from leviath.components.commands import CallTool, Infer
from leviath.components.context import AskedCall
from leviath.components.effects import Turn
from leviath.components.identity import Launch
from leviath.components.inputs import Cancel, Decide, Pause, Resume
from leviath.components.people import Profile
from leviath.components.text import inline
from leviath.simulation.hand import Hand

SEND = AskedCall("s", "send", inline("{}"))


def one(world: Hand, run: int) -> str:
    """Id of the one open question."""
    (prompt,) = prompts(world, run)
    return prompt.id


@pytest.mark.parametrize(
    ("tool", "arguments", "given", "result"),
    [
        ("ask_user_text", {"question": "Which?"}, {"text": "the blue one"}, "the blue one"),
        ("ask_user_choice", {"question": "?", "options": ["a", "b"]}, {"choice": 1}, "b"),
        ("ask_user_confirm", {"question": "Go?"}, {"verdict": "no"}, "no"),
        ("present_for_review", {"content": "# Plan"}, {"verdict": "yes"}, "approved"),
        ("edit_document", {"content": "old"}, {"text": "new"}, "new"),
    ],
)
def test_the_model_asks_and_gets_the_answer(
    tool: str, arguments: dict[str, Any], given: dict[str, Any], result: str
) -> None:
    world = hand()
    run = world.spawn(ASKER)
    asks(world, run, pose(tool, **arguments))
    assert word(world, run) == "waiting_input user_prompt"
    assert not [c for c in world.commands if isinstance(c, Infer)], "no slot is held"
    assert answer(world, run, one(world, run), **given) == ""
    assert word(world, run) == "running"
    assert prompts(world, run) == ()
    assert results(world, run) == [result]


@pytest.mark.parametrize("tool", ["ask_user_text", "ask_user_choice", "ask_user_confirm"])
def test_a_question_without_words_is_told_to_the_model(tool: str) -> None:
    world = hand()
    run = world.spawn(ASKER)
    asks(world, run, pose(tool))
    assert word(world, run) == "running"
    assert prompts(world, run) == ()


def test_a_question_keeps_its_id_over_a_restart_and_a_later_one_never_has_it() -> None:
    world = hand()
    run = world.spawn(ASKER)
    asks(world, run, pose("ask_user_text", question="Which?"))
    first = prompts(world, run)
    world.restart()
    world.restart(drive=False)
    world.restart()
    assert prompts(world, run) == first
    assert answer(world, run, first[0].id, text="this one") == ""
    asks(world, run, pose("ask_user_text", question="And now?"))
    assert one(world, run) != first[0].id
    assert "none" not in (said := answer(world, run, first[0].id, text="late"))
    assert "no open question" in said
    assert one(world, run) in said


def test_answers_that_do_not_fit_are_refused_at_once_and_change_nothing() -> None:
    world = hand()
    run, other = world.spawn(ASKER), world.spawn(ASKER)
    asks(world, run, pose("ask_user_choice", question="?", options=["a", "b"]))
    asks(world, other, pose("ask_user_confirm", question="?"))
    mine, theirs = one(world, run), one(world, other)
    for given in (
        {"choice": 2},
        {"text": "a"},
        {"verdict": "yes"},
        {"choice": 0, "text": "why"},
        {"choice": 0, "scope": "run"},
        {},
    ):
        assert answer(world, run, mine, **given), given
    assert "no open question" in answer(world, run, theirs, verdict="yes")
    assert answer(world, run, mine, choice=0) == ""
    assert "no open question" in answer(world, run, mine, choice=0), "twice"
    assert word(world, other) == "waiting_input user_prompt"


def test_a_paused_run_keeps_its_question_and_holds_the_answer() -> None:
    world = hand()
    run = world.spawn(ASKER)
    asks(world, run, pose("ask_user_text", question="Which?"))
    question = one(world, run)
    world.post(Pause(run))
    assert one(world, run) == question
    assert answer(world, run, question, text="blue") == ""
    assert answer(world, run, question, text="red"), "it was answered"
    assert word(world, run).startswith("paused")
    world.restart()
    assert word(world, run).startswith("paused")
    world.post(Resume(run))
    assert word(world, run) == "running"
    assert results(world, run) == ["blue"]


def test_an_ending_closes_questions_and_an_attempt_later_refuses_old_answers() -> None:
    world = hand()
    run = world.spawn(ASKER)
    asks(world, run, pose("ask_user_text", question="Which?"))
    old = one(world, run)
    result = world.post(Cancel(run))
    assert [type(event).__name__ for event in result.events].count("QuestionClosed") == 1
    assert answer(world, run, old, text="late")
    world.post(Resume(run))
    assert answer(world, run, old, text="late"), "an answer of an older attempt"
    asks(world, run, pose("ask_user_text", question="Which?"))
    assert answer(world, run, old, text="late")
    assert answer(world, run, one(world, run), text="now") == ""


# --- calls --------------------------------------------------------------------------------------


def sent(world: Hand) -> int:
    """Calls of send that went out."""
    return len([c for r in world.results for c in r.commands if isinstance(c, CallTool)])


def finish_calls(world: Hand) -> None:
    """Let all calls that are out succeed."""
    while any(isinstance(command, CallTool) for command in world.commands):
        world.tool()


def test_an_approval_is_for_one_call_and_the_same_call_id_asks_again() -> None:
    world = hand()
    run = world.spawn(ASKER)
    asks(world, run, SEND)
    first = one(world, run)
    assert word(world, run) == "waiting_input tool_approval"
    assert answer(world, run, first, verdict="yes") == ""
    finish_calls(world)
    asks(world, run, SEND)
    assert one(world, run) != first
    assert answer(world, run, first, verdict="yes"), "the old word is not for the new call"
    assert sent(world) == 1


@pytest.mark.parametrize("scope", ["once", "stage", "run"])
def test_a_scope_covers_what_it_says_and_no_later_attempt(scope: str) -> None:
    body = ""
    for name in ("a", "b"):
        body += f"[stages.{name}]\navailable_tools = ['send']\n"
        body += f"[stages.{name}.tool_permissions]\nsend = 'ask'\n"
    world = hand()
    run = world.spawn(agent(body))
    asks(world, run, SEND)
    assert answer(world, run, one(world, run), verdict="yes", scope=scope) == ""
    finish_calls(world)
    asks(world, run, SEND)
    assert bool(prompts(world, run)) is (scope == "once")
    if prompts(world, run):
        answer(world, run, one(world, run), verdict="yes")
    finish_calls(world)
    says(world, run)
    assert stage(world, run) == "b"
    asks(world, run, SEND)
    assert bool(prompts(world, run)) is (scope != "run")
    world.post(Cancel(run))
    world.post(Resume(run))
    asks(world, run, SEND)
    assert prompts(world, run), "an attempt that was started again asks again"


def test_a_wider_scope_lets_the_other_calls_of_the_turn_through() -> None:
    world = hand()
    run = world.spawn(ASKER)
    asks(world, run, SEND, AskedCall("t", "send", inline("{}")))
    assert len(prompts(world, run)) == 2
    assert answer(world, run, prompts(world, run)[0].id, verdict="yes", scope="run") == ""
    assert prompts(world, run) == ()
    assert sent(world) == 2


def test_a_crash_after_an_approved_call_asks_about_it_and_never_makes_it_again() -> None:
    world = hand()
    run = world.spawn(ASKER)
    asks(world, run, SEND)
    answer(world, run, one(world, run), verdict="yes", scope="run")
    assert sent(world) == 1
    world.restart()
    (prompt,) = prompts(world, run)
    assert prompt.kind == "unknown"
    assert sent(world) == 1, "the word was for one attempt"
    assert answer(world, run, prompt.id, verdict="no") == ""
    assert sent(world) == 1
    assert results(world, run)[0].startswith("[may have happened]")


def test_deciding_by_call_closes_its_question() -> None:
    world = hand()
    run = world.spawn(ASKER)
    asks(world, run, SEND)
    world.post(Decide(run, "s", "deny", 0, "ann"))
    assert prompts(world, run) == ()


def test_a_no_carries_its_reason() -> None:
    world = hand()
    run = world.spawn(ASKER)
    asks(world, run, SEND)
    assert answer(world, run, one(world, run), verdict="no", text="not today") == ""
    assert results(world, run) == ["[error] ann denied this call of send: not today"]


def test_questions_and_approvals_of_one_turn_are_answered_one_by_one() -> None:
    world = hand()
    run = world.spawn(ASKER)
    asks(world, run, SEND, pose("ask_user_confirm", question="Sure?"))
    approval, question = prompts(world, run)
    assert word(world, run) == "waiting_input tool_approval"
    assert answer(world, run, approval.id, verdict="yes") == ""
    assert word(world, run) == "waiting_input user_prompt"
    assert sent(world) == 0, "calls of a turn may build on each other"
    assert answer(world, run, question.id, verdict="yes") == ""
    assert sent(world) == 1


# --- who answers --------------------------------------------------------------------------------


def test_an_unattended_run_is_not_offered_questions_and_is_told_when_it_asks() -> None:
    for required in (False, True):
        body = "[stages.main]\navailable_tools = ['ask_user_text', 'look']\n"
        body += "required_tools = ['ask_user_text']\n" if required else ""
        world = hand()
        run = world.spawn(agent(body), yolo=True)
        infer = next(c for c in world.commands if isinstance(c, Infer))
        assert (b"ask_user_text" in infer.tools) is required
        asks(world, run, pose("ask_user_text", question="Which?"))
        assert word(world, run) == "running"
        assert prompts(world, run) == ()
        said = results(world, run)
        assert required == bool(said and said[0].startswith("[no answer]"))


PROFILES = {
    "ask": (Profile(allow=("look",)), "asks"),
    "allow": (Profile(allow=("send",)), "sends"),
    "deny": (Profile(deny=("send",)), "refuses"),
    "otherwise": (Profile(otherwise="deny", attended=False), "refuses"),
}


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_says_what_an_unattended_run_may_do_over_restarts_too(name: str) -> None:
    profile, what = PROFILES[name]
    world = hand()
    run = world.spawn(ASKER, yolo=True, yolo_profile=name, profile=profile)
    for _ in range(2):
        before = sent(world)
        asks(world, run, SEND)
        assert bool(prompts(world, run)) is (what == "asks")
        assert (sent(world) > before) is (what == "sends")
        if what == "asks":
            answer(world, run, one(world, run), verdict="no")
        finish_calls(world)
        world.restart()
        launch = world.world.get(run, Launch)
        assert launch.profile == profile
        assert not launch.is_unattended, "a restart never makes it bare yolo"


def test_a_profile_of_which_only_the_name_is_known_asks() -> None:
    world = hand()
    run = world.spawn(ASKER, yolo=True, yolo_profile="research")
    asks(world, run, SEND)
    assert word(world, run) == "waiting_input tool_approval"


# --- points -------------------------------------------------------------------------------------

CHOICE = """name = "plan"
prompt = "Is the plan good?"
style = "multiple_choice"
options = ["go"]
directives = ["shorter"]
abort_options = ["drop it"]
edit_options = ["edit"]
document_region = "task"
"""


def at_point(*points: str) -> tuple[Hand, int]:
    """A run whose stage is done and asks."""
    world = hand()
    run = world.spawn(point_agent(*points))
    says(world, run, "the plan")
    assert word(world, run) == "waiting_input interaction_point"
    return world, run


def test_points_are_asked_in_order_before_the_stage_is_left() -> None:
    world, run = at_point('name = "one"', 'name = "two"\nstyle = "confirm"')
    world.restart()
    assert answer(world, run, one(world, run), verdict="yes", text="fine") == ""
    assert prompts(world, run)[0].name == "two"
    assert stage(world, run) == "draft"
    assert answer(world, run, one(world, run), verdict="yes") == ""
    assert stage(world, run) == "after"
    assert "fine" in texts(world, run)


@pytest.mark.parametrize("given", [{"text": "more detail"}, {"verdict": "no"}])
def test_words_at_a_point_send_the_stage_back_to_work(given: dict[str, str]) -> None:
    world, run = at_point('name = "one"')
    assert answer(world, run, one(world, run), **given) == ""
    assert word(world, run) == "running"
    says(world, run, "with more detail")
    assert word(world, run) == "waiting_input interaction_point"


@pytest.mark.parametrize(
    ("choice", "status", "where"),
    [
        (0, "running", "after"),
        (1, "running", "draft"),
        (2, "waiting_input interaction_point", "draft"),
        (3, "cancelled", "draft"),
    ],
)
@pytest.mark.parametrize("paused", [False, True])
def test_a_choice_at_a_point(choice: int, status: str, where: str, *, paused: bool) -> None:
    world = hand()
    run = world.spawn(
        point_agent(CHOICE, rest="[context.regions.task]\nseed = 'task'\n"), task="the task"
    )
    says(world, run, "the plan")
    (prompt,) = prompts(world, run)
    assert [text.body for text in prompt.choices] == ["go", "shorter", "edit", "drop it"]
    if choice == 2:
        assert "needs the new document" in answer(world, run, prompt.id, choice=2)
    if paused:
        world.post(Pause(run))
    given = {"choice": choice} | ({"text": "a better task"} if choice == 2 else {})
    assert answer(world, run, prompt.id, **given) == ""
    if paused:
        assert word(world, run) == "paused interaction_point"
        world.restart()
        world.post(Resume(run))
    assert (word(world, run), stage(world, run)) == (status, where)
    if choice == 2:
        assert texts(world, run, "task") == ["a better task"]
        assert prompts(world, run)[0].id != prompt.id


@pytest.mark.parametrize(("policy", "how"), [("auto_approve", "running"), ("ask", "error")])
def test_a_point_of_an_unattended_run_follows_its_policy(policy: str, how: str) -> None:
    world = hand()
    run = world.spawn(point_agent(f'name = "one"\nunattended = "{policy}"'), yolo=True)
    says(world, run, "the plan")
    assert word(world, run) == how
    assert prompts(world, run) == ()


def test_a_stage_with_points_that_fails_takes_its_error_edge() -> None:
    world = hand()
    run = world.spawn(
        point_agent(
            'name = "one"',
            rest='[[stages.draft.edges]]\nto = "after"\ncondition = "error"\n',
        )
    )
    world.fail("bad_request")
    assert stage(world, run) == "after"
    assert word(world, run) == "running"


def test_a_turn_that_is_cut_off_leaves_no_question() -> None:
    world = hand()
    run = world.spawn(ASKER)
    asks(world, run, SEND, pose("ask_user_text", question="?"))
    world.post(Cancel(run))
    assert prompts(world, run) == ()
    assert world.world.find(run, Turn) is None
