"""One full sample of everything that a store keeps as bytes, and the file of what it encodes to.

``python tests/golden_samples.py`` writes ``tests/golden/parts.json`` for the present version and
leaves the bytes of other versions alone.
"""

from __future__ import annotations

import enum
import json
import sys
import types
import typing
import zlib
from pathlib import Path

import msgspec

from leviath import __version__
from leviath.components.changes import Change
from leviath.components.events import WorldEvent
from leviath.components.inputs import Input
from leviath.components.parts import PARTS

GOLDEN = Path(__file__).parent / "golden" / "parts.json"
Struct = type[msgspec.Struct]
encode = msgspec.msgpack.Encoder(order="deterministic").encode


def sample(kind: object, name: str, default: object = msgspec.NODEFAULT) -> typing.Any:
    """A value of that type that is not the default and could stand for no other field."""
    number = 1 + zlib.crc32(name.encode()) % 100_000
    if kind is bool:
        return default is not True
    if kind is int:
        return number if number != default else number + 1
    if kind is str:
        return f"{name} é\N{BABY CHICK}"
    if kind is bytes:
        return b"\xff" + name.encode()
    if kind is msgspec.Raw:
        return msgspec.Raw(encode(name))
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        if arguments[1:] == (...,):
            return (sample(arguments[0], f"{name}[]"),)
        return tuple(sample(entry, f"{name}.{n}") for n, entry in enumerate(arguments))
    if origin in (typing.Union, types.UnionType):
        (only,) = [entry for entry in arguments if entry is not type(None)]
        return sample(only, name, default)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        members = [member for member in kind if member != default]
        return members[number % len(members)]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return full(kind)
    raise TypeError(f"{name}: say here what a sample of {kind} is")


def full(kind: Struct) -> typing.Any:
    """A value of that struct whose every field is other than its default."""
    fields = msgspec.structs.fields(kind)
    hints = typing.get_type_hints(kind)
    given = {
        field.name: sample(hints[field.name], f"{kind.__name__}.{field.name}", field.default)
        for field in fields
    }
    return kind(**given)


def _union(kinds: object) -> dict[str, Struct]:
    tagged: dict[str, Struct] = {}
    for kind in typing.get_args(kinds):
        tag = str(kind.__struct_config__.tag)
        assert tag not in tagged, f"two kinds have the tag {tag!r}: {kind.__name__} is one"
        tagged[tag] = kind
    return tagged


def registered() -> dict[str, dict[str, Struct]]:
    """Everything that a store keeps, by its family and its name or tag on disk."""
    return {
        "part": dict(PARTS),
        "input": _union(Input),
        "change": _union(Change),
        "event": _union(WorldEvent),
    }


def write() -> None:
    """Write the bytes of the present version."""
    known: dict[str, object] = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    known[__version__] = {
        family: {name: encode(full(kind)).hex() for name, kind in sorted(kinds.items())}
        for family, kinds in registered().items()
    }
    GOLDEN.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    write()
    sys.stdout.write(f"wrote {GOLDEN}\n")
