"""A subscriber's view of the events: from the journal what was missed, then what comes, each
once."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Self

import trio

from leviath.components.status import Status
from leviath.engine import arguments
from leviath.persistence.journal import decode_events

if TYPE_CHECKING:
    from leviath.components.events import WorldEvent
    from leviath.engine.host import Host
    from leviath.persistence.reader import Reader

_ROWS = 256
"""Steps read from the journal at once: about a millisecond, so that a long past does not hold the
loop."""


class EventStream:
    """Durable events in the order of their numbers; an async iterator.

    With a run, its events until it has ended; else those of all runs until the world closes. A slow
    reader loses nothing: what does not fit its queue is read from the journal. Cancelled while
    waiting: nothing was taken. Listening ends with ``close``, or when the stream is garbage.
    """

    def __init__(
        self,
        host: Host,
        reader: Reader | None,
        *,
        run: int = 0,
        run_id: str | None = None,
        after: int | None = None,
        since_step: int = 0,
    ) -> None:
        """``after`` None starts now; a number starts behind that event, looked for after
        ``since_step``."""
        host.world.check_thread()
        if after is not None:
            arguments.number("after", after, 0, arguments.NUMBER_MAX)
        self._host = host
        self._reader = reader
        self._run = run
        self._run_id = run_id
        self._last = 0 if after is None else after
        """Number of the newest event handed out, or of the one to start behind."""
        self._missed: deque[WorldEvent] = deque()
        """Read from the journal and not handed out yet."""
        self._from_step = None if after is None else since_step
        """Where the next look into the journal begins; None when nothing is missing."""
        self._subscription = host.feed.subscribe(run_id)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WorldEvent:
        """Raises StopAsyncIteration after the run's last event, or when the world is closed."""
        while True:
            event = self._next()
            if event is not None:
                self._last = event.number
                return event
            if self._from_step is not None and not self._host.feed.closed:
                self._read(self._from_step)
                await trio.lowlevel.checkpoint()
            elif self._subscription.closed or (self._run and await self._is_complete()):
                self.close()
                raise StopAsyncIteration
            elif not self._has_more:
                await self._subscription.wait()

    def __del__(self) -> None:
        if hasattr(self, "_subscription"):
            self.close()

    def close(self) -> None:
        """Stop listening; the stream ends after what it holds already."""
        self._host.feed.unsubscribe(self._subscription)

    @property
    def _has_more(self) -> bool:
        return bool(self._subscription.queue) or self._from_step is not None

    def _next(self) -> WorldEvent | None:
        if self._missed:
            return self._missed.popleft()
        if self._from_step is not None:
            return None
        subscription = self._subscription
        while subscription.queue:
            event = subscription.queue.popleft()
            if event.number > self._last:
                return event
        if subscription.behind_step is not None:
            self._from_step = subscription.behind_step - 1
            subscription.behind_step = None
        return None

    def _read(self, step: int) -> None:
        """Take in the events of some steps later than ``step``, as far as they are durable."""
        self._from_step = None
        if self._reader is None:
            self._missed.extend(event for event in self._host.feed.kept() if self._wants(event))
            return
        rows = list(islice(self._reader.journal_after(step), _ROWS))
        # Ids stand in the encoded events as they are: most rows of other runs need no decoding.
        needle = b"" if self._run_id is None else self._run_id.encode()
        for row in rows:
            if row.step > self._host.durable_step:
                return
            if needle in row.events:
                self._missed.extend(event for event in decode_events(row) if self._wants(event))
        if len(rows) == _ROWS:
            self._from_step = rows[-1].step

    def _wants(self, event: WorldEvent) -> bool:
        return event.number > self._last and self._run_id in (None, event.run_id)

    async def _is_complete(self) -> bool:
        """The run has ended, that is durable, and every event of it was handed out."""
        host = self._host
        if not self._is_over or not await host.until_durable(host.step):
            return False
        return self._is_over and not self._has_more and self._subscription.behind_step is None

    @property
    def _is_over(self) -> bool:
        status = self._host.world.find(self._run, Status)
        return status is None or status.status.is_ended
