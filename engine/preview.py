"""Events before they are durable, for a host's own screens: fast, and perhaps never true.

A previewed event carries number 0. ``Confirmed(step)`` says that all that was previewed up to that
step is durable; ``Withdrawn(step)`` that what came after it never happened, because the host
failed. Nothing that leaves the process may depend on a preview.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Self, TypeAlias

import trio
from msgspec.structs import replace

from leviath.components.errors import StorageError
from leviath.components.events import Confirmed, Withdrawn, WorldEvent
from leviath.engine.limits import EVENT_QUEUE_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

Previewed: TypeAlias = WorldEvent | Confirmed | Withdrawn


class Preview:
    """Events of all runs as steps make them; an async iterator until the world closes.

    Made by ``OpenWorld.preview``. Raises StorageError when the reader is so slow that its queue ran
    over: a preview has no past to catch up from, ``events`` has. Cancelled while waiting: nothing
    was taken.
    """

    def __init__(self) -> None:
        self._queue: deque[Previewed] = deque()
        self._arrived = trio.Event()
        self._closed = False
        self._ran_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Previewed:
        while not self._queue:
            if self._ran_over:
                raise StorageError("this preview was read too slowly; follow events() instead")
            if self._closed:
                raise StopAsyncIteration
            await self._arrived.wait()
            self._arrived = trio.Event()
        return self._queue.popleft()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def put(self, items: Iterable[Previewed]) -> None:
        """Add to the queue; a queue that runs over ends the preview."""
        if self._closed:
            return
        self._queue.extend(items)
        if len(self._queue) > EVENT_QUEUE_MAX:
            self._ran_over = True
            self.close()
        self._arrived.set()

    def close(self) -> None:
        """Stop listening; what is queued can still be read."""
        self._closed = True
        self._arrived.set()


class Previews:
    """All previews of a host."""

    def __init__(self) -> None:
        self._open: list[Preview] = []

    def add(self) -> Preview:
        """A new preview, from now on."""
        preview = Preview()
        self._open.append(preview)
        return preview

    def step(self, events: Iterable[WorldEvent]) -> None:
        """A step made these events; they are not durable."""
        if self._open:
            self._hand([replace(event, number=0) for event in events])

    def confirm(self, step: int) -> None:
        """Steps up to this one are durable."""
        if self._open:
            self._hand([Confirmed(step)])

    def close(self, durable_step: int, newest_step: int) -> None:
        """The host ends; what is not durable by now never happened."""
        if newest_step > durable_step:
            self._hand([Withdrawn(durable_step)])
        for preview in self._open:
            preview.close()
        self._open.clear()

    def _hand(self, items: list[Previewed]) -> None:
        self._open = [preview for preview in self._open if not preview.is_closed]
        for preview in self._open:
            preview.put(items)
