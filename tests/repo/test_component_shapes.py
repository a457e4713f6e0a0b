"""Components are frozen and made of immutable types, so that a snapshot needs no copy."""

from __future__ import annotations

import enum
import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Hashable

import msgspec
import pytest

import leviath.components

POSITIONAL_FIELDS_MAX = 5
PLAIN: tuple[object, ...] = (bool, int, str, bytes, type(None), msgspec.UnsetType, msgspec.Raw)


def component_structs() -> list[type[msgspec.Struct]]:
    """Return every struct that a module of leviath.components defines."""
    found: list[type[msgspec.Struct]] = []
    for info in pkgutil.iter_modules(leviath.components.__path__, "leviath.components."):
        module = importlib.import_module(info.name)
        found += [
            value
            for value in vars(module).values()
            if isinstance(value, type)
            and issubclass(value, msgspec.Struct)
            and value.__module__ == info.name
        ]
    return found


def shape_faults(struct: type[msgspec.Struct]) -> list[str]:
    """Return what keeps values of that struct from being shared without a copy."""
    name = struct.__name__
    config = struct.__struct_config__
    faults = [] if config.frozen else [f"{name} is not frozen"]
    if not config.array_like:
        kinds = [entry.kind for entry in inspect.signature(struct).parameters.values()]
        positional = len(kinds) - kinds.count(inspect.Parameter.KEYWORD_ONLY)
        if positional > POSITIONAL_FIELDS_MAX:
            faults.append(f"{name} takes {positional} positional fields: make it kw_only")
    for field, hint in typing.get_type_hints(struct, include_extras=False).items():
        faults += [f"{name}.{field} is {wrong}" for wrong in _mutable(hint)]
    return faults


def _mutable(hint: object) -> list[str]:
    name = str(getattr(hint, "__name__", hint))
    origin = typing.get_origin(hint)
    if origin is typing.Literal or hint in PLAIN or hint is Ellipsis or origin is typing.ClassVar:
        return []
    if origin in (tuple, typing.Union, types.UnionType):
        return [wrong for part in typing.get_args(hint) for wrong in _mutable(part)]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return []
    # Values of our own that are no structs (a secret): hashable by value means immutable.
    if isinstance(hint, type) and hint.__module__.startswith("leviath.components."):
        if issubclass(hint, msgspec.Struct) and hint.__struct_config__.frozen:
            return []
        if not issubclass(hint, msgspec.Struct) and issubclass(hint, Hashable):
            return []
    return [name]


def test_components_are_frozen_and_made_of_immutable_types() -> None:
    structs = component_structs()
    assert len(structs) > 10, "the walk found too few structs to mean anything"
    assert [fault for struct in structs for fault in shape_faults(struct)] == []


class _Thawed(msgspec.Struct):
    number: int


class _Mutable(msgspec.Struct, frozen=True):
    names: tuple[list[str], ...]
    extras: dict[str, int] | None
    share: float
    tags: frozenset[str]
    other: _Thawed
    anything: typing.Any


class _Sound(msgspec.Struct, frozen=True):
    names: tuple[tuple[str, int], ...]
    word: typing.Literal["a"] | None
    raw: bytes = b""


@pytest.mark.parametrize(
    ("struct", "expected"),
    [
        (_Thawed, ["_Thawed is not frozen"]),
        (
            _Mutable,
            [
                "_Mutable takes 6 positional fields: make it kw_only",
                "_Mutable.names is list",
                "_Mutable.extras is dict",
                "_Mutable.share is float",
                "_Mutable.tags is frozenset",
                "_Mutable.other is _Thawed",
                "_Mutable.anything is Any",
            ],
        ),
        (_Sound, []),
    ],
)
def test_a_planted_mutable_field_is_found(
    struct: type[msgspec.Struct], expected: list[str]
) -> None:
    assert shape_faults(struct) == expected
