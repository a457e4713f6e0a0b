"""Putting a host together around an opened home, and taking it apart in order."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import trio

from leviath.components.blueprint import decode_blueprint
from leviath.components.errors import DiskFull, DocumentError, StorageError
from leviath.components.inputs import (
    Configured,
)
from leviath.components.parts import PARTS, WORLD_OWNER
from leviath.components.world_facts import Counters
from leviath.engine.files_mirror import FilesMirror
from leviath.engine.hiding import hidden
from leviath.engine.host import Host
from leviath.engine.limits import EVENT_QUEUE_MAX
from leviath.engine.mirroring import Mirror
from leviath.engine.offering import Offering
from leviath.engine.opening import (
    Opened,
    opening_inputs,
    settle_inputs,
)
from leviath.engine.outside import Outside
from leviath.engine.paging import saved_parts
from leviath.engine.retention import fold_to, keep_folding
from leviath.engine.run_folders import Unreadable
from leviath.engine.writer import Writer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from leviath.engine.callbacks import CallbackSender
    from leviath.engine.clock import Clock
    from leviath.engine.run_folders import ImportedRun
    from leviath.persistence.database import Database
    from leviath.systems.run import Ack


@asynccontextmanager
async def hosted(
    opened: Opened,
    offering: Offering,
    clock: Clock,
    configured: Configured,
    on_text: Callable[[str, str], None] | None,
    callbacks: CallbackSender,
    *,
    drive: bool,
    checks: bool,
    grace_ms: int,
    history: int | None = None,
) -> AsyncIterator[Host]:
    """Drive an opened home inside the block, and let it go whatever happens.

    Raises what the block raises, or why the host had to stop.
    """
    scratch: TemporaryDirectory[str] | None = None
    if opened.home is None:
        # Nothing of the world is written; but tools put drafts and long results somewhere.
        scratch = TemporaryDirectory(prefix="leviath-")
        runs = scratch.name
    else:
        runs = str(opened.home / "runs")
    try:
        host = make_host(
            opened,
            offering,
            clock,
            configured,
            on_text,
            runs,
            drive=drive,
            checks=checks,
            grace_ms=grace_ms,
        )
        host.outside.callbacks = callbacks
        caught: BaseException | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drive_host, host, nursery.cancel_scope)
            nursery.start_soon(host.check_all)
            if history is not None and host.writer is not None:
                nursery.start_soon(keep_folding, host, history)
            try:
                await take_folders(opened, host)
                for item in settle_inputs(opened) if drive else ():
                    host.post(item)
                yield host
            except BaseException as error:  # noqa: BLE001 - raised below, outside of the nursery
                caught = error
            with trio.CancelScope(shield=True):
                await close_host(opened, host, history)
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


async def drive_host(host: Host, block: trio.CancelScope) -> None:
    """Run the host until it ends by itself; when it fails, the block ends too.

    Shielded: a cancelled block closes the host in order, and what is in flight is no outcome.
    """
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            await host.run(nursery)
            nursery.cancel_scope.cancel()
    if host.fatal is not None:
        block.cancel()


def make_host(
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
    """The host of an opened home, with its first inputs posted; it is not driven yet."""

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
    outside.wall_s = lambda: clock.wall_ms() // 1_000
    if opened.reader is not None:
        outside.read_secret = opened.reader.secret
    for body in offering.bodies:
        opened.texts.keep(body)
    writer = None if opened.database is None else Writer(trio.lowlevel.current_trio_token())
    mirror, files = _mirror(opened)
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
    if host.cutting is not None:
        host.cutting.allowed = not opened.loaded.quarantined
        # What the load took from the journal is in no cut yet, and the next one has to hold it.
        for owner, part in opened.loaded.redone:
            host.cutting.dirty.parts[owner, part] = opened.world.find(owner, PARTS[part])
    for item in opening_inputs(opened, configured, clock.wall_ms(), drive=drive):
        host.post(item)
    if mirror is not None and files is not None:
        files.remove(opened.findings.forgotten)
        files.doubt(opened.findings.rewritten)
        for n in opened.findings.rewritten:
            if n in opened.world:
                host.write_files_of(n, None)
            elif opened.reader is not None:
                # Ended runs are read for it, not hosted.
                host.write_files_of(n, saved_parts(opened.reader, n) or None)
    return host


def _mirror(opened: Opened) -> tuple[Mirror | None, FilesMirror | None]:
    if opened.database is None or opened.home is None:
        return None, None
    redactor = opened.texts.redactor
    files = FilesMirror(
        opened.home / "runs",
        opened.database,
        fs=opened.fs,
        redact=redactor.redact,
        sync_ended=opened.database.level == "full",
    )
    return Mirror(files), files


async def take_folders(opened: Opened, host: Host) -> None:
    """Bring in the runs that only their folders know, and wait until they are durable.

    A home that had no world of its own drives what it finds; in another, somebody has to ask.
    """
    findings = opened.findings
    refused: dict[str, str] = {}
    answered = trio.Event()
    waiting = len(findings.imports)

    def answer(run: ImportedRun, ack: Ack) -> None:
        nonlocal waiting
        waiting -= 1
        if ack.code:
            refused[run.run_id] = ack.message
        if not waiting:
            answered.set()

    for found in findings.imports:
        try:
            run = _take_in(found, opened, host.outside)
        except DocumentError as error:
            refused[found.run_id] = error.message
            waiting -= 1
        else:
            host.ask(partial(run.as_input, hold=not opened.is_new), partial(answer, run))
    if waiting:
        await answered.wait()
    findings.unreadable.extend(Unreadable(*why) for why in refused.items())
    findings.imports = [run for run in findings.imports if run.run_id not in refused]


def _take_in(run: ImportedRun, opened: Opened, outside: Outside) -> ImportedRun:
    """Keep what the Import input of a run from a folder refers to, and give the run to take in.

    Raises DocumentError for a run that cannot lose the secret of its callback; nothing is kept.
    """
    for _, secret in run.secrets:
        opened.texts.redactor.learn(secret)
    run = hidden(run, opened.texts.redactor)
    for ref, secret in run.secrets:
        outside.keep_secret(ref, secret.reveal())
    if run.address is not None:
        outside.keep_secret(*run.address)
    for digest, body in run.bodies:
        opened.texts.keep(body)
        if digest == run.blueprint:
            opened.world.blueprints.setdefault(digest, decode_blueprint(body))
    return run


async def close_host(opened: Opened, host: Host, history: int | None) -> None:
    """Close in order: grace, the last steps, the last cut, what history lets go, a clean mark."""
    try:
        await host.drain()
        host.close()
        await host.ended.wait()
        await host.check_all()
        if opened.database is not None and host.fatal is None:
            if host.cutting is not None:
                await host.cutting.write_last(host.durable_step)
            if history is not None:
                with suppress(DiskFull):
                    await fold_to(host, history, closing=True)
            await _say_clean(opened.database, host)
    except StorageError as error:
        host.fatal = error
    finally:
        if host.writer is not None:
            host.writer.close()
        if host.mirror is not None:
            await trio.to_thread.run_sync(host.mirror.close)


async def _say_clean(database: Database, host: Host) -> None:
    """Mark that this host closed in order: once its files are written, and only if all of them are.

    The next opening takes the files of a clean home as they are.
    """
    if host.mirror is not None:
        await trio.to_thread.run_sync(host.mirror.close)
        removed = host.mirror.removed()
        if removed and host.writer is not None:
            with suppress(DiskFull):
                await host.writer.call(partial(database.let_go, removed))
        if host.mirror.problems():
            return
    if host.writer is not None:
        with suppress(DiskFull):
            await host.writer.call(database.mark_clean)
