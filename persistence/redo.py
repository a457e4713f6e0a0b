"""Applying a redo list: how a loader reaches a later step without running any system."""

from __future__ import annotations

import msgspec

from leviath.components.base import Component
from leviath.components.changes import Change, Gone, Put, Remove, Splice
from leviath.components.context import Context, Region
from leviath.components.errors import Damaged, NewerFormat
from leviath.components.parts import DECODERS, PARTS

Owners = dict[int, dict[type[Component], Component]]
"""Components of all owners, as a loader gathers them before the world is filled."""


def decode_part(part: str, body: bytes | memoryview) -> Component:
    """Decode one saved part. Raises Damaged naming the part, NewerFormat for one that only a newer
    release knows: that is no damage, and nothing may be rebuilt without it."""
    decoder = DECODERS.get(part)
    if decoder is None:
        raise unknown_part(part)
    try:
        component: Component = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"a saved {part} cannot be decoded ({error}); restore the home") from None
    return component


def unknown_part(part: str) -> NewerFormat:
    """The error for a part that this release does not know."""
    return NewerFormat(
        f"the store names a part {part!r} that this leviath does not know; use the newer leviath "
        "that wrote it (no run was changed)",
        part=part,
    )


def apply_changes(owners: Owners, changes: list[Change]) -> None:
    """Apply one step's redo list in order. Raises Damaged when it does not fit the state, and
    NewerFormat, see ``decode_part``."""
    for change in changes:
        if isinstance(change, Put):
            component = decode_part(change.part, bytes(change.body))
            owners.setdefault(change.owner, {})[type(component)] = component
        elif isinstance(change, Splice):
            _splice(owners, change)
        elif isinstance(change, Remove):
            kind = PARTS.get(change.part)
            if kind is None:
                raise unknown_part(change.part)
            owners.get(change.owner, {}).pop(kind, None)
        else:
            assert type(change) is Gone
            owners.pop(change.owner, None)


def _splice(owners: Owners, change: Splice) -> None:
    row = owners.get(change.owner, {})
    context = row.get(Context)
    index = context.index(change.region) if isinstance(context, Context) else -1
    if not isinstance(context, Context) or index < 0:
        raise Damaged(
            f"the journal splices region {change.region!r} of run {change.owner}, which has none; "
            "restore the home"
        )
    old = context.regions[index]
    tokens = (
        old.tokens
        - sum(entry.tokens for entry in old.entries[: change.drop])
        + sum(entry.tokens for entry in change.append)
    )
    new = Region(old.name, old.max_tokens, tokens, old.entries[change.drop :] + change.append)
    row[Context] = Context((*context.regions[:index], new, *context.regions[index + 1 :]))
