"""When which run's files are written: at once when it matters, otherwise a second after the first
turn that they lack, whatever came after it; so a run that is over within a second is written at its
start and at its end only.

The mirror row is committed before the file, so that a file equal to its new or old digest is known
to be ours. Files are written by a thread of their own, from durable steps only.
"""

from __future__ import annotations

import heapq
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from leviath.components.run_status import RunStatus
from leviath.components.status import Status
from leviath.engine.limits import (
    HEARTBEAT_BUCKETS,
    MIRROR_INTERVAL_MS,
    MIRROR_RUNS_COMMIT,
    MIRROR_RUNS_S_MAX,
)
from leviath.systems.heartbeat import due_runs

if TYPE_CHECKING:
    from collections.abc import Callable

    from leviath.engine.commits import Unit
    from leviath.engine.step import StepResult
    from leviath.systems.world import World


BUSY: Final = (RunStatus.STARTING, RunStatus.RUNNING)
"""A run at work changes with each turn: its large files are not written each time."""
_FOREVER_MS: Final = 1 << 62


class FileMirror(Protocol):
    """Makes files of runs. ``prepare`` runs in the writer's thread, ``write`` hands to the file
    thread."""

    def prepare(self, unit: Unit) -> None:
        """Project ``unit.runs`` without those behind; fill ``mirror_rows`` and ``files``."""
        ...

    def write(self, files: object) -> None:
        """Write what was prepared; returns at once."""
        ...

    def close(self) -> None:
        """Wait until everything is written."""
        ...

    def problems(self) -> dict[str, str]:
        """By run id, why the files of a run are not up to date."""
        ...

    def removed(self) -> list[int]:
        """Ordinals of forgotten runs whose folders are gone, which no commit has said so far."""
        ...

    @property
    def is_idle(self) -> bool:
        """Everything that was handed over is written, or failed."""
        ...


class Mirror:
    """The schedule of projections."""

    def __init__(self, files: FileMirror) -> None:
        self._files = files
        self._wrote_busy = False
        self._due: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        self._behind: dict[int, None] = {}
        """Runs of a crowd whose listing rows are written and whose files are not, oldest first."""
        self.prepare: Callable[[Unit], None] = files.prepare
        self.write: Callable[[object], None] = files.write
        self.close: Callable[[], None] = files.close
        self.problems: Callable[[], dict[str, str]] = files.problems
        self.removed: Callable[[], list[int]] = files.removed

    @property
    def is_idle(self) -> bool:
        """The files are as the newest projections say."""
        return not self._behind and self._files.is_idle

    def note(self, result: StepResult, now_ms: int) -> None:
        """Take in which runs' files are out of date."""
        # A fleet shares the disk: the more runs wait for their turn, the further these are apart.
        interval_ms = max(MIRROR_INTERVAL_MS, len(self._due) * 1_000 // MIRROR_RUNS_S_MAX)
        due, later_ms = self._due, now_ms + interval_ms
        for n, urgent in result.mirror.items():
            if urgent:
                self._set(n, now_ms)
            elif n not in due:
                due[n] = later_ms
                heapq.heappush(self._heap, (later_ms, n))
        for n in result.gone:
            due.pop(n, None)
            self._behind.pop(n, None)

    def want(self, n: int, at_ms: int) -> None:
        """Project a run at that world time, or earlier when that is due."""
        self._set(n, at_ms)

    def _set(self, n: int, at: int) -> None:
        known = self._due.get(n)
        if known is None or at < known:
            self._due[n] = at
            heapq.heappush(self._heap, (at, n))

    def beat(self, world: World, second: int) -> None:
        """The heartbeat of one second: one bucket of runs is written again."""
        for n in due_runs(world, second, HEARTBEAT_BUCKETS):
            self._set(n, second * 1_000)

    def next_due_ms(self) -> int | None:
        """World time of the next projection."""
        if self._behind:
            return 0
        while self._heap:
            at, n = self._heap[0]
            if self._due.get(n) == at:
                return at
            heapq.heappop(self._heap)
        return None

    def is_behind(self, n: int) -> bool:
        """The files of a run do not tell yet what its listing row tells."""
        return n in self._behind

    def take(self, unit: Unit, world: World, now_ms: int) -> None:
        """Fill in the runs whose listing rows and files are due with that unit.

        Of a crowd only some are projected with one commit, so that what waits for the commit does
        not wait for thousands of files; the listing rows of all of them are in it. Runs that wait
        for somebody are always projected: nothing would write them again after a crash.

        A host that closes takes everything along, and once all runs at work: their folders are
        whole then, should the store be lost before the next host.
        """
        taken = self.take_due(_FOREVER_MS if unit.closing else now_ms)
        if unit.closing and not self._wrote_busy:
            self._wrote_busy = True
            taken += [n for n in world.owners() if world.get(n, Status).status in BUSY]
        room = None if unit.closing else MIRROR_RUNS_COMMIT
        for n in taken:
            if n in world:
                unit.runs[n] = world.row(n)
                status = world.get(n, Status).status
                if status in BUSY or status.is_ended:
                    self._behind[n] = None
                else:
                    self._behind.pop(n, None)
        now = list(islice(self._behind, room))
        for n in now:
            del self._behind[n]
        unit.runs.update((n, world.row(n)) for n in now if n in world)
        unit.behind.update(n for n in unit.runs if n in self._behind)

    def take_due(self, now_ms: int) -> list[int]:
        """The runs to project now."""
        taken: list[int] = []
        while self._heap and self._heap[0][0] <= now_ms:
            at, n = heapq.heappop(self._heap)
            if self._due.get(n) == at:
                del self._due[n]
                taken.append(n)
        return taken
