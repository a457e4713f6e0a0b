"""How much history stays: the oldest steps are folded into the state that they came to.

What is kept replays exactly: from that state on, with the digest that the first kept step is
chained to. State is of runs that are there, so no run is ever lost by it.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import msgspec

from leviath.components.changes import Gone, Put, Splice
from leviath.components.context import Context
from leviath.components.errors import Damaged
from leviath.persistence.journal import check_chain, decode_changes
from leviath.persistence.redo import Owners, apply_changes, decode_part
from leviath.persistence.rows import JournalRow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leviath.components.changes import Change
    from leviath.persistence.database import Database
    from leviath.persistence.reader import Reader
    from leviath.persistence.sqlite import Connection

_CONTEXT = Context.__name__


def base_step(reader: Reader) -> int:
    """The step that the kept history begins after; 0 when all of it is there."""
    first = reader.rows("select min(step) from journal")[0][0]
    return 0 if first is None or first == 1 else int(first)


def base_parts(reader: Reader) -> Iterator[tuple[int, str, bytes]]:
    """(owner, part, body) of the state that the kept history begins with. Raises Damaged."""
    for owner, part, crc, body in reader.rows("select * from base order by owner, part"):
        if zlib.crc32(body) != crc:
            raise Damaged(
                f"{part} of owner {owner} in the state that history begins with is damaged; "
                "restore the home from a copy",
                owner=owner,
                part=part,
            )
        yield int(owner), str(part), bytes(body)


def fold_history(database: Database, upto: int, *, steps_max: int) -> int:
    """Fold at most ``steps_max`` of the oldest steps, none after ``upto`` or the newest cut.

    One transaction: all of it, or nothing. Returns the step that history begins after now; the row
    of that step stays, for its digest. Called by the host of the home, in the writer's thread.

    Raises Damaged when a step is not what was written (nothing is folded then), Locked, DiskFull,
    StorageError.
    """
    row = database.world()
    assert row is not None
    base = base_step(database)
    target = min(upto, row.cut, base + steps_max)
    if target <= base:
        return base
    folded = _Fold(database)
    before = database.journal_digest_at(base) if base else bytes(32)
    assert before is not None
    expected = base
    found = database.rows(
        "select * from journal where step > ? and step <= ? order by step", (base, target)
    )
    for values in found:
        step = JournalRow(*values)
        expected += 1
        if step.step != expected:
            break
        before = check_chain(before, step)
        for change in decode_changes(step):
            folded.take(change)
    if expected != target or len(found) != target - base:
        raise Damaged(f"step {expected} of the journal is missing; restore the home from a copy")
    with database.writing() as connection:
        folded.write(connection)
        connection.execute("delete from journal where step < ?", (target,))
    return target


class _Fold:
    """The parts that some steps leave, by owner and name; None for one that is gone."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._parts: dict[tuple[int, str], bytes | None] = {}
        self._contexts: Owners = {}
        """Contexts that were spliced: encoded once, when all is folded."""
        self._gone: list[int] = []

    def take(self, change: Change) -> None:
        """Apply one change."""
        if type(change) is Put:
            self._put(change.owner, change.part, bytes(change.body))
        elif type(change) is Splice:
            if change.owner not in self._contexts:
                body = self._body(change.owner)
                self._contexts[change.owner] = {Context: decode_part(_CONTEXT, body)}
            apply_changes(self._contexts, [change])
        elif type(change) is Gone:
            self._gone.append(change.owner)
            self._contexts.pop(change.owner, None)
            for key in [key for key in self._parts if key[0] == change.owner]:
                del self._parts[key]
        else:
            self._put(change.owner, change.part, None)  # type: ignore[union-attr]

    def _put(self, owner: int, part: str, body: bytes | None) -> None:
        if part == _CONTEXT:
            self._contexts.pop(owner, None)
        self._parts[owner, part] = body

    def _body(self, owner: int) -> bytes:
        body = self._parts.get((owner, _CONTEXT))
        if body is None:
            rows = self._database.rows(
                "select body from base where owner = ? and part = ?", (owner, _CONTEXT)
            )
            if not rows:
                raise Damaged(f"the journal splices a context of run {owner}, which has none")
            body = bytes(rows[0][0])
        return body

    def write(self, connection: Connection) -> None:
        """Write what was folded, within a transaction."""
        connection.executemany(
            "delete from base where owner = ?", [(owner,) for owner in self._gone]
        )
        for owner, row in self._contexts.items():
            self._parts[owner, _CONTEXT] = msgspec.msgpack.encode(row[Context])
        connection.executemany(
            "delete from base where owner = ? and part = ?",
            [key for key, body in self._parts.items() if body is None],
        )
        connection.executemany(
            "insert or replace into base values (?, ?, ?, ?)",
            [
                (*key, zlib.crc32(body), body)
                for key, body in self._parts.items()
                if body is not None
            ],
        )
