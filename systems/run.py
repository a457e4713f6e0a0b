"""A handle on one run, and the tick that systems write their wishes to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from leviath.components.identity import Identity, Launch
from leviath.components.marker import Marker
from leviath.components.progress import Stage
from leviath.components.status import Status

if TYPE_CHECKING:
    from leviath.components.base import Component
    from leviath.components.blueprint import Blueprint, StageSpec
    from leviath.components.commands import Command
    from leviath.components.events import WorldEvent
    from leviath.components.run_status import RunStatus
    from leviath.systems.world import World

C = TypeVar("C", bound="Component")
E = TypeVar("E")


class Now(Struct, frozen=True, gc=False):
    """The two times of a step."""

    world_ms: int
    """Monotonic, continued across restarts: deadlines, backoff, stalls, the active clock."""
    wall_ms: int
    """Unix milliseconds, for records only."""


class LedgerFact(Struct, frozen=True, gc=False):
    """One row of the ledger: one attempt at one provider call."""

    run: int
    effect: int
    attempt: int
    kind: str
    provider: str
    model: str
    prompt: int
    completion: int
    cached: int
    cache_write: int
    nano_usd: int | None
    certainty: str
    """provider, computed, interrupted or unknown."""
    turn: int = 0
    """The turn of the run, over all stages, that it belongs to."""


class EndingFact(Struct, frozen=True, gc=False):
    """How a run ended, for the run store."""

    run: int
    attempt: int
    """Counts the run's starts from 1."""
    outcome: str
    """A word of ``components.run_outcome.ENDINGS``."""
    steps: int
    tokens: int
    started_ms: int
    finished_ms: int
    cost_nano: int
    unpriced: int
    agent: str
    model: str


class LateCostFact(Struct, frozen=True, gc=False):
    """What was in flight when a run ended came back and was charged: its summary's sums now."""

    run: int
    tokens: int
    cost_nano: int
    unpriced: int


class ResumedFact(Struct, frozen=True, gc=False):
    """A run that had ended was taken up again: its summary no longer stands."""

    run: int


StoreFact: TypeAlias = EndingFact | LateCostFact | ResumedFact
"""What the run store hears of a run."""


class Ack(Struct, frozen=True, gc=False):
    """What the caller behind a ticket hears once the step is durable."""

    ticket: int
    run: int = 0
    run_id: str = ""
    code: str = ""
    """"" for done; else the code of the error that is raised: run_not_found, run_conflict,
    spawn."""
    message: str = ""


class Tick:
    """One step's times, and what its systems want done. Undone in part when a system fails."""

    __slots__ = (
        "_event_base",
        "acks",
        "commands",
        "events",
        "facts",
        "guard",
        "mirror",
        "now",
        "tree_moves",
        "world",
    )

    def __init__(self, world: World, now: Now, event_base: int) -> None:
        self.world: World = world
        self.now: Now = now
        self.commands: list[Command] = []
        self.events: list[WorldEvent] = []
        self.facts: list[LedgerFact | StoreFact] = []
        self.acks: list[Ack] = []
        self.mirror: dict[int, bool] = {}
        """Runs whose files are out of date, and whether that is urgent."""
        self.tree_moves: int = 0
        """Runs that this step started or moved because of their parents."""
        self.guard: Guard = self._unguarded
        """Runs a system over one run of many, so that its failure stays with that run."""
        self._event_base = event_base

    def _unguarded(self, n: int, name: str, system: Callable[..., None], *more: object) -> bool:
        system(Run(self.world, n), self, *more)
        return True

    def mark(self) -> tuple[int, int, int, int]:
        """A point of this step that ``undo_to`` can go back to."""
        return len(self.commands), len(self.events), len(self.facts), len(self.acks)

    def undo_to(self, mark: tuple[int, int, int, int]) -> None:
        """Drop the wishes made since ``mark``."""
        del self.commands[mark[0] :]
        del self.events[mark[1] :]
        del self.facts[mark[2] :]
        del self.acks[mark[3] :]

    @property
    def next_event(self) -> int:
        """Number of the event that is emitted next."""
        return self._event_base + len(self.events) + 1


class Guard(Protocol):
    """Runs a system over one run; False when the system failed and was undone."""

    def __call__(self, n: int, name: str, system: Callable[..., None], *more: object) -> bool:
        """Call ``system(run, tick, *more)`` for run ``n``; ``name`` is for the record."""
        ...


class Run:
    """One run of a world. Cheap: make it where it is needed, keep none."""

    __slots__ = ("n", "row", "world")

    def __init__(self, world: World, n: int) -> None:
        self.world: World = world
        self.n: int = n
        self.row: dict[type, Any] = world.live_rows[n]
        """The run's parts by kind, as they are now; for reading only."""

    def get(self, kind: type[C]) -> C:
        """The run's component of that kind; WorldError if it has none."""
        try:
            return self.row[kind]  # type: ignore[no-any-return]
        except KeyError:
            return self.world.get(self.n, kind)

    def find(self, kind: type[C]) -> C | None:
        """The run's component of that kind, or None."""
        return self.row.get(kind)

    def put(self, component: Component) -> None:
        """Set or replace a component of the run."""
        kind = type(component)
        row = self.row
        old = row.get(kind)
        world = self.world
        if old is None:
            world.put(self.n, component)
        elif old is not component:
            # As World.put does it: a call less, a dozen times a turn.
            row[kind] = component
            world.undo_log.append((self.n, kind, old))
            watcher = world.watchers.get(kind)
            if watcher is not None:
                watcher(self.n, old, component)

    def remove(self, kind: type[Component]) -> None:
        """Remove a component of the run; nothing happens when it is not there."""
        self.world.remove(self.n, kind)

    @property
    def run_id(self) -> str:
        return self.row[Identity].run_id  # type: ignore[no-any-return]

    @property
    def status(self) -> RunStatus:
        return self.row[Status].status  # type: ignore[no-any-return]

    @property
    def marker(self) -> Marker | None:
        return self.world.marker(self.n)

    @property
    def blueprint(self) -> Blueprint:
        return self.world.blueprints[self.get(Launch).blueprint]

    @property
    def stage_spec(self) -> StageSpec:
        return self.blueprint.stages[self.get(Stage).index]
