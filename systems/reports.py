"""What a parent is told of its children: a few words, and their results by reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leviath.components.context import Reference
from leviath.components.text import tokens_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leviath.components.family import Outcome
    from leviath.components.text import Text

SHARE_BYTES_MIN = 200
"""What of each result is shown at least, however many there are (leviath-engine section 6)."""
FAILURES_TOLD_MAX = 20
_ENDED = ("complete", "error", "cancelled")


def decided(mode: str, quorum: int, total: int, ended: int, succeeded: int) -> str:
    """What a join has come to: "" while it waits, else ok or failed."""
    failed = ended - succeeded
    if mode == "fail_all" and failed:
        return "failed"
    if mode in ("first", "quorum"):
        needed = 1 if mode == "first" else quorum
        if succeeded >= needed:
            return "ok"
        if total - failed < needed and total:
            return "failed"
    if ended < total:
        return ""
    # Work of which nothing came off is no success, whatever the policy for single failures.
    return "failed" if total and not succeeded else "ok"


def is_ended(outcome: Outcome) -> bool:
    """Whether the child has ended; one that nobody knows any more has."""
    return not outcome.status or outcome.status in _ENDED


def name_of(outcome: Outcome) -> str:
    """What a child is called before its parent: its item, else its run id."""
    return outcome.item or outcome.run_id or f"run {outcome.ordinal}"


def summary(what: str, outcomes: Sequence[Outcome]) -> str:
    """How many of which succeeded, and why the others did not."""
    succeeded = sum(outcome.succeeded for outcome in outcomes)
    lines = [f"{succeeded} of {len(outcomes)} {what} succeeded."]
    others = [outcome for outcome in outcomes if not outcome.succeeded]
    lines += [_failure(outcome) for outcome in others[:FAILURES_TOLD_MAX]]
    if len(others) > FAILURES_TOLD_MAX:
        lines.append(f"- and {len(others) - FAILURES_TOLD_MAX} more")
    return "\n".join(lines)


def _failure(outcome: Outcome) -> str:
    if not is_ended(outcome):
        return f"- {name_of(outcome)}: not needed any more; {outcome.status}"
    words = f"{outcome.status or 'gone'}: {outcome.error}" if outcome.error else outcome.status
    return f"- {name_of(outcome)}: {words or 'gone'}"


def references(outcomes: Sequence[Outcome], bytes_max: int) -> tuple[Reference, ...]:
    """The results of those that succeeded; each is shown as far as its share of the budget goes."""
    shown = [outcome for outcome in outcomes if outcome.succeeded and not outcome.result.is_empty]
    share = max(SHARE_BYTES_MIN, bytes_max // max(1, len(shown)))
    return tuple(Reference(name_of(outcome), outcome.result, share) for outcome in shown)


def tokens_with(text: Text, found: tuple[Reference, ...]) -> int:
    """What a text with references takes, as the engine estimates it."""
    size = text.size_bytes
    for reference in found:
        size += reference.shown_bytes + len(reference.label) + 8
    return tokens_of(size)


def failure_text(what: str, outcomes: Sequence[Outcome]) -> str:
    """Why a join failed, in one line."""
    failed = [outcome for outcome in outcomes if is_ended(outcome) and not outcome.succeeded]
    first = f"; the first: {_failure(failed[0])[2:]}" if failed else ""
    return f"{len(failed)} of {len(outcomes)} {what} failed{first}"
