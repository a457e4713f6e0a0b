"""Fan-outs: splits, workers, joins, merges, and what a restart makes of each state."""

from __future__ import annotations

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
    is_sound,
    narrow,
    results,
    says,
    words,
)

from leviath.components.commands import FindAgent, Infer
from leviath.components.context import Context
from leviath.components.events import ChildrenJoined, ToolEnded
from leviath.components.family import Worker
from leviath.components.inputs import Cancel
from leviath.components.output import Flags
from leviath.components.text import Text

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


def test_a_split_starts_workers_and_hands_their_results_to_the_merge() -> None:
    world, boss = begun()
    workers = children(world, boss)
    assert word(world, boss) == "waiting_input fan_out_workers"
    assert [world.world.get(n, Worker).item for n in workers] == ["a", "b", "c"]
    assert [texts(world, n)[0] for n in workers] == ["read a", "read b", "read c"]
    assert {stage(world, n) for n in workers} == {"work"}
    for number, worker in enumerate(reversed(workers)):
        says(world, worker, f"result {number}")
        assert world.status(boss).waiting is None or (
            world.status(boss).waiting.outstanding == 2 - number  # type: ignore[union-attr]
        )
    assert words(world, *workers) == ["complete"] * 3, "the merge stage is not theirs"
    assert (word(world, boss), stage(world, boss)) == ("running", "merge")
    assert report(world, boss) == [
        "Results of the workers. 3 of 3 workers succeeded.",
        "a: result 2",
        "b: result 1",
        "c: result 0",
    ], "in the order of the items"
    says(world, boss)
    assert word(world, boss) == "complete"
    event = joined(world)
    assert (event.total, event.succeeded, event.failed, event.stopped) == (3, 3, 0, 0)
    is_sound(world)


def test_a_call_of_fan_out_has_one_result() -> None:
    world, boss = begun()
    ended = [e for r in world.results for e in r.events if isinstance(e, ToolEnded)]
    assert ended == [] and results(world, boss) == [], "none before the workers have ended"
    for worker in children(world, boss):
        says(world, worker)
    ended = [e for r in world.results for e in r.events if isinstance(e, ToolEnded)]
    assert [e.call_id for e in ended] == ["c"] and len(results(world, boss)) == 1


def test_no_more_workers_run_at_once_than_the_stage_allows() -> None:
    items = [f"item {n}" for n in range(7)]
    world, boss = begun("max_workers = 2", items)
    seen: list[int] = []
    while word(world, boss) != "running":
        working = [n for n in asking(world) if n != boss]
        assert len(working) <= 2
        seen.append(working[0])
        says(world, working[0])
    assert len(seen) == 7 and words(world, *seen) == ["complete"] * 7
    is_sound(world)


def test_a_model_may_ask_for_fewer_workers_at_once_and_not_for_more() -> None:
    world = hand()
    for asked, at_work in ((1, 1), (3, 2)):
        boss = world.spawn(fan_out("max_workers = 2"))
        asks(world, boss, call("fan_out", items=["x", "y", "z"], max_workers=asked))
        assert len(children(world, boss)) == at_work


def test_an_empty_split_finishes_at_once() -> None:
    world, boss = begun(items=[])
    assert stage(world, boss) == "merge" and results(world, boss) == ["0 of 0 workers succeeded."]
    is_sound(world)


def test_a_worker_of_an_agent_is_looked_up_once_for_all() -> None:
    world = hand()
    boss = world.spawn(
        agent(
            '[stages.split]\nmode = "fan_out"\nworker_agent = "reader"\n'
            "[stages.split.transitions]\n"
        )
    )
    asks(world, boss, call("fan_out", items=THREE))
    (command,) = world.take(FindAgent)
    assert (command.wanted, command.is_query) == ("reader", False)
    world.commands.append(command)
    found(world, TALK)
    assert len(children(world, boss)) == 3
    for worker in children(world, boss):
        says(world, worker, "x")
    assert word(world, boss) == "complete", "without a merge stage its own transition follows"
    is_sound(world)


def test_a_worker_agent_that_is_not_found_is_told_to_the_model() -> None:
    world = hand()
    boss = world.spawn(
        agent('[stages.split]\nmode = "fan_out"\nworker_query = "reads"\nmax_attempts = 0\n')
    )
    asks(world, boss, call("fan_out", items=THREE))
    assert world.take(FindAgent)[0].is_query
    world.restart()
    found(world, TALK, error="none has 'reads' in it")
    assert results(world, boss) == ["[error] none has 'reads' in it"]
    says(world, boss)
    assert word(world, boss) == "complete"
    assert world.world.get(boss, Flags).splits_degraded == 1
    is_sound(world)


