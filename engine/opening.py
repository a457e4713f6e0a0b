"""Opening a home: lock, store, load, and the first inputs of a new epoch."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import secrets
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import trio
from msgspec import Struct, field
from msgspec.structs import replace

from leviath.components.clean import clean_text
from leviath.components.errors import (
    ConfigError,
    Damaged,
    DiskFull,
    LevError,
    NewerFormat,
    StorageError,
)
from leviath.components.inputs import Configured, HostOpened, Input, Settle
from leviath.components.parts import WORLD_OWNER
from leviath.components.world_facts import Counters, Policy, Seed
from leviath.engine import arguments
from leviath.engine.budgets import limits_of
from leviath.engine.clock import perf_ns
from leviath.engine.commits import Chain
from leviath.engine.limits import LOAD_SLICE_MS, SECRETS_LEARNED_MAX, SETTLE_RUNS_MAX
from leviath.engine.loading import Loaded, load_world
from leviath.engine.reconcile import Findings, reconcile, set_aside_database
from leviath.engine.step import Stepper
from leviath.engine.texts import Texts
from leviath.persistence.database import Database, open_database
from leviath.persistence.files import REAL, FileSystem
from leviath.persistence.home import HomeLock, HomeWatch, make_home, resolve_home
from leviath.systems.caches import Caches
from leviath.systems.schedule import RULES
from leviath.systems.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from leviath.engine.budgets import Budget
    from leviath.engine.clock import Clock
    from leviath.engine.redaction import Redactor
    from leviath.persistence.reader import Reader
    from leviath.persistence.rows import OpeningRow

Durability = Literal["full", "process", "memory"]
"""full: fsync before anything leaves. process: survives a killed process, not a power cut. memory:
nothing is written."""


S = TypeVar("S")
SLOTS_MAX = 1_000_000
_DEATHS_MAX = 2
_NOT_ZERO = ("attempts_max", "rounds_max", "tree_moves_max", "budget_output_tokens")
"""Numbers of a Policy that may not be 0. No slots may: nothing is granted until there are some."""
_log = logging.getLogger("leviath.engine")


class Disk(Struct, frozen=True):
    """What a home is written through: the name of a VFS for its store, a FileSystem for its
    files."""

    vfs: str | None
    fs: FileSystem


class Opened(Struct):
    """A home that is held and loaded, before anything drives it."""

    home: Path | None
    lock: HomeLock | None
    database: Database | None
    reader: Reader | None
    world: World
    caches: Caches
    stepper: Stepper
    texts: Texts
    loaded: Loaded
    epoch: int
    is_new: bool
    """The home had no world of its own."""
    clean: bool = True
    """The last host closed in order."""
    chain: Chain | None = None
    findings: Findings = field(default_factory=Findings)
    """What the run folders say; empty for a world in memory."""
    fs: FileSystem = REAL
    """What the run files are written through."""

    def know(self, redactor: Redactor) -> None:
        """Hide the redactor's values from now on, and the secrets of callbacks kept here.

        Lets the home go when these cannot be read.
        """
        try:
            if self.reader is not None:
                for value in self.reader.newest_secrets(SECRETS_LEARNED_MAX):
                    redactor.learn(value)
        except BaseException:
            self.release()
            raise
        self.texts.redactor = redactor

    def release(self) -> None:
        """Close the store and let the home go."""
        try:
            self.close_store()
        finally:
            if self.lock is not None:
                self.lock.release()

    def close_store(self) -> None:
        """Close the store, and keep the home.

        What fails while closing loses nothing: the log keeps what could not be folded in.
        """
        for database in (self.reader, self.database):
            if database is not None:
                with contextlib.suppress(StorageError):
                    database.close()


async def open_home(
    path: str | os.PathLike[str] | None,
    *,
    durability: Durability,
    clock: Clock,
    seed: int | None,
    vfs: str | None = None,
    fs: FileSystem | None = None,
) -> Opened:
    """Take a home and load its world, yielding to the loop between slices.

    ``vfs`` and ``fs`` are what the store and the run files are written through.

    Raises Locked, NewerFormat, Damaged, DiskFull, StorageError; nothing is held then.
    """
    arguments.one_of("durability", durability, ("full", "process", "memory"))
    if durability == "memory":
        return _open_memory(seed)
    disk = Disk(vfs, fs or REAL)
    home = resolve_home(path, os.environ)
    make_home(home)
    lock = HomeLock.acquire(home)
    try:
        moved: tuple[str, ...] = ()
        try:
            opened = await _open_whole(home, lock, durability, clock, seed, disk)
        except Damaged as error:
            _log.error("%s; the store is moved aside and rebuilt from the run files", error)
            moved = set_aside_database(home, fs=disk.fs)
            opened = await _open_whole(home, lock, durability, clock, seed, disk)
    except BaseException:
        lock.release()
        raise
    opened.findings.set_aside.extend(moved)
    return opened


async def _open_whole(
    home: Path,
    lock: HomeLock,
    durability: Literal["full", "process"],
    clock: Clock,
    seed: int | None,
    disk: Disk,
) -> Opened:
    """Load the world and hold the run folders against it. The store is closed after an error.

    Raises Damaged also for rows that are readable and yet not what was ever written: whatever they
    break says so too late to be told from a fault of ours, and the store is kept aside.
    """
    try:
        opened = await _open_held(home, lock, durability, clock, seed, disk)
        try:
            opened.findings = await _found(opened, disk.fs)
            assert opened.reader is not None
            # Learned later; what cannot be read is to be known while the store can be replaced.
            opened.reader.newest_secrets(SECRETS_LEARNED_MAX)
        except BaseException:
            opened.close_store()
            raise
    except (LevError, OSError, MemoryError):
        raise
    except Exception as error:
        _log.exception("the store could not be read")
        raise Damaged(
            f"{home / 'world.db'}: its rows are not what was written ({type(error).__name__}); "
            "restore the home from a copy"
        ) from error
    return opened


async def _found(opened: Opened, fs: FileSystem) -> Findings:
    """Hold the run folders against the store."""
    assert opened.home is not None
    assert opened.database is not None
    loaded = opened.loaded
    found = reconcile(
        opened.home,
        opened.database,
        world_ms=loaded.world_ms,
        quarantined=loaded.quarantined,
        rebuilding=opened.is_new,
        fs=fs,
        hosted=opened.world,
    )
    findings = await sliced(found, Findings())
    if findings.let_go:
        with contextlib.suppress(DiskFull):  # said again by the next opening
            opened.database.let_go(findings.let_go)
    return findings


def _new_world() -> tuple[World, Caches, Stepper]:
    world = World()
    caches = Caches(world)
    return world, caches, Stepper(world, caches)


def _open_memory(seed: int | None) -> Opened:
    world, caches, stepper = _new_world()
    texts = Texts(lambda digest: None)
    value = secrets.randbits(64) if seed is None else seed
    world.load(WORLD_OWNER, [Seed("memory", value)])
    return Opened(None, None, None, None, world, caches, stepper, texts, Loaded(), 1, is_new=True)


async def _open_held(
    home: Path,
    lock: HomeLock,
    durability: Literal["full", "process"],
    clock: Clock,
    seed: int | None,
    disk: Disk,
) -> Opened:
    database = open_database(home / "world.db", level=durability, vfs=disk.vfs)
    reader: Reader | None = None
    try:
        is_new = database.world() is None
        if is_new:
            value = secrets.randbits(64) if seed is None else seed
            database.initialise(secrets.token_hex(8), value)
        suspects, wary = _blame(database)
        openings = database.openings()
        _refuse_newer(home, openings)
        clean = not openings or openings[-1].clean
        epoch = database.claim(clock.wall_ms(), str(RULES))
        lock.write_epoch(epoch)
        reader = open_database(home / "world.db", level=durability, vfs=disk.vfs, read_only=True)
        texts = Texts(reader.entry)
        world, caches, stepper = _new_world()
        mark = database.set_loading if wary else None
        with collector_paused():
            loaded = await sliced(
                load_world(world, caches, database, texts.body, suspects=suspects, mark=mark),
                Loaded(),
            )
        row = database.world()
        assert row is not None
        world.load(WORLD_OWNER, [Seed(row.world_id, row.seed)])
        database.mark_loaded(loaded.quarantined)
    except BaseException:
        if reader is not None:
            reader.close()
        database.close()
        raise
    chain = Chain(database, loaded.digest)
    chain.step = loaded.step
    chain.watch = HomeWatch(home)
    return Opened(
        home,
        lock,
        database,
        reader,
        world,
        caches,
        stepper,
        texts,
        loaded,
        epoch,
        is_new=is_new,
        clean=clean,
        chain=chain,
        fs=disk.fs,
    )


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection while a world is loaded, and none of what was loaded is looked at
    after.

    A full collection over 100,000 runs takes about 100 ms, and they are no garbage.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


def _refuse_newer(home: Path, openings: list[OpeningRow]) -> None:
    """Raise NewerFormat when newer rules drove this world: their state may mean something else."""
    rules = openings[-1].rules if openings else ""
    if rules.isdecimal() and int(rules) > RULES:
        raise NewerFormat(
            f"{home}: was driven by rules {rules}, this leviath has rules {RULES}; use the newer "
            "leviath (nothing was changed)",
            path=str(home),
            rules=rules,
        )


def _blame(database: Database) -> tuple[frozenset[int], bool]:
    """Runs during whose decoding hosts died twice, and whether the newest load did not finish.

    A load that finished clears every run that it did not skip: hosts are also killed from outside.
    """
    died: dict[int, int] = {}
    openings = database.openings()
    for opening in openings:
        if opening.loaded:
            died = {run: times for run, times in died.items() if times >= _DEATHS_MAX}
        elif opening.loading is not None:
            died[opening.loading] = died.get(opening.loading, 0) + 1
    suspects = frozenset(run for run, times in died.items() if times >= _DEATHS_MAX)
    return suspects, bool(openings) and not openings[-1].loaded


async def sliced(work: Iterator[S], value: S) -> S:
    """Run a generator to its end, yielding to the loop whenever a slice of time is used up.

    Returns its last value, or ``value`` when there is none.
    """
    limit_ns = LOAD_SLICE_MS * 1_000_000
    began = perf_ns()
    last = value
    for last in work:  # noqa: B007 - the last one is returned
        if perf_ns() - began > limit_ns:
            await trio.lowlevel.checkpoint()
            began = perf_ns()
    return last


def opening_inputs(
    opened: Opened, configured: Configured, wall_ms: int, *, drive: bool
) -> list[Input]:
    """What the first step of the epoch takes: the host, what was found, and what it offers."""
    loaded, findings = opened.loaded, opened.findings
    away = max(0, wall_ms - loaded.wall_ms) if loaded.wall_ms else 0
    found = (
        len(findings.rewritten_ids),
        len(findings.imports),
        len(findings.set_aside),
        len(findings.unreadable),
        len(findings.quarantined),
        len(findings.rolled_back),
    )
    opening = HostOpened(opened.epoch, RULES, away, opened.clean, drive, found)
    # Held before anything can drive them.
    held = [
        Settle(slice_, _rolled_back_why(opened)) for slice_ in _slices(list(findings.rolled_back))
    ]
    return [opening, *held, configured] if drive else [opening, *held]


def _rolled_back_why(opened: Opened) -> str:
    return (
        f"world.db ends at step {opened.loaded.step} and the run's files are of a later one: the "
        "store was damaged, cut or put back; restore the home from a whole copy, or resume the run "
        "to go on from the older state (its newer files are set aside in its folder)"
    )


def settle_inputs(opened: Opened) -> list[Input]:
    """The runs that the last host drove, in slices."""
    held = opened.findings.rolled_back
    return [Settle(runs) for runs in _slices([n for n in opened.loaded.in_flight if n not in held])]


def _slices(runs: list[int]) -> list[tuple[int, ...]]:
    return [tuple(runs[at : at + SETTLE_RUNS_MAX]) for at in range(0, len(runs), SETTLE_RUNS_MAX)]


def policy_of(
    make: Callable[[Policy], Policy] | None, slots: int | None, budget: Budget | None = None
) -> Policy:
    """The policy that this host records: defaults, the caller's own, the caller's changes."""
    fleet_budget = limits_of("fleet_budget", budget, has_time=False)
    policy = Policy(fleet_budget=fleet_budget)
    if slots is not None:
        policy = replace(policy, slots_default=arguments.number("slots", slots, 1, SLOTS_MAX))
    if make is None:
        return policy
    remedy = "pass a function that takes a Policy and returns one, such as lambda policy: policy"
    arguments.callback("policy", make, remedy)
    made: object = make(policy)
    if not isinstance(made, Policy):
        raise ConfigError(f"policy returned {arguments.shown(made)}, which is no Policy; {remedy}")
    for name in made.__struct_fields__:
        if isinstance(getattr(policy, name), int):
            least = 1 if name in _NOT_ZERO else 0
            arguments.number(f"policy: {name}", getattr(made, name), least, arguments.SPAN_MS_MAX)
    if made.fleet_budget not in (None, fleet_budget):
        raise ConfigError("policy sets fleet_budget; pass fleet_budget=Budget(...) to open_world")
    return replace(made, slots=_slots_of(made.slots), fleet_budget=fleet_budget)


def _slots_of(given: object) -> tuple[tuple[str, str, int], ...]:
    """The slots of single models: no model twice, or the second one would be without effect."""
    shape = "(provider, model, calls)"
    counts: dict[tuple[str, str], int] = {}
    for item in arguments.items("policy: slots", given, shape):
        parts = arguments.items("each of policy: slots", item, "provider, model and calls")
        if len(parts) != 3:
            raise ConfigError(f"policy: slots has {arguments.shown(item)}, which is no {shape}")
        names = [arguments.text("a name in policy: slots", part) for part in parts[:2]]
        if any(not name.strip() or clean_text(name) != name for name in names):
            raise ConfigError(
                f"policy: slots has {arguments.shown(item)}; name the provider and the model"
            )
        provider, model = names
        where = f"policy: slots of {provider}/{model}"
        if (provider, model) in counts:
            raise ConfigError(f"{where} are there twice; keep one of them")
        counts[provider, model] = arguments.number(where, parts[2], 0, SLOTS_MAX)
    return tuple((*names, count) for names, count in counts.items())


def step_of(world: World) -> int:
    """Number of the world's newest step."""
    return world.get(WORLD_OWNER, Counters).step
