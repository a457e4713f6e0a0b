"""Loading a world: the newest cut, the redo list of later steps, then one world. No system runs.

Newer rules load exactly what older ones left. Everything here is in slices, so that a host's loop
is not held while 100,000 runs come in.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from msgspec import Struct

from leviath.components.blueprint import decode_blueprint
from leviath.components.changes import Gone, Put, Splice
from leviath.components.context import Context
from leviath.components.effects import Effects, Inbox, Timers
from leviath.components.errors import Damaged
from leviath.components.family import Split
from leviath.components.identity import Identity, Launch
from leviath.components.outbox import Outbox
from leviath.components.output import Flags
from leviath.components.parts import DECODERS, RUN_PARTS, WORLD_OWNER
from leviath.components.progress import Cost, Ledgers, Resolution, Stage, Visits
from leviath.components.run_status import RunStatus
from leviath.components.status import Status
from leviath.components.world_facts import Counters, Offer, Policy, Prices
from leviath.engine.tree_loading import fill_departed, missing_parents
from leviath.persistence.journal import ORIGIN, check_chain, decode_changes
from leviath.persistence.redo import Owners, apply_changes, decode_part, unknown_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from leviath.components.base import Component
    from leviath.components.changes import Change
    from leviath.persistence.database import Database
    from leviath.systems.caches import Caches
    from leviath.systems.world import World

_ALIKE = frozenset(
    kind.__name__
    for kind in (
        Context,
        Cost,
        Effects,
        Flags,
        Inbox,
        Ledgers,
        Resolution,
        Stage,
        Status,
        Timers,
        Visits,
    )
)
"""Parts that differ little between the runs of one fleet."""
_TOLD_AGAIN = frozenset(kind.__name__ for kind in (Offer, Policy, Prices))
"""Parts of the world that each host states anew: without them nothing is lost."""
_SHARED_BYTES_MAX = 1_024
_SHARED_MAX = 4_096
"""Bounds what a load remembers of parts that turn out to be unlike."""
_SLICE_RUNS = 64
"""Runs between two looks at the clock: about 2 ms of work."""
_log = logging.getLogger("leviath.engine")


class Loaded(Struct):
    """What a load found beside the world itself."""

    step: int = 0
    world_ms: int = 0
    wall_ms: int = 0
    digest: bytes = ORIGIN
    quarantined: dict[int, str] = {}
    """Ordinals of runs that are not hosted, and why."""
    in_flight: list[int] = []
    """Runs to settle: those that were driven, and all that have effects outstanding."""
    redone: set[tuple[int, str]] = set()
    """(owner, part) of everything that came from the journal: no cut holds it yet."""
    ended: set[int] = set()
    """Ended runs that were in the journal's tail: they are evicted after the next cut."""


def load_world(
    world: World,
    caches: Caches,
    db: Database,
    blueprint_body: Callable[[bytes], bytes],
    *,
    suspects: frozenset[int] = frozenset(),
    mark: Callable[[int], None] | None = None,
) -> Iterator[Loaded]:
    """Fill an empty world from ``db``; yields between slices, the last value being the whole.

    ``suspects`` are runs during whose decoding a host died twice: they are skipped and listed.
    ``mark`` is called before each run is decoded, when an earlier load did not finish.

    Raises Damaged when the store, owner 0 or the journal is not what was written; a single run that
    cannot be decoded is quarantined instead. Raises NewerFormat for a part that is not known here.
    """
    loaded = Loaded()
    row = db.world()
    assert row is not None
    owners: Owners = {}
    yield from _read_state(db, owners, loaded, suspects, mark)
    yield from _redo(db, row.cut, owners, loaded)
    if WORLD_OWNER not in owners or Counters not in owners[WORLD_OWNER]:
        if loaded.step:
            raise Damaged("the store has lost the world's own state; restore the home from a copy")
        return
    world.load(WORLD_OWNER, owners.pop(WORLD_OWNER).values())
    _page_in(db, owners, missing_parents(owners), loaded)
    yield from _fill(world, owners, loaded, blueprint_body)
    departed = fill_departed(world, db, blueprint_body, list(world.owners()), upwards=True)
    for count, _ in enumerate(departed):
        if count % _SLICE_RUNS == 0:
            yield loaded
    # Those who had the highest places may have ended: counting goes on from where it stood.
    world.sequence = world.get(WORLD_OWNER, Counters).sequence
    world.sort_queues()
    caches.rebuild_order()
    yield loaded


def _read_state(
    db: Database,
    owners: Owners,
    loaded: Loaded,
    suspects: frozenset[int],
    mark: Callable[[int], None] | None,
) -> Iterator[Loaded]:
    current, count = -1, 0
    # Parked runs of one fleet are alike in most parts: what is equal is decoded and kept once.
    shared: dict[tuple[str, bytes], Component] = {}
    row: dict[type[Component], Component] = {}
    for owner, part, _, _, body in db.state_bodies():
        if owner != current:
            if count % _SLICE_RUNS == 0:
                yield loaded
            current, row = owner, {}
            count += 1
            if mark is not None and owner:
                mark(owner)
            if owner in suspects:
                loaded.quarantined[owner] = "a host died twice while loading it"
            if owner not in loaded.quarantined:
                owners[owner] = row
        elif owner in loaded.quarantined:
            continue
        component = shared.get((part, body))
        if component is None:
            component = _decoded(part, body, owner, loaded)
            if component is None:
                if owner:
                    owners.pop(owner, None)
                continue
            if part in _ALIKE and len(body) <= _SHARED_BYTES_MAX and len(shared) < _SHARED_MAX:
                shared[part, body] = component
        row[type(component)] = component


