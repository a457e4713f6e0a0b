"""Worlds in an asyncio program: ``leviath.aio``.

A world is driven by trio. Here trio runs as a guest of the asyncio loop: in the same thread, a
little at a time, so neither blocks the other and nothing needs a lock. Methods are those of
``OpenWorld`` and ``RunHandle``, awaited from asyncio. A cancelled await cancels the call where it
stood and then raises ``asyncio.CancelledError``; a timeout is a ``TimeoutError``; all other errors
pass unchanged.

Async tools made of functions run on the asyncio loop. A provider runs under trio, unless it is
wrapped in ``OnAsyncio``.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

import outcome
import trio

from leviath.components.errors import StorageError
from leviath.engine import world as trio_world
from leviath.engine.on_asyncio import OnAsyncio, on_asyncio, running_loop
from leviath.engine.run_handle import CLOSED, RunHandle
from leviath.engine.tools import as_tools
from leviath.engine.unopened import opened_by_async_with
from leviath.engine.world import OpenWorld

if TYPE_CHECKING:
    from pathlib import Path

    from leviath.components.events import WorldEvent
    from leviath.components.outbox import Delivery
    from leviath.components.status import Status
    from leviath.engine.budget_reading import Spending
    from leviath.engine.preview import Previewed
    from leviath.engine.questions import Question
    from leviath.engine.reconcile import OpenReport
    from leviath.persistence.rows import LedgerRow, RunRow
    from leviath.systems.tree_index import Totals

__all__ = ["EventStream", "OnAsyncio", "Run", "World", "open_world"]

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E")


class _Guest:
    """The trio run of one asyncio loop. All worlds of the loop share it; the last one ends it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.users = 0
        self.nursery: trio.Nursery | None = None
        """Where calls run; None before the guest has started."""
        self._ready = loop.create_future()
        self._ended = loop.create_future()
        self._stop: trio.Event | None = None
        self._calls: set[asyncio.Future[Any]] = set()

    def start(self) -> None:
        trio.lowlevel.start_guest_run(
            self._main,
            run_sync_soon_threadsafe=self.loop.call_soon_threadsafe,
            run_sync_soon_not_threadsafe=self.loop.call_soon,
            done_callback=self._done,
            host_uses_signal_set_wakeup_fd=True,
        )

    async def _main(self) -> None:
        self._stop = trio.Event()
        async with trio.open_nursery() as nursery:
            self.nursery = nursery
            self._ready.set_result(None)
            await self._stop.wait()
            self.nursery = None
            nursery.cancel_scope.cancel()

    def _done(self, result: outcome.Outcome[None]) -> None:
        """Trio has ended: in order, or by a defect, which then is everybody's error."""
        _guests.pop(self.loop, None)
        error = result.error if isinstance(result, outcome.Error) else None
        if error is None:
            self._ended.set_result(None)
            return
        for future in (self._ready, self._ended, *self._calls):
            if not future.done():
                future.set_exception(error)

    async def ready(self) -> None:
        await _unbroken(self._ready)

    async def ended(self) -> None:
        await asyncio.wait([self._ended])

    async def stop(self) -> None:
        """End the guest; the loop must not stop before it has."""
        await self.ready()
        assert self._stop is not None
        self._stop.set()
        await _unbroken(self._ended)

    async def call(self, function: Callable[[], Awaitable[R]]) -> R:
        """Await a trio function from asyncio."""
        if self.nursery is None or self._ended.done():
            raise StorageError(CLOSED)
        future: asyncio.Future[R] = self.loop.create_future()
        scope = trio.CancelScope()
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        self.nursery.start_soon(_settle, future, scope, function)
        return await _unbroken(future, scope.cancel)


async def _settle(
    future: asyncio.Future[R], scope: trio.CancelScope, function: Callable[[], Awaitable[R]]
) -> None:
    """Carry out a call in a task of the guest and give its outcome to the future."""
    try:
        with scope:
            future.set_result(await function())
    except trio.TooSlowError:
        future.set_exception(TimeoutError("the time given for this call is over"))
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets it
        future.set_exception(error)
    except trio.Cancelled:
        future.set_exception(StorageError(CLOSED))
        raise
    if scope.cancelled_caught:
        future.set_exception(StorageError(CLOSED))


