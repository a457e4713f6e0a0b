"""``world.db``: what a home keeps; writing here, reading in ``reader``, both as one Database.

A Database belongs to one thread at a time; readers in other threads or processes open their own.
Writers are fenced: ``claim`` takes the next epoch, and every write afterwards checks in its own
transaction that the epoch is still ours. All of a method's effect is in one transaction, so a call
that raises has changed nothing. Bodies are opaque; crc32 of state and entry bodies is kept beside
them and checked when they are read.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import apsw
from msgspec.structs import astuple

from leviath.components.errors import Locked, StorageError, WorldError
from leviath.persistence import schema
from leviath.persistence.connect import Level, open_checked
from leviath.persistence.reader import Reader
from leviath.persistence.rows import (
    Batch,
    JournalRow,
    LedgerRow,
    LivenessRow,
    MirrorRow,
    OpeningRow,
    RunRow,
    StateRow,
    WorldRow,
)
from leviath.persistence.sqlite import Connection
from leviath.persistence.store_endings import write_endings

__all__ = [
    "Batch",
    "Database",
    "JournalRow",
    "LedgerRow",
    "Level",
    "LivenessRow",
    "MirrorRow",
    "OpeningRow",
    "RunRow",
    "StateRow",
    "WorldRow",
    "open_database",
]

CHECKPOINT_PAGES: Final = 4_000
"""16 MiB of WAL: a busy home checkpoints about once a second."""


def _upsert(table: str, columns: str, key: str) -> str:
    names = columns.split(", ")
    kept = ", ".join(f"{n} = excluded.{n}" for n in names if n not in key.split(", "))
    marks = ", ".join("?" * len(names))
    return (
        f"insert into {table} ({columns}) values ({marks}) on conflict ({key}) do update set {kept}"  # noqa: S608
    )


_INSERT_JOURNAL: Final = "insert into journal values (?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_ENTRY: Final = "insert into entry values (?, ?, ?) on conflict (digest) do nothing"
_UPSERT_RUN: Final = _upsert("run", schema.RUN_COLUMNS, "ordinal")
_UPSERT_LEDGER: Final = "insert or replace into ledger values (?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
_OWE_FILES: Final = "update mirror set length = -1 where run = ? and file = 'meta.json'"
_UPSERT_MIRROR: Final = "insert or replace into mirror values (?, ?, ?, ?, ?, ?)"
_UPSERT_SECRET: Final = "insert or replace into secret values (?, ?)"  # noqa: S105
_UPSERT_STATE: Final = "insert or replace into state values (?, ?, ?, ?, ?)"
_RUN_TABLES: Final = (
    *(("run", "ordinal"), ("ledger", "run")),
    *(("mirror", "run"), ("owing", "run"), ("quarantine", "run")),
    *(("store_summary", "run"), ("store_superseded", "run")),
)
_FORGET_FOLDER: Final = """
insert or replace into mirror
    select -ordinal, run_id, (select step from world), 0, x'', x'' from run where ordinal = ?
"""
"""What is to stand in the folder of a forgotten run: nothing. Under the negative of its ordinal,
since its other rows of the mirror go; see Reader.forgotten."""
_DROP_SUPERSEDED: Final = """
delete from state where (owner, part, cut) in (
    select old.owner, old.part, old.cut from state new
    join state old on old.owner = new.owner and old.part = new.part and old.cut < new.cut
    where new.cut > ?1 and new.cut <= ?2)
