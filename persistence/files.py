"""Whole files and appended lines under a home: private, atomic, and never through a symbolic link.

All work goes through descriptors of folders, so that a folder swapped for a link between a check
and a write changes nothing. What touches the disk is a FileSystem: the real one here, a recording
one with faults in ``simulation.disk``.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path
from typing import Final, Protocol

from leviath.components.errors import ConfigError, DiskFull, StorageError
from leviath.components.run_id import check_run_id

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
NAME_BYTES_MAX: Final = 255 - len(".tmp")

_TEMP_SUFFIX: Final = ".tmp"
_NO_SPACE: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
_SCANNER_CODES: Final = frozenset((5, 32, 33))
"""Windows: access denied, sharing violation, lock violation. A virus scanner has the file open."""
_REPLACE_WAITS_MS: Final = (10, 20, 40, 80, 160, 320)
_EXCHANGE: Final = 2
"""RENAME_EXCHANGE of ``linux/fs.h``."""
_READ_BYTES: Final = 1024 * 1024

Folder = int | str | os.PathLike[str]
"""A descriptor of an open folder, or its path; the path's last part may not be a symbolic link."""


class FileSystem(Protocol):
    """What this module asks of an operating system; all methods raise OSError."""

    def open_folder(self, path: str) -> int:
        """A descriptor of the folder; refuses a symbolic link."""
        ...

    def create(self, folder: int, name: str) -> int:
        """A descriptor for writing a file that must not exist yet."""
        ...

    def open_append(self, folder: int, name: str) -> int:
        """A descriptor whose writes go to the end of the file, which is made if missing."""
        ...

    def open_read(self, folder: int, name: str) -> int:
        """A descriptor for reading; refuses a symbolic link and does not wait on a pipe."""
        ...

    def write(self, fd: int, data: memoryview) -> int:
        """Write some of the data; the number of bytes written."""
        ...

    def truncate(self, fd: int, length: int) -> None:
        """Cut the file to that many bytes."""
        ...

    def sync(self, fd: int) -> None:
        """Return when the file's bytes, or the folder's names, are on the disk."""
        ...

    def close(self, fd: int) -> None:
        """Close the descriptor."""
        ...

    def replace(self, folder: int, old: str, new: str) -> None:
        """Give the file ``old`` the name ``new``, atomically."""
        ...

    @property
    def can_exchange(self) -> bool:
        """Whether ``exchange`` may work here."""
        ...

    def open_rewrite(self, folder: int, name: str) -> int:
        """A descriptor for writing a file from its start, which is made if missing."""
        ...

    def exchange(self, folder: int, one: str, other: str) -> None:
        """Give two files each other's name, atomically."""
        ...

    def unlink(self, folder: int, name: str) -> None:
        """Remove the name."""
        ...

    def make_folder(self, folder: int, name: str) -> None:
        """Make a folder that must not exist yet."""
        ...

    def remove_tree(self, folder: int, name: str) -> None:
        """Remove a folder with all that is in it, following no link."""
        ...


@cache
def _renameat2() -> Callable[[int, bytes, int, bytes, int], int] | None:
    """The C library's call; None where there is none."""
    if sys.platform != "linux":
        return None
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    call.restype = ctypes.c_int
    swap: Callable[[int, bytes, int, bytes, int], int] = call
    return swap


