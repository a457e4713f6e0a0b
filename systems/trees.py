"""What moves in trees of runs within a step: parents hear of children, children follow parents.

Each step moves a bounded number of runs because of others; what is left goes on in the next ones.
Nothing of it is queued in the state: who has to move follows from each run and its parent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leviath.components.family import FanOut
from leviath.components.marker import TRANSIENT, Marker
from leviath.components.parts import WORLD_OWNER
from leviath.components.run_status import RunStatus
from leviath.components.status import Status
from leviath.components.world_facts import Counters
from leviath.systems import control, joins
from leviath.systems.moves import end, move, still_waiting
from leviath.systems.run import Run
from leviath.systems.tree_index import WAITS

if TYPE_CHECKING:
    from leviath.systems.run import Tick
    from leviath.systems.world import World


def advance(world: World, tick: Tick) -> bool:
    """One round of everything that one run does to another. True when anything moved."""
    trees = world.trees
    moved = False
    if trees.news:
        _hear(world, tick)
        moved = True
    if trees.waiting:
        moved = _look_at_waiting(world, tick) or moved
    if trees.unsettled:
        moved = _follow_parents(world, tick) or moved
    if trees.starting and world.get(WORLD_OWNER, Counters).driven:
        moved = _start_workers(world, tick) or moved
    return moved


def has_more(world: World) -> bool:
    """The next step has runs to move, without waiting for anything."""
    trees = world.trees
    if trees.news or trees.waiting:
        # The step's last round left them: nobody else would tell their parents.
        return True
    if not trees.unsettled and not trees.starting:
        return False
    driven = world.get(WORLD_OWNER, Counters).driven
    return any(trees.wanted_move(n) for n in trees.unsettled) or (
        driven and any(trees.may_start(n) for n in trees.starting)
    )


# --- children that ended ------------------------------------------------------------------------


def _hear(world: World, tick: Tick) -> None:
    trees = world.trees
    news, trees.news = trees.news, {}
    by_parent: dict[int, list[int]] = {}
    for child in news:
        status = world.find(child, Status)
        parent = trees.parent(child)
        if status is None or not status.status.is_ended or not parent or parent not in world:
            continue
        if not world.get(parent, Status).status.is_ended:
            by_parent.setdefault(parent, []).append(child)
    for parent, children in by_parent.items():
        tick.guard(parent, "hear_of_children", joins.hear, children)
        trees.waiting.add(parent)


def _look_at_waiting(world: World, tick: Tick) -> bool:
    trees = world.trees
    moved = False
    while (n := trees.waiting.pop()) is not None:
        status = world.find(n, Status)
        if status is None or status.status not in (RunStatus.WAITING_INPUT, RunStatus.RUNNING):
            continue
        marker = world.marker(n)
        if marker in WAITS or marker is Marker.awaiting_tools:
            before = world.mark()
            tick.guard(n, "settle_joins", joins.settle)
            if world.find(n, FanOut) is not None:
                tick.guard(n, "count_outstanding", _count_outstanding)
            moved = moved or world.mark() != before
    return moved


def _count_outstanding(run: Run, tick: Tick) -> None:
    fan_out = run.get(FanOut)
    still_waiting(run, tick, fan_out.total - fan_out.ended)


# --- children that follow -----------------------------------------------------------------------


def _follow_parents(world: World, tick: Tick) -> bool:
    trees, most = world.trees, world.policy.tree_moves_max
    moved = False
    on_their_way: list[int] = []
    while tick.tree_moves < most and (n := trees.unsettled.pop()) is not None:
        wanted = trees.wanted_move(n)
        if not wanted:
            continue
        if wanted == "pause" and world.marker(n) in TRANSIENT:
            # First to where it rests, which is within the next rounds.
            on_their_way.append(n)
            continue
        moved = True
        tick.tree_moves += 1
        tick.guard(n, f"{wanted}_with_parent", _FOLLOW[wanted])
        if trees.wanted_move(n):
            # It could not follow, and ended its stage instead: it must not stay behind.
            control.put_down(Run(world, n), tick, f"it could not {wanted} with its parent")
    for n in on_their_way:
        trees.unsettled.add(n)
    return moved


def _cancel(run: Run, tick: Tick) -> None:
    parent = Run(run.world, run.world.trees.parent(run.n))
    status = parent.status
    why = f"its parent {parent.run_id} ended: {status.wire()}"
    if not status.is_ended:
        why = f"the fan-out of {parent.run_id} is over and does not need it"
    end(run, tick, RunStatus.CANCELLED, why=why)


def _pause(run: Run, tick: Tick) -> None:
    parent = Run(run.world, run.world.trees.parent(run.n))
    above = parent.get(Status)
    status = run.get(Status)
    move(
        run,
        tick,
        RunStatus.PAUSED,
        run.marker,
        actor=above.actor,
        why=f"its parent {parent.run_id} is paused",
        waiting=status.waiting,
        held_by=above.held_by or parent.n,
    )


def _resume(run: Run, tick: Tick) -> None:
    parent = Run(run.world, run.world.trees.parent(run.n))
    control.resume_paused(run, tick, parent.get(Status).actor)


_FOLLOW = {"cancel": _cancel, "pause": _pause, "resume": _resume}


# --- workers that start -------------------------------------------------------------------------


def _start_workers(world: World, tick: Tick) -> bool:
    trees, most = world.trees, world.policy.tree_moves_max
    moved = False
    while tick.tree_moves < most and (n := trees.starting.pop()) is not None:
        if not trees.may_start(n):
            continue
        room = min(most - tick.tree_moves, trees.room(n))
        moved = True
        tick.tree_moves += room
        tick.guard(n, "start_workers", joins.start_workers, room)
        if trees.may_start(n):
            trees.starting.add(n)
    return moved
