"""What was done to a disk, and every state a power cut could have left of it.

The model, which is what SQLite and our file layer are entitled to:

* bytes of a file last once it was synced; names in a folder last once the folder was synced;
* of what was not synced, any subset may be there, in any order, and a write may be torn at a sector
  of 512 bytes, which is itself whole;
* folders always exist, until one is removed with all names in it, which lasts once its parent was
  synced; access rights are not modelled.

So a rename may be there without the bytes of the renamed file. What is synced never rots: damaged
disks are another test.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

SECTOR_BYTES: Final = 512
_PREFIXES_MAX: Final = 8
_RANDOM_CHOICES: Final = 3
_TORN_CHOICES: Final = 3


class Found(Struct, frozen=True):
    """The file was there, durable, before the recording."""

    file: int
    name: str
    data: bytes


class Link(Struct, frozen=True):
    """A new file got this name."""

    file: int
    name: str


class Write(Struct, frozen=True):
    """Bytes were put at an offset of a file."""

    file: int
    offset: int
    data: bytes


class Truncate(Struct, frozen=True):
    """A file was cut, or filled with zeros, to a length."""

    file: int
    length: int


class Rename(Struct, frozen=True):
    """A file of a folder got another name there."""

    old: str
    new: str


class Exchange(Struct, frozen=True):
    """Two files of a folder got each other's name."""

    one: str
    other: str


class Unlink(Struct, frozen=True):
    """A name was removed."""

    name: str


class RemoveFolder(Struct, frozen=True):
    """A folder was removed, with every name below it; durable with its parent."""

    name: str


class Sync(Struct, frozen=True):
    """A file's bytes became durable."""

    file: int


class FolderSync(Struct, frozen=True):
    """The names in a folder (relative; empty for the root) became durable."""

    folder: str


Pending = Link | Write | Truncate | Rename | Exchange | Unlink | RemoveFolder
Operation = Found | Pending | Sync | FolderSync


class CrashImage(Struct, frozen=True):
    """The files a power cut after the first ``position`` operations may leave, by relative name."""

    position: int
    files: dict[str, bytes]


def crash_images(log: Sequence[Operation], upto: int | None = None) -> Iterator[CrashImage]:
    """Images at every sync of the first ``upto`` operations, just before it, and at the end.

    A bounded, deterministic choice at each point: of the unsynced operations none, all, prefixes,
    all but one, random subsets, and one write torn. Two images of one point always differ.
    """
    disk = _Disk()
    end = len(log) if upto is None else upto
    for position, operation in enumerate(log[:end]):
        if isinstance(operation, Sync | FolderSync):
            yield from disk.images(position)
        disk.take(operation)
    yield from disk.images(end)


