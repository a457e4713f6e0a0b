"""One folder below ``runs`` that the store does not know: a run to import, or why it is none.

``state.lev`` is preferred, because it is one consistent moment; ``meta.json`` may be newer by the
turns of a busy run. What was paid for is taken from whichever knows more, an ending stays an
ending, and what is lost between the two is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from leviath.components.address import HIDDEN, URL_REF, shown_url
from leviath.components.base import Component
from leviath.components.blueprint import Blueprint, StageSpec, canonical_bytes, decode_blueprint
from leviath.components.clean import clean_text, cut_utf8
from leviath.components.effects import Effects, Held, Timers, Turn
from leviath.components.errors import BlueprintError, Damaged, DocumentError, LevError, SpawnError
from leviath.components.identity import Identity, Launch, Tree
from leviath.components.inputs import Import
from leviath.components.parts import RUN_PARTS
from leviath.components.progress import Clock, Cost
from leviath.components.run_id import check_run_id
from leviath.components.run_status import RunStatus
from leviath.components.secret import Secret
from leviath.components.status import Position, Status
from leviath.components.text import Text, inline, text_digest
from leviath.engine.blueprints import check_spawnable, load_blueprint, validate_blueprint
from leviath.engine.limits import LABEL_BYTES_MAX, TEXT_INLINE_BYTES_MAX
from leviath.persistence.files import opened_folder, read_file_confined
from leviath.persistence.importing import (
    check_amounts,
    check_folder,
    checked_stages,
    meta_parts,
    normalised,
    parts_from_documents,
)
from leviath.persistence.json_text import DOCUMENT_BYTES_MAX
from leviath.persistence.run_documents import ContextSnapshot, StageRecord
from leviath.persistence.run_meta import RunMeta
from leviath.persistence.state_file import StateFile, decode_state, parts_of_state, rebased

if TYPE_CHECKING:
    from leviath.persistence.files import FileSystem

Parts = dict[type[Component], Component]
LoadBlueprint = Callable[[str], Blueprint]
D = TypeVar("D")

STATE_BYTES_MAX: Final = 1024 * 1024 * 1024
_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode


class ImportedRun(Struct, frozen=True):
    """A folder that becomes a run. ``bodies`` are to be durable with its Import input."""

    run_id: str
    parts: tuple[tuple[str, bytes], ...]
    bodies: tuple[tuple[bytes, bytes], ...]
    """(digest, body): the blueprint, which also belongs on the world's shelf, and long texts."""
    blueprint: bytes
    """Digest of the blueprint."""
    secrets: tuple[tuple[str, Secret], ...] = ()
    """(reference, value) for the store's table of secrets."""
    lost: tuple[str, ...] = ()
    """What the run had and its files do not tell."""
    hold: bool = False
    """It was at work, and nothing tells what was said: somebody has to look at it first."""
    order: tuple[int, int, str] = (0, 0, "")
    """Parents come before their children, older runs before younger ones."""
    address: tuple[str, str] | None = None
    """(reference, whole callback address) for the table of secrets, if it hides something."""

    def as_input(self, ticket: int, *, hold: bool) -> Import:
        """The input that brings the run in."""
        return Import(ticket, self.parts, hold or self.hold, self._why())

    def _why(self) -> str:
        """What somebody who finds the run held has to know first."""
        if not self.lost:
            return ""
        what = cut_utf8(clean_text("; ".join(self.lost)), LABEL_BYTES_MAX)
        return f"imported without {what}: resume it to drive it here as it is, or cancel it"


class Unreadable(Struct, frozen=True):
    """A folder that holds no run that can be read; nothing in it was touched."""

    folder: str
    reason: str
    status_word: str = ""
    """The status that the document has, when that is a word of a newer leviath."""


class _Found(Struct):
    """What one folder holds."""

    meta: RunMeta | None = None
    meta_text: bytes = b""
    meta_error: DocumentError | None = None
    state: StateFile | None = None
    parts: Parts = field(default_factory=dict[type[Component], Component])
    state_error: LevError | None = None


def blueprint_at(path: str) -> Blueprint:
    """The blueprint that a document names. Raises BlueprintError, SpawnError."""
    if not path:
        raise BlueprintError("it was built in Python, and no file has it", faults=())
    blueprint = load_blueprint(Path(path)).blueprint
    check_spawnable(blueprint)
    return blueprint


