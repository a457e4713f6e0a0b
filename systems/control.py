"""What people and hosts ask of a run: pause, resume, cancel, a message, a decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from leviath.components.effects import Effects, Held, Inbox, Message, Turn
from leviath.components.marker import Marker
from leviath.components.progress import Clock, Outcome, Stage
from leviath.components.run_status import RunStatus
from leviath.components.status import Status
from leviath.components.text import inline
from leviath.systems import stages, tools
from leviath.systems.inference import resume_held
from leviath.systems.moves import end, move, touch
from leviath.systems.run import Ack, Run

if TYPE_CHECKING:
    from leviath.components.inputs import Cancel, Decide, Pause, Post, Resume
    from leviath.systems.run import Tick

VERDICTS = {"again": "unknown", "done": "unknown", "stop": "", "allow": "asked", "deny": "asked"}
"""Verdicts, and the call state that each one settles ("" for any)."""


def _refuse(tick: Tick, ticket: int, run: Run, message: str) -> None:
    tick.acks.append(Ack(ticket, run.n, run.run_id, "run_conflict", message))


def take_pause(run: Run, tick: Tick, ask: Pause) -> None:
    """Hold a run. What is in flight lands and is kept. Pausing twice keeps the first cause."""
    status = run.get(Status)
    if status.status.is_ended:
        _refuse(
            tick,
            ask.ticket,
            run,
            f"{run.run_id} has ended ({status.status.wire()}); nothing to pause",
        )
        return
    if status.status is not RunStatus.PAUSED:
        move(
            run,
            tick,
            RunStatus.PAUSED,
            run.marker,
            actor=ask.actor,
            why=ask.why,
            waiting=status.waiting,
        )
    tick.acks.append(Ack(ask.ticket, run.n, run.run_id))


def take_resume(run: Run, tick: Tick, ask: Resume) -> None:
    """Let a paused run go on, drive a run again that waits for set-up, or start an ended one afresh
    from where it stood."""
    status = run.get(Status)
    waiting = status.waiting
    if status.status is RunStatus.PAUSED:
        _resume_paused(run, tick, ask.actor)
    elif status.status is RunStatus.WAITING_INPUT and waiting and waiting.reason == "needs_setup":
        move(run, tick, RunStatus.RUNNING, Marker.ready_to_infer, actor=ask.actor)
    elif status.status in (RunStatus.ERROR, RunStatus.CANCELLED):
        _restart(run, tick, ask.actor)
    else:
        _refuse(
            tick,
            ask.ticket,
            run,
            f"{run.run_id} is {status.status.wire()}; only a paused run, one "
            "that waits for set-up, or one that ended in error or cancelled can be resumed",
        )
        return
    tick.acks.append(Ack(ask.ticket, run.n, run.run_id))


def _resume_paused(run: Run, tick: Tick, actor: str) -> None:
    status = run.get(Status)
    back = status.paused_from or RunStatus.RUNNING
    marker = run.marker or Marker.ready_to_infer
    move(run, tick, back, marker, actor=actor, waiting=status.waiting)
    effects = run.get(Effects)
    live = any(effect.live for effect in effects.items)
    held = run.find(Held)
    if held is not None:
        resume_held(run, tick, held)
    elif back is RunStatus.STARTING and not live:
        stages.enter_first(run, tick)
    elif (
        back is RunStatus.RUNNING and run.find(Turn) is not None and marker is Marker.awaiting_tools
    ):
        tools.go_on(run, tick)
    elif back is RunStatus.WAITING_INPUT and run.find(Turn) is not None:
        tools.go_on(run, tick)


def _restart(run: Run, tick: Tick, actor: str) -> None:
    """A new attempt: the error is cleared, the stage goes on with a fresh turn budget."""
    stage = run.find(Stage)
    run.put(replace(run.get(Clock), ended_ms=None))
    move(run, tick, RunStatus.RUNNING, Marker.ready_to_infer, actor=actor, why="resumed")
    if stage is None or not stage.name:
        stages.enter_first(run, tick)
        return
    run.put(replace(stage, iteration=0, outcome=None, asking=(), entered_ms=tick.now.world_ms))
    stages.begin_turn(run, tick)


def take_cancel(run: Run, tick: Tick, ask: Cancel) -> None:
    """End a run from outside. Cancelling a cancelled run is done already; another ending stands."""
    status = run.status
    if status is RunStatus.CANCELLED:
        tick.acks.append(Ack(ask.ticket, run.n, run.run_id))
        return
    if status.is_ended:
        _refuse(tick, ask.ticket, run, f"{run.run_id} has ended ({status.wire()}) already")
        return
    end(run, tick, RunStatus.CANCELLED, actor=ask.actor, why=ask.why)
    tick.acks.append(Ack(ask.ticket, run.n, run.run_id))


def take_post(run: Run, tick: Tick, post: Post) -> None:
    """Keep a message until the run's next request."""
    if run.status.is_ended:
        _refuse(tick, post.ticket, run, f"{run.run_id} has ended; it takes no messages")
        return
    stage = run.find(Stage)
    if stage is not None and stage.name and not run.stage_spec.accepts_messages:
        _refuse(tick, post.ticket, run, f"stage {stage.name!r} of {run.run_id} takes no messages")
        return
    inbox = run.get(Inbox)
    run.put(Inbox((*inbox.messages, Message(post.text, post.sender, post.region))))
    touch(run, tick)
    tick.acks.append(Ack(post.ticket, run.n, run.run_id))


