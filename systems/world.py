"""A typed face over a private esper: the only module that imports esper.

esper keeps its world in module globals, so each ``World`` owns an instance of the module that
nobody else can reach; a host's own esper is never touched. A World belongs to the thread that
opened it.

Beside esper's components stand caches that a load builds from them: a first-in-first-out queue per
marker (esper's sets have no order of their own and never shrink) and what ``systems.caches`` keeps.
Everything else in here is the step's undo log: which component each owner had when the step began.
"""

from __future__ import annotations

import importlib.util
import threading
from functools import cache
from importlib.machinery import ModuleSpec, SourceFileLoader
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from leviath.components.budget import Allowance, Reserved
from leviath.components.changes import Change, Gone, Put, Remove, Splice
from leviath.components.context import Context, Entry, Region
from leviath.components.errors import WorldError
from leviath.components.family import FanOut, Worker
from leviath.components.identity import Identity, Tree
from leviath.components.marker import Marker
from leviath.components.parts import PARTS, RUN_PARTS, WORLD_OWNER
from leviath.components.progress import Cost
from leviath.components.status import Position
from leviath.components.world_facts import Counters, Offer, Policy
from leviath.systems.reserves import Purses
from leviath.systems.tree_index import TreeIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import CodeType, ModuleType

    from leviath.components.base import Component
    from leviath.components.blueprint import Blueprint
    from leviath.systems.views import StageView

C = TypeVar("C", bound="Component")
Written = dict[tuple[int, str], "Component | None"]
"""Parts by (owner, part name): the value that a step left, None for one that is gone."""
Watcher = "Callable[[int, Component | None, Component | None], None]"
_encode = msgspec.msgpack.Encoder().encode
_NAMES: dict[type, str] = {kind: name for name, kind in PARTS.items()}


class _ReadOnce(SourceFileLoader):
    """Keeps the code that it read: a world costs its classes, not a look at the file system."""

    _code: CodeType | None = None

    def get_code(self, fullname: str) -> CodeType | None:
        """See SourceFileLoader."""
        if self._code is None:
            self._code = super().get_code(fullname)
        return self._code


@cache
def _esper_spec() -> ModuleSpec:
    spec = importlib.util.find_spec("esper")
    if spec is None or spec.loader is None:
        raise WorldError("the esper package is not installed; reinstall leviath")
    if type(spec.loader) is SourceFileLoader:
        spec.loader = _ReadOnce(spec.loader.name, spec.loader.path)
    return spec


def _private_esper() -> ModuleType:
    spec = _esper_spec()
    module = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


