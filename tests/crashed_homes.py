"""A home as a host leaves it that is killed at this moment."""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

import apsw

if TYPE_CHECKING:
    from pathlib import Path


def _copy(source: str, target: str) -> None:
    """Copy a file, unless it was a draft that has its name by now."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


def crashed(home: Path, to: Path) -> Path:
    """Copy a home, while its host has it, as of one moment of its database."""
    to.mkdir(mode=0o700)
    # The files first: they may be older than the store, never newer.
    if (home / "runs").exists():
        shutil.copytree(home / "runs", to / "runs", symlinks=True, copy_function=_copy)
    source = apsw.Connection(str(home / "world.db"), flags=apsw.SQLITE_OPEN_READONLY)
    target = apsw.Connection(str(to / "world.db"))
    with target.backup("main", source, "main") as backup:
        backup.step()
    source.close()
    target.close()
    (to / "world.db").chmod(0o600)
    return to
