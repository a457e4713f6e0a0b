"""A second world from the first one's components, as a load would make it, to compare the two.

Everything in a world that is no component is a cache. If a rebuilt world differs from the live
one, a cache was kept wrongly, and a restart would go on differently.
"""

from __future__ import annotations

from leviath.components.parts import WORLD_OWNER
from leviath.components.world_facts import Counters
from leviath.systems.caches import Caches
from leviath.systems.world import World


def rebuild(world: World) -> tuple[World, Caches]:
    """A new world with the same components and blueprints, and its caches. ``world`` is not
    changed."""
    fresh = World()
    caches = Caches(fresh)
    fresh.blueprints.update(world.blueprints)
    fresh.load(WORLD_OWNER, world.parts_of(WORLD_OWNER))
    for owner in sorted(world.owners()):
        fresh.load(owner, world.parts_of(owner))
    fresh.trees.adopt_departed(world.trees)
    fresh.sequence = world.get(WORLD_OWNER, Counters).sequence
    fresh.sort_queues()
    caches.rebuild_order()
    return fresh, caches