def take_decide(run: Run, tick: Tick, ask: Decide) -> None:
    """A person's word on one parked call."""
    turn = run.find(Turn)
    call = None
    if turn is not None and not run.status.is_ended:
        call = next((call for call in turn.calls if call.call_id == ask.call_id), None)
    wanted = VERDICTS.get(ask.verdict)
    if call is None or call.state not in ("asked", "unknown") or wanted is None:
        _refuse(
            tick,
            ask.ticket,
            run,
            f"{run.run_id} has no call {ask.call_id!r} that waits for a decision",
        )
        return
    if wanted not in ("", call.state):
        fit = "again, done or stop" if call.state == "unknown" else "allow, deny or stop"
        _refuse(tick, ask.ticket, run, f"call {ask.call_id!r} takes {fit}, not {ask.verdict}")
        return
    _apply_verdict(run, tick, ask, call.call_id)
    tick.acks.append(Ack(ask.ticket, run.n, run.run_id))


def _apply_verdict(run: Run, tick: Tick, ask: Decide, call_id: str) -> None:
    turn = run.get(Turn)
    call = next(call for call in turn.calls if call.call_id == call_id)
    if ask.verdict == "stop":
        end(run, tick, RunStatus.CANCELLED, actor=ask.actor, why=f"stopped at call {call_id}")
        return
    effects = run.get(Effects)
    effect = next((e for e in effects.items if e.number == call.effect and call.effect), None)
    if ask.verdict == "again" and effect is not None:
        tools.send_again(run, tick, call, effect)
        tools.put_call(run, replace(call, state="open"))
    elif ask.verdict == "allow":
        tools.put_call(run, replace(call, state="open"))
    elif ask.verdict == "done":
        if effect is not None:
            run.put(replace(effects, items=tuple(e for e in effects.items if e is not effect)))
        text = f"[may have happened] {ask.actor} says that this call of {call.tool} was done; its result is lost."
        tools.settle(run, tick, call, inline(text), is_error=False, note="taken as done")
    else:
        text = f"[error] {ask.actor} denied this call of {call.tool}"
        tools.settle(run, tick, call, inline(text), is_error=True, note="denied")
    touch(run, tick, urgent=True)
    if run.status is not RunStatus.PAUSED:
        tools.go_on(run, tick)


def fail_stage(run: Run, tick: Tick, message: str) -> None:
    """End the stage in error from outside the normal flow, whatever the run was doing."""
    run.remove(Turn)
    stage = run.find(Stage)
    if stage is None or not stage.name:
        end(run, tick, RunStatus.ERROR, error=message, why="failed before its first stage")
        return
    run.put(replace(stage, asking=(), outcome=Outcome("errored", message)))
    stages.fail(run, tick, message)


def drop_effect(run: Run, number: int) -> None:
    """Forget an effect whose outcome could not be taken."""
    effects = run.find(Effects)
    if effects is not None and any(effect.number == number for effect in effects.items):
        items = tuple(effect for effect in effects.items if effect.number != number)
        run.put(replace(effects, items=items))
