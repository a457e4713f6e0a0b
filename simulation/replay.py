"""Replay: a saved world run again from its journal by the real systems, offline, without sleeping.

Every step is given what it was given then, and what it changes is held against what it changed. The
first difference stops the replay and names step, run and component. It also says which version of
the rules the journal was made under: under another one a difference may be meant.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from leviath.components.blueprint import decode_blueprint
from leviath.components.changes import Change, Gone, Put, Splice
from leviath.components.errors import (
    ConfigError,
    Damaged,
    DocumentError,
    NewerFormat,
    ReplayDivergence,
)
from leviath.components.identity import Identity
from leviath.components.parts import RUN_PARTS, WORLD_OWNER
from leviath.components.world_facts import Counters, Seed
from leviath.engine.pacing import uncollected
from leviath.engine.step import Stepper
from leviath.persistence.journal import (
    chain,
    decode_changes,
    decode_events,
    decode_inputs,
)
from leviath.persistence.redo import decode_part
from leviath.persistence.saved import (
    blueprints_named,
    blueprints_of,
    checked_journal,
    open_saved,
)
from leviath.persistence.saved_folder import SavedFolder, write_world
from leviath.systems.caches import Caches
from leviath.systems.run import Now
from leviath.systems.schedule import RULES
from leviath.systems.world import World

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from leviath.components.base import Component
    from leviath.persistence.rows import JournalRow
    from leviath.persistence.saved import Saved
    from leviath.systems.schedule import Schedule

EVENTS = "events"
"""The component that a difference names when a step told something else and changed the same."""
_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_Key = tuple[int, str]


class Difference(Struct, frozen=True):
    """The first place where a replay is not what was recorded."""

    step: int
    world_ms: int
    """Clock of the world at that step."""
    run_id: str
    """"" for the world itself."""
    component: str
    """Name of the component, or ``events``."""
    old: object
    """The recorded value: a component, the splices of a context, or None for one that is gone."""
    new: object
    """The value now."""
    rules_recorded: str
    rules_now: str

    @property
    def rules_changed(self) -> bool:
        """The step was recorded under another version of the rules: it may be meant."""
        return self.rules_recorded != self.rules_now

    def __str__(self) -> str:
        where = f"run {self.run_id}" if self.run_id else "the world"
        rules = ""
        if self.rules_changed:
            rules = f"rules changed from {self.rules_recorded or 'unknown'} to {self.rules_now}: "
        return (
            f"{rules}step {self.step} at {self.world_ms} ms, {where}, {self.component}: "
            f"was {self.old}, is {self.new}"
        )


class ReplayReport(Struct, frozen=True):
    """What came of a replay."""

    path: str
    world_id: str
    base: int
    """The step that the kept history begins after; 0 for all of it."""
    last: int
    """The newest step that was replayed."""
    first: Difference | None
    rules_now: str
    digest: str
    """Of the chain at ``last`` as it was recomputed, in hex."""

    @property
    def same(self) -> bool:
        """Every step came out as it was recorded."""
        return self.first is None

    @property
    def steps(self) -> int:
        """How many steps were replayed."""
        return self.last - self.base

    def expect_same(self) -> None:
        """Raise ReplayDivergence with the first difference, if there is one."""
        if self.first is not None:
            raise ReplayDivergence(
                f"{self.path}: {self.first}",
                step=self.first.step,
                run_id=self.first.run_id,
                component=self.first.component,
            )


def replay(
    path: str | os.PathLike[str], *, upto: int | None = None, schedule: Schedule | None = None
) -> ReplayReport:
    """Run a home or an exported folder again, up to and with the step ``upto``.

    A home may be hosted meanwhile: what stands when this is called is replayed. ``schedule`` holds
    other systems than our own, to see what they would change. Nothing is written.

    Raises ConfigError for what is no saved world and for a step that it does not have, Damaged for
    a journal, blueprint or text that is missing or altered, NewerFormat, StorageError.
    """
    with open_saved(path) as saved:
        return Replayer(saved, schedule=schedule).run(upto=upto)


class Replayer:
    """One replay of an open saved world. ``world`` is where it has come to."""

    def __init__(self, saved: Saved, *, schedule: Schedule | None = None) -> None:
        self._saved = saved
        self.world: World = World()
        self.caches: Caches = Caches(self.world)
        self._stepper = Stepper(self.world, self.caches, schedule=schedule)
        self._digest = saved.base_digest()
        self._load()

    def _load(self) -> None:
        """The state at the base, as a host would load it; ended runs, too."""
        world = self.world
        owners: dict[int, dict[type[Component], Component]] = {}
        for owner, part, body in self._saved.base_parts():
            component = decode_part(part, body)
            owners.setdefault(owner, {})[type(component)] = component
        known = owners.pop(WORLD_OWNER, {})
        known[Seed] = Seed(self._saved.world_id, self._saved.seed)
        world.load(WORLD_OWNER, known.values())
        for owner in sorted(owners):
            row = owners[owner]
            self._shelve(blueprints_of(row.values()))
            world.load(owner, [row[kind] for kind in RUN_PARTS if kind in row])
        world.sequence = world.get(WORLD_OWNER, Counters).sequence
        world.sort_queues()
        self.caches.rebuild_order()

    def run(self, *, upto: int | None = None) -> ReplayReport:
        """Replay to the end, to ``upto``, or to the first difference. Call it once."""
        # Nothing that is made here is part of a cycle, and all of it would be looked at for one.
        with uncollected():
            return self._run(upto)

    def _run(self, upto: int | None) -> ReplayReport:
        last, first = self._saved.base, None
        for row in checked_journal(self._saved, upto=upto):
            now = self._again(row)
            last = row.step
            if now.changes != row.changes or now.events != row.events:
                # Or equal values in other bytes, such as those of a release with fewer fields.
                first = self._difference(row, now)
                if first is not None:
                    self._digest = self._chained(now).digest
                    break
            self._digest = row.digest
        return ReplayReport(
            path=str(self._saved.path),
            world_id=self._saved.world_id,
            base=self._saved.base,
            last=last,
            first=first,
            rules_now=str(RULES),
            digest=self._digest.hex(),
        )

    def rows(self) -> Iterator[JournalRow]:
        """Every step as the present rules make it, whatever was recorded; with its number, and its
        place in a chain of its own. Instead of ``run``."""
        for row in checked_journal(self._saved):
            now = self._chained(self._again(row))
            self._digest = now.digest
            yield now

    def _again(self, row: JournalRow) -> JournalRow:
        """Take the inputs of a step at its time; the row with what they change and tell now."""
        rules = self._saved.rules_of(row.epoch)
        if rules.isdecimal() and int(rules) > RULES:
            raise NewerFormat(
                f"{self._saved.path}: step {row.step} was made under rules {rules}, this leviath "
                f"has rules {RULES}; use the newer leviath (nothing was changed)",
                path=str(self._saved.path),
                rules=rules,
            )
        inputs = decode_inputs(row)
        self._shelve(blueprints_named(inputs))
        result = self._stepper.step(inputs, Now(row.world_ms, row.wall_ms))
        events = _encode(result.events) if result.events else b""
        return replace(row, changes=_encode(result.changes), events=events)

    def _chained(self, row: JournalRow) -> JournalRow:
        """The row with its place behind the newest digest."""
        digest = chain(self._digest, row.step, row.world_ms, row.wall_ms, row.inputs, row.changes)
        return replace(row, digest=digest)

    def _shelve(self, digests: Iterable[bytes]) -> None:
        """Put the blueprints that a step needs within its reach."""
        shelf = self.world.blueprints
        for digest in digests:
            if not digest or digest in shelf:
                continue
            body = self._saved.entry(digest)
            if body is None:
                raise Damaged(
                    f"{self._saved.path}: the blueprint {digest.hex()} is missing; take the saved "
                    "world from a copy",
                    digest=digest.hex(),
                )
            try:
                shelf[digest] = decode_blueprint(body)
            except DocumentError as error:
                raise Damaged(
                    f"{self._saved.path}: the blueprint {digest.hex()} cannot be read: {error}",
                    digest=digest.hex(),
                ) from None

    def _difference(self, row: JournalRow, now: JournalRow) -> Difference | None:
        recorded, made = decode_changes(row), decode_changes(now)
        old, new = _by_part(recorded), _by_part(made)
        differing = [key for key in (old | new) if old.get(key) != new.get(key)]
        if differing:
            # What the world counts is the consequence of what its runs did.
            owner, part = min(differing, key=lambda key: key == (WORLD_OWNER, "Counters"))
            values = (old.get((owner, part)), new.get((owner, part)))
        elif decode_events(row) != decode_events(now):
            owner, part = WORLD_OWNER, EVENTS
            values = _first_unlike(decode_events(row), decode_events(now))
        else:
            return None
        return Difference(
            step=row.step,
            world_ms=row.world_ms,
            run_id=self._name(owner, recorded),
            component=part,
            old=values[0],
            new=values[1],
            rules_recorded=self._saved.rules_of(row.epoch),
            rules_now=str(RULES),
        )

    def _name(self, owner: int, recorded: list[Change]) -> str:
        if owner == WORLD_OWNER:
            return ""
        if owner in self.world:
            return self.world.run_id(owner)
        for change in recorded:
            if type(change) is Put and change.owner == owner and change.part == Identity.__name__:
                identity = decode_part(change.part, bytes(change.body))
                assert isinstance(identity, Identity)
                return identity.run_id
        return f"with ordinal {owner}"


def _by_part(changes: list[Change]) -> dict[_Key, object]:
    """What a redo list leaves of each (owner, part), in its order."""
    found: dict[_Key, object] = {}
    for change in changes:
        if type(change) is Put:
            found[change.owner, change.part] = decode_part(change.part, bytes(change.body))
        elif type(change) is Splice:
            key = (change.owner, "Context")
            before = found.get(key)
            splice = (change.region, change.drop, change.append)
            found[key] = (*before, splice) if isinstance(before, tuple) else (splice,)
        elif type(change) is Gone:
            found[change.owner, "Identity"] = None
        else:
            found[change.owner, change.part] = None  # type: ignore[union-attr]
    return found


def _first_unlike(old: tuple[object, ...], new: tuple[object, ...]) -> tuple[object, object]:
    for place in range(max(len(old), len(new))):
        pair = (
            old[place] if place < len(old) else None,
            new[place] if place < len(new) else None,
        )
        if pair[0] != pair[1]:
            return pair
    raise AssertionError("the events are alike")


def accept(path: str | os.PathLike[str]) -> ReplayReport:
    """Make what the present rules do with an exported folder its new expectation.

    Returns the report of the replay before that; nothing is written when it was the same already.
    Written whole or not at all. Raises ConfigError for a home, whose journal is what really
    happened, and what ``replay`` raises.
    """
    with open_saved(path) as saved:
        if not isinstance(saved, SavedFolder):
            raise ConfigError(
                f"{saved.path}: a home's journal says what really happened and stays; `lev export` "
                "it, and accept the difference in the exported folder"
            )
        report = Replayer(saved).run()
        if not report.same:
            rows = list(Replayer(saved).rows())
            header = saved.header_under(str(RULES), rows[-1])
            write_world(saved.path, header, saved.base_parts(), rows)
    return report
