"""Documents shared with other programs: strict about what is ours, careful with what is not.

Reading takes the fast way first: one typed decoder that refuses everything odd. Only a refused
document is read again, key by key, which either keeps what it does not know (a key of a newer
writer, an unknown word where that is allowed) or names the key, the found value and the remedy.
Writing puts our keys in their order, unknown ones after them as they were.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar, cast, get_args

import msgspec
from msgspec import Raw

from leviath.components.clean import clean_text
from leviath.components.errors import DocumentError
from leviath.components.secret import Secret
from leviath.persistence import json_text
from leviath.persistence.json_text import REMEDY

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A number of things. Up to 2**64 - 1 in fact: the careful way takes what this cannot express."""
Unsigned32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
UnixSeconds = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

_U64_MAX: Final = 2**64 - 1
_SHOWN_MAX: Final = 60


class UnknownKeys:
    """Keys of a document that this version does not know, in their order, with their JSON text.

    Immutable and hashable. ``repr`` names the keys only: what they hold may be private.
    """

    __slots__ = ("pairs",)

    pairs: tuple[tuple[str, bytes], ...]

    def __init__(self, pairs: Iterable[tuple[str, bytes]] = ()) -> None:
        object.__setattr__(self, "pairs", tuple(pairs))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("UnknownKeys are immutable: make new ones")

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        return iter(self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __eq__(self, other: object) -> bool:
        return self.pairs == other.pairs if isinstance(other, UnknownKeys) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.pairs)

    def __repr__(self) -> str:
        return f"UnknownKeys({', '.join(name for name, _ in self.pairs)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (UnknownKeys, (self.pairs,))


NO_UNKNOWN_KEYS: Final = UnknownKeys()


class Document(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    # Not a key of any file: a document that has it all the same is read with care, like any other
    # that holds more than we know.
    rename={"unknown": "(unknown keys)"},
):
    """Base of every object in a run document. Fields are keys, in the order they are written.

    An encoder without our hooks refuses a Document on purpose: the rules for leaving keys out and
    for secrets live in ``encode_document`` and ``public_body``.
    """

    SKIPPED_NULL: ClassVar[tuple[str, ...]] = ()
    """Keys that are not written while they are None."""
    SKIPPED_EMPTY: ClassVar[tuple[str, ...]] = ()
    """Keys that are not written while they are empty."""
    DOLLARS: ClassVar[tuple[str, ...]] = ()
    """Keys that hold an amount or null; an amount that is not finite is not written."""
    NESTED: ClassVar[DocumentTypes] = {}
    """Keys that hold one document or null."""
    NESTED_LISTS: ClassVar[DocumentTypes] = {}
    """Keys that hold a list of documents."""

    unknown: UnknownKeys = NO_UNKNOWN_KEYS

    @classmethod
    def own_keys(cls, body: Mapping[str, Raw]) -> Collection[str]:
        """Which keys of ``body`` this type reads itself; the others are kept unread."""
        return [name for name in cls.__struct_fields__ if name != "unknown"]

    @classmethod
    def from_bare(cls, text: str) -> Document | None:
        """The document that older writers spelled as the bare string ``text``, if there is one."""
        return None


DocumentTypes: TypeAlias = Mapping[str, type[Document]]
"""Has a name of its own because ``type`` means something else in a document with such a key."""


class Variant(Document, frozen=True, kw_only=True):
    """A document in which the word under one key says which other keys go with it.

    A word of a newer writer is allowed; everything beside it is kept unread then. Making a value
    with other keys than its word goes with is a ValueError.
    """

    TAG: ClassVar[str]
    """The key that holds the word."""
    COMPANIONS: ClassVar[Mapping[str, tuple[str, ...]]]
    """For each known word the keys that it goes with, out of SKIPPED_NULL."""

    def __post_init__(self) -> None:
        word = getattr(self, self.TAG)
        due = self.COMPANIONS.get(word, ())
        if any((getattr(self, name) is not None) != (name in due) for name in self.SKIPPED_NULL):
            raise ValueError(f"{self.TAG} {word} goes with {', '.join(due) or 'no other key'}")

    @classmethod
    def own_keys(cls, body: Mapping[str, Raw]) -> Collection[str]:
        """Only the tag when its word is unknown; with a known one, also what goes with it."""
        try:
            word = msgspec.json.decode(body[cls.TAG], type=str)
        except (KeyError, msgspec.DecodeError):
            return (cls.TAG,)
        return (cls.TAG, *cls.COMPANIONS.get(word, ()))


