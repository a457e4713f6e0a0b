"""Runs that start other runs: the tools, the caps, and what follows from a parent's moves."""

from __future__ import annotations

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

from leviath.components.commands import Abort, FindAgent
from leviath.components.events import ChildSpawned
from leviath.components.identity import Launch, Tree
from leviath.components.inputs import Cancel, Pause, Post, Release, Resume
from leviath.components.text import inline


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
    run = boss
    depths: list[tuple[int, int]] = []
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


def test_cancelling_stops_what_is_under_way_outside_look_ups_too() -> None:
    world = hand()
    boss = world.spawn(BOSS)
    asks(world, boss, call("spawn_agent", agent="small", task="x"))
    (command,) = world.take(FindAgent)
    world.post(Cancel(boss))
    assert (command.effect, command.attempt) in [
        (abort.effect, abort.attempt) for abort in world.take(Abort)
    ]
    world.commands.append(command)
    found(world, TALK)
    assert children(world, boss) == [], "what was looked up for it starts no more"
    is_sound(world)


def test_a_message_to_an_agent_that_does_not_exist_is_an_error_and_no_success() -> None:
    world = hand()
    boss = world.spawn(BOSS)
    asks(world, boss, call("send_to_agent", agent_id="small-1-000000000000", message="hello"))
    assert results(world, boss)[-1].startswith("[error] no agent of yours is called")
    gone = world.post(Post(99, inline("hello"), 5)).acks[0]
    assert gone.code == "run_not_found"


def test_a_run_of_a_tree_is_forgotten_when_nobody_can_ask_about_it_any_more() -> None:
    world = hand()
    boss = world.spawn(BOSS)
    child = spawn_child(world, boss, TALK)
    says(world, child)
    refused = world.post(Release(child, 1)).acks[0]
    assert refused.code == "run_conflict" and "has not ended" in refused.message
    says(world, boss)
    assert world.post(Release(child, 2)).acks[0].code == ""
    assert world.world.trees.total(boss).runs == 1
    is_sound(world)


def test_an_ended_run_is_not_resumed_into_a_tree_that_is_over() -> None:
    world = hand()
    boss = world.spawn(BOSS)
    child = spawn_child(world, boss, TALK)
    world.post(Cancel(child))
    world.post(Resume(child, 1))
    assert words(world, child) == ["running"], "its parent may still ask for it"
    world.post(Cancel(boss))
    drain(world)
    refused = world.post(Resume(child, 2)).acks[0]
    assert refused.code == "run_conflict" and "resume the parent" in refused.message
    is_sound(world)