def test_any_stage_may_fan_out_by_the_tool_and_goes_on_with_the_results() -> None:
    world = hand()
    boss = world.spawn(BOSS)
    asks(world, boss, call("fan_out", items=THREE, agent="reader", join="quorum", quorum=2))
    found(world, TALK)
    drain(world)
    one, two, three = children(world, boss)
    says(world, one, "1")
    says(world, three, "3")
    drain(world)
    assert words(world, boss, two) == ["running", "cancelled"]
    assert results(world, boss)[-1].splitlines()[-2:] == ["a: 1", "c: 3"]
    assert "not need it" in world.status(two).why
    says(world, boss)
    assert word(world, boss) == "complete"
    is_sound(world)


# --- joins --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "ends", "after", "where", "stopped"),
    [
        ("", ["ok", "no", "ok"], 3, "merge", 0),
        ("", ["no", "no", "no"], 3, "error", 0),
        ('on_worker_failure = "fail_all"', ["ok", "no", "ok"], 2, "error", 1),
        ('join = "fail_all"', ["ok", "ok", "ok"], 3, "merge", 0),
        ('join = "first"', ["no", "ok", "ok"], 2, "merge", 1),
        ('join = "first"', ["no", "no", "no"], 3, "error", 0),
        ('join = "quorum"\nquorum = 2', ["ok", "ok", "ok"], 2, "merge", 1),
        ('join = "quorum"\nquorum = 2', ["no", "no", "ok"], 2, "error", 1),
    ],
)
def test_each_join_stops_early_and_says_what_became_of_whom(
    keys: str, ends: list[str], after: int, where: str, stopped: int
) -> None:
    world, boss = begun(keys)
    workers = children(world, boss)
    for count, (worker, how) in enumerate(zip(workers, ends, strict=True), 1):
        if how == "ok":
            says(world, worker, "fine")
        else:
            world.post(Cancel(worker, 0, "ann", "broken"))
        if count == after:
            break
        assert word(world, boss) == "waiting_input fan_out_workers"
    drain(world)
    event = joined(world)
    assert event.stopped == stopped
    assert words(world, *workers[after:]) == ["cancelled"] * stopped
    if where == "merge":
        assert stage(world, boss) == "merge" and word(world, boss) == "running"
    else:
        assert word(world, boss) == "error"
        assert "workers failed" in (world.status(boss).error or "")
        assert "cancelled: broken" in (world.status(boss).error or ""), "with a cause"
    is_sound(world)


def test_a_fan_out_that_fails_takes_its_error_edge_with_the_results() -> None:
    edges = '[[stages.split.edges]]\nto = "rescue"\ncondition = "error"'
    world = hand()
    boss = world.spawn(
        fan_out('join = "fail_all"', rest=f"{edges}\n[stages.rescue]\n[stages.rescue.transitions]")
    )
    asks(world, boss, call("fan_out", items=THREE))
    one, two, _ = children(world, boss)
    says(world, one, "kept")
    world.post(Cancel(two, 0, "ann", "broken"))
    drain(world)
    assert (word(world, boss), stage(world, boss)) == ("running", "rescue")
    assert report(world, boss)[1:] == ["a: kept"]
    says(world, boss)
    assert all_ended(world)
    is_sound(world)


def test_a_worker_without_a_result_has_failed() -> None:
    world, boss = begun()
    one, two, three = children(world, boss)
    says(world, one, "")
    says(world, two, "x")
    says(world, three, "y")
    assert "- a: complete: it ended without a result" in report(world, boss)[0]


