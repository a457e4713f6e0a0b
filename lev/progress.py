"""What happens to runs, as lines on stderr, and money as text."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from leviath.components import events
from leviath.components.money import usd_text
from leviath.lev.text import note, one_line, plural, show

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leviath.components.events import WorldEvent
    from leviath.components.status import Waiting
    from leviath.engine.reconcile import OpenReport
    from leviath.persistence.rows import LedgerRow

_BLOCKERS: Final = {
    "provider_missing": "its provider is not here",
    "credits_exhausted": "the provider's credits are used up",
    "auth_failed": "the provider refused the key",
    "forbidden": "the provider refused access",
    "providers_unavailable": "its providers are out of service",
}


class Teller:
    """Prints events of some runs, or of all of them.

    With ``only`` it tells of those runs and of those that it sees spawned. ``named`` puts the run's
    id before each line.
    """

    def __init__(self, *, quiet: bool, only: set[str] | None = None, named: bool = True) -> None:
        self._quiet = quiet
        self._only = only
        self._named = named

    def add(self, run_id: str) -> None:
        """Tell of that run, too."""
        if self._only is not None:
            self._only.add(run_id)

    def __call__(self, event: WorldEvent) -> None:
        """Tell of one event."""
        if isinstance(event, events.Spawned):
            self.add(event.run_id)
        if self._quiet or (self._only is not None and event.run_id not in self._only):
            return
        text = line_of(event)
        if text:
            show([f"{event.run_id}  {text}" if self._named else text], sys.stderr)


def line_of(event: WorldEvent) -> str:
    """One event as a line; empty for what says nothing that another event does not say."""
    return one_line(_text_of(event))


def _text_of(event: WorldEvent) -> str:
    match event:
        case events.Spawned():
            return f"spawned {event.run_id} ({event.agent_name})"
        case events.StageEntered():
            again = f", visit {event.visit}" if event.visit > 1 else ""
            return f"stage {event.stage}{again}"
        case events.TurnFinished():
            cost = "price unknown" if event.nano_usd is None else f"${usd_text(event.nano_usd)}"
            tools = f", {plural(event.tool_calls, 'tool call')}" if event.tool_calls else ""
            sent = event.prompt + event.cached + event.cache_write
            return f"turn {event.turn}: {sent:,} tokens in, {event.completion:,} out, {cost}{tools}"
        case events.CallFailed():
            return f"model call failed ({event.kind}): {event.message}{_retry(event)}"
        case events.CallRefused():
            return f"model call not made: {event.message}"
        case events.ToolStarted():
            again = f" (attempt {event.attempt})" if event.attempt > 1 else ""
            return f"tool {event.tool}{again}"
        case events.ToolEnded():
            how = "failed" if event.is_error else "done"
            return f"tool {event.tool} {how}{f' ({event.note})' if event.note else ''}"
        case events.CallUnknown():
            return f"tool {event.tool} may have happened (call {event.call_id})"
        case events.OutputSubmitted():
            return f"output: {event.size_bytes:,} bytes"
        case events.StatusChanged():
            return _status_line(event)
        case events.Ended():
            return f"{event.status}{f': {event.error}' if event.error else ''}"
        case _:
            return ""


def _retry(event: events.CallFailed) -> str:
    return "" if event.retry_in_ms is None else f"; again in {event.retry_in_ms / 1_000:g} s"


def _status_line(event: events.StatusChanged) -> str:
    if event.status == "waiting_input":
        reason = event.waiting_on.replace("_", " ") or "somebody"
        return f"waits: {reason}{f' ({event.why})' if event.why else ''}"
    if event.status == "paused" or event.previous == "paused":
        word = "paused" if event.status == "paused" else "resumed"
        return f"{word} by {event.actor}{f': {event.why}' if event.why else ''}"
    return ""


def tell_report(report: OpenReport) -> None:
    """Say on stderr what opening a home found and did."""
    if report.rewritten:
        note(f"files of {plural(len(report.rewritten), 'run')} are written again")
    for rebuilt in report.rebuilt:
        lost = "; ".join(rebuilt.lost)
        note(f"{rebuilt.run_id} came back from its files{f', without {lost}' if lost else ''}")
    known = {rebuilt.run_id for rebuilt in report.rebuilt}
    for run_id in report.imported:
        if run_id not in known:
            note(f"{run_id} was taken in from its folder")
    for held in report.rolled_back:
        note(
            f"{held.run_id} is held: world.db ends at step {held.step}, its files are of step "
            f"{held.files_step} (now state.lev.other-N); restore a whole copy, or lev resume it"
        )
    for path in report.set_aside:
        note(f"set aside: {path}")
    for folder in report.unreadable:
        note(f"unreadable, left alone: runs/{folder.folder}: {folder.reason}")
    for run in report.quarantined:
        note(f"quarantined: {run.run_id}: {run.reason}")


def waiting_text(waiting: Waiting | None) -> str:
    """Why a run is parked, and what helps, in words."""
    if waiting is None:
        return "somebody"
    reason = waiting.reason.replace("_", " ")
    if waiting.reason == "needs_setup":
        reason = f"set-up: {_BLOCKERS.get(waiting.blocker, waiting.blocker or 'something')}"
    if waiting.outstanding:
        reason += f" ({waiting.outstanding})"
    return f"{reason} ({waiting.remedy})" if waiting.remedy else reason


def cost_text(
    priced_nano: int, unpriced: int, upper_nano: int, bounded: int, ledger: Iterable[LedgerRow]
) -> str:
    """What a run cost. What is unknown stands beside what is known and is never left out.

    ``upper_nano`` bounds ``bounded`` of the interrupted calls together.
    """
    interrupted = sum(1 for row in ledger if row.certainty == "interrupted")
    lost = min(interrupted, unpriced)
    text = usd_text(priced_nano)
    if lost:
        most = f"at most {usd_text(upper_nano)}" if bounded >= lost else "an unknown amount"
        text += f" + {most} for {plural(lost, 'interrupted call')}"
    if unpriced > lost:
        text += f" + an unknown amount for {plural(unpriced - lost, 'call')} without a price"
    return text
