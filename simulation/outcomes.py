"""What may come of a command in a random history: the good outcome, and all kinds of bad ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leviath.components.commands import CallTool, Deliver, Gather, Infer
from leviath.components.error_kind import ErrorKind
from leviath.components.inputs import Delivered, Gathered, InferenceFinished, ToolFinished
from leviath.components.text import inline

if TYPE_CHECKING:
    from leviath.components.commands import Command
    from leviath.components.inputs import Input

TEXTS: Final = ("", "done", "DONE", "first", "go to LAST-ONE", "\u0130\u1e9e\U0001fae8", "x" * 300)
"""What models, tools and people say: endings, names of stages, odd characters, a long one."""
_KINDS: Final = tuple(ErrorKind)


def good(command: Command) -> Input | None:
    """The outcome that lets a run go on; None for a command that has none."""
    match command:
        case Infer():
            return InferenceFinished(
                command.run,
                command.effect,
                command.attempt,
                command.epoch,
                text=inline("DONE"),
                prompt=1,
            )
        case CallTool():
            return ToolFinished(
                command.run, command.effect, command.attempt, command.epoch, result=inline("ok")
            )
        case Gather():
            return Gathered(command.run, command.effect, command.attempt)
        case Deliver():
            return delivered(command, accepted=True, retryable=False)
        case _:
            return None


def failure(infer: Infer, more: int, flag: int) -> InferenceFinished:
    """A model call that failed, in any way."""
    return InferenceFinished(
        infer.run,
        infer.effect,
        infer.attempt,
        infer.epoch,
        error_kind=_KINDS[more % len(_KINDS)].value,
        error="no \U0001fae8",
        retry_after_ms=(None, 0, 5_000)[flag % 3],
        charged=flag % 2 == 0,
    )


def tooled(call: CallTool, more: int, flag: int) -> ToolFinished:
    """What a tool call came to."""
    return ToolFinished(
        call.run,
        call.effect,
        call.attempt,
        call.epoch,
        result=inline(TEXTS[more % len(TEXTS)]),
        is_error=flag % 4 == 0,
        unknown=flag % 5 == 0,
        workspace_lost=flag % 16 == 0,
        modified=("a",) if call.tool == "edit" else (),
    )


def delivered(deliver: Deliver, *, accepted: bool, retryable: bool) -> Delivered:
    """What the receiver of a callback said."""
    delivery = deliver.delivery
    return Delivered(
        deliver.run,
        delivery.number,
        delivery.attempt,
        delivery.epoch,
        "200 OK" if accepted else "503 Busy",
        accepted=accepted,
        retryable=retryable,
    )
