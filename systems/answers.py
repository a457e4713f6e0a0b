"""A person's answer: checked when it arrives, refused at once when nothing waits for it, and used
in the step that takes it, or, for a paused run, in the one that resumes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from leviath.components.effects import Turn
from leviath.components.inputs import Decide
from leviath.components.marker import Marker
from leviath.components.people import Prompts, Reply
from leviath.components.progress import Stage
from leviath.components.run_status import RunStatus
from leviath.components.text import Text, inline
from leviath.systems import people, prompts, regions
from leviath.systems.moves import end, touch, unpark
from leviath.systems.run import Ack
from leviath.systems.stages import begin_turn
from leviath.systems.words import quoted

if TYPE_CHECKING:
    from leviath.components.effects import Call
    from leviath.components.inputs import Answered
    from leviath.components.people import Prompt
    from leviath.systems.run import Run, Tick

SCOPES: Final = ("once", "stage", "run")
_CALLS: Final = {
    (prompts.APPROVAL, "yes"): "allow",
    (prompts.APPROVAL, "no"): "deny",
    (prompts.UNKNOWN, "yes"): "again",
    (prompts.UNKNOWN, "no"): "done",
}
"""What a yes or a no says of a call: of one that may have happened, yes makes it again and no takes
it as done."""


def take_answer(run: Run, tick: Tick, ask: Answered) -> None:
    """One answer. It settles its question, or nothing at all."""
    prompt = None if run.status.is_ended else prompts.find(run, ask.question)
    if prompt is None:
        fault = f"{quoted(ask.question)} is no open question of {run.run_id}; {_open(run)}"
    else:
        fault = _fault(run, prompt, ask)
    if prompt is None or fault:
        tick.acks.append(Ack(ask.ticket, run.n, run.run_id, "run_conflict", fault))
        return
    if prompt.call_id:
        _answer_call(run, tick, prompt, ask)
    else:
        prompts.answered(run, tick, prompt, _how(ask), ask.actor)
        reply = Reply(prompt.id, ask.verdict, ask.choice, ask.text, ask.actor)
        if run.status is RunStatus.PAUSED:
            known = run.get(Prompts)
            run.put(replace(known, held=(*known.held, reply)))
        else:
            _pass_point(run, tick, reply)
    touch(run, tick, urgent=True)
    tick.acks.append(Ack(ask.ticket, run.n, run.run_id))


def _open(run: Run) -> str:
    known = run.find(Prompts)
    ids = [] if known is None or run.status.is_ended else [item.id for item in known.items]
    return f"these are open: {', '.join(ids)}" if ids else "none is open"


def _how(ask: Answered) -> str:
    return ask.verdict or ("choice" if ask.choice >= 0 else "text")


# --- does it fit --------------------------------------------------------------------------------


def _fault(run: Run, prompt: Prompt, ask: Answered) -> str:
    """What is wrong with an answer; "" for nothing."""
    wants = _wants(run, prompt)
    given = [name for name, there in _given(ask) if there]
    which = f"question {prompt.id} ({prompt.kind})"
    extra = [name for name in given if name not in wants]
    if extra or not given:
        takes = " or ".join(wants)
        got = " and ".join(extra) if extra else "nothing"
        return f"{which} takes {takes}, not {got}"
    if ask.scope not in SCOPES:
        return f"scope {quoted(ask.scope)} is none of {', '.join(SCOPES)}"
    if ask.scope != "once" and (prompt.kind != prompts.APPROVAL or ask.verdict != "yes"):
        return f"{which}: only a yes to an approval has a scope beyond once"
    if ask.verdict and ask.choice >= 0:
        return f"{which} takes yes or no or a choice, not both"
    if ask.choice >= len(prompt.choices):
        return f"{which} has choices 0 to {len(prompt.choices) - 1}, not {ask.choice}"
    return _missing(run, prompt, ask, which)


def _missing(run: Run, prompt: Prompt, ask: Answered, which: str) -> str:
    said = bool(ask.verdict) or ask.choice >= 0
    texts_do = prompt.kind in ("text", "edit") or (
        prompt.kind == prompts.POINT and people.point_under(run).style == "free_text"
    )
    if not said and not texts_do:
        return f"{which} takes {_wants(run, prompt)[0]}; a text alone does not settle it"
    if prompt.kind == prompts.POINT and ask.choice >= 0:
        chosen = prompt.choices[ask.choice].body
        if chosen in people.point_under(run).edit_options and ask.text.is_empty:
            return f"{which}: {quoted(chosen)} needs the new document as text"
    return _unfit_words(prompt, ask, which)


def _unfit_words(prompt: Prompt, ask: Answered, which: str) -> str:
    """What is wrong with the words beside a yes or a no."""
    if not ask.verdict or ask.text.is_empty or not prompt.call_id:
        return ""
    if ask.verdict == "yes" and prompt.kind in (prompts.APPROVAL, prompts.UNKNOWN):
        return f"{which}: a yes takes no text, since nobody would read it; send the run a message"
    if ask.text.digest and not (prompt.kind == "edit" and ask.verdict == "yes"):
        size = f"{ask.text.size_bytes:,} bytes"
        return f"{which}: the words beside a {ask.verdict} are too long ({size}); shorten them"
    return ""


def _given(ask: Answered) -> tuple[tuple[str, bool], ...]:
    return (
        ("yes or no", bool(ask.verdict)),
        ("a choice", ask.choice >= 0),
        ("text", not ask.text.is_empty),
    )


def _wants(run: Run, prompt: Prompt) -> tuple[str, ...]:
    """What an answer to that question may hold, what it needs first."""
    match prompt.kind:
        case "text":
            return ("text",)
        case "choice":
            return ("a choice",)
        case "confirm":
            return ("yes or no",)
        case "edit":
            return ("text", "yes or no")
        case prompts.POINT:
            if people.point_under(run).style == "multiple_choice":
                return ("a choice", "text")
            if prompt.choices:
                return ("yes or no", "text", "a choice")
            return ("yes or no", "text")
        case _:
            return ("yes or no", "text")


# --- calls --------------------------------------------------------------------------------------


def _answer_call(run: Run, tick: Tick, prompt: Prompt, ask: Answered) -> None:
    # Here, because both modules lead to how a turn goes on.
    from leviath.systems.control import apply_verdict

    verdict = _CALLS.get((prompt.kind, ask.verdict))
    if verdict is not None:
        decide = Decide(run.n, prompt.call_id, verdict, 0, ask.actor)
        granted = _grant(run, tick, prompt, ask)
        apply_verdict(run, tick, decide, prompt.call_id, words=ask.text, granted=granted)
        return
    from leviath.systems import tools

    prompts.answered(run, tick, prompt, _how(ask), ask.actor)
    call = next(call for call in run.get(Turn).calls if call.call_id == prompt.call_id)
    result = _result(prompt, ask)
    tools.settle(run, tick, call, result, is_error=False, note=f"answered by {ask.actor}")
    if run.status is not RunStatus.PAUSED:
        tools.go_on(run, tick)


def _result(prompt: Prompt, ask: Answered) -> Text:
    """The answer as the model reads it."""
    match prompt.kind:
        case "choice":
            return prompt.choices[ask.choice]
        case "confirm":
            return inline(ask.verdict)
        case "review":
            return _said("approved" if ask.verdict == "yes" else "not approved", ask.text)
        case "edit" if ask.verdict == "no":
            return _said("not accepted", ask.text)
        case "edit":
            return people.text_or(ask.text, "unchanged")
        case _:
            return ask.text


def _said(verdict: str, words: Text) -> Text:
    """A verdict with the words beside it, which never stand alone: they could be taken for it."""
    assert not words.digest, "words beside a verdict travel with their record"
    return inline(verdict if words.is_empty else f"{verdict}: {words.body}")


def _grant(run: Run, tick: Tick, prompt: Prompt, ask: Answered) -> list[Call]:
    """Keep what a yes covers from now on; returns other calls of the turn that it covers."""
    if ask.scope == "once":
        return []
    calls = run.get(Turn).calls
    call = next(call for call in calls if call.call_id == prompt.call_id)
    grant = people.grant_of(run, call, ask.scope)
    known = run.get(Prompts)
    if grant not in known.grants:
        run.put(replace(known, grants=(*known.grants, grant)))
    return [
        other
        for other in calls
        if other.state == "asked"
        and other is not call
        and people.grant_of(run, other, ask.scope) == grant
    ]


# --- points -------------------------------------------------------------------------------------


def use_held(run: Run, tick: Tick) -> bool:
    """Use what was answered while the run was paused; False when nothing was."""
    known = run.find(Prompts)
    if known is None or not known.held:
        return False
    reply = known.held[0]
    run.put(replace(known, held=known.held[1:]))
    _pass_point(run, tick, reply)
    return True


def _pass_point(run: Run, tick: Tick, reply: Reply) -> None:
    """Go on from a point: past it, back to work, asked again with the new document, or over."""
    point = people.point_under(run)
    chosen = point.choices[reply.choice] if reply.choice >= 0 else ""
    unpark(run, tick, Marker.resolve_transition, actor=reply.actor, why="answered")
    if chosen and chosen in point.abort_options:
        why = f"{point.name or 'a point'}: {chosen}"
        end(run, tick, RunStatus.CANCELLED, actor=reply.actor, why=why)
        return
    if chosen and chosen in point.edit_options:
        if point.document_region:
            entry = regions.entry_of(reply.text)
            regions.replace_all(run, point.document_region, (entry,))
        else:
            _say(run, reply.text)
        return
    back = reply.verdict == "no" or (chosen and chosen in point.directives)
    if point.style == "free_text" and not chosen and reply.verdict != "yes":
        back = True
    if chosen:
        _say(run, inline(chosen))
    _say(run, reply.text)
    if back:
        if not chosen and reply.text.is_empty:
            _say(run, inline("[no] a person did not approve; do it again, and better"))
        run.put(replace(run.get(Stage), outcome=None))
        begin_turn(run, tick)
        return
    stage = run.get(Stage)
    run.put(replace(stage, points_done=stage.points_done + 1))


def _say(run: Run, text: Text) -> None:
    if not text.is_empty:
        regions.append(run, regions.CONVERSATION, (regions.entry_of(text, "user"),))
