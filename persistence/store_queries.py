"""Reading a run store: one run, pages, whole exports, sums over many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from leviath.components.errors import ConfigError, RunNotFound
from leviath.components.run_outcome import OUTCOMES
from leviath.persistence.connect import translated
from leviath.persistence.store_rows import (
    INT64_MAX,
    RunInfo,
    RunSummary,
    Stats,
    StepRow,
    TreeSummary,
    utc,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from leviath.persistence.sqlite import Connection

PAGE_MAX: Final = 10_000
"""Summaries of one page: about a megabyte."""
By = Literal["", "agent", "outcome", "model"]
_SUMMARY: Final = (
    "store_summary.run, store_summary.outcome, store_summary.success, store_summary.steps,"
    " store_summary.tokens, store_summary.duration_ms, store_summary.finished_ms,"
    " store_summary.cost_nano, store_summary.unpriced"
)
_RUN: Final = (
    "run, goal, file, agent, model, parent, started_ms, outcome, attempt, steps, tokens,"
    " cost_nano, unpriced"
)
_SLICE: Final = 500
"""Rows of one read of an export: between two reads nobody who writes has to wait."""


def _summary(row: Sequence[Any]) -> RunSummary:
    return RunSummary(
        row[0], row[1], bool(row[2]), row[3], row[4], row[5], utc(row[6]), row[7], row[8]
    )


class StoreReader:
    """What a store can be asked. Every method is one short read of what is durable."""

    def __init__(self, db: Connection, path: str) -> None:
        self._db = db
        self.path = path

    def _one(self, sql: str, bindings: tuple[Any, ...] = ()) -> tuple[Any, ...] | None:
        return self._db.execute(sql, bindings).fetchone()

    def _all(self, sql: str, bindings: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with translated(self.path, self._db):
            return self._db.execute(sql, bindings).fetchall()

    # --- one run --------------------------------------------------------------------------------

    def run_summary(self, run: int) -> RunSummary | None:
        """What a finished run cost and whether it worked: one row.

        None while it has not ended or a person is awaited. Raises RunNotFound.
        """
        rows = self._all(f"select {_SUMMARY} from store_summary where run = ?", (run_key(run),))  # noqa: S608
        if rows:
            return _summary(rows[0])
        self.run(run)
        return None

    def superseded(self, run: int) -> list[RunSummary]:
        """Summaries of endings after which the run was resumed, oldest first. Raises
        RunNotFound."""
        self.run(run)
        sql = f"select {_SUMMARY} from store_superseded as store_summary where run = ?"  # noqa: S608
        return [_summary(row) for row in self._all(f"{sql} order by attempt", (run_key(run),))]

    def run(self, run: int) -> RunInfo:
        """A run as it stands. Raises RunNotFound."""
        rows = self._all(f"select {_RUN} from store_run where run = ?", (run_key(run),))  # noqa: S608
        if not rows:
            raise RunNotFound(f"this store has no run {run!r}; list them with runs()", run=run)
        return RunInfo(*rows[0])

    def steps(self, run: int) -> list[StepRow]:
        """A run's steps in their order, with all attempts. Raises RunNotFound."""
        self.run(run)
        sql = (
            "select run, step, attempt, is_retry, decision, result, prompt, tool_call, tokens,"
            " cost_nano, model, at_ms from store_step where run = ? order by step, attempt"
        )
        rows = self._all(sql, (run_key(run),))
        return [StepRow(row[0], row[1], row[2], bool(row[3]), *row[4:]) for row in rows]

    def next_step(self, run: int) -> int:
        """The step that a driver goes on with: the one after the last that was completed, however
        often the next one was tried. Raises RunNotFound."""
        return self.run(run).steps + 1

    def tree_summary(self, run: int) -> TreeSummary:
        """A run and everything below it, ended or not. Raises RunNotFound."""
        self.run(run)
        sql = (
            "with recursive tree(run) as (select ?1 union select store_run.run from store_run"  # noqa: S608
            " join tree on store_run.parent = tree.run)"
            " select count(*), count(store_summary.run), total(store_summary.success),"
            f" {exact_sum('r.steps')}, {exact_sum('r.tokens')}, {exact_sum('r.cost_nano')},"
            f" {exact_sum('r.unpriced')},"
            " max(store_summary.finished_ms) - min(r.started_ms)"
            " from store_run as r left join store_summary on store_summary.run = r.run"
            " where r.run in tree"
        )
        (row,) = self._all(sql, (run_key(run),))
        runs, finished, succeeded, *halves, span = row
        steps, tokens, cost, unpriced = _wholes(halves)
        duration = None if finished < runs or span is None else max(0, span)
        return TreeSummary(
            run, runs, finished, int(succeeded), steps, tokens, cost, unpriced, duration
        )

    # --- many -----------------------------------------------------------------------------------

    def runs(self, *, limit: int = 50, before: int | None = None) -> list[RunInfo]:
        """A page of all runs, ended or not, newest first; ``before`` is the last id of the page
        before."""
        sql = f"select {_RUN} from store_run where run < ? order by run desc limit ?"  # noqa: S608
        bindings = (INT64_MAX if before is None else run_key(before), _limit(limit))
        return [RunInfo(*row) for row in self._all(sql, bindings)]

    def summaries(
        self,
        *,
        since_ms: int | None = None,
        until_ms: int | None = None,
        outcome: str | None = None,
        goal: str | None = None,
        limit: int = 50,
        after: tuple[int, int] | None = None,
    ) -> list[tuple[tuple[int, int], RunSummary]]:
        """A page of summaries, the newest ending first, each with its place.

        ``since_ms`` and ``until_ms`` bound the ending (Unix milliseconds, the second excluded),
        ``goal`` is a piece of the run's goal, case ignored for ASCII. ``after`` is the place of the
        last row of the page before. Raises ConfigError for an unknown outcome.
        """
        where, bindings = _where(since_ms, until_ms, outcome)
        if after is not None:
            where.append("(store_summary.finished_ms, store_summary.run) < (?, ?)")
            bindings += after
        join = ""
        if goal is not None:
            join = " join store_run on store_run.run = store_summary.run"
            where.append("instr(lower(store_run.goal), lower(?)) > 0")
            bindings.append(goal)
        condition = f" where {' and '.join(where)}" if where else ""
        sql = (
            f"select {_SUMMARY} from store_summary{join}{condition}"  # noqa: S608
            " order by store_summary.finished_ms desc, store_summary.run desc limit ?"
        )
        rows = self._all(sql, (*bindings, _limit(limit)))
        return [((row[6], row[0]), _summary(row)) for row in rows]

    def export(self, *, since_ms: int | None = None) -> Iterator[str]:
        """All summaries, oldest ending first, one JSON document a line, with goal and file.

        Reads in slices: what is written meanwhile may be in it or not, and nobody waits.
        """
        place = (-INT64_MAX if since_ms is None else since_ms, -INT64_MAX)
        sql = (
            f"select {_SUMMARY}, store_run.goal, store_run.file, store_summary.agent,"  # noqa: S608
            " store_summary.model from store_summary join store_run on store_run.run ="
            " store_summary.run where (store_summary.finished_ms, store_summary.run) > (?, ?)"
            " order by store_summary.finished_ms, store_summary.run limit ?"
        )
        while True:
            rows = self._all(sql, (*place, _SLICE))
            for row in rows:
                place = (row[6], row[0])
                document = msgspec.structs.asdict(_summary(row))
                more = zip(("goal", "file", "agent", "model"), row[9:], strict=True)
                yield msgspec.json.encode(document | dict(more)).decode()
            if len(rows) < _SLICE:
                return

    def stats(
        self, *, since_ms: int | None = None, until_ms: int | None = None, by: By = ""
    ) -> list[Stats]:
        """Sums over the runs that ended in that time, by agent, outcome or model: the dearest
        group first. Raises ConfigError for another word."""
        if by not in ("", "agent", "outcome", "model"):
            raise ConfigError(f"by must be agent, outcome or model, not {by!r}")
        where, bindings = _where(since_ms, until_ms, None)
        condition = f" where {' and '.join(where)}" if where else ""
        group = by or "''"
        sql = (
            f"select {group}, count(*), sum(success), sum(unpriced > 0), count(duration_ms),"  # noqa: S608
            f" {exact_sum('steps')}, {exact_sum('tokens')}, {exact_sum('cost_nano')},"
            f" {exact_sum('unpriced')}, {exact_sum('duration_ms')}"
            f" from store_summary{condition} group by {group}"
        )
        rows: list[Stats] = []
        for name, runs, worked, unpriced_runs, timed, *halves in self._all(sql, bindings):
            steps, tokens, cost, unpriced, duration = _wholes(halves)
            sums = (steps, tokens, cost, unpriced_runs, unpriced, duration, timed)
            rows.append(Stats(name, runs, worked, *sums))
        rows.sort(key=lambda row: (-row.cost_nano_usd, row.group))
        return rows if by or rows else [Stats("", 0, 0, 0, 0, 0, 0, 0, 0, 0)]