def _decoded(part: str, body: bytes, owner: int, loaded: Loaded) -> Component | None:
    """A part of an owner; None for one that is done without, or whose run is quarantined for
    it."""
    decoder = DECODERS.get(part)
    if decoder is None:
        raise unknown_part(part)
    try:
        return decoder.decode(body)
    except Exception as error:  # noqa: BLE001 - whatever a decoder makes of damaged bytes
        if owner:
            loaded.quarantined[owner] = f"its {part} cannot be decoded: {error}"
        elif part in _TOLD_AGAIN:
            _log.warning("the world's %s cannot be decoded and is dropped", part)
        else:
            raise Damaged(f"the world's {part} cannot be decoded: {error}") from None
    return None


def _redo(db: Database, cut: int, owners: Owners, loaded: Loaded) -> Iterator[Loaded]:
    loaded.step = cut
    if cut:
        at_cut = next(db.journal_after(cut - 1), None)
        if at_cut is None or at_cut.step != cut:
            raise Damaged(f"the journal row of cut {cut} is gone; restore the home from a copy")
        loaded.digest = at_cut.digest
        loaded.world_ms, loaded.wall_ms = at_cut.world_ms, at_cut.wall_ms
    expected = cut
    for row in db.journal_after(cut):
        expected += 1
        if row.step != expected:
            raise Damaged(
                f"step {expected} of the journal is missing; restore the home from a copy"
            )
        loaded.digest = check_chain(loaded.digest, row)
        loaded.step, loaded.world_ms, loaded.wall_ms = row.step, row.world_ms, row.wall_ms
        changes = decode_changes(row)
        _page_in(db, owners, {change.owner for change in changes}, loaded)
        for change in changes:
            if change.owner not in loaded.quarantined:
                _redo_one(owners, change, loaded)
        if row.step % _SLICE_RUNS == 0:
            yield loaded


def _redo_one(owners: Owners, change: Change, loaded: Loaded) -> None:
    try:
        apply_changes(owners, [change])
    except Damaged as error:
        if change.owner != WORLD_OWNER:
            loaded.quarantined[change.owner] = str(error)
            owners.pop(change.owner, None)
            loaded.redone = {known for known in loaded.redone if known[0] != change.owner}
        elif isinstance(change, Put) and change.part in _TOLD_AGAIN:
            _log.warning("the world's %s cannot be decoded and stays as it was", change.part)
        else:
            raise
    else:
        loaded.redone.update((change.owner, part) for part in _parts_of(change))


def _parts_of(change: Change) -> tuple[str, ...]:
    """The parts that a change is about."""
    if isinstance(change, Gone):
        return tuple(kind.__name__ for kind in RUN_PARTS)
    return (Context.__name__,) if isinstance(change, Splice) else (change.part,)


def _page_in(db: Database, owners: Owners, touched: set[int], loaded: Loaded) -> None:
    """A run that had ended by the cut and was changed later: its saved parts come first."""
    for owner in touched:
        if owner in owners or owner == WORLD_OWNER or owner in loaded.quarantined:
            continue
        try:
            parts = [decode_part(row.part, row.body or b"") for row in db.owner_state(owner)]
        except Damaged as error:
            loaded.quarantined[owner] = str(error)
            continue
        if parts:
            owners[owner] = {type(part): part for part in parts}


def _fill(
    world: World, owners: Owners, loaded: Loaded, blueprint_body: Callable[[bytes], bytes]
) -> Iterator[Loaded]:
    for count, owner in enumerate(sorted(owners)):
        row = owners.pop(owner)
        reason = _missing(row)
        launch = row.get(Launch)
        for digest in () if reason else _blueprints_of(launch, row.get(Split)):
            if digest in world.blueprints:
                continue
            try:
                world.blueprints[digest] = decode_blueprint(blueprint_body(digest))
            except Exception as error:  # noqa: BLE001 - one run's blueprint, not the world's
                reason = f"its blueprint cannot be read: {error}"
        if reason:
            loaded.quarantined[owner] = reason
            continue
        world.load(owner, [row[kind] for kind in RUN_PARTS if kind in row])
        _classify(row, owner, loaded)
        if count % _SLICE_RUNS == 0:
            yield loaded


def _blueprints_of(launch: object, split: object) -> tuple[bytes, ...]:
    """Blueprints that a run needs: its own, and that of workers it has yet to start."""
    own = (launch.blueprint,) if isinstance(launch, Launch) else ()
    return (*own, split.blueprint) if isinstance(split, Split) else own


def _missing(row: dict[type[Component], Component]) -> str:
    for kind in (Identity, Launch, Status, Effects):
        if kind not in row:
            return f"its {kind.__name__} is missing"
    return ""


def _classify(row: dict[type[Component], Component], owner: int, loaded: Loaded) -> None:
    status = row[Status]
    effects = row[Effects]
    assert isinstance(status, Status)
    assert isinstance(effects, Effects)
    if status.status.is_ended:
        loaded.ended.add(owner)
        outbox = row.get(Outbox)
        owes = isinstance(outbox, Outbox) and outbox.is_owed
        if effects.items or owes:
            loaded.in_flight.append(owner)
    elif status.status in (RunStatus.STARTING, RunStatus.RUNNING) or any(
        effect.live for effect in effects.items
    ):
        loaded.in_flight.append(owner)
