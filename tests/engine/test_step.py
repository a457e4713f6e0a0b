"""The step as a whole: faults stay with their run, loops end, and its cost is that of its runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeVar

import pytest
from hand_agents import ALL, ONE, TALK, TOOLS, agent, asked, stage, texts, wanted, word
from msgspec.structs import replace

from leviath.components.base import Component
from leviath.components.budget import Hold, Reserved
from leviath.components.commands import CallTool, Infer
from leviath.components.context import AskedCall, Context
from leviath.components.effects import Effects, Turn
from leviath.components.errors import WorldError
from leviath.components.family import FanOut, Worker
from leviath.components.identity import Identity, Launch, Tree
from leviath.components.inputs import HostClosing, Pause, Resume, Slept, Spawn
from leviath.components.marker import Marker
from leviath.components.outbox import Delivery, Outbox
from leviath.components.output import Flags
from leviath.components.parts import WORLD_OWNER
from leviath.components.progress import Clock, Cost, Ledgers, Stage, Visits
from leviath.components.run_status import RunStatus
from leviath.components.status import Position, Status, Waiting
from leviath.components.text import inline
from leviath.components.world_facts import Counters, Policy
from leviath.simulation.hand import Hand
from leviath.systems.heartbeat import due_runs
from leviath.systems.invariants import INVARIANTS, broken

if TYPE_CHECKING:
    from collections.abc import Callable

C = TypeVar("C", bound=Component)

CAUGHT = agent(
    f"""
