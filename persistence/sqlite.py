"""A typed face of an apsw connection.

apsw's own stubs spell values with ``Buffer``, which a type checker for Python 3.11 does not know,
and so make every statement partly unknown. This names what we use of it, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, cast

import apsw

Value = None | int | float | str | bytes


class Rows(Protocol):
    """What a statement answers; values come as SQLite stores them."""

    def __iter__(self) -> Iterator[tuple[Any, ...]]: ...

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row; None after the last."""
        ...

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows that are left."""
        ...


class Connection(Protocol):
    """What we use of ``apsw.Connection``; see its documentation."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        ...

    @property
    def system_errno(self) -> int:
        """The operating system's number for the newest failed call."""
        ...

    def execute(self, statements: str, bindings: Sequence[Value] | None = None, /) -> Rows:
        """Run statements; the rows of the last."""
        ...

    def executemany(self, statements: str, bindings: Iterable[Sequence[Any]], /) -> Rows:
        """Run a statement once for each of the bindings."""
        ...

    def pragma(self, name: str, value: str | int | None = None, /) -> Any:
        """Set or get a pragma."""
        ...

    def changes(self) -> int:
        """Rows that the newest statement changed."""
        ...

    def wal_checkpoint(self) -> tuple[int, int]:
        """Fold the log into the database: pages in the log, pages folded."""
        ...

    def wal_autocheckpoint(self, pages: int, /) -> None:
        """Fold after commits that leave so many pages in the log; 0 for never."""
        ...

    def set_wal_hook(self, hook: Callable[[Any, str, int], int] | None, /) -> None:
        """Call the hook after each commit with the pages in the log."""
        ...

    def set_busy_timeout(self, milliseconds: int, /) -> None:
        """How long a statement waits for a lock."""
        ...

    def backup(self, name: str, source: Any, source_name: str, /) -> apsw.Backup:
        """A copy of the source into this database, to be stepped."""
        ...

    def close(self) -> None:
        """Close; a second call does nothing."""
        ...


def connect(path: str, *, flags: int, vfs: str | None) -> Connection:
    """A new connection. Raises apsw errors."""
    return cast("Connection", apsw.Connection(path, flags=flags, vfs=vfs))
