"""What holds between a run and its parent, between two steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from leviath.components.family import FanOut, Joins, Split, Worker
from leviath.components.identity import Imported, Tree
from leviath.components.progress import Cost
from leviath.components.run_status import RunStatus
from leviath.components.status import Position, Status
from leviath.systems.reports import decided
from leviath.systems.tree_index import WAITS, Totals, totals_of

if TYPE_CHECKING:
    from leviath.systems.world import World

Row: TypeAlias = "dict[type[Any], Any]"


def stands_below_its_parent(world: World, n: int, row: Row) -> bool:
    """Younger, within what the parent was allowed, and listed there exactly while it has not
    ended."""
    tree: Tree = row[Tree]
    above = world.live_rows.get(tree.parent) if tree.parent else None
    if above is None:
        return True
    listed = n in world.trees.live.get(tree.parent, ())
    status: Status = row[Status]
    if listed == status.status.is_ended or world.trees.parent(n) != tree.parent:
        return False
    if Imported in row:
        return tree.parent < n
    parent: Tree = above[Tree]
    return tree.parent < n and tree.max_child_depth <= max(parent.max_child_depth, tree.depth)


def fan_out_adds_up(world: World, n: int, row: Row) -> bool:
    """No more ended than started, no more started than asked for, and items exactly while some
    wait."""
    fan_out: FanOut | None = row.get(FanOut)
    split: Split | None = row.get(Split)
    if fan_out is None or split is None:
        return fan_out is None and split is None
    return (
        0 <= fan_out.succeeded <= fan_out.ended <= fan_out.started <= fan_out.total
        and bool(split.items) == (fan_out.started < fan_out.total)
        and not row[Status].status.is_ended
    )


def waits_for_children(world: World, n: int, row: Row) -> bool:
    """A run that rests until children end has some that have not, or will start some: else nobody
    would ever wake it."""
    position: Position | None = row.get(Position)
    status: Status = row[Status]
    if position is None or position.marker not in WAITS:
        return True
    if status.status is not RunStatus.WAITING_INPUT or _will_hear(world, n):
        return True
    fan_out: FanOut | None = row.get(FanOut)
    if fan_out is not None:
        split: Split = row[Split]
        if decided(split.mode, split.quorum, fan_out.total, fan_out.ended, fan_out.succeeded):
            return False
        return n in world.trees.live or world.trees.may_start(n)
    live = world.trees.live.get(n, {})
    joins: Joins | None = row.get(Joins)
    if joins is not None:
        return all(any(target in live for target in join.targets) for join in joins.items)
    return bool(live)


def _will_hear(world: World, n: int) -> bool:
    """The next step tells it of its children: after a load, or when a step stopped short."""
    trees = world.trees
    return n in trees.waiting or any(trees.parent(child) == n for child in trees.news)


def sums_agree(world: World, n: int, row: Row) -> bool:
    """What is kept for the runs below is the sum over them, while all of them are in memory."""
    trees = world.trees
    if n in trees.partial:
        return True
    total = Totals()
    for child in trees.hosted_children(n):
        total.add(totals_of(world.get(child, Cost)))
        total.add(trees.below.get(child, Totals()))
    return total == trees.below.get(n, Totals())


def counts_no_worker_at_work(world: World, n: int, row: Row) -> bool:
    """A fan-out is over when as many have ended as there are items: a worker that is at work again,
    because somebody resumed it, must not be among them."""
    fan_out: FanOut | None = row.get(FanOut)
    if fan_out is None:
        return True
    rows = world.live_rows
    live = world.trees.live.get(n, ())
    at_work = sum(child >= fan_out.first and Worker in rows[child] for child in live)
    return at_work <= fan_out.started - fan_out.ended


TREE_INVARIANTS = (
    ("a run stands below its parent, which lists it while it is at work", stands_below_its_parent),
    ("a fan-out adds up", fan_out_adds_up),
    ("a run that waits for children has some to wait for", waits_for_children),
)
