"""Receivers of callbacks: a real HTTP server that does as it is told, and one that only keeps."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import h11
import trio
from engine_worlds import one, until

from leviath.engine.callbacks import CallbackAnswer, HttpCallbacks

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, Mapping

    from leviath.engine.clock import ManualClock
    from leviath.engine.run_handle import RunHandle


SECRET = "a secret of the receiver"
LOCAL = HttpCallbacks(allow_private=True)
AGENT = one(name="teller")


class Request(NamedTuple):
    """What a receiver was sent."""

    target: str
    headers: dict[str, str]
    body: bytes


class Kept:
    """Keeps what would be sent, and answers as told; no socket is opened."""

    def __init__(self, *statuses: int) -> None:
        self.sent: list[Request] = []
        self._statuses = list(statuses)

    def refuse(self, url: str) -> None:
        """Every address is fit."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> CallbackAnswer:
        self.sent.append(Request(url, dict(headers), body))
        return CallbackAnswer(self._statuses.pop(0) if self._statuses else 200)


class Receiver:
    """An HTTP server on this machine. ``plan`` says how to answer the next requests: a status, a
    status with header lines, ``hang`` or ``hang up``; when it is used up, 200."""

    def __init__(self, *plan: int | tuple[int, dict[str, str]] | str) -> None:
        self.plan = list(plan)
        self.got: list[Request] = []
        self.port = 0
        self.connections = 0
        self._moved = trio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?x=1"

    async def serve(
        self,
        tls: ssl.SSLContext | None = None,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]

        async def handle(stream: trio.SocketStream) -> None:
            self.connections += 1
            secure: trio.abc.Stream = stream
            if tls is not None:
                secure = trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
            try:
                await self._answer(secure)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            finally:
                await trio.aclose_forcefully(stream)

        async with trio.open_nursery() as nursery:
            task_status.started()
            await trio.serve_listeners(handle, listeners, handler_nursery=nursery)

    async def arrived(self, count: int) -> None:
        """Wait until so many requests came in."""
        while len(self.got) < count:
            await self._moved.wait()

    async def _answer(self, stream: trio.abc.Stream) -> None:
        connection = h11.Connection(h11.SERVER)
        request: h11.Request | None = None
        body = b""
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                data = bytes(await stream.receive_some(65_536))
                if not data and request is None:
                    return
                connection.receive_data(data)
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            else:
                break
        assert request is not None
        headers = {name.decode(): value.decode() for name, value in request.headers}
        self.got.append(Request(bytes(request.target).decode(), headers, body))
        moved, self._moved = self._moved, trio.Event()
        moved.set()
        how = self.plan.pop(0) if self.plan else 200
        if how == "hang":
            await trio.sleep_forever()
        if isinstance(how, str):
            return
        status, lines = how if isinstance(how, tuple) else (how, {})
        reply = h11.Response(status_code=status, headers=list(lines.items()), reason=b"so be it")
        await stream.send_all(connection.send(reply) or b"")


@asynccontextmanager
async def receiving(
    *plan: int | tuple[int, dict[str, str]] | str, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[Receiver]:
    """A receiver that serves inside the block."""
    receiver = Receiver(*plan)
    async with trio.open_nursery() as nursery:
        await nursery.start(receiver.serve, tls)
        yield receiver
        nursery.cancel_scope.cancel()


async def ended(world: Any, url: str, **more: Any) -> RunHandle:
    """A run that has ended, and whose address is to hear of it."""
    more.setdefault("callback_secret", SECRET)
    agent = more.pop("agent", AGENT)
    run: RunHandle = await world.spawn(agent, task="t", callback_url=url, **more)
    await run.wait()
    return run


async def settled(run: RunHandle, clock: ManualClock | None = None) -> str:
    """The state of the run's newest delivery once that is no longer open."""
    await until(lambda: not run.deliveries()[-1].is_open, clock)
    return run.deliveries()[-1].state
