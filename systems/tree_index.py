"""Who works for whom, what it cost together, and what a change of one run asks of others.

An index over each child's ``Tree``, kept by what is written and built again by a load:

* live: the children of a run that have not ended.
* below: the sum of what the runs below a run cost.
* departed: how the children ended that have left memory.
* unsettled, starting, waiting: runs to look at, because a parent, a child or a fan-out moved.

A parent always has a lower ordinal than its children: a tree cannot contain itself.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import msgspec

from leviath.components.effects import Effects
from leviath.components.family import FanOut, Split, Worker
from leviath.components.identity import Tree
from leviath.components.marker import Marker
from leviath.components.progress import Cost
from leviath.components.run_status import RunStatus
from leviath.components.status import Position, Status
from leviath.systems.outcomes import Departed, blueprint_of, outcome_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leviath.components.family import Outcome
    from leviath.systems.world import World

_SHRINK_EVERY = 64
WAITS = (Marker.waiting_for_children, Marker.fan_out_waiting)


class Totals(msgspec.Struct):
    """Sums over several runs. ``unpriced`` calls make their cost unknown, which is not zero."""

    runs: int = 0
    prompt: int = 0
    completion: int = 0
    cached: int = 0
    cache_write: int = 0
    tool_calls: int = 0
    priced_nano: int = 0
    unpriced: int = 0
    computed: int = 0

    @property
    def nano_usd(self) -> int | None:
        """What all of it cost; None while the price of some call is not known."""
        return None if self.unpriced else self.priced_nano

    @property
    def is_exact(self) -> bool:
        """Every call carried the provider's own figure."""
        return not self.unpriced and not self.computed

    @property
    def is_zero(self) -> bool:
        """Nothing was added, or everything was taken away again."""
        return self == Totals()

    def add(self, other: Totals, sign: int = 1) -> None:
        """Add other sums, or take them away."""
        self.runs += sign * other.runs
        self.prompt += sign * other.prompt
        self.completion += sign * other.completion
        self.cached += sign * other.cached
        self.cache_write += sign * other.cache_write
        self.tool_calls += sign * other.tool_calls
        self.priced_nano += sign * other.priced_nano
        self.unpriced += sign * other.unpriced
        self.computed += sign * other.computed


def totals_of(cost: Cost) -> Totals:
    """One run's own."""
    return Totals(
        1,
        cost.prompt,
        cost.completion,
        cost.cached,
        cost.cache_write,
        cost.tool_calls,
        cost.priced_nano,
        cost.unpriced,
        cost.computed,
    )


class Agenda:
    """Ordinals to look at, lowest first, each once."""

    __slots__ = ("_heap", "_members")

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._members: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._members)

    def __contains__(self, n: int) -> bool:
        return n in self._members

    def __iter__(self) -> Iterator[int]:
        """In no order: for questions whose answer does not depend on one."""
        return iter(self._members)

    def add(self, n: int) -> None:
        """Put a run on it."""
        if n not in self._members:
            self._members.add(n)
            heapq.heappush(self._heap, n)

    def discard(self, n: int) -> None:
        """Take a run off it, if it is there."""
        self._members.discard(n)

    def pop(self) -> int | None:
        """The lowest, taken off; None when there is none."""
        while self._heap:
            n = heapq.heappop(self._heap)
            if n in self._members:
                self._members.remove(n)
                return n
        return None


