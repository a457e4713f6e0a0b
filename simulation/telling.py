"""Playing a scenario over a whole host, with whatever disk it is given, and what was said by then.

The clock is moved by hand: some seconds pass with each turn, and whenever nothing happens outside,
so that what waits for a time (a full disk, a retry, a busy run's files) does not wait for real.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, cast

import trio
from msgspec import Struct, field

from leviath.components.errors import LevError
from leviath.components.events import CallUnknown, TurnFinished
from leviath.components.run_status import RunStatus
from leviath.engine.clock import ManualClock
from leviath.engine.world import OpenWorld, open_world
from leviath.persistence.database import open_database
from leviath.persistence.journal import decode_events
from leviath.simulation.checkers import Breached
from leviath.simulation.scenario import Book

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from leviath.persistence.files import FileSystem
    from leviath.persistence.rows import LedgerRow, RunRow
    from leviath.simulation.scenario import Scenario

SEED: Final = 7
LOOK_S: Final = 0.004
_TURN_MS: Final = (1_000, 6_000)
"""How long a turn takes, in turns: a run's files are replaced, or swapped when they are older."""
_QUIET_LOOKS: Final = 3
END_LIMIT_S: Final = 60.0
"""Real time in which a scenario has to end: beyond it a run is stuck."""


class Ending(Struct, frozen=True):
    """How a run ended."""

    status: str
    priced_nano: int
    charged: tuple[tuple[int, int, int, int, int | None], ...]
    """Tokens and price of each call that was answered, in order."""
    error: str = ""


class Said(Struct):
    """What a subscriber had heard, and where the disk's record stood then."""

    heard: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(position, number of the event)"""
    endings: dict[str, Ending] = field(default_factory=dict[str, "Ending"])
    steps: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(number of the newest event, step), ascending"""
    digests: dict[int, bytes] = field(default_factory=dict[int, bytes])
    ledger: dict[int, list[LedgerRow]] = field(default_factory=dict[int, list["LedgerRow"]])

    def acknowledged(self, position: int) -> int:
        """The newest step that somebody knew to be durable at a position."""
        at = bisect_right(self.heard, position, key=lambda row: row[0])
        number = self.heard[at - 1][1] if at else 0
        return next((step for newest, step in self.steps if newest >= number > 0), 0)

    def read_back(self, home: Path) -> None:
        """Fill in what the undamaged home says of its history."""
        newest = 0
        with open_database(home / "world.db", level="process", read_only=True) as reader:
            for row in reader.journal_after(0):
                self.digests[row.step] = row.digest
                for event in decode_events(row):
                    newest = event.number
                self.steps.append((newest, row.step))
            for run in reader.run_rows():
                self.ledger[run.ordinal] = reader.ledger(run.ordinal)


class Disk(Struct, frozen=True):
    """What a home is opened over."""

    durability: str = "process"
    vfs: str | None = None
    fs: FileSystem | None = None
    position: Callable[[], int] | None = None
    """Where the disk's record stands; None when nobody records."""


@asynccontextmanager
async def opened(
    scenario: Scenario, home: Path, book: Book, disk: Disk, clock: ManualClock
) -> AsyncGenerator[OpenWorld]:
    """The scenario's world over a disk, with its tools in the book."""
    async with open_world(
        home,
        providers=scenario.providers(),
        tools=book.watched(scenario.tools),
        builtins=False,
        durability="full" if disk.durability == "full" else "process",
        clock=clock,
        seed=SEED,
        vfs=disk.vfs,
        fs=disk.fs,
        grace_ms=0,
        secret_env=False,
    ) as world:
        yield world


async def tell(
    scenario: Scenario,
    home: Path,
    book: Book,
    said: Said,
    disk: Disk,
    happened: frozenset[str] = frozenset(),
) -> None:
    """Play until every run has ended. ``happened`` are calls of `once` tools made before: whoever
    is asked about one of them says so, and none may be made again.

    Raises Breached, and LevError for what the host could not go on with.
    """
    clock = ManualClock()
    try:
        with trio.fail_after(END_LIMIT_S):
            async with opened(scenario, home, book, disk, clock) as world:
                await _play(scenario, world, book, said, disk, clock, happened)
    except trio.TooSlowError:
        raise Breached("stuck", f"a run goes on after {END_LIMIT_S:.0f} s") from None
    except BaseExceptionGroup as group:
        raise _only(group) from group
    again = happened & {key for _, key in book.made}
    if again:
        raise Breached("once", f"call {min(again)} was made before the crash and after it")


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    if isinstance(first, BaseExceptionGroup):
        return _only(cast("BaseExceptionGroup[BaseException]", first))
    return first


async def _play(
    scenario: Scenario,
    world: OpenWorld,
    book: Book,
    said: Said,
    disk: Disk,
    clock: ManualClock,
    happened: frozenset[str],
) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(_listen, world, said, disk, clock, happened)
        nursery.start_soon(_look_after_time, world, book, clock, disk)
        for number in range(scenario.runs):
            run = await world.spawn(
                scenario.agent,
                task=scenario.task,
                workdir=book.place,
                key=f"run-{number}",
                run_id=f"run-{number}",
                yolo=False,
            )
            row = await run.wait()
            said.endings[row.run_id] = ending_of(row, run.ledger())
        nursery.cancel_scope.cancel()


def ending_of(row: RunRow, ledger: list[LedgerRow]) -> Ending:
    """What of an ended run has to be the same however often its host died."""
    charged = tuple(
        (call.prompt, call.completion, call.cached, call.cache_write, call.nano_usd)
        for call in ledger
        if call.certainty != "interrupted"
    )
    return Ending(row.status, row.cost_priced_nano, charged, row.error or "")


async def _listen(
    world: OpenWorld,
    said: Said,
    disk: Disk,
    clock: ManualClock,
    happened: frozenset[str],
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    """Note what is heard, settle calls that may have happened, let time pass with each turn."""
    task_status.started()
    async for event in world.events(after=0):
        said.heard.append((0 if disk.position is None else disk.position(), event.number))
        if isinstance(event, TurnFinished):
            clock.advance(_TURN_MS[event.turn % 2])
        if isinstance(event, CallUnknown):
            run = world.run(event.run_id)
            if run.status.status is RunStatus.WAITING_INPUT:
                verdict = "done" if happened else "again"
                try:
                    await run.decide(event.call_id, verdict, actor="torture")
                except LevError:
                    continue  # settled in an earlier life: this is its history


async def _look_after_time(world: OpenWorld, book: Book, clock: ManualClock, disk: Disk) -> None:
    """Let time pass while nothing happens outside and nothing is written."""
    quiet, before = 0, -1
    while True:
        await trio.sleep(LOOK_S)
        now = 0 if disk.position is None else disk.position()
        quiet = quiet + 1 if not book.busy and now == before else 0
        before = now
        if world.storage_stalled is not None or quiet >= _QUIET_LOOKS:
            clock.advance(1_000)
