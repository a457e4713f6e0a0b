"""The only way a status or a marker changes: through the table, with what always follows a
change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from leviath.components.commands import Abort, Stop
from leviath.components.context import Entry
from leviath.components.effects import Call, Effect, Effects, Held, Timers, Turn
from leviath.components.errors import WorldError
from leviath.components.events import Ended, StatusChanged
from leviath.components.family import FanOut, Joins, Split
from leviath.components.marker import MOVES, TRANSIENT, Marker, pair_is_legal
from leviath.components.progress import Clock, Cost, Ledgers, Stage, StageTotals, Visits
from leviath.components.run_status import RunStatus
from leviath.components.status import Position, Status, Waiting
from leviath.components.text import inline, tokens_of
from leviath.systems import prompts, regions
from leviath.systems.deliveries import announce
from leviath.systems.endings import summarise
from leviath.systems.reserves import release_strays

if TYPE_CHECKING:
    from leviath.systems.run import Run, Tick

_WORKING_WAITS = ("fan_out_workers", "children")
_PASSABLE = {
    status: frozenset(
        marker for marker in Marker if marker in TRANSIENT or pair_is_legal(status, marker)
    )
    for status in RunStatus
}
"""The markers that a run of each status may come to within a step."""
CALL_CUT_OFF = (
    "[may have happened] this call was cut off; whether it took effect is not known. "
    "Check before doing it again."
)
CALL_NEVER_MADE = "[error] this call was not made: the turn was cut off before it"


def clock_runs(status: RunStatus, waiting: Waiting | None) -> bool:
    """Whether working time passes: the run works, or others work for it (leviath-run-files 3)."""
    if status is RunStatus.WAITING_INPUT:
        return waiting is not None and waiting.reason in _WORKING_WAITS
    return status is RunStatus.STARTING or status is RunStatus.RUNNING


def set_marker(run: Run, tick: Tick, marker: Marker) -> None:
    """Move a run to another marker of the status it has."""
    status = run.status
    if marker not in _PASSABLE[status]:
        raise WorldError(f"{run.run_id}: {status.wire()} may not rest at {marker.value}")
    run.world.set_marker(run.n, marker)


def touch(run: Run, tick: Tick, *, urgent: bool = False) -> None:
    """The run's files are out of date."""
    if urgent:
        tick.mirror[run.n] = True
    else:
        tick.mirror.setdefault(run.n, False)


def progressed(run: Run, tick: Tick) -> None:
    """(stage, iteration, status) moved: stamp it, never backwards."""
    clock = run.get(Clock)
    wall = tick.now.wall_ms
    if clock.progress_ms is None or wall > clock.progress_ms:
        run.put(replace(clock, progress_ms=wall))
    touch(run, tick)


def move(
    run: Run,
    tick: Tick,
    status: RunStatus,
    marker: Marker | None,
    *,
    actor: str = "engine",
    why: str = "",
    waiting: Waiting | None = None,
    error: str | None = None,
    held_by: int = 0,
) -> None:
    """Change a run's status, and with it marker, clock, files and subscribers."""
    old = run.get(Status)
    if status is not old.status and status not in MOVES[old.status]:
        raise WorldError(f"{run.run_id}: {old.status.wire()} may not become {status.wire()}")
    paused_from = None
    if status is RunStatus.PAUSED:
        if marker in TRANSIENT:
            # The systems that take runs out of it would drive a run that is paused.
            raise WorldError(f"{run.run_id}: may not be paused on its way through {marker}")
        paused_from = old.paused_from or old.status
    new = Status(
        status=status,
        error=error if status is RunStatus.ERROR else None,
        actor=actor,
        why=why,
        waiting=waiting,
        paused_from=paused_from,
        attempt=old.attempt + (1 if old.status.is_ended and not status.is_ended else 0),
        held_by=held_by if status is RunStatus.PAUSED else 0,
    )
    run.put(new)
    _observe_clock(run, tick, new)
    held = run.find(Position)
    if marker is None or held is None or held.marker is not marker or status is not old.status:
        run.world.set_marker(run.n, marker)
    changed = status is not old.status
    if changed:
        progressed(run, tick)
    if changed or waiting != old.waiting:
        touch(run, tick, urgent=True)
        stage = run.find(Stage)
        tick.events.append(
            StatusChanged(
                tick.next_event,
                run.run_id,
                tick.now.wall_ms,
                status.wire(),
                old.status.wire(),
                "" if stage is None else stage.name,
                "" if waiting is None else waiting.reason,
                why,
                actor,
            )
        )


