"""Pause, resume, cancel at every marker; restarts; the last word of a person on parked calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hand_agents import ALL, ONE, TALK, TOOLS, TWO_MODELS, agent, asked, stage, texts, wanted, word

from leviath.components.commands import Abort, CallTool, Gather, Infer, Stop
from leviath.components.context import Context
from leviath.components.effects import Effects, Held, Turn
from leviath.components.inputs import Cancel, Decide, Gathered, Pause, Resume
from leviath.components.marker import Marker
from leviath.components.output import Flags
from leviath.components.progress import Clock, Cost
from leviath.components.run_status import RunStatus
from leviath.components.world_facts import Policy
from leviath.simulation.hand import Hand

READS = agent(
    f"""
[stages.main]
available_tools = {ALL}
[context.regions]
files = {{ kind = "pinned", seed = {{ files = ["a.txt"] }} }}
[tool_permissions]
edit = "ask"
"""
)
FORK = agent(
    """
[stages.a]
[[stages.a.edges]]
to = "b"
[[stages.a.edges]]
to = "c"
[stages.b]
[stages.b.transitions]
[stages.c]
[stages.c.transitions]
"""
)


def preparing(hand: Hand) -> int:
    return hand.spawn(READS)


def inferring(hand: Hand) -> int:
    return hand.spawn(ONE)


def queued(hand: Hand) -> int:
    hand.configure(policy=Policy(slots=(("scripted", "m", 1),)))
    hand.spawn(TALK)
    return hand.spawn(ONE)


def backing_off(hand: Hand) -> int:
    run = hand.spawn(ONE)
    hand.fail("server", retry_after_ms=5_000)
    return run


def tooling(hand: Hand) -> int:
    run = hand.spawn(ONE)
    hand.reply("", ("a", "look", "{}"), ("b", "send", "{}"))
    return run


def choosing(hand: Hand) -> int:
    run = hand.spawn(FORK)
    hand.reply("done")
    return run


def asking(hand: Hand) -> int:
    run = hand.spawn(READS)
    hand.post(Gathered(run, 1, 1))
    hand.reply("", ("a", "edit", "{}"))
    return run


def out_of_credit(hand: Hand) -> int:
    run = hand.spawn(ONE)
    hand.fail("credits")
    return run


AT: list[tuple[Callable[[Hand], int], Marker]] = [
    (preparing, Marker.preparing),
    (inferring, Marker.awaiting_inference),
    (queued, Marker.ready_to_infer),
    (backing_off, Marker.backoff),
    (tooling, Marker.awaiting_tools),
    (choosing, Marker.awaiting_transition_choice),
    (asking, Marker.awaiting_person),
    (out_of_credit, Marker.awaiting_person),
]
everywhere = pytest.mark.parametrize(
    ("bring", "marker"), AT, ids=lambda x: getattr(x, "__name__", "")
)


def answer_all(hand: Hand, run: int) -> None:
    """Answer what is wanted of a run, and decide what is asked, until nothing is left."""
    for _ in range(40):
        for gather in hand.take(Gather):
            hand.post(Gathered(gather.run, gather.effect, gather.attempt))
        for infer in hand.take(Infer):
            hand.reply("b", infer=infer)
        for call in hand.take(CallTool):
            hand.tool("seen", call=call)
        turn = hand.world.find(run, Turn)
        status = hand.status(run)
        if status.status is RunStatus.WAITING_INPUT:
            for parked in () if turn is None else turn.calls:
                if parked.state in ("asked", "unknown"):
                    verdict = "allow" if parked.state == "asked" else "again"
                    hand.post(Decide(run, parked.call_id, verdict))
            if status.waiting is not None and status.waiting.reason == "needs_setup":
                hand.post(Resume(run))
        hand.sleep(20_000)


@everywhere
def test_a_run_paused_here_stays_paused_whatever_lands_and_completes_when_resumed(
    bring: Callable[[Hand], int], marker: Marker
) -> None:
    hand = Hand(tools=TOOLS)
    run = bring(hand)
    assert hand.world.marker(run) is marker
    hand.post(Pause(run, 1, "ann", "lunch"))
    answer_all(hand, run)
    status = hand.status(run)
    assert status.status is RunStatus.PAUSED and (status.actor, status.why) == ("ann", "lunch")
    assert not wanted(hand, CallTool), "no tool is released"
    for _ in range(3):
        hand.restart()
        assert hand.status(run) == status, "who paused it and why outlives restarts"
        answer_all(hand, run)
    hand.post(Resume(run, 2, "bob"))
    answer_all(hand, run)
    assert word(hand, run) == "complete"


@everywhere
def test_a_run_cancelled_here_is_over_at_once_and_nothing_of_it_stays(
    bring: Callable[[Hand], int], marker: Marker
) -> None:
    hand = Hand(tools=TOOLS)
    run = bring(hand)
    live = [effect.number for effect in hand.world.get(run, Effects).items if effect.live]
    result = hand.post(Cancel(run, 1, "ann", "enough"))
    assert word(hand, run) == "cancelled" and hand.world.marker(run) is None
    assert [c.effect for c in result.commands if isinstance(c, Abort)] == live
    assert Stop(run) in result.commands
    answer_all(hand, run)
    assert word(hand, run) == "cancelled" and hand.world.get(run, Effects).items == ()
    assert hand.post(Cancel(run, 2)).acks[0].code == "", "cancelling twice is done already"


@everywhere
def test_a_run_that_is_lost_here_goes_on_after_a_restart(
    bring: Callable[[Hand], int], marker: Marker
) -> None:
    hand = Hand(tools=TOOLS)
    run = bring(hand)
    hand.restart()
    answer_all(hand, run)
    assert word(hand, run) == "complete"


@everywhere
def test_a_run_cancelled_here_may_be_resumed_and_completes(
    bring: Callable[[Hand], int], marker: Marker
) -> None:
    hand = Hand(tools=TOOLS)
    run = bring(hand)
    hand.post(Cancel(run))
    (ack,) = hand.post(Resume(run, 1)).acks
    if bring is preparing:
        assert ack.code == "run_conflict"
        return
    assert hand.status(run).attempt == 2
    answer_all(hand, run)
    assert word(hand, run) == "complete"


def test_a_reply_that_lands_during_a_pause_is_held_and_costs_no_second_call() -> None:
    hand = Hand(tools=TOOLS)
    run = hand.spawn(ONE)
    hand.post(Pause(run))
    hand.reply("", ("a", "look", "{}"))
    assert hand.world.find(run, Held) is not None and not wanted(hand, CallTool)
    result = hand.post(Resume(run))
    assert [type(command) for command in result.commands] == [CallTool]
    assert hand.world.find(run, Held) is None


def test_results_that_land_during_a_pause_are_used_on_resume() -> None:
    hand = Hand(tools=TOOLS)
    run = hand.spawn(ONE)
    hand.reply("", ("a", "look", "{}"))
    hand.post(Pause(run))
    hand.tool("seen")
    assert not wanted(hand, Infer)
    hand.post(Resume(run))
    assert texts(hand, run) == ["", "seen"] and asked(hand).run == run


def test_a_backoff_does_not_end_during_a_pause() -> None:
    hand = Hand()
    run = hand.spawn(TALK)
    hand.fail("server", retry_after_ms=100)
    hand.post(Pause(run))
    assert not hand.sleep(10_000).commands
    assert [type(c) for c in hand.post(Resume(run)).commands] == [Infer]


def test_a_call_that_fails_for_good_during_a_pause_is_made_afresh_on_resume() -> None:
    hand = Hand()
    run = hand.spawn(TALK)
    hand.post(Pause(run))
    hand.fail("bad_request")
    assert word(hand, run) == "paused"
    hand.post(Resume(run))
    assert asked(hand).ordinal == 1


def test_a_preparation_that_fails_during_a_pause_is_told_on_resume() -> None:
    hand = Hand()
    run = hand.spawn(READS)
    hand.post(Pause(run))
    hand.post(Gathered(run, 1, 1, error="no such folder"))
    assert word(hand, run) == "paused"
    hand.post(Resume(run))
    assert word(hand, run) == "error" and hand.status(run).error == "no such folder"


def test_a_decision_on_a_paused_run_takes_effect_when_it_is_resumed() -> None:
    hand = Hand(tools=TOOLS)
    run = asking(hand)
    hand.post(Pause(run))
    hand.post(Decide(run, "a", "allow"))
    assert not wanted(hand, CallTool)
    hand.post(Resume(run))
    assert [call.call_id for call in wanted(hand, CallTool)] == ["a"]


def test_the_first_cause_of_a_pause_stands() -> None:
    hand = Hand()
    run = hand.spawn(TALK)
    hand.post(Pause(run, 1, "ann", "lunch"))
    hand.post(Pause(run, 2, "bob", "tea"))
    assert hand.status(run).why == "lunch"


def test_what_cannot_be_done_is_refused_and_changes_nothing() -> None:
    hand = Hand()
    run = hand.spawn(TALK)
    assert hand.post(Resume(run, 1)).acks[0].code == "run_conflict", "it runs"
    hand.reply("done")
    for ask in (Pause(run, 1), Resume(run, 1), Cancel(run, 1), Decide(run, "a", "done", 1)):
        assert hand.post(ask).acks[0].code == "run_conflict"
    assert word(hand, run) == "complete"


def test_the_clock_runs_while_the_run_works_only() -> None:
    hand = Hand(tools=TOOLS)
    run = hand.spawn(ONE)
    hand.world_ms += 10
    hand.post(Pause(run))
    hand.world_ms += 1_000
    hand.post(Resume(run))
    hand.world_ms += 5
    hand.fail("credits")
    hand.world_ms += 1_000
    hand.post(Resume(run))
    hand.world_ms += 1
    hand.post(Cancel(run))
    clock = hand.world.get(run, Clock)
    assert (clock.active_ms, clock.since_ms, clock.ended_ms) == (16, None, hand.wall_ms)


def test_progress_is_stamped_forwards_only() -> None:
    hand = Hand(tools=TOOLS)
    run = hand.spawn(ONE)
    before = hand.world.get(run, Clock).progress_ms
    hand.wall_ms -= 60_000
    hand.reply("", ("a", "nope", "{}"))
    assert hand.world.get(run, Clock).progress_ms == before


def test_resuming_an_error_clears_it_and_gives_the_stage_fresh_turns() -> None:
    hand = Hand(tools=TOOLS)
    run = hand.spawn(ONE)
    hand.reply("", ("a", "look", "{}"))
    hand.tool("gone", is_error=True, workspace_lost=True)
    hand.post(Resume(run, 1, "ann"))
    status = hand.status(run)
    assert (status.status, status.error, status.attempt) == (RunStatus.RUNNING, None, 2)
    assert not hand.world.get(run, Flags).workspace_lost
    hand.reply("", ("b", "look", "{}"))
    hand.tool("there")
    hand.reply("done")
    assert word(hand, run) == "complete"


def test_calls_that_a_cancel_cut_off_are_answered_before_the_model_goes_on() -> None:
    hand = Hand(tools=TOOLS)
    run = hand.spawn(ONE)
    hand.reply("", ("a", "look", "{}"), ("b", "send", "{}"))
    hand.tool("seen")
    hand.post(Cancel(run))
    hand.post(Resume(run))
    region = hand.world.get(run, Context).region("conversation")
    assert region is not None
    answers = {entry.call_id: entry.text.body for entry in region.entries if entry.call_id}
    assert answers["a"] == "seen" and answers["b"].startswith("[may have happened]")


def test_the_late_outcome_of_a_cancelled_call_does_not_reach_the_resumed_run() -> None:
    hand = Hand(tools=TOOLS)
    run = hand.spawn(ONE)
    (old,) = hand.take(Infer)
    hand.post(Cancel(run))
    hand.post(Resume(run))
    new = asked(hand)
    assert new.effect != old.effect
    hand.reply("late", infer=old)
    assert texts(hand, run) == [] and word(hand, run) == "running"
    hand.fail("aborted", infer=new)
    assert word(hand, run) == "error"


# --- restarts -----------------------------------------------------------------------------------


def test_after_a_restart_calls_go_out_again_as_their_next_attempt() -> None:
    hand = Hand(tools=TOOLS)
    run = hand.spawn(ONE)
    first = asked(hand)
    hand.restart()
    again = asked(hand)
    assert (again.effect, again.ordinal, again.attempt) == (first.effect, first.ordinal, 2)
    assert again.epoch == first.epoch + 1
    assert [f.certainty for f in hand.results[-1].facts] == ["interrupted"]
    assert hand.world.get(run, Cost).unpriced == 1


def test_pure_and_idempotent_tools_go_out_again_and_the_rest_may_have_happened() -> None:
    hand = Hand(tools=TOOLS)
    run = hand.spawn(ONE)
    hand.reply("", ("a", "look", "{}"), ("b", "edit", "{}"), ("c", "send", "{}"))
    hand.restart()
    assert [(c.tool, c.attempt) for c in wanted(hand, CallTool)] == [("look", 2), ("edit", 2)]
    assert word(hand, run) == "waiting_input tool_approval"
    assert hand.restart().step and word(hand, run) == "waiting_input tool_approval"
    hand.tool("A")
    hand.tool("B")
    assert word(hand, run) == "waiting_input tool_approval" and not wanted(hand, Infer)


@pytest.mark.parametrize("verdict", ["again", "done", "stop"])
def test_a_call_that_may_have_happened_is_decided_by_its_id_after_any_restart(
    verdict: str,
) -> None:
    hand = Hand(tools=TOOLS)
    run = hand.spawn(ONE)
    hand.reply("", ("c", "send", "{}"))
    (sent,) = wanted(hand, CallTool)
    hand.restart()
    hand.restart()
    hand.post(Decide(run, "c", verdict, 1, "ann"))
    if verdict == "stop":
        assert word(hand, run) == "cancelled"
    elif verdict == "done":
        assert "ann says" in texts(hand, run)[-1] and asked(hand).run == run
    else:
        (again,) = wanted(hand, CallTool)
        assert (again.effect, again.attempt) == (sent.effect, 2)
        hand.tool("sent")
        assert texts(hand, run)[-1] == "sent"


def test_an_unattended_run_tells_the_model_that_it_may_have_happened() -> None:
    hand = Hand(tools=TOOLS)
    run = hand.spawn(ONE, yolo=True)
    hand.reply("", ("c", "send", "{}"))
    hand.restart()
    assert texts(hand, run)[-1].startswith("[may have happened]") and asked(hand).run == run


def test_a_tool_that_cannot_tell_whether_it_happened_is_parked_like_a_crash() -> None:
    hand = Hand(tools=TOOLS)
    run = hand.spawn(ONE)
    hand.reply("", ("c", "edit", "{}"), ("d", "look", "{}"))
    first, second = hand.take(CallTool)
    hand.tool(call=first, unknown=True)
    assert word(hand, run) == "waiting_input tool_approval"
    hand.tool("seen", call=second)
    hand.post(Decide(run, "c", "done"))
    assert word(hand, run) == "running" and asked(hand).run == run


def test_an_ended_runs_calls_are_charged_as_interrupted_and_forgotten() -> None:
    hand = Hand()
    run = hand.spawn(TALK)
    hand.post(Cancel(run))
    hand.restart()
    assert hand.world.get(run, Effects).items == () and hand.world.get(run, Cost).unpriced == 1
    assert not wanted(hand, Infer)


def test_a_call_that_was_out_of_time_when_the_host_went_away_is_given_up() -> None:
    hand = Hand(providers=("scripted", "spare"))
    run = hand.spawn(agent("[stages.main]\n", models=TWO_MODELS))
    hand.sleep(900_000)
    hand.restart()
    assert (asked(hand).run, asked(hand).provider) == (run, "spare")


def test_a_home_opened_without_the_provider_parks_its_runs_until_it_is_back() -> None:
    hand = Hand()
    run = hand.spawn(TALK)
    hand.offer = type(hand.offer)(("other",))
    hand.restart()
    assert word(hand, run) == "waiting_input provider_missing"
    hand.configure(providers=("scripted",))
    assert (asked(hand).run, asked(hand).attempt) == (run, 2)


def test_a_restart_moves_the_progress_of_driven_runs_only() -> None:
    hand = Hand()
    driven, held = hand.spawn(TALK), hand.spawn(TALK)
    hand.post(Pause(held))
    before = hand.world.get(held, Clock).progress_ms
    hand.wall_ms += 5_000
    hand.restart()
    assert hand.world.get(driven, Clock).progress_ms == hand.wall_ms
    assert hand.world.get(held, Clock).progress_ms == before


def test_counters_and_budgets_outlive_a_restart() -> None:
    hand = Hand(tools=TOOLS)
    run = hand.spawn(agent(f"[stages.main]\navailable_tools = {ALL}\nmax_iterations = 2\n"))
    hand.reply("", ("a", "look", "{}"))
    hand.restart()
    hand.tool()
    hand.reply("", ("b", "look", "{}"))
    hand.restart()
    hand.tool()
    assert word(hand, run) == "complete" and stage(hand, run) == "main"


def test_settling_twice_changes_nothing_more() -> None:
    hand = Hand(tools=TOOLS)
    hand.spawn(ONE)
    hand.restart()
    settle = hand.results[-1].inputs[-1]
    assert not hand.post(settle).commands


def test_a_host_that_does_not_drive_carries_out_requests_and_sends_nothing() -> None:
    hand = Hand(tools=TOOLS)
    held, cancelled, decided = hand.spawn(ONE), hand.spawn(ONE), hand.spawn(ONE)
    hand.reply("", ("c", "send", "{}"), infer=wanted(hand, Infer)[2])
    hand.restart()
    hand.restart(drive=False)
    hand.post(Pause(held), Cancel(cancelled), Decide(decided, "c", "again"))
    hand.post(Resume(held))
    assert not [c for c in hand.commands if isinstance(c, Infer | CallTool)]
    hand.restart()
    assert [i.run for i in wanted(hand, Infer)] == [held]
    assert [(c.run, c.attempt) for c in wanted(hand, CallTool)] == [(decided, 2)]