class RealFileSystem:
    """The operating system's files."""

    def open_folder(self, path: str) -> int:
        """See FileSystem."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def create(self, folder: int, name: str) -> int:
        """See FileSystem."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(name, flags, FILE_MODE, dir_fd=folder)

    def open_append(self, folder: int, name: str) -> int:
        """See FileSystem."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(name, flags | os.O_NONBLOCK, FILE_MODE, dir_fd=folder)

    def open_read(self, folder: int, name: str) -> int:
        """See FileSystem."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        return os.open(name, flags, dir_fd=folder)

    def write(self, fd: int, data: memoryview) -> int:
        """See FileSystem."""
        return os.write(fd, data)

    def truncate(self, fd: int, length: int) -> None:
        """See FileSystem."""
        os.ftruncate(fd, length)

    def sync(self, fd: int) -> None:
        """See FileSystem."""
        os.fsync(fd)

    def close(self, fd: int) -> None:
        """See FileSystem."""
        os.close(fd)

    def replace(self, folder: int, old: str, new: str) -> None:
        """See FileSystem."""
        os.replace(old, new, src_dir_fd=folder, dst_dir_fd=folder)

    @property
    def can_exchange(self) -> bool:
        """See FileSystem."""
        return _renameat2() is not None

    def open_rewrite(self, folder: int, name: str) -> int:
        """See FileSystem."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(name, flags, FILE_MODE, dir_fd=folder)

    def exchange(self, folder: int, one: str, other: str) -> None:
        """See FileSystem."""
        swap = _renameat2()
        if swap is None or swap(folder, one.encode(), folder, other.encode(), _EXCHANGE):
            code = errno.ENOSYS if swap is None else ctypes.get_errno()
            raise OSError(code, os.strerror(code), other)

    def unlink(self, folder: int, name: str) -> None:
        """See FileSystem."""
        os.unlink(name, dir_fd=folder)

    def make_folder(self, folder: int, name: str) -> None:
        """See FileSystem."""
        os.mkdir(name, FOLDER_MODE, dir_fd=folder)

    def remove_tree(self, folder: int, name: str) -> None:
        """See FileSystem."""
        shutil.rmtree(name, dir_fd=folder)


REAL: Final = RealFileSystem()


def wait_ms(delay_ms: int) -> None:
    """Block this thread; the default between two tries of a denied rename."""
    threading.Event().wait(delay_ms / 1000)


def check_name(name: str) -> str:
    """``name`` itself if it is one plain part of a path. Raises ConfigError."""
    encoded = name.encode("utf-8", "surrogatepass")
    if name in ("", ".", "..") or "/" in name or "\\" in name or "\x00" in name:
        raise ConfigError(f"file name {name!r} is not one plain part of a path", name=name)
    if len(encoded) > NAME_BYTES_MAX:
        raise ConfigError(f"file name {name[:32]!r}... is over {NAME_BYTES_MAX} bytes", name=name)
    return name


@contextlib.contextmanager
def opened_folder(folder: Folder, fs: FileSystem = REAL) -> Generator[int]:
    """A descriptor of the folder inside the block: the given one, or one that is closed after."""
    if isinstance(folder, int):
        yield folder
        return
    path = os.fspath(folder)
    with storage_errors(path):
        fd = fs.open_folder(path)
    try:
        yield fd
    finally:
        fs.close(fd)


@contextlib.contextmanager
def storage_errors(what: str) -> Generator[None]:
    """Turn an OSError inside into DiskFull or StorageError that names ``what``."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise DiskFull(f"{what}: no space left on the disk; free some", path=what) from error
        if error.errno in (errno.ELOOP, errno.EMLINK):
            reason = "is a symbolic link, which is not followed here"
        else:
            reason = f"failed ({error.strerror or error})"
        raise StorageError(
            f"{what}: {reason}", path=what, errno=error.errno, io=error.errno == errno.EIO
        ) from error


def write_file_atomic(
    folder: Folder,
    name: str,
    data: bytes,
    *,
    sync: bool,
    fs: FileSystem = REAL,
    wait: Callable[[int], None] = wait_ms,
) -> None:
    """Make ``name`` hold exactly ``data``, mode 0600: readers see the old bytes or the new ones.

    With ``sync`` the new bytes survive a power cut once this returns; without, a power cut may
    leave old, new, or a torn file. A failure leaves the old file and no temporary one, except when
    the folder cannot be synced: then the new file is there and may not survive.

    Raises DiskFull, StorageError (``io=True`` in its fields for an I/O error), ConfigError for a
    bad name. ``wait`` gets milliseconds, between tries of a rename that Windows denies for a while.
    """
    check_name(name)
    where = name if isinstance(folder, int) else os.path.join(os.fspath(folder), name)
    temp = name + _TEMP_SUFFIX
    with opened_folder(folder, fs) as folder_fd, storage_errors(where):
        try:
            _write_temp(fs, folder_fd, temp, data, sync=sync)
            _replace(fs, folder_fd, temp, name, wait)
        except BaseException:
            with contextlib.suppress(OSError):
                fs.unlink(folder_fd, temp)
            raise
        if sync:
            fs.sync(folder_fd)


