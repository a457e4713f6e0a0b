"""The redo list of a step: what a loader applies to the last cut, without running any system."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Raw, Struct

from leviath.components.context import Entry


class _Change(Struct, frozen=True, array_like=True, tag_field="c"):
    owner: int


class Put(_Change, tag="P"):
    """The component's new value, encoded."""

    part: str
    body: Raw


class Remove(_Change, tag="R"):
    part: str


class Splice(_Change, tag="S"):
    """Entries dropped at a region's head, then entries appended at its tail."""

    region: str
    drop: int
    append: tuple[Entry, ...]


class Gone(_Change, tag="G"):
    """The owner left the world."""


Change: TypeAlias = Put | Remove | Splice | Gone
