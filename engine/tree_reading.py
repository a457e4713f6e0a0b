"""Trees as a host developer reads them: hosted runs from memory, ended ones from the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leviath.engine.tree_loading import children_rows, totals_below, totals_of_row
from leviath.systems.tree_index import Totals

if TYPE_CHECKING:
    from leviath.persistence.reader import Reader
    from leviath.systems.world import World


def find_run(world: World, reader: Reader | None, run_id: str) -> tuple[int, str] | None:
    """Ordinal and id of a run, hosted or ended; None when it is not in this home."""
    n = world.by_run_id.get(run_id)
    if n is not None:
        return n, run_id
    row = None if reader is None else reader.run_by_id(run_id)
    return None if row is None else (row.ordinal, row.run_id)


def children_of(world: World, reader: Reader | None, n: int, run_id: str) -> list[tuple[int, str]]:
    """Ordinal and id of each child, oldest first."""
    found = {child: world.run_id(child) for child in world.trees.hosted_children(n)}
    for row in () if reader is None else children_rows(reader, run_id):
        found.setdefault(row.ordinal, row.run_id)
    return sorted(found.items())


def tree_total(world: World, reader: Reader | None, n: int, run_id: str) -> Totals:
    """The run's own costs and those of all runs below it."""
    if n in world:
        return world.trees.total(n)
    total = Totals()
    row = None if reader is None else reader.run_by_ordinal(n)
    if reader is not None and row is not None:
        total.add(totals_of_row(row))
        total.add(totals_below(reader, run_id))
    return total