[stages.a]
available_tools = {ALL}
[[stages.a.edges]]
to = "b"
condition = "error"
[[stages.a.edges]]
to = "b"
[stages.b]
[stages.b.transitions]
"""
)


def corrupt(hand: Hand, run: int, part: Component) -> None:
    """Give a run a component that contradicts its others, as a bad import or a defect might."""
    hand.check = False
    hand.world.put(run, part)


# --- faults -------------------------------------------------------------------------------------


def test_a_system_that_raises_is_undone_for_its_run_and_its_stage_ends_in_error() -> None:
    hand = Hand(tools=TOOLS)
    run, other = hand.spawn(ONE), hand.spawn(ONE)
    first, second = hand.take(Infer)
    corrupt(hand, run, Context(()))
    corrupt(hand, run, Visits(()))
    hand.world.put(run, Ledgers(()))
    result = hand.post(
        hand.inferred(first, text=inline("a")), hand.inferred(second, text=inline("b"))
    )
    assert result.failures == ((run, "InferenceFinished: IndexError"),)
    assert word(hand, run) == "error"
    error = hand.status(run).error or ""
    assert "InferenceFinished failed with IndexError" in error
    assert word(hand, other) == "running" and texts(hand, other) == ["b", texts(hand, other)[1]]
    assert [fact.run for fact in result.facts] == [other], "its wishes of the call are dropped"
    assert hand.caches.in_use == {("scripted", "m"): 1}, "its slot is given back"


def test_an_error_edge_takes_a_stage_whose_system_raised() -> None:
    hand = Hand(tools=TOOLS)
    run = hand.spawn(CAUGHT)
    hand.reply("", ("a", "look", "{}"))
    (call,) = hand.take(CallTool)
    result = hand.post(hand.finished(call, modified=5))  # a defect of an adapter
    assert result.failures == ((run, "ToolFinished: TypeError"),)
    assert stage(hand, run) == "b" and word(hand, run) == "running"
    assert asked(hand).run == run
    assert [effect.kind for effect in hand.world.get(run, Effects).items] == ["turn"]


def test_a_failure_while_an_error_is_resolved_ends_the_run() -> None:
    hand = Hand(tools=TOOLS)
    run = hand.spawn(CAUGHT)
    corrupt(hand, run, Visits((1,)))
    result = hand.post(hand.inferred(error_kind="bad_request", error="no"))
    assert word(hand, run) == "error" and len(result.failures) == 1


def test_a_run_past_helping_is_put_down_and_the_others_go_on() -> None:
    hand = Hand(tools=TOOLS)
    run, other = hand.spawn(TALK), hand.spawn(TALK)
    hand.check = False
    for part in (Cost, Visits, Ledgers, Context):
        hand.world.remove(run, part)
    hand.reply("done")
    hand.reply("done")
    assert word(hand, run) == "error" and word(hand, other) == "complete"
    assert hand.world.marker(run) is None and not hand.caches.in_use


def test_a_failing_system_does_not_wake_a_paused_run() -> None:
    hand = Hand(tools=TOOLS)
    run = hand.spawn(CAUGHT)
    hand.reply("", ("a", "look", "{}"))
    hand.post(Pause(run))
    hand.check = False
    flags = hand.world.get(run, Flags)
    hand.world.remove(run, Flags)
    assert hand.post(hand.finished(result=inline("x"))).failures
    assert word(hand, run) == "paused"
    hand.world.put(run, flags)
    hand.post(Resume(run))
    assert stage(hand, run) == "b" and word(hand, run) == "running"


def test_a_grant_that_raises_does_not_stop_the_others() -> None:
    hand = Hand(policy=Policy(slots_default=1), tools=TOOLS)
    hand.spawn(TALK)
    bad, good = hand.spawn(CAUGHT), hand.spawn(TALK)
    hand.check = False
    hand.world.remove(bad, Visits)
    result = hand.post(hand.inferred(text=inline("done")))
    assert (bad, "issue: WorldError") in result.failures
    assert word(hand, bad) == "error" and asked(hand).run == good


def test_settling_a_run_that_raises_does_not_stop_the_others() -> None:
    hand = Hand(tools=TOOLS)
    bad, good = hand.spawn(TALK), hand.spawn(TALK)
    hand.check = False
    hand.world.remove(bad, Cost)
    hand.restart()
    assert word(hand, bad) == "error" and asked(hand).run == good


def test_a_run_that_keeps_moving_within_a_step_is_caught() -> None:
    hand = Hand(policy=Policy(iterations_default=0))
    circle = agent(
        '[stages.a]\n[[stages.a.edges]]\nto = "b"\n'
        '[stages.b]\nallow_complete = false\n[[stages.b.edges]]\nto = "a"\n'
        '[[stages.b.edges]]\nto = "c"\ncondition = "error"\n'
        "[stages.c]\n[stages.c.transitions]\n"
    )
    run = hand.spawn(circle)
    assert hand.results[-1].failures == ((run, "schedule: loop"),)
    assert word(hand, run) == "error" and "a loop" in (hand.status(run).error or "")


def test_a_world_that_is_broken_as_a_whole_is_not_papered_over() -> None:
    hand = Hand()
    hand.check = False
    hand.world.remove(0, Counters)
    with pytest.raises(WorldError, match="Counters"):
        hand.post(Slept(1))


# --- what is journaled --------------------------------------------------------------------------


def test_a_step_that_took_nothing_and_changed_nothing_is_not_counted() -> None:
    hand = Hand()
    hand.spawn(TALK)
    before = hand.results[-1].step
    assert hand.post().is_empty and hand.results[-1].step == before
    assert hand.post(HostClosing()).step == before + 1


def test_closing_and_sleeping_change_no_status() -> None:
    hand = Hand()
    run = hand.spawn(TALK)
    status = hand.status(run)
    hand.post(Slept(5), HostClosing())
    assert hand.status(run) == status


def test_events_are_numbered_without_a_gap() -> None:
    hand = Hand(tools=TOOLS)
    hand.spawn(ONE)
    hand.reply("", ("a", "look", "{}"))
    hand.post(Spawn(1, "x", "", Launch(inline(""), "/", b"none", 0)))
    hand.tool()
    hand.restart()
    hand.reply("done")
    numbers = [event.number for result in hand.results for event in result.events]
    assert numbers == list(range(1, len(numbers) + 1))


# --- heartbeat, invariants ----------------------------------------------------------------------


def test_the_heartbeat_visits_every_run_that_has_not_ended_once_in_thirty_seconds() -> None:
    hand = Hand(check=False)
    runs = [hand.spawn(TALK) for _ in range(70)]
    hand.reply("done")
    digest = hand.digest
    beats = [list(due_runs(hand.world, second, 30)) for second in range(30)]
    assert sorted(n for beat in beats for n in beat) == runs[1:]
    assert max(map(len, beats)) <= 3 and hand.digest == digest


def test_every_invariant_can_fail() -> None:
    """Planted faults: each is seen by its own invariant, and by the look after a step too."""
    seen: set[str] = set()

    def plant(part: type[C], **fields: object) -> None:
        for calls, tools in (((), TOOLS), ((("a", "look", "{}"),), TOOLS), ((), ())):
            hand = Hand(tools=tools)  # asks its model, waits for a tool, is parked without one
            run = hand.spawn(ONE)
            if calls:
                hand.reply("", *calls)
            assert broken(hand.world, [run], deep=False) == []
            hand.world.put(run, replace(hand.world.get(run, part), **fields))
            found = broken(hand.world, [run])
            assert broken(hand.world, [run], deep=False) == found
            seen.update(name for _, name in found)

    plant(Position, marker=Marker.preparing)
    plant(Position, marker=Marker.ready_for_tools)
    plant(Clock, since_ms=None)
    plant(Status, error="x")
    plant(Effects, items=())
    plant(Status, status=RunStatus.ERROR)
    plant(Cost, prompt=-1)
    plant(Stage, index=9)
    plant(Identity, ordinal=9)
    hand = Hand()
    run = hand.spawn(TALK)
    regions = hand.world.get(run, Context).regions
    hand.world.put(run, Context((replace(regions[0], tokens=9), *regions[1:])))
    get, epoch = hand.world.get, hand.world.get(WORLD_OWNER, Counters).epoch
    owed = Delivery(
        9, 1, get(run, Status), get(run, Clock), get(run, Cost), get(run, Flags), state="waiting"
    )
    owed = replace(owed, epoch=epoch)
    hand.world.put(run, Outbox((owed,)))
    assert broken(hand.world, [run], deep=False) == [(run, "every open delivery goes out")]
    seen.update(name for _, name in broken(hand.world, [run]))
    plant(Tree, parent=1)
    hand = Hand(tools=TOOLS)
    run = hand.spawn(ONE)
    hand.reply("", ("a", "look", "{}"))
    turn = hand.world.get(run, Turn)
    hand.world.put(run, Turn(turn.text, (replace(turn.calls[0], state="done"),), counted=True))
    seen.update(name for _, name in broken(hand.world, [run], deep=False))
    hand.world.put(run, Reserved((Hold(7, 1, 5, 5, 0),)))
    seen.update(name for _, name in broken(hand.world, [run], deep=False))
    hand.world.remove(run, Turn)
    seen.update(name for _, name in broken(hand.world, [run]))
    assert seen | _planted_in_a_tree() == {name for name, _ in INVARIANTS}


def _planted_in_a_tree() -> set[str]:
    """The invariants that faults between runs break."""
    hand = Hand(tools=TOOLS)
    boss = hand.spawn(ONE)
    child = hand.spawn(TALK, parent=boss)
    hand.world.put(child, replace(hand.world.get(child, Tree), max_child_depth=99))
    assert [n for n, _ in broken(hand.world, [child], deep=False)] == [child]
    hand.world.put(child, FanOut(1))
    hand.world.trees.below[boss].prompt += 1
    hand.check = False
    lone = hand.spawn(TALK)
    hand.world.put(lone, Status(RunStatus.WAITING_INPUT, waiting=Waiting("children")))
    hand.world.set_marker(lone, Marker.waiting_for_children)
    assert broken(hand.world, [lone]) == [], "the next step looks at it"
    assert hand.world.trees.waiting.pop() == lone
    hand.world.put(lone, FanOut(2, started=1, ended=1, first=1))
    worker = hand.spawn(TALK, parent=lone)
    hand.world.put(worker, Worker("1"))
    counted = [name for _, name in broken(hand.world, [lone]) if "counts as ended" in name]
    hand.world.remove(lone, FanOut)
    hand.world.trees.live.clear()
    return {*counted, *(name for _, name in broken(hand.world, [boss, child, lone]))}


# --- cost ---------------------------------------------------------------------------------------


def calls_of(work: Callable[[], object]) -> int:
    """How many Python functions are called."""
    count = 0

    def seen(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def test_a_step_over_ten_busy_runs_costs_the_same_beside_two_thousand_others() -> None:
    def turn(hand: Hand) -> None:
        call = AskedCall("a", "look", inline("{}"))
        infers = hand.take(Infer)
        hand.post(*(hand.inferred(i, text=inline("x"), calls=(call,)) for i in infers))
        hand.post(*(hand.finished(c, result=inline("y")) for c in hand.take(CallTool)))
        assert len(wanted(hand, Infer)) == 10

    def cost(others: int) -> int:
        hand = Hand(tools=TOOLS, check=False)
        for n in range(others):
            run = hand.spawn(TALK)
            if n % 2:
                hand.post(Pause(run))
            hand.fail("aborted")
        for _ in range(10):
            hand.spawn(ONE)
        turn(hand)
        return calls_of(lambda: turn(hand))

    # The heaps of deadlines and ranks are thinned out now and then, whoever's turn it is.
    assert abs(cost(2_000) - cost(0)) <= 10