class World:
    """Components of all owners. Owner 0 is the world itself, owner n the run with ordinal n.

    Everything is synchronous and in memory. Reading an owner or a part that is not there raises
    WorldError from ``get`` and returns None from ``find``.
    """

    def __init__(self) -> None:
        ecs = _private_esper()
        self._ecs: Any = ecs
        self._add = ecs.add_component
        self._entities: dict[int, dict[type, Any]] = {}
        """esper's own row of each resident owner. Read directly; parts come and go through esper,
        and a part that is there already is replaced in place: which entities have which parts does
        not change then, and nobody here asks esper's cached queries, which are what a write
        through it would clear (a seventh of a write under a profiler, 20 times a turn)."""
        self.live_rows: dict[int, dict[type, Any]] = self._entities
        """The components of every resident owner, as they are now; for reading only."""
        self._entity: dict[int, int] = {}
        self._thread = threading.get_ident()
        self.undo_log: list[tuple[int, type[Component], Component | None]] = []
        """Undo log of the step: (owner, part, value before), oldest first. Written by ``Run.put``
        too, which is ``put`` without the way here."""
        self._splices: list[tuple[int, int, int, tuple[Entry, ...]]] = []
        """(index in the undo log, region index, drop, append)."""
        self._whole: set[int] = set()
        """Owners whose context was replaced as a whole in this step, not spliced."""
        self._gone: dict[int, None] = {}
        self.trees: TreeIndex = TreeIndex(self)
        """Who works for whom; see ``systems.tree_index``."""
        self.purses: Purses = Purses(self)
        """Who has a budget, and what is set aside; see ``systems.reserves``."""
        self.watchers: dict[type, Any] = {
            Position: self.queue_moved,
            Context: self._context_put,
            Tree: self.trees.tree_put,
            Cost: self.trees.cost_put,
            FanOut: self.trees.fan_out_put,
            Worker: self._worker_put,
            Allowance: self.purses.allowance_put,
            Reserved: self.purses.reserved_put,
        }
        self._queues: dict[Marker, dict[int, None]] = {marker: {} for marker in Marker}
        self.blueprints: dict[bytes, Blueprint] = {}
        """The shelf: immutable content by digest, filled by the engine before a step names it."""
        self.views: dict[tuple[bytes, int, bool], StageView] = {}
        """What ``systems.views`` worked out under the present offer, by blueprint and stage."""
        self.blanks: dict[tuple[bytes, int], tuple[Component, ...]] = {}
        """What new runs have alike, by blueprint and window; filled by ``systems.spawning``."""
        self.by_run_id: dict[str, int] = {}
        self.by_key: dict[str, int] = {}
        self.touched: set[int] = set()
        """Owners written in this step, for the invariants."""
        self.policy: Policy = Policy()
        self._sequence = 0
        self.admit(WORLD_OWNER, (Counters(), Policy()))
        self.undo_log.clear()
        self.watchers[Policy] = self._policy_changed
        self.watchers[Offer] = self._offer_changed
        self.touched.clear()

    # --- owners ---------------------------------------------------------------------------------

    def check_thread(self) -> None:
        """Raise WorldError when called from a thread that did not open this world."""
        if threading.get_ident() != self._thread:
            raise WorldError(
                "this World belongs to the thread that opened it; post an input to its host instead"
            )

    def admit(self, owner: int, components: Iterable[Component]) -> None:
        """Create an owner with these components, as part of the step under way."""
        row = self._enter(owner, components)
        self.undo_log.extend([(owner, kind, None) for kind in row])
        self._announce(owner, row)

    def _enter(self, owner: int, components: Iterable[Component]) -> dict[type[Any], Any]:
        if owner in self._entity:
            raise WorldError(f"owner {owner} exists already")
        entity = self._ecs.create_entity(*components)
        self._entity[owner] = entity
        # esper has no call that hands out the row; the package is pinned below its next major.
        row: dict[type[Any], Any] = self._ecs._entities[entity]  # noqa: SLF001
        self._entities[owner] = row
        return row

    def _announce(self, owner: int, row: dict[type[Any], Any]) -> None:
        """Tell who watches of an owner that came in as a whole."""
        for kind, watcher in self.watchers.items():
            component = row.get(kind)
            if component is not None:
                watcher(owner, None, component)

    def load(self, owner: int, components: Iterable[Component]) -> None:
        """Bring in an owner as it was saved; no change is recorded."""
        if owner == WORLD_OWNER:
            for component in components:
                self.put(owner, component)
        else:
            self._announce(owner, self._enter(owner, components))
        self.undo_log.clear()
        self._whole.clear()
        self.touched.clear()

    def evict(self, owner: int) -> None:
        """Forget a resident run whose state is saved; no change is recorded."""
        row = self._entities[owner]
        self.trees.leaving(owner, is_kept=True)
        for kind in list(row):
            self._drop(owner, kind)
        self.trees.left()
        self._forget(owner)
        self.undo_log.clear()
        self._whole.clear()
        self.touched.clear()

    def _forget(self, owner: int) -> None:
        del self._entities[owner]
        self._ecs.delete_entity(self._entity.pop(owner), immediate=True)

    def gone(self, owner: int) -> None:
        """Let a run leave the world at the end of this step."""
        self._gone[owner] = None

    def is_leaving(self, owner: int) -> bool:
        """The run leaves with this step: whatever arrives for it now comes too late."""
        return owner in self._gone

    def __contains__(self, owner: int) -> bool:
        return owner in self._entity

    def owners(self) -> Iterator[int]:
        """Ordinals of the resident runs, ascending when nothing was paged in since the load."""
        return (owner for owner in self._entity if owner != WORLD_OWNER)

    def resident_count(self) -> int:
        """How many runs are resident."""
        return len(self._entity) - 1

    # --- components -----------------------------------------------------------------------------

    def get(self, owner: int, kind: type[C]) -> C:
        """The owner's component of that kind."""
        try:
            return self._entities[owner][kind]  # type: ignore[no-any-return]
        except KeyError:
            raise WorldError(f"owner {owner} has no {kind.__name__}") from None

    def find(self, owner: int, kind: type[C]) -> C | None:
        """The owner's component of that kind, or None."""
        row = self._entities.get(owner)
        return None if row is None else row.get(kind)

    def put(self, owner: int, component: Component) -> None:
        """Set or replace a component."""
        kind = type(component)
        row = self._entities[owner]
        old = row.get(kind)
        if old is None:
            self._add(self._entity[owner], component)
        elif old is component:
            return
        else:
            row[kind] = component
        self.undo_log.append((owner, kind, old))
        watcher = self.watchers.get(kind)
        if watcher is not None:
            watcher(owner, old, component)

    def remove(self, owner: int, kind: type[Component]) -> None:
        """Remove a component; nothing happens when it is not there."""
        old = self._entities[owner].get(kind)
        if old is None:
            return
        self.undo_log.append((owner, kind, old))
        self._drop(owner, kind)

    def _drop(self, owner: int, kind: type[Component]) -> None:
        old = self._entities[owner][kind]
        self._ecs.remove_component(self._entity[owner], kind)
        watcher = self.watchers.get(kind)
        if watcher is not None:
            watcher(owner, old, None)

    def splice(self, owner: int, region: int, drop: int, append: tuple[Entry, ...]) -> None:
        """Drop entries at a region's head and append others at its tail, recorded as just that."""
        row = self._entities[owner]
        context: Context = row[Context]
        old = context.regions[region]
        entries, tokens = old.entries, old.tokens
        if drop:
            tokens -= sum([entry.tokens for entry in entries[:drop]])
            entries = entries[drop:]
        for entry in append:
            tokens += entry.tokens
        regions = [*context.regions]
        regions[region] = Region(old.name, old.max_tokens, tokens, entries + append)
        self._splices.append((len(self.undo_log), region, drop, append))
        self.undo_log.append((owner, Context, context))
        row[Context] = Context(tuple(regions))

    def watch(self, kind: type[C], watcher: Callable[[int, C | None, C | None], None]) -> None:
        """Call ``watcher(owner, old, new)`` after each change of that part, also while undoing."""
        self.watchers[kind] = watcher

    # --- markers --------------------------------------------------------------------------------

    def marker(self, owner: int) -> Marker | None:
        """What happens next to a run; None for one that has ended."""
        position = self.find(owner, Position)
        return None if position is None else position.marker

    def set_marker(self, owner: int, marker: Marker | None) -> None:
        """Move a run to the tail of a marker's queue, or out of all queues. ``systems.moves``
        only."""
        if marker is None:
            self.remove(owner, Position)
            return
        self._sequence = sequence = self._sequence + 1
        row = self._entities[owner]
        old = row.get(Position)
        new = Position(marker, sequence)
        if old is None:
            self.put(owner, new)
            return
        # As put does it, five times a turn.
        row[Position] = new
        self.undo_log.append((owner, Position, old))
        self.watchers[Position](owner, old, new)

    def runs_with(self, marker: Marker) -> dict[int, None]:
        """The marker's queue, oldest first. Do not change it while walking it."""
        return self._queues[marker]

    def queue_moved(self, owner: int, old: Position | None, new: Position | None) -> None:
        """Keep the queues with a change of position. Called by whoever watches ``Position``."""
        if old is not None:
            self._queues[old.marker].pop(owner, None)
        if new is not None:
            self._queues[new.marker][owner] = None
            self._sequence = max(self._sequence, new.sequence)

    def sort_queues(self) -> None:
        """Bring every queue into the order of its positions, as after a load or an undo."""
        for marker, queue in self._queues.items():
            ordered = sorted(queue, key=lambda owner: self.get(owner, Position).sequence)
            self._queues[marker] = dict.fromkeys(ordered)

    def queues(self) -> dict[Marker, tuple[int, ...]]:
        """All queues, for the comparison with rebuilt ones."""
        return {marker: tuple(queue) for marker, queue in self._queues.items() if queue}

    @property
    def sequence(self) -> int:
        """Count of marker moves so far."""
        return self._sequence

    @sequence.setter
    def sequence(self, value: int) -> None:
        self._sequence = value

    def _policy_changed(self, owner: int, old: Component | None, new: Component | None) -> None:
        self.policy = new if isinstance(new, Policy) else Policy()
        self.purses.policy_put(self.policy)

    def _offer_changed(self, owner: int, old: Component | None, new: Component | None) -> None:
        self.views.clear()

    # --- the step's undo log --------------------------------------------------------------------

    def mark(self) -> int:
        """A point of this step that ``undo_to`` can go back to."""
        return len(self.undo_log)

    def undo_to(self, mark: int) -> None:
        """Put back every component that was written since ``mark``."""
        requeue = False
        while len(self.undo_log) > mark:
            owner, kind, old = self.undo_log.pop()
            requeue = requeue or kind is Position
            if old is None:
                self._drop(owner, kind)
                if not self._entities[owner] and owner != WORLD_OWNER:
                    self._forget(owner)
            else:
                now = self._entities[owner].get(kind)
                if now is None:
                    self._add(self._entity[owner], old)
                else:
                    self._entities[owner][kind] = old
                watcher = self.watchers.get(kind)
                if watcher is not None:
                    watcher(owner, now, old)
        while self._splices and self._splices[-1][0] >= mark:
            self._splices.pop()
        if requeue:
            self.sort_queues()

    def take_changes(self) -> tuple[list[Change], Written]:
        """The step's redo list, the parts as they are now, and a clean log for the next step."""
        changes: list[Change] = []
        written: Written = {}
        rows, log = self._entities, self.undo_log
        for index, region, drop, append in self._splices:
            owner = log[index][0]
            if owner not in self._whole and owner in rows:
                name = rows[owner][Context].regions[region].name
                changes.append(Splice(owner, name, drop, append))
        first: dict[tuple[int, type[Component]], Component | None] = {}
        keep = first.setdefault
        for owner, kind, old in log:
            keep((owner, kind), old)
        whole, raw, names = self._whole, msgspec.Raw, _NAMES
        for (owner, kind), old in first.items():
            row = rows.get(owner)
            now = None if row is None else row.get(kind)
            if now is old:
                continue
            part = names[kind]
            if now is None:
                changes.append(Remove(owner, part))
            elif kind is Context and owner not in whole:
                pass
            elif now != old:
                changes.append(Put(owner, part, raw(_encode(now))))
            written[owner, part] = now
        self.touched.update([owner for owner, _ in first])
        self._leave(changes, written)
        log.clear()
        self._splices.clear()
        self._whole.clear()
        return changes, written

    def _leave(self, changes: list[Change], written: Written) -> None:
        """Let the runs go that leave with this step."""
        for owner in self._gone:
            self.touched.add(owner)
            changes.append(Gone(owner))
            for kind in RUN_PARTS:
                written[owner, kind.__name__] = None
            self.trees.leaving(owner, is_kept=False)
            for kind in list(self._entities[owner]):
                self._drop(owner, kind)
            self.trees.left()
            self._forget(owner)
        self._gone.clear()

    def _worker_put(self, owner: int, old: Component | None, new: Component | None) -> None:
        if new is not None:
            self.trees.unsettled.add(owner)

    def _context_put(self, owner: int, old: Component | None, new: Component | None) -> None:
        self._whole.add(owner)

    @property
    def is_clean(self) -> bool:
        """Nothing was written since the last ``take_changes``."""
        return not self.undo_log and not self._gone

    # --- whole owners ---------------------------------------------------------------------------

    def live_row(self, owner: int) -> dict[type[Any], Any]:
        """The owner's components by kind, as they are now; for reading only."""
        return self._entities[owner]

    def parts_of(self, owner: int) -> list[Component]:
        """All components of an owner in the registry's order; of the world, in its own."""
        row = self._entities[owner]
        if owner == WORLD_OWNER:
            return [row[kind] for kind in sorted(row, key=lambda kind: kind.__name__)]
        return [row[kind] for kind in RUN_PARTS if kind in row]

    def row(self, owner: int) -> dict[type[Component], Component]:
        """The owner's components by kind: a copy that stays as it is."""
        return dict(self._entities[owner])

    def run_id(self, owner: int) -> str:
        """The id of the run with that ordinal."""
        return self.get(owner, Identity).run_id
