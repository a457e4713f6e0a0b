"""Runs that start other runs: the tools, the caps, and what follows from a parent's moves."""

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
    children,
    drain,
    found,
    hand,
    is_sound,
    narrow,
    results,
    run_id,
    says,
    spawn_child,
    words,
)

from leviath.components.commands import FindAgent
from leviath.components.events import ChildSpawned
from leviath.components.identity import Launch, Tree
from leviath.components.inputs import Cancel, Pause, Resume
from leviath.components.progress import Cost
from leviath.components.text import inline
from leviath.systems.tree_index import Totals, totals_of


def test_a_child_inherits_what_it_should_and_its_parent_reads_its_id() -> None:
    world = hand()
    boss = world.spawn(BOSS, yolo=True, model_override="scripted/m", allow=("look",))
    child = spawn_child(world, boss, TALK)
    launch, tree = world.world.get(child, Launch), world.world.get(child, Tree)
    assert (launch.workdir, launch.yolo, launch.model_override) == ("/w", True, "scripted/m")
    assert launch.allow == () and launch.task == inline("go")
    assert (tree.parent, tree.parent_run_id, tree.depth, tree.root) == (
        boss,
        run_id(world, boss),
        1,
        boss,
    )
    assert results(world, boss) == [f"started {run_id(world, child)}"]
    (event,) = [e for r in world.results for e in r.events if isinstance(e, ChildSpawned)]
    assert (event.run_id, event.child, event.depth) == (
        run_id(world, boss),
        run_id(world, child),
        1,
    )
    is_sound(world)


def test_waiting_is_an_event_a_childs_end_wakes_its_parent_in_the_same_step() -> None:
    world = hand()
    boss = world.spawn(BOSS)
    child = spawn_child(world, boss, TALK, wait=True)
    assert word(world, boss) == "waiting_input children"
    assert world.status(boss).waiting.outstanding == 1  # type: ignore[union-attr]
    assert asking(world) == [child], "no slot is held while it waits"
    says(world, child, "the answer")
    assert word(world, boss) == "running"
    assert results(world, boss)[-1] == (
        f"1 of 1 agents succeeded.\n{run_id(world, child)}: the answer"
    )
    says(world, boss)
    assert words(world, boss, child) == ["complete", "complete"]
    is_sound(world)


@pytest.mark.parametrize("restart", [False, True])
def test_a_child_that_ended_before_anybody_waited_counts_as_ended(restart: bool) -> None:
    world = hand()
    boss = world.spawn(BOSS)
    child = spawn_child(world, boss, TALK)
    says(world, child, "early")
    if restart:
        world.restart()
    asks(world, boss, call("wait_for_agent", agent_id=run_id(world, child)))
    assert results(world, boss)[-1].endswith(": early")
    is_sound(world)


def test_a_parent_settles_when_its_children_are_cancelled_failed_and_killed() -> None:
    world = hand()
    boss = world.spawn(BOSS)
    one, two, three = (spawn_child(world, boss, TALK) for _ in range(3))
    asks(world, boss, call("wait_for_agents"))
    assert world.status(boss).waiting.outstanding == 3  # type: ignore[union-attr]
    world.post(Cancel(one, 0, "ann", "no more"))
    for infer in [i for i in world.commands if getattr(i, "run", 0) == two]:
        world.commands.remove(infer)
        world.fail("bad_request", "refused", infer=infer)  # type: ignore[arg-type]
    world.post(Cancel(three, 0, "operator"))
    assert word(world, boss) == "running", "all have ended, so it goes on"
    told = results(world, boss)[-1]
    assert told.startswith("[error] 0 of 3 agents succeeded.")
    assert "cancelled: no more" in told and "error: refused" in told
    says(world, boss)
    assert all_ended(world)
    is_sound(world)


@pytest.mark.parametrize("how", ["complete", "error", "cancelled"])
def test_a_parent_that_ends_takes_its_tree_along_and_says_how(how: str) -> None:
    world = hand()
    boss = world.spawn(BOSS)
    middle = spawn_child(world, boss, BOSS)
    leaf = spawn_child(world, middle, TALK)
    if how == "complete":
        says(world, boss)
    elif how == "error":
        infer = next(i for i in world.commands if getattr(i, "run", 0) == boss)
        world.commands.remove(infer)
        world.fail("bad_request", infer=infer)  # type: ignore[arg-type]
    else:
        world.post(Cancel(boss, 1))
    drain(world)
    assert words(world, boss, middle, leaf) == [how, "cancelled", "cancelled"]
    assert world.status(middle).why == f"its parent {run_id(world, boss)} ended: {how}"
    assert world.status(leaf).why == f"its parent {run_id(world, middle)} ended: cancelled"
    is_sound(world)


