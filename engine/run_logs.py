"""Lines for the logs of a run's stages: what a person greps, written from durable steps only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from leviath.components.events import (
    CallFailed,
    CallUnknown,
    StageEntered,
    StatusChanged,
    ToolEnded,
    ToolStarted,
    TurnFinished,
)
from leviath.components.inputs import InferenceFinished
from leviath.components.money import usd_text

if TYPE_CHECKING:
    from leviath.components.text import Text
    from leviath.engine.step import StepResult

OUTPUT: Final = "output.log"
LOGS: Final = "logs.log"
HIDDEN: Final = "***"
SECRET_BYTES_MIN: Final = 4
"""Shorter values are no secrets, and hiding them would blacken ordinary words."""


class Line(Struct, frozen=True):
    """One line of one log of one stage, without its line feed."""

    run_id: str
    stage: str
    """Its name; "" for the stage that the run is in."""
    file: str
    text: str


def redactor(values: Iterable[str]) -> Callable[[str], str]:
    """A function that hides these known secret values in a text, the longest first."""
    known = sorted({v for v in values if len(v) >= SECRET_BYTES_MIN}, key=lambda v: (-len(v), v))

    def redact(text: str) -> str:
        for value in known:
            if value in text:
                text = text.replace(value, HIDDEN)
        return text

    return redact


def lines_of(
    result: StepResult, run_id: Callable[[int], str], resolve: Callable[[Text], str]
) -> Iterator[Line]:
    """The lines that one step has to tell, in the order in which things happened."""
    replies: dict[str, list[Text]] = {}
    for item in result.inputs:
        if type(item) is InferenceFinished and not item.error_kind and item.text.size_bytes:
            replies.setdefault(run_id(item.run), []).append(item.text)
    for event in result.events:
        if type(event) is ToolStarted:
            # A third of all events; its end tells more.
            continue
        name = event.run_id
        match event:
            case TurnFinished():
                waiting = replies.get(name)
                if waiting:
                    yield Line(name, event.stage, OUTPUT, resolve(waiting.pop(0)))
                yield Line(name, event.stage, LOGS, _tokens(event))
            case ToolEnded():
                note = f" ({event.note})" if event.note else ""
                word = "error" if event.is_error else "tool"
                yield Line(name, "", LOGS, f"[{word}] {event.tool} {event.call_id}{note}")
            case CallUnknown():
                yield Line(name, "", LOGS, f"[unknown] {event.tool} {event.call_id}")
            case CallFailed():
                yield Line(name, "", LOGS, f"[error] {event.kind}: {event.message}")
            case StageEntered():
                yield Line(name, event.stage, LOGS, f"[stage] {event.stage}")
            case StatusChanged():
                why = f": {event.why}" if event.why else ""
                yield Line(name, event.stage, LOGS, f"[{event.status}] by {event.actor}{why}")
            case _:
                pass


def _tokens(event: TurnFinished) -> str:
    cost = "no price" if event.nano_usd is None else f"${usd_text(event.nano_usd)}"
    return (
        f"[Tokens: {event.prompt} in, {event.completion} out, {event.cached} cached, "
        f"{event.cache_write} written to cache, {cost}]"
    )


def as_bytes(lines: Iterable[Line], redact: Callable[[str], str]) -> bytes:
    """Lines of one file as they are appended: each redacted, and one line in a log of lines."""
    texts = [
        text.replace("\n", " ") if line.file == LOGS and "\n" in text else text
        for line in lines
        for text in (redact(line.text),)
    ]
    return "".join([f"{text}\n" for text in texts]).encode(errors="replace")
