"""Waiting for other runs: joins, stages that require their children, and what a tree cost."""

from __future__ import annotations

from typing import Any

import pytest
from hand_agents import TALK, agent, word
from tree_hands import (
    BOSS,
    all_ended,
    asking,
    asks,
    call,
    drain,
    hand,
    is_sound,
    results,
    says,
    spawn_child,
    words,
)

from leviath.components.inputs import Cancel
from leviath.components.progress import Cost
from leviath.systems.tree_index import Totals, totals_of

# --- joins of agents ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "ends", "goes_on_after", "is_error"),
    [
        ({"join": "all"}, ["ok", "ok", "ok"], 3, False),
        ({"join": "all"}, ["no", "no", "ok"], 3, False),
        ({"join": "all"}, ["no", "no", "no"], 3, True),
        ({"join": "fail_all"}, ["ok", "no", "ok"], 2, True),
        ({"join": "first"}, ["no", "ok", "ok"], 2, False),
        ({"join": "first"}, ["no", "no", "no"], 3, True),
        ({"quorum": 2}, ["ok", "no", "ok"], 3, False),
        ({"join": "quorum", "quorum": 2}, ["no", "no", "ok"], 2, True),
    ],
)
def test_a_join_goes_on_when_it_is_decided(
    arguments: dict[str, Any], ends: list[str], goes_on_after: int, is_error: bool
) -> None:
    world = hand()
    boss = world.spawn(BOSS)
    runs = [spawn_child(world, boss, TALK) for _ in ends]
    asks(world, boss, call("wait_for_agents", **arguments))
    for count, (run, how) in enumerate(zip(runs, ends, strict=True), 1):
        if how == "ok":
            says(world, run, f"result {count}")
        else:
            world.post(Cancel(run, 0, "ann", "no"))
        assert (word(world, boss) == "running") == (count >= goes_on_after)
    assert results(world, boss)[-1].startswith("[error] ") == is_error
    is_sound(world)


def test_a_quorum_that_cannot_be_is_refused() -> None:
    world = hand()
    boss = world.spawn(BOSS)
    spawn_child(world, boss, TALK)
    asks(world, boss, call("wait_for_agents", quorum=2))
    assert "a quorum of 2 out of 1 cannot be" in results(world, boss)[-1]
    asks(world, boss, call("wait_for_agents", join="some"))
    assert "is none of all, fail_all, first, quorum" in results(world, boss)[-1]


# --- stages that wait ---------------------------------------------------------------------------

WAITS = agent(
    """
[stages.main]
available_tools = ["spawn_agent"]
requires_children = true
[stages.main.transitions.after]
[stages.main.transitions.rescue]
condition = "error"
[stages.after]
[stages.after.transitions]
[stages.rescue]
[stages.rescue.transitions]
"""
)


def test_a_stage_that_requires_its_children_waits_for_them() -> None:
    world = hand()
    boss = world.spawn(WAITS)
    child = spawn_child(world, boss, TALK)
    says(world, boss)
    assert word(world, boss) == "waiting_input children"
    world.restart()
    assert word(world, boss) == "waiting_input children"
    says(world, child)
    assert word(world, boss) == "running"
    says(world, boss)
    assert words(world, boss, child) == ["complete", "complete"]
    is_sound(world)


def test_cancelling_a_parent_that_waits_does_not_revive_it() -> None:
    world = hand()
    boss = world.spawn(WAITS)
    child = spawn_child(world, boss, TALK)
    says(world, boss)
    world.post(Cancel(boss, 1))
    drain(world)
    assert words(world, boss, child) == ["cancelled", "cancelled"]
    assert asking(world) == []
    is_sound(world)


def test_a_stage_that_fails_with_children_at_work_takes_its_error_edge_or_ends() -> None:
    world = hand()
    boss = world.spawn(WAITS)
    spawn_child(world, boss, TALK)
    infer = next(i for i in world.commands if getattr(i, "run", 0) == boss)
    world.commands.remove(infer)
    world.fail("bad_request", infer=infer)  # type: ignore[arg-type]
    assert word(world, boss) == "running", "the error edge is taken at once"
    says(world, boss)
    drain(world)
    assert word(world, boss) == "complete" and all_ended(world)
    is_sound(world)


# --- cost ---------------------------------------------------------------------------------------


def test_costs_of_a_tree_add_up_and_an_unknown_one_stays_unknown() -> None:
    world = hand()
    boss = world.spawn(BOSS)
    runs = [boss, *(spawn_child(world, boss, BOSS) for _ in range(3))]
    for parent in runs[1:4]:
        runs.extend(spawn_child(world, parent, TALK) for _ in range(2))
    for run in runs[4:]:
        says(world, run, cost_nano_usd=100, prompt=7)
    world.post(Cancel(runs[2], 0))
    drain(world)
    own = [totals_of(world.world.get(run, Cost)) for run in runs]
    total = Totals()
    for one in own:
        total.add(one)
    trees = world.world.trees
    assert trees.total(boss) == total and total.nano_usd == sum(o.priced_nano for o in own)
    assert total.nano_usd == 600 + 10 * 9, "failed and cancelled children count"
    assert total.is_exact
    world.restart()
    total = world.world.trees.total(boss)
    assert total.nano_usd is None, "calls were cut off, and what they cost is not known"
    assert world.world.trees.total(boss).priced_nano == 690
    is_sound(world)
