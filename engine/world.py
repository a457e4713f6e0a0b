"""What a host developer holds: an open world and its runs.

Every method that changes something returns only after the change is durable. A cancelled call
either did not happen or happened whole; which of the two, ``runs`` tells.
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

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
from leviath.components.inputs import (
    Cancel,
    Configured,
    Decide,
    Input,
    Pause,
    Post,
    Release,
    Resume,
)
from leviath.components.output import Output
from leviath.components.parts import PARTS, WORLD_OWNER
from leviath.components.run_id import is_run_id
from leviath.components.status import Status
from leviath.components.world_facts import Counters, Policy
from leviath.engine.clock import RealClock
from leviath.engine.host import Host
from leviath.engine.limits import CLOSE_GRACE_MS, EVENT_QUEUE_MAX, MESSAGE_BYTES_MAX
from leviath.engine.listening import EventStream
from leviath.engine.mirroring import Mirror, NoFiles
from leviath.engine.offering import Offering
from leviath.engine.opening import Durability, Opened, open_home, opening_inputs, policy_of
from leviath.engine.outside import Outside
from leviath.engine.preview import Preview
from leviath.engine.pricing import PriceTable
from leviath.engine.redaction import Redactor, credentials
from leviath.engine.spawning import Agents, SpawnRequest, prepare_spawn
from leviath.engine.tools import Tool, as_tool, builtin_tools
from leviath.engine.writer import Writer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from leviath.components.blueprint import Blueprint
    from leviath.components.secret import Secret
    from leviath.engine.clock import Clock
    from leviath.engine.ports import Provider
    from leviath.persistence.rows import LedgerRow, RunRow
    from leviath.systems.run import Ack

_ERRORS: dict[str, type[LevError]] = {
    "run_not_found": RunNotFound,
    "run_conflict": RunConflict,
    "spawn": SpawnError,
    "closed": StorageError,
    "world": WorldError,
}


def _raise(ack: Ack) -> None:
    if ack.code:
        raise _ERRORS.get(ack.code, RunConflict)(ack.message, run_id=ack.run_id)


class OpenWorld:
    """An open world. Made by ``open_world``; used from the trio task tree that opened it."""

    def __init__(self, opened: Opened, host: Host, offering: Offering) -> None:
        self._opened = opened
        self._host = host
        self._agents = Agents(offering)

    @property
    def home(self) -> Path | None:
        """The folder that holds ``world.db``; None for a world in memory."""
        return self._opened.home

    @property
    def storage_stalled(self) -> str | None:
        """Why nothing becomes durable at present, such as a full disk; None while all is well."""
        stalled = self._host.stalled
        return None if stalled is None else str(stalled)

    async def _ask(self, make: Callable[[int], Input]) -> Ack:
        event = trio.Event()
        box: list[Ack] = []

        def answer(ack: Ack) -> None:
            box.append(ack)
            event.set()

        self._host.ask(make, answer)
        await event.wait()
        _raise(box[0])
        return box[0]

    # --- starting -------------------------------------------------------------------------------

    async def spawn(
        self,
        agent: str | os.PathLike[str] | Blueprint,
        *,
        task: str = "",
        workdir: str | os.PathLike[str] = ".",
        key: str = "",
        model: str | None = None,
        yolo: bool | str = False,
        regions: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        allow: Sequence[str] = (),
        output: Mapping[str, object] | None = None,
        callback_url: str | None = None,
        callback_secret: str | Secret | None = None,
        run_id: str = "",
    ) -> RunHandle:
        """Start a run and return its handle once the run is durable.

        ``agent`` is a blueprint's folder or file, or a Blueprint. ``key`` makes a second spawn
        return the first run, also after a restart. ``yolo`` is True for an unattended run, or the
        name of a profile. ``model`` is ``provider/model`` or a model of the stage's first
        provider, without failover.

        Raises BlueprintError, SpawnError or ConfigError; nothing of the run exists then.
        Cancelled: the run may exist; spawn again with the same ``key`` to find out.
        """
        known = self._by_key(key)
        if known is not None:
            return known
        newest = self._host.world.get(WORLD_OWNER, Counters).ordinal
        request = SpawnRequest(
            agent=agent,
            task=task,
            workdir=workdir,
            key=key,
            model=model,
            yolo=yolo,
            regions=dict(regions or {}),
            metadata=dict(metadata or {}),
            allow=tuple(allow),
            output=None if output is None else dict(output),
            callback_url=callback_url,
            callback_secret=callback_secret,
            run_id=run_id,
        )
        if self._agents.known(agent) is None:
            await trio.to_thread.run_sync(self._agents.check, agent, abandon_on_cancel=True)
        make = prepare_spawn(request, self._agents, self._host.texts.redactor)
        if run_id and self._find(run_id) is not None:
            raise SpawnError(
                f"a run called {run_id!r} exists already; leave run_id out", run_id=run_id
            )
        known = self._by_key(key)
        if known is not None:
            return known
        host = self._host
        wall_ms, since = host.clock.wall_ms(), host.durable_step
        ack = await self._ask(lambda ticket: make(ticket, host.outside, host.world, wall_ms))
        is_new = ack.run > newest
        return RunHandle(self, ack.run, ack.run_id, since_step=since if is_new else 0)

    def _by_key(self, key: str) -> RunHandle | None:
        world = self._host.world
        world.check_thread()
        if not key:
            return None
        n = world.by_key.get(key)
        if n is not None and self._host.is_durable:
            return RunHandle(self, n, world.run_id(n))
        if n is None and self._opened.reader is not None:
            row = self._opened.reader.run_by_key(key)
            if row is not None:
                return RunHandle(self, row.ordinal, row.run_id)
        return None

    async def check(self) -> list[tuple[str, str]]:
        """Check every invariant over the whole world; (run id, invariant) for each that is broken.

        A run that breaks one is held paused and logged. Cancelled: the rest was not looked at.
        """
        return await self._host.check_all()

    # --- finding --------------------------------------------------------------------------------

    def _find(self, run_id: str) -> RunHandle | None:
        self._host.world.check_thread()
        if not is_run_id(run_id):
            return None
        n = self._host.world.by_run_id.get(run_id)
        if n is not None:
            return RunHandle(self, n, run_id)
        if self._opened.reader is not None:
            row = self._opened.reader.run_by_id(run_id)
            if row is not None:
                return RunHandle(self, row.ordinal, row.run_id)
        return None

    def run(self, run_id: str) -> RunHandle:
        """The handle of a run, hosted or ended. Raises RunNotFound."""
        handle = self._find(run_id)
        if handle is None:
            raise RunNotFound(f"no run is called {run_id!r}; list them with runs()", run_id=run_id)
        return handle

    def runs(self) -> list[RunHandle]:
        """Handles of all hosted runs, oldest first. Ended ones leave after a while; see
        ``listing``."""
        world = self._host.world
        world.check_thread()
        return [RunHandle(self, n, world.run_id(n)) for n in sorted(world.owners())]

    def listing(self, *, limit: int = 50, after: tuple[int, int] | None = None) -> list[RunRow]:
        """A page of the index of all runs of this home, ended ones too, newest first.

        ``after`` is (updated_ms, ordinal) of the last row of the page before. Empty in memory.
        """
        if self._opened.reader is None:
            return []
        return self._opened.reader.run_rows(limit=limit, after=after)

    def events(self) -> EventStream:
        """Durable events of all runs from now on, numbered without a gap; an async iterator."""
        return EventStream(self._host, self._opened.reader)

    def preview(self) -> Preview:
        """Events as steps make them, before they are durable: number 0, then Confirmed or Withdrawn.

        An async iterator for a host's own screens; nothing that leaves the process may depend on it.
        """
        self._host.world.check_thread()
        return self._host.previews.add()


class RunHandle:
    """One run of an open world."""

    def __init__(self, world: OpenWorld, ordinal: int, run_id: str, *, since_step: int = 0) -> None:
        self._world = world
        self._host = world._host
        self._label = self._host.texts.label
        self._since_step = since_step
        """A step before the run's first one: where its events are looked for."""
        self.ordinal = ordinal
        self.run_id = run_id

    def __repr__(self) -> str:
        return f"<run {self.run_id}>"

    def events(self, *, after: int = 0) -> EventStream:
        """The run's durable events with a number above ``after``, then new ones, until it has
        ended.

        An async iterator. Cancelled: nothing is lost; go on with ``after`` set to the last number
        seen.
        """
        return EventStream(
            self._host,
            self._world._opened.reader,
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
                raise StorageError("the world was closed before the run ended; open it again")

    def row(self) -> RunRow:
        """The run's listing row as of now."""
        return self._host.row_of(self.ordinal, self._world._opened.reader)

    @property
    def status(self) -> Status:
        """The run's status. Raises RunNotFound when it ended and left memory: see ``row``."""
        status = self._host.world.find(self.ordinal, Status)
        if status is None:
            raise RunNotFound(f"{self.run_id} has ended and is not hosted", run_id=self.run_id)
        return status

    def result(self) -> str | None:
        """The final output as text; None when the run has submitted none that is durable."""
        if self._host.is_pending(self.ordinal, Output):
            return None
        output = self._host.part_of(self.ordinal, Output, self._world._opened.reader)
        return None if output is None else self._host.texts.resolve(output.content)

    def ledger(self) -> list[LedgerRow]:
        """One row for each attempt at a provider call. Empty for a world in memory."""
        reader = self._world._opened.reader
        return [] if reader is None else reader.ledger(self.ordinal)

    async def pause(self, *, why: str = "", actor: str = "host") -> None:
        """Hold the run until it is resumed, over restarts too. Raises RunConflict when it has
        ended."""
        who, reason = self._label(actor), self._label(why)
        await self._ask(lambda ticket: Pause(self.ordinal, ticket, who, reason))

    async def resume(self, *, actor: str = "host") -> None:
        """Let a paused run go on, or start one again that ended in error or was cancelled."""
        self._host.page_in(self.ordinal, self._world._opened.reader)
        await self._ask(lambda ticket: Resume(self.ordinal, ticket, self._label(actor)))

    async def cancel(self, *, why: str = "", actor: str = "host") -> None:
        """End the run; nothing of it stays alive outside. Raises RunConflict when it has ended."""
        self._host.page_in(self.ordinal, self._world._opened.reader)
        who, reason = self._label(actor), self._label(why)
        await self._ask(lambda ticket: Cancel(self.ordinal, ticket, who, reason))

    async def message(self, text: str, *, region: str = "", sender: str = "") -> None:
        """Give the run a message; it is delivered once, before its next request."""
        if len(text.encode("utf-8", "replace")) > MESSAGE_BYTES_MAX:
            raise ConfigError(f"a message may have {MESSAGE_BYTES_MAX:,} bytes; put more in a file")
        body = self._host.texts.intern(text)
        who, where = self._label(sender), self._label(region)
        await self._ask(lambda ticket: Post(self.ordinal, body, ticket, who, where))

    async def decide(self, call_id: str, verdict: str, *, actor: str = "host") -> None:
        """Settle a parked tool call: ``again``, ``done`` or ``stop`` for one that may have
        happened, ``allow`` or ``deny`` for one that asks."""
        call, word, who = self._label(call_id), self._label(verdict), self._label(actor)
        await self._ask(lambda ticket: Decide(self.ordinal, call, word, ticket, who))

    async def forget(self) -> None:
        """Drop an ended run from the home (retention). Raises RunConflict while it has not
        ended."""
        self._host.page_in(self.ordinal, self._world._opened.reader)
        await self._ask(lambda ticket: Release(self.ordinal, ticket))

    async def _ask(self, make: Callable[[int], Input]) -> Ack:
        return await self._world._ask(make)


@asynccontextmanager
async def open_world(
    home: str | os.PathLike[str] | None = None,
    *,
    providers: Sequence[Provider] = (),
    tools: Iterable[Tool | Callable[..., object]] = (),
    durability: Durability = "full",
    slots: int | None = None,
    prices: PriceTable | Mapping[str, object] | None = None,
    policy: Callable[[Policy], Policy] | None = None,
    builtins: bool = True,
    on_text: Callable[[str, str], None] | None = None,
    drive: bool = True,
    checks: bool = True,
    clock: Clock | None = None,
    seed: int | None = None,
    vfs: str | None = None,
    grace_ms: int = CLOSE_GRACE_MS,
    secrets: Iterable[str | Secret] = (),
    secret_env: bool = True,
) -> AsyncIterator[OpenWorld]:
    """Open a home and drive its runs inside the block.

    ``home`` is the folder of the world: a path, else ``$LEVIATH_HOME/.leviath``, else
    ``~/.leviath``. ``slots`` bounds concurrent calls of each model. ``prices`` are dollars per
    million tokens by ``provider/model``. ``on_text(run_id, piece)`` hears text as it streams; it
    is not durable. With ``drive=False`` nothing is sent and no run moves on: only requests are
    carried out. The values of ``secrets`` and, with ``secret_env``, of environment variables whose
    name ends like a credential's are hidden in all that is kept: texts, files and logs.

    Raises Locked, NewerFormat, Damaged, DiskFull, StorageError, ConfigError; nothing is held then.
    Leaving the block, also by cancellation, lets outcomes in flight land within ``grace_ms``,
    makes all durable and lets the home go. Closing changes no run's status.
    """
    real = clock or RealClock()
    own = (*(builtin_tools() if builtins else ()), *(as_tool(tool) for tool in tools))
    redactor = Redactor((*secrets, *(credentials(os.environ) if secret_env else ())))
    offering = Offering(providers, own)
    offering.refuse_secrets(redactor)
    table = prices if isinstance(prices, PriceTable) else PriceTable.parse(prices or {})
    configured = Configured(policy_of(policy, slots), offering.offer, table.component())
    opened = await open_home(home, durability=durability, clock=real, seed=seed, vfs=vfs)
    scratch: TemporaryDirectory[str] | None = None
    if opened.home is None:
        # Nothing of the world is written; but tools put drafts and long results somewhere.
        scratch = TemporaryDirectory(prefix="leviath-")
        runs = scratch.name
    else:
        runs = str(opened.home / "runs")
    try:
        opened.know(redactor)
        host = _host(
            opened,
            offering,
            real,
            configured,
            on_text,
            runs,
            drive=drive,
            checks=checks,
            grace_ms=grace_ms,
        )
        caught: BaseException | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_drive, host, nursery.cancel_scope)
            nursery.start_soon(host.check_all)
            try:
                yield OpenWorld(opened, host, offering)
            except BaseException as error:  # noqa: BLE001 - raised below, outside of the nursery
                caught = error
            with trio.CancelScope(shield=True):
                await _close(opened, host)
                while nursery.child_tasks:
                    await trio.lowlevel.checkpoint()
    finally:
        opened.release()
        if scratch is not None:
            scratch.cleanup()
    if host.fatal is not None:
        raise host.fatal from (None if isinstance(caught, trio.Cancelled) else caught)
    if caught is not None:
        raise caught


