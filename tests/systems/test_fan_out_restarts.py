"""Fan-outs that are paused, cancelled, restarted, resumed, or lose a worker."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from hand_agents import TALK, agent, stage, texts, word
from tree_hands import (
    BOSS,
    all_ended,
    asking,
    asks,
    call,
    children,
    drain,
    fan_out,
    found,
    hand,
    infer_of,
    is_sound,
    narrow,
    run_id,
    says,
    words,
)

from leviath.components.context import Context
from leviath.components.events import ChildrenJoined
from leviath.components.family import FanOut, Split, Worker
from leviath.components.inputs import Cancel, Pause, Resume, Slept
from leviath.components.output import Flags

if TYPE_CHECKING:
    from leviath.simulation.hand import Hand

THREE = [{"id": name, "task": f"read {name}"} for name in ("a", "b", "c")]


def begun(keys: str = "", items: list[Any] | None = None, **caps: int) -> tuple[Hand, int]:
    """A fan-out whose split was taken."""
    world = hand(narrow(**caps))
    boss = world.spawn(fan_out(keys))
    asks(world, boss, call("fan_out", items=THREE if items is None else items))
    drain(world)
    return world, boss


def report(world: Hand, run: int, region: str = "conversation") -> list[str]:
    """What the run reads of its workers' results: the head, then each label with its text."""
    context = world.world.get(run, Context).region(region)
    assert context is not None
    entry = next(entry for entry in context.entries if entry.references)
    return [entry.text.body, *(f"{r.label}: {r.text.body}" for r in entry.references)]


def joined(world: Hand) -> ChildrenJoined:
    (event,) = [e for r in world.results for e in r.events if isinstance(e, ChildrenJoined)]
    return event


# --- pause, cancel, restart ---------------------------------------------------------------------


def test_no_worker_starts_while_the_parent_is_paused() -> None:
    world, boss = begun("max_workers = 1")
    (first,) = children(world, boss)
    world.post(Pause(boss, 0, "ann"))
    drain(world)
    assert words(world, boss, first) == ["paused", "paused"]
    world.post(Cancel(first, 0, "ann", "no"))
    drain(world)
    assert children(world, boss) == [first]
    world.restart()
    assert children(world, boss) == [first]
    world.post(Resume(boss))
    drain(world)
    assert len(children(world, boss)) == 2
    is_sound(world)


def test_cancelling_a_parent_cancels_its_workers_and_starts_none() -> None:
    world, boss = begun("max_workers = 2")
    world.post(Cancel(boss))
    drain(world)
    assert all_ended(world) and len(children(world, boss)) == 2
    assert world.world.find(boss, FanOut) is None and world.world.find(boss, Split) is None
    is_sound(world)


def test_a_fan_out_of_many_starts_in_bounded_steps() -> None:
    world = hand(narrow(tree_moves_max=4))
    boss = world.spawn(fan_out("max_workers = 0"))
    asks(world, boss, call("fan_out", items=[str(n) for n in range(10)]))
    assert len(children(world, boss)) == 4
    world.restart()
    drain(world)
    assert len(children(world, boss)) == 10
    assert (
        max(len([e for e in r.events if type(e).__name__ == "Spawned"]) for r in world.results) == 4
    )
    is_sound(world)


def play(cut: int) -> tuple[list[str], int, int]:
    """A fan-out of ten, three at a time, with a restart before move ``cut``: what the merge reads,
    the model calls that were answered, and those that the restart cut off."""
    world = hand(narrow(tree_moves_max=2))
    boss = world.spawn(fan_out("max_workers = 3"))
    answered = lost = 0
    for move in itertools.count():
        if move == cut:
            lost = len(asking(world))
            world.restart()
        drain(world)
        waiting = asking(world)
        if not waiting:
            break
        run = waiting[-1]
        answered += 1
        if run == boss and stage(world, boss) == "split":
            asks(world, boss, call("fan_out", items=[f"task {n}" for n in range(10)]))
        else:
            says(
                world,
                run,
                f"answer of {world.world.get(run, Worker).item}" if run != boss else "end",
            )
    assert all_ended(world) and word(world, boss) == "complete"
    is_sound(world)
    return report(world, boss), answered, lost


def test_a_restart_in_every_state_of_a_fan_out_ends_alike() -> None:
    whole, answered, _ = play(-1)
    assert answered == 12 and whole[0].startswith("Results of the workers. 10 of 10")
    for cut in range(13):
        report, calls, lost = play(cut)
        assert report == whole
        assert calls == answered, f"{lost} calls were in flight, each is answered once"


def test_a_worker_cancelled_with_its_id_is_known_in_the_report() -> None:
    world, boss = begun()
    one, two, three = children(world, boss)
    assert run_id(world, one) != run_id(world, two)
    world.post(Cancel(one, 0, "ann", "wrong item"))
    says(world, two, "2")
    says(world, three, "3")
    assert "- a: cancelled: wrong item" in report(world, boss)[0]


