"""Export: a saved world, or the part of it that one run comes from, as a folder that replays.

An export of one run has the steps of the whole world up to the last one of the run's tree: slots,
order and random draws are shared, so nothing less would replay exactly. Long texts of other runs
stay behind; replay never reads a text, only its digest.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct

from leviath.components.changes import Put
from leviath.components.errors import ConfigError, Damaged, StorageError
from leviath.components.identity import Identity, Tree
from leviath.components.parts import WORLD_OWNER
from leviath.components.text import DIGEST_BYTES
from leviath.persistence.history import History
from leviath.persistence.journal import decode_changes, decode_inputs
from leviath.persistence.redo import decode_part
from leviath.persistence.saved import (
    WORLD_FILE,
    SavedHome,
    blueprints_named,
    blueprints_of,
    checked_journal,
)
from leviath.persistence.saved_folder import TEXTS, SavedFolder, header_of, write_world

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from leviath.persistence.rows import JournalRow
    from leviath.persistence.saved import Saved

_SECRET_CHARS_MIN = 8
"""Shorter values are hidden nowhere: they would be found in every text."""


class Exported(Struct, frozen=True):
    """What an export wrote."""

    folder: str
    runs: tuple[str, ...]
    """Runs whose texts are in it."""
    steps: int
    texts: int
    size_bytes: int


class _Survey:
    """One look over a history: who is in it, and which texts it names."""

    def __init__(self) -> None:
        self.runs: dict[str, int] = {}
        self.roots: dict[int, int] = {}
        self.touched: dict[int, int] = {}
        """By owner, the newest step that changed it."""
        self.epochs: set[int] = set()
        self.digests: dict[int, dict[bytes, bool]] = {}
        """By owner, what may name an entry, and whether it is sure to."""
        self.blueprints: set[bytes] = set()
        self.last_digest = b""

    def part(self, owner: int, name: str, body: bytes) -> None:
        self._note(owner, msgspec.msgpack.decode(body))
        if name in ("Identity", "Tree", "Launch", "Split"):
            part = decode_part(name, body)
            if isinstance(part, Identity):
                self.runs[part.run_id] = owner
            elif isinstance(part, Tree):
                self.roots[owner] = part.root or owner
            self.blueprints.update(blueprints_of((part,)))

    def step(self, row: JournalRow) -> None:
        self.epochs.add(row.epoch)
        self.last_digest = row.digest
        for change in decode_changes(row):
            self.touched[change.owner] = row.step
            if type(change) is Put:
                self.part(change.owner, change.part, bytes(change.body))
            else:
                self._note(change.owner, msgspec.to_builtins(change, builtin_types=(bytes,)))
        inputs = decode_inputs(row)
        self.blueprints.update(digest for digest in blueprints_named(inputs) if digest)
        for item in inputs:
            owner = getattr(item, "run", WORLD_OWNER)
            self._note(owner, msgspec.to_builtins(item, builtin_types=(bytes,)), sure=False)

    def _note(self, owner: int, value: object, *, sure: bool = True) -> None:
        known = self.digests.setdefault(owner, {})
        for digest, is_text in digests_in(value):
            known[digest] = known.get(digest, False) or (is_text and sure)


def digests_in(value: object) -> Iterator[tuple[bytes, bool]]:
    """What in a record of lists and bytes may be the digest of an entry; whether a Text says
    so."""
    if isinstance(value, bytes):
        if len(value) == DIGEST_BYTES:
            yield value, False
        return
    if not isinstance(value, list | tuple):
        return
    items = cast("list[object]", value)
    if len(items) == 3 and items[0] == "" and isinstance(items[1], bytes):
        if len(items[1]) == DIGEST_BYTES and isinstance(items[2], int):
            yield items[1], True
        return
    for item in items:
        yield from digests_in(item)


def export_world(saved: Saved, folder: Path, *, run: str | None = None) -> Exported:
    """Write an open saved world to ``folder``, which is new, empty or an older export.

    ``run`` is the id of a run, or how that begins: then only its tree's texts go along, and the
    history ends with the tree's last step. The same world gives the same bytes.

    Raises ConfigError for a folder with something else in it, RunNotFound, Damaged for a history
    or text that is not whole, StorageError; an older export stays as it was then.
    """
    _check_target(folder)
    survey = _surveyed(saved, saved.last)
    only: list[str] = []
    last = saved.last
    owners = set(survey.digests)
    if run is not None:
        owner = History(saved).find(run)[1]
        root = survey.roots.get(owner, owner)
        tree = {n for n, known in survey.roots.items() if known == root} | {owner}
        only = sorted(run_id for run_id, n in survey.runs.items() if n in tree)
        last = max((survey.touched.get(n, saved.base) for n in tree), default=saved.base)
        survey = _surveyed(saved, last)
        owners = tree | {WORLD_OWNER}
    _check_secrets(saved, last)
    bodies = _bodies(saved, survey, owners)
    runs = dict(sorted(survey.runs.items(), key=lambda known: known[1]))
    header = header_of(
        saved,
        last=last,
        digest=survey.last_digest or saved.base_digest(),
        runs=runs,
        only=only,
        rules={epoch: saved.rules_of(epoch) for epoch in survey.epochs},
        texts=bodies,
    )
    _refuse_secrets(saved, bodies.values())
    size = _write(saved, folder, header, bodies, last)
    told = tuple(only) if run is not None else tuple(runs)
    return Exported(str(folder), told, last - saved.base, len(bodies), size)


def _surveyed(saved: Saved, last: int) -> _Survey:
    survey = _Survey()
    for owner, part, body in saved.base_parts():
        survey.part(owner, part, body)
    for row in checked_journal(saved, upto=last):
        survey.step(row)
    return survey


def _check_target(folder: Path) -> None:
    try:
        names = set(os.listdir(folder))
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}; name a new folder") from error
    if names and WORLD_FILE not in names:
        raise ConfigError(
            f"{folder}: has something else in it than an export; name a new or empty folder"
        )


def _bodies(saved: Saved, survey: _Survey, owners: set[int]) -> dict[bytes, bytes]:
    """The entries that go along, by digest."""
    wanted: dict[bytes, bool] = dict.fromkeys(survey.blueprints, True)
    for owner in owners:
        for digest, sure in survey.digests.get(owner, {}).items():
            wanted[digest] = wanted.get(digest, False) or sure
    left_out = saved.texts_left_out() if isinstance(saved, SavedFolder) else False
    bodies: dict[bytes, bytes] = {}
    for digest in sorted(wanted):
        body = saved.entry(digest)
        if body is not None:
            bodies[digest] = body
        elif wanted[digest] and not left_out:
            raise Damaged(
                f"{saved.path}: the text {digest.hex()} is missing; take the saved world from a "
                "copy",
                digest=digest.hex(),
            )
    return bodies


def _check_secrets(saved: Saved, last: int) -> None:
    """Hold every record against the secrets that the home keeps."""
    if isinstance(saved, SavedHome) and saved.secrets():
        _refuse_secrets(
            saved,
            (
                body
                for row in checked_journal(saved, upto=last)
                for body in (row.inputs, row.changes, row.events)
            ),
        )


def _refuse_secrets(saved: Saved, bodies: Iterable[bytes]) -> None:
    values = saved.secrets() if isinstance(saved, SavedHome) else []
    secrets = [value.encode() for value in values if len(value) >= _SECRET_CHARS_MIN]
    if any(secret in body for body in bodies if secrets for secret in secrets):
        raise ConfigError(
            f"{saved.path}: the value of a secret is in a text of this history, so it is not "
            "exported"
        )


def _write(
    saved: Saved, folder: Path, header: dict[str, Any], bodies: dict[bytes, bytes], last: int
) -> int:
    """Texts first, then the file that names them, then away with those it does not name."""
    texts = folder / TEXTS
    size = 0
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        texts.mkdir(mode=0o700, exist_ok=True)
        names = {digest.hex() for digest in bodies}
        for digest, body in bodies.items():
            size += len(body)
            _write_text(texts / digest.hex(), body)
        size += write_world(folder, header, saved.base_parts(), checked_journal(saved, upto=last))
        for name in os.listdir(texts):
            if name not in names:
                (texts / name).unlink()
    except OSError as error:
        raise StorageError(f"{error.filename}: {error.strerror}", path=str(folder)) from error
    return size


def _write_text(place: Path, body: bytes) -> None:
    if place.is_file() and not place.is_symlink() and place.read_bytes() == body:
        return
    draft = place.with_name(f".{place.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with open(os.open(draft, flags, 0o600), "wb") as file:
        file.write(body)
    os.replace(draft, place)