async def _unbroken(future: asyncio.Future[R], cancel: Callable[[], None] | None = None) -> R:
    """Wait for the future whatever happens to this task; a cancellation is raised after it."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
            if cancel is not None:
                cancel()
    if cancelled is not None:
        future.exception()  # looked at, so that asyncio does not report it as lost
        raise cancelled
    return future.result()


_guests: Final[dict[asyncio.AbstractEventLoop, _Guest]] = {}
"""The guest of each loop that has one: trio allows one a thread."""


@asynccontextmanager
async def _guest() -> AsyncGenerator[_Guest]:
    loop = running_loop("leviath.aio.open_world")
    while (guest := _guests.get(loop)) is not None and not guest.users:
        await guest.ended()
    if guest is None:
        guest = _Guest(loop)
        guest.start()
        _guests[loop] = guest
    guest.users += 1
    try:
        await guest.ready()
        yield guest
    finally:
        guest.users -= 1
        if not guest.users:
            await guest.stop()


class _Hosted:
    """An open world in a task of the guest, closed when the asyncio block is left."""

    def __init__(self, guest: _Guest, manager: AbstractAsyncContextManager[OpenWorld]) -> None:
        self._guest = guest
        self._manager = manager
        self._closing = trio.Event()
        self._opened: asyncio.Future[OpenWorld] = guest.loop.create_future()
        self._body: asyncio.Task[Any] | None = asyncio.current_task()
        self._task: asyncio.Task[None] | None = None
        self._interrupted = False

    async def open(self) -> OpenWorld:
        self._task = self._guest.loop.create_task(self._guest.call(self._serve))
        either: list[asyncio.Future[Any]] = [self._task, self._opened]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._opened.done():
            await self._task
        return self._opened.result()

    async def _serve(self) -> None:
        """Keep the world open until told otherwise. When its host fails, the block is cancelled."""
        try:
            async with self._manager as world:
                self._opened.set_result(world)
                await self._closing.wait()
        except Exception:
            if self._opened.done() and not self._closing.is_set() and self._body is not None:
                self._interrupted = self._body.cancel()
            raise

    async def close(self) -> None:
        """Close the world. Raises why its host failed, if it did."""
        if self._task is None:
            return
        self._closing.set()
        if not self._opened.done():
            self._task.cancel()
        try:
            await _unbroken(self._task)
        finally:
            if self._interrupted and self._body is not None:
                self._body.uncancel()


def _lifted(
    method: Callable[Concatenate[RunHandle, P], Awaitable[R]],
) -> Callable[Concatenate[Run, P], Coroutine[Any, Any, R]]:
    """A method of RunHandle, to be awaited from asyncio."""

    @functools.wraps(method)
    async def call(run: Run, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await run.guest.call(lambda: method(run.handle, *args, **kwargs))

    return call


def _spawning(
    method: Callable[Concatenate[OpenWorld, P], Awaitable[RunHandle]],
) -> Callable[Concatenate[World, P], Coroutine[Any, Any, Run]]:
    @functools.wraps(method)
    async def call(world: World, /, *args: P.args, **kwargs: P.kwargs) -> Run:
        handle = await world.guest.call(lambda: method(world.world, *args, **kwargs))
        return Run(world.guest, handle)

    return call


def _opening(
    function: Callable[P, AbstractAsyncContextManager[OpenWorld]],
) -> Callable[P, AbstractAsyncContextManager[World]]:
    @opened_by_async_with("leviath.aio.open_world")
    @asynccontextmanager
    async def manager(*args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[World]:
        async with _guest() as guest:
            tools = as_tools(kwargs.get("tools", ()))
            kwargs["tools"] = [on_asyncio(guest.loop, tool) for tool in tools]
            hosted = _Hosted(guest, function(*args, **kwargs))
            try:
                yield World(guest, await hosted.open())
            finally:
                await hosted.close()

    return functools.wraps(function)(manager)


class EventStream(Generic[E]):
    """Durable events in the order of their numbers, from asyncio; an async iterator.

    Cancelled while waiting: nothing is lost, and the stream can be read on. Listening ends with
    ``close``, or when the stream is garbage.
    """

    def __init__(self, guest: _Guest, source: AsyncIterator[E], close: Callable[[], None]) -> None:
        self._guest = guest
        self._source = source
        self._close = close
        self._taken: deque[E | None] = deque()
        """Taken from the source and not handed out yet; None is the end."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> E:
        while not self._taken:
            await self._guest.call(self._take)
        event = self._taken.popleft()
        if event is None:
            self._taken.append(None)
            raise StopAsyncIteration
        return event

    async def _take(self) -> None:
        self._taken.append(await anext(self._source, None))

    def close(self) -> None:
        """Stop listening; the stream ends after what it holds already."""
        self._close()


