"""Runs that have ended and left memory: found again in ``world.db``, as their state was saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from leviath.components.base import Component
from leviath.components.blueprint import decode_blueprint
from leviath.components.errors import RunNotFound
from leviath.components.identity import Launch, Tree
from leviath.components.parts import RUN_PARTS
from leviath.engine.tree_loading import fill_departed
from leviath.persistence.redo import decode_part
from leviath.persistence.run_row import run_row

if TYPE_CHECKING:
    from leviath.engine.texts import Texts
    from leviath.persistence.reader import Reader
    from leviath.persistence.rows import RunRow
    from leviath.systems.world import World

C = TypeVar("C", bound=Component)


def saved_parts(reader: Reader, n: int) -> dict[type[Component], Component]:
    """The components of a run as the newest cut has them; empty for a run that it does not know."""
    parts = [decode_part(row.part, row.body or b"") for row in reader.owner_state(n)]
    return {type(part): part for part in parts}


def page_in(world: World, texts: Texts, reader: Reader | None, n: int) -> None:
    """Bring an ended run back into memory, and its parent, which may have a say in what becomes of
    it. Changes nothing."""
    if n in world or reader is None:
        return
    parts = saved_parts(reader, n)
    tree = parts.get(Tree)
    if isinstance(tree, Tree) and tree.parent:
        page_in(world, texts, reader, tree.parent)
    if parts:
        launch = parts.get(Launch)
        if isinstance(launch, Launch) and launch.blueprint not in world.blueprints:
            world.blueprints[launch.blueprint] = decode_blueprint(texts.body(launch.blueprint))
        world.load(n, [parts[kind] for kind in RUN_PARTS if kind in parts])
        for _ in fill_departed(world, reader, texts.body, [n], upwards=False):
            pass


def part_of(world: World, reader: Reader | None, n: int, kind: type[C]) -> C | None:
    """One component of a run, hosted or ended."""
    if n in world or reader is None:
        return world.find(n, kind)
    return saved_parts(reader, n).get(kind)  # type: ignore[return-value]


def row_of(world: World, reader: Reader | None, n: int, wall_ms: int) -> RunRow:
    """The listing row of a run, hosted or ended. Raises RunNotFound."""
    if n in world:
        return run_row(world.row(n), wall_ms)
    row = None if reader is None else reader.run_by_ordinal(n)
    if row is None:
        raise RunNotFound(f"no run has ordinal {n}; it may have been dropped by retention")
    return row
