"""Budgets that runs share, and budgets of time."""

from __future__ import annotations

from typing import Any

from budget_hands import (
    CALL_TOKENS,
    PRICES,
    SHORT,
    held,
    outcome,
    priced,
    refused,
)
from hand_agents import (
    ALL,
    TALK,
    agent,
    stage,
    word,
)
from msgspec.structs import replace
from tree_hands import BOSS, asks, call, drain, fan_out, found, hand, newest, says

from leviath.components.budget import Allowance, FleetSpent, Limits, TreeSpent
from leviath.components.commands import Abort, Infer
from leviath.components.inputs import Pause, Resume
from leviath.components.parts import WORLD_OWNER
from leviath.components.progress import Cost
from leviath.simulation.hand import Hand

# --- trees and the fleet ------------------------------------------------------------------------


def family(tree: Limits, **more: Any) -> tuple[Hand, int, int]:
    """A root whose model has started one child; both are asked."""
    world = hand(replace(SHORT, **more), prices=PRICES)
    root = world.spawn(BOSS, tree_budget=tree)
    asks(world, root, call("spawn_agent", agent=TALK.name, task="go"), prompt=10)
    found(world, TALK)
    return world, root, newest(world)


def test_a_tree_shares_one_budget_and_calls_under_way_count() -> None:
    world, root, child = family(Limits(tokens=100_000))
    assert Allowance in world.world.row(root) and Allowance not in world.world.row(child)
    tree = world.world.purses.trees[root]
    assert tree.tokens == sum(h.tokens for n in (root, child) for h in held(world, n))
    says(world, child, prompt=33, completion=4, cost_nano_usd=None)
    spent = world.world.get(root, TreeSpent)
    assert (spent.tokens, spent.nano_usd, spent.turns) == (10 + 37, 10 + 33 + 8, 2)
    assert spent.nano_usd == world.world.trees.total(root).priced_nano


def test_what_one_run_of_a_tree_holds_another_cannot_have() -> None:
    world, root, _ = family(Limits(tokens=100_000))
    both = world.world.purses.trees[root].tokens
    spent = world.world.get(root, TreeSpent).tokens
    other, boss, child = family(Limits(tokens=both + spent))
    assert word(other, child) == "running" and word(other, boss) == "running"
    other, boss, child = family(Limits(tokens=both + spent - 1))
    # The step grants in order of age: whoever came last finds too little left.
    assert sorted(word(other, n) for n in (boss, child)) != ["running", "running"]
    assert any(r.endings for r in other.results)
    ended = [n for n in (boss, child) if other.status(n).status.is_ended]
    assert f"the budget of the tree of {other.world.run_id(boss)}" in " ".join(
        other.status(n).error or "" for n in ended
    )


def test_a_tree_budget_ends_as_a_ceiling_that_was_reached() -> None:
    world = hand(SHORT, prices=PRICES)
    run = world.spawn(TALK, tree_budget=Limits(tokens=10))
    assert (refused(world), outcome(world, run)) == (["shared_budget"], "budget_ceiling_reached")


def test_a_child_is_given_no_tree_budget_of_its_own() -> None:
    world, _, child = family(Limits(tokens=100_000))
    world.post(Resume(child, 9, tree_budget=Limits(tokens=5)))
    (ack,) = world.results[-1].acks
    assert ack.code == "run_conflict"


def test_the_world_shares_the_fleet_budget_and_it_outlives_runs_and_hosts() -> None:
    limits = Limits(tokens=2 * CALL_TOKENS)
    world = priced(replace(SHORT, fleet_budget=limits))
    first, second = world.spawn(TALK), world.spawn(TALK)
    third = world.spawn(TALK)
    assert (word(world, third), outcome(world, third)) == ("error", "budget_ceiling_reached")
    assert "the fleet budget of 1,224 tokens" in (world.status(third).error or "")
    says(world, first, prompt=10, completion=2, cost_nano_usd=None)
    assert world.world.get(WORLD_OWNER, FleetSpent) == FleetSpent(14, 12, 1)
    world.restart()
    assert word(world, second) == "error"
    assert world.world.get(WORLD_OWNER, FleetSpent) == FleetSpent(14 + 712, 12 + 612, 1)
    world.configure(policy=replace(SHORT, fleet_budget=Limits(tokens=10_000)))
    world.post(Resume(second))
    assert word(world, second) == "running"


