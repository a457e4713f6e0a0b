"""Inputs that share a step mean what they would mean in steps of their own.

A busy host takes many inputs at once: what a run does with one of them is worked through before
the next that concerns it.
"""

from __future__ import annotations

import pytest
from hand_agents import TALK, TOOLS, agent, wanted, word
from tree_hands import BOSS, asking, call, children, fan_out, infer_of, says, words
from tree_hands import hand as tree_hand

from leviath.components.commands import Infer
from leviath.components.inputs import Cancel, Pause, Post, Release, Resume
from leviath.components.marker import Marker
from leviath.components.text import inline
from leviath.components.world_facts import Policy
from leviath.simulation.hand import Hand

SPLIT_ALONE = agent(
    """
[stages.split]
mode = "fan_out"
worker_stage = "work"
[stages.split.transitions]
[stages.work]
allow_as_worker = true
"""
)
FAILING = agent(
    """
[stages.main]
[[stages.main.edges]]
to = "last"
condition = "error"
[stages.last]
"""
)


def test_a_pause_behind_the_last_reply_finds_the_run_complete() -> None:
    hand = Hand()
    run = hand.spawn(TALK)
    done = hand.inferred(text=inline("the result"))
    result = hand.post(done, Pause(run, 7))
    assert not result.failures
    assert word(hand, run) == "complete"
    (ack,) = result.acks
    assert ack.code == "run_conflict" and "has ended (complete)" in ack.message


@pytest.mark.parametrize("twice", [False, True])
def test_a_pause_behind_a_reply_that_goes_on_holds_the_run_where_it_then_rests(
    twice: bool,
) -> None:
    hand = Hand(tools=TOOLS)
    run = hand.spawn(agent("[stages.a]\n[stages.b]\n"))
    more = (Resume(run, 8), Pause(run, 9)) if twice else ()
    result = hand.post(hand.inferred(text=inline("on")), Pause(run, 7), *more)
    assert not result.failures and [ack.code for ack in result.acks] == [""] * (1 + len(more))
    assert word(hand, run) == "paused"
    assert hand.world.marker(run) is Marker.ready_to_infer
    assert wanted(hand, Infer) == [], "a paused run asks nothing"
    hand.post(Resume(run, 1))
    hand.reply("done")
    assert word(hand, run) == "complete"


def test_a_pause_behind_a_call_that_failed_for_good_keeps_what_became_of_it() -> None:
    hand = Hand()
    run = hand.spawn(FAILING)
    failed = hand.inferred(error_kind="bad_request", error="no")
    result = hand.post(failed, Pause(run, 7))
    assert not result.failures and word(hand, run) == "paused"
    hand.post(Resume(run, 1))
    hand.reply("mended")
    assert word(hand, run) == "complete"


def test_a_pause_behind_a_split_holds_the_fan_out_before_its_first_worker() -> None:
    hand = tree_hand()
    run = hand.spawn(fan_out())
    split = hand.inferred(infer_of(hand, run), calls=(call("fan_out", items=["a", "b"]),))
    assert not hand.post(split, Pause(run, 7)).failures
    assert word(hand, run) == "paused fan_out_workers" and children(hand, run) == []
    hand.post(Resume(run, 1))
    assert word(hand, run) == "waiting_input fan_out_workers"
    for worker in children(hand, run):
        says(hand, worker)
    says(hand, run)
    assert word(hand, run) == "complete"


def test_a_pause_of_the_root_finds_a_child_complete_whose_last_worker_ended_in_the_same_step() -> (
    None
):
    hand = tree_hand()
    root = hand.spawn(BOSS)
    middle = hand.spawn(SPLIT_ALONE, parent=root)
    hand.post(hand.inferred(infer_of(hand, middle), calls=(call("fan_out", items=["a"]),)))
    (worker,) = children(hand, middle)
    done = hand.inferred(infer_of(hand, worker), text=inline("result"))
    assert not hand.post(done, Pause(root, 7)).failures
    assert words(hand, root, middle) == ["paused", "complete"]


def test_a_cancel_of_the_root_in_the_step_of_its_last_worker() -> None:
    hand = tree_hand()
    root = hand.spawn(fan_out())
    hand.post(hand.inferred(infer_of(hand, root), calls=(call("fan_out", items=["a", "b"]),)))
    first, last = children(hand, root)
    says(hand, first)
    done = hand.inferred(infer_of(hand, last), text=inline("result"))
    assert not hand.post(done, Cancel(root, 7)).failures
    assert words(hand, root, first, last) == ["cancelled", "complete", "complete"]
    hand.post(Resume(root, 1))
    assert asking(hand) == [root], "it owes its split again"


def test_a_run_that_is_forgotten_twice_is_gone_once() -> None:
    hand = Hand()
    run = hand.spawn(TALK)
    hand.reply("done")
    result = hand.post(Release(run, 1), Release(run, 2), Resume(run, 3), Post(run, inline("x"), 4))
    assert [ack.code for ack in result.acks] == ["", *["run_not_found"] * 3]
    assert result.gone == (run,) and run not in hand.world
    assert hand.post().is_empty


def test_a_probe_that_is_parked_for_want_of_a_tool_leaves_the_breaker_to_the_next_run() -> None:
    needs = agent('[stages.main]\navailable_tools = ["look"]\nrequired_tools = ["look"]\n')
    hand = Hand(tools=TOOLS, policy=Policy(breaker_failures=2, attempts_max=9, stall_ms=10**9))
    run, other = hand.spawn(needs), hand.spawn(TALK)
    for _ in range(2):
        hand.fail("server", retry_after_ms=1)
    hand.configure(tools=())
    hand.sleep(hand.world.policy.breaker_cooldown_ms)
    assert word(hand, run) == "waiting_input provider_missing"
    assert [infer.run for infer in hand.take(Infer)] == [other]
