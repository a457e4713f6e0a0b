"""What every component is: a frozen, array-encoded msgspec struct of immutable fields.

Schema rules (style 2.5): a part's name and the order of its fields never change, a new field is
appended and has a default, a field's meaning never changes. Records of each release stay in
``tests/golden``.

``gc=False`` is safe because no component can be part of a cycle: it holds only text, numbers,
tuples and structs of those.
"""

from __future__ import annotations

from typing import dataclass_transform

from msgspec import Struct, field


# msgspec inherits ``frozen``; the type checkers have to be told.
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Component(Struct, frozen=True, array_like=True, gc=False):
    """One fact, or a few that always change together, of one owner."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Part(Struct, frozen=True, array_like=True, gc=False):
    """A piece of a component, with the same rules."""