class TreeIndex:
    """Belongs to one world, which tells it of every change."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.live: dict[int, dict[int, None]] = {}
        self.below: dict[int, Totals] = {}
        self.departed: dict[int, Departed] = {}
        self.news: dict[int, None] = {}
        """Children that ended in the step under way, in order: their parents are to hear."""
        self.unsettled: Agenda = Agenda()
        """Live children that may have to follow their parent: cancelled, paused or resumed."""
        self.starting: Agenda = Agenda()
        """Parents whose fan-out may have room for another worker."""
        self.waiting: Agenda = Agenda()
        """Parents that rest until children end: looked at once when they begin to."""
        self._parent: dict[int, int] = {}
        self._hosted: dict[int, dict[int, None]] = {}
        """The children of a run that are in memory, ended or not."""
        self.partial: set[int] = set()
        """Runs whose children are not all in memory."""
        self._counted: set[int] = set()
        """Ended children out of memory that nobody can ask about: their cost is counted above."""
        self._returning: set[int] = set()
        """Runs that are being brought back into memory: their cost is counted already."""
        self._leaving = 0

    # --- asked ----------------------------------------------------------------------------------

    def parent(self, n: int) -> int:
        """The run's parent, hosted or not; 0 for none."""
        return self._parent.get(n, 0)

    def live_children(self, n: int) -> tuple[int, ...]:
        """The children that have not ended, oldest first."""
        return tuple(sorted(self.live.get(n, ())))

    def hosted_children(self, n: int) -> tuple[int, ...]:
        """The children that are in memory, ended or not."""
        return tuple(sorted(self._hosted.get(n, ())))

    def is_within(self, n: int, ancestor: int) -> bool:
        """Whether a run stands below another one."""
        above = self._parent.get(n, 0)
        while above and above != ancestor:
            above = self._parent.get(above, 0)
        return bool(above)

    def has_work_below(self, n: int) -> bool:
        """Whether a child is at work, or has something outside that may still cost money."""
        if n in self.live:
            return True
        rows = self._world.live_rows
        return any(rows[child][Effects].items for child in self._hosted.get(n, ()) if child in rows)

    def outcome(self, parent: int, child: int) -> Outcome | None:
        """How a child ended; None for one that is not known (any more)."""
        row = self._world.live_rows.get(child)
        if row is not None:
            return outcome_of(row, blueprint_of(row, self._world.blueprints))
        departed = self.departed.get(parent)
        return None if departed is None else departed.get(child)

    def outcomes_since(self, parent: int, first: int) -> list[Outcome]:
        """The outcomes of all children from an ordinal on, ascending; of live ones too."""
        departed = self.departed.get(parent)
        found = [] if departed is None else departed.since(first)
        for child in self._hosted.get(parent, ()):
            if child >= first:
                outcome = self.outcome(parent, child)
                if outcome is not None:
                    found.append(outcome)
        found.sort(key=lambda outcome: outcome.ordinal)
        return found

    def child_by_id(self, parent: int, run_id: str) -> int:
        """Ordinal of a run by its id: hosted, or a departed child of ``parent``; 0 for none."""
        n = self._world.by_run_id.get(run_id, 0)
        if not n and parent in self.departed:
            n = self.departed[parent].names.get(run_id, 0)
        return n

    def total(self, n: int) -> Totals:
        """What a hosted run and all runs below it cost."""
        total = Totals()
        cost = self._world.find(n, Cost)
        if cost is not None:
            total.add(totals_of(cost))
        below = self.below.get(n)
        if below is not None:
            total.add(below)
        return total

    def wanted_move(self, n: int) -> str:
        """What a run's parent asks of it: "", cancel, pause or resume."""
        row = self._world.live_rows.get(n)
        above = self._world.live_rows.get(self._parent.get(n, 0))
        if row is None or above is None:
            return ""
        status: Status | None = row.get(Status)
        parent: Status | None = above.get(Status)
        if status is None or parent is None or status.status.is_ended:
            return ""
        if self.is_unwanted(n):
            return "cancel"
        paused = status.status is RunStatus.PAUSED
        if parent.status is RunStatus.PAUSED:
            held = paused or status.status is RunStatus.COMPLETE_INTERACTIVE
            return "" if held else "pause"
        return "resume" if paused and status.held_by else ""

    def is_unwanted(self, n: int) -> bool:
        """Whether a run's parent has ended, or the fan-out that it is a worker of is over."""
        row = self._world.live_rows.get(n)
        above = self._world.live_rows.get(self._parent.get(n, 0))
        if row is None or above is None or Status not in above:
            return False
        if above[Status].status.is_ended:
            return True
        fan_out: FanOut | None = above.get(FanOut)
        return Worker in row and (fan_out is None or n < fan_out.first)

    def may_start(self, n: int) -> bool:
        """Whether a fan-out has items left and room for a worker."""
        row = self._world.live_rows.get(n)
        fan_out: FanOut | None = None if row is None else row.get(FanOut)
        if row is None or fan_out is None or fan_out.started >= fan_out.total:
            return False
        split: Split | None = row.get(Split)
        status: Status = row[Status]
        if split is None:
            return False
        if status.status.is_ended or status.status is RunStatus.PAUSED:
            return False
        return not split.max_workers or fan_out.started - fan_out.ended < split.max_workers

    def room(self, n: int) -> int:
        """How many workers a fan-out may start now."""
        if not self.may_start(n):
            return 0
        fan_out, split = self._world.get(n, FanOut), self._world.get(n, Split)
        left = fan_out.total - fan_out.started
        if not split.max_workers:
            return left
        return min(left, split.max_workers - (fan_out.started - fan_out.ended))

    # --- told -----------------------------------------------------------------------------------

    def tree_put(self, owner: int, old: Tree | None, new: Tree | None) -> None:
        """A run came, or is taken back."""
        if owner == self._leaving:
            return
        # No run stands below itself, whatever a damaged part says: the invariants tell.
        parent = 0 if new is None or new.parent >= owner else new.parent
        if old is not None and old.parent and old.parent != parent:
            self._parent.pop(owner, None)
            self._unlist(self._hosted, old.parent, owner)
            self._unlist(self.live, old.parent, owner)
        if parent:
            self._parent[owner] = parent
            self._hosted.setdefault(parent, {})[owner] = None
            departed = self.departed.get(parent)
            if owner in self._counted or (departed is not None and owner in departed):
                self._counted.discard(owner)
                if departed is not None:
                    departed.drop(owner)
                self._returning.add(owner)
        if old is None and owner in self._hosted:
            # Back in memory, above runs that never left it.
            below = self.below.setdefault(owner, Totals())
            for child in self._hosted[owner]:
                below.add(self.total(child))

    def cost_put(self, owner: int, old: Cost | None, new: Cost | None) -> None:
        """A run's own cost changed: so did what is below each run above it."""
        parent = self._parent.get(owner)
        if parent is None or owner == self._leaving:
            return
        if old is None and owner in self._returning:
            self._returning.discard(owner)
            return
        delta = Totals()
        if new is not None:
            delta.add(totals_of(new))
        if old is not None:
            delta.add(totals_of(old), -1)
        rows = self._world.live_rows
        while parent and parent in rows:
            below = self.below.get(parent)
            if below is None:
                below = self.below[parent] = Totals()
            below.add(delta)
            if not below.runs and below.is_zero:
                del self.below[parent]
            parent = self._parent.get(parent, 0)

    def status_put(self, owner: int, old: Status | None, new: Status | None) -> None:
        """A run's status changed, for whoever stands beside it in the tree."""
        if owner == self._leaving:
            return
        parent = self._parent.get(owner, 0)
        is_live = new is not None and not new.status.is_ended
        was_live = old is not None and not old.status.is_ended
        if parent and is_live != was_live:
            if is_live:
                self.live.setdefault(parent, {})[owner] = None
            else:
                self._unlist(self.live, parent, owner)
                if new is not None:
                    self.news[owner] = None
        if parent and is_live:
            self.unsettled.add(owner)
        children = self.live.get(owner)
        if children and (old is None or new is None or old.status is not new.status):
            for child in children:
                self.unsettled.add(child)
        if is_live:
            self._may_wait(owner)

    def position_put(self, owner: int, new: Position | None) -> None:
        """A run rests elsewhere."""
        if new is not None and new.marker in WAITS:
            self.waiting.add(owner)

    def fan_out_put(self, owner: int, old: FanOut | None, new: FanOut | None) -> None:
        """A fan-out began, moved or is over."""
        if owner == self._leaving:
            return
        if new is not None:
            self.starting.add(owner)
        if new is None or (old is not None and old.first != new.first):
            for child in self.live.get(owner, ()):
                self.unsettled.add(child)

    def _may_wait(self, owner: int) -> None:
        row = self._world.live_rows[owner]
        position: Position | None = row.get(Position)
        if position is not None and position.marker in WAITS:
            self.waiting.add(owner)
        if FanOut in row:
            self.starting.add(owner)

    def leaving(self, owner: int, *, is_kept: bool) -> None:
        """A run is about to leave memory; ``is_kept`` when the store keeps it."""
        row = self._world.live_rows[owner]
        parent = self._parent.get(owner, 0)
        if parent and parent in self._world:
            if is_kept:
                self.partial.add(parent)
                outcome = outcome_of(row, blueprint_of(row, self._world.blueprints))
                departed = self.departed.setdefault(parent, Departed())
                departed.add(outcome)
                if len(departed) % _SHRINK_EVERY == 0:
                    self._shrink(parent)
            else:
                below = self.below.pop(owner, None)
                cost: Cost | None = row.get(Cost)
                gone = Totals() if cost is None else totals_of(cost)
                if below is not None:
                    gone.add(below)
                above = parent
                while above and above in self._world:
                    self.below.setdefault(above, Totals()).add(gone, -1)
                    if self.below[above].is_zero:
                        del self.below[above]
                    above = self._parent.get(above, 0)
        self._unlist(self._hosted, parent, owner)
        self._unlist(self.live, parent, owner)
        for index in (self.live, self.below, self.departed):
            index.pop(owner, None)
        self._parent.pop(owner, None)
        self.partial.discard(owner)
        for agenda in (self.unsettled, self.starting, self.waiting):
            agenda.discard(owner)
        self._leaving = owner

    def _shrink(self, parent: int) -> None:
        """Let go of the room that a parent's lists had when all of its children were in memory: a
        dict gives none back by itself."""
        for index in (self.live, self._hosted):
            if parent in index:
                index[parent] = dict(index[parent])

    @staticmethod
    def _unlist(index: dict[int, dict[int, None]], parent: int, child: int) -> None:
        children = index.get(parent)
        if children is not None:
            children.pop(child, None)
            if not children:
                del index[parent]

    def left(self) -> None:
        """The run that was leaving has left."""
        self._leaving = 0

    def add_departed(
        self, parent: int, child: int, outcome: Outcome | None, total: Totals, *, upwards: bool
    ) -> None:
        """Learn of an ended child that is not in memory: how it ended, if anybody may ask, and
        what it and the runs below it cost."""
        self.partial.add(parent)
        if outcome is None:
            self._counted.add(child)
        else:
            self.departed.setdefault(parent, Departed()).add(outcome)
        n = parent
        while n and n in self._world:
            self.below.setdefault(n, Totals()).add(total)
            n = self._parent.get(n, 0) if upwards else 0

    def adopt_departed(self, other: TreeIndex) -> None:
        """Take over from another index what no component in memory tells: the children that have
        left, and the sums that they are part of."""
        self.departed.update(other.departed)
        self.partial.update(other.partial)
        for parent in other.partial:
            n = parent
            while n:
                if n in other.below:
                    self.below[n] = msgspec.structs.replace(other.below[n])
                n = other.parent(n)

    def snapshot(self) -> dict[str, object]:
        """What a rebuilt world must have alike."""
        return {
            "live": {n: self.live_children(n) for n in sorted(self.live)},
            "below": {n: msgspec.structs.astuple(self.below[n]) for n in sorted(self.below)},
            "parents": dict(sorted(self._parent.items())),
            "unsettled": sorted(n for n in self.unsettled if self.wanted_move(n)),
            "starting": sorted(n for n in self.starting if self.may_start(n)),
        }