# --- splits that are refused, degraded, repeated ------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"items": [{"id": "x", "task": "1"}, {"id": "x", "task": "2"}]}, "two items have the id"),
        ({"items": ["i"] * 10_000}, "cap"),
        ({"items": ["i"] * 10_001}, "10,001 items"),
        ({"items": ["x" * 10_000_000]}, "item '1' has 10,000,000 bytes"),
        ({"items": "x"}, "no list"),
        ({"items": [{"id": "x"}]}, "has no task"),
        ({"items": [{"id": "\u00e9", "task": "x"}]}, "plain ASCII"),
        ({"items": [{"id": "x" * 65, "task": "x"}]}, "1 to 64"),
        ({"items": [7]}, "has no task"),
        ({}, "items is missing"),
        ({"items": ["x"], "agent": "other"}, "leave agent out"),
        ({"items": ["x"], "quorum": 2}, "a quorum of 2 out of 1"),
        ({"items": ["x"], "max_workers": "many"}, "no whole number"),
    ],
)
def test_a_split_that_cannot_be_is_refused_and_the_model_may_try_again(
    arguments: dict[str, Any], told: str
) -> None:
    world = hand()
    boss = world.spawn(fan_out())
    asks(world, boss, call("fan_out", **arguments))
    (text,) = results(world, boss)
    assert text.startswith("[error] ") and told in text and len(text) < 400
    assert children(world, boss) == [] and asking(world) == [boss]
    asks(world, boss, call("fan_out", items=["x"]))
    assert len(children(world, boss)) == 1
    is_sound(world)


def test_fan_out_beside_another_call_is_refused() -> None:
    world = hand()
    boss = world.spawn(BOSS)
    asks(world, boss, call("fan_out", "a", items=["x"], agent="r"), call("check_agent", "b"))
    assert "only call of its turn" in results(world, boss)[0]
    asks(world, boss, call("fan_out", items=["x"]))
    assert "needs agent" in results(world, boss)[-1]


def test_too_many_items_for_the_stage_are_refused() -> None:
    world, boss = begun("max_items = 2")
    assert "3 items are over the 2" in results(world, boss)[0]


def test_a_stage_that_does_not_split_is_run_again_and_then_goes_on_in_one_piece() -> None:
    world = hand()
    boss = world.spawn(
        fan_out("max_attempts = 2", models='models = [{ provider = "scripted", model = "m" }]')
    )
    for _ in range(2):
        says(world, boss, "I would rather not")
        assert stage(world, boss) == "split"
        assert "call fan_out with the items" in texts(world, boss)[-1]
    while stage(world, boss) == "split":
        says(world, boss, "no")
    assert stage(world, boss) == "merge"
    assert world.world.get(boss, Flags).splits_degraded == 1
    is_sound(world)


def test_a_stage_that_splits_again_is_told_what_the_last_round_covered() -> None:
    world = hand()
    boss = world.spawn(
        agent(
            """
[stages.split]
mode = "fan_out"
worker_stage = "work"
max_revisits = 3
[stages.split.transitions.check]
[stages.work]
allow_as_worker = true
[stages.check]
allow_complete = true
[stages.check.transitions.split]
"""
        )
    )
    asks(world, boss, call("fan_out", items=[f"item {n}" for n in range(14)]))
    for worker in children(world, boss):
        says(world, worker, "x")
    says(world, boss, "more")
    says(world, boss, "split")
    told = texts(world, boss)[-1]
    assert told.startswith("This is round 2. The last one covered 1, 2, 3")
    assert "12 and 2 more." in told
    asks(world, boss, call("fan_out", items=["last"]))
    (worker,) = [n for n in asking(world) if n != boss]
    says(world, worker, "y")
    assert stage(world, boss) == "check"
    assert report_of_last(world, boss) == ["1: y"], "only of this round"
    is_sound(world)


def report_of_last(world: Hand, run: int) -> list[str]:
    region = world.world.get(run, Context).region("conversation")
    assert region is not None
    entry = [entry for entry in region.entries if entry.references][-1]
    return [f"{r.label}: {r.text.body}" for r in entry.references]


# --- results by reference -----------------------------------------------------------------------


def test_results_share_the_size_of_their_region() -> None:
    world = hand()
    boss = world.spawn(
        fan_out(
            'results_region = "found"',
            rest='[context.regions]\nfound = { kind = "pinned", max_tokens = 1000 }',
        )
    )
    asks(world, boss, call("fan_out", items=THREE))
    long = Text("", b"d" * 16, 50_000)
    for worker in children(world, boss):
        infer = next(i for i in world.commands if isinstance(i, Infer) and i.run == worker)
        world.commands.remove(infer)
        world.post(world.inferred(infer, text=long))
    region = world.world.get(boss, Context).region("found")
    assert region is not None
    (entry,) = region.entries
    assert [r.bytes_max for r in entry.references] == [1000 * 4 * 9 // 10 // 3] * 3
    assert {r.text for r in entry.references} == {long}, "by digest, not by copy"
    assert entry.tokens <= 1000
    is_sound(world)
