"""Money, tokens and turns that are set aside for model calls under way, and what became of them.

A hold stands with its run. What all holds of a tree or of the world come to is kept beside it, as a
cache; what shared budgets have seen spent is a component of the root, and of the world.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from leviath.components.budget import Allowance, FleetSpent, Hold, Reserved, TreeSpent
from leviath.components.effects import Effects
from leviath.components.error_kind import ErrorKind, error_kind
from leviath.components.identity import Tree
from leviath.components.parts import WORLD_OWNER
from leviath.components.progress import Cost, Visits
from leviath.components.run_status import RunStatus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from leviath.components.base import Component
    from leviath.components.budget import Limits
    from leviath.components.inputs import Spawn
    from leviath.components.world_facts import Policy
    from leviath.systems.run import LedgerFact, Run
    from leviath.systems.world import World

TOTAL_MAX = 1 << 62
"""Sums stop here, below what an SQLite integer holds."""
_REFUSED_UNREAD = frozenset(
    (
        ErrorKind.RATE_LIMITED,
        ErrorKind.OVERLOADED,
        ErrorKind.AUTH,
        ErrorKind.FORBIDDEN,
        ErrorKind.CREDITS,
        ErrorKind.BAD_REQUEST,
        ErrorKind.CONTEXT_LENGTH,
        ErrorKind.WORKSPACE_LOST,
        ErrorKind.PROVIDER_MISSING,
        ErrorKind.SCRIPT_EXHAUSTED,
    )
)
"""The provider turned the call away before a model saw it: nobody bills that."""

WORKS: Final = frozenset((RunStatus.STARTING, RunStatus.RUNNING, RunStatus.WAITING_INPUT))
"""Statuses in which a time budget ends the work; a paused run hears of it when it is resumed."""


class Sums(msgspec.Struct):
    """What several calls take together, or may take."""

    nano_usd: int = 0
    tokens: int = 0
    turns: int = 0

    def add(self, hold: Hold, sign: int = 1) -> None:
        """Add what is set aside for one call, or take it away."""
        self.nano_usd += sign * hold.nano_usd
        self.tokens += sign * hold.tokens
        self.turns += sign * hold.turns


class Purses:
    """Who has a budget, and what is set aside. Belongs to one world, which tells it of changes."""

    __slots__ = ("_roots", "_world", "armed", "fleet", "trees")

    def __init__(self, world: World) -> None:
        self._world = world
        self.armed: dict[int, None] = {}
        """Runs with an allowance; 0 while the world has a fleet budget. Empty: no call of any run
        has to be looked at."""
        self.trees: dict[int, Sums] = {}
        """What is set aside in each tree, by its root."""
        self.fleet: Sums = Sums()
        self._roots: dict[int, int] = {}
        """The root of each run with holds: its place in the tree may be gone before they are."""

    def allowance_put(self, owner: int, old: Component | None, new: Component | None) -> None:
        """A run got a budget, or left."""
        if new is None:
            self.armed.pop(owner, None)
        else:
            self.armed[owner] = None

    def policy_put(self, policy: Policy) -> None:
        """The world got a fleet budget, or lost it."""
        if policy.fleet_budget is None:
            self.armed.pop(WORLD_OWNER, None)
        else:
            self.armed[WORLD_OWNER] = None

    def reserved_put(self, owner: int, old: Reserved | None, new: Reserved | None) -> None:
        """Something was set aside for a run, or given back."""
        before = () if old is None else old.holds
        after = () if new is None else new.holds
        if before == after:
            return
        root = self._roots.get(owner, 0)
        if not root:
            root = self._roots[owner] = root_of(self._world.live_rows[owner], owner)
        tree = self.trees.setdefault(root, Sums())
        for holds, sign in ((before, -1), (after, 1)):
            for hold in holds:
                tree.add(hold, sign)
                self.fleet.add(hold, sign)
        if not after:
            del self._roots[owner]
        if tree == Sums():
            del self.trees[root]

    def snapshot(self) -> dict[str, object]:
        """What a rebuilt world must have alike."""
        return {
            "armed": sorted(self.armed),
            "trees": {n: msgspec.structs.astuple(self.trees[n]) for n in sorted(self.trees)},
            "fleet": msgspec.structs.astuple(self.fleet),
        }


def began_anew(allowance: Allowance, world_ms: int) -> Allowance:
    """The same allowance of a run that came from elsewhere: its times count from now."""
    return replace(allowance, own_since_ms=world_ms, tree_since_ms=world_ms, is_out_of_time=False)


def allowance_of(spawn: Spawn, world_ms: int) -> Allowance | None:
    """The budgets that a new run begins with; a tree's is its root's."""
    tree = None if spawn.parent else spawn.tree_budget
    if spawn.budget is None and tree is None:
        return None
    return Allowance(spawn.budget, tree, world_ms, world_ms)


def over_ms(allowance: Allowance) -> int | None:
    """World time at which the first time budget of an allowance is over; None for never, or when
    that was looked at."""
    if allowance.is_out_of_time:
        return None
    times: list[int] = []
    for limits, since_ms in (
        (allowance.own, allowance.own_since_ms),
        (allowance.tree, allowance.tree_since_ms),
    ):
        if limits is not None and limits.wall_ms is not None:
            times.append(since_ms + limits.wall_ms)
    return min(times, default=None)


def root_of(row: Mapping[type[Any], Any], n: int) -> int:
    """The root of the tree that a run stands in."""
    tree: Tree | None = row.get(Tree)
    return n if tree is None or not tree.root else tree.root


# --- what is spent ------------------------------------------------------------------------------


def own_spent(cost: Cost | None, visits: Visits | None, reserved: Reserved | None) -> Sums:
    """What a run itself has spent since it began, with the bounds of calls that were lost."""
    cost = cost or Cost()
    reserved = reserved or Reserved()
    tokens = cost.prompt + cost.completion + cost.cached + cost.cache_write
    return Sums(
        cost.priced_nano + reserved.lost_nano,
        tokens + reserved.lost_tokens,
        0 if visits is None else visits.turns,
    )


def held_of(reserved: Reserved | None) -> Sums:
    """What is set aside for the calls of one run."""
    held = Sums()
    for hold in () if reserved is None else reserved.holds:
        held.add(hold)
    return held


def tree_limits(world: World, root: int) -> Limits | None:
    """The budget that a tree shares; None without one, or when its root is not hosted."""
    allowance = world.find(root, Allowance)
    return None if allowance is None else allowance.tree


def count(run: Run, nano_usd: int, tokens: int, turns: int = 0) -> None:
    """Something was spent: the budgets that the run shares with others hear of it."""
    world = run.world
    root = root_of(run.row, run.n)
    if tree_limits(world, root) is not None:
        spent = world.find(root, TreeSpent) or TreeSpent()
        world.put(root, _more(spent, nano_usd, tokens, turns))
    if world.policy.fleet_budget is not None:
        known = world.find(WORLD_OWNER, FleetSpent) or FleetSpent()
        world.put(WORLD_OWNER, _more(known, nano_usd, tokens, turns))


def _more(spent: TreeSpent | FleetSpent, nano_usd: int, tokens: int, turns: int) -> Component:
    return type(spent)(
        min(spent.nano_usd + nano_usd, TOTAL_MAX),
        min(spent.tokens + tokens, TOTAL_MAX),
        min(spent.turns + turns, TOTAL_MAX),
    )


def count_fact(run: Run, fact: LedgerFact) -> None:
    """One ledger row was written: what is known of it is spent."""
    tokens = fact.prompt + fact.completion + fact.cached + fact.cache_write
    count(run, fact.nano_usd or 0, tokens)


def count_turn(run: Run) -> None:
    """A reply is worked on: its turn is no longer set aside, it is taken."""
    count(run, 0, 0, 1)
    release_strays(run)


# --- holds --------------------------------------------------------------------------------------


def put_hold(run: Run, hold: Hold) -> None:
    """Set aside what one attempt may take."""
    reserved = run.find(Reserved) or Reserved()
    others = tuple(known for known in reserved.holds if known.effect != hold.effect)
    run.put(replace(reserved, holds=(*others, hold)))


def settle(
    run: Run,
    effect: int,
    attempt: int,
    fact: LedgerFact | None,
    error_word: str,
    *,
    keeps_turn: bool,
) -> None:
    """An attempt ended. What it used is spent, what it did not use is free again.

    Where no figure came, the hold is taken for spent, unless the provider turned the call away.
    ``keeps_turn``: the reply waits with a paused run, and its turn is not counted yet.
    """
    reserved = run.find(Reserved)
    hold = None if reserved is None else _find(reserved, effect, attempt)
    if reserved is None or hold is None:
        return
    others = tuple(known for known in reserved.holds if known is not hold)
    if keeps_turn and hold.turns:
        others = (*others, Hold(effect, attempt, 0, 0, hold.turns))
    run.put(replace(reserved, holds=others))
    if fact is None or (error_word and error_kind(error_word) in _REFUSED_UNREAD):
        return
    no_tokens = not (fact.prompt or fact.completion or fact.cached or fact.cache_write)
    nano = hold.nano_usd if fact.nano_usd is None else 0
    tokens = hold.tokens if no_tokens and fact.nano_usd is None else 0
    _lose(run, nano, tokens)


def lose_hold(run: Run, effect: int, attempt: int) -> Hold | None:
    """Nobody will say what this attempt used: its bound counts. The hold, if there was one."""
    reserved = run.find(Reserved)
    hold = None if reserved is None else _find(reserved, effect, attempt)
    if reserved is None or hold is None:
        return None
    run.put(replace(reserved, holds=tuple(one for one in reserved.holds if one is not hold)))
    _lose(run, hold.nano_usd, hold.tokens)
    return hold


def release_strays(run: Run) -> None:
    """Let go of holds whose call is not the run's any more; what may have been spent is lost."""
    reserved = run.find(Reserved)
    if reserved is None or not reserved.holds:
        return
    effects = run.find(Effects)
    live = {effect.number for effect in (() if effects is None else effects.items) if effect.live}
    strays = [hold for hold in reserved.holds if hold.effect not in live]
    if strays:
        kept = tuple(hold for hold in reserved.holds if hold.effect in live)
        run.put(replace(reserved, holds=kept))
        for hold in strays:
            _lose(run, hold.nano_usd, hold.tokens)


def _find(reserved: Reserved, effect: int, attempt: int) -> Hold | None:
    for hold in reserved.holds:
        if hold.effect == effect and hold.attempt == attempt:
            return hold
    return None


def _lose(run: Run, nano_usd: int, tokens: int) -> None:
    if not nano_usd and not tokens:
        return
    reserved = run.find(Reserved) or Reserved()
    run.put(
        replace(
            reserved,
            lost_nano=min(reserved.lost_nano + nano_usd, TOTAL_MAX),
            lost_tokens=min(reserved.lost_tokens + tokens, TOTAL_MAX),
        )
    )
    count(run, nano_usd, tokens)
