"""Opening a run store in a file of its own: what it is, and the way to the present format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leviath.components.errors import Damaged, NewerFormat
from leviath.persistence import store_schema

if TYPE_CHECKING:
    from pathlib import Path

    from leviath.persistence.sqlite import Connection


def check_header(file: Path | str, header: tuple[int, int]) -> None:
    """Raise Damaged or NewerFormat for what this leviath does not write into."""
    application_id, version = header
    if application_id != store_schema.APPLICATION_ID:
        raise Damaged(f"{file}: is the database of another program", path=str(file))
    if version > store_schema.FORMAT:
        raise NewerFormat(
            f"{file}: has format {version}, this leviath reads up to {store_schema.FORMAT}; use "
            "the newer leviath (nothing was changed)",
            path=str(file),
            format=version,
        )


def migrate(db: Connection, path: str) -> None:
    """Bring the store to the present format: all missing steps, or none of them."""
    # The log may be ahead of the header: what a newer leviath did there was not seen yet.
    have = int(db.pragma("user_version"))
    if have:
        check_header(path, (int(db.pragma("application_id")), have))
    if have == store_schema.FORMAT:
        return
    db.execute("begin immediate")
    try:
        # Another process may have been first.
        have = int(db.pragma("user_version"))
        if have:
            check_header(path, (int(db.pragma("application_id")), have))
        tables = db.execute("select count(*) from sqlite_schema").fetchone()
        if not have and tables is not None and tables[0]:
            raise Damaged(f"{path}: is the database of another program", path=path)
        for number in range(have, store_schema.FORMAT):
            db.execute(store_schema.MIGRATIONS[number])
        db.pragma("application_id", store_schema.APPLICATION_ID)
        db.pragma("user_version", store_schema.FORMAT)
        db.execute("commit")
    finally:
        if db.in_transaction:
            db.execute("rollback")
