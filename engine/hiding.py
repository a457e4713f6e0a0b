"""A run that comes in from its folder, without the secret values that its texts quote.

Texts of this world lose them where they enter. A run that was written elsewhere brings texts that
passed no such border, among them what quotes the secret of its own callback. Values are replaced in
decoded texts, never in encoded ones, and only where nothing is found by that text: names of stages,
tools and regions, paths and addresses stay as they are, and are refused with the secret in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from leviath.components.base import Component
from leviath.components.errors import DocumentError
from leviath.components.identity import Identity, Imported, Tree
from leviath.components.output import Output
from leviath.components.parts import DECODERS
from leviath.components.text import Text, inline, text_digest
from leviath.engine.limits import TEXT_INLINE_BYTES_MAX
from leviath.engine.redaction import Redactor
from leviath.persistence.document import UnknownKeys
from leviath.persistence.run_meta import RunMeta
from leviath.persistence.state_file import digests_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leviath.engine.run_folders import ImportedRun

T = TypeVar("T")

_NAMES_ONLY: Final = (Identity, Tree)
_FREE: Final = frozenset(
    {
        # of parts and of documents
        "error", "title", "metadata", "output_request", "blocker", "remedy", "modified_files",
        "broken_scripts",
        # of parts
        "why", "actor", "message", "cause", "note", "fault", "answer", "task_head", "modified",
        "label", "sender", "key",
        # of documents
        "task", "title_error", "artifacts",
    }
)  # fmt: skip
"""Fields whose texts nothing is found by, at any depth below them. A Text is free everywhere."""
_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode


def hidden(run: ImportedRun, redactor: Redactor) -> ImportedRun:
    """The run without what ``redactor`` knows; the same object when there is nothing of it.

    Raises DocumentError when the secret of its own callback stands where it cannot be hidden.
    """
    lost = tuple(map(redactor.redact, run.lost))
    if not any(_knows(redactor, body) for _, body in (*run.parts, *run.bodies)):
        return run if lost == run.lost else msgspec.structs.replace(run, lost=lost)
    parts: dict[type[Component], Component] = {}
    for name, body in run.parts:
        component: Component = DECODERS[name].decode(body)
        parts[type(component)] = component
    hiding = _Hiding(redactor, dict(run.bodies))
    for kind, component in parts.items():
        if kind not in _NAMES_ONLY:
            parts[kind] = hiding.value(component, is_free=False)
    _settle_output(parts)
    imported = parts.get(Imported)
    if isinstance(imported, Imported) and _knows(redactor, imported.document):
        meta = hiding.value(RunMeta.from_json(imported.document), is_free=False)
        parts[Imported] = replace(imported, document=meta.to_json())
    run = msgspec.structs.replace(
        run,
        parts=tuple((kind.__name__, _encode(part)) for kind, part in parts.items()),
        bodies=tuple((digest, hiding.bodies[digest]) for digest in digests_of(parts)),
        lost=lost,
    )
    _refuse_what_is_left(run)
    return run


def _knows(redactor: Redactor, data: bytes) -> bool:
    # A value that JSON escapes is looked for in that form, too.
    return redactor.knows(data.decode(errors="replace"))


def _settle_output(parts: dict[type[Component], Component]) -> None:
    """An answer is as long as it is."""
    output = parts.get(Output)
    if isinstance(output, Output) and not output.content.is_empty:
        parts[Output] = replace(output, size_bytes=output.content.size_bytes)


def _refuse_what_is_left(run: ImportedRun) -> None:
    own = Redactor(secret for _, secret in run.secrets)
    for name, body in (*run.parts, *(("blueprint or a text", body) for _, body in run.bodies)):
        if _knows(own, body):
            raise DocumentError(
                f"the secret of its callback stands in its {name}, where it cannot be hidden: "
                "change the secret, or take it out of the address, path or name that holds it",
                field="callback_secret",
            )


class _Hiding:
    """One walk through what a run is made of; what has nothing to hide stays the same object."""

    def __init__(self, redactor: Redactor, bodies: dict[bytes, bytes]) -> None:
        self._redact = redactor.redact
        self.bodies = bodies
        """By digest: what the run came with, and what became of its texts."""

    def value(self, value: T, *, is_free: bool) -> T:
        """``value`` with hidden texts; ``is_free`` says that a plain text is one to look at."""
        found: object = value
        if isinstance(value, str):
            found = self._redact(value) if is_free and type(value) is str else value
        elif isinstance(value, Text):
            found = self._text(value)
        elif isinstance(value, Struct):
            found = self._struct(value, is_free=is_free)
        elif isinstance(value, UnknownKeys):
            found = self._unknown(value)
        elif isinstance(value, tuple | list):
            items = cast("tuple[object, ...] | list[object]", value)
            new = [self.value(item, is_free=is_free) for item in items]
            if any(ours is not theirs for ours, theirs in zip(new, items, strict=True)):
                found = tuple(new) if isinstance(value, tuple) else new
        elif isinstance(value, dict):
            found = self._mapping(cast("dict[str, object]", value), is_free=is_free)
        return cast("T", found)

    def _struct(self, struct: Struct, *, is_free: bool) -> Struct:
        changes: dict[str, object] = {}
        for name in struct.__struct_fields__:
            if name == "document" and isinstance(struct, Imported):
                continue
            old: object = getattr(struct, name)
            new = self.value(old, is_free=is_free or name in _FREE)
            if new is not old:
                changes[name] = new
        return replace(struct, **changes) if changes else struct

    def _mapping(self, mapping: Mapping[str, object], *, is_free: bool) -> Mapping[str, object]:
        new = {
            self.value(key, is_free=is_free): self.value(item, is_free=is_free)
            for key, item in mapping.items()
        }
        same = len(new) == len(mapping) and all(
            ours is theirs for ours, theirs in zip(new.values(), mapping.values(), strict=True)
        )
        return mapping if same and new.keys() == mapping.keys() else new

    def _text(self, text: Text) -> Text:
        body = self.bodies[text.digest].decode() if text.digest else text.body
        new = self._redact(body)
        if new is body:
            return text
        short = inline(new)
        if short.size_bytes <= TEXT_INLINE_BYTES_MAX:
            return short
        data = new.encode()
        digest = text_digest(data)
        self.bodies[digest] = data
        return Text("", digest, len(data))

    def _unknown(self, keys: UnknownKeys) -> UnknownKeys:
        """Keys of another writer: everything in them may be told by somebody."""
        pairs: list[tuple[str, bytes]] = []
        for name, text in keys:
            old: object = msgspec.json.decode(text)
            new = self.value(old, is_free=True)
            pairs.append((self._redact(name), text if new is old else msgspec.json.encode(new)))
        return keys if tuple(pairs) == keys.pairs else UnknownKeys(pairs)
