"""From steps to the disk: what enters is durable before anything leaves.

All steps that are ready go into one transaction, one fsync for many. While one is being committed
the next steps run; their number and size are bounded. A cut is written behind a commit, in slices,
and makes all of its rows valid at once.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, field

from leviath.components.effects import Effects
from leviath.components.outbox import Outbox
from leviath.components.parts import WORLD_OWNER
from leviath.components.status import Status
from leviath.components.world_facts import Counters
from leviath.engine.limits import CUT_BYTES, NOT_DURABLE_BYTES_MAX, NOT_DURABLE_STEPS_MAX
from leviath.persistence.journal import encode_step
from leviath.persistence.rows import Batch, LedgerRow, MirrorRow, StateRow
from leviath.persistence.run_row import run_row
from leviath.persistence.store_endings import EndingRow, LateCostRow, StoreRow
from leviath.systems.run import LateCostFact, ResumedFact

if TYPE_CHECKING:
    from collections.abc import Callable

    from leviath.components.base import Component
    from leviath.engine.step import StepResult
    from leviath.persistence.database import Database
    from leviath.persistence.home import HomeWatch
    from leviath.systems.run import StoreFact
    from leviath.systems.world import World

_CUT_ROWS = 2_000
"""State rows of one transaction of a cut: a few milliseconds, so that commits come between."""
_encode = msgspec.msgpack.encode

PartRow = dict[type["Component"], "Component"]
CutParts = dict[tuple[int, str], "Component | None"]
"""Newest component by (owner, part); None for one that is gone."""


class Unit(Struct):
    """Steps that become durable together, with what goes to disk beside them."""

    results: list[StepResult] = field(default_factory=list)
    epoch: int = 0
    entries: list[tuple[bytes, bytes]] = field(default_factory=list)
    secrets: list[tuple[str, str]] = field(default_factory=list)
    runs: dict[int, PartRow] = field(default_factory=dict)
    """Runs whose listing row and files are written now, with their parts at the last step."""
    behind: set[int] = field(default_factory=set[int])
    """Those of them whose files come with a later unit."""
    gone: list[int] = field(default_factory=list)
    let_go: list[int] = field(default_factory=list)
    """Forgotten runs whose folders are gone."""
    mirror_rows: list[MirrorRow] = field(default_factory=list)
    files: object = None
    """What the mirror writes once the unit is durable."""
    wall_ms: int = 0
    """When it was handed to the writer: what its rows and files say of their writing."""
    world_ms: int = 0
    """The same in world time: where running clocks stand."""
    closing: bool = False
    """The host closes: what it writes of a run is the newest that a rebuild will ever find."""
    cut: CutParts = field(default_factory=dict)
    """What a cut at the last of these steps is to hold; empty for none."""
    size_bytes: int = 0
    """Filled by the writer."""


class Chain:
    """The newest digest; belongs to the writer's thread."""

    def __init__(self, db: Database, digest: bytes) -> None:
        self.db = db
        self.digest: bytes = digest
        self.step: int = 0
        self.watch: HomeWatch | None = None
        """Looks whether the home is still there before anything is taken for durable."""

    def commit(self, unit: Unit, prepare: Callable[[Unit], None] | None) -> int:
        """Write a unit in one transaction; returns its size in bytes.

        Raises what ``Database.commit`` raises; nothing of the unit is there then, and it can be
        tried again as it is.
        """
        rows = []
        digest = self.digest
        for result in unit.results:
            row = encode_step(
                digest,
                step=result.step,
                epoch=unit.epoch,
                world_ms=result.now.world_ms,
                wall_ms=result.now.wall_ms,
                inputs=result.inputs,
                changes=result.changes,
                events=result.events,
            )
            digest = row.digest
            rows.append(row)
        unit.mirror_rows.clear()
        if prepare is not None:
            prepare(unit)
        batch = Batch(
            entries=unit.entries,
            journal=rows,
            runs=[run_row(parts, unit.wall_ms) for parts in unit.runs.values()],
            ledger=[
                LedgerRow(
                    fact.run,
                    fact.effect,
                    fact.attempt,
                    fact.kind,
                    fact.provider,
                    fact.model,
                    fact.prompt,
                    fact.completion,
                    fact.cached,
                    fact.cache_write,
                    fact.nano_usd,
                    fact.certainty,
                    result.step,
                    fact.turn,
                )
                for result in unit.results
                for fact in result.facts
            ],
            mirror=unit.mirror_rows,
            secrets=unit.secrets,
            gone=unit.gone,
            let_go=unit.let_go,
            endings=[
                _ending(fact)
                for result in unit.results
                for fact in result.endings
                if fact.run not in unit.gone
            ],
            owing=_owing(unit),
            behind=[] if prepare is None else _behind(unit),
        )
        self.db.commit(batch)
        self._look()
        self.digest = digest
        if rows:
            self.step = rows[-1].step
        unit.size_bytes = sum(
            len(row.inputs) + len(row.changes) + len(row.events) for row in rows
        ) + sum(len(body) for _, body in unit.entries)
        return unit.size_bytes

    def live(self, wall_ms: int) -> None:
        """Renew the row of liveness. Raises what ``Database.liveness`` raises, and StorageError
        when the home is gone."""
        self._look()
        self.db.liveness(wall_ms)

    def _look(self) -> None:
        if self.watch is not None:
            self.watch.check()

    def write_slice(self, cut: int, rows: list[tuple[int, str, Component | None]]) -> None:
        """Write some rows of a cut."""
        encoded: list[StateRow] = []
        for owner, part, component in rows:
            body = None if component is None else _encode(component)
            crc = 0 if body is None else zlib.crc32(body)
            encoded.append(StateRow(owner, part, cut, crc, body))
        self.db.write_state(encoded)

    def finish(self, cut: int) -> None:
        """Make the cut valid."""
        self.db.finish_cut(cut, keep_history_from=None)