def read_run_folder(
    runs: Path,
    name: str,
    *,
    world_ms: int,
    rebuilding: bool,
    load: LoadBlueprint,
    fs: FileSystem,
) -> ImportedRun | Unreadable:
    """Read one folder; ``rebuilding`` also takes a run whose meta.json is damaged or gone.

    Never raises for what is in the folder; raises OSError and StorageError for nothing but it.
    """
    try:
        check_run_id(name)
        folder = runs / name
        found = _look(folder, name, fs)
        if found.meta is None and not (rebuilding and found.state is not None):
            return _no_meta(name, found)
        if found.state is not None:
            return _from_state(found, name, world_ms)
        return _from_documents(
            found, folder, name, world_ms=world_ms, rebuilding=rebuilding, load=load, fs=fs
        )
    except (LevError, OSError) as error:
        return Unreadable(name, str(error))


def _look(folder: Path, name: str, fs: FileSystem) -> _Found:
    found = _Found()
    with opened_folder(folder, fs) as fd:
        text = read_file_confined(fd, "meta.json", bytes_max=DOCUMENT_BYTES_MAX, fs=fs)
        state = read_file_confined(fd, "state.lev", bytes_max=STATE_BYTES_MAX, fs=fs)
    if text is not None:
        found.meta_text = text
        try:
            meta = RunMeta.from_json(text)
            check_amounts(meta)
        except DocumentError as error:
            found.meta_error = error
        else:
            check_folder(meta, name)
            found.meta = meta
    if state is not None:
        try:
            found.state = decode_state(state)
            found.parts = parts_of_state(found.state)
        except Damaged as error:
            found.state, found.state_error = None, error
        else:
            if found.state.run_id != name:
                raise DocumentError(
                    f"state.lev is of the run {found.state.run_id!r}; rename the folder",
                    field="run_id",
                )
    return found


def _no_meta(name: str, found: _Found) -> Unreadable:
    if found.meta_error is None:
        return Unreadable(name, "it holds no meta.json; remove the folder or restore the file")
    word = str(found.meta_error.fields.get("status_word") or "")
    return Unreadable(name, f"meta.json: {found.meta_error.message}", word)


# --- from state.lev -------------------------------------------------------------------------------


def _from_state(found: _Found, name: str, world_ms: int) -> ImportedRun:
    state, meta = found.state, found.meta
    assert state is not None
    parts = rebased(found.parts, state, world_ms)
    lost: list[str] = []
    if meta is None:
        lost.append(f"what its meta.json said after step {state.step}: {_why(found)}")
    else:
        lost += _take_what_is_newer(parts, normalised(meta), state)
    launch = parts[Launch]
    assert isinstance(launch, Launch)
    decode_blueprint(dict(state.bodies)[launch.blueprint])
    secret = None if meta is None else meta.callback_secret
    ref = f"callback-{name}" if secret is not None else None
    if launch.callback_secret_ref is not None and secret is None:
        lost.append("the secret that signs its callback")
    parts[Launch] = replace(launch, callback_secret_ref=ref)
    secrets = () if secret is None or ref is None else ((ref, secret),)
    address = _take_address(parts, meta, name, lost)
    return replace(_imported(name, parts, state.bodies, secrets, tuple(lost)), address=address)


def _take_address(
    parts: Parts, meta: RunMeta | None, name: str, lost: list[str]
) -> tuple[str, str] | None:
    """Hide in ``parts`` what the callback address hides; returns what the store has to keep."""
    launch = parts[Launch]
    assert isinstance(launch, Launch)
    whole = launch.callback_url if meta is None else meta.callback_url or launch.callback_url
    whole = None if whole is None else clean_text(whole)
    if whole is not None and HIDDEN in whole:
        lost.append("its callback address, of which only a part is known")
        whole = None
    shown = None if whole is None else shown_url(whole)
    hides = whole is not None and shown != whole
    ref = f"{URL_REF}{name}" if hides else None
    parts[Launch] = replace(launch, callback_url=shown, callback_url_ref=ref)
    return None if ref is None or whole is None else (ref, whole)


def _why(found: _Found) -> str:
    return "there is none" if found.meta_error is None else found.meta_error.message


def _take_what_is_newer(parts: Parts, meta: RunMeta, state: StateFile) -> list[str]:
    """Money and endings of the document, where it is ahead of the state; what that leaves lost."""
    said = meta_parts(meta)
    ours, theirs = parts[Cost], said[Cost]
    status, told = parts[Status], said[Status]
    assert isinstance(ours, Cost)
    assert isinstance(theirs, Cost)
    assert isinstance(status, Status)
    assert isinstance(told, Status)
    lost: list[str] = []
    if theirs.prompt + theirs.completion > ours.prompt + ours.completion:
        lost.append(f"the conversation of its turns after step {state.step}; their cost is kept")
        parts[Cost] = Cost(
            max(ours.prompt, theirs.prompt),
            max(ours.completion, theirs.completion),
            max(ours.cached, theirs.cached),
            max(ours.cache_write, theirs.cache_write),
            max(ours.tool_calls, theirs.tool_calls),
            max(ours.priced_nano, theirs.priced_nano),
            max(ours.unpriced, theirs.unpriced),
            max(ours.computed, theirs.computed),
            ours.upper_nano,
        )
    if told.status.is_ended and not status.status.is_ended:
        lost.append(f"how it came to be {told.status.wire()} after step {state.step}")
        for kind in (Position, Turn, Held, Timers):
            parts.pop(kind, None)
        effects = parts[Effects]
        assert isinstance(effects, Effects)
        parts[Effects] = replace(effects, items=())
        parts[Status], parts[Clock] = told, said[Clock]
    return lost


