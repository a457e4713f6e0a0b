"""What a host developer holds of one run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from leviath.components.errors import (
    ConfigError,
    LevError,
    RunConflict,
    RunNotFound,
    SpawnError,
    StorageError,
    WorldError,
)
from leviath.components.identity import Launch, Tree
from leviath.components.inputs import (
    Cancel,
    Decide,
    Input,
    Pause,
    Post,
    Release,
    Resume,
)
from leviath.components.outbox import Outbox
from leviath.components.output import Output
from leviath.components.status import Status
from leviath.engine import arguments
from leviath.engine.budget_reading import run_spendings, tree_held
from leviath.engine.budgets import limits_of
from leviath.engine.host import Host
from leviath.engine.limits import INBOX_INPUTS_MAX, LABEL_BYTES_MAX, MESSAGE_BYTES_MAX
from leviath.engine.listening import EventStream
from leviath.engine.paging import page_in, part_of, row_of
from leviath.engine.questions import answer_input
from leviath.engine.spawning import region_names
from leviath.engine.tree_reading import children_of, find_run, tree_total
from leviath.systems.control import VERDICTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from leviath.components.outbox import Delivery
    from leviath.engine.budget_reading import Spending
    from leviath.engine.budgets import Budget
    from leviath.persistence.reader import Reader
    from leviath.persistence.rows import LedgerRow, RunRow
    from leviath.systems.run import Ack
    from leviath.systems.tree_index import Totals

CLOSED: Final = "this world was closed before the call ended; open it again"

_ERRORS: dict[str, type[LevError]] = {
    "run_not_found": RunNotFound,
    "run_conflict": RunConflict,
    "spawn": SpawnError,
    "closed": StorageError,
    "world": WorldError,
}


async def ask(host: Host, make: Callable[[int], Input]) -> Ack:
    """Put a request before the world and wait until its answer is durable.

    Raises the error that the answer stands for. Cancelled: the request may be carried out.
    """
    host.world.check_thread()
    while len(host.inbox) >= INBOX_INPUTS_MAX and not host.feed.closed:
        await host.feed.progressed()
    event = trio.Event()
    box: list[Ack] = []

    def answer(ack: Ack) -> None:
        box.append(ack)
        event.set()

    host.ask(make, answer)
    await event.wait()
    _raise(box[0])
    return box[0]


def _raise(ack: Ack) -> None:
    if ack.code:
        raise _ERRORS.get(ack.code, RunConflict)(ack.message, run_id=ack.run_id)


class RunHandle:
    """One run of an open world."""

    def __init__(
        self,
        host: Host,
        reader: Reader | None,
        ordinal: int,
        run_id: str,
        *,
        since_step: int = 0,
    ) -> None:
        self._host = host
        self._reader = reader
        self._label = self._host.texts.label
        self._since_step = since_step
        """A step before the run's first one: where its events are looked for."""
        self.ordinal = ordinal
        self.run_id = run_id

    def __repr__(self) -> str:
        return f"<run {self.run_id}>"

    def deliveries(self) -> tuple[Delivery, ...]:
        """Word of this run's endings to its ``callback_url``, oldest first, and how far each has
        come. Raises RunNotFound when the run was forgotten."""
        self._check_kept()
        box = part_of(self._host.world, self._reader, self.ordinal, Outbox)
        return () if box is None else box.items

    def events(self, *, after: int = 0) -> EventStream:
        """The run's durable events with a number above ``after``, then new ones, until it has
        ended.

        An async iterator. Cancelled: nothing is lost; go on with ``after`` set to the last number
        seen.
        """
        return EventStream(
            self._host,
            self._reader,
            run=self.ordinal,
            run_id=self.run_id,
            after=after,
            since_step=self._since_step,
        )

    @property
    def _is_over(self) -> bool:
        status = self._host.world.find(self.ordinal, Status)
        return status is None or status.status.is_ended

    async def wait(self, timeout_s: float | None = None) -> RunRow:
        """Wait until the run has ended and that is durable; returns its listing row.

        Raises trio.TooSlowError after ``timeout_s``, StorageError when the world closes before.
        Cancelled: nothing was done to the run.
        """
        timeout_s = arguments.seconds("timeout_s", timeout_s)
        if timeout_s is not None:
            with trio.fail_after(timeout_s):
                return await self.wait()
        host = self._host
        while True:
            if self._is_over:
                # Other runs go on: what counts is that the steps up to now are durable.
                if await host.until_durable(host.step) and self._is_over:
                    return self.row()
            else:
                await host.feed.changed(self.ordinal)
            if host.feed.closed and not (self._is_over and host.durable_step >= host.step):
                raise StorageError(CLOSED)

    def row(self) -> RunRow:
        """The run's listing row as of now. Raises RunNotFound when the run was forgotten."""
        host = self._host
        try:
            return row_of(host.world, self._reader, self.ordinal, host.clock.wall_ms())
        except RunNotFound:
            raise self._gone() from None

    @property
    def status(self) -> Status:
        """The run's status. Raises RunNotFound when it ended and left memory: see ``row``."""
        status = self._host.world.find(self.ordinal, Status)
        if status is None:
            raise RunNotFound(f"{self.run_id} has ended and is not hosted", run_id=self.run_id)
        return status

    def result(self) -> str | None:
        """The final output as text; None when the run has submitted none that is durable. Raises
        RunNotFound when the run was forgotten."""
        self._check_kept()
        if self._host.is_pending(self.ordinal, Output):
            return None
        output = part_of(self._host.world, self._reader, self.ordinal, Output)
        return None if output is None else self._host.texts.resolve(output.content)

    def ledger(self) -> list[LedgerRow]:
        """One row for each attempt at a provider call. Empty for a world in memory. Raises
        RunNotFound when the run was forgotten."""
        self._check_kept()
        reader = self._reader
        return [] if reader is None else reader.ledger(self.ordinal)

    @property
    def parent(self) -> RunHandle | None:
        """The run that started this one; None for a root, and for one whose parent is unknown."""
        tree = part_of(self._host.world, self._reader, self.ordinal, Tree)
        if tree is None or tree.parent_run_id is None:
            return None
        found = find_run(self._host.world, self._reader, tree.parent_run_id)
        return None if found is None else self._other(*found)

    def children(self) -> list[RunHandle]:
        """Handles of the runs that this one started, oldest first, ended ones too."""
        rows = children_of(self._host.world, self._reader, self.ordinal, self.run_id)
        return [self._other(ordinal, run_id) for ordinal, run_id in rows]

    def total(self) -> Totals:
        """What the run and all runs below it cost: ended, failed and cancelled ones too."""
        return tree_total(self._host.world, self._reader, self.ordinal, self.run_id)

    def spendings(self) -> dict[str, Spending]:
        """What is left of the run's budgets now: of its own as ``budget``, of what it shares with
        all runs below it as ``tree_budget``. A budget that it was not given is not there.

        Raises RunNotFound when the run was forgotten.
        """
        self._check_kept()
        world, n = self._host.world, self.ordinal
        find = partial(part_of, world, self._reader, n)
        return run_spendings(find, self._host.time.now_ms(), tree_held(world, n))

    def _other(self, ordinal: int, run_id: str) -> RunHandle:
        return RunHandle(self._host, self._reader, ordinal, run_id)

    async def pause(self, *, why: str = "", actor: str = "host") -> None:
        """Hold the run until it is resumed, over restarts too, and the runs below it with it.
        Raises RunConflict when it has ended."""
        who, reason = self._word("actor", actor), self._word("why", why)
        await self._ask(lambda ticket: Pause(self.ordinal, ticket, who, reason))

    async def resume(
        self,
        *,
        actor: str = "host",
        budget: Budget | None = None,
        tree_budget: Budget | None = None,
    ) -> None:
        """Let a paused run go on, or start one again that ended in error or was cancelled.

        What ``budget`` and, at the root of a tree, ``tree_budget`` name takes the place of the old
        limits; they are whole sizes, not additions. Raises RunConflict when a budget is spent.
        """
        who = self._word("actor", actor)
        own, tree = limits_of("budget", budget), limits_of("tree_budget", tree_budget)
        await self._ask(lambda ticket: Resume(self.ordinal, ticket, who, own, tree))

    async def cancel(self, *, why: str = "", actor: str = "host") -> None:
        """End the run and, in steps that follow, those below it; nothing of them stays alive.

        Raises RunConflict when it has ended.
        """
        who, reason = self._word("actor", actor), self._word("why", why)
        await self._ask(lambda ticket: Cancel(self.ordinal, ticket, who, reason))

    async def message(self, text: str, *, region: str = "", sender: str = "") -> None:
        """Give the run a message; it is delivered once, before its next request.

        Raises ConfigError for an empty message or a region that the run's blueprint does not have.
        """
        arguments.text("a message", text, bytes_max=MESSAGE_BYTES_MAX, remedy="pass its text")
        if not text.strip():
            raise ConfigError(f"the message {text!r} is empty; say something")
        who, where = self._word("sender", sender), self._word("region", region)
        self._check_region(where)
        body = self._host.texts.intern(text)
        await self._ask(lambda ticket: Post(self.ordinal, body, ticket, who, where))

    async def decide(self, call_id: str, verdict: str, *, actor: str = "host") -> None:
        """Settle a parked tool call: ``again``, ``done`` or ``stop`` for one that may have
        happened, ``allow`` or ``deny`` for one that asks."""
        call, who = self._word("call_id", call_id), self._word("actor", actor)
        word = arguments.one_of("verdict", verdict, tuple(VERDICTS))
        await self._ask(lambda ticket: Decide(self.ordinal, call, word, ticket, who))

    async def answer(
        self,
        question: str,
        *,
        text: str | None = None,
        choice: int | None = None,
        approved: bool | None = None,
        scope: str = "once",
        actor: str = "host",
    ) -> None:
        """Answer a question of this run by its id; see ``OpenWorld.questions``.

        ``choice`` is an index from 0. ``approved`` with ``scope`` ``stage`` or ``run`` allows later
        calls of the tool too. Returns once the answer, and what the run does with it, is durable;
        a paused run keeps it until it is resumed. Raises RunConflict when no such question is open
        or the answer does not fit it. Cancelled: the answer may have been taken.
        """
        make = answer_input(
            self._host.texts,
            self.ordinal,
            question,
            text=text,
            choice=choice,
            approved=approved,
            scope=scope,
            actor=self._word("actor", actor),
        )
        await self._ask(make)

    async def forget(self) -> None:
        """Drop an ended run from the home (retention). Raises RunConflict while it has not
        ended."""
        await self._ask(lambda ticket: Release(self.ordinal, ticket))

    def _word(self, name: str, value: object) -> str:
        """A short text, fit to be recorded."""
        return self._label(arguments.text(name, value, bytes_max=LABEL_BYTES_MAX))

    def _page_in(self) -> None:
        """An ended run that left memory answers for itself too."""
        page_in(self._host.world, self._host.texts, self._reader, self.ordinal)

    def _check_region(self, name: str) -> None:
        world = self._host.world
        world.check_thread()
        if not name:
            return
        self._page_in()
        launch = world.find(self.ordinal, Launch)
        blueprint = None if launch is None else world.blueprints.get(launch.blueprint)
        if blueprint is not None and name not in (known := region_names(blueprint)):
            has = ", ".join(sorted(known)) or "none"
            raise ConfigError(f"{self.run_id} has no region {name!r}; its blueprint has {has}")

    def _check_kept(self) -> None:
        """An answer of nothing is for runs that have nothing, not for one that is not there."""
        if self.ordinal in self._host.world:
            return
        if self._reader is None or self._reader.run_by_ordinal(self.ordinal) is None:
            raise self._gone()

    def _gone(self) -> RunNotFound:
        return RunNotFound(
            f"run {self.run_id!r} is not in this home any more: it was forgotten; "
            "list what is there with listing()",
            run_id=self.run_id,
        )

    async def _ask(self, make: Callable[[int], Input]) -> Ack:
        self._page_in()
        try:
            return await ask(self._host, make)
        except RunNotFound:
            raise self._gone() from None
