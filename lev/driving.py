"""Driving a world in the foreground: what moves, what waits, and closing in order when asked to."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Final, TypeVar, cast

import trio

from leviath.components.errors import RunNotFound
from leviath.lev.text import note

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from leviath.components.events import WorldEvent
    from leviath.components.status import Status
    from leviath.engine.run_handle import RunHandle
    from leviath.engine.world import OpenWorld

T = TypeVar("T")
MOVING: Final = frozenset({"starting", "running"})
"""Statuses in which a run goes on without a person. Retries and backoffs are ``running``, too."""
WORKING_WAITS: Final = frozenset({"fan_out_workers", "children"})
"""What a run waits for that is no person."""
STALL_LOOK_S: Final = 1.0
_MOVES: Final = ("StatusChanged", "Ended", "WebhookDelivered", "WebhookFailed")


def drive(work: Callable[[], Awaitable[T]]) -> T | None:
    """Run ``work`` in a loop of its own. SIGINT and SIGTERM cancel it, which closes its world in
    order; then the answer is None. A second signal ends the process at once.

    What ``work`` raises comes out as itself, not in the groups that nurseries make of it.
    """
    try:
        return trio.run(_interruptible, work)
    except BaseExceptionGroup as group:
        raise _innermost(group) from group


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


async def _interruptible(work: Callable[[], Awaitable[T]]) -> T | None:
    answer: T | None = None
    async with trio.open_nursery() as nursery:
        stop = trio.CancelScope()
        await nursery.start(_listen, stop)
        with stop:
            answer = await work()
        nursery.cancel_scope.cancel()
    return answer


async def _listen(stop: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            if stop.cancel_called:
                # What is durable stays durable: the next host takes it from there.
                os._exit(1)
            note("closing in order; once more to leave at once")
            stop.cancel()


def status_of(run: RunHandle) -> Status | None:
    """The run's status; None when it has ended and left memory."""
    try:
        return run.status
    except RunNotFound:
        return None


def is_moving(run: RunHandle) -> bool:
    """Whether the run goes on without a person, or has yet to tell its callback address of its
    end."""
    status = status_of(run)
    if status is None:
        return False
    if status.status.is_ended:
        return any(delivery.is_open for delivery in run.deliveries())
    if status.waiting is not None and status.waiting.reason in WORKING_WAITS:
        # Others work for it; where one of them waits for a person, so does this one.
        below = run.children()
        return status.status.wire() == "waiting_input" and any(map(is_moving, below))
    return status.status.wire() in MOVING


class Watch:
    """Follows the runs of an open world by their durable events."""

    def __init__(self, world: OpenWorld, tell: Callable[[WorldEvent], None]) -> None:
        self._world = world
        self._tell = tell
        self._moved = trio.Event()
        self._since_look: set[str] = set()
        """Ids of runs that changed status since the last look."""

    async def follow(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Take in events until the world is closed. Cancelled: nothing is lost."""
        # An asynchronous generator subscribes when it is first asked, which is before anybody who
        # waits for ``started`` gets to run.
        task_status.started()
        async for event in self._world.events():
            self._tell(event)
            if type(event).__name__ in _MOVES:
                self._since_look.add(event.run_id)
                self._moved.set()

    async def look_after_storage(self) -> None:
        """Say it when nothing becomes durable any more, and when it does again."""
        said: str | None = None
        while True:
            stalled = self._world.storage_stalled
            if stalled != said:
                note(f"storage stalled: {stalled}" if stalled else "storage works again")
                said = stalled
            await trio.sleep(STALL_LOOK_S)

    async def until_at_rest(self, runs: Iterable[RunHandle]) -> None:
        """Return when none of ``runs`` goes on without a person."""
        moving = {run.run_id: run for run in runs if is_moving(run)}
        while moving:
            await self._wait()
            changed, self._since_look = self._since_look, set()
            for run_id in changed & moving.keys():
                if not is_moving(moving[run_id]):
                    del moving[run_id]
            if not moving:
                # A run may have come to rest and gone on between two events.
                moving = {run.run_id: run for run in runs if is_moving(run)}

    async def _wait(self) -> None:
        await self._moved.wait()
        self._moved = trio.Event()
