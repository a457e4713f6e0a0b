"""A disk that keeps a record and fails on request: a VFS for SQLite and a FileSystem for files.

Both pass everything through to the operating system and write into one log, so that the crash
images of a home (``disk_log``) hold ``world.db`` and the files around it as of the same moment.
SQLite's shared memory (-shm) is passed through unrecorded: it is rebuilt after a crash, and no
image has it. A new ``world.db`` is made (empty, private) before SQLite opens it, so images have it
as an empty file from then on.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

import apsw
from msgspec import Struct

from leviath.persistence.files import RealFileSystem
from leviath.simulation.disk_log import (
    SECTOR_BYTES,
    CrashImage,
    Exchange,
    FolderSync,
    Found,
    Link,
    Operation,
    RemoveFolder,
    Rename,
    Sync,
    Truncate,
    Unlink,
    Write,
    crash_images,
)

CallKind = Literal["create", "write", "sync", "truncate", "rename", "delete"]
Failure = Literal["enospc", "eio", "skip", "late"]

_SQLITE_CODE: Final[dict[CallKind, int]] = {
    "create": apsw.SQLITE_CANTOPEN,
    "write": apsw.SQLITE_IOERR_WRITE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "rename": apsw.SQLITE_IOERR,
    "delete": apsw.SQLITE_IOERR_DELETE,
}

_JOURNALS: Final = (
    apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL | apsw.SQLITE_OPEN_WAL
)


class Fault(Struct, frozen=True):
    """From the ``nth`` call of a kind on (1 is the next), ``times`` calls fail; None is for good.

    ``skip`` answers a sync with success without doing it; ``late`` does it only after the next
    rename, so that the file of that name is there before what it tells of. Crash images must show
    both.
    """

    kind: CallKind
    nth: int
    failure: Failure
    times: int | None = 1


class Recording:
    """The log of everything done below ``root``, and the faults to come."""

    def __init__(self, root: Path, *, syncs: bool = True) -> None:
        self.root: Path = Path(os.path.realpath(root))
        self.syncs = syncs
        """Syncs reach the disk. Without, they are only recorded, which is all that images need."""
        self.log: list[Operation] = []
        self._late: list[Operation] = []
        """Syncs that were answered and wait for a rename."""
        self.calls: dict[CallKind, int] = dict.fromkeys(_SQLITE_CODE, 0)
        self._faults: list[tuple[Fault, int]] = []  # with the count of calls when it was armed
        self._files: dict[str, int] = {}  # relative name -> number of the file that has it now
        self._made = 0  # numbers given out
        self._mutex = threading.Lock()

    @property
    def position(self) -> int:
        """How many operations were recorded; note it when a promise is given."""
        return len(self.log)

    def arm(self, *faults: Fault) -> None:
        """Replace the faults; each counts calls from now on. Without arguments nothing fails."""
        with self._mutex:
            self._faults = [(fault, self.calls[fault.kind]) for fault in faults]

    def failure_of(self, kind: CallKind) -> Failure | None:
        """Count a call and say how it shall fail."""
        with self._mutex:
            self.calls[kind] += 1
            for fault, base in self._faults:
                late = self.calls[kind] - base - fault.nth
                if fault.kind == kind and late >= 0 and (fault.times is None or late < fault.times):
                    return fault.failure
        return None

    def crash_images(self, upto: int | None = None) -> Iterator[CrashImage]:
        """See ``disk_log.crash_images``."""
        return crash_images(self.log, upto)

    def relative(self, path: str) -> str:
        """The name of a file below the root. Raises ValueError for one outside."""
        real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        return str(Path(real).relative_to(self.root))

    def relative_removed(self, path: str) -> str:
        """The name below the root of a file whose folder is gone."""
        return str(Path(path).relative_to(self.root))

    def file_opened(self, path: str, *, created: bool) -> int:
        """The number of the file at ``path``, which is now open."""
        name = self.relative(path)
        with self._mutex:
            if name in self._files:
                return self._files[name]
            self._made += 1
            self._files[name] = self._made
            if created:
                self.log.append(Link(self._made, name))
            else:
                self.log.append(Found(self._made, name, Path(path).read_bytes()))
            return self._made

    def record(self, operation: Operation) -> None:
        """Add an operation that was carried out."""
        with self._mutex:
            self.log.append(operation)
            match operation:
                case Unlink(name):
                    self._files.pop(name, None)
                case Exchange(one, other):
                    files = self._files
                    files[one], files[other] = files[other], files[one]
                case Rename(old, new):
                    if old in self._files:
                        self._files[new] = self._files.pop(old)
                case _:
                    return
            if not isinstance(operation, Unlink):
                self.log += self._late
                self._late.clear()

    def postpone(self, operation: Operation) -> None:
        """Record a sync after the next rename."""
        with self._mutex:
            self._late.append(operation)


def _sqlite_error(kind: CallKind, failure: Failure) -> Exception:
    if failure == "enospc":
        return apsw.FullError("planted: no space left")
    return apsw.exception_for(_SQLITE_CODE[kind])


def _os_error(failure: Failure) -> OSError:
    if failure == "enospc":
        return OSError(errno.ENOSPC, "planted: no space left")
    return OSError(errno.EIO, "planted: input/output error")


class RecordingDisk(apsw.VFS):
    """An apsw VFS; open databases with ``vfs=disk.name``. Close them, then ``unregister()``."""

    def __init__(self, name: str, recording: Recording) -> None:
        self.name = name
        self.recording = recording
        super().__init__(name, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        """Open a file; nameless temporary ones are not recorded."""
        if name is None:
            return apsw.VFSFile("", name, flags)
        path = name if isinstance(name, str) else name.filename()
        exists = os.path.lexists(path)
        if not exists and (failure := self.recording.failure_of("create")):
            raise _sqlite_error("create", failure)
        return _RecordingFile(name, flags, path, self.recording, created=not exists)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: FBT001, N802
        """Delete a file; durable at once if SQLite asks for that."""
        failure = self.recording.failure_of("delete")
        if failure in ("enospc", "eio"):
            raise _sqlite_error("delete", failure)
        super().xDelete(filename, syncdir)
        name = self.recording.relative(filename)
        self.recording.record(Unlink(name))
        if syncdir and failure is None:
            self.recording.record(FolderSync(os.path.dirname(name)))


class _RecordingFile(apsw.VFSFile):
    def __init__(
        self,
        name: str | apsw.URIFilename,
        flags: list[int],
        path: str,
        recording: Recording,
        *,
        created: bool,
    ) -> None:
        super().__init__("", name, flags)
        self._recording = recording
        self._file = recording.file_opened(path, created=created)
        self._path = path
        self._is_new_journal = created and bool(flags[0] & _JOURNALS)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        body = bytes(data)
        failure = self._recording.failure_of("write")
        if failure == "enospc":
            body = body[: len(body) // 2 // SECTOR_BYTES * SECTOR_BYTES]  # what still fitted
        if failure != "eio" and body:
            super().xWrite(body, offset)  # pyright: ignore[reportUnknownMemberType] - Buffer
            self._recording.record(Write(self._file, offset, body))
        if failure in ("enospc", "eio"):
            raise _sqlite_error("write", failure)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        if failure := self._recording.failure_of("truncate"):
            raise _sqlite_error("truncate", failure)
        super().xTruncate(newsize)
        self._recording.record(Truncate(self._file, newsize))

    def xSync(self, flags: int) -> None:  # noqa: N802
        failure = self._recording.failure_of("sync")
        if failure == "skip":
            return
        if failure == "late":
            self._recording.postpone(Sync(self._file))
            return
        if failure is not None:
            raise _sqlite_error("sync", failure)
        if self._recording.syncs:
            super().xSync(flags)
        self._recording.record(Sync(self._file))
        if self._is_new_journal:
            # The VFS underneath syncs the folder with the first sync of a new journal or log.
            self._is_new_journal = False
            self._recording.record(
                FolderSync(os.path.dirname(self._recording.relative(self._path)))
            )


class RecordingFileSystem(RealFileSystem):
    """A FileSystem for ``persistence.files`` that writes into the same log."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._folders: dict[int, str] = {}  # descriptor -> relative name
        self._open: dict[int, int] = {}  # descriptor -> number of the file
        self._rewritten: dict[int, int] = {}  # descriptor -> where its next write goes

    def open_folder(self, path: str) -> int:
        """See FileSystem."""
        fd = super().open_folder(path)
        name = str(Path(os.path.realpath(path)).relative_to(self.recording.root))
        self._folders[fd] = "" if name == "." else name
        return fd

    def create(self, folder: int, name: str) -> int:
        """See FileSystem."""
        self._fail("create")
        fd = super().create(folder, name)
        self._open[fd] = self.recording.file_opened(self._path(folder, name), created=True)
        return fd

    def open_append(self, folder: int, name: str) -> int:
        """See FileSystem."""
        path = self._path(folder, name)
        exists = os.path.lexists(path)
        if not exists:
            self._fail("create")
        fd = super().open_append(folder, name)
        self._open[fd] = self.recording.file_opened(path, created=not exists)
        return fd

    def open_rewrite(self, folder: int, name: str) -> int:
        """See FileSystem."""
        path = self._path(folder, name)
        exists = os.path.lexists(path)
        if not exists:
            self._fail("create")
        fd = super().open_rewrite(folder, name)
        self._open[fd] = self.recording.file_opened(path, created=not exists)
        self._rewritten[fd] = 0
        return fd

    def write(self, fd: int, data: memoryview) -> int:
        """See FileSystem."""
        failure = self.recording.failure_of("write")
        if failure == "eio":
            raise _os_error(failure)
        # All our files grow at their end, but for those that are rewritten from their start.
        offset = self._rewritten.get(fd, -1)
        if offset < 0:
            offset = os.fstat(fd).st_size
        fitting = data[: len(data) // 2] if failure == "enospc" else data
        count = super().write(fd, fitting)
        self.recording.record(Write(self._open[fd], offset, bytes(fitting[:count])))
        if fd in self._rewritten:
            self._rewritten[fd] += count
        if failure == "enospc":
            raise _os_error(failure)
        return count

    def truncate(self, fd: int, length: int) -> None:
        """See FileSystem."""
        self._fail("truncate")
        super().truncate(fd, length)
        self.recording.record(Truncate(self._open[fd], length))

    def sync(self, fd: int) -> None:
        """See FileSystem."""
        if self._fail("sync"):
            return
        if self.recording.syncs:
            super().sync(fd)
        if fd in self._folders:
            self.recording.record(FolderSync(self._folders[fd]))
        else:
            self.recording.record(Sync(self._open[fd]))

    def close(self, fd: int) -> None:
        """See FileSystem."""
        self._folders.pop(fd, None)
        self._open.pop(fd, None)
        self._rewritten.pop(fd, None)
        super().close(fd)

    def replace(self, folder: int, old: str, new: str) -> None:
        """See FileSystem."""
        self._fail("rename")
        super().replace(folder, old, new)
        self.recording.record(Rename(self._name(folder, old), self._name(folder, new)))

    def exchange(self, folder: int, one: str, other: str) -> None:
        """See FileSystem. Fails as a rename does."""
        self._fail("rename")
        super().exchange(folder, one, other)
        self.recording.record(Exchange(self._name(folder, one), self._name(folder, other)))

    def unlink(self, folder: int, name: str) -> None:
        """See FileSystem."""
        self._fail("delete")
        super().unlink(folder, name)
        self.recording.record(Unlink(self._name(folder, name)))

    def remove_tree(self, folder: int, name: str) -> None:
        """See FileSystem."""
        self._fail("delete")
        place = self._path(folder, name)
        gone = [os.path.join(inside, file) for inside, _, files in os.walk(place) for file in files]
        super().remove_tree(folder, name)
        for path in gone:
            self.recording.record(Unlink(self.recording.relative_removed(path)))
        self.recording.record(RemoveFolder(self.recording.relative_removed(place)))

    def _name(self, folder: int, name: str) -> str:
        return os.path.join(self._folders[folder], name)

    def _path(self, folder: int, name: str) -> str:
        return str(self.recording.root / self._name(folder, name))

    def _fail(self, kind: CallKind) -> bool:
        """Raise what was planted for this call; True when it shall be skipped."""
        failure = self.recording.failure_of(kind)
        if failure in ("enospc", "eio"):
            raise _os_error(failure)
        return failure is not None
