"""The folder of a world and the lock that says who hosts it.

The lock is a POSIX record lock on ``<home>/lock``: it dies with its process by whatever signal, and
a recycled process id cannot be taken for its holder. Such a lock has two traps, both handled here:
it does not exclude a second taker in the same process, and closing *any* descriptor of the file in
the holding process drops it. So this module is the only place that opens the file, a registry by
(device, inode) knows what this process holds, and both are used under one mutex.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import struct
import sys
import threading
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Final, Literal, Self

from leviath.components.errors import ConfigError, DiskFull, Locked, StorageError

HostingState = Literal["hosted", "not_hosted", "unknown"]

_LOCK_NAME: Final = "lock"
_TAKEN: Final = frozenset((errno.EACCES, errno.EAGAIN))
_FLOCK: Final = {"linux": "hhqqi0q", "darwin": "qqihh0q"}
"""``struct flock``: type, whence, start, length, pid; macOS puts type and whence last."""

_mutex = threading.Lock()
_held: dict[tuple[int, int], HomeLock] = {}  # by (device, inode) of the lock file


def _forget_in_child() -> None:
    # A forked child inherits our memory but not the locks.
    global _mutex  # noqa: PLW0603 - the parent's other threads may have held it
    _mutex = threading.Lock()
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def resolve_home(path: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Path:
    """The home's real path: ``path``, else $LEVIATH_HOME/.leviath, else ~/.leviath.

    It need not exist. Raises ConfigError for an empty path, one with a NUL, or a loop of links.
    """
    if path is not None:
        text = os.fspath(path)
    elif environ.get("LEVIATH_HOME"):
        text = os.path.join(environ["LEVIATH_HOME"], ".leviath")
    else:
        text = os.path.join(environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir, ".leviath")
    if not text or "\x00" in text:
        raise ConfigError(f"home {text!r} is not a path; give the path of a folder", home=text)
    resolved = os.path.realpath(text)
    if os.path.islink(resolved):
        raise ConfigError(f"home {text!r} is a loop of symbolic links", home=text)
    return Path(resolved)


def make_home(home: Path) -> None:
    """Make the home (mode 0700) and its missing parents; a home that exists keeps its mode.

    Raises ConfigError when something else than a folder is in the way, DiskFull, StorageError.
    """
    try:
        home.mkdir(mode=0o700, parents=True)
    except FileExistsError as error:
        if not home.is_dir():
            raise ConfigError(f"home {home} is not a folder; name another path") from error
    except NotADirectoryError as error:
        raise ConfigError(f"home {home} lies below something that is not a folder") from error
    except OSError as error:
        raise _storage_error(home, "cannot be made", error) from error


class HomeLock:
    """The lock on a home, held until ``release`` or the end of the process; also a context manager.

    Take it before reading anything in the home.
    """

    def __init__(self, home: Path, identity: tuple[int, int], fd: int) -> None:
        self._home = home
        self._identity = identity
        self._fd = fd

    @classmethod
    def acquire(cls, home: Path) -> Self:
        """Take the lock of an existing home, without waiting.

        Raises Locked when any host has the home, in this process or another, by this path or
        another; StorageError when the file system cannot lock.
        """
        path = home / _LOCK_NAME
        with _mutex:
            _refuse_if_ours(home, path)
            fd = _open_lock(path)
            try:
                identity = _identity(os.fstat(fd))
                _lock(home, fd)
                # Someone may have removed or replaced the file between our opening and locking it.
                if not _is_at(path, identity):
                    raise Locked(f"{home}: the lock file was replaced; try again", home=str(home))
            except BaseException:
                os.close(fd)
                raise
            lock = cls(home, identity, fd)
            _held[identity] = lock
        return lock

    def write_epoch(self, epoch: int) -> None:
        """Put the epoch into the file as text, for people; nothing depends on it."""
        text = f"{epoch}\n".encode()
        try:
            os.pwrite(self._fd, text, 0)
            os.ftruncate(self._fd, len(text))
        except OSError as error:
            raise _storage_error(self._home / _LOCK_NAME, "cannot be written", error) from error

    def release(self) -> None:
        """Give the home up; a second call does nothing. The file stays: removing it would race."""
        with _mutex:
            if _held.get(self._identity) is self:
                del _held[self._identity]
                os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()


class HomeWatch:
    """Whether a home is still where it was taken: its lock and its store, by (device, inode).

    A home that is deleted, moved or replaced under its host goes on to take writes, which nobody
    will find again. Made once lock and store are open.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._held: list[tuple[Path, tuple[int, int]]] = []
        for path in (home / _LOCK_NAME, home / "world.db"):
            # A store on the disk of a simulation has no path here.
            with contextlib.suppress(OSError):
                self._held.append((path, _identity_of_path(path)))

    def check(self) -> None:
        """Two looks at the disk. Raises StorageError when something else, or nothing, is there."""
        for path, identity in self._held:
            try:
                there = _identity_of_path(path)
            except (FileNotFoundError, NotADirectoryError):
                there = None
            except OSError:
                continue  # what cannot be looked at is not known to be gone
            if there != identity:
                what = "is gone" if there is None else "was replaced by another file"
                raise StorageError(
                    f"{self._home}: {path.name} {what} while this host had it, and the host "
                    "stops; move the home back as it was, or restore it from a copy, and open it "
                    "again",
                    path=str(path),
                )


