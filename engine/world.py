"""What a host developer holds: an open world and its runs.

Every method that changes something returns only after the change is durable. A cancelled call
either did not happen or happened whole; which of the two, ``runs`` tells.
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from leviath.components.errors import (
    ConfigError,
    RunNotFound,
    SpawnError,
)
from leviath.components.inputs import (
    Configured,
)
from leviath.components.parts import WORLD_OWNER
from leviath.components.run_id import is_run_id
from leviath.components.world_facts import Counters, Policy
from leviath.engine import arguments
from leviath.engine.budget_reading import fleet_spending
from leviath.engine.callbacks import HttpCallbacks
from leviath.engine.clock import RealClock
from leviath.engine.finding import AgentFinder
from leviath.engine.forking import ForkRequest, prepare_fork
from leviath.engine.host import Host
from leviath.engine.launching import hosted
from leviath.engine.limits import CLOSE_GRACE_MS
from leviath.engine.listening import EventStream
from leviath.engine.offering import Offering
from leviath.engine.opening import (
    Durability,
    Opened,
    open_home,
    policy_of,
)
from leviath.engine.preview import Preview
from leviath.engine.pricing import PriceTable
from leviath.engine.profiles import check_profiles
from leviath.engine.questions import Question, open_questions
from leviath.engine.redaction import Redactor, credentials
from leviath.engine.run_handle import RunHandle, ask
from leviath.engine.settings import check_settings, price_table
from leviath.engine.spawn_request import check_agents, spawn_request
from leviath.engine.spawning import Agents, prepare_spawn
from leviath.engine.tools import Tool, as_tools, builtin_tools
from leviath.engine.unopened import opened_by_async_with

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from leviath.components.people import Profile
    from leviath.components.secret import Secret
    from leviath.engine.budget_reading import Spending
    from leviath.engine.budgets import Budget
    from leviath.engine.callbacks import CallbackSender
    from leviath.engine.clock import Clock
    from leviath.engine.ports import Provider
    from leviath.engine.reconcile import OpenReport
    from leviath.engine.spawn_request import Agent
    from leviath.persistence.files import FileSystem
    from leviath.persistence.rows import RunRow

ROWS_MAX = 10_000
"""Rows of one page of a listing: some 10 MB."""


class OpenWorld:
    """An open world. Made by ``open_world``; used from the trio task tree that opened it."""

    def __init__(
        self,
        opened: Opened,
        host: Host,
        offering: Offering,
        agents: Sequence[Agent],
        profiles: Mapping[str, Profile],
        told: Configured,
    ) -> None:
        self._opened = opened
        self._host = host
        self._agents = Agents(offering)
        self._profiles = profiles
        self._told = told if host.drive else None
        host.outside.finder = AgentFinder(self._agents, opened.home, agents)

    @property
    def home(self) -> Path | None:
        """The folder that holds ``world.db``; None for a world in memory."""
        return self._opened.home

    @property
    def report(self) -> OpenReport:
        """What opening the home found and did: files written again, runs imported, and so on."""
        return self._opened.findings.report()

    @property
    def file_problems(self) -> dict[str, str]:
        """By run id, why the files of a run are not up to date; writing them is tried again."""
        mirror = self._host.mirror
        return {} if mirror is None else mirror.problems()

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing waits to be taken or to become durable, so that only time or an outcome
        moves this world; for tests that move its clock."""
        return self._host.is_settled or self._host.stalled is not None

    @property
    def storage_stalled(self) -> str | None:
        """Why nothing becomes durable at present, such as a full disk; None while all is well."""
        stalled = self._host.stalled
        return None if stalled is None else str(stalled)

    def _handle(self, ordinal: int, run_id: str, *, since_step: int = 0) -> RunHandle:
        return RunHandle(self._host, self._opened.reader, ordinal, run_id, since_step=since_step)

    # --- starting -------------------------------------------------------------------------------

    async def spawn(
        self,
        agent: Agent,
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
        budget: Budget | None = None,
        tree_budget: Budget | None = None,
    ) -> RunHandle:
        """Start a run and return its handle once the run is durable.

        ``agent`` is a blueprint's folder or file, a Blueprint, or what ``load_blueprint`` gave.
        ``key`` makes a second spawn return the first run, also after a restart. ``yolo`` is True
        for an unattended run, or the name of one of the world's ``profiles`` for one that may do
        no more than that profile says, over restarts too. ``model`` is ``provider/model`` or a
        model of the stage's first provider, without failover. ``budget`` is what the run itself may
        spend, ``tree_budget`` what it and all runs below it may spend together.

        Raises BlueprintError, SpawnError or ConfigError; nothing of the run exists then.
        Cancelled: the run may exist; spawn again with the same ``key`` to find out.
        """
        request = spawn_request(
            agent,
            task=task,
            workdir=workdir,
            key=key,
            model=model,
            yolo=yolo,
            profiles=self._profiles,
            regions=regions,
            metadata=metadata,
            allow=allow,
            output=output,
            callback_url=callback_url,
            callback_secret=callback_secret,
            run_id=run_id,
            budget=budget,
            tree_budget=tree_budget,
        )
        known = self._by_key(key)
        if known is not None:
            return known
        if request.callback_url is not None:
            self._host.outside.callbacks.refuse(request.callback_url)
        newest = self._host.world.get(WORLD_OWNER, Counters).ordinal
        if self._agents.known(agent) is None:
            await trio.to_thread.run_sync(self._agents.check, agent, abandon_on_cancel=True)
        make = prepare_spawn(request, self._agents, self._host.texts.redactor, self._told)
        if run_id and self._find(run_id) is not None and not self._is_own(key, run_id):
            raise SpawnError(
                f"a run called {run_id!r} exists already; leave run_id out", run_id=run_id
            )
        known = self._by_key(key)
        if known is not None:
            return known
        host = self._host
        wall_ms, since = host.clock.wall_ms(), host.durable_step
        ack = await ask(host, lambda ticket: make(ticket, host.outside, host.world, wall_ms))
        is_new = ack.run > newest
        return self._handle(ack.run, ack.run_id, since_step=since if is_new else 0)

    async def fork(
        self,
        run_id: str,
        *,
        at: int,
        workdir: str | os.PathLike[str],
        source: str | os.PathLike[str] | None = None,
        blueprint: Agent | None = None,
        key: str = "",
        new_run_id: str = "",
    ) -> RunHandle:
        """Start a run where another one was after step ``at``; its handle, once it is durable.

        Only what comes after that step is done again: the fork has the conversation, stage and
        counts of the other run, and its own id, clock and costs, which start at nothing. What the
        other run had outside is asked for anew; its answers, callbacks and children stay its own.
        ``workdir`` is a folder that is there: files are not taken back to that step.

        ``source`` is a home or an exported folder; by default this world's home. ``blueprint``
        goes on with another blueprint, which needs a stage of the name that the run was in. ``key``
        makes a second fork return the first.

        Raises RunNotFound, RunConflict for a run that had ended or was not there by then,
        ConfigError for a step that is not kept, SpawnError, BlueprintError, Damaged; nothing of the
        fork exists then. Cancelled: it may exist; fork again with the same ``key`` to find out.
        """
        known = self._by_key(arguments.text("key", key, remedy='pass a str; "" is no key'))
        if known is not None:
            return known
        request = ForkRequest(run_id, at, workdir, source or self.home, blueprint, key, new_run_id)
        newest = self._host.world.get(WORLD_OWNER, Counters).ordinal
        host = self._host
        make = await prepare_fork(request, self._agents, host.texts.redactor, self.home)
        since = host.durable_step
        ack = await ask(host, lambda ticket: make(ticket, host.outside, host.world))
        return self._handle(ack.run, ack.run_id, since_step=since if ack.run > newest else 0)

    def _by_key(self, key: str) -> RunHandle | None:
        world = self._host.world
        world.check_thread()
        if not key:
            return None
        n = world.by_key.get(key)
        if n is not None and self._host.is_durable:
            return self._handle(n, world.run_id(n))
        if n is None and self._opened.reader is not None:
            row = self._opened.reader.run_by_key(key)
            if row is not None:
                return self._handle(row.ordinal, row.run_id)
        return None

    def _is_own(self, key: str, run_id: str) -> bool:
        """The run of that id is the key's own, and what it does is not durable yet: the step that
        takes the spawn finds it."""
        n = self._host.world.by_key.get(key) if key else None
        return n is not None and self._host.world.run_id(n) == run_id

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
            return self._handle(n, run_id)
        if self._opened.reader is not None:
            row = self._opened.reader.run_by_id(run_id)
            if row is not None:
                return self._handle(row.ordinal, row.run_id)
        return None

    def run(self, run_id: str) -> RunHandle:
        """The handle of a run, hosted or ended. Raises RunNotFound."""
        arguments.text("run_id", run_id, remedy="pass the run's id")
        handle = self._find(run_id)
        if handle is None:
            raise RunNotFound(f"no run is called {run_id!r}; list them with runs()", run_id=run_id)
        return handle

    def runs(self) -> list[RunHandle]:
        """Handles of all hosted runs, oldest first. Ended ones leave after a while; see
        ``listing``."""
        world = self._host.world
        world.check_thread()
        return [self._handle(n, world.run_id(n)) for n in sorted(world.owners())]

    def listing(self, *, limit: int = 50, after: tuple[int, int] | None = None) -> list[RunRow]:
        """A page of the index of all runs of this home, ended ones too, newest first.

        ``after`` is (updated_ms, ordinal) of the last row of the page before. Empty in memory.
        """
        arguments.number("limit", limit, 1, ROWS_MAX)
        if after is not None:
            place = arguments.items("after", after, "two numbers")
            if len(place) != 2:
                raise ConfigError(
                    f"after must be (updated_ms, ordinal) of a row, not {arguments.shown(after)}"
                )
            for part in place:
                arguments.number("each number of after", part, 0, arguments.NUMBER_MAX)
        if self._opened.reader is None:
            return []
        return self._opened.reader.run_rows(limit=limit, after=after)

    def fleet_spending(self) -> Spending | None:
        """What is left of ``fleet_budget`` now; None when the driving host was opened without
        one."""
        self._host.world.check_thread()
        told = self._told
        return fleet_spending(self._host.world, None if told is None else told.policy)

    def questions(self) -> list[Question]:
        """Everything that hosted runs wait for people to say, oldest first: questions of models,
        calls to be allowed, calls that may have happened, points of stages. Answer with
        ``RunHandle.answer``."""
        return open_questions(self._host)

    def events(self, *, after: int | None = None) -> EventStream:
        """Durable events of all runs and of the world, numbered without a gap; an async iterator.

        From now on, or from behind event number ``after``: 0 for everything there ever was.
        """
        return EventStream(self._host, self._opened.reader, after=after)

    def preview(self) -> Preview:
        """Events as steps make them, before they are durable: number 0, then Confirmed or
        Withdrawn.

        An async iterator for a host's own screens; nothing that leaves the process may depend on
        it.
        """
        self._host.world.check_thread()
        return self._host.previews.add()