def _write_temp(fs: FileSystem, folder: int, temp: str, data: bytes, *, sync: bool) -> None:
    try:
        fd = fs.create(folder, temp)
    except FileExistsError:
        # Left by a crash, or put there by someone: never written through, a link least of all.
        fs.unlink(folder, temp)
        fd = fs.create(folder, temp)
    try:
        _write_all(fs, fd, data)
        if sync:
            fs.sync(fd)
    finally:
        fs.close(fd)


def _write_all(fs: FileSystem, fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[fs.write(fd, rest) :]


def _replace(fs: FileSystem, folder: int, old: str, new: str, wait: Callable[[int], None]) -> None:
    for delay_ms in _REPLACE_WAITS_MS:
        try:
            fs.replace(folder, old, new)
        except PermissionError as error:
            if getattr(error, "winerror", None) not in _SCANNER_CODES:
                raise
            wait(delay_ms)
        else:
            return
    fs.replace(folder, old, new)


def append_lines(
    folder: Folder, name: str, data: bytes, *, cut_torn: bool = False, fs: FileSystem = REAL
) -> None:
    """Append to ``name`` (made with mode 0600 if missing); nothing is synced.

    ``cut_torn`` first removes what follows the last line feed, which only a crash leaves there; ask
    for it at the first append after opening a home. A failed append is cut off again if possible.
    """
    check_name(name)
    where = name if isinstance(folder, int) else os.path.join(os.fspath(folder), name)
    with opened_folder(folder, fs) as folder_fd, storage_errors(where):
        fd = fs.open_append(folder_fd, name)
        try:
            _require_regular(fd)
            length = os.fstat(fd).st_size
            if cut_torn and (whole := _whole_lines_length(fd, length)) < length:
                fs.truncate(fd, whole)
                length = whole
            try:
                _write_all(fs, fd, data)
            except OSError:
                with contextlib.suppress(OSError):
                    fs.truncate(fd, length)
                raise
        finally:
            fs.close(fd)


def _whole_lines_length(fd: int, length: int) -> int:
    """The length up to and with the last line feed."""
    end = length
    while end:
        start = max(0, end - _READ_BYTES)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def read_file_confined(
    folder: Folder, name: str, *, bytes_max: int, fs: FileSystem = REAL
) -> bytes | None:
    """The bytes of a regular file in the folder; None when there is no such name.

    Raises StorageError for a symbolic link, a pipe or device, or more than ``bytes_max`` bytes.
    """
    check_name(name)
    where = name if isinstance(folder, int) else os.path.join(os.fspath(folder), name)
    with opened_folder(folder, fs) as folder_fd, storage_errors(where):
        try:
            fd = fs.open_read(folder_fd, name)
        except FileNotFoundError:
            return None
        try:
            _require_regular(fd)
            chunks: list[bytes] = []
            room = bytes_max + 1
            while room and (chunk := os.read(fd, min(room, _READ_BYTES))):
                chunks.append(chunk)
                room -= len(chunk)
        finally:
            fs.close(fd)
    if not room:
        raise StorageError(f"{where}: is over {bytes_max} bytes", path=where, too_large=True)
    return b"".join(chunks)


def _require_regular(fd: int) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "not a regular file")


def make_run_folder(runs: Folder, run_id: str, *, fs: FileSystem = REAL) -> Path:
    """Make ``<runs>/<run_id>`` (mode 0700) unless that folder exists; its path.

    Raises ConfigError for a bad run id, StorageError when the name is taken by a link or a file,
    DiskFull.
    """
    check_run_id(run_id)
    where = run_id if isinstance(runs, int) else os.path.join(os.fspath(runs), run_id)
    with opened_folder(runs, fs) as runs_fd, storage_errors(where):
        try:
            fs.make_folder(runs_fd, run_id)
        except FileExistsError as error:
            mode = os.stat(run_id, dir_fd=runs_fd, follow_symlinks=False).st_mode
            if not stat.S_ISDIR(mode):
                raise StorageError(
                    f"{where}: is not a folder of ours but a link or a file; move it away",
                    path=where,
                ) from error
    return Path(where)