def test_spawning_stays_allowed_when_the_fleet_budget_is_spent() -> None:
    world = priced(replace(SHORT, fleet_budget=Limits(turns=1)))
    says(world, world.spawn(TALK))
    run = world.spawn(TALK)
    assert world.results[-1].acks[0].code == ""
    assert outcome(world, run) == "budget_ceiling_reached"


def test_ended_children_stay_in_the_sum_of_their_tree() -> None:
    world = hand(SHORT, prices=PRICES)
    root = world.spawn(fan_out("max_workers = 2"), tree_budget=Limits(tokens=100_000, turns=4))
    asks(world, root, call("fan_out", items=[{"id": str(n), "task": "x"} for n in range(3)]))
    drain(world)
    for _ in range(2):
        says(world, next(c.run for c in world.commands if isinstance(c, Infer)))
        drain(world)
    assert world.world.get(root, TreeSpent).turns == 3
    says(world, next(c.run for c in world.commands if isinstance(c, Infer)))
    drain(world)
    # Four turns are taken: the merge would be the fifth.
    assert outcome(world, root) == "budget_ceiling_reached"


# --- time ---------------------------------------------------------------------------------------


def test_a_time_budget_ends_the_run_and_aborts_what_is_in_flight() -> None:
    world = priced()
    run = world.spawn(TALK, budget=Limits(wall_ms=60_000))
    assert world.results[-1].next_due_ms == 60_000
    world.sleep(59_999)
    assert word(world, run) == "running"
    result = world.sleep(1)
    assert word(world, run) == "error"
    assert [type(c) for c in result.commands if isinstance(c, Abort)] == [Abort]
    assert outcome(world, run) == "time_budget_exceeded"
    assert world.status(run).error == (
        "the run's budget of 60 s is over; resume the run with a larger one"
    )
    # The call's outcome is still charged.
    world.fail("aborted", charged=True)
    assert world.world.get(run, Cost).unpriced == 1 and held(world, run) == ()


def test_time_that_no_host_drove_does_not_count_and_a_restart_keeps_the_deadline() -> None:
    world = priced()
    run = world.spawn(TALK, budget=Limits(wall_ms=60_000))
    world.sleep(50_000)
    world.restart(away_ms=10**9)
    assert word(world, run) == "running" and world.results[-1].next_due_ms == 60_000
    world.sleep(10_000)
    assert outcome(world, run) == "time_budget_exceeded"


def test_a_paused_run_hears_of_its_time_when_it_is_resumed() -> None:
    world = priced()
    run = world.spawn(TALK, budget=Limits(wall_ms=60_000))
    world.post(Pause(run))
    assert world.sleep(70_000).changes == []
    world.post(Resume(run, 7))
    assert world.results[-1].acks[0].code == "run_conflict"
    assert "is over" in world.results[-1].acks[0].message
    world.post(Resume(run, 7, budget=Limits(wall_ms=80_000)))
    assert word(world, run) == "running"
    world.sleep(10_000)
    assert outcome(world, run) == "time_budget_exceeded"


def test_a_time_budget_ends_a_run_that_waits_for_a_person() -> None:
    once = agent(
        f'[stages.main]\navailable_tools = {ALL}\n[stages.main.tool_permissions]\nsend = "ask"\n'
    )
    world = priced()
    run = world.spawn(once, budget=Limits(wall_ms=60_000))
    world.reply("", ("c", "send", "{}"))
    assert word(world, run) == "waiting_input tool_approval"
    world.sleep(60_000)
    assert outcome(world, run) == "time_budget_exceeded"


def test_a_trees_time_ends_the_root_and_with_it_the_runs_below() -> None:
    world, root, child = family(Limits(wall_ms=60_000))
    world.sleep(60_000)
    drain(world)
    assert (word(world, root), word(world, child)) == ("error", "cancelled")
    assert outcome(world, root) == "time_budget_exceeded"


def test_an_error_edge_cannot_go_on_without_time() -> None:
    saved = agent('[stages.a]\n[[stages.a.edges]]\nto = "b"\ncondition = "error"\n[stages.b]\n')
    world = priced()
    run = world.spawn(saved, budget=Limits(wall_ms=5_000))
    world.sleep(5_000)
    assert (word(world, run), stage(world, run), refused(world)) == ("error", "b", ["time_budget"])
    assert world.results[-1].next_due_ms is None or world.results[-1].next_due_ms > 5_000