def _ending(fact: StoreFact) -> StoreRow:
    if isinstance(fact, LateCostFact):
        return LateCostRow(fact.run, fact.tokens, fact.cost_nano, fact.unpriced)
    if isinstance(fact, ResumedFact):
        return EndingRow(fact.run)
    return EndingRow(
        run=fact.run,
        outcome=fact.outcome,
        attempt=fact.attempt,
        steps=fact.steps,
        tokens=fact.tokens,
        started_ms=fact.started_ms,
        finished_ms=fact.finished_ms,
        cost_nano=fact.cost_nano,
        unpriced=fact.unpriced,
        agent=fact.agent,
        model=fact.model,
    )


def _owing(unit: Unit) -> dict[int, bool]:
    """The ended runs of a unit, and whether something of them is outside yet."""
    owing: dict[int, bool] = {}
    for n, parts in unit.runs.items():
        status, effects, box = parts.get(Status), parts.get(Effects), parts.get(Outbox)
        if isinstance(status, Status) and status.status.is_ended:
            outside = isinstance(effects, Effects) and bool(effects.items)
            owing[n] = outside or (isinstance(box, Outbox) and box.is_owed)
    return owing


def _behind(unit: Unit) -> list[int]:
    """The ended runs of a unit whose files are still to be written: nothing else would tell so
    after a crash, because nobody drives them again."""
    return [
        n
        for n, parts in unit.runs.items()
        if n in unit.behind
        and isinstance(status := parts.get(Status), Status)
        and status.status.is_ended
    ]


class Dirty:
    """What changed since the last cut: the newest component of each (owner, part)."""

    def __init__(self) -> None:
        self.parts: CutParts = {}
        self.size_bytes: int = 0

    def note(self, result: StepResult) -> None:
        """Take in one step's changes."""
        self.parts.update(result.written)

    def note_all(self, world: World) -> None:
        """Everything of the world is new to the store."""
        for owner in (WORLD_OWNER, *world.owners()):
            for component in world.parts_of(owner):
                self.parts[owner, type(component).__name__] = component

    @property
    def is_due(self) -> bool:
        return self.size_bytes >= CUT_BYTES

    def take(self) -> CutParts:
        """Hand over what changed, and begin anew."""
        parts, self.parts = self.parts, {}
        self.size_bytes = 0
        return parts

    def give_back(self, parts: CutParts) -> None:
        """A cut was not finished: what it held is dirty still, where nothing newer is."""
        parts.update(self.parts)
        self.parts = parts


class Backlog:
    """Steps that are not durable yet, bounded in number and size."""

    def __init__(self) -> None:
        self.steps = 0
        self.size_bytes = 0

    @property
    def is_full(self) -> bool:
        return self.steps >= NOT_DURABLE_STEPS_MAX or self.size_bytes >= NOT_DURABLE_BYTES_MAX


def slices(
    parts: CutParts,
) -> list[list[tuple[int, str, Component | None]]]:
    """A cut's rows in slices, by owner."""
    rows = [(owner, part, component) for (owner, part), component in parts.items()]
    rows.sort(key=lambda row: row[:2])
    return [rows[at : at + _CUT_ROWS] for at in range(0, len(rows), _CUT_ROWS)]


def epoch_of(world: World) -> int:
    """The epoch of the world's present host."""
    return world.get(WORLD_OWNER, Counters).epoch