def test_a_large_tree_follows_in_bounded_steps_and_a_restart_goes_on_with_it() -> None:
    world = hand(narrow(tree_moves_max=3), check=False)
    boss = world.spawn(BOSS)
    middles = [world.spawn(BOSS, parent=boss) for _ in range(4)]
    leaves = [world.spawn(TALK, parent=middle) for middle in middles for _ in range(5)]
    result = world.post(Cancel(boss, 1))
    moved = len([e for e in result.events if type(e).__name__ == "Ended"])
    assert moved == 1 + 3, "the root, and three that follow"
    assert result.next_due_ms == world.world_ms
    world.restart()
    drain(world)
    assert set(words(world, boss, *middles, *leaves)) == {"cancelled"}
    steps = [len([e for e in r.events if type(e).__name__ == "Ended"]) for r in world.results]
    assert max(steps) <= 4
    is_sound(world)


# --- pause and resume ---------------------------------------------------------------------------


def test_pause_and_resume_walk_the_tree_and_leave_what_a_person_held() -> None:
    world = hand()
    boss = world.spawn(BOSS)
    middle, own = spawn_child(world, boss, BOSS), spawn_child(world, boss, TALK)
    leaf = spawn_child(world, middle, TALK)
    world.post(Pause(own, 0, "ann", "mine"))
    world.post(Pause(boss, 0, "bob", "lunch"))
    drain(world)
    assert words(world, boss, middle, own, leaf) == ["paused"] * 4
    assert (world.status(leaf).actor, world.status(leaf).held_by) == ("bob", boss)
    assert (world.status(own).why, world.status(own).held_by) == ("mine", 0)
    refused = world.post(Resume(leaf, 7)).acks[0]
    assert refused.code == "run_conflict" and run_id(world, middle) in refused.message
    world.restart()
    says(world, leaf) if leaf in asking(world) else None
    world.post(Resume(boss, 8, "bob"))
    drain(world)
    assert words(world, boss, middle, own) == ["running", "running", "paused"]
    assert world.status(own).why == "mine", "only the same cause lifts it"
    is_sound(world)


def test_a_held_run_that_a_person_pauses_too_stays_held_by_that_person() -> None:
    world = hand()
    boss = world.spawn(BOSS)
    child = spawn_child(world, boss, TALK)
    world.post(Pause(boss))
    world.post(Pause(child, 1, "ann", "check it"))
    world.post(Resume(boss))
    assert words(world, boss, child) == ["running", "paused"]
    world.post(Resume(child, 2))
    assert words(world, child) == ["running"]
    is_sound(world)


def test_a_parent_whose_child_ends_while_it_is_paused_hears_of_it_on_resume() -> None:
    world = hand()
    boss = world.spawn(BOSS)
    child = spawn_child(world, boss, TALK, wait=True)
    world.post(Pause(boss))
    drain(world)
    world.post(Cancel(child, 1, "ann", "enough"))
    assert word(world, boss) == "paused children"
    world.restart()
    world.post(Resume(boss))
    assert word(world, boss) == "running"
    assert "cancelled: enough" in results(world, boss)[-1]
    is_sound(world)


# --- caps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("caps", "told"),
    [
        ({"tree_depth_max": 0}, "depth cap"),
        ({"tree_children_max": 3}, "breadth cap"),
        ({"tree_runs_max": 3}, "total cap"),
        ({"tree_spawns_max": 3}, "rate cap"),
    ],
)
def test_a_model_that_always_spawns_five_more_is_stopped_and_the_root_answers(
    caps: dict[str, int], told: str
) -> None:
    world = hand(narrow(**caps))
    boss = world.spawn(BOSS)
    five = [call("spawn_agent", f"c{n}", agent="small", task="more") for n in range(5)]
    for _ in range(3):
        for run in asking(world):
            asks(world, run, *five)
            while any(isinstance(c, FindAgent) for c in world.commands):
                found(world, BOSS)
    refused = [text for text in results(world, boss) if told in text]
    assert refused and all(text.startswith("[error] ") for text in refused)
    says(world, boss, "without more of them")
    drain(world)
    assert word(world, boss) == "complete" and all_ended(world)
    allowed = 1 + 3 + 9 + 27 if "children" in str(caps) else 1 + 3
    assert len(list(world.world.owners())) <= allowed
    is_sound(world)


