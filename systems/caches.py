"""What a load builds from components so that a step costs what the runs in it cost.

* ids: run id and key to ordinal.
* slots: live model calls per (provider, model), and the runs that wait for one, by root.
* due: the next world time at which a run has something due.

None of it is state: ``snapshot`` of a live world equals that of a rebuilt one after every step.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

from leviath.components.budget import Allowance
from leviath.components.effects import Effects, Timers
from leviath.components.identity import Identity, Tree
from leviath.components.marker import Marker
from leviath.components.outbox import Outbox
from leviath.components.progress import Resolution
from leviath.components.run_status import RunStatus
from leviath.components.status import Position, Status
from leviath.systems.reserves import WORKS, over_ms

if TYPE_CHECKING:
    from leviath.systems.world import World

_READY = Marker.ready_to_infer
SlotKey = tuple[str, str]
"""(provider, model)"""


class Caches:
    """Watches a world. Made once per world, before anything is loaded into it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.in_use: dict[SlotKey, int] = {}
        self.root_use: dict[SlotKey, dict[int, int]] = {}
        """Live calls per root, which is what fairness evens out."""
        self.waiting: dict[SlotKey, dict[int, dict[int, None]]] = {}
        """Per root, the runs that stand ready, oldest first."""
        self.dirty: dict[SlotKey, None] = {}
        """Keys whose slots or queues changed since the last grants, in order of change."""
        self._ranks: dict[SlotKey, list[tuple[int, int, int]]] = {}
        """Heaps of (live calls of the root, age of its oldest waiting run, root); stale ones
        stay."""
        self._wants: dict[int, tuple[SlotKey, int]] = {}
        self._holds: dict[int, tuple[int, tuple[SlotKey, ...]]] = {}
        """Root, and the slots of all live calls of a run: an aborted one holds its own till it is
        back."""
        self._stale_wants: dict[int, None] = {}
        self._stale_loads: dict[int, None] = {}
        """Runs whose place among the waiting, and whose slots and deadlines, have to be looked at
        again. A turn writes a run's effects four times; one look, when somebody asks, is enough."""
        self._stale_ranks: dict[tuple[SlotKey, int], None] = {}
        """Roots whose place in the heap has to be looked at again, once both are."""
        self._due: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        world.watch(Identity, self._identity)
        world.watch(Effects, self._effects)
        world.watch(Timers, self._timers)
        world.watch(Outbox, self._outbox)
        world.watch(Allowance, self._allowance)
        world.watch(Status, self._status)
        world.watch(Position, self._position)
        world.watch(Resolution, self._resolution)

    # --- watchers -------------------------------------------------------------------------------

    def _identity(self, owner: int, old: Identity | None, new: Identity | None) -> None:
        if old is not None:
            self.world.by_run_id.pop(old.run_id, None)
            if old.key:
                self.world.by_key.pop(old.key, None)
        if new is not None:
            self.world.by_run_id[new.run_id] = owner
            if new.key:
                self.world.by_key[new.key] = owner

    def _effects(self, owner: int, old: Effects | None, new: Effects | None) -> None:
        self._stale_loads[owner] = None

    def _timers(self, owner: int, old: Timers | None, new: Timers | None) -> None:
        self._stale_loads[owner] = None

    def _outbox(self, owner: int, old: Outbox | None, new: Outbox | None) -> None:
        self._stale_loads[owner] = None

    def _allowance(self, owner: int, old: Allowance | None, new: Allowance | None) -> None:
        self.world.purses.allowance_put(owner, old, new)
        self._stale_loads[owner] = None

    def _status(self, owner: int, old: Status | None, new: Status | None) -> None:
        self.world.trees.status_put(owner, old, new)
        if old is None or new is None or old.status is not new.status:
            self._stale_wants[owner] = None
            self._stale_loads[owner] = None

    def _position(self, owner: int, old: Position | None, new: Position | None) -> None:
        self.world.queue_moved(owner, old, new)
        self.world.trees.position_put(owner, new)
        if (old is not None and old.marker is _READY) or (new is not None and new.marker is _READY):
            self._stale_wants[owner] = None

    def _resolution(self, owner: int, old: Resolution | None, new: Resolution | None) -> None:
        # While a run is loaded, its resolution comes after its position.
        if old is None or owner in self._wants:
            self._stale_wants[owner] = None

    def refresh(self) -> None:
        """Look again at what was written since the last look. Everything below does it first."""
        if self._stale_loads:
            stale, self._stale_loads = self._stale_loads, {}
            rows = self.world.live_rows
            for owner in stale:
                self._refresh_load(owner, rows.get(owner))
        if self._stale_wants:
            wants, self._stale_wants = self._stale_wants, {}
            if len(wants) > 1:
                # Who began to wait first stands first, in whatever order they were written.
                wants = dict.fromkeys(sorted(wants, key=self._sequence))
            for owner in wants:
                self._refresh_want(owner)
        if self._stale_ranks:
            for key, root in self._stale_ranks:
                self._rank(key, root)
            self._stale_ranks.clear()

    def _sequence(self, owner: int) -> int:
        position = self.world.find(owner, Position)
        return 0 if position is None else position.sequence

    # --- slots ----------------------------------------------------------------------------------

    def _root(self, owner: int) -> int:
        tree = self.world.find(owner, Tree)
        return owner if tree is None or not tree.root else tree.root

    def _refresh_load(self, owner: int, row: dict[type[Any], Any] | None) -> None:
        """Look again at the slots that a run holds, and at when something of it is due."""
        keys: tuple[SlotKey, ...] = ()
        due: int | None = None
        if row is not None:
            state: Status | None = row.get(Status)
            status = None if state is None else state.status
            waits = status is not None and not status.is_ended
            effects: Effects | None = row.get(Effects)
            for effect in () if effects is None else effects.items:
                if effect.live and effect.provider:
                    keys = (*keys, (effect.provider, effect.model))
                at = effect.due_ms
                if (
                    waits
                    and at
                    and (due is None or at < due)
                    and not effect.aborting
                    and (effect.live or status is not RunStatus.PAUSED)
                ):
                    due = at
            outbox: Outbox | None = row.get(Outbox)
            if outbox is not None and status is not None:
                # What is told about a run is sent after its end, too.
                for delivery in outbox.items:
                    if delivery.due_ms and (due is None or delivery.due_ms < due):
                        due = delivery.due_ms
            timers: Timers | None = row.get(Timers)
            if timers is not None and status is RunStatus.RUNNING:
                for timer in (timers.stall_ms, timers.stuck_ms):
                    if timer is not None and (due is None or timer < due):
                        due = timer
            allowance: Allowance | None = row.get(Allowance)
            if allowance is not None and status in WORKS:
                over = over_ms(allowance)
                if over is not None and (due is None or over < due):
                    due = over
        if keys or owner in self._holds:
            self._refresh_hold(owner, keys)
        if due != self._due.get(owner):
            self._refresh_due(owner, due)

    def _refresh_hold(self, owner: int, keys: tuple[SlotKey, ...]) -> None:
        root, old = self._holds.get(owner, (0, ()))
        if keys == old:
            return
        for key in old:
            self._count(key, root, -1)
        if keys:
            root = self._root(owner)
            self._holds[owner] = (root, keys)
            for key in keys:
                self._count(key, root, 1)
        else:
            del self._holds[owner]

    def _count(self, key: SlotKey, root: int, by: int) -> None:
        self.dirty[key] = None
        self.in_use[key] = self.in_use.get(key, 0) + by
        roots = self.root_use.setdefault(key, {})
        roots[root] = roots.get(root, 0) + by
        if not roots[root]:
            del roots[root]
        if not self.in_use[key]:
            del self.in_use[key], self.root_use[key]
        self._stale_ranks[key, root] = None

    def _rank_of(self, key: SlotKey, root: int) -> tuple[int, int, int] | None:
        runs = self.waiting.get(key, {}).get(root)
        if not runs:
            return None
        oldest = self.world.find(next(iter(runs)), Position)
        if oldest is None:
            # Its run has ended since the last look, which comes next and ranks the root again.
            return None
        return (self.root_use.get(key, {}).get(root, 0), oldest.sequence, root)

    def _rank(self, key: SlotKey, root: int) -> None:
        rank = self._rank_of(key, root)
        if rank is not None:
            heap = self._ranks.setdefault(key, [])
            heapq.heappush(heap, rank)
            if len(heap) > 64 and len(heap) > 4 * len(self.waiting[key]):
                # Ranks that no longer hold sink below the top, where nothing takes them out.
                fresh = (self._rank_of(key, of) for of in self.waiting[key])
                heap[:] = sorted(valid for valid in fresh if valid is not None)

    def fairest(self, key: SlotKey, most: int) -> list[int]:
        """The oldest waiting run of the root with the fewest live calls here, ties by age; behind
        it up to ``most`` in all that come next whatever becomes of those before them.

        Those are to be granted, and looked at again: they have left the heap.
        """
        heap = self._ranks.get(key, [])
        waiting = self.waiting.get(key, {})
        found: dict[int, int] = {}
        while heap and len(found) < most:
            rank = heap[0]
            root = rank[2]
            # A rank may stand in the heap twice.
            if root not in found and self._rank_of(key, root) == rank:
                runs = waiting[root]
                if len(runs) > 1 and found:
                    # Which of its runs is next, and when, depends on what it holds by then.
                    break
                found[root] = next(iter(runs))
                self._stale_ranks[key, root] = None
                if len(runs) > 1:
                    break
            heapq.heappop(heap)
        if not heap:
            self._ranks.pop(key, None)
        return list(found.values())

    def _refresh_want(self, owner: int) -> None:
        old = self._wants.pop(owner, None)
        if old is not None:
            roots = self.waiting[old[0]]
            del roots[old[1]][owner]
            if roots[old[1]]:
                self._stale_ranks[old] = None
            else:
                del roots[old[1]]
            if not roots:
                del self.waiting[old[0]]
        row = self.world.live_rows.get(owner)
        if row is None:
            return
        position: Position | None = row.get(Position)
        status: Status | None = row.get(Status)
        resolution: Resolution | None = row.get(Resolution)
        if (
            position is None
            or status is None
            or resolution is None
            or position.marker is not Marker.ready_to_infer
            or status.status is not RunStatus.RUNNING
        ):
            return
        key = wanted_slot(resolution)
        root = self._root(owner)
        self._wants[owner] = (key, root)
        runs = self.waiting.setdefault(key, {}).setdefault(root, {})
        runs[owner] = None
        if len(runs) == 1:
            self._stale_ranks[key, root] = None
        self.dirty[key] = None

    # --- due times ------------------------------------------------------------------------------

    def _refresh_due(self, owner: int, due: int | None) -> None:
        if due is None:
            del self._due[owner]
            return
        self._due[owner] = due
        heapq.heappush(self._heap, (due, owner))
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._due):
            self._heap = [(at, of) for of, at in self._due.items()]
            heapq.heapify(self._heap)

    def next_due_ms(self) -> int | None:
        """World time of the next deadline of any run."""
        self.refresh()
        while self._heap:
            at, owner = self._heap[0]
            if self._due.get(owner) == at:
                return at
            heapq.heappop(self._heap)
        return None

    def take_due(self, world_ms: int) -> list[int]:
        """The runs with something due at ``world_ms``, by time and ordinal. They stay due."""
        self.refresh()
        due: dict[int, None] = {}
        kept: list[tuple[int, int]] = []
        while self._heap and self._heap[0][0] <= world_ms:
            at, owner = heapq.heappop(self._heap)
            if self._due.get(owner) == at and owner not in due:
                due[owner] = None
                kept.append((at, owner))
        for item in kept:
            heapq.heappush(self._heap, item)
        return list(due)

    def all_dirty(self) -> None:
        """Look at every queue again, in its order: something was undone."""
        self.refresh()
        self.rebuild_order()
        for key in self.waiting:
            self.dirty[key] = None

    # --- the whole ------------------------------------------------------------------------------

    def rebuild_order(self) -> None:
        """After a load: bring the waiting runs into the order of their positions."""
        self.refresh()
        for key, roots in self.waiting.items():
            for root, runs in roots.items():
                ordered = sorted(runs, key=lambda run: self.world.get(run, Position).sequence)
                roots[root] = dict.fromkeys(ordered)
                self._rank(key, root)

    def snapshot(self) -> dict[str, object]:
        """Everything above as plain values, for the comparison with a rebuilt world."""
        self.refresh()
        return {
            "in_use": dict(sorted(self.in_use.items())),
            "root_use": {
                key: dict(sorted(use.items())) for key, use in sorted(self.root_use.items())
            },
            "waiting": {
                key: {root: tuple(runs) for root, runs in sorted(roots.items())}
                for key, roots in sorted(self.waiting.items())
            },
            "due": dict(sorted(self._due.items())),
            "run_ids": dict(sorted(self.world.by_run_id.items())),
            "keys": dict(sorted(self.world.by_key.items())),
            "queues": self.world.queues(),
            "trees": self.world.trees.snapshot(),
            "purses": self.world.purses.snapshot(),
        }


def wanted_slot(resolution: Resolution) -> SlotKey:
    """The slot that a run's next call needs."""
    if resolution.choice < len(resolution.candidates):
        return resolution.candidates[resolution.choice]
    return ("", "")