D = TypeVar("D", bound=Document)


def decode_document(kind: type[D], text: bytes | str) -> D:
    """The ``kind`` that ``text`` holds.

    Keys that are unknown are kept. Raises DocumentError, whose ``field`` names the key.
    """
    data = json_text.as_bytes(text)
    json_text.check_size(len(data), json_text.DOCUMENT_BYTES_MAX)
    try:
        document: D = _strict(kind).decode(data)
    except (msgspec.DecodeError, RecursionError):
        return _read(kind, _mended(data), "")
    return document


def decode_list(kind: type[D], text: bytes | str) -> tuple[D, ...]:
    """Like ``decode_document`` for a JSON array of ``kind``."""
    data = json_text.as_bytes(text)
    json_text.check_size(len(data), json_text.DOCUMENT_BYTES_MAX)
    try:
        documents: tuple[D, ...] = _strict_list(kind).decode(data)
    except (msgspec.DecodeError, RecursionError):
        return tuple(_read_item(kind, *item) for item in _items(_mended(data), ""))
    return documents


def encode_document(document: Document, *, indent: int = 2) -> bytes:
    """The durable JSON text of ``document``, secrets in clear: for a private file only.

    ``indent`` 0 gives compact text. Half characters become U+FFFD, so that no text of a host can
    keep a run from being written. Raises DocumentError for a number that JSON does not have.
    """
    return encode_body(_body(document, own_only=False), indent=indent)


def encode_body(body: object, *, indent: int) -> bytes:
    """JSON text of what ``_body`` made: one body or a list of them."""
    try:
        text = _DURABLE.encode(body)
    except UnicodeEncodeError:
        text = _DURABLE.encode(_cleaned(body))
    return msgspec.json.format(text, indent=indent) if indent else text


def encode_list(documents: Iterable[Document]) -> bytes:
    """Pretty JSON text of an array of documents."""
    return encode_body([_body(document, own_only=False) for document in documents], indent=2)


def public_body(document: Document) -> dict[str, object]:
    """What a reader outside the process may see of ``document``, as plain JSON values.

    Keys we do not know are left out, since nobody can say whether they are secret. A Secret that
    was not redacted before is a TypeError, never text.
    """
    plain: dict[str, object] = msgspec.to_builtins(_body(document, own_only=True))
    return plain


def _body(document: Document, *, own_only: bool) -> dict[str, object]:
    body: dict[str, object] = msgspec.structs.asdict(document)
    del body["unknown"]
    for name in document.DOLLARS:
        amount = body[name]
        if isinstance(amount, float) and not math.isfinite(amount):
            raise DocumentError(
                f"`{name}` is {amount}: JSON has no such number; leave it null or "
                "count the call as unpriced",
                field=name,
            )
    for name in document.SKIPPED_NULL:
        if body[name] is None:
            del body[name]
    for name in document.SKIPPED_EMPTY:
        if not body[name]:
            del body[name]
    for name in document.NESTED:
        nested = body.get(name)
        if isinstance(nested, Document):
            body[name] = _body(nested, own_only=own_only)
    for name in document.NESTED_LISTS:
        items = body.get(name)
        if isinstance(items, tuple):
            documents = cast("tuple[Document, ...]", items)
            body[name] = [_body(item, own_only=own_only) for item in documents]
    if document.unknown is not NO_UNKNOWN_KEYS and not own_only:
        body.update((name, Raw(text)) for name, text in document.unknown)
    return body


def _cleaned(value: object) -> object:
    if isinstance(value, str):
        # An enum's member is a str too, and its value is what is written.
        return clean_text(str.__str__(value))
    if isinstance(value, Secret):
        return Secret(clean_text(value.reveal()))
    if isinstance(value, dict):
        body = cast("dict[object, object]", value)
        return {_cleaned(key): _cleaned(item) for key, item in body.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(item) for item in cast("Iterable[object]", value)]
    return value


def _enc_hook(value: object) -> object:
    if isinstance(value, Secret):
        return value.reveal()
    raise TypeError(f"a run document cannot hold a {type(value).__name__}")


def _dec_hook(kind: type, value: object) -> object:
    if kind is Secret and isinstance(value, str):
        return Secret(value)
    if kind is object:
        return value
    raise ValueError(f"Expected `str | null`, got `{type(value).__name__}`")


