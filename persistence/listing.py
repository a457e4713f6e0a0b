"""What a listing reads of a home, quickly: no msgspec, no trio, no file of any run that is known.

A page costs a fixed number of statements, however many runs the home has. Pages are in order of
spawning, newest first: that order stands still while hosts renew rows, so paging neither skips a
run nor shows one twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from leviath.components.errors import StorageError
from leviath.components.run_status import RunStatus
from leviath.persistence.connect import open_checked, translated
from leviath.persistence.sqlite import Connection, Value

LIVE: Final = tuple(status.value for status in RunStatus if not status.is_ended)
"""Wire words of runs that have not ended."""
ENDED: Final = tuple(status.value for status in RunStatus if status.is_ended)
DIED_LOADING_MAX: Final = 2
"""Hosts that may die while they decode one run; the next host leaves it out."""
_DIED_LOADING: Final = "hosts died while loading it"

_COLUMNS: Final = (
    "ordinal, run_id, status, waiting_on, agent_name, stage, stage_index, num_stages, iteration, "
    "tool_calls, started_ms, updated_ms, progress_ms, ended_ms, title, error, yolo, has_output, "
    "empty_output, parent_run_id"
)


class ListedRun(NamedTuple):
    """One line of a listing. Times are Unix milliseconds."""

    ordinal: int
    run_id: str
    status: str
    waiting_on: str | None
    agent_name: str
    stage: str
    stage_index: int
    num_stages: int
    iteration: int
    tool_calls: int
    started_ms: int
    updated_ms: int
    progress_ms: int | None
    ended_ms: int | None
    title: str | None
    error: str | None
    yolo: int
    has_output: int
    empty_output: int
    parent_run_id: str | None


assert ", ".join(ListedRun._fields) == _COLUMNS


class EndedRun(NamedTuple):
    """A run that retention may remove."""

    run_id: str
    status: str
    ended_ms: int


class Listing:
    """A read-only look at one moment of a home's index; also a context manager."""

    def __init__(self, db: Connection, path: Path) -> None:
        self._db = db
        self._path = str(path)
        with translated(self._path, db):
            db.execute("begin")

    @classmethod
    def open(cls, home: Path) -> Self | None:
        """The listing of a home, hosted or not; None when it has no ``world.db``.

        Raises Damaged, NewerFormat, StorageError.
        """
        path = home / "world.db"
        try:
            return cls(open_checked(path, level="full", read_only=True), path)
        except StorageError as error:
            if error.fields.get("missing"):
                return None
            raise

    def close(self) -> None:
        """Let the database go; nothing was written."""
        with translated(self._path, self._db):
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def connection(self) -> Connection:
        """The connection itself, for tests that count what it is asked."""
        return self._db

    def page(
        self, *, limit: int, after: int | None = None, ended_since_ms: int | None = None
    ) -> list[ListedRun]:
        """Up to ``limit`` runs, newest first: those that have not ended, and ended ones.

        ``after`` is the ordinal of the last run of the page before. Of ended runs only those that
        ended at ``ended_since_ms`` (Unix milliseconds) or later count; None takes all.
        """
        below = 2**62 if after is None else after
        since = -1 if ended_since_ms is None else ended_since_ms
        # The index holds status, update and ordinal, so picking a page reads no row of a table. A
        # run's row is not updated before it ends.
        picked = (
            "select ordinal from run indexed by run_by_status"  # noqa: S608
            f" where status in ({_marks(LIVE)}) and ordinal < ?"
            " union all select ordinal from run indexed by run_by_status"
            f" where status in ({_marks(ENDED)}) and updated_ms >= ? and ordinal < ?"
            f"{' and coalesce(ended_ms, updated_ms) >= ?' if ended_since_ms is not None else ''}"
            " order by ordinal desc limit ?"
        )
        tail = () if ended_since_ms is None else (since,)
        bindings = (*LIVE, below, *ENDED, since, below, *tail, limit)
        return self._runs(f"ordinal in ({picked}) order by ordinal desc", bindings)

    def run(self, run_id: str) -> ListedRun | None:
        """The run with exactly that id."""
        return next(iter(self._runs("run_id = ?", (run_id,))), None)

    def starting_with(self, head: str, *, limit: int) -> list[str]:
        """Up to ``limit`` run ids that start with ``head``, which may not hold a ``~``."""
        # Run ids are made of characters below "~".
        sql = "select run_id from run where run_id >= ? and run_id < ? order by run_id limit ?"
        return [str(row[0]) for row in self._all(sql, (head, head + "~", limit))]

    def counts(self) -> dict[str, int]:
        """How many runs have each status."""
        return dict(self._all("select status, count(*) from run group by status"))

    def ended(self) -> list[EndedRun]:
        """All ended runs that have no child or parent at work, newest ending first."""
        sql = (
            "select run_id, status, coalesce(ended_ms, updated_ms) as over from run"  # noqa: S608
            f" where status in ({_marks(ENDED)}) and not exists (select 1 from run as child"
            f" where child.parent_run_id = run.run_id and child.status not in ({_marks(ENDED)}))"
            " and not exists (select 1 from run as parent where parent.run_id = run.parent_run_id"
            f" and parent.status not in ({_marks(ENDED)}))"
            " order by over desc, ordinal desc"
        )
        return [EndedRun(*row) for row in self._all(sql, (*ENDED, *ENDED, *ENDED))]

    def run_ids(self) -> set[str]:
        """The ids of all runs, ended ones too."""
        return {str(row[0]) for row in self._all("select run_id from run")}

    def forgotten(self) -> set[str]:
        """Ids of runs that were removed, whose folders the next host removes if they are there."""
        return {str(row[0]) for row in self._all("select file from mirror where run < 0")}

    def quarantined(self) -> dict[str, str]:
        """By id, why runs are hosted by nobody: the newest host left them out, or the next one will
        because hosts died while they decoded them."""
        died = (
            "select run_id, ? from run where ordinal in (select loading from opening where"  # noqa: S608
            " loading is not null and loaded = 0 group by loading having count(*) >= ?)"
            f" and status in ({_marks(LIVE)})"
        )
        left_out = (
            "select run_id, reason from quarantine join run on ordinal = quarantine.run"
            " order by ordinal"
        )
        found = dict(self._all(died, (_DIED_LOADING, DIED_LOADING_MAX, *LIVE)))
        return found | dict(self._all(left_out))

    def _runs(self, where: str, bindings: tuple[Value, ...]) -> list[ListedRun]:
        rows = self._all(f"select {_COLUMNS} from run where {where}", bindings)  # noqa: S608
        return [ListedRun(*row) for row in rows]

    def _all(self, sql: str, bindings: tuple[Value, ...] = ()) -> list[tuple[Any, ...]]:
        with translated(self._path, self._db):
            return self._db.execute(sql, bindings).fetchall()


def _marks(values: tuple[str, ...]) -> str:
    return ", ".join("?" * len(values))


class Stray(NamedTuple):
    """A folder below ``runs`` that ``world.db`` does not know."""

    name: str
    fault: str
    """Why it is no run folder at all; empty when its files have to be looked at."""


def strays(home: Path, known: Iterable[str]) -> Iterator[Stray]:
    """What stands in ``runs`` beside the known runs, by name, from one scan; no file is opened.

    Raises StorageError when the folder cannot be read. One that is missing holds nothing.
    """
    folder = home / "runs"
    ids = set(known)
    try:
        with os.scandir(folder) as entries:
            found = [entry for entry in entries if entry.name not in ids]
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise StorageError(f"{folder}: cannot be read ({error.strerror})") from error
    for entry in sorted(found, key=lambda entry: entry.name):
        if entry.is_symlink():
            yield Stray(entry.name, "is a symbolic link; run folders are real folders")
        elif entry.is_dir(follow_symlinks=False):
            yield Stray(entry.name, "")