def _redactor(secrets: Iterable[str | Secret], *, environ: bool) -> Redactor:
    """What hides the values that a caller named and, unless unwanted, those of the environment."""
    known = arguments.secrets("secrets", secrets)
    return Redactor((*known, *(credentials(os.environ) if environ else ())))


def _offering(
    providers: Sequence[Provider],
    tools: Iterable[Tool | Callable[..., object]],
    redactor: Redactor,
    *,
    builtins: bool,
) -> Offering:
    own = builtin_tools() if builtins else ()
    return Offering(providers, (*own, *as_tools(tools)), redactor)


def _told(
    policy: Policy, offering: Offering, prices: PriceTable | Mapping[str, object] | None
) -> Configured:
    return Configured(policy, offering.offer, price_table(prices).component())


@opened_by_async_with("leviath.open_world")
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
    agents: Iterable[Agent] = (),
    on_text: Callable[[str, str], None] | None = None,
    drive: bool = True,
    checks: bool = True,
    clock: Clock | None = None,
    seed: int | None = None,
    vfs: str | None = None,
    fs: FileSystem | None = None,
    grace_ms: int = CLOSE_GRACE_MS,
    secrets: Iterable[str | Secret] = (),
    secret_env: bool = True,
    callbacks: CallbackSender | None = None,
    history: int | None = None,
    profiles: Mapping[str, Profile] | None = None,
    fleet_budget: Budget | None = None,
) -> AsyncIterator[OpenWorld]:
    """Open a home and drive its runs inside the block.

    ``home`` is the folder of the world: a path, else ``$LEVIATH_HOME/.leviath``, else
    ``~/.leviath``. ``slots`` bounds concurrent calls of each model. ``prices`` are dollars per
    million tokens by ``provider/model``; ``fleet_budget`` is for all runs together. ``agents`` are
    what others may start by name, beside those in the home's ``agents``. ``on_text(run_id, piece)``
    hears text as it streams; it is not durable. With ``drive=False`` nothing is sent: only requests
    are carried out. The values of ``secrets`` and, with ``secret_env``, of environment variables
    named like a credential are hidden where they are kept. ``callbacks`` tells of endings; by
    default to public addresses. ``history`` is how many steps stay; None keeps all.

    Raises Locked, NewerFormat, Damaged, DiskFull, StorageError, ConfigError; nothing is held then.
    Leaving the block lets outcomes land within ``grace_ms`` and makes all durable. No status moves.
    """
    check_settings(
        home=home,
        clock=clock,
        seed=seed,
        vfs=vfs,
        fs=fs,
        numbers={"grace_ms": grace_ms, "history": history},
        on_text=on_text,
        callbacks=callbacks,
        flags={"builtins": builtins, "drive": drive, "checks": checks, "secret_env": secret_env},
    )
    named, installed, real = check_profiles(profiles), check_agents(agents), clock or RealClock()
    redactor = _redactor(secrets, environ=secret_env)
    offering = _offering(providers, tools, redactor, builtins=builtins)
    told = _told(policy_of(policy, slots, fleet_budget), offering, prices)
    opened = await open_home(home, durability=durability, clock=real, seed=seed, vfs=vfs, fs=fs)
    opened.know(redactor)
    async with hosted(
        opened,
        offering,
        real,
        told,
        on_text,
        callbacks or HttpCallbacks(),
        drive=drive,
        checks=checks,
        grace_ms=grace_ms,
        history=history,
    ) as host:
        yield OpenWorld(opened, host, offering, installed, named, told)