async def _drive(host: Host, block: trio.CancelScope) -> None:
    """Run the host until it ends by itself; when it fails, the block ends too.

    Shielded: a cancelled block closes the host in order, and what is in flight is no outcome.
    """
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            await host.run(nursery)
            nursery.cancel_scope.cancel()
    if host.fatal is not None:
        block.cancel()


def _host(
    opened: Opened,
    offering: Offering,
    clock: Clock,
    configured: Configured,
    on_text: Callable[[str, str], None] | None,
    runs: str,
    *,
    drive: bool,
    checks: bool,
    grace_ms: int,
) -> Host:
    def spill_dir(run_id: str) -> str:
        return f"{runs}/{run_id}/spill"

    outside = Outside(
        offering,
        opened.texts,
        opened.world.blueprints,
        lambda item: None,
        spill_dir,
        on_text,
    )
    for body in offering.bodies:
        opened.texts.keep(body)
    writer = None if opened.database is None else Writer(trio.lowlevel.current_trio_token())
    mirror = None if opened.database is None else Mirror(NoFiles())
    host = Host(
        opened.stepper,
        outside,
        opened.texts,
        clock,
        world_ms=opened.loaded.world_ms,
        chain=opened.chain,
        writer=writer,
        mirror=mirror,
        drive=drive,
        checks=checks,
        grace_ms=grace_ms,
    )
    if opened.database is None:
        host.feed.keep(EVENT_QUEUE_MAX)
    host.durable_step = opened.world.get(WORLD_OWNER, Counters).step
    # What the load took from the journal is in no cut yet, and the next cut has to hold it.
    for owner, part in opened.loaded.redone:
        host.dirty.parts[owner, part] = opened.world.find(owner, PARTS[part])
    for item in opening_inputs(opened, configured, clock.wall_ms(), drive=drive):
        host.post(item)
    return host


async def _close(opened: Opened, host: Host) -> None:
    """Close in order: grace, the last steps, the last cut, a clean mark."""
    try:
        await host.drain()
        host.close()
        await host.ended.wait()
        await host.check_all()
        if opened.database is not None and host.fatal is None:
            await host.final_cut(opened.database)
    except StorageError as error:
        host.fatal = error
    finally:
        if host.writer is not None:
            host.writer.close()
        if host.mirror is not None:
            host.mirror.close()
