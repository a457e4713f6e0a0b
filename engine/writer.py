"""The thread that owns the writing connection: closures in order, results back on the host's
loop."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Writer:
    """Runs what it is given, one after the other, in a thread of its own."""

    def __init__(self, token: trio.lowlevel.TrioToken, name: str = "leviath-writer") -> None:
        self._token = token
        self._queue: queue.SimpleQueue[tuple[Callable[[], Any], Callable[..., None]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(
        self, work: Callable[[], T], done: Callable[[T | None, Exception | None], None]
    ) -> None:
        """Run ``work`` in the thread, then ``done(value, error)`` on the loop."""
        self._queue.put((work, done))

    async def call(self, work: Callable[[], T]) -> T:
        """Run ``work`` in the thread and wait for it. Cancelled: it is done all the same."""
        event = trio.Event()
        box: list[tuple[T | None, Exception | None]] = []

        def done(value: T | None, error: Exception | None) -> None:
            box.append((value, error))
            event.set()

        self.submit(work, done)
        await event.wait()
        value, error = box[0]
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def close(self) -> None:
        """End the thread after what it has been given. Waits for it."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            work, done = item
            value: Any = None
            error: Exception | None = None
            try:
                value = work()
            except Exception as caught:  # noqa: BLE001 - handed to the loop, which raises it
                error = caught
            try:
                self._token.run_sync_soon(done, value, error)
            except trio.RunFinishedError:
                return
