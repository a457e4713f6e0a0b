"""Worlds for plain, blocking code: ``leviath.blocking``.

The world is driven in a thread of its own. Methods are those of ``OpenWorld`` and ``RunHandle``,
without ``await``; they may be called from any thread. Ctrl-C in a call cancels the call. A timeout
is a ``TimeoutError``; all other errors pass unchanged.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, Self, TypeVar

import trio

from leviath.components.errors import StorageError
from leviath.engine import arguments
from leviath.engine import world as trio_world
from leviath.engine.run_handle import CLOSED, RunHandle
from leviath.engine.world import OpenWorld

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from leviath.components.events import WorldEvent
    from leviath.components.outbox import Delivery
    from leviath.components.status import Status
    from leviath.engine.budget_reading import Spending
    from leviath.engine.preview import Previewed
    from leviath.engine.questions import Question
    from leviath.engine.reconcile import OpenReport
    from leviath.persistence.rows import LedgerRow, RunRow
    from leviath.systems.tree_index import Totals

__all__ = ["EventStream", "Run", "World", "open_world"]

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E")


class _Thread:
    """The thread that drives one world."""

    def __init__(self, manager: AbstractAsyncContextManager[OpenWorld]) -> None:
        self._manager = manager
        self._opened: Future[OpenWorld] = Future()
        self._ended: Future[None] = Future()
        self._closing: trio.Event | None = None
        self._is_over = False
        """The block was left, perhaps before the world was open."""
        self._nursery: trio.Nursery | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        # A program that ends without closing must not hang; a killed host loses nothing.
        self._thread = threading.Thread(target=self._run, name="leviath-world", daemon=True)

    def open(self) -> OpenWorld:
        self._thread.start()
        return self._opened.result()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            trio.run(self._serve)
        except BaseException as raised:  # noqa: BLE001 - it is raised where the block is left
            error = raised
        if not self._opened.done():
            self._opened.set_exception(error or StorageError(CLOSED))
            error = None
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    async def _serve(self) -> None:
        self._closing = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        if self._is_over:
            self._closing.set()
        async with self._manager as world:
            try:
                # Cancelled with the block: no call outlives the world.
                with trio.CancelScope() as scope:
                    async with trio.open_nursery() as nursery:
                        self._nursery = nursery
                        self._opened.set_result(world)
                        await self._closing.wait()
                        self._nursery = None
                        scope.cancel()
            finally:
                self._nursery = None

    def close(self) -> None:
        """Close the world and wait for that. Raises why its host failed, if it did."""
        self._is_over = True
        interrupted: KeyboardInterrupt | None = None
        while not self._ended.done():
            try:
                self._soon(self._close_soon)
                self._ended.exception()
            except KeyboardInterrupt as error:
                interrupted = error
        self._thread.join()
        if interrupted is not None:
            raise interrupted
        self._ended.result()

    def _close_soon(self) -> None:
        if self._closing is not None:
            self._closing.set()

    def _soon(self, function: Callable[[], object]) -> bool:
        """Run a function in the world's thread; False when there is no world any more."""
        try:
            if self._token is None:
                return False
            self._token.run_sync_soon(function)
        except trio.RunFinishedError:
            return False
        return True

    def call(self, function: Callable[[], Awaitable[R]], timeout_s: float | None = None) -> R:
        """Await a trio function in the world's thread.

        Raises TimeoutError after ``timeout_s``; the call was cancelled then.
        """
        future: Future[R] = Future()
        scope = trio.CancelScope()

        async def task() -> None:
            await _settle(future, scope, function)

        def start() -> None:
            try:
                if self._nursery is None:
                    raise StorageError(CLOSED)
                self._nursery.start_soon(task)
            except (StorageError, RuntimeError):
                # A nursery that is being left takes nothing new and says so with a RuntimeError.
                future.set_exception(StorageError(CLOSED))

        self._begin(start)
        try:
            return future.result(timeout_s)
        except BaseException as error:
            if not future.done():
                self._soon(scope.cancel)
                future.exception()  # a cancelled call comes to its end first
            if isinstance(error, TimeoutError) and not error.args:
                raise TimeoutError(f"nothing came within {timeout_s} s; nothing is lost") from None
            raise

    def look(self, function: Callable[[], R]) -> R:
        """Call a plain function in the world's thread."""
        future: Future[R] = Future()

        def run() -> None:
            if self._nursery is None:
                future.set_exception(StorageError(CLOSED))
                return
            try:
                future.set_result(function())
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets it
                future.set_exception(error)

        self._begin(run)
        return future.result()

    def _begin(self, function: Callable[[], object]) -> None:
        if self._ended.done() or not self._soon(function):
            raise StorageError(CLOSED)


