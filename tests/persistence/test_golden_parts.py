"""What a store of any release holds, this one reads: the bytes of every part, input, change, event.

``tests/golden/parts.json`` has one full sample of each by release. A field that was appended with
a default changes the sample of the release that is being made: write it again with
``PYTHONPATH=src python tests/golden_samples.py``. The bytes of a release that is out never change.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from golden_samples import GOLDEN, Struct, encode, full, registered

from leviath import __version__
from leviath.components.base import Component
from leviath.components.changes import Change
from leviath.components.events import WorldEvent
from leviath.components.inputs import Input
from leviath.persistence.redo import decode_part

KEPT: dict[str, dict[str, dict[str, str]]] = json.loads(GOLDEN.read_text())
DECODE: dict[str, Any] = {
    "input": msgspec.msgpack.Decoder(Input).decode,
    "change": msgspec.msgpack.Decoder(Change).decode,
    "event": msgspec.msgpack.Decoder(WorldEvent).decode,
}
CASES = [
    (release, family, name, bytes.fromhex(body))
    for release, families in KEPT.items()
    for family, bodies in families.items()
    for name, body in bodies.items()
]
HELP = (
    "its bytes are no longer those of release {0}. In a release that is not out yet, a field may "
    "be appended with a default (never moved, renamed, removed or given another meaning): then run "
    "PYTHONPATH=src python tests/golden_samples.py"
)


def decoded(family: str, name: str, body: bytes) -> Any:
    """The value of some bytes, read as a loader does."""
    return decode_part(name, body) if family == "part" else DECODE[family](body)


def begins_like(old: Any, new: Any) -> bool:
    """Whether ``new`` says what ``old`` said and only has more fields, at the end."""
    if type(old) is type(new) is list:
        return len(old) <= len(new) and all(map(begins_like, old, new))
    return bool(old == new)


@pytest.mark.parametrize(
    ("release", "family", "name", "body"), CASES, ids=[f"{c[0]}-{c[1]}-{c[2]}" for c in CASES]
)
def test_bytes_of_each_release_mean_what_they_meant(
    release: str, family: str, name: str, body: bytes
) -> None:
    value = decoded(family, name, body)
    assert type(value) is registered()[family][name]
    again = encode(value)
    if release == __version__:
        assert value == full(type(value)), HELP.format(release)
        assert again == body, HELP.format(release)
    else:
        # Later releases append fields; what was there is still there.
        assert begins_like(msgspec.msgpack.decode(body), msgspec.msgpack.decode(again))
    assert decoded(family, name, again) == value


def test_every_registered_kind_has_its_bytes_and_none_went_away() -> None:
    now = {family: set(kinds) for family, kinds in registered().items()}
    kept = {family: set(bodies) for family, bodies in KEPT.get(__version__, {}).items()}
    assert kept == now, "run PYTHONPATH=src python tests/golden_samples.py"
    for release, families in KEPT.items():
        for family, bodies in families.items():
            assert set(bodies) <= now[family], f"release {release} wrote what nobody reads now"


def test_every_name_on_disk_is_one_kind() -> None:
    # ``registered`` refuses two kinds with one tag; a part is named by its class.
    for family, kinds in registered().items():
        assert len(set(kinds.values())) == len(kinds)
        for name, kind in kinds.items():
            assert kind.__struct_config__.array_like
            if family == "part":
                assert issubclass(kind, Component)
                assert kind.__name__ == name


@pytest.mark.parametrize(
    "kind", [kind for kinds in registered().values() for kind in kinds.values()]
)
def test_samples_leave_no_field_at_its_default(kind: Struct) -> None:
    value = full(kind)
    for field in msgspec.structs.fields(kind):
        assert getattr(value, field.name) != field.default, field.name


class _Released(Component):
    left: int = 0
    right: int = 0


class _Swapped(Component):
    right: int = 0
    left: int = 0


class _Longer(Component):
    left: int = 0
    right: int = 0
    more: int = 0


def test_a_planted_move_is_found_and_an_appended_field_passes_in_the_next_release() -> None:
    body = encode(full(_Released))
    read = msgspec.msgpack.Decoder(_Swapped).decode(body)
    sound = full(_Released)
    assert (read.left, read.right) != (sound.left, sound.right)
    longer = msgspec.msgpack.Decoder(_Longer).decode(body)
    assert begins_like(msgspec.msgpack.decode(body), msgspec.msgpack.decode(encode(longer)))
    assert not begins_like(msgspec.msgpack.decode(encode(longer)), msgspec.msgpack.decode(body))
    assert not begins_like([1, 2], [1, 3, 4])
