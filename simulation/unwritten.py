"""A world whose changes nobody writes down: the same rules, without the redo list.

Encoding every changed part is a fifth of a step. A simulation that keeps no journal and no digest
has no use for the bytes; what the systems see and do is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leviath.components.parts import WORLD_OWNER
from leviath.components.world_facts import Counters
from leviath.systems.caches import Caches
from leviath.systems.world import World

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from leviath.components.base import Component
    from leviath.components.blueprint import Blueprint
    from leviath.components.changes import Change
    from leviath.systems.world import Written


class UnwrittenWorld(World):
    """A World whose steps say which owners changed, and not how."""

    def take_changes(self) -> tuple[list[Change], Written]:
        """An empty redo list and a clean log. ``touched`` is as in a World."""
        changes: list[Change] = []
        written: Written = {}
        log = self.undo_log
        self.touched.update([owner for owner, _, _ in log])
        if self._gone:
            self._leave(changes, written)
            changes.clear()
        log.clear()
        if self._splices:
            self._splices.clear()
        if self._whole:
            self._whole.clear()
        return changes, written


def loaded(
    kind: type[World],
    rows: Mapping[int, Iterable[Component]],
    blueprints: Mapping[bytes, Blueprint],
) -> tuple[World, Caches]:
    """A world of that kind with those components by owner, as a load makes it, and its caches."""
    world = kind()
    caches = Caches(world)
    world.blueprints.update(blueprints)
    for owner in (WORLD_OWNER, *sorted(owner for owner in rows if owner != WORLD_OWNER)):
        world.load(owner, rows[owner])
    world.sequence = world.get(WORLD_OWNER, Counters).sequence
    world.sort_queues()
    caches.rebuild_order()
    return world, caches


def parts_by_owner(world: World) -> dict[int, tuple[Component, ...]]:
    """All components of a world. They are immutable, so this is its state."""
    owners = (WORLD_OWNER, *sorted(world.owners()))
    return {owner: tuple(world.parts_of(owner)) for owner in owners}
