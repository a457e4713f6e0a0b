"""Lanes: pools of long-lived workers that carry out what the world wants.

One supervised helper for every kind of work: whatever a job does, its outcome is posted, so that
no run waits for ever. A job that does not wait costs no task switch; a job is cancelled by
cancelling the worker that has it, which is then replaced, so that no call pays for a cancel scope
of its own.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from typing import TYPE_CHECKING, Protocol

import trio

from leviath.engine.limits import CANCEL_GRACE_MS, LANE_WORKERS_MAX, THREADS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_log = logging.getLogger("leviath.engine")
_TURN = 64
"""Jobs that one worker does without letting others run."""


class Job(Protocol):
    """One piece of work. ``key`` names it for ``cancel``."""

    key: Hashable

    async def perform(self) -> None:
        """Do it and post the outcome. Cancelled: post that it was aborted."""
        ...

    def abandoned(self) -> None:
        """It was cancelled before it began, or broke off: post that it was aborted, unless an
        outcome was posted."""
        ...


class Lane:
    """Workers for jobs that wait for something outside. Belongs to the host's nursery."""

    def __init__(self, nursery: trio.Nursery, *, workers_max: int = LANE_WORKERS_MAX) -> None:
        self._nursery = nursery
        self._workers_max = workers_max
        self._queue: deque[Job] = deque()
        self._lot = trio.lowlevel.ParkingLot()
        self._workers = 0
        self._woken = 0
        """Workers that were woken or started and have not looked at the queue yet."""
        self._running: dict[Hashable, tuple[trio.CancelScope, Job]] = {}
        self._dropped: set[Hashable] = set()
        self.busy: int = 0

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def put(self, job: Job) -> None:
        """Have a job done."""
        self._queue.append(job)
        self._wake()

    def _wake(self) -> None:
        """Have one worker look at the queue, unless one is about to: it wakes the next if its job
        may wait, so that a burst of jobs that do not wait costs one switch."""
        if self._woken:
            return
        if self._lot:
            self._woken += 1
            self._lot.unpark()
        elif self._workers < self._workers_max:
            self._woken += 1
            self._workers += 1
            self._nursery.start_soon(self._work)

    def cancel(self, key: Hashable) -> None:
        """Break off a job; its outcome is posted. Nothing happens when it is done already."""
        running = self._running.get(key)
        if running is not None:
            scope, job = running
            scope.cancel()
            self._nursery.start_soon(_give_up, job)
            return
        for job in self._queue:
            if job.key == key:
                self._queue.remove(job)
                job.abandoned()
                return

    def cancel_all(self) -> None:
        """Break off every job, begun or not."""
        while self._queue:
            self._queue.popleft().abandoned()
        for scope, _ in list(self._running.values()):
            scope.cancel()

    async def _work(self) -> None:
        try:
            self._woken -= 1
            while True:
                if not self._queue:
                    await self._lot.park()
                    self._woken -= 1
                    continue
                with trio.CancelScope() as scope:
                    await self._serve(scope)
        finally:
            self._workers -= 1

    async def _serve(self, scope: trio.CancelScope) -> None:
        """Do jobs until none is left, within one scope: a cancelled job ends the scope, not the
        lane."""
        done = 0
        while self._queue:
            job = self._queue.popleft()
            if self._queue:
                # Should this job wait, the others must not.
                self._wake()
            self._running[job.key] = (scope, job)
            self.busy += 1
            try:
                await job.perform()
            except Exception:  # noqa: BLE001 - a lane outlives whatever a job does
                # Our own defect: it must cost its run one call, not everyone the host.
                _log.exception("a job failed")
                job.abandoned()
            finally:
                self.busy -= 1
                self._running.pop(job.key, None)
            if scope.cancel_called:
                # The job was done before the cancellation reached it; the next must not feel it.
                return
            done += 1
            if done % _TURN == 0:
                await trio.lowlevel.checkpoint()


async def _give_up(job: Job) -> None:
    """A cancelled job has a while to end by itself; what shields itself for longer is abandoned."""
    await trio.sleep(CANCEL_GRACE_MS / 1_000)
    job.abandoned()


class ThreadLane:
    """Threads for plain functions. What several of them finish reaches the loop in one hop.

    A thread cannot be cancelled: an aborted job is abandoned, its thread is written off until the
    function returns, and a new one takes its place while there are fewer than ``threads_max``.
    """

    def __init__(self, token: trio.lowlevel.TrioToken, *, threads_max: int = THREADS_MAX) -> None:
        self._token = token
        self._threads_max = threads_max
        self._queue: queue.SimpleQueue[Callable[[], Callable[[], None]] | None] = (
            queue.SimpleQueue()
        )
        self._done: deque[Callable[[], None]] = deque()
        self._hop = threading.Lock()
        self._hopping = False
        self._threads = 0
        self._busy = 0
        self._finished = 0
        self._seen = -1
        self._closed = False

    @property
    def is_behind(self) -> bool:
        """Jobs wait and nothing was finished since the last look: another thread may help."""
        behind = not self._queue.empty() and self._finished == self._seen
        self._seen = self._finished
        return behind

    def put(self, work: Callable[[], Callable[[], None]]) -> None:
        """Run ``work`` in a thread, and what it returns on the host's loop."""
        self._queue.put(work)
        if self._threads == 0:
            self.grow()

    def grow(self) -> None:
        """Add a thread, up to the limit."""
        if self._threads < self._threads_max and not self._closed:
            self._threads += 1
            name = f"leviath-tool-{self._threads}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def close(self) -> None:
        """Let idle threads end. A thread that is busy ends when its function returns."""
        self._closed = True
        for _ in range(self._threads):
            self._queue.put(None)

    def _work(self) -> None:
        while True:
            work = self._queue.get()
            if work is None:
                return
            self._done.append(work())
            self._finished += 1
            with self._hop:
                if self._hopping:
                    continue
                self._hopping = True
            try:
                self._token.run_sync_soon(self._drain)
            except trio.RunFinishedError:
                return

    def _drain(self) -> None:
        with self._hop:
            self._hopping = False
        while self._done:
            self._done.popleft()()
