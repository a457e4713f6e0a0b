"""The 30-second persistence heartbeat: 30 buckets by ordinal, one bucket a second.

It changes no state and is not journaled: it only says whose files are to be written again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leviath.components.status import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leviath.systems.world import World


def due_runs(world: World, second: int, buckets: int) -> Iterator[int]:
    """Runs that have not ended and whose bucket has its turn in this second of world time.

    A generator, so that a caller takes slices and never holds the host's loop.
    """
    bucket = second % buckets
    for n in [n for n in world.owners() if n % buckets == bucket]:
        if n in world and not world.get(n, Status).status.is_ended:
            yield n
