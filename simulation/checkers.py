"""What no crash, no failing disk and no order of events may break: each with a name and one line.

The checks look at a world, at its ledger and at what became durable; whoever drives the world says
what had been promised. Names are the columns of ``lev torture``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from leviath.components.identity import Imported
from leviath.components.progress import Cost
from leviath.simulation.rebuild import rebuild
from leviath.systems.invariants import broken
from leviath.systems.slots import unwatched

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from leviath.persistence.rows import LedgerRow
    from leviath.systems.caches import Caches
    from leviath.systems.run import LedgerFact
    from leviath.systems.world import World


class Invariant(Struct, frozen=True):
    """A column of the table, and what it forbids."""

    name: str
    line: str


INVARIANTS: Final = (
    Invariant("steps", "no acknowledged step is lost, and no other history takes its place"),
    Invariant("once", "no call of a `once` tool is repeated in silence"),
    Invariant("stuck", "no run is stuck: it ends once everything it asks for is answered"),
    Invariant("totals", "no total changes: each is the sum of the ledger's rows"),
    Invariant("calls", "every saved call has one result or is open"),
    Invariant("tree", "parent and child agree"),
    Invariant("readable", "every home opens, and no listed run is unreadable"),
    Invariant("markers", "every run holds the marker that its status allows, and no passing one"),
    Invariant("caches", "every cache equals the one that a load would build"),
    Invariant("files", "no run file is newer than the newest durable step"),
    Invariant("rules", "no rule fails, and what holds between two steps holds"),
)
"""In the order of the table."""

NAMES: Final = tuple(invariant.name for invariant in INVARIANTS)

_OF_SYSTEMS: Final = {
    "status and marker are a legal pair": "markers",
    "no transient marker outlives its step": "markers",
    "every saved call has one result or is open": "calls",
    "a call of the turn has a result when it is done": "calls",
    "every open call has its effect": "calls",
    "parent and child agree": "tree",
    "a run stands below its parent, which lists it while it is at work": "tree",
    "a fan-out adds up": "tree",
    "a run that waits for children has some to wait for": "stuck",
    "what the runs below a run cost is their sum": "totals",
    "every run that has not ended is owed something": "stuck",
    "no worker at work counts as ended": "tree",
}
"""Where the invariants of ``systems.invariants`` are counted; the others are ``rules``."""


class Breach(Struct, frozen=True):
    """An invariant that did not hold, and what was seen."""

    invariant: str
    """One of ``NAMES``."""
    what: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.what}"


class Breached(Exception):
    """Raised where a breach is seen: the rest of that history says nothing more."""

    def __init__(self, invariant: str, what: str) -> None:
        assert invariant in NAMES, invariant
        super().__init__(what)
        self.breach: Breach = Breach(invariant, what)


def check_runs(world: World, owners: Iterable[int]) -> None:
    """The invariants of ``systems.invariants`` over these runs. Raises Breached."""
    for n, name in broken(world, owners):
        column = _OF_SYSTEMS.get(name.removesuffix(" (a part is missing)"), "rules")
        raise Breached(column, f"run {n}: not so that {name}")


def check_caches(world: World, caches: Caches) -> None:
    """Every cache against those of a world made from the same components. Raises Breached."""
    live, rebuilt = caches.snapshot(), rebuild(world)[1].snapshot()
    for name, value in live.items():
        if value != rebuilt[name]:
            raise Breached("caches", f"{name}: {value}, a load builds {rebuilt[name]}")


def check_queues(world: World, caches: Caches, world_ms: int) -> None:
    """Whoever waits for a model waits for a call that is outside, or for a time. Raises
    Breached."""
    for key in unwatched(world, caches, world_ms):
        raise Breached("stuck", f"runs wait for a call of {'/'.join(key)}, and nothing wakes them")


def check_totals(
    world: World, owners: Iterable[int], ledger: Mapping[int, Iterable[LedgerFact | LedgerRow]]
) -> None:
    """Every run's totals against the rows of its calls, by run. Raises Breached.

    Runs that came from a folder are left out: they have an opening balance.
    """
    for n in owners:
        cost = world.find(n, Cost) if n and n in world else None
        if cost is None or world.find(n, Imported) is not None:
            continue
        seen = totals_of(ledger.get(n, ()))
        total = (
            cost.prompt,
            cost.completion,
            cost.cached,
            cost.cache_write,
            cost.priced_nano,
            cost.unpriced,
        )
        if total != seen:
            raise Breached("totals", f"run {n}: {total}, its calls add up to {seen}")


def totals_of(rows: Iterable[LedgerFact | LedgerRow]) -> tuple[int, int, int, int, int, int]:
    """Prompt, completion, cached and cache write tokens, nano-dollars, calls without a price."""
    prompt = completion = cached = cache_write = nano = unpriced = 0
    for row in rows:
        prompt += row.prompt
        completion += row.completion
        cached += row.cached
        cache_write += row.cache_write
        nano += row.nano_usd or 0
        unpriced += row.nano_usd is None
    return prompt, completion, cached, cache_write, nano, unpriced
