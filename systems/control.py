"""What people and hosts ask of a run: pause, resume, cancel, a message, a decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from leviath.components.commands import Stop
from leviath.components.effects import Effects, Held, Inbox, Message, Timers, Turn
from leviath.components.events import Ended, StatusChanged
from leviath.components.family import FanOut, Joins, Split, Worker
from leviath.components.marker import Marker
from leviath.components.output import Flags
from leviath.components.people import Prompts
from leviath.components.progress import Clock, Cost, Ledgers, Outcome, Resolution, Stage
from leviath.components.run_status import RunStatus
from leviath.components.status import Position, Status
from leviath.components.text import EMPTY, inline
from leviath.systems import budgets, prompts, slots, stages, tools
from leviath.systems.answers import use_held
from leviath.systems.deliveries import announce
from leviath.systems.endings import summarise
from leviath.systems.inference import resume_held
from leviath.systems.moves import end, give_up_work, move, set_totals, touch
from leviath.systems.opening import wake_set_up
from leviath.systems.reserves import release_strays
from leviath.systems.run import Ack, ResumedFact, Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leviath.components.effects import Call
    from leviath.components.inputs import Cancel, Decide, Pause, Post, Resume
    from leviath.components.text import Text
    from leviath.systems.caches import Caches
    from leviath.systems.run import Tick

VERDICTS = {"again": "unknown", "done": "unknown", "stop": "", "allow": "asked", "deny": "asked"}
"""Verdicts, and the call state that each one settles ("" for any)."""


RESTING_TURN = (
    Marker.awaiting_tools,
    Marker.awaiting_person,
    Marker.waiting_for_children,
    Marker.fan_out_waiting,
)
"""Markers of a turn whose calls are not all done."""


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
    if status.held_by:
        # Held along with its parent until now: from here on by a word of its own.
        run.put(replace(status, held_by=0, actor=ask.actor, why=ask.why))
        touch(run, tick, urgent=True)
    elif status.status is not RunStatus.PAUSED:
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


def take_resume(run: Run, tick: Tick, caches: Caches, ask: Resume) -> None:
    """Let a paused run go on, drive a run again that waits for set-up, or start an ended one afresh
    from where it stood."""
    status = run.get(Status)
    holder = _holder(run)
    if holder:
        message = f"{run.run_id} is held because its parent {holder} is paused; resume that run"
        _refuse(tick, ask.ticket, run, message)
        return
    is_waiting = status.status is RunStatus.WAITING_INPUT and _waits_for_nobody(run)
    is_early = status.status in (RunStatus.ERROR, RunStatus.CANCELLED)
    if is_early:
        if not stages.has_started(run):
            message = f"{run.run_id} ended before its first stage; spawn it again"
            _refuse(tick, ask.ticket, run, message)
            return
        if run.world.trees.is_unwanted(run.n):
            message = (
                f"nobody waits for {run.run_id} any more: its parent, or the fan-out it worked "
            )
            _refuse(tick, ask.ticket, run, message + "for, is over; resume the parent, or spawn it")
            return
    elif not is_waiting and status.status is not RunStatus.PAUSED:
        _refuse(
            tick,
            ask.ticket,
            run,
            f"{run.run_id} is {status.status.wire()}; only a paused run, one "
            "that waits for set-up, or one that ended in error or cancelled can be resumed",
        )
        return
    spent = budgets.resume_with(run, tick, ask)
    if spent:
        _refuse(tick, ask.ticket, run, spent)
        return
    if is_early:
        _restart(run, tick, ask.actor)
    elif is_waiting:
        _drive_again(run, tick, caches, ask.actor)
    else:
        resume_paused(run, tick, ask.actor)
    tick.acks.append(Ack(ask.ticket, run.n, run.run_id))


def _holder(run: Run) -> str:
    """Id of the paused parent without which a paused run cannot go on; "" for none."""
    parent = run.world.trees.parent(run.n)
    if run.status is not RunStatus.PAUSED or not parent or parent not in run.world:
        return ""
    above = Run(run.world, parent)
    return above.run_id if above.status is RunStatus.PAUSED else ""


def _waits_for_nobody(run: Run) -> bool:
    """Waiting for set-up, or, brought in from a document, for a question that did not come
    along."""
    waiting = run.get(Status).waiting
    if waiting is not None and waiting.reason == "needs_setup":
        return True
    if run.world.trees.live.get(run.n):
        return False
    asked = run.find(Prompts)
    is_asking = asked is not None and bool(asked.items)
    return run.find(Turn) is None and run.find(Held) is None and not is_asking


def resume_paused(run: Run, tick: Tick, actor: str) -> None:
    """Let a paused run go on from where it was held."""
    status = run.get(Status)
    back = status.paused_from or RunStatus.RUNNING
    marker = run.marker or Marker.ready_to_infer
    move(run, tick, back, marker, actor=actor, waiting=status.waiting)
    live = any(effect.live for effect in run.get(Effects).items)
    held = run.find(Held)
    stage = run.find(Stage)
    if stage is not None and stage.outcome is not None and stage.outcome.kind == "errored":
        # Something failed meanwhile, and waited for this.
        fail_stage(run, tick, stage.outcome.message, stage.outcome.cause)
    elif held is not None:
        resume_held(run, tick, held)
    elif back is RunStatus.STARTING and not live:
        stages.enter_first(run, tick)
    elif run.find(Turn) is not None and marker in RESTING_TURN:
        tools.go_on(run, tick)
    elif not use_held(run, tick):
        wake_set_up(run, tick)


def _drive_again(run: Run, tick: Tick, caches: Caches, actor: str) -> None:
    """A person says that what was missing is there: from the first model, past an open breaker."""
    if run.find(Turn) is not None:
        tools.go_on(run, tick)
        return
    stages.refresh_candidates(run)
    # What was left of the call's time has passed while nobody could have answered it.
    slots.drop_pending(run)
    for provider, _ in run.get(Resolution).candidates:
        slots.let_probe(run.world, tick, caches, provider)
    move(run, tick, RunStatus.RUNNING, Marker.ready_to_infer, actor=actor)


def _restart(run: Run, tick: Tick, actor: str) -> None:
    """A new attempt: the error is cleared, the stage goes on with a fresh turn budget."""
    stage = run.get(Stage)
    _count_as_working(run)
    run.put(replace(run.get(Clock), ended_ms=None))
    tick.facts.append(ResumedFact(run.n))
    flags = run.get(Flags)
    if flags.workspace_lost:
        run.put(replace(flags, workspace_lost=False))
    row = run.get(Ledgers).stages[stage.index]
    set_totals(run, stage.index, replace(row, ended_ms=None))
    move(run, tick, RunStatus.RUNNING, Marker.ready_to_infer, actor=actor, why="resumed")
    fresh = replace(stage, iteration=0, outcome=None, asking=(), entered_ms=tick.now.world_ms)
    # A fan-out that failed, or was cut off, is owed again.
    run.put(replace(fresh, split=False, split_reentries=0))
    stages.refresh_candidates(run)
    stages.arm(run, tick.now.world_ms)
    stages.begin_turn(run, tick)


def _count_as_working(run: Run) -> None:
    """A worker that ended is at work again: its fan-out waits for it, as it did before. One that
    has ended in this very step was not counted yet. It had not succeeded, or it could not go on."""
    trees = run.world.trees
    parent = trees.parent(run.n)
    fan_out = run.world.find(parent, FanOut) if parent else None
    if fan_out is not None and run.find(Worker) is not None and run.n not in trees.news:
        run.world.put(parent, replace(fan_out, ended=fan_out.ended - 1))


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
    if len(inbox.messages) >= run.world.policy.inbox_messages_max:
        message = (
            f"{len(inbox.messages)} messages wait for {run.run_id}; send more when it took them"
        )
        _refuse(tick, post.ticket, run, message)
        return
    run.put(Inbox((*inbox.messages, Message(post.text, post.sender, post.region))))
    touch(run, tick)
    tick.acks.append(Ack(post.ticket, run.n, run.run_id))


def _waiting(run: Run) -> str:
    """Which calls of the run wait for a decision."""
    turn = run.find(Turn)
    calls = () if turn is None or run.status.is_ended else turn.calls
    ids = [call.call_id for call in calls if call.state in ("asked", "unknown")]
    return f"these wait: {', '.join(ids)}" if ids else "none waits"


def take_decide(run: Run, tick: Tick, ask: Decide) -> None:
    """A person's word on one parked call."""
    turn = run.find(Turn)
    call = None
    if turn is not None and not run.status.is_ended:
        call = next((call for call in turn.calls if call.call_id == ask.call_id), None)
    wanted = VERDICTS.get(ask.verdict)
    if call is None or call.state not in ("asked", "unknown") or wanted is None:
        what = f"{run.run_id} has no call {ask.call_id!r} that waits for a decision"
        _refuse(tick, ask.ticket, run, f"{what}; {_waiting(run)}")
        return
    if wanted not in ("", call.state):
        fit = "again, done or stop" if call.state == "unknown" else "allow, deny or stop"
        _refuse(tick, ask.ticket, run, f"call {ask.call_id!r} takes {fit}, not {ask.verdict}")
        return
    apply_verdict(run, tick, ask, call.call_id)
    tick.acks.append(Ack(ask.ticket, run.n, run.run_id))


