"""A saved world as a folder: ``world.jsonl`` and the texts that it names, made to be committed.

The first line says what it is and what it ends with; then the parts of the state that history
begins after, if its beginning was forgotten; then one line a step. Whatever is bytes in a record is
``{"hex": ...}``, so that every line turns back into exactly the bytes it was made of. A text is a
file called by its digest: a changed prompt is a new file in a diff, and nothing else moves.
"""

from __future__ import annotations

import json
import os
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Self, cast

import msgspec

from leviath.components.errors import Damaged, NewerFormat, StorageError
from leviath.components.text import text_digest
from leviath.persistence.journal import ORIGIN
from leviath.persistence.rows import JournalRow
from leviath.persistence.saved import WORLD_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from leviath.persistence.saved import Saved

FOLDER_FORMAT: Final = 1
TEXTS: Final = "texts"
_HEAD_BYTES_MAX: Final = 64 * 1024 * 1024
_COLUMNS: Final = ("inputs", "changes", "events")
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


class SavedFolder:
    """An exported folder, open for reading. See ``Saved``.

    Raises Damaged naming the place for whatever is cut, altered or missing, and NewerFormat.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path / WORLD_FILE, "rb") as file:
                self._header = self._head(file.readline(_HEAD_BYTES_MAX))
        except OSError as error:
            raise StorageError(f"{path / WORLD_FILE}: {error.strerror}", path=str(path)) from error
        header = self._header
        self.world_id: str = str(header["world_id"])
        self.seed: int = int(header["seed"])
        self.base: int = int(header["base"])
        self.last: int = int(header["last"])
        self.digest: bytes = bytes.fromhex(header["digest"])
        self._texts = frozenset(bytes.fromhex(name) for name in header["texts"])
        for digest in sorted(self._texts):
            self.entry(digest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Nothing is held open."""

    def _head(self, line: bytes) -> dict[str, Any]:
        header = self._object(line, 1)
        if header.get("leviath") != "world":
            raise self._damaged("is no exported world", 1)
        version = header.get("format")
        if isinstance(version, int) and version > FOLDER_FORMAT:
            raise NewerFormat(
                f"{self.path / WORLD_FILE}: has format {version}, this leviath reads up to "
                f"{FOLDER_FORMAT}; use the newer leviath (nothing was changed)",
                path=str(self.path),
                format=version,
            )
        if header.get("check") != _check(header):
            raise self._damaged("is not what was written", 1)
        return header

    def _object(self, line: bytes, number: int) -> dict[str, Any]:
        if not line.endswith(b"\n"):
            raise self._damaged("is cut short", number)
        try:
            value = json.loads(line, object_hook=_unhex)
        except (ValueError, RecursionError):
            raise self._damaged("cannot be read", number) from None
        if not isinstance(value, dict):
            raise self._damaged("cannot be read", number)
        return cast("dict[str, Any]", value)

    def _damaged(self, what: str, number: int) -> Damaged:
        return Damaged(
            f"{self.path / WORLD_FILE}: line {number} {what}; take the folder from a copy, or "
            "export it again",
            path=str(self.path),
            line=number,
        )

    def rules_of(self, epoch: int) -> str:
        """See Saved."""
        return str(self._header["rules"].get(str(epoch), ""))

    def base_digest(self) -> bytes:
        """See Saved."""
        return bytes.fromhex(self._header["base_digest"]) if self.base else ORIGIN

    def base_parts(self) -> Iterator[tuple[int, str, bytes]]:
        """See Saved."""
        check = blake2b(digest_size=16)
        for number, line in self._lines(2, 2 + self._header["parts"]):
            value = self._object(line, number)
            try:
                part = (int(value["owner"]), str(value["part"]), _packed(value["body"]))
            except (KeyError, TypeError, ValueError):
                raise self._damaged("is no part of a state", number) from None
            check.update(_encode(part))
            yield part
        if check.hexdigest() != self._header["parts_check"]:
            raise self._damaged("begins a state that is not what was written", 2)

    def journal(self, after: int) -> Iterator[JournalRow]:
        """See Saved."""
        first = 2 + self._header["parts"]
        step, digest = self.base, self.base_digest()
        for number, line in self._lines(first, first + self.last - self.base):
            row = self._row(self._object(line, number), number)
            step, digest = row.step, row.digest
            if row.step > after:
                yield row
        if step == self.last and digest != self.digest:
            raise Damaged(f"{self.path}: ends with another digest than its first line says")

    def _row(self, value: dict[str, Any], number: int) -> JournalRow:
        try:
            inputs, changes, events = (
                b"" if value[name] is None else _packed(value[name]) for name in _COLUMNS
            )
            row = JournalRow(
                int(value["step"]),
                int(value["epoch"]),
                int(value["world_ms"]),
                int(value["wall_ms"]),
                inputs,
                changes,
                events,
                bytes(value["digest"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            raise self._damaged("is no step", number) from None
        return row

    def _lines(self, first: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Lines from ``first`` up to before ``end``, with their numbers from 1."""
        with open(self.path / WORLD_FILE, "rb") as file:
            for number, line in enumerate(file, 1):
                if number >= end:
                    return
                if number >= first:
                    yield number, line

    def entry(self, digest: bytes) -> bytes | None:
        """See Saved."""
        if digest not in self._texts:
            return None
        place = self.path / TEXTS / digest.hex()
        try:
            body = place.read_bytes()
        except OSError as error:
            raise Damaged(
                f"{place}: {error.strerror}; take the folder from a copy, or export it again",
                digest=digest.hex(),
            ) from None
        if text_digest(body) != digest:
            raise Damaged(
                f"{place}: is not the text that its name stands for; take it from a copy",
                digest=digest.hex(),
            )
        return body

    def runs_starting(self, prefix: str) -> list[tuple[str, int]]:
        """See Saved."""
        runs: dict[str, int] = self._header["runs"]
        return [(run, n) for run, n in runs.items() if run.startswith(prefix)]

    def header_under(self, rules: str, last: JournalRow) -> dict[str, Any]:
        """The header of the same world as those rules leave it."""
        header = dict(self._header)
        header["rules"] = dict.fromkeys(self._header["rules"], rules)
        header["digest"] = last.digest.hex()
        return header

    def texts_left_out(self) -> bool:
        """Whether it was exported for one run: long texts of others stayed behind then."""
        return bool(self._header["only"])


def header_of(
    saved: Saved,
    *,
    last: int,
    digest: bytes,
    runs: dict[str, int],
    only: list[str],
    rules: dict[int, str],
    texts: Iterable[bytes],
) -> dict[str, Any]:
    """The first line of an export, without what ``write_world`` works out."""
    return {
        "leviath": "world",
        "format": FOLDER_FORMAT,
        "world_id": saved.world_id,
        "seed": saved.seed,
        "base": saved.base,
        "base_digest": saved.base_digest().hex(),
        "last": last,
        "digest": digest.hex(),
        "rules": {str(epoch): rules[epoch] for epoch in sorted(rules)},
        "runs": runs,
        "only": only,
        "texts": sorted(text.hex() for text in texts),
    }


def write_world(
    folder: Path,
    header: dict[str, Any],
    parts: Iterable[tuple[int, str, bytes]],
    rows: Iterable[JournalRow],
) -> int:
    """Write ``world.jsonl`` of a folder anew, whole or not at all; its size in bytes.

    Raises StorageError; what was there is there still then.
    """
    parts = list(parts)
    check = blake2b(digest_size=16)
    for part in parts:
        check.update(_encode(part))
    header = header | {"parts": len(parts), "parts_check": check.hexdigest()}
    header["check"] = _check(header)
    target = folder / WORLD_FILE
    draft = folder / f".{WORLD_FILE}.{os.getpid()}"
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(_line(header))
            file.writelines(
                _line({"owner": owner, "part": name, "body": _readable(body)})
                for owner, name, body in parts
            )
            file.writelines(_line(_step(row)) for row in rows)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        os.replace(draft, target)
    except OSError as error:
        raise StorageError(f"{target}: {error.strerror}", path=str(target)) from error
    finally:
        draft.unlink(missing_ok=True)
    return size


def _step(row: JournalRow) -> dict[str, Any]:
    return {
        "step": row.step,
        "epoch": row.epoch,
        "world_ms": row.world_ms,
        "wall_ms": row.wall_ms,
        "inputs": _readable(row.inputs),
        "changes": _readable(row.changes),
        "events": _readable(row.events) if row.events else None,
        "digest": _hexed(row.digest),
    }


def _line(value: object) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode() + b"\n"


def _check(header: dict[str, Any]) -> str:
    rest = {key: value for key, value in header.items() if key != "check"}
    text = json.dumps(rest, ensure_ascii=False, sort_keys=True)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _readable(body: bytes) -> object:
    """Encoded bytes as JSON that turns back into just them; as hex where it would not."""
    value = _decode(body)
    return _hexed(value if _encode(value) == body else body)


def _packed(value: object) -> bytes:
    """What ``_readable`` was given."""
    return value if isinstance(value, bytes) else _encode(value)


def _hexed(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, list):
        return [_hexed(item) for item in cast("list[object]", value)]
    return value


def _unhex(value: dict[str, Any]) -> Any:
    return bytes.fromhex(value["hex"]) if value.keys() == {"hex"} else value
