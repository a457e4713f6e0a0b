"""The run store: what runs cost and whether they worked.

A store in a file of its own takes many writers, in many processes: each run has one driver at a
time, and each write carries the number that its driver got with the run, so that who was replaced
writes nothing any more. The store of a world is in its ``world.db``; only the host writes there,
and ``Store.open`` of it reads.

>>> from leviath import StepRecord, Store
>>> store = Store.memory()
>>> run_id = store.start_run("add a hello function", "src/hello.rs")
>>> store.record(run_id, StepRecord(1, "wrote src/hello.rs", "ok", tokens=1_280))
>>> summary = store.finish_run(run_id, "step_cap_reached")
>>> summary == store.run_summary(run_id)
True
>>> summary.success, summary.outcome, summary.steps, summary.tokens
(False, 'step_cap_reached', 1, 1280)
>>> paused = store.start_run("rewrite the changelog", "CHANGELOG.md")
>>> store.finish_run(paused, "awaiting_approval")
>>> store.run_summary(paused) is None
True
>>> store.close()
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import apsw

from leviath.components.errors import ConfigError, RunConflict, StorageError
from leviath.components.run_outcome import ENDINGS, MOVES, OUTCOMES, RUNNING
from leviath.persistence import schema, sqlite
from leviath.persistence.connect import (
    Level,
    connect,
    open_checked,
    read_header,
    translated,
    undo_torn_creation,
)
from leviath.persistence.store_checks import (
    check_record,
    checked_sum,
    checked_text,
    unknown_run,
)
from leviath.persistence.store_endings import supersede
from leviath.persistence.store_opening import check_header, migrate
from leviath.persistence.store_owner import is_gone, own_name, shown
from leviath.persistence.store_queries import StoreReader, run_key
from leviath.persistence.store_rows import INT64_MAX, RunSummary, StepRecord
from leviath.persistence.store_statements import (
    CLOCK,
    FOLD,
    INSERT_STEP,
    START,
    STATE,
    SUMMARISE,
    TAKE,
    DrivenRun,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import TracebackType

    from leviath.persistence.sqlite import Connection

__all__ = ["RunSummary", "StepRecord", "Store"]


_BUSY_TIMEOUT_MS: Final = 30_000
"""How long a writer waits for others: SQLite hands the file to whoever asks next, not in turn."""


class Store(StoreReader):
    """A store of runs. Belongs to one thread at a time; other processes open their own.

    ``now_ms`` is a clock in Unix milliseconds, the database's own unless one is given.
    """

    def __init__(
        self,
        db: Connection,
        path: str,
        *,
        read_only: bool,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(db, path)
        self.read_only = read_only
        self._now_ms = now_ms
        self._owner = own_name()
        self._driven: dict[int, int] = {}
        """Runs that this handle drives, and the number of each."""
        self._states: dict[int, DrivenRun] = {}
        """Within a transaction: what it knows of the runs that it writes."""
        self._is_open = False
        """A transaction is open."""

    # --- opening --------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        level: Level = "full",
        now_ms: Callable[[], int] | None = None,
        vfs: str | None = None,
    ) -> Self:
        """Open a store in a file of its own, made if it is missing, or that of a ``world.db``.

        ``level`` is "full" (a commit is on the disk) or "process" (it survives a killed process).
        The store of a world is opened for reading, hosted or not. Raises Damaged for a file that
        is no store, NewerFormat, DiskFull, StorageError; nothing was changed then.
        """
        if level not in ("full", "process"):
            raise ConfigError(f"level must be full or process, not {level!r}")
        file = Path(os.path.abspath(path))
        undo_torn_creation(file, vfs)
        header = read_header(file)
        if header is not None and header[0] == schema.APPLICATION_ID:
            db = open_checked(file, level="process", vfs=vfs, read_only=True)
            return cls(db, str(file), read_only=True, now_ms=now_ms)
        if header is not None and header != (0, 0):
            check_header(file, header)
        with translated(str(file)):
            db = connect(file, level=level, vfs=vfs, read_only=False, exists=header is not None)
        return cls._prepared(db, str(file), now_ms)

    @classmethod
    def memory(cls, *, now_ms: Callable[[], int] | None = None) -> Self:
        """A store that is gone when it is closed."""
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        return cls._prepared(sqlite.connect(":memory:", flags=flags, vfs=None), ":memory:", now_ms)

    @classmethod
    def _prepared(cls, db: Connection, path: str, now_ms: Callable[[], int] | None) -> Self:
        try:
            with translated(path, db):
                db.set_busy_timeout(_BUSY_TIMEOUT_MS)
                db.pragma("foreign_keys", True)
                migrate(db, path)
                if path != ":memory:":
                    # Another process may be opening it, too. All is safe without, only slower.
                    with contextlib.suppress(apsw.BusyError, apsw.LockedError):
                        db.pragma("journal_mode", "wal")
                    db.wal_autocheckpoint(4_000)
        except BaseException:
            db.close()
            raise
        return cls(db, path, read_only=False, now_ms=now_ms)

    def close(self) -> None:
        """Let go of the runs that this handle drives, and of the file. A second call does nothing.

        Raises StorageError when they could not be let go of; another driver has them then once
        this process has ended.
        """
        try:
            if self._driven and not self.read_only and not self._is_open:
                with self.batch():
                    for run, driver in self._driven.items():
                        self._db.execute(
                            "update store_run set owner = null where run = ? and driver = ?",
                            (run, driver),
                        )
        finally:
            self._driven.clear()
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- writing --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def batch(self) -> Generator[Self]:
        """Make everything inside durable together: one commit for all of it, or none of it.

        Other writers wait meanwhile, for thirty seconds at most. Within another batch it is part of
        that one. Raises what the block raises, and DiskFull or StorageError from the commit.
        """
        if self._is_open:
            self._check_batch()
            yield self
            return
        if self.read_only:
            raise StorageError(
                f"{self.path}: the store of a world is written by its host alone; it is open for "
                "reading here",
                path=self.path,
            )
        with translated(self.path, self._db):
            self._db.execute("begin immediate")
        driven = dict(self._driven)
        self._is_open = True
        try:
            yield self
            self._check_batch()
            with translated(self.path, self._db):
                self._fold()
                self._db.execute("commit")
        except BaseException:
            self._driven = driven
            raise
        finally:
            self._is_open = False
            self._states.clear()
            if self._db.in_transaction:
                with contextlib.suppress(apsw.Error):
                    self._db.execute("rollback")

    def _check_batch(self) -> None:
        """Raise StorageError when SQLite has undone the batch: what follows would stand alone."""
        if not self._db.in_transaction:
            raise StorageError(
                f"{self.path}: an error ended this batch, and nothing of it is kept; leave the "
                "block and do all of it again",
                path=self.path,
            )

    def start_run(self, goal: str, file: str, *, agent: str = "", model: str = "") -> int:
        """Start a run that this handle drives, and return its id.

        ``goal`` is what it is to do, ``file`` what it works on. Raises ConfigError for a text that
        no file can hold, and DiskFull or StorageError; nothing was started then.
        """
        return self._start(goal, file, None, agent, model)

    def start_child_run(
        self, goal: str, file: str, parent: int, *, agent: str = "", model: str = ""
    ) -> int:
        """Start a run below another one, which this handle drives or may take.

        Raises RunNotFound for an unknown parent, RunConflict for one that somebody else drives,
        and what ``start_run`` raises.
        """
        return self._start(goal, file, run_key(parent), agent, model)

    def _start(self, goal: str, file: str, parent: int | None, agent: str, model: str) -> int:
        texts = [
            checked_text(name, value)
            for name, value in (("goal", goal), ("file", file), ("agent", agent), ("model", model))
        ]
        depth = 0
        with self.batch():
            with translated(self.path, self._db):
                if parent is not None:
                    self._state(parent)
                    row = self._one("select depth from store_run where run = ?", (parent,))
                    depth = 1 + (0 if row is None else int(row[0]))
                now = self._clock()
                bindings = (*texts, parent, depth, now, self._owner, now)
                (row,) = self._db.execute(START, bindings).fetchall()
            run = int(row[0])
            self._driven[run] = 1
        return run

    def record(self, run: int, record: StepRecord) -> None:
        """Keep one step of a run, or one more attempt at its newest step.

        Raises RunNotFound, RunConflict (the run has ended, waits for a person, or somebody else
        drives it; the step is out of order) and ConfigError (a number that an integer of 64 bits
        does not hold, a text that no file can hold); nothing was kept then.
        """
        check_record(record)
        if not self._is_open:
            with self.batch():
                self._record(run, record)
            return
        # Within a batch each microsecond counts: no block is entered.
        self._check_batch()
        self._record(run, record)

    def _record(self, run: int, record: StepRecord) -> None:
        try:
            state = self._state(run)
            if state.outcome is not None:
                raise RunConflict(
                    f"run {run} is {state.outcome}: it takes no steps; resume it first", run=run
                )
            if record.step < state.last_step:
                raise RunConflict(
                    f"step {record.step} of run {run} comes after step {state.last_step}; steps "
                    "are recorded in their order",
                    run=run,
                )
            is_new = record.step > state.last_step
            attempt = 1 if is_new else state.last_attempt + 1
            tokens = checked_sum("tokens", run, state.tokens, record.tokens)
            cost = checked_sum("cost_nano_usd", run, state.cost_nano, record.cost_nano_usd or 0)
            self._db.execute(
                INSERT_STEP,
                (
                    run,
                    record.step,
                    attempt,
                    int(record.is_retry),
                    record.decision,
                    record.result,
                    record.prompt,
                    record.tool_call,
                    record.tokens,
                    record.cost_nano_usd,
                    record.model,
                    self._clock(),
                ),
            )
            state.last_step, state.last_attempt = record.step, attempt
            state.tokens, state.cost_nano = tokens, cost
            state.unpriced += record.cost_nano_usd is None
            if not record.is_retry:
                state.steps = record.step
            state.folded = False
        except apsw.Error:
            with translated(self.path, self._db):
                raise

    def finish_run(self, run: int, outcome: str) -> RunSummary | None:
        """End a run, or have it wait for a person: outcome and summary in one transaction.

        Returns its summary; None for one that waits. Raises ConfigError for an unknown outcome,
        RunNotFound, and RunConflict when the run has ended already or somebody else drives it.
        """
        if outcome not in OUTCOMES:
            raise ConfigError(
                f"outcome {outcome!r} is none; write one of {', '.join(OUTCOMES)}", outcome=outcome
            )
        with self.batch(), translated(self.path, self._db):
            state = self._state(run)
            was = state.outcome or RUNNING
            if outcome not in MOVES[was]:
                remedy = "nothing follows it" if not MOVES[was] else "resume it first"
                raise RunConflict(
                    f"run {run} is {was} already and may not become {outcome}; {remedy}", run=run
                )
            self._fold()
            self._db.execute(
                "update store_run set outcome = ? where run = ? and driver = ?",
                (outcome, run, state.driver),
            )
            state.outcome = outcome
            if outcome not in ENDINGS:
                return None
            self._db.execute(SUMMARISE, (self._clock(), run))
            self._db.execute("update store_run set owner = null where run = ?", (run,))
            del self._driven[run]
            return self.run_summary(run)

    def resume_run(self, run: int) -> None:
        """Take a run up again that waits for a person, or that ended other than for good.

        Its outcome is cleared; the summary of the old ending is kept as superseded. Raises
        RunNotFound, and RunConflict when it runs, has ended for good or somebody else drives it.
        """
        with self.batch(), translated(self.path, self._db):
            state = self._state(run)
            was = state.outcome or RUNNING
            if RUNNING not in MOVES[was]:
                remedy = "it runs" if was == RUNNING else "start a run instead"
                raise RunConflict(f"run {run} is {was} and cannot be resumed; {remedy}", run=run)
            self._fold()
            if was in ENDINGS:
                supersede(self._db, run)
            self._db.execute(
                "update store_run set outcome = null, attempt = attempt + ?, owner = ?"
                " where run = ? and driver = ?",
                (int(was in ENDINGS), self._owner, run, state.driver),
            )
            self._states.pop(run, None)

    def take_run(self, run: int) -> None:
        """Become the driver of a run, and of everything below it that its driver has.

        Free are runs whose driver let go, ended, or has not written for a minute where it cannot
        be seen whether it lives. Raises RunNotFound, and RunConflict naming the driver and until
        when it counts.
        """
        with self.batch(), translated(self.path, self._db):
            self._state(run)

    def release_run(self, run: int) -> None:
        """Let go of a run, so that another handle may drive it. Raises RunNotFound."""
        with self.batch(), translated(self.path, self._db):
            if self._one("select 1 from store_run where run = ?", (run_key(run),)) is None:
                raise unknown_run(run)
            self._fold()
            driver = self._driven.pop(run, None)
            self._states.pop(run, None)
            self._db.execute(
                "update store_run set owner = null where run = ? and driver = ?", (run, driver)
            )

    # --- driving --------------------------------------------------------------------------------

    def _clock(self) -> int | None:
        """Unix milliseconds; None leaves it to the database's own clock."""
        return None if self._now_ms is None else self._now_ms()

    def _state(self, run: int) -> DrivenRun:
        """The run as this transaction has it; this handle drives it from now on."""
        state = self._states.get(run)
        if state is not None:
            return state
        if type(run) is not int or not -INT64_MAX <= run <= INT64_MAX:
            raise unknown_run(run)
        row = self._one(STATE, (run,))
        if row is None:
            raise unknown_run(run)
        mine = self._driven.get(run)
        if mine != row[0]:
            if mine is not None:
                del self._driven[run]
                raise RunConflict(
                    f"run {run} was taken over by {shown(str(row[1] or 'another driver'))}; "
                    "nothing more is written from here",
                    run=run,
                )
            self._take(run, row)
            row = (self._driven[run], *row[1:])
        state = self._states[run] = DrivenRun(row)
        return state

    def _take(self, run: int, row: tuple[Any, ...]) -> None:
        driver, owner, until_ms = int(row[0]), row[1], int(row[2])
        if owner is not None and not is_gone(owner):
            now = self._one(CLOCK, (self._clock(),))
            assert now is not None
            if until_ms > now[0]:
                raise RunConflict(
                    f"run {run} is driven by {shown(owner)} for at least "
                    f"{until_ms - now[0]:,} ms more; let it finish or release the run",
                    run=run,
                    owner=owner,
                    until_ms=until_ms,
                )
        below = [run]
        if owner is not None:
            below += [
                int(child)
                for (child,) in self._db.execute(
                    "with recursive tree(run) as (select ?1 union select store_run.run from"
                    " store_run join tree on store_run.parent = tree.run)"
                    " select run from store_run where run in tree and owner = ?2 and run != ?1",
                    (run, owner),
                )
            ]
        for taken in below:
            number = self._one(TAKE, (self._owner, self._clock(), taken))
            assert number is not None
            self._driven[taken] = int(number[0])
        assert self._driven[run] == driver + 1

    def _fold(self) -> None:
        """Write the sums of the steps that were recorded since the last time."""
        for run, state in self._states.items():
            if state.folded:
                continue
            self._db.execute(
                FOLD,
                (
                    state.last_step,
                    state.last_attempt,
                    state.steps,
                    state.tokens,
                    state.cost_nano,
                    state.unpriced,
                    self._clock(),
                    run,
                    state.driver,
                ),
            )
            state.folded = True
