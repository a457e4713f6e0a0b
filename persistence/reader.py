"""What is read from ``world.db``: by a load, by a page-in, by listings.

A Reader belongs to one thread at a time. Its iterators read one moment of the database, that of
their first row. Nothing here writes, so it serves read-only connections as it is.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from leviath.components.address import URL_REF
from leviath.components.errors import Damaged
from leviath.persistence import schema
from leviath.persistence.connect import translated
from leviath.persistence.rows import (
    JournalRow,
    LedgerRow,
    LivenessRow,
    MirrorRow,
    OpeningRow,
    RunRow,
    StateRow,
    WorldRow,
)
from leviath.persistence.sqlite import Connection, Value

_ENTRIES_PER_QUERY: Final = 500
_NOT_ENDED: Final = (
    " and owner not in (select ordinal from run where ended_ms is not null"
    " and ordinal not in (select run from owing))"
)
_BOOLS: Final = tuple(
    place for place, field in enumerate(msgspec.structs.fields(RunRow)) if field.type is bool
)
assert ", ".join(RunRow.__struct_fields__) == schema.RUN_COLUMNS


class Reader:
    """The reading half of a Database."""

    def __init__(self, db: Connection, path: Path) -> None:
        self._db = db
        self._path = str(path)

    @property
    def connection(self) -> Connection:
        """The connection itself, for the tables of other stores and for tests."""
        return self._db

    def close(self) -> None:
        """Close the connection; the last one of a file also folds the WAL into it."""
        with self._errors():
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # --- the world and its hosts ---------------------------------------------------------------

    def world(self) -> WorldRow | None:
        """The world's row; None in a home that was never initialised."""
        row = self._one("select world_id, seed, format, epoch, cut, step from world")
        if row is None:
            return None
        world_id, seed, *rest = row
        return WorldRow(world_id, seed % 2**64, *rest)

    def openings(self) -> list[OpeningRow]:
        """All hosts this home had, oldest first."""
        rows = self._all("select epoch, wall_ms, rules, loading, loaded, clean from opening")
        return [
            OpeningRow(epoch, wall_ms, rules, loading, bool(loaded), bool(clean))
            for epoch, wall_ms, rules, loading, loaded, clean in rows
        ]

    def liveness_read(self) -> LivenessRow | None:
        """The newest sign of life of any host."""
        row = self._one("select epoch, wall_ms from liveness")
        return None if row is None else LivenessRow(*row)

    # --- what a load reads ---------------------------------------------------------------------

    def state_rows(self, *, ended: bool = True) -> Iterator[StateRow]:
        """The valid state: newest row of each (owner, part) as of the newest cut, in that order.

        Removed parts do not appear. ``ended=False`` leaves out the runs that have ended and owe
        nothing. Raises Damaged naming owner and part when a body is not what was written.
        """
        return self._valid_state("" if ended else _NOT_ENDED, ())

    def owner_state(self, owner: int) -> list[StateRow]:
        """The valid state of one owner, ordered by part; for the page-in of a run."""
        return list(self._valid_state(" and owner = ?", (owner,)))

    def _valid_state(self, where: str, bindings: tuple[int, ...]) -> Iterator[StateRow]:
        for values in self._valid(where, bindings):
            yield StateRow(*values)

    def state_bodies(self) -> Iterator[tuple[int, str, int, int, bytes]]:
        """``state_rows`` of the runs that have not ended or still owe something, as plain tuples
        in its order: for a load, which takes in millions."""
        return self._valid(_NOT_ENDED, ())

    def _valid(
        self, where: str, bindings: tuple[int, ...]
    ) -> Iterator[tuple[int, str, int, int, bytes]]:
        crc32 = zlib.crc32
        with self._errors():
            newest: Any = (None, None, 0, 0, None)
            rows: Iterable[tuple[Any, ...]] = self._db.execute(
                "select owner, part, cut, crc, body from state"  # noqa: S608
                f" where cut <= (select cut from world){where} order by owner, part, cut",
                bindings,
            )
            for values in chain(rows, ((None, "", 0, 0, None),)):
                # One that was removed has no body.
                if (values[1] != newest[1] or values[0] != newest[0]) and newest[4] is not None:
                    if crc32(newest[4]) != newest[3]:
                        raise self._damaged(newest[0], newest[1])
                    yield newest
                newest = values

    def _damaged(self, owner: int, part: str) -> Damaged:
        return Damaged(
            f"{self._path}: state of owner {owner}, part {part} is damaged",
            path=self._path,
            owner=owner,
            part=part,
        )

    def journal_after(self, step: int) -> Iterator[JournalRow]:
        """The journal's rows with a later step, in order."""
        with self._errors():
            for values in self._db.execute(
                "select * from journal where step > ? order by step", (step,)
            ):
                yield JournalRow(*values)

    def journal_digest_at(self, step: int) -> bytes | None:
        """The digest of exactly that step; None when the journal does not have it."""
        row = self._one("select digest from journal where step = ?", (step,))
        return None if row is None else row[0]

    def entry(self, digest: bytes) -> bytes | None:
        """The body of an entry. Raises Damaged when it is not what was written."""
        return self.entries((digest,)).get(digest)

    def entries(self, digests: Collection[bytes]) -> dict[bytes, bytes]:
        """The bodies of those entries that exist, by digest. Raises Damaged like ``entry``."""
        found: dict[bytes, bytes] = {}
        wanted = list(digests)
        for start in range(0, len(wanted), _ENTRIES_PER_QUERY):
            part = wanted[start : start + _ENTRIES_PER_QUERY]
            marks = ", ".join("?" * len(part))
            sql = f"select digest, crc, body from entry where digest in ({marks})"  # noqa: S608
            for digest, crc, body in self._all(sql, tuple(part)):
                if zlib.crc32(body) != crc:
                    raise Damaged(
                        f"{self._path}: entry {digest.hex()} is damaged",
                        path=self._path,
                        digest=digest.hex(),
                    )
                found[digest] = body
        return found

    def secret(self, ref: str) -> str | None:
        """The value of a secret; never log it."""
        row = self._one("select value from secret where ref = ?", (ref,))
        return None if row is None else row[0]

    def newest_secrets(self, limit: int) -> list[str]:
        """Secrets that sign callbacks, the newest last; never log them."""
        sql = "select value from secret where ref not glob ? order by ref desc limit ?"
        return [value for (value,) in self._all(sql, (f"{URL_REF}*", limit))][::-1]

    # --- what listings read --------------------------------------------------------------------

    def run_rows(
        self,
        *,
        statuses: Collection[str] = (),
        agent_name: str | None = None,
        parent_run_id: str | None = None,
        ended_before_ms: int | None = None,
        after: tuple[int, int] | None = None,
        limit: int | None = None,
    ) -> list[RunRow]:
        """Runs, most recently updated first. Empty filters let everything pass.

        Page by handing ``(updated_ms, ordinal)`` of the last row back as ``after``.
        """
        terms: list[str] = []
        bindings: list[str | int] = []
        if statuses:
            terms.append(f"status in ({', '.join('?' * len(statuses))})")
            bindings.extend(statuses)
        for column, value in (("agent_name", agent_name), ("parent_run_id", parent_run_id)):
            if value is not None:
                terms.append(f"{column} = ?")
                bindings.append(value)
        if ended_before_ms is not None:
            terms.append("ended_ms < ?")
            bindings.append(ended_before_ms)
        if after is not None:
            terms.append("(updated_ms, ordinal) < (?, ?)")
            bindings.extend(after)
        where = f" where {' and '.join(terms)}" if terms else ""
        bindings.append(-1 if limit is None else limit)
        order = " order by updated_ms desc, ordinal desc limit ?"
        return self._runs(where + order, tuple(bindings))

    def run_counts(self) -> dict[str, int]:
        """How many runs have each status."""
        return dict(self._all("select status, count(*) from run group by status"))

    def run_by_id(self, run_id: str) -> RunRow | None:
        """The run with that id."""
        return next(iter(self._runs(" where run_id = ?", (run_id,))), None)

    def run_by_key(self, key: str) -> RunRow | None:
        """The run that was spawned with that key."""
        return next(iter(self._runs(" where key = ?", (key,))), None)

    def run_by_ordinal(self, ordinal: int) -> RunRow | None:
        """The run with that ordinal."""
        return next(iter(self._runs(" where ordinal = ?", (ordinal,))), None)

    def _runs(self, tail: str, bindings: tuple[str | int, ...]) -> list[RunRow]:
        rows = self._all(f"select {schema.RUN_COLUMNS} from run{tail}", bindings)  # noqa: S608
        return [_run_row(row) for row in rows]

    def ledger(self, run: int) -> list[LedgerRow]:
        """All provider calls of one run, by effect and attempt."""
        rows = self._all("select * from ledger where run = ? order by effect, attempt", (run,))
        return [LedgerRow(*row) for row in rows]

    def forgotten(self) -> list[tuple[int, str]]:
        """(ordinal, run id) of forgotten runs whose folders may not be removed yet."""
        rows = self._all("select -run, file from mirror where run < 0 order by run desc")
        return [(int(ordinal), str(run_id)) for ordinal, run_id in rows]

    def mirror_rows(self, run: int | None = None) -> list[MirrorRow]:
        """The newest write of each mirrored file, of one run or of all."""
        if run is None:
            rows = self._all("select * from mirror where run >= 0 order by run, file")
        else:
            rows = self._all("select * from mirror where run = ? order by file", (run,))
        return [MirrorRow(*row) for row in rows]

    def rows(self, sql: str, bindings: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query that no method here has. Raises Damaged, StorageError."""
        return self._all(sql, bindings)

    # --- plumbing ------------------------------------------------------------------------------

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return translated(self._path, self._db)

    def _one(self, sql: str, bindings: Sequence[Value] = ()) -> tuple[Any, ...] | None:
        with self._errors():
            return self._db.execute(sql, bindings).fetchone()

    def _all(self, sql: str, bindings: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        with self._errors():
            return self._db.execute(sql, bindings).fetchall()


def _run_row(values: tuple[Any, ...]) -> RunRow:
    row = list(values)
    for place in _BOOLS:
        row[place] = bool(row[place])
    return RunRow(*row)
