"""Runs that come in as a folder of another home, and runs that leave by retention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from leviath.components.budget import Allowance
from leviath.components.effects import Effects
from leviath.components.events import Spawned
from leviath.components.identity import Identity, Tree
from leviath.components.marker import MOVES, Marker
from leviath.components.outbox import Outbox
from leviath.components.parts import DECODERS, WORLD_OWNER
from leviath.components.progress import Clock, Stage
from leviath.components.run_status import RunStatus
from leviath.components.status import Position, Status
from leviath.components.world_facts import Counters
from leviath.systems.deliveries import hold_deliveries
from leviath.systems.endings import known_cause, summarise
from leviath.systems.joins import interrupt
from leviath.systems.moves import clock_runs, move, touch
from leviath.systems.opening import rest_run, settle_run
from leviath.systems.reserves import began_anew
from leviath.systems.run import Ack, Run

if TYPE_CHECKING:
    from leviath.components.base import Component
    from leviath.components.inputs import Import, Release
    from leviath.systems.caches import Caches
    from leviath.systems.run import Tick
    from leviath.systems.world import World


def take_import(world: World, tick: Tick, caches: Caches, item: Import) -> None:
    """Give the run an ordinal of this world and host it, held paused unless it is to be driven.

    What it had in flight elsewhere is settled as after a restart, or rests while it is held.
    """
    parts: dict[type[Component], Component] = {}
    for name, body in item.parts:
        component: Component = DECODERS[name].decode(body)
        parts[type(component)] = component
    identity = parts[Identity]
    assert isinstance(identity, Identity)
    known = world.by_run_id.get(identity.run_id)
    if known is not None:
        tick.acks.append(
            Ack(
                item.ticket,
                known,
                identity.run_id,
                "run_conflict",
                f"a run called {identity.run_id!r} is in this home already",
            )
        )
        return
    counters = world.get(WORLD_OWNER, Counters)
    ordinal = counters.ordinal + 1
    world.put(WORLD_OWNER, replace(counters, ordinal=ordinal))
    _admit(world, tick, parts, identity, ordinal)
    run = Run(world, ordinal)
    interrupt(run, tick)
    if item.hold:
        hold_deliveries(run)
    if item.hold and RunStatus.PAUSED in MOVES[run.status]:
        status = run.get(Status)
        move(
            run,
            tick,
            RunStatus.PAUSED,
            run.marker,
            why=item.why or "imported: resume it to drive it here",
            waiting=status.waiting,
        )
        rest_run(run, tick)
    elif item.hold and item.why and run.get(Status).why == "imported":
        # Held already where it comes from, and nothing more urgent is to be said of it.
        run.put(replace(run.get(Status), why=item.why))
    elif world.get(WORLD_OWNER, Counters).driven:
        settle_run(run, tick, caches)
    if run.status.is_ended:
        summarise(run, tick, known_cause(run))
    touch(run, tick, urgent=True)
    tick.acks.append(Ack(item.ticket, ordinal, identity.run_id))
    stage = run.find(Stage)
    tick.events.append(
        Spawned(
            tick.next_event,
            identity.run_id,
            tick.now.wall_ms,
            identity.agent_name,
            "" if stage is None else stage.name,
        )
    )


def _admit(
    world: World,
    tick: Tick,
    parts: dict[type[Component], Component],
    identity: Identity,
    ordinal: int,
) -> None:
    tree = parts.get(Tree)
    status = parts[Status]
    clock = parts[Clock]
    position = parts.pop(Position, None)
    assert isinstance(status, Status)
    assert isinstance(clock, Clock)
    parts[Identity] = replace(identity, ordinal=ordinal)
    if isinstance(tree, Tree):
        parent = world.by_run_id.get(tree.parent_run_id or "", 0)
        if parent and not _belongs(world, parent, tree, status):
            parent = 0
        root = world.get(parent, Tree).root if parent else ordinal
        parts[Tree] = replace(tree, parent=parent, root=root)
    if clock_runs(status.status, status.waiting) and clock.since_ms is None:
        parts[Clock] = replace(clock, since_ms=tick.now.world_ms)
    allowance = parts.get(Allowance)
    if isinstance(allowance, Allowance):
        # Its times are of another world's clock.
        parts[Allowance] = began_anew(allowance, tick.now.world_ms)
    world.admit(ordinal, parts.values())
    if isinstance(position, Position):
        world.set_marker(ordinal, position.marker)
    elif not status.status.is_ended:
        world.set_marker(ordinal, Marker.ready_to_infer)


def _belongs(world: World, parent: int, tree: Tree, status: Status) -> bool:
    """Whether a run that comes in hangs below the run that it names. One that outlived its parent
    where it comes from stands alone here, as deep as it was; so does one whose depth contradicts
    the link, as in documents that name each other."""
    outlived = not status.status.is_ended and world.get(parent, Status).status.is_ended
    return not outlived and tree.depth == world.get(parent, Tree).depth + 1


def take_release(run: Run, tick: Tick, item: Release) -> None:
    """Retention: an ended run leaves the world."""
    if not run.status.is_ended:
        message = f"{run.run_id} has not ended ({run.status.wire()}); cancel it first"
        tick.acks.append(Ack(item.ticket, run.n, run.run_id, "run_conflict", message))
        return
    if any(effect.live for effect in run.get(Effects).items):
        message = f"{run.run_id} has work outside that has not come back yet; try again later"
        tick.acks.append(Ack(item.ticket, run.n, run.run_id, "run_conflict", message))
        return
    box = run.find(Outbox)
    if box is not None and box.is_owed:
        message = (
            f"{run.run_id} has not told its callback address of its ending yet; try again later"
        )
        tick.acks.append(Ack(item.ticket, run.n, run.run_id, "run_conflict", message))
        return
    parent = run.world.trees.parent(run.n)
    if parent and parent in run.world and not run.world.get(parent, Status).status.is_ended:
        message = f"{run.run_id} worked for {run.world.run_id(parent)}, which has not ended"
        tick.acks.append(Ack(item.ticket, run.n, run.run_id, "run_conflict", message))
        return
    if run.world.trees.has_work_below(run.n):
        message = f"runs below {run.run_id} have not ended; try again later"
        tick.acks.append(Ack(item.ticket, run.n, run.run_id, "run_conflict", message))
        return
    tick.acks.append(Ack(item.ticket, run.n, run.run_id))
    run.world.gone(run.n)