def apply_verdict(
    run: Run,
    tick: Tick,
    ask: Decide,
    call_id: str,
    *,
    words: Text = EMPTY,
    granted: Sequence[Call] = (),
) -> None:
    """Carry out a person's word on a call. ``words`` say why; ``granted`` are other calls of the
    turn that it covers."""
    turn = run.get(Turn)
    call = next(call for call in turn.calls if call.call_id == call_id)
    for one in (call, *granted):
        prompt = prompts.of_call(run, one.call_id)
        if prompt is not None:
            prompts.answered(run, tick, prompt, ask.verdict, ask.actor)
    for one in granted:
        tools.put_call(run, replace(one, state="open"))
    if ask.verdict == "stop":
        end(run, tick, RunStatus.CANCELLED, actor=ask.actor, why=f"stopped at call {call_id}")
        return
    effects = run.get(Effects)
    effect = next((e for e in effects.items if e.number == call.effect and call.effect), None)
    if ask.verdict in ("again", "allow"):
        # Sent when the turn goes on, which for a paused run is its resume.
        tools.put_call(run, replace(call, state="open"))
    elif ask.verdict == "done":
        if effect is not None:
            run.put(replace(effects, items=tuple(e for e in effects.items if e is not effect)))
        text = f"{ask.actor} says that this call of {call.tool} was done; its result is lost"
        tools.settle(
            run,
            tick,
            call,
            _with_words(f"[may have happened] {text}", words),
            is_error=False,
            note="taken as done",
        )
    else:
        text = f"[error] {ask.actor} denied this call of {call.tool}"
        said = _with_words(text, words)
        tools.settle(run, tick, call, said, is_error=True, note="denied")
    touch(run, tick, urgent=True)
    if run.status is not RunStatus.PAUSED:
        tools.go_on(run, tick)