# --- from the documents ---------------------------------------------------------------------------


def _from_documents(
    found: _Found,
    folder: Path,
    name: str,
    *,
    world_ms: int,
    rebuilding: bool,
    load: LoadBlueprint,
    fs: FileSystem,
) -> ImportedRun | Unreadable:
    meta = found.meta
    assert meta is not None
    lost = ["counters of its stage, and calls in flight"]
    if rebuilding:
        lost.append("the key that it was spawned with, if it had one")
    if found.state_error is not None:
        lost.append(f"state.lev: {found.state_error.message}")
    try:
        blueprint = load(meta.agent_path)
    except (BlueprintError, SpawnError) as error:
        if not meta.status.is_ended:
            return Unreadable(
                name,
                f"its blueprint at {meta.agent_path[:256]!r} cannot be loaded: {error.message}",
            )
        # Nothing drives an ended run: its record does not depend on a file that may be gone.
        blueprint = _stand_in(meta)
        lost.append(f"its blueprint, which is no longer at {meta.agent_path[:256]!r}")
    with opened_folder(folder, fs) as fd:
        stages = _optional(fd, "stages.json", checked_stages, lost, fs)
        context = _optional(fd, "context.json", ContextSnapshot.from_json, lost, fs)
        answer = read_file_confined(fd, "final_output", bytes_max=DOCUMENT_BYTES_MAX, fs=fs)
    bodies: dict[bytes, bytes] = {}

    def intern(text: str) -> Text:
        short = inline(text)
        if short.size_bytes <= TEXT_INLINE_BYTES_MAX:
            return short
        data = text.encode()
        digest = text_digest(data)
        bodies[digest] = data
        return Text("", digest, len(data))

    body = canonical_bytes(blueprint)
    bodies[text_digest(body)] = body
    secret = meta.callback_secret
    ref = None if secret is None else f"callback-{name}"
    records: tuple[StageRecord, ...] = stages or ()
    parts = parts_from_documents(
        meta,
        records,
        context,
        answer,
        document=_without_secret(meta, found.meta_text),
        blueprint=blueprint,
        blueprint_digest=text_digest(body),
        intern=intern,
        world_ms=world_ms,
        secret_ref=ref,
    )
    secrets = () if secret is None or ref is None else ((ref, secret),)
    by_kind = {type(part): part for part in parts}
    address = _take_address(by_kind, meta, name, lost)
    run = _imported(name, by_kind, tuple(bodies.items()), secrets, tuple(lost))
    blind = rebuilding and context is None and meta.status is RunStatus.RUNNING
    return replace(run, hold=blind, address=address)


def _without_secret(meta: RunMeta, text: bytes) -> bytes:
    """The document as it enters state and journal, where no secret and no hidden part of an
    address may be."""
    redacted = meta.redacted()
    return text if redacted == meta else redacted.to_json()


def _stand_in(meta: RunMeta) -> Blueprint:
    return validate_blueprint(
        Blueprint(name=meta.agent_name[:128] or "unnamed", stages=(StageSpec(name="main"),))
    )


def _optional(
    folder: int,
    name: str,
    decode: Callable[[bytes], D],
    lost: list[str],
    fs: FileSystem,
) -> D | None:
    """A document that a run can do without; None when it is missing or damaged."""
    data = read_file_confined(folder, name, bytes_max=DOCUMENT_BYTES_MAX, fs=fs)
    if data is None:
        lost.append(f"what {name} would tell")
        return None
    try:
        return decode(data)
    except DocumentError as error:
        lost.append(f"{name}: {error.message}")
        return None


def _imported(
    name: str,
    parts: Mapping[type[Component], Component],
    bodies: tuple[tuple[bytes, bytes], ...],
    secrets: tuple[tuple[str, Secret], ...],
    lost: tuple[str, ...],
) -> ImportedRun:
    identity, launch, tree = parts[Identity], parts[Launch], parts[Tree]
    assert isinstance(identity, Identity)
    assert isinstance(launch, Launch)
    assert isinstance(tree, Tree)
    encoded = tuple((kind.__name__, _encode(parts[kind])) for kind in RUN_PARTS if kind in parts)
    order = (tree.depth, launch.started_ms, name)
    return ImportedRun(name, encoded, bodies, launch.blueprint, secrets, lost, order=order)
