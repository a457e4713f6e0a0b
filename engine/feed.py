"""Events to whoever listens: durable ones only, numbered, each subscriber at its own pace.

A subscriber that lags beyond its queue loses nothing: it is told where it fell behind and reads
the rest
from the journal.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import trio

from leviath.engine.limits import EVENT_QUEUE_MAX

if TYPE_CHECKING:
    from leviath.components.events import WorldEvent
    from leviath.engine.step import StepResult


class Subscription:
    """A bounded queue of events of one run, or of all."""

    def __init__(self, run_id: str | None, queue_max: int) -> None:
        self.run_id = run_id
        self._queue_max = queue_max
        self.queue: deque[WorldEvent] = deque()
        self.behind_step: int | None = None
        """The first durable step whose events did not fit; None while the queue is complete."""
        self._arrived = trio.Event()
        self.closed: bool = False

    def put_all(self, events: tuple[WorldEvent, ...], step: int) -> None:
        """Add events of a step, as far as the queue takes them: then the reader is behind from this
        step."""
        if self.behind_step is not None:
            return
        room = self._queue_max - len(self.queue)
        if len(events) > room:
            events = events[:room]
            self.behind_step = step
        self.queue.extend(events)
        self._arrived.set()

    def close(self) -> None:
        """Nothing more will come."""
        self.closed = True
        self._arrived.set()

    async def wait(self) -> None:
        """Until there is something to read, or nothing will come. Cancelled: nothing was taken."""
        if not self.queue and self.behind_step is None and not self.closed:
            await self._arrived.wait()
        self._arrived = trio.Event()


class Feed:
    """All subscriptions of a host, and who waits for a change of a run."""

    def __init__(self) -> None:
        self._all: list[Subscription] = []
        self._by_run: dict[str, list[Subscription]] = {}
        self._changed: dict[int, trio.Event] = {}
        self._progress: trio.Event | None = None
        self.closed: bool = False
        self.queue_max = EVENT_QUEUE_MAX
        self._kept: deque[WorldEvent] | None = None

    def keep(self, count: int) -> None:
        """Keep the newest events in memory: for a world without a journal."""
        self._kept = deque(maxlen=count)

    def kept(self) -> tuple[WorldEvent, ...]:
        """The newest events of a world without a journal, oldest first."""
        return () if self._kept is None else tuple(self._kept)

    def subscribe(self, run_id: str | None) -> Subscription:
        """Listen to one run, or to all with None."""
        subscription = Subscription(run_id, self.queue_max)
        if self.closed:
            subscription.close()
        elif run_id is None:
            self._all.append(subscription)
        else:
            self._by_run.setdefault(run_id, []).append(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Stop listening."""
        subscription.close()
        if subscription.run_id is None:
            if subscription in self._all:
                self._all.remove(subscription)
            return
        listeners = self._by_run.get(subscription.run_id, [])
        if subscription in listeners:
            listeners.remove(subscription)
        if not listeners:
            self._by_run.pop(subscription.run_id, None)

    def publish(self, result: StepResult) -> None:
        """Hand out a durable step's events and wake who waits for its runs."""
        if self._kept is not None:
            self._kept.extend(result.events)
        events = result.events
        if events:
            for subscription in self._all:
                subscription.put_all(events, result.step)
        if self._by_run:
            for event in events:
                for subscription in self._by_run.get(event.run_id, ()):
                    subscription.put_all((event,), result.step)
        if self._changed:
            for n in result.touched:
                changed = self._changed.pop(n, None)
                if changed is not None:
                    changed.set()

    async def changed(self, run: int) -> None:
        """Until a durable step touched the run, or the host is closed."""
        if self.closed:
            return
        event = self._changed.setdefault(run, trio.Event())
        await event.wait()

    async def progressed(self) -> None:
        """Until more steps are durable, or the host is closed."""
        if self.closed:
            return
        if self._progress is None:
            self._progress = trio.Event()
        await self._progress.wait()

    def progress(self) -> None:
        """More steps are durable, and everything about them was published."""
        if self._progress is not None:
            self._progress.set()
            self._progress = None

    def close(self) -> None:
        """Nothing more will come."""
        self.closed = True
        self.progress()
        for subscription in [*self._all, *(s for subs in self._by_run.values() for s in subs)]:
            subscription.close()
        for event in self._changed.values():
            event.set()
        self._changed.clear()