"""


def open_database(
    path: str | os.PathLike[str], *, level: Level, vfs: str | None = None, read_only: bool = False
) -> Database:
    """Open ``path``, creating it (mode 0600) or bringing it to our format when needed.

    ``vfs`` names a registered apsw VFS; it is the seam for recording and faults.

    Raises NewerFormat when a newer leviath wrote the file and Damaged when it is no database of
    ours (nothing was touched in both cases), Damaged for damaged pages, DiskFull, StorageError
    (with ``missing=True`` in its fields when read_only finds no database).
    """
    where = Path(path)
    return Database(open_checked(where, level=level, vfs=vfs, read_only=read_only), where, level)


class Database(Reader):
    """An open ``world.db``; made by ``open_database``."""

    def __init__(self, db: Connection, path: Path, level: Level) -> None:
        super().__init__(db, path)
        self._level: Level = level
        self._epoch: int | None = None  # ours since claim(); None for a reader
        self._step = 0  # the last one committed, since claim()
        self._log_pages = 0  # in the WAL after the newest commit
        self._checkpoint_failed = False  # with an I/O error; the next transaction says so
        self.checkpoint_pages = CHECKPOINT_PAGES
        db.set_wal_hook(self._note_log_pages)

    @property
    def level(self) -> Level:
        """What a commit survives."""
        return self._level

    @property
    def epoch(self) -> int | None:
        """Our epoch; None before ``claim``."""
        return self._epoch

    # --- the world and its hosts ---------------------------------------------------------------

    def initialise(self, world_id: str, seed: int) -> None:
        """Make the world's row: epoch, cut and step 0. ``seed`` is in 0 .. 2**64 - 1.

        Raises StorageError when the world exists already.
        """
        if not 0 <= seed < 2**64:
            raise WorldError(f"seed {seed} is not in 0 .. 2**64 - 1")
        signed = seed - 2**64 if seed >= 2**63 else seed
        with self._transaction():
            self._db.execute(
                "insert into world values (1, ?, ?, ?, 0, 0, 0)", (world_id, signed, schema.FORMAT)
            )

    def claim(self, wall_ms: int, rules: str) -> int:
        """Become the host: take the next epoch, note the opening, drop an unfinished cut."""
        with self._transaction():
            row = self._db.execute(
                "update world set epoch = epoch + 1 returning epoch, cut, step"
            ).fetchone()
            if row is None:
                raise StorageError(f"{self._path}: no world to host; initialise it first")
            epoch, cut, step = row
            self._db.execute(
                "insert into opening (epoch, wall_ms, rules) values (?, ?, ?)",
                (epoch, wall_ms, rules),
            )
            self._db.execute("delete from state where cut > ?", (cut,))
        self._epoch, self._step = int(epoch), int(step)
        return self._epoch

    def set_loading(self, ordinal: int | None) -> None:
        """Name the run being decoded, so that a crash there can be blamed on it.

        Not synced: what a killed process leaves must tell, a power cut is no run's fault.
        """
        with self._unsynced(), self._fenced():
            self._db.execute(
                "update opening set loading = ? where epoch = ?", (ordinal, self._epoch)
            )

    def mark_loaded(self, quarantined: Mapping[int, str] = MappingProxyType({})) -> None:
        """The load is over; no run is being decoded, and these were left out, each for a reason."""
        with self._fenced():
            self._db.execute(
                "update opening set loading = null, loaded = 1 where epoch = ?", (self._epoch,)
            )
            self._db.execute("delete from quarantine")
            self._db.executemany("insert into quarantine values (?, ?)", quarantined.items())

    def mark_clean(self) -> None:
        """This host closed in good order."""
        with self._fenced():
            self._db.execute("update opening set clean = 1 where epoch = ?", (self._epoch,))

    def liveness(self, wall_ms: int) -> None:
        """Renew our sign of life. Not synced: it means nothing after a power cut."""
        with self._unsynced(), self._fenced():
            self._db.execute(
                "insert or replace into liveness values (1, ?, ?)", (self._epoch, wall_ms)
            )

    # --- what a host writes --------------------------------------------------------------------

    def commit(self, batch: Batch) -> None:
        """Make a batch durable in one transaction: entries first, the world's step last.

        Raises Locked when another host took over, DiskFull when there is no space, StorageError
        with ``io=True`` in its fields for an I/O error. Nothing of the batch is there afterwards,
        except that after an I/O error it is unknown whether a later opening finds it.
        """
        db = self._db
        for row in batch.journal[:1]:
            if row.step <= self._step:
                raise WorldError(f"step {row.step} does not come after step {self._step}")
        last = batch.journal[-1].step if batch.journal else None
        with self._fenced(last):
            if batch.entries:
                rows = ((digest, zlib.crc32(body), body) for digest, body in batch.entries)
                db.executemany(_INSERT_ENTRY, rows)
            if batch.secrets:
                db.executemany(_UPSERT_SECRET, batch.secrets)
            if batch.journal:
                db.executemany(_INSERT_JOURNAL, map(astuple, batch.journal))
            if batch.runs:
                db.executemany(_UPSERT_RUN, map(astuple, batch.runs))
            if batch.ledger:
                db.executemany(_UPSERT_LEDGER, map(astuple, batch.ledger))
            if batch.mirror:
                db.executemany(_UPSERT_MIRROR, map(astuple, batch.mirror))
            if batch.behind:
                db.executemany(_OWE_FILES, [(run,) for run in batch.behind])
            if batch.endings:
                write_endings(db, batch.endings)
            if batch.owing:
                self._owe(batch.owing)
            if batch.gone:
                self._drop_runs(batch.gone, last)
            if batch.let_go:
                self._let_go(batch.let_go)
        if last is not None:
            self._step = last

    def _owe(self, owing: dict[int, bool]) -> None:
        """Note which ended runs a load has to look at."""
        owes = [(run,) for run, owes in owing.items() if owes]
        free = [(run,) for run, owes in owing.items() if not owes]
        self._db.executemany("insert or ignore into owing values (?)", owes)
        self._db.executemany("delete from owing where run = ?", free)

    def _drop_runs(self, ordinals: Sequence[int], step: int | None) -> None:
        """Forget what lists and charges runs; their state goes with the next cut."""
        keys = [(ordinal,) for ordinal in ordinals]
        self._db.executemany(_FORGET_FOLDER, keys)
        for table, column in _RUN_TABLES:
            self._db.executemany(f"delete from {table} where {column} = ?", keys)  # noqa: S608
        self._db.executemany(
            "insert or replace into gone values (?, coalesce(?, (select step from world)))",
            [(ordinal, step) for ordinal in ordinals],
        )

    def let_go(self, ordinals: Iterable[int]) -> None:
        """The folders of these forgotten runs are gone for good, or belong to another run now."""
        with self._fenced():
            self._let_go(ordinals)

    def _let_go(self, ordinals: Iterable[int]) -> None:
        self._db.executemany("delete from mirror where run = ?", [(-n,) for n in ordinals])

    def write_state(self, rows: Iterable[StateRow]) -> None:
        """Add rows of a cut that ``finish_cut`` will make valid. ``body`` None removes a part.

        Each row's ``cut`` is a committed step after the newest cut, so that nothing valid changes.
        What was written stays and becomes valid with the next cut that finishes, whichever that
        is: an owner counts as changed until ``finish_cut`` returned. A new host starts without it.
        """
        with self._fenced():
            row = self._db.execute("select cut, step from world").fetchone()
            assert row is not None
            self._db.executemany(_UPSERT_STATE, map(astuple, _of_next_cut(rows, *row)))

    def finish_cut(self, cut: int, *, keep_history_from: int | None) -> None:
        """Make all state rows up to ``cut`` valid at once and drop what they supersede.

        With ``keep_history_from``, journal rows older than the newest one at or before that step
        go; that one stays, for its digest. Nothing newer than the cut is ever dropped.
        """
        db = self._db
        with self._fenced():
            row = db.execute("select cut, step from world").fetchone()
            assert row is not None
            old_cut, step = row
            if not old_cut <= cut <= step:
                raise WorldError(f"cut {cut} is not between cut {old_cut} and step {step}")
            db.execute(_DROP_SUPERSEDED, (old_cut, cut))
            db.execute(
                "delete from state where cut > ? and cut <= ? and body is null", (old_cut, cut)
            )
            db.execute(
                "delete from state where owner in (select ordinal from gone where step <= ?)"
                " and cut <= ?",
                (cut, cut),
            )
            db.execute("delete from gone where step <= ?", (cut,))
            if keep_history_from is not None:
                db.execute(
                    "delete from journal where step < "
                    "(select max(step) from journal where step <= ?)",
                    (min(keep_history_from, cut),),
                )
            db.execute("update world set cut = ?", (cut,))

    @contextlib.contextmanager
    def writing(self) -> Generator[Connection]:
        """A transaction of this host for the tables of another module. Raises like ``commit``."""
        with self._fenced():
            yield self._db

    # --- plumbing ------------------------------------------------------------------------------

    def _note_log_pages(self, db: Connection, name: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint_if_due(self) -> None:
        """Fold the WAL into the database. What fails here fails after a commit that is durable.

        A full disk or a busy reader only means that the log grows on until the next try.
        """
        if self._log_pages < self.checkpoint_pages:
            return
        try:
            self._db.wal_checkpoint()
        except (apsw.FullError, apsw.BusyError, apsw.LockedError):
            pass
        except apsw.Error:
            self._checkpoint_failed = True

    @contextlib.contextmanager
    def _transaction(self) -> Generator[None]:
        if self._checkpoint_failed:
            raise StorageError(f"{self._path}: a checkpoint failed", path=self._path, io=True)
        with self._errors():
            self._db.execute("begin immediate")
            try:
                yield
                self._db.execute("commit")
            finally:
                if self._db.in_transaction:  # something failed and SQLite did not roll back itself
                    with contextlib.suppress(apsw.Error):
                        self._db.execute("rollback")
        self._checkpoint_if_due()

    @contextlib.contextmanager
    def _fenced(self, step: int | None = None) -> Generator[None]:
        """A transaction that ends by moving the world's step, provided that the epoch is ours."""
        if self._epoch is None:
            raise WorldError(f"{self._path}: claim() the world before writing to it")
        with self._transaction():
            yield
            self._db.execute(
                "update world set step = coalesce(?, step) where epoch = ?", (step, self._epoch)
            )
            if not self._db.changes():
                raise Locked(f"{self._path}: another host took over", path=self._path)

    @contextlib.contextmanager
    def _unsynced(self) -> Generator[None]:
        """Commits inside reach the operating system only; later synced ones cover them."""
        if self._level != "full":
            yield
            return
        self._db.pragma("synchronous", "normal")
        try:
            yield
        finally:
            self._db.pragma("synchronous", "full")


def _of_next_cut(rows: Iterable[StateRow], cut: int, step: int) -> Iterator[StateRow]:
    for row in rows:
        if not cut < row.cut <= step:
            raise WorldError(f"state of owner {row.owner} at {row.cut}: not in {cut + 1} .. {step}")
        yield row
