"""The statements of a store in a file of its own, and what a transaction knows of a run."""

from __future__ import annotations

from typing import Any, Final

from leviath.persistence.store_owner import LEASE_MS

_NOW: Final = "cast(round(unixepoch('subsec') * 1000) as integer)"
"""The database's clock in Unix milliseconds: it counts them whole, and a float holds each."""


def _timed(sql: str) -> str:
    """A statement with the clock and the lease filled in."""
    return sql.replace("$now", _NOW).replace("$lease", str(LEASE_MS))


STATE: Final = (
    "select driver, owner, until_ms, outcome, last_step, last_attempt, steps, tokens, cost_nano,"
    " unpriced, attempt, started_ms, parent from store_run where run = ?"
)
INSERT_STEP: Final = _timed(
    "insert into store_step values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, coalesce(?, $now))"
)
FOLD: Final = _timed(
    "update store_run set last_step = ?, last_attempt = ?, steps = ?, tokens = ?, cost_nano = ?,"
    " unpriced = ?, until_ms = coalesce(?, $now) + $lease where run = ? and driver = ?"
)
START: Final = _timed(
    "insert into store_run (goal, file, agent, model, parent, depth, started_ms, owner, until_ms)"
    " values (?, ?, ?, ?, ?, ?, coalesce(?, $now), ?, coalesce(?, $now) + $lease) returning run"
)
SUMMARISE: Final = _timed(
    "insert into store_summary (run, attempt, outcome, steps, tokens, duration_ms, finished_ms,"
    " cost_nano, unpriced, agent, model) select run, attempt, outcome, steps, tokens,"
    " max(0, coalesce(?1, $now) - started_ms), coalesce(?1, $now), cost_nano, unpriced, agent,"
    " model from store_run where run = ?2"
)
CLOCK: Final = _timed("select coalesce(?, $now)")
TAKE: Final = _timed(
    "update store_run set driver = driver + 1, owner = ?, until_ms = coalesce(?, $now) + $lease"
    " where run = ? returning driver"
)


class DrivenRun:
    """What a batch knows of a run that it drives."""

    __slots__ = (
        *("driver", "outcome", "last_step", "last_attempt", "steps", "tokens", "cost_nano"),
        *("unpriced", "attempt", "started_ms", "folded"),
    )

    def __init__(self, row: tuple[Any, ...]) -> None:
        self.driver: int = row[0]
        self.outcome: str | None = row[3]
        self.last_step: int = row[4]
        self.last_attempt: int = row[5]
        self.steps: int = row[6]
        self.tokens: int = row[7]
        self.cost_nano: int = row[8]
        self.unpriced: int = row[9]
        self.attempt: int = row[10]
        self.started_ms: int | None = row[11]
        self.folded = True
        """The database has these sums."""
