"""Replace a file so that a second release of the call knows whether the first one did it.

Under the call's idempotency key two files are staged in ``spill_dir/staging``: ``<key>.new`` with
the new content, then ``<key>.json`` with the digests of old and new. Only then is the file
replaced, by rename from a copy beside it, and ``<key>.new`` removed. What a second release finds
tells the story:

| record | ``.new`` | file | |
|---|---|---|---|
| no | any | any | the first release had changed nothing: stage and replace |
| yes | gone | any | replaced by the first release: done |
| yes | there | new | replaced: done |
| yes | there | old | not replaced: replace |
| yes | there | neither | someone else wrote it, before or after us: MayHaveHappened |

Records (some 200 bytes each) stay until ``forget`` or until the run's folder is removed: the call's
outcome may be lost after the file was replaced and before it is durable.
"""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import sha256
from typing import Final

import msgspec
from msgspec import Struct

from leviath.components.errors import ToolError
from leviath.engine.limits import MIB
from leviath.engine.toolbox.call import MayHaveHappened, ToolCall, file_stem
from leviath.engine.toolbox.confine import Place, open_file, tool_error
from leviath.engine.toolbox.spill import make_private_dir

STAGED_BYTES_MAX: Final = 16 * MIB
"""The largest content that is written or edited: it is held in memory, and a model wrote it."""

_CHUNK_BYTES: Final = 256 * 1024


class Record(Struct, frozen=True):
    """What a call is about to do to one file. Digests are SHA-256 in hex; "" is: no such file."""

    path: str
    old: str
    new: str
    note: str
    """What the model is told once it is done."""


def replace_file(call: ToolCall, place: Place, record: Record, content: bytes) -> None:
    """Stage and replace: the whole of a first release.

    Raises ToolError when the disk refuses; the file is then what it was.
    """
    stage(call, record, content)
    settle(call, place, record)


def staged(call: ToolCall) -> Record | None:
    """The record of an earlier release of this call, or None when there is no whole one."""
    try:
        with open(_record_path(call), "rb") as file:
            return msgspec.json.decode(file.read(), type=Record)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise MayHaveHappened(
            f"{call.tool} cannot read what an earlier attempt staged ({type(error).__name__})"
        ) from error


def stage(call: ToolCall, record: Record, content: bytes) -> None:
    """Keep ``content`` and then ``record`` durably under the call's key. Raises ToolError."""
    try:
        make_private_dir(call.spill_dir)
        make_private_dir(_folder(call))
        _write_durably(_content_path(call), content)
        _write_durably(_record_path(call) + ".part", msgspec.json.encode(record))
        # The record appears whole or not at all; from here on a second release goes by it.
        os.rename(_record_path(call) + ".part", _record_path(call))
        _sync_folder(_folder(call))
    except OSError as error:
        forget(call)
        raise tool_error("stage the new content of", record.path, error) from None


def settle(call: ToolCall, place: Place, record: Record) -> None:
    """Bring a staged call to its end, whatever an earlier release of it did.

    Raises MayHaveHappened when the file is neither what it was nor what it was to become, and
    ToolError when the disk refuses.
    """
    if not os.path.exists(_content_path(call)):
        return
    if record.path != place.path:
        raise MayHaveHappened(
            f"{call.tool}: an earlier attempt was to write {record.path!r}, and the same path now "
            f"leads to {place.path!r}"
        )
    current = digest_at(place)
    if current == record.old and current != record.new:
        install(call, place)
    elif current != record.new:
        raise MayHaveHappened(
            f"{call.tool}: {record.path!r} is neither what it was before this call nor what the "
            "call was to make it; someone else wrote it"
        )
    with suppress(FileNotFoundError):
        os.unlink(_content_path(call))


def install(call: ToolCall, place: Place) -> None:
    """Copy the staged content beside the file and rename it over the file. Raises ToolError.

    The copy is needed because run folder and workdir may be on different disks. A copy that an
    earlier release left behind has the same name and goes first.
    """
    copy = copy_name(call)
    try:
        with suppress(FileNotFoundError):
            os.unlink(copy, dir_fd=place.folder)
        try:
            _copy(call, place, copy)
            os.rename(copy, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(copy, dir_fd=place.folder)
            raise
        os.fsync(place.folder)
    except OSError as error:
        raise tool_error("write", place.path, error) from None


def copy_name(call: ToolCall) -> str:
    """Name of the copy beside the file: the same for each attempt of one call, and for no other."""
    return f".leviath-{sha256(call.idempotency_key.encode()).hexdigest()[:16]}.part"


def forget(call: ToolCall) -> None:
    """Remove what is staged for ``call``: its outcome is durable, or it will never be released."""
    for path in (_record_path(call), _record_path(call) + ".part", _content_path(call)):
        with suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)


def content_at(place: Place) -> bytes | None:
    """The bytes of the file at ``place``, or None when there is none.

    Raises ToolError when it is no regular file or larger than STAGED_BYTES_MAX.
    """
    if not _exists(place):
        return None
    with open(open_file(place), "rb") as file:
        large = os.fstat(file.fileno()).st_size > STAGED_BYTES_MAX
        content = b"" if large else file.read(STAGED_BYTES_MAX + 1)
    if large or len(content) > STAGED_BYTES_MAX:
        raise ToolError(f"{place.path!r} is larger than {STAGED_BYTES_MAX} bytes")
    return content


def digest_at(place: Place) -> str:
    """Digest of the file at ``place``, "" when there is none. Raises ToolError.

    Of a file larger than STAGED_BYTES_MAX, which no call has written, only that much is read: the
    digest is of inode, size, time of change and start, so that a sparse file holds up no thread.
    """
    if not _exists(place):
        return ""
    digest = sha256()
    with open(open_file(place), "rb") as file:
        left = STAGED_BYTES_MAX
        while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
            digest.update(chunk)
            left -= len(chunk)
        if not left and file.read(1):
            status = os.fstat(file.fileno())
            digest.update(f"{status.st_ino} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()


def digest_of(content: bytes) -> str:
    """Digest of ``content`` as records hold it."""
    return sha256(content).hexdigest()


def _exists(place: Place) -> bool:
    try:
        os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise tool_error("read", place.path, error) from None
    return True


def _copy(call: ToolCall, place: Place, copy: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    # 0666 less the umask for a file that is new; an old one keeps the mode it has.
    target = os.open(copy, flags, 0o666, dir_fd=place.folder)
    with open(target, "wb") as file, open(_content_path(call), "rb") as source:
        if _exists(place):
            old = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
            os.fchmod(target, old.st_mode & 0o777)
        while chunk := source.read(_CHUNK_BYTES):
            file.write(chunk)
        file.flush()
        os.fsync(target)


def _write_durably(path: str, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _folder(call: ToolCall) -> str:
    return os.path.join(call.spill_dir, "staging")


def _record_path(call: ToolCall) -> str:
    return os.path.join(_folder(call), f"{file_stem(call.idempotency_key)}.json")


def _content_path(call: ToolCall) -> str:
    return os.path.join(_folder(call), f"{file_stem(call.idempotency_key)}.new")
