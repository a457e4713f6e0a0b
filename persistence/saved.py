"""A saved world to be read: a home, hosted or not, or a folder that ``lev export`` wrote.

Both give the same things: where history begins, the steps after it with their chain checked, and
the bodies that they name. Nothing here writes, and a home is read in short looks, so that its host
neither waits nor keeps old pages for us.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Self

from leviath.components.errors import ConfigError, Damaged, StorageError
from leviath.components.family import Split
from leviath.components.identity import Launch
from leviath.components.inputs import AgentFound, Fork, Import, Spawn
from leviath.persistence.database import open_database
from leviath.persistence.journal import ORIGIN, check_chain
from leviath.persistence.redo import decode_part
from leviath.persistence.retention import base_parts, base_step
from leviath.persistence.rows import JournalRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from leviath.components.base import Component
    from leviath.components.inputs import Input
    from leviath.persistence.database import Database

WORLD_FILE: Final = "world.jsonl"
"""The file of an exported folder that says what it is."""
_ROWS_AT_ONCE: Final = 500
"""Rows of one look into a home: a read of a few milliseconds."""


class Saved(Protocol):
    """A saved world, open for reading; a context manager."""

    path: Path
    world_id: str
    seed: int
    base: int
    """The step that history begins after; 0 when all of it is there."""
    last: int
    """The newest step."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None: ...

    def rules_of(self, epoch: int) -> str:
        """Version of the rules that the host of that epoch applied; "" when it is not known."""
        ...

    def base_digest(self) -> bytes:
        """The digest that the first step is chained to."""
        ...

    def base_parts(self) -> Iterator[tuple[int, str, bytes]]:
        """(owner, part, body) of the state at ``base``."""
        ...

    def journal(self, after: int) -> Iterator[JournalRow]:
        """Rows after a step, as they are stored. Raises Damaged."""
        ...

    def entry(self, digest: bytes) -> bytes | None:
        """A text or blueprint by its digest. Raises Damaged when it is not what was written."""
        ...

    def runs_starting(self, prefix: str) -> list[tuple[str, int]]:
        """(run id, ordinal) of the runs whose id begins so, by ordinal."""
        ...


def open_saved(path: str | os.PathLike[str]) -> Saved:
    """Open a home or an exported folder for reading. Use it in ``with``.

    Raises ConfigError for anything else, Damaged, NewerFormat, StorageError; nothing is changed.
    """
    where = Path(path)
    if (where / WORLD_FILE).is_file():
        from leviath.persistence.saved_folder import SavedFolder

        return SavedFolder(where)
    if (where / "world.db").is_file():
        return SavedHome(where)
    raise ConfigError(
        f"{where}: is no saved world; give a home (with world.db) or a folder that `lev export` "
        f"wrote (with {WORLD_FILE})"
    )


class SavedHome:
    """A home as it stood when this was opened: later steps are not looked at."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db: Database = open_database(path / "world.db", level="process", read_only=True)
        try:
            self._db.connection.execute("begin")
            row = self._db.world()
            if row is None:
                raise StorageError(f"{path}: holds no step yet; run something in it first")
            self.world_id: str = row.world_id
            self.seed: int = row.seed
            self.last: int = row.step
            self._rules = {opening.epoch: opening.rules for opening in self._db.openings()}
            self.base: int = base_step(self._db)
            self._parts = list(base_parts(self._db)) if self.base else []
            self._base_digest = self._db.journal_digest_at(self.base) if self.base else ORIGIN
            self._db.connection.execute("commit")
        except BaseException:
            self._db.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._db.close()

    def rules_of(self, epoch: int) -> str:
        """See Saved."""
        return self._rules.get(epoch, "")

    def base_digest(self) -> bytes:
        """See Saved."""
        return self._base_digest or ORIGIN

    def base_parts(self) -> Iterator[tuple[int, str, bytes]]:
        """See Saved."""
        if self.base and not self._parts:
            raise Damaged(
                f"{self.path}: its history begins after step {self.base}, and the state there is "
                "gone; restore the home from a copy"
            )
        return iter(self._parts)

    def journal(self, after: int) -> Iterator[JournalRow]:
        """See Saved."""
        while after < self.last:
            rows = self._db.rows(
                "select * from journal where step > ? and step <= ? order by step limit ?",
                (after, self.last, _ROWS_AT_ONCE),
            )
            if not rows or rows[0][0] != after + 1:
                if base_step(self._db) != self.base:
                    raise StorageError(
                        f"{self.path}: its host let go of old steps while they were read; try again"
                    )
                if not rows:
                    return
            for values in rows:
                yield JournalRow(*values)
            after = int(rows[-1][0])

    def entry(self, digest: bytes) -> bytes | None:
        """See Saved."""
        return self._db.entry(digest)

    def secrets(self) -> list[str]:
        """Values that no export may carry; never log them."""
        return [value for (value,) in self._db.rows("select value from secret")]

    def runs_starting(self, prefix: str) -> list[tuple[str, int]]:
        """See Saved."""
        rows = self._db.rows(
            "select run_id, ordinal from run where substr(run_id, 1, ?) = ? order by ordinal",
            (len(prefix), prefix),
        )
        return [(str(run_id), int(ordinal)) for run_id, ordinal in rows]


def checked_journal(saved: Saved, *, upto: int | None = None) -> Iterator[JournalRow]:
    """Every step after the base, in order, none missing or altered, up to and with ``upto``.

    Raises Damaged naming the step; ConfigError when the world has no such step.
    """
    last = saved.last if upto is None else upto
    if not saved.base <= last <= saved.last:
        raise ConfigError(
            f"{saved.path}: has no step {last}; its steps are {saved.base + 1} to {saved.last}"
        )
    digest, expected = saved.base_digest(), saved.base
    if last == expected:
        return
    for row in saved.journal(saved.base):
        expected += 1
        if row.step != expected:
            break
        digest = check_chain(digest, row)
        yield row
        if row.step == last:
            return
    else:
        expected += 1
    raise Damaged(
        f"{saved.path}: step {expected} of {saved.last} is missing from its journal; take the "
        "saved world from a copy",
        step=expected,
    )


def blueprints_named(inputs: Iterable[Input]) -> Iterator[bytes]:
    """Digests of the blueprints that inputs bring into a world."""
    for item in inputs:
        if type(item) is Spawn:
            yield item.launch.blueprint
        elif type(item) is AgentFound or type(item) is Fork:
            yield item.blueprint
        elif type(item) is Import:
            yield from blueprints_of(decode_part(name, body) for name, body in item.parts)


def blueprints_of(parts: Iterable[Component]) -> Iterator[bytes]:
    """Digests of the blueprints that components name."""
    for part in parts:
        if isinstance(part, Launch | Split):
            yield part.blueprint