async def _settle(
    future: Future[R], scope: trio.CancelScope, function: Callable[[], Awaitable[R]]
) -> None:
    """Carry out a call in the world's thread and give its outcome to the future."""
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


def _plain(
    method: Callable[Concatenate[RunHandle, P], Awaitable[R]],
) -> Callable[Concatenate[Run, P], R]:
    """A method of RunHandle, to be called from any thread."""

    @functools.wraps(method)
    def call(run: Run, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return run.thread.call(lambda: method(run.handle, *args, **kwargs))

    return call


def _spawning(
    method: Callable[Concatenate[OpenWorld, P], Awaitable[RunHandle]],
) -> Callable[Concatenate[World, P], Run]:
    @functools.wraps(method)
    def call(world: World, /, *args: P.args, **kwargs: P.kwargs) -> Run:
        handle = world.thread.call(lambda: method(world.world, *args, **kwargs))
        return Run(world.thread, handle)

    return call


def _opening(
    function: Callable[P, AbstractAsyncContextManager[OpenWorld]],
) -> Callable[P, AbstractContextManager[World]]:
    @contextmanager
    def opened(*args: P.args, **kwargs: P.kwargs) -> Generator[World]:
        thread = _Thread(function(*args, **kwargs))
        try:
            yield World(thread, thread.open())
        finally:
            thread.close()

    def manager(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[World]:
        return _Unopened(opened(*args, **kwargs))

    return functools.wraps(function)(manager)


class _Unopened(AbstractContextManager["World"]):
    """A world that is opened by ``with``, and says so when it is used without."""

    def __init__(self, manager: AbstractContextManager[World]) -> None:
        self._manager = manager

    def __enter__(self) -> World:
        return self._manager.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return self._manager.__exit__(kind, error, traceback)

    def __getattr__(self, name: str) -> object:
        raise AttributeError(
            f"the world is not open yet, so it has no {name!r}; "
            "write: with leviath.blocking.open_world(...) as world:"
        )


class EventStream(Generic[E]):
    """Durable events in the order of their numbers; an iterator for one thread.

    Raises TimeoutError when none comes for ``timeout_s``; nothing is lost then, and the stream can
    be read on. Listening ends with ``close``, or when the stream is garbage.
    """

    def __init__(
        self,
        thread: _Thread,
        source: AsyncIterator[E],
        close: Callable[[], None],
        timeout_s: float | None,
    ) -> None:
        self._thread = thread
        self._source = source
        self._close = close
        self._timeout_s = arguments.seconds("timeout_s", timeout_s)
        self._taken: deque[E | None] = deque()
        """Taken from the source and not handed out yet; None is the end."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> E:
        while not self._taken:
            self._thread.call(self._take, self._timeout_s)
        event = self._taken.popleft()
        if event is None:
            self._taken.append(None)
            raise StopIteration
        return event

    async def _take(self) -> None:
        self._taken.append(await anext(self._source, None))

    def close(self) -> None:
        """Stop listening; the stream ends after what it holds already."""
        self._thread.look(self._close)


class Run:
    """One run of an open world, from any thread: see ``leviath.RunHandle``."""

    def __init__(self, thread: _Thread, handle: RunHandle) -> None:
        self.thread = thread
        self.handle = handle
        self.ordinal: int = handle.ordinal
        self.run_id: str = handle.run_id

    def __repr__(self) -> str:
        return repr(self.handle)

    wait = _plain(RunHandle.wait)
    pause = _plain(RunHandle.pause)
    resume = _plain(RunHandle.resume)
    cancel = _plain(RunHandle.cancel)
    message = _plain(RunHandle.message)
    decide = _plain(RunHandle.decide)
    answer = _plain(RunHandle.answer)
    forget = _plain(RunHandle.forget)

    def events(self, *, after: int = 0, timeout_s: float | None = None) -> EventStream[WorldEvent]:
        """The run's durable events numbered above ``after``, then new ones, until it has ended.

        Raises TimeoutError when none comes for ``timeout_s``; go on with ``after``.
        """
        source = self.thread.look(lambda: self.handle.events(after=after))
        return EventStream(self.thread, source, source.close, timeout_s)

    def row(self) -> RunRow:
        """The run's listing row as of now."""
        return self.thread.look(self.handle.row)

    @property
    def status(self) -> Status:
        """The run's status. Raises RunNotFound when it ended and left memory: see ``row``."""
        return self.thread.look(lambda: self.handle.status)

    def result(self) -> str | None:
        """The final output as text; None when the run has submitted none."""
        return self.thread.look(self.handle.result)

    @property
    def parent(self) -> Run | None:
        """The run that started this one; None for a root, and for one whose parent is unknown."""
        handle = self.thread.look(lambda: self.handle.parent)
        return None if handle is None else Run(self.thread, handle)

    def children(self) -> list[Run]:
        """The runs that this one started, oldest first, ended ones too."""
        return [Run(self.thread, handle) for handle in self.thread.look(self.handle.children)]

    def total(self) -> Totals:
        """What the run and all runs below it cost."""
        return self.thread.look(self.handle.total)

    def spendings(self) -> dict[str, Spending]:
        """What is left of its budgets: ``budget`` and ``tree_budget``."""
        return self.thread.look(self.handle.spendings)

    def ledger(self) -> list[LedgerRow]:
        """One row for each attempt at a provider call."""
        return self.thread.look(self.handle.ledger)

    def deliveries(self) -> tuple[Delivery, ...]:
        """Word of its endings to its ``callback_url``, and how far each has come."""
        return self.thread.look(self.handle.deliveries)


class World:
    """An open world, from any thread: see ``leviath.OpenWorld``."""

    def __init__(self, thread: _Thread, world: OpenWorld) -> None:
        self.thread = thread
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
        return self.thread.look(lambda: self.world.report)

    @property
    def file_problems(self) -> dict[str, str]:
        """By run id, why the files of a run are not up to date; writing them is tried again."""
        return self.thread.look(lambda: self.world.file_problems)

    @property
    def storage_stalled(self) -> str | None:
        """Why nothing becomes durable at present, such as a full disk; None while all is well."""
        return self.thread.look(lambda: self.world.storage_stalled)

    @property
    def is_at_rest(self) -> bool:
        """Whether only time or an outcome moves this world; for tests that move its clock."""
        return self.thread.look(lambda: self.world.is_at_rest)

    def run(self, run_id: str) -> Run:
        """The handle of a run, hosted or ended. Raises RunNotFound."""
        return Run(self.thread, self.thread.look(lambda: self.world.run(run_id)))

    def runs(self) -> list[Run]:
        """Handles of all hosted runs, oldest first."""
        return [Run(self.thread, handle) for handle in self.thread.look(self.world.runs)]

    def listing(self, *, limit: int = 50, after: tuple[int, int] | None = None) -> list[RunRow]:
        """A page of the index of all runs of this home, newest first."""
        return self.thread.look(lambda: self.world.listing(limit=limit, after=after))

    def events(
        self, *, after: int | None = None, timeout_s: float | None = None
    ) -> EventStream[WorldEvent]:
        """Durable events of all runs, numbered without a gap: from now on, or behind ``after``.

        Raises TimeoutError when none comes for ``timeout_s``.
        """
        source = self.thread.look(lambda: self.world.events(after=after))
        return EventStream(self.thread, source, source.close, timeout_s)

    def fleet_spending(self) -> Spending | None:
        """What is left of ``fleet_budget``; None without one."""
        return self.thread.look(self.world.fleet_spending)

    def questions(self) -> list[Question]:
        """Everything that hosted runs wait for people to say, oldest first."""
        return self.thread.look(self.world.questions)

    def preview(self, *, timeout_s: float | None = None) -> EventStream[Previewed]:
        """Events before they are durable: number 0, then Confirmed or Withdrawn."""
        source = self.thread.look(self.world.preview)
        return EventStream(self.thread, source, source.close, timeout_s)

    def check(self) -> list[tuple[str, str]]:
        """Check every invariant over the whole world; (run id, invariant) for each broken one."""
        return self.thread.call(self.world.check)


open_world = _opening(trio_world.open_world)
