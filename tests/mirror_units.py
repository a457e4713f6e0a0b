"""Runs, units and a home for tests of the files of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from leviath.components.base import Component
from leviath.components.blueprint import Blueprint, RegionSpec, StageSpec, canonical_bytes, digest
from leviath.components.context import Context, Entry, Region
from leviath.components.effects import Effects, Inbox
from leviath.components.identity import Identity, Launch, Tree
from leviath.components.marker import Marker
from leviath.components.output import Flags
from leviath.components.progress import (
    Clock,
    Cost,
    Ledgers,
    Resolution,
    Stage,
    StageTotals,
    Visits,
)
from leviath.components.run_status import RunStatus
from leviath.components.status import Position, Status, Waiting
from leviath.components.text import inline
from leviath.engine.commits import Unit
from leviath.engine.step import StepResult
from leviath.persistence.database import Database, open_database
from leviath.persistence.rows import Batch, JournalRow
from leviath.persistence.run_row import run_row
from leviath.systems.run import Now

if TYPE_CHECKING:
    from leviath.engine.mirroring import FileMirror

Parts = dict[type[Component], Component]
BLUEPRINT = Blueprint(
    stages=(StageSpec(name="read"), StageSpec(name="write")),
    regions=(RegionSpec(name="conversation"),),
)
ENTRIES = [(digest(BLUEPRINT), canonical_bytes(BLUEPRINT))]
WALL_MS = 1_790_000_000_000


def new_database(home: Path) -> Database:
    """The store of a new home, hosted."""
    home.mkdir(exist_ok=True)
    (home / "runs").mkdir(exist_ok=True)
    database = open_database(home / "world.db", level="process")
    if database.world() is None:
        database.initialise("w", 1)
    database.claim(WALL_MS, "1")
    return database


def run_parts(n: int = 1, status: RunStatus = RunStatus.WAITING_INPUT, **more: Component) -> Parts:
    """All components of a run that waits, works or has ended."""
    waiting = Waiting("user_prompt") if status is RunStatus.WAITING_INPUT else None
    error = "broke" if status is RunStatus.ERROR else None
    working = status in (RunStatus.STARTING, RunStatus.RUNNING)
    region = Region("conversation", 1_000, 2, (Entry(inline("hello"), 2, "user"),))
    components: list[Component] = [
        Identity(f"run-{n}", n, "a", "/agents/a"),
        Launch(inline("task"), "/w", digest(BLUEPRINT), WALL_MS - 5_000, num_stages=2),
        Tree(root=n),
        Status(status, error, waiting=waiting),
        Clock(
            progress_ms=WALL_MS - 5_000,
            active_ms=2_000,
            since_ms=10_000 if working else None,
            ended_ms=WALL_MS if status.is_ended else None,
        ),
        Cost(10, 5, priced_nano=7),
        Ledgers((StageTotals("read", entered=True, visits=1), StageTotals("write"))),
        Stage(0, "read", 1),
        Visits((1, 0), 1),
        Resolution("p/m", (("p", "m"),)),
        Context((region,)),
        Effects(),
        Inbox(),
        Flags(),
    ]
    if not status.is_ended:
        marker = Marker.ready_to_infer if working else Marker.awaiting_person
        components.append(Position(marker, n))
    components += more.values()
    return {type(part): part for part in components}


def step_result(step: int, *, inputs: Any = (), events: Any = (), gone: Any = ()) -> StepResult:
    """One step, as far as the mirror looks at it."""
    now = Now(step * 1_000, WALL_MS + step * 1_000)
    return StepResult(
        step=step,
        now=now,
        inputs=inputs,
        changes=[],
        written={},
        events=events,
        commands=(),
        facts=(),
        acks=(),
        mirror={},
        touched=frozenset(),
        gone=gone,
        failures=(),
        next_due_ms=None,
    )


def unit_of(step: int, *runs: Parts, world_ms: int | None = None, **result: Any) -> Unit:
    """A unit of one step that projects those runs."""
    unit = Unit()
    unit.epoch = 1
    unit.entries = list(ENTRIES)
    unit.results = [step_result(step, **result)]
    unit.world_ms = step * 1_000 if world_ms is None else world_ms
    unit.wall_ms = WALL_MS + unit.world_ms
    unit.gone = list(result.get("gone", ()))
    for parts in runs:
        identity = parts[Identity]
        assert isinstance(identity, Identity)
        unit.runs[identity.ordinal] = parts
    return unit


def commit(database: Database, unit: Unit) -> None:
    """Make the rows of a prepared unit durable."""
    runs = [run_row(parts, unit.wall_ms) for parts in unit.runs.values()]
    journal = [
        JournalRow(r.step, database.epoch or 0, r.now.world_ms, r.now.wall_ms, b"", b"", b"", b"")
        for r in unit.results
    ]
    batch = Batch(entries=unit.entries, journal=journal, runs=runs)
    batch.mirror, batch.gone = unit.mirror_rows, unit.gone
    database.commit(batch)


def carry(mirror: FileMirror, database: Database, unit: Unit) -> None:
    """Prepare, commit and write a unit, as the host does."""
    unit.mirror_rows.clear()
    mirror.prepare(unit)
    commit(database, unit)
    mirror.write(unit.files)
