"""What a run asks people: the model's own questions, calls that need a word, points of a stage.

No slot is held meanwhile. A run whose questions nobody answers is told so at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from leviath.components.blueprint import Permission
from leviath.components.identity import Launch
from leviath.components.people import Grant, Prompts
from leviath.components.progress import Stage, Visits
from leviath.components.status import Status, Waiting
from leviath.components.text import Text, inline
from leviath.systems import prompts
from leviath.systems.moves import park
from leviath.systems.regions import newest
from leviath.systems.views import QUESTION_TOOLS

if TYPE_CHECKING:
    from leviath.components.blueprint import PointSpec
    from leviath.components.effects import Call
    from leviath.systems.run import Run, Tick

KINDS: Final = {
    "ask_user_text": "text",
    "ask_user_choice": "choice",
    "ask_user_confirm": "confirm",
    "present_for_review": "review",
    "edit_document": "edit",
}
"""The tools with which a model asks a person, and the kind of question each one makes."""
OPTION: Final = "option:"
"""Head of the field names that carry the options of a choice; the index follows."""
SHELL: Final = "shell"
"""A grant for this tool covers the same command again, and no other."""
assert frozenset(KINDS) == QUESTION_TOOLS
NO_ANSWER: Final = "[no answer] nobody answers questions of this run; decide yourself, and say so"
_WAITS: Final = ("asked", "unknown", "posed")


# --- the model asks -----------------------------------------------------------------------------


def pose(run: Run, tick: Tick, call: Call) -> Call:
    """Put a call's question to a person; the call waits. Without anybody, it is done."""
    fields = dict(call.fields)
    kind = KINDS[call.tool]
    if run.get(Launch).answers_nobody:
        return replace(call, state="done", result=inline(NO_ANSWER), is_error=False, fields=())
    choices = tuple(text for name, text in call.fields if name.startswith(OPTION))
    text = fields.get("question") or fields.get("instructions") or inline("")
    prompts.ask(
        run,
        tick,
        kind,
        text,
        choices=choices,
        body=fields.get("content"),
        call_id=call.call_id,
        tool=call.tool,
    )
    return replace(call, state="posed", fields=())


# --- calls that need a word ---------------------------------------------------------------------


def ask_about(run: Run, tick: Tick, call: Call, kind: str) -> None:
    """Ask a person whether a call may be made, or whether one happened."""
    prompts.ask(run, tick, kind, call.arguments, call_id=call.call_id, tool=call.tool)


def word_on(run: Run, call: Call, permission: Permission | None) -> str:
    """What becomes of a call before anybody is asked: allow, ask, or deny."""
    launch = run.get(Launch)
    profile = launch.profile
    if permission is Permission.deny or (profile is not None and call.tool in profile.deny):
        return "deny"
    if permission is not Permission.ask or launch.is_unattended or call.tool in launch.allow:
        return "allow"
    if profile is not None and call.tool in profile.allow:
        return "allow"
    if _is_granted(run, call):
        return "allow"
    return "ask" if profile is None else profile.otherwise


def grant_of(run: Run, call: Call, scope: str) -> Grant:
    """What a yes to ``call`` with that scope covers from now on."""
    arguments = call.arguments if call.tool == SHELL else None
    attempt = run.get(Status).attempt
    if scope == "run":
        return Grant(call.tool, arguments, attempt=attempt)
    index = run.get(Stage).index
    return Grant(call.tool, arguments, index, run.get(Visits).counts[index], attempt)


def _is_granted(run: Run, call: Call) -> bool:
    known = run.find(Prompts)
    if known is None or not known.grants:
        return False
    wanted = (grant_of(run, call, "run"), grant_of(run, call, "stage"))
    return any(grant in wanted for grant in known.grants)


def wait(run: Run, tick: Tick, states: set[str]) -> bool:
    """Rest while a call of the turn waits for a person; False when none does."""
    if states.isdisjoint(_WAITS):
        return False
    decision = "asked" in states or "unknown" in states
    reason = "tool_approval" if decision else "user_prompt"
    waiting = run.get(Status).waiting
    if waiting is None or waiting.reason != reason:
        why = "a tool call needs a decision" if decision else "the model asks a person"
        park(run, tick, Waiting(reason), why=why)
    return True


# --- a stage asks -------------------------------------------------------------------------------


def pass_points(run: Run, tick: Tick) -> str:
    """Ask what the stage asks before it ends. ``passed`` when nothing is left to ask, ``asked``
    when a person has to answer first; else why the stage fails."""
    points = run.stage_spec.points
    if run.get(Launch).answers_nobody:
        for point in points[run.get(Stage).points_done :]:
            if point.unattended == "ask":
                return f"point {point.name or point.prompt!r} needs a person, and nobody answers"
        return "passed"
    done = run.get(Stage).points_done
    if done >= len(points):
        return "passed"
    _ask_point(run, tick, points[done])
    return "asked"


def _ask_point(run: Run, tick: Tick, point: PointSpec) -> None:
    prompts.ask(
        run,
        tick,
        prompts.POINT,
        inline(point.prompt),
        choices=tuple(map(inline, point.choices)),
        body=newest(run, point.document_region) if point.document_region else None,
        name=point.name,
        required=point.required,
    )
    why = f"point {point.name}" if point.name else "a point of the stage"
    park(run, tick, Waiting("interaction_point"), why=f"{why} asks a person")


def point_under(run: Run) -> PointSpec:
    """The point of the stage that is being asked."""
    return run.stage_spec.points[run.get(Stage).points_done]


def text_or(text: Text, words: str) -> Text:
    """``text``, or these words when it is empty."""
    return inline(words) if text.is_empty else text
