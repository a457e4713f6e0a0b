"""What goes into the run store and what comes out of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

INT64_MAX = 2**63 - 1
"""The largest integer that SQLite keeps as one."""


class StepRecord(Struct, frozen=True, kw_only=False):
    """One step of a run, or one more attempt at it.

    ``decision`` and ``result`` say what was decided and what came of it. ``tokens`` are all tokens
    of the attempt; ``cost_nano_usd`` is what it cost, None for not known. ``is_retry`` marks an
    attempt that failed and does not complete its step.
    """

    step: int
    """Counts from 1."""
    decision: str
    result: str
    prompt: str = ""
    tool_call: str = ""
    tokens: int = 0
    cost_nano_usd: int | None = None
    model: str = ""
    is_retry: bool = False


class StepRow(Struct, frozen=True):
    """A step as it was recorded, and which attempt at it this is."""

    run_id: int
    step: int
    attempt: int
    is_retry: bool
    decision: str
    result: str
    prompt: str
    tool_call: str
    tokens: int
    cost_nano_usd: int | None
    model: str
    at_ms: int | None


class RunSummary(Struct, frozen=True):
    """What one finished run cost and whether it worked (the fields of seed 002, then ours)."""

    run_id: int
    outcome: str
    success: bool
    """True for exactly one outcome, ``success``."""
    steps: int
    """The largest step; retries are attempts at it."""
    tokens: int
    """Of this run alone, without its children."""
    duration_ms: int | None
    """From start to end on the clock on the wall, time without a process included; None without a
    usable start."""
    finished_at: str
    """UTC, ``2026-12-01T02:03:04.567Z``."""
    cost_nano_usd: int = 0
    """Nano-dollars of the steps whose cost is known."""
    unpriced: int = 0
    """Steps whose cost is not known."""


class RunInfo(Struct, frozen=True):
    """A run as it stands, ended or not."""

    run_id: int
    goal: str
    file: str
    agent: str
    model: str
    parent: int | None
    started_ms: int | None
    outcome: str | None
    """None while it runs."""
    attempt: int
    """1, and 1 more for each resume after an ending."""
    steps: int
    tokens: int
    cost_nano_usd: int
    unpriced: int


class TreeSummary(Struct, frozen=True):
    """A run and everything below it. A run that has not ended is in the sums as far as it got."""

    run_id: int
    runs: int
    finished: int
    succeeded: int
    steps: int
    tokens: int
    cost_nano_usd: int
    unpriced: int
    duration_ms: int | None
    """From the first start to the last end; None while a run of the tree has not ended."""


class Stats(Struct, frozen=True):
    """Summaries taken together."""

    group: str
    """The agent, outcome or model; empty for all."""
    runs: int
    succeeded: int
    steps: int
    tokens: int
    cost_nano_usd: int
    unpriced_runs: int
    """Runs of which some cost is not known: the sum is at least so much."""
    unpriced: int
    duration_ms: int
    """All durations together."""
    timed: int
    """Runs that have a duration."""

    @property
    def success_rate_ppm(self) -> int:
        """Successful runs in a million."""
        return 0 if not self.runs else self.succeeded * 1_000_000 // self.runs


def together(groups: Sequence[Stats]) -> Stats:
    """The sums over all groups."""
    columns = [[getattr(group, name) for group in groups] for name in Stats.__struct_fields__[1:]]
    return Stats("", *map(sum, columns))


def utc(ms: int) -> str:
    """Unix milliseconds as a text that sorts and that everybody reads."""
    try:
        moment = datetime.fromtimestamp(ms // 1_000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1_000:03}Z"