def hosting_state(home: Path) -> HostingState:
    """Whether some process hosts the home now; takes no lock and leaves nothing behind.

    ``unknown`` when the lock cannot be looked at.
    """
    path = home / _LOCK_NAME
    with _mutex:
        try:
            if _identity_of_path(path) in _held:
                return "hosted"
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return "not_hosted"
        except OSError:
            return "unknown"
        try:
            holder = _holder(fd)
        except OSError:
            return "unknown"
        finally:
            os.close(fd)
    if holder is None:
        return "unknown"
    return "hosted" if holder else "not_hosted"


def _refuse_if_ours(home: Path, path: Path) -> None:
    with contextlib.suppress(OSError):
        if _identity_of_path(path) in _held:
            raise Locked(f"{home}: this process hosts it already", home=str(home), pid=os.getpid())


def _open_lock(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, flags, 0o600)
    except OSError as error:
        raise _storage_error(path, "cannot be opened", error) from error


def _lock(home: Path, fd: int) -> None:
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise _storage_error(home / _LOCK_NAME, "cannot be locked", error) from error
        with contextlib.suppress(OSError):
            if pid := _holder(fd):
                raise _taken(home, f"process {pid}", pid) from error
        raise _taken(home, "another process", 0) from error


def _taken(home: Path, who: str, pid: int) -> Locked:
    return Locked(
        f"{home}: {who} hosts it; stop that host or use another home", home=str(home), pid=pid
    )


def _holder(fd: int) -> int | None:
    """Process id that holds the lock, 0 when nobody does, None where we cannot ask."""
    layout = _FLOCK.get(sys.platform)
    if layout is None:
        return None
    types_last = layout.startswith("q")
    kind, whence = fcntl.F_WRLCK, os.SEEK_SET
    ask = (0, 0, 0, kind, whence) if types_last else (kind, whence, 0, 0, 0)
    answer = struct.unpack(layout, fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack(layout, *ask)))
    found, pid = (answer[3], answer[2]) if types_last else (answer[0], answer[4])
    # A holder in another pid namespace shows as 0 or -1: it holds all the same.
    return 0 if found == fcntl.F_UNLCK else int(pid) or -1


def _is_at(path: Path, identity: tuple[int, int]) -> bool:
    try:
        return _identity_of_path(path) == identity
    except OSError:
        return False


def _identity(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino


def _identity_of_path(path: Path) -> tuple[int, int]:
    return _identity(os.lstat(path))


def _storage_error(path: Path, what: str, error: OSError) -> StorageError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"{path}: {what}: no space left on the disk", path=str(path))
    message = f"{path}: {what} ({error.strerror})"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        message += "; give this user the right to write there, or use another home"
    return StorageError(message, path=str(path), errno=error.errno)


@contextlib.contextmanager
def hosted_home(home: Path) -> Generator[HomeLock]:
    """Make the home and hold its lock inside the block."""
    make_home(home)
    with HomeLock.acquire(home) as lock:
        yield lock
