"""What a load brings in of trees whose runs are not all in memory: ended children and their costs.

A hosted parent may still ask how a child ended, and its totals have what all runs below it cost.
Both stand in the store: nothing of it is loaded as a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leviath.components.blueprint import decode_blueprint
from leviath.components.identity import Launch, Tree
from leviath.components.parts import RUN_PARTS
from leviath.components.run_status import RunStatus
from leviath.components.status import Status
from leviath.persistence.redo import decode_part
from leviath.systems.outcomes import outcome_of
from leviath.systems.tree_index import Totals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from leviath.components.base import Component
    from leviath.components.blueprint import Blueprint
    from leviath.persistence.reader import Reader
    from leviath.persistence.redo import Owners
    from leviath.persistence.rows import RunRow
    from leviath.systems.world import World

_ENDED = frozenset(status.value for status in RunStatus if status.is_ended)
_PARTS = frozenset(kind.__name__ for kind in RUN_PARTS)


def missing_parents(owners: Owners) -> set[int]:
    """Parents of runs at work that are not among the runs which a load brings in: they have ended,
    and the runs below them are to hear of it."""
    missing: set[int] = set()
    for row in owners.values():
        tree, status = row.get(Tree), row.get(Status)
        at_work = isinstance(status, Status) and not status.status.is_ended
        if at_work and isinstance(tree, Tree) and tree.parent and tree.parent not in owners:
            missing.add(tree.parent)
    return missing


def totals_of_row(row: RunRow) -> Totals:
    """What a run cost, as its row in the index says."""
    return Totals(
        1,
        row.prompt_tokens,
        row.completion_tokens,
        row.cached_tokens,
        row.cache_write_tokens,
        row.tool_calls,
        row.cost_priced_nano,
        row.unpriced_calls,
        0 if row.cost_exact or row.unpriced_calls else 1,
    )


def children_rows(reader: Reader, run_id: str) -> list[RunRow]:
    """The rows of a run's children, oldest first."""
    rows = reader.run_rows(parent_run_id=run_id)
    return sorted(rows, key=lambda row: row.ordinal)


def totals_below(reader: Reader, run_id: str) -> Totals:
    """What all runs below one cost, as the index says. A run is counted once, whatever its
    documents say of parents."""
    total, todo, seen = Totals(), [run_id], {run_id}
    while todo:
        for row in children_rows(reader, todo.pop()):
            if row.run_id not in seen:
                seen.add(row.run_id)
                todo.append(row.run_id)
                total.add(totals_of_row(row))
    return total


def fill_departed(
    world: World,
    reader: Reader,
    blueprint_body: Callable[[bytes], bytes],
    owners: Iterable[int],
    *,
    upwards: bool,
) -> Iterator[None]:
    """Tell the index of the ended children of these runs that are not in memory; yields between
    them. ``upwards``: the runs above do not have their costs yet either."""
    parents = {
        name
        for (name,) in reader.rows(
            "select distinct parent_run_id from run where parent_run_id is not null"
        )
    }
    for n in owners:
        if not n or n not in world or world.run_id(n) not in parents:
            continue
        listens = not world.get(n, Status).status.is_ended
        for row in children_rows(reader, world.run_id(n)):
            if row.ordinal in world or row.status not in _ENDED:
                continue
            total = totals_of_row(row)
            total.add(totals_below(reader, row.run_id))
            outcome = None
            if listens:
                parts = _parts(reader, row.ordinal)
                if Status in parts:
                    outcome = outcome_of(parts, _blueprint(world, parts, blueprint_body))
            world.trees.add_departed(n, row.ordinal, outcome, total, upwards=upwards)
            yield


def _parts(reader: Reader, n: int) -> dict[type[Component], Component]:
    """The components of an ended run that this release knows."""
    rows = [row for row in reader.owner_state(n) if row.part in _PARTS]
    parts = [decode_part(row.part, row.body or b"") for row in rows]
    return {type(part): part for part in parts}


def _blueprint(
    world: World,
    parts: dict[type[Component], Component],
    blueprint_body: Callable[[bytes], bytes],
) -> Blueprint | None:
    launch = parts.get(Launch)
    if not isinstance(launch, Launch):
        return None
    known = world.blueprints.get(launch.blueprint)
    return known or decode_blueprint(blueprint_body(launch.blueprint))