def test_depth_is_a_budget_that_shrinks_and_stays_when_the_parent_is_gone() -> None:
    greedy = agent(
        '[stages.main]\navailable_tools = ["spawn_agent"]\n', head="max_child_depth = 50"
    )
    world = hand()
    boss = world.spawn(agent('[stages.main]\navailable_tools = ["spawn_agent"]\n'))
    run, depths = boss, []
    for _ in range(3):
        run = spawn_child(world, run, greedy)
        tree = world.world.get(run, Tree)
        depths.append((tree.depth, tree.max_child_depth))
    assert depths == [(1, 3), (2, 3), (3, 3)], "the root's three levels, whatever they ask for"
    asks(world, run, call("spawn_agent", agent="small", task="deeper"))
    assert "depth cap: a child would have depth 4, and 3" in results(world, run)[-1]
    is_sound(world)


def test_the_rate_cap_opens_again_with_its_next_window() -> None:
    world = hand(narrow(tree_spawns_max=1, tree_window_ms=1_000))
    boss = world.spawn(BOSS)
    spawn_child(world, boss, TALK)
    asks(world, boss, call("spawn_agent", agent="small", task="two"))
    assert "rate cap" in results(world, boss)[-1]
    world.sleep(1_000)
    spawn_child(world, boss, TALK)
    is_sound(world)


# --- asking and telling -------------------------------------------------------------------------


def test_check_send_and_kill_reach_the_own_subtree_only() -> None:
    world = hand()
    boss, other = world.spawn(BOSS), world.spawn(BOSS)
    child = spawn_child(world, boss, BOSS)
    leaf = spawn_child(world, child, TALK)
    stranger = spawn_child(world, other, TALK)
    asks(
        world,
        boss,
        call("check_agent", "a", agent_id=run_id(world, leaf)),
        call("send_to_agent", "b", agent_id=run_id(world, leaf), message="hello"),
        call("check_agent", "c", agent_id=run_id(world, stranger)),
        call("send_to_agent", "d", agent_id="nobody-1", message="hello"),
        call("kill_agent", "e", agent_id=run_id(world, boss)),
        call("wait_for_agent", "f", agent_id=run_id(world, leaf)),
        call("kill_agent", "g", agent_id=run_id(world, child), why="too slow"),
    )
    a, b, c, d, e, f, g = results(world, boss)[-7:]
    assert "running" in a and "cost with what runs below it" in a
    assert b == f"{run_id(world, leaf)} reads it before its next turn."
    assert c.startswith("[error] no agent of yours is called")
    assert d.startswith("[error] no agent of yours is called 'nobody-1'"), "not a success"
    assert e.startswith("[error] no agent of yours")
    assert "is a child of your child" in f
    assert g.startswith(run_id(world, child))
    drain(world)
    assert words(world, child, leaf, stranger) == ["cancelled", "cancelled", "running"]
    assert world.status(child).why == "too slow"
    asks(world, boss, call("send_to_agent", agent_id=run_id(world, leaf), message="late"))
    assert "has ended (cancelled)" in results(world, boss)[-1]
    is_sound(world)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (call("spawn_agent", task="x"), "needs the text fields agent and task"),
        (call("spawn_agent", agent="a", task=7), "wrong type"),
        (call("spawn_agent", agent="a", task="x" * 2_000_000), "too large"),
        (call("wait_for_agent"), "agent_id is missing"),
        (call("wait_for_agents", agent_ids=[1]), "no list of ids"),
        (call("wait_for_agents", agent_ids=["a"]), "no agent of yours"),
        (call("send_to_agent", agent_id="a", message={"x": 1}), "wrong type"),
    ],
)
def test_odd_arguments_are_ordinary_refusals(asked: object, told: str) -> None:
    world = hand()
    boss = world.spawn(BOSS)
    asks(world, boss, asked)  # type: ignore[arg-type]
    (text,) = results(world, boss)
    assert text.startswith("[error] ") and told in text
    says(world, boss)
    assert word(world, boss) == "complete"


def test_an_agent_that_is_not_found_is_a_refusal_that_says_why() -> None:
    world = hand()
    boss = world.spawn(BOSS)
    asks(world, boss, call("spawn_agent", agent="nope", task="x"))
    found(world, TALK, error="no agent called 'nope' is installed")
    assert results(world, boss)[-1] == "[error] no agent called 'nope' is installed"
    assert children(world, boss) == []
    is_sound(world)


def test_a_look_up_is_made_again_after_a_restart_and_starts_one_agent() -> None:
    world = hand()
    boss = world.spawn(BOSS)
    asks(world, boss, call("spawn_agent", agent="small", task="x"))
    first = world.take(FindAgent)[0]
    world.restart()
    second = next(c for c in world.commands if isinstance(c, FindAgent))
    assert (second.effect, second.attempt) == (first.effect, first.attempt + 1)
    found(world, TALK)
    assert len(children(world, boss)) == 1
    is_sound(world)


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
