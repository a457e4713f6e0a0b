"""The history of a saved world: its state at a step, what changed between two, why a run is so.

Read from redo lists alone. No system runs, so newer rules show exactly what older ones left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec
from msgspec import Struct

from leviath.components.changes import Gone
from leviath.components.errors import RunNotFound
from leviath.components.identity import Identity
from leviath.components.inputs import Fork, Import, Settle, Spawn
from leviath.components.parts import WORLD_OWNER
from leviath.components.progress import Stage
from leviath.components.status import Position, Status
from leviath.persistence.journal import decode_changes, decode_inputs
from leviath.persistence.redo import apply_changes, decode_part
from leviath.persistence.saved import checked_journal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from leviath.components.base import Component
    from leviath.components.inputs import Input
    from leviath.persistence.redo import Owners
    from leviath.persistence.rows import JournalRow
    from leviath.persistence.saved import Saved


class WorldState(Struct, frozen=True):
    """All components of a world after one step."""

    step: int
    world_ms: int
    """Clock of the world at that step."""
    wall_ms: int
    """Unix milliseconds at that step."""
    owners: dict[int, dict[type[Component], Component]]
    """By ordinal of the run; 0 is the world itself."""

    def run_id(self, owner: int) -> str:
        """The id of that run; "" for the world and for one that is not there."""
        return _run_id(self.owners, owner)


class Changed(Struct, frozen=True):
    """One component that differs between two states; None where it is not there."""

    owner: int
    run_id: str
    """"" for the world itself."""
    component: str
    old: Component | None
    new: Component | None


class Cause(Struct, frozen=True):
    """One step that had a say in what a run is: what entered, and where the run went."""

    step: int
    world_ms: int
    wall_ms: int
    inputs: tuple[Input, ...]
    """What the step took that is about the run."""
    moves: tuple[str, ...]
    """Where the run went, such as ``status: running -> complete``."""


class History:
    """The steps of an open saved world."""

    def __init__(self, saved: Saved) -> None:
        self._saved = saved

    def at(self, step: int) -> WorldState:
        """The state after ``step``. Raises ConfigError for a step that is not kept, Damaged."""
        owners, newest = self._start(), None
        for row in checked_journal(self._saved, upto=step):
            apply_changes(owners, decode_changes(row))
            newest = row
        return _state(step, newest, owners)

    def diff(self, first: int, second: int) -> list[Changed]:
        """What is different at ``second``, by owner and component. Raises like ``at``."""
        before, after = self.at(first).owners, self.at(second).owners
        found: list[Changed] = []
        for owner in sorted({*before, *after}):
            old, new = before.get(owner, {}), after.get(owner, {})
            run_id = _run_id(after, owner) or _run_id(before, owner)
            found.extend(
                Changed(owner, run_id, kind.__name__, old.get(kind), new.get(kind))
                for kind in sorted({*old, *new}, key=lambda kind: kind.__name__)
                if old.get(kind) != new.get(kind)
            )
        return found

    def why(self, run: str, *, upto: int | None = None) -> list[Cause]:
        """The steps that made a run what it is, oldest first. ``run`` is its id or how that begins.

        Raises RunNotFound, Damaged.
        """
        owner = self.find(run)[1]
        owners, causes = self._start(), list[Cause]()
        for row in checked_journal(self._saved, upto=upto):
            before = owners.get(owner, {}).copy()
            changes = decode_changes(row)
            apply_changes(owners, changes)
            inputs = tuple(_about(row, owner, is_new=not before and owner in owners))
            moves = _moves(before, owners.get(owner, {}))
            if any(type(change) is Gone and change.owner == owner for change in changes):
                moves = (*moves, "dropped from the world")
            if inputs or moves:
                causes.append(Cause(row.step, row.world_ms, row.wall_ms, inputs, moves))
        return causes

    def find(self, run: str) -> tuple[str, int]:
        """Id and ordinal of the one run whose id is or begins with ``run``. Raises RunNotFound."""
        found = self._saved.runs_starting(run)
        whole = [known for known in found if known[0] == run] or found
        if len(whole) != 1 or not run:
            what = "no run is" if not found else f"{len(found)} runs are"
            raise RunNotFound(
                f"{self._saved.path}: {what} called {run!r}; write the whole id", run_id=run
            )
        return whole[0]

    def _start(self) -> Owners:
        owners: Owners = {}
        for owner, part, body in self._saved.base_parts():
            component = decode_part(part, body)
            owners.setdefault(owner, {})[type(component)] = component
        owners.setdefault(WORLD_OWNER, {})
        return owners


def _state(step: int, newest: JournalRow | None, owners: Owners) -> WorldState:
    if newest is None:
        return WorldState(step, 0, 0, owners)
    return WorldState(step, newest.world_ms, newest.wall_ms, owners)


def _run_id(owners: Owners, owner: int) -> str:
    identity = owners.get(owner, {}).get(Identity)
    return identity.run_id if isinstance(identity, Identity) else ""


def _about(row: JournalRow, owner: int, *, is_new: bool) -> Iterator[Input]:
    """The inputs of a step that are about a run; of a new one, those that may have started it."""
    for item in decode_inputs(row):
        if isinstance(item, Settle):
            if owner in item.ordinals:
                yield item
        elif isinstance(item, Spawn | Import | Fork):
            if is_new:
                yield item
        elif getattr(item, "run", WORLD_OWNER) == owner != WORLD_OWNER:
            yield item


def _moves(
    before: dict[type[Component], Component], after: dict[type[Component], Component]
) -> tuple[str, ...]:
    told: list[str] = []
    for kind, word in ((Status, _status_word), (Stage, _stage_word), (Position, _marker_word)):
        old, new = word(before.get(kind)), word(after.get(kind))
        if old != new:
            told.append(f"{kind.__name__.lower()}: {old or '-'} -> {new or '-'}")
    return tuple(told)


def _status_word(part: Component | None) -> str:
    if not isinstance(part, Status):
        return ""
    waiting = f" ({part.waiting.reason})" if part.waiting is not None else ""
    return f"{part.status.value}{waiting}{f': {part.why}' if part.why else ''}"


def _stage_word(part: Component | None) -> str:
    return f"{part.name} turn {part.iteration}" if isinstance(part, Stage) else ""


def _marker_word(part: Component | None) -> str:
    return part.marker.value if isinstance(part, Position) else ""


def facts(value: object) -> object:
    """A component, or a piece of one, as JSON can hold it: structs by field, bytes as hex."""
    if isinstance(value, Struct):
        named = {name: facts(getattr(value, name)) for name in value.__struct_fields__}
        tag = value.__struct_config__.tag
        return named if tag is None else {"type": type(value).__name__, **named}
    if isinstance(value, tuple | list):
        return [facts(item) for item in cast("Sequence[object]", value)]
    if isinstance(value, bytes):
        return value.hex()
    return msgspec.to_builtins(value)