def run_key(run: object) -> int:
    """An id to ask the database for; one that can be no id is none that is there."""
    if type(run) is not int or not -INT64_MAX <= run <= INT64_MAX:
        raise RunNotFound(f"this store has no run {run!r}; ids are whole numbers", run=run)
    return run


def exact_sum(column: str) -> str:
    """Two columns for the sum of one, in halves of 32 bits: sum() refuses what passes an integer,
    and total() rounds."""
    return f"coalesce(sum({column} >> 32), 0), coalesce(sum({column} & 0xffffffff), 0)"


def _wholes(halves: Sequence[int]) -> list[int]:
    """The sums of columns that were asked for by ``exact_sum``."""
    return [(high << 32) + low for high, low in zip(halves[::2], halves[1::2], strict=True)]


def _limit(limit: object) -> int:
    if type(limit) is not int or not 1 <= limit <= PAGE_MAX:
        raise ConfigError(f"limit is {limit!r}; it is a whole number from 1 to {PAGE_MAX:,}")
    return limit


def _where(
    since_ms: int | None, until_ms: int | None, outcome: str | None
) -> tuple[list[str], list[Any]]:
    where: list[str] = []
    bindings: list[Any] = []
    if outcome is not None:
        if outcome not in OUTCOMES:
            raise ConfigError(f"outcome {outcome!r} is none; write one of {', '.join(OUTCOMES)}")
        where.append("store_summary.outcome = ?")
        bindings.append(outcome)
    if since_ms is not None:
        where.append("store_summary.finished_ms >= ?")
        bindings.append(since_ms)
    if until_ms is not None:
        where.append("store_summary.finished_ms < ?")
        bindings.append(until_ms)
    return where, bindings
