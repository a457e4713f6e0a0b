"""The redo list of a step: what a loader applies to the last cut, without running any system."""

from __future__ import annotations

from typing import TypeAlias, dataclass_transform

from msgspec import Raw, Struct, field

from leviath.components.context import Entry


# msgspec inherits ``frozen``; the type checkers have to be told.
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class _Change(Struct, frozen=True, array_like=True, gc=False, tag_field="c"):
    owner: int


class Put(_Change, tag="P"):
    """The component's new value, encoded."""

    part: str
    body: Raw


class Remove(_Change, tag="R"):
    """The component is gone."""

    part: str


class Splice(_Change, tag="S"):
    """Entries dropped at a region's head, then entries appended at its tail."""

    region: str
    drop: int
    append: tuple[Entry, ...]


class Gone(_Change, tag="G"):
    """The owner left the world."""


Change: TypeAlias = Put | Remove | Splice | Gone