def test_an_agent_that_is_found_during_a_pause_starts_its_workers_on_resume() -> None:
    world = hand()
    boss = world.spawn(BOSS)
    asks(world, boss, call("fan_out", items=THREE, agent="reader"))
    world.post(Pause(boss))
    found(world, TALK)
    assert children(world, boss) == []
    world.post(Resume(boss))
    drain(world)
    assert len(children(world, boss)) == 3
    is_sound(world)


def test_a_split_stage_that_is_out_of_turns_goes_to_its_merge_and_not_to_its_workers() -> None:
    world = hand()
    boss = world.spawn(fan_out("max_iterations = 2"))
    for _ in range(2):
        asks(world, boss, call("fan_out", items=[7]))
    assert stage(world, boss) == "merge"
    assert world.world.get(boss, Flags).splits_degraded == 1
    is_sound(world)


def test_a_run_whose_fan_out_failed_owes_its_split_again_when_it_is_resumed() -> None:
    world, boss = begun()
    for worker in children(world, boss):
        world.post(Cancel(worker))
    assert word(world, boss) == "error"
    world.post(Resume(boss, 1))
    says(world, boss, "it is done")
    assert stage(world, boss) == "split" and "call fan_out" in texts(world, boss)[-1]
    asks(world, boss, call("fan_out", items=["again"]))
    (worker,) = [n for n in asking(world) if n != boss]
    says(world, worker, "fine")
    assert stage(world, boss) == "merge"
    is_sound(world)


def test_a_worker_that_cannot_be_read_any_more_has_failed() -> None:
    """As when its parts are damaged: the next host does not have it, and nobody waits for ever."""
    world, boss = begun()
    one, two, three = children(world, boss)
    world.check = False
    world.world.gone(one)
    world.post(Slept(1))
    says(world, two, "2")
    world.restart()
    says(world, three, "3")
    assert stage(world, boss) == "merge"
    told, *results_of = report(world, boss)
    assert "- a worker: gone: it cannot be read any more" in told
    assert results_of == ["b: 2", "c: 3"]
    event = joined(world)
    assert (event.total, event.succeeded) == (3, 2)
    is_sound(world)


@pytest.mark.parametrize("crash", [False, True])
def test_a_worker_that_is_resumed_is_waited_for_again(crash: bool) -> None:
    """It counted as ended once more when it ended again, and the last worker was cancelled."""
    world = hand()
    root = world.spawn(fan_out())
    asks(world, root, call("fan_out", items=["a", "b", "c"]))
    first, second, third = children(world, root)
    world.post(world.inferred(infer_of(world, first), error_kind="bad_request", error="no"))
    world.post(Resume(first, 1))
    if crash:
        world.restart()
    for worker in (first, second):
        says(world, worker, f"result of {worker}")
    assert words(world, root, first, second, third) == [
        "waiting_input",
        "complete",
        "complete",
        "running",
    ]
    says(world, third)
    assert "3 of 3 workers succeeded" in str(world.world.get(root, Context))


def test_a_worker_that_ends_and_is_resumed_within_one_step_was_never_counted() -> None:
    world = hand()
    root = world.spawn(fan_out())
    asks(world, root, call("fan_out", items=["a", "b"]))
    first, second = children(world, root)
    world.post(Cancel(first, 1), Resume(first, 2))
    assert world.world.get(root, FanOut).ended == 0
    assert infer_of(world, first).effect == 1, "what was broken off"
    says(world, first)
    says(world, second)
    assert words(world, root, first, second) == ["running", "complete", "complete"]


@pytest.mark.parametrize("at_once", [0, 1, 3])
@pytest.mark.parametrize("items", [63, 64, 65, 200])
def test_workers_that_end_as_they_start_are_all_heard_of(at_once: int, items: int) -> None:
    """One a round, more of them than a step has rounds: neither the parent nor a worker is taken
    for a loop, and the parent does not wait for ever for the one that ended last."""
    roomy = narrow(tree_children_max=1_000)
    world = hand(roomy, check=False)
    unfit = agent(
        f"""
[stages.split]
mode = "fan_out"
worker_stage = "work"
max_workers = {at_once}
[[stages.split.edges]]
to = "merge"
condition = "error"
[stages.work]
allow_as_worker = true
system_prompt = "{"too long " * 20}"
[stages.merge]
[context.regions]
stage_instructions = {{ kind = "pinned", max_tokens = 20 }}
"""
    )
    root = world.spawn(unfit)
    asks(world, root, call("fan_out", items=[f"i{n}" for n in range(items)]))
    drain(world)
    assert not any(result.failures for result in world.results)
    errors = {world.status(n).error for n in children(world, root)}
    assert errors == {"the instructions of stage work do not fit their region; shorten them"}
    assert len(children(world, root)) == items and asking(world) == [root]
    is_sound(world)