class Run:
    """One run of an open world, from asyncio: see ``leviath.RunHandle``."""

    def __init__(self, guest: _Guest, handle: RunHandle) -> None:
        self.guest = guest
        self.handle = handle
        self.ordinal: int = handle.ordinal
        self.run_id: str = handle.run_id

    def __repr__(self) -> str:
        return repr(self.handle)

    wait = _lifted(RunHandle.wait)
    pause = _lifted(RunHandle.pause)
    resume = _lifted(RunHandle.resume)
    cancel = _lifted(RunHandle.cancel)
    message = _lifted(RunHandle.message)
    decide = _lifted(RunHandle.decide)
    answer = _lifted(RunHandle.answer)
    forget = _lifted(RunHandle.forget)

    def events(self, *, after: int = 0) -> EventStream[WorldEvent]:
        """The run's durable events numbered above ``after``, then new ones, until it has ended."""
        source = self.handle.events(after=after)
        return EventStream(self.guest, source, source.close)

    def row(self) -> RunRow:
        """The run's listing row as of now."""
        return self.handle.row()

    @property
    def status(self) -> Status:
        """The run's status. Raises RunNotFound when it ended and left memory: see ``row``."""
        return self.handle.status

    def result(self) -> str | None:
        """The final output as text; None when the run has submitted none."""
        return self.handle.result()

    @property
    def parent(self) -> Run | None:
        """The run that started this one; None for a root, and for one whose parent is unknown."""
        handle = self.handle.parent
        return None if handle is None else Run(self.guest, handle)

    def children(self) -> list[Run]:
        """The runs that this one started, oldest first, ended ones too."""
        return [Run(self.guest, handle) for handle in self.handle.children()]

    def total(self) -> Totals:
        """What the run and all runs below it cost."""
        return self.handle.total()

    def spendings(self) -> dict[str, Spending]:
        """What is left of its budgets: ``budget`` and ``tree_budget``."""
        return self.handle.spendings()

    def ledger(self) -> list[LedgerRow]:
        """One row for each attempt at a provider call."""
        return self.handle.ledger()

    def deliveries(self) -> tuple[Delivery, ...]:
        """Word of its endings to its ``callback_url``, and how far each has come."""
        return self.handle.deliveries()


class World:
    """An open world, from asyncio: see ``leviath.OpenWorld``."""

    def __init__(self, guest: _Guest, world: OpenWorld) -> None:
        self.guest = guest
        self.world = world

    spawn = _spawning(OpenWorld.spawn)
    fork = _spawning(OpenWorld.fork)

    @property
    def home(self) -> Path | None:
        """The folder that holds ``world.db``; None for a world in memory."""
        return self.world.home

    @property
    def report(self) -> OpenReport:
        """What opening the home found and did: files written again, runs imported, and so on."""
        return self.world.report

    @property
    def file_problems(self) -> dict[str, str]:
        """By run id, why the files of a run are not up to date; writing them is tried again."""
        return self.world.file_problems

    @property
    def storage_stalled(self) -> str | None:
        """Why nothing becomes durable at present, such as a full disk; None while all is well."""
        return self.world.storage_stalled

    @property
    def is_at_rest(self) -> bool:
        """Whether only time or an outcome moves this world; for tests that move its clock."""
        return self.world.is_at_rest

    def run(self, run_id: str) -> Run:
        """The handle of a run, hosted or ended. Raises RunNotFound."""
        return Run(self.guest, self.world.run(run_id))

    def runs(self) -> list[Run]:
        """Handles of all hosted runs, oldest first."""
        return [Run(self.guest, handle) for handle in self.world.runs()]

    def listing(self, *, limit: int = 50, after: tuple[int, int] | None = None) -> list[RunRow]:
        """A page of the index of all runs of this home, newest first."""
        return self.world.listing(limit=limit, after=after)

    def fleet_spending(self) -> Spending | None:
        """What is left of ``fleet_budget``; None without one."""
        return self.world.fleet_spending()

    def questions(self) -> list[Question]:
        """Everything that hosted runs wait for people to say, oldest first."""
        return self.world.questions()

    def events(self, *, after: int | None = None) -> EventStream[WorldEvent]:
        """Durable events of all runs, numbered without a gap: from now on, or behind ``after``."""
        source = self.world.events(after=after)
        return EventStream(self.guest, source, source.close)

    def preview(self) -> EventStream[Previewed]:
        """Events before they are durable: number 0, then Confirmed or Withdrawn."""
        source = self.world.preview()
        return EventStream(self.guest, source, source.close)

    async def check(self) -> list[tuple[str, str]]:
        """Check every invariant over the whole world; (run id, invariant) for each broken one."""
        return await self.guest.call(self.world.check)


open_world = _opening(trio_world.open_world)