_DURABLE: Final = msgspec.json.Encoder(enc_hook=_enc_hook)
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_ARRAY: Final = msgspec.json.Decoder(list[Raw])
_WORD: Final = msgspec.json.Decoder(str)


@functools.cache
def _strict(kind: type[Document]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, dec_hook=_dec_hook)


@functools.cache
def _strict_list(kind: type[Document]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(tuple[kind, ...], dec_hook=_dec_hook)  # type: ignore[valid-type]


# --- the careful way ----------------------------------------------------------------------------


class _Field(NamedTuple):
    name: str
    required: bool
    decoder: msgspec.json.Decoder[Any]
    nested: type[Document] | None
    nested_list: type[Document] | None
    is_count: bool
    is_secret: bool


@functools.cache
def _fields(kind: type[Document]) -> tuple[_Field, ...]:
    return tuple(
        _Field(
            name=field.name,
            required=field.required,
            decoder=msgspec.json.Decoder(field.type, dec_hook=_dec_hook),
            nested=kind.NESTED.get(field.name),
            nested_list=kind.NESTED_LISTS.get(field.name),
            is_count=field.type == Count or Count in get_args(field.type),
            is_secret=Secret in get_args(field.type),
        )
        for field in msgspec.structs.fields(kind)
        if field.name != "unknown"
    )


def _mended(data: bytes) -> bytes:
    text = json_text.mended(data)
    json_text.check_nesting(text)
    return text


def _read(kind: type[D], text: bytes, place: str) -> D:
    try:
        body = json_text.parse(_OBJECT.decode, text)
    except msgspec.ValidationError as error:
        raise _fault(place, _shown(text), "expected an object") from error
    own = kind.own_keys(body)
    ours = {name: body.pop(name) for name in own if name in body}
    unknown = [(name, msgspec.json.format(bytes(raw), indent=-1)) for name, raw in body.items()]
    document: D
    try:
        # A newer writer's document is odd in nothing but its keys: without them it is read at once.
        document = _strict(kind).decode(_DURABLE.encode(ours))
    except msgspec.DecodeError:
        document = _read_keys(kind, ours, own, place, text)
    return msgspec.structs.replace(document, unknown=UnknownKeys(unknown)) if unknown else document


def _read_keys(
    kind: type[D], ours: Mapping[str, Raw], own: Collection[str], place: str, text: bytes
) -> D:
    values: dict[str, Any] = {}
    for field in _fields(kind):
        found = ours.get(field.name)
        if found is not None:
            values[field.name] = _read_field(field, bytes(found), _inside(place, field.name))
        elif field.required and field.name in own:
            raise _fault(_inside(place, field.name), "missing", "every document has it")
    try:
        return kind(**values)
    except ValueError as error:
        raise _fault(place, _shown(text), str(error)) from error


def _read_field(field: _Field, text: bytes, place: str) -> object:
    if field.nested is not None and text.startswith(b"{"):
        return _read(field.nested, text, place)
    if field.nested_list is not None and text.startswith(b"["):
        return tuple(_read_item(field.nested_list, *item) for item in _items(text, place))
    try:
        return json_text.parse(field.decoder.decode, text)
    except msgspec.ValidationError as error:
        if field.is_count and text.isdigit() and int(text[:21]) <= _U64_MAX:
            return int(text)
        if field.is_secret:
            raise _fault(place, "not a secret", str(error)) from None
        word = json_text.parse(_WORD.decode, text) if text.startswith(b'"') else None
        raise _fault(place, _shown(text), str(error), word=word) from error


def _items(text: bytes, place: str) -> Iterator[tuple[bytes, str]]:
    try:
        items = json_text.parse(_ARRAY.decode, text)
    except msgspec.ValidationError as error:
        raise _fault(place, _shown(text), "expected an array") from error
    for index, item in enumerate(items):
        yield bytes(item), f"{place}[{index}]"


def _read_item(kind: type[D], text: bytes, place: str) -> D:
    if text.startswith(b'"'):
        bare = kind.from_bare(json_text.parse(_WORD.decode, text))
        if isinstance(bare, kind):
            return bare
    return _read(kind, text, place)


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _shown(text: bytes) -> str:
    shown = text.decode()
    return shown if len(shown) <= _SHOWN_MAX else shown[:_SHOWN_MAX] + "..."


def _fault(place: str, shown: str, reason: str, word: str | None = None) -> DocumentError:
    place = place or "$"
    return DocumentError(f"`{place}` is {shown}: {reason}; {REMEDY}", field=place, word=word)