def _observe_clock(run: Run, tick: Tick, status: Status) -> None:
    clock = run.get(Clock)
    runs = clock_runs(status.status, status.waiting)
    if runs and clock.since_ms is None:
        run.put(replace(clock, since_ms=tick.now.world_ms))
    elif not runs and clock.since_ms is not None:
        span = max(0, tick.now.world_ms - clock.since_ms)
        run.put(replace(clock, since_ms=None, active_ms=clock.active_ms + span))


def end(
    run: Run,
    tick: Tick,
    status: RunStatus,
    *,
    error: str | None = None,
    actor: str = "engine",
    why: str = "",
    cause: str = "",
) -> None:
    """Bring a run to complete, error or cancelled, and stop everything that it has outside."""
    give_up_work(run, tick)
    run.remove(Timers)
    move(run, tick, status, None, actor=actor, why=why, error=error)
    run.put(replace(run.get(Clock), ended_ms=tick.now.wall_ms))
    _close_stage(run, tick)
    tick.commands.append(Stop(run.n))
    cost = run.get(Cost)
    tick.events.append(
        Ended(
            tick.next_event,
            run.run_id,
            tick.now.wall_ms,
            status.wire(),
            error,
            None if cost.unpriced else cost.priced_nano,
            cost.priced_nano,
            run.get(Visits).turns,
        )
    )
    summarise(run, tick, cause)
    announce(run, tick)


def give_up_work(run: Run, tick: Tick) -> None:
    """Abort what is in flight and close the turn under way: its stage or its run is over.

    Live effects stay until their outcome is charged; what only waited is gone. Calls that have no
    result are answered in the conversation, so that no later turn repeats them in good faith.
    """
    prompts.close_all(run, tick)
    effects = run.find(Effects)
    if effects is not None and effects.items:
        kept: list[Effect] = []
        for effect in effects.items:
            if not effect.live:
                continue
            if not effect.aborting:
                tick.commands.append(Abort(run.n, effect.number, effect.attempt))
            kept.append(replace(effect, aborting=True, superseded=True, due_ms=0))
        run.put(replace(effects, items=tuple(kept)))
    turn = run.find(Turn)
    if turn is not None:
        run.remove(Turn)
        if run.find(Stage) is not None and turn.counted:
            regions.answer_calls(run, tuple(_result_entry(call) for call in turn.calls))
    run.remove(Held)
    release_strays(run)
    for kind in (Joins, Split, FanOut):
        # Children that work for this run itself go on; workers of a fan-out are not needed now.
        run.remove(kind)


def _result_entry(call: Call) -> Entry:
    """What the conversation keeps of a call whose turn was cut off."""
    result = call.result
    if result is None:
        never = not call.effect
        result = inline(CALL_NEVER_MADE if never else CALL_CUT_OFF)
    is_error = call.is_error or call.result is None
    tokens = tokens_of(result.size_bytes)
    return Entry(result, tokens, "tool_result", (), call.call_id, call.tool, is_error)


def _close_stage(run: Run, tick: Tick) -> None:
    stage = run.find(Stage)
    ledgers = run.find(Ledgers)
    if stage is None or ledgers is None or stage.index >= len(ledgers.stages):
        return
    row = ledgers.stages[stage.index]
    if row.ended_ms is None and row.entered:
        set_totals(run, stage.index, replace(row, ended_ms=tick.now.wall_ms))


def set_totals(run: Run, index: int, row: StageTotals) -> None:
    """Replace one row of the stage totals."""
    stages = run.get(Ledgers).stages
    run.put(Ledgers((*stages[:index], row, *stages[index + 1 :])))


def park(run: Run, tick: Tick, waiting: Waiting, *, why: str = "") -> None:
    """Wait for a person. No slot is held meanwhile."""
    move(
        run,
        tick,
        RunStatus.WAITING_INPUT,
        Marker.awaiting_person,
        waiting=waiting,
        why=why or waiting.remedy,
    )


def still_waiting(run: Run, tick: Tick, outstanding: int) -> None:
    """Fewer children are outstanding: for the run's files, and nobody's news."""
    status = run.get(Status)
    waiting = status.waiting
    if waiting is not None and waiting.outstanding != outstanding:
        run.put(replace(status, waiting=replace(waiting, outstanding=outstanding)))
        touch(run, tick)


def unpark(run: Run, tick: Tick, marker: Marker, *, actor: str = "engine", why: str = "") -> None:
    """Back to work from waiting."""
    move(run, tick, RunStatus.RUNNING, marker, actor=actor, why=why)