def materialise(image: CrashImage, folder: Path) -> None:
    """Write the image's files below ``folder``, which must be empty or missing."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    assert not any(folder.iterdir()), folder
    for name, data in image.files.items():
        path = folder / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o600)


class _Disk:
    """What is durable, and the operations that are not yet."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._data: dict[int, bytes] = {}
        self._pending: list[Pending] = []

    def take(self, operation: Operation) -> None:
        """Account for the next operation of the log."""
        match operation:
            case Found(file, name, data):
                self._names[name] = file
                self._data[file] = data
            case Sync(file):
                self._settle([op for op in self._pending if _is_of(op, file)])
            case FolderSync(folder):
                self._settle([op for op in self._pending if folder in _folders(op)])
            case _:
                self._pending.append(operation)

    def _settle(self, done: list[Pending]) -> None:
        self._names, self._data = self._after(done)
        settled = set(map(id, done))
        for removal in done:
            if isinstance(removal, RemoveFolder):
                # What was done to names in it before went with it.
                before = self._pending[: self._pending.index(removal)]
                settled |= {id(op) for op in before if _is_below(op, removal.name)}
        self._pending = [op for op in self._pending if id(op) not in settled]

    def images(self, position: int) -> Iterator[CrashImage]:
        """The images of a power cut now."""
        seen: set[frozenset[tuple[str, bytes]]] = set()
        for choice in self._choices(random.Random(position)):  # noqa: S311 - a choice, no secret
            names, data = self._after(choice)
            files = {name: data.get(file, b"") for name, file in sorted(names.items())}
            if (key := frozenset(files.items())) not in seen:
                seen.add(key)
                yield CrashImage(position, files)

    def _choices(self, rng: random.Random) -> Iterator[list[Pending]]:
        pending = self._pending
        count = len(pending)
        yield []
        yield pending
        for step in range(1, min(count, _PREFIXES_MAX)):
            yield pending[: step * count // min(count, _PREFIXES_MAX)]
        if count > 1:
            for _ in range(_RANDOM_CHOICES):
                dropped = rng.randrange(count)
                yield pending[:dropped] + pending[dropped + 1 :]
                yield [op for op in pending if rng.random() < 0.5]
        large = [
            at
            for at, op in enumerate(pending)
            if isinstance(op, Write) and len(op.data) > SECTOR_BYTES
        ]
        for _ in range(_TORN_CHOICES if large else 0):
            at = rng.choice(large)
            yield pending[:at] + _torn(pending[at], rng)
            yield pending[:at] + _torn(pending[at], rng) + pending[at + 1 :]

    def _after(self, operations: Sequence[Pending]) -> tuple[dict[str, int], dict[int, bytes]]:
        """Names and bytes when exactly these operations reach the disk too, in this order."""
        names = dict(self._names)
        changed: dict[int, bytearray] = {}

        def body(file: int) -> bytearray:
            if file not in changed:
                changed[file] = bytearray(self._data.get(file, b""))
            return changed[file]

        for operation in operations:
            match operation:
                case Link(file, name):
                    names[name] = file
                case Unlink(name):
                    names.pop(name, None)
                case RemoveFolder(name):
                    names = {at: file for at, file in names.items() if not _is_in(at, name)}
                case Rename(old, new):
                    if old in names:
                        names[new] = names.pop(old)
                case Exchange(one, other):
                    if one in names and other in names:
                        names[one], names[other] = names[other], names[one]
                case Write(file, offset, data):
                    _put(body(file), offset, data)
                case Truncate(file, length):
                    _resize(body(file), length)
        return names, self._data | {file: bytes(data) for file, data in changed.items()}


def _is_of(operation: Pending, file: int) -> bool:
    return isinstance(operation, Write | Truncate) and operation.file == file


def _is_below(operation: Pending, folder: str) -> bool:
    return any(_is_in(f"{place}/", folder) for place in _folders(operation))


def _is_in(name: str, folder: str) -> bool:
    return name.startswith(f"{folder}/")


def _folders(operation: Pending) -> set[str]:
    match operation:
        case Link(_, name) | Unlink(name) | RemoveFolder(name):
            return {os.path.dirname(name)}
        case Rename(old, new) | Exchange(old, new):
            return {os.path.dirname(old), os.path.dirname(new)}
        case _:
            return set()


def _torn(operation: Pending, rng: random.Random) -> list[Pending]:
    """Some of a write's sectors: a head of it, or any of them."""
    assert isinstance(operation, Write)
    # Sectors are those of the disk: the first one ends at a multiple of their size.
    starts = [
        0,
        *range(-operation.offset % SECTOR_BYTES or SECTOR_BYTES, len(operation.data), SECTOR_BYTES),
    ]
    ends = [*starts[1:], len(operation.data)]
    sectors = list(zip(starts, ends, strict=True))
    if rng.random() < 0.5:
        kept = sectors[: rng.randrange(1, len(sectors))] if len(sectors) > 1 else []
    else:
        kept = [sector for sector in sectors if rng.random() < 0.5]
    return [
        Write(operation.file, operation.offset + start, operation.data[start:end])
        for start, end in kept
    ]


def _put(body: bytearray, offset: int, data: bytes) -> None:
    if len(body) < offset:
        _resize(body, offset)
    body[offset : offset + len(data)] = data


def _resize(body: bytearray, length: int) -> None:
    if length < len(body):
        del body[length:]
    else:
        body.extend(bytes(length - len(body)))