def _with_words(text: str, words: Text) -> Text:
    return inline(f"{text}: {words.body}" if words.body else text)


def fail_stage(run: Run, tick: Tick, message: str, cause: str = "") -> None:
    """End the stage in error from outside the normal flow, whatever the run was doing.

    What fails while an error is being resolved ends the run: no edge can help it.
    """
    stage = run.find(Stage)
    paused = run.status is RunStatus.PAUSED
    resolving = run.marker is Marker.resolve_transition
    if not stages.has_started(run) and paused:
        outcome = Outcome("errored", message, cause)
        run.put(Stage(stages.entry_of(run), "", outcome=outcome))
    elif stage is None or not stage.name:
        end(
            run,
            tick,
            RunStatus.ERROR,
            error=message,
            why="failed before its first stage",
            cause=cause,
        )
    elif resolving and stage.outcome is not None and stage.outcome.kind == "errored":
        end(run, tick, RunStatus.ERROR, error=message, why="stage failed", cause=cause)
    else:
        give_up_work(run, tick)
        stages.fail(run, tick, message, cause)


def drop_effect(run: Run, number: int) -> None:
    """Forget an effect whose outcome could not be taken."""
    effects = run.find(Effects)
    if effects is not None and any(effect.number == number for effect in effects.items):
        items = tuple(effect for effect in effects.items if effect.number != number)
        run.put(replace(effects, items=items))
        release_strays(run)


def put_down(run: Run, tick: Tick, message: str) -> None:
    """End a run that no edge can help: it loops within a step, or its components contradict each
    other.

    Writes only what any run has, so that it cannot fail itself. A call in flight is forgotten.
    """
    old = run.get(Status)
    for kind in (Position, Turn, Held, Timers, Joins, Split, FanOut):
        run.remove(kind)
    prompts.close_all(run, tick)
    run.put(Effects())
    release_strays(run)
    error = Status(RunStatus.ERROR, error=message, why="put down", attempt=old.attempt)
    run.put(error)
    clock = run.find(Clock) or Clock()
    run.put(replace(clock, since_ms=None, ended_ms=tick.now.wall_ms))
    touch(run, tick, urgent=True)
    tick.commands.append(Stop(run.n))
    word = RunStatus.ERROR.wire()
    tick.events.append(
        StatusChanged(
            tick.next_event, run.run_id, tick.now.wall_ms, word, old.status.wire(), "", why=message
        )
    )
    cost = run.find(Cost) or Cost()
    priced = None if cost.unpriced else cost.priced_nano
    tick.events.append(
        Ended(
            tick.next_event,
            run.run_id,
            tick.now.wall_ms,
            word,
            message,
            priced,
            cost.priced_nano,
            0,
        )
    )
    summarise(run, tick)
    announce(run, tick)
