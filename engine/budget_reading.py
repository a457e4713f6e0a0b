"""What is left of budgets: limits, what was spent, what is set aside for calls under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from leviath.components.budget import Allowance, FleetSpent, Reserved, TreeSpent
from leviath.components.parts import WORLD_OWNER
from leviath.components.progress import Clock, Cost, Visits
from leviath.systems.reserves import Sums, held_of, own_spent

if TYPE_CHECKING:
    from typing import Protocol, TypeVar

    from leviath.components.base import Component
    from leviath.components.budget import Limits
    from leviath.components.world_facts import Policy
    from leviath.systems.world import World

    C = TypeVar("C", bound=Component)

    class Find(Protocol):
        """A run's component of a kind, or None."""

        def __call__(self, kind: type[C], /) -> C | None: ...


class Spending(Struct, frozen=True):
    """One budget, as of one moment. A call fits if it is in what neither ``spent`` nor ``held``
    takes."""

    limits: Limits
    """What may be spent: ``nano_usd``, ``tokens``, ``turns`` and ``wall_ms``; None: no limit."""
    spent: Sums
    """``nano_usd``, ``tokens`` and ``turns``; the bounds of calls that a crash took are in it."""
    held: Sums
    """Set aside for calls under way: the most that they may take."""
    passed_ms: int | None = None
    """Of its time; None without such a limit, and for a run that ended otherwise, since the world's
    time went on."""


def run_spendings(find: Find, world_ms: int, tree_held: Sums) -> dict[str, Spending]:
    """The budgets of one run: its own as ``budget``, that of the tree below it as ``tree_budget``.

    ``tree_held`` is what is set aside in the tree. A budget that was not given is not there.
    """
    allowance = find(Allowance)
    found: dict[str, Spending] = {}
    if allowance is None:
        return found
    clock = find(Clock)
    is_over = clock is not None and clock.ended_ms is not None

    def passed_ms(limits: Limits, since_ms: int) -> int | None:
        if limits.wall_ms is None or (is_over and not allowance.is_out_of_time):
            return None
        return min(world_ms - since_ms, limits.wall_ms)

    if allowance.own is not None:
        reserved = find(Reserved)
        spent = own_spent(find(Cost), find(Visits), reserved)
        passed = passed_ms(allowance.own, allowance.own_since_ms)
        found["budget"] = Spending(allowance.own, spent, held_of(reserved), passed)
    if allowance.tree is not None:
        shared = find(TreeSpent) or TreeSpent()
        spent = Sums(shared.nano_usd, shared.tokens, shared.turns)
        passed = passed_ms(allowance.tree, allowance.tree_since_ms)
        found["tree_budget"] = Spending(allowance.tree, spent, tree_held, passed)
    return found


def tree_held(world: World, n: int) -> Sums:
    """What is set aside now in the tree below a root."""
    return _copied(world.purses.trees.get(n, Sums()))


def fleet_spending(world: World, policy: Policy | None) -> Spending | None:
    """The budget of all runs together; None when the driving host was opened without one.

    ``policy`` is what this host was opened with, which the world hears of with its first step; None
    for one that does not drive.
    """
    limits = (policy or world.policy).fleet_budget
    if limits is None:
        return None
    spent = world.find(WORLD_OWNER, FleetSpent) or FleetSpent()
    sums = Sums(spent.nano_usd, spent.tokens, spent.turns)
    return Spending(limits, sums, _copied(world.purses.fleet))


def _copied(sums: Sums) -> Sums:
    return Sums(sums.nano_usd, sums.tokens, sums.turns)
