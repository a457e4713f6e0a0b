"""Opening ``world.db`` and saying what went wrong with it in our own errors.

What the file is gets decided from its first 100 bytes, before SQLite touches anything: so a
database of a newer leviath, or of another program, stays as it is down to the byte.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Generator
from pathlib import Path
from typing import Final, Literal

import apsw

from leviath.components.errors import Damaged, DiskFull, NewerFormat, StorageError
from leviath.persistence import schema, sqlite
from leviath.persistence.sqlite import Connection

Level = Literal["full", "process"]
"""``full``: a commit is on the disk. ``process``: it survives a killed process, not a power cut."""

_SYNCHRONOUS: Final = {"full": "full", "process": "off"}
_BUSY_TIMEOUT_MS: Final = 5_000
_WAL_KEPT_BYTES: Final = 64 * 1024 * 1024
_CACHE_KIB: Final = 32 * 1024
_PARTS: Final = ("-wal", "-shm", "-journal", "")
_MAGIC: Final = b"SQLite format 3\x00"
# What is read or written against the schema's own rules was not written by us.
_DAMAGE: Final = (apsw.CorruptError, apsw.NotADBError, apsw.ConstraintError, apsw.MismatchError)
_NO_SPACE: Final = frozenset((errno.ENOSPC, errno.EDQUOT))


@contextlib.contextmanager
def translated(path: str, db: Connection | None = None) -> Generator[None]:
    """Raise what SQLite reports inside as the error of ours that names file and remedy."""
    try:
        yield
    except apsw.Error as error:
        raise _our_error(error, path, db) from error


def _our_error(error: apsw.Error, path: str, db: Connection | None) -> StorageError:
    if isinstance(error, apsw.ConnectionClosedError):
        return StorageError(f"{path}: it is closed; open it again", path=path)
    try:
        os_errno = 0 if db is None else db.system_errno
    except apsw.ConnectionClosedError:  # what failed is the closing itself
        os_errno = 0
    if isinstance(error, apsw.FullError) or (
        isinstance(error, apsw.IOError) and os_errno in _NO_SPACE
    ):
        return DiskFull(f"{path}: no space left on the disk; free some and it goes on", path=path)
    if isinstance(error, _DAMAGE):
        return Damaged(f"{path}: the database is damaged ({error})", path=path)
    if isinstance(error, apsw.BusyError):
        # Not Locked: whoever it is, a reader with an open transaction say, it is no host.
        return StorageError(
            f"{path}: another program keeps the database busy; close it", path=path, busy=True
        )
    if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError):
        return StorageError(
            f"{path}: it may not be written ({error}); give this user the right to write the "
            "home's folder and files, or use another home",
            path=path,
        )
    if isinstance(error, apsw.IOError):
        return StorageError(f"{path}: input/output error ({error})", path=path, io=True)
    return StorageError(f"{path}: {error}", path=path)


def _head(path: Path) -> bytes:
    """The first 100 bytes of the file, or what there is. Raises OSError.

    Read through SQLite's own file layer: POSIX drops every lock that this process has on a file
    when any descriptor of it is closed, and only SQLite knows which of its locks are still needed.
    """
    path.stat()
    try:
        file = apsw.VFSFile(
            "", str(path), [apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB, 0]
        )
    except apsw.Error as error:
        raise OSError(errno.EACCES, str(error), str(path)) from error
    try:
        return file.xRead(100, 0)
    except apsw.Error as error:
        raise OSError(errno.EIO, str(error), str(path)) from error
    finally:
        file.xClose()


def read_header(path: Path) -> tuple[int, int] | None:
    """(application id, format) from the header of the file; None when there is no database yet.

    Raises Damaged for a file that is not a SQLite database.
    """
    try:
        header = _head(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})", path=str(path)) from error
    if not header:
        # A crash during creation leaves an empty file; an empty file that has a log lost its pages.
        wal = path.with_name(path.name + "-wal")
        if wal.exists() and wal.stat().st_size:
            raise Damaged(f"{path}: is empty although its log is not", path=str(path))
        return None
    if len(header) < 100 or not header.startswith(_MAGIC):
        raise Damaged(f"{path}: is not a SQLite database", path=str(path))
    return int.from_bytes(header[68:72], "big"), int.from_bytes(header[60:64], "big")


def connect(
    path: Path, *, level: Level, vfs: str | None, read_only: bool, exists: bool
) -> Connection:
    """A connection with our settings to the database at ``path``, its format not looked at yet.

    A new file is created with mode 0600, which SQLite hands on to the -wal and -shm files.
    """
    if read_only:
        flags = apsw.SQLITE_OPEN_READONLY
    else:
        flags = apsw.SQLITE_OPEN_READWRITE
        if not exists:
            flags |= apsw.SQLITE_OPEN_CREATE
            _create_private(path)
    db = sqlite.connect(str(path), flags=flags, vfs=vfs)
    try:
        db.set_busy_timeout(_BUSY_TIMEOUT_MS)
        db.pragma("trusted_schema", False)
        db.pragma("cell_size_check", True)
        db.pragma("temp_store", "memory")
        db.pragma("cache_size", -_CACHE_KIB)
        db.pragma("synchronous", _SYNCHRONOUS[level])
        db.pragma("journal_size_limit", _WAL_KEPT_BYTES)
        # Database does it between commits: a failed checkpoint must not look like a failed commit.
        db.wal_autocheckpoint(0)
    except BaseException:
        db.close()
        raise
    return db


def _create_private(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise DiskFull(f"{path}: no space left on the disk", path=str(path)) from error
        reason = f"{path}: cannot be created ({error.strerror})"
        raise StorageError(reason, path=str(path)) from error


def open_checked(
    path: Path, *, level: Level, vfs: str | None = None, read_only: bool = False
) -> Connection:
    """Open, create or migrate ``path``; see ``database.open_database`` for what is raised."""
    if not read_only:
        undo_torn_creation(path, vfs)
    header = read_header(path)
    if header is None and read_only:
        raise StorageError(f"{path}: there is no database", path=str(path), missing=True)
    if header is not None:
        _check_header(path, header)
    with translated(str(path)):
        db = connect(path, level=level, vfs=vfs, read_only=read_only, exists=header is not None)
    try:
        with translated(str(path), db):
            if not read_only:
                schema.migrate(db, keep_copy=lambda old: keep_copy(db, path, old, vfs))
            elif schema.format_of(db) < schema.FORMAT:
                raise StorageError(f"{path}: is of an older format; open it for writing once")
            present = {str(name) for (name,) in db.execute("select name from sqlite_schema")}
        if missing := sorted(schema.TABLES - present):
            raise Damaged(f"{path}: lacks table {missing[0]}", path=str(path))
    except BaseException:
        db.close()
        raise
    return db


def undo_torn_creation(path: Path, vfs: str | None) -> None:
    """Let SQLite roll back a creation that a power cut tore before the header was written."""
    journal = path.with_name(path.name + "-journal")
    try:
        torn = journal.stat().st_size and not _head(path).strip(b"\x00")
    except OSError:
        return
    if torn:
        with translated(str(path)):
            db = sqlite.connect(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)
            try:
                db.execute("select * from sqlite_schema").fetchall()
            finally:
                db.close()


def _check_header(path: Path, header: tuple[int, int]) -> None:
    application_id, version = header
    if application_id != schema.APPLICATION_ID:
        raise Damaged(f"{path}: is the database of another program", path=str(path))
    if version > schema.FORMAT:
        raise NewerFormat(
            f"{path}: has format {version}, this leviath reads up to {schema.FORMAT}; "
            "use the newer leviath (nothing was changed)",
            path=str(path),
            format=version,
        )


def move_aside(path: Path) -> Path:
    """Give a damaged database and what belongs to it the name ``<name>.damaged-N``; that name.

    Nothing is deleted. The log goes first: one that stayed behind would be taken for a new
    database's. Raises DiskFull, StorageError.
    """
    number = 1
    while any(path.with_name(f"{path.name}.damaged-{number}{end}").exists() for end in _PARTS):
        number += 1
    target = path.with_name(f"{path.name}.damaged-{number}")
    try:
        for end in _PARTS:
            with contextlib.suppress(FileNotFoundError):
                os.rename(f"{path}{end}", f"{target}{end}")
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise DiskFull(f"{path}: no space left on the disk", path=str(path)) from error
        reason = f"{path}: cannot be moved aside ({error.strerror})"
        raise StorageError(reason, path=str(path)) from error
    return target


def keep_copy(db: Connection, path: Path, old_format: int, vfs: str | None) -> None:
    """Copy the database to ``<name>.format-<old_format>`` before its format changes."""
    target = path.with_name(f"{path.name}.format-{old_format}")
    target.unlink(missing_ok=True)
    _create_private(target)
    copy = sqlite.connect(str(target), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)
    try:
        with copy.backup("main", db, "main") as backup:
            backup.step()
    finally:
        copy.close()
