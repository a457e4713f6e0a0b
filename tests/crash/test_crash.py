"""Power cuts and failing disks under a whole host: what comes back is a step not forgotten.

Not checked here: killed processes (tests/kill), the files around ``world.db`` (tests/simulation).
"""

from __future__ import annotations

import shutil
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Literal

import pytest
import trio
from engine_worlds import Counting, opened, priced, three, tool_call, until
from msgspec import Struct
from recording_disks import disk

from leviath.components.errors import DiskFull, StorageError
from leviath.components.parts import WORLD_OWNER
from leviath.components.world_facts import Counters
from leviath.engine.clock import ManualClock
from leviath.engine.opening import open_home
from leviath.engine.tools import tool
from leviath.persistence.database import open_database
from leviath.simulation.disk import Fault, RecordingDisk
from leviath.simulation.disk_log import crash_images, materialise

if TYPE_CHECKING:
    from pathlib import Path

    from leviath.engine.world import OpenWorld
    from leviath.simulation.disk_log import Operation

SUBMIT = tool_call("submit_output", content="the result " * 300)
LONG = "text that is kept by its digest " * 100


@tool(effect="idempotent")
def put(text: str) -> str:
    "Put."
    return text + LONG


def script() -> Counting:
    """Three stages: two tools, one, and the output."""
    call = tool_call("put", text="x")
    return Counting(
        priced(LONG, call, call),
        priced("planned"),
        priced("", call),
        priced("worked"),
        priced("", SUBMIT),
        priced("reported"),
    )


class Story(Struct):
    """What was done to the disk, and what had been said by then."""

    log: list[Operation] = []
    said: list[tuple[int, int]] = []
    """(position in the log, number of the newest event that was heard)"""
    digests: dict[int, bytes] = {}
    steps: list[tuple[int, int]] = []
    """(number of the newest event, step), ascending"""

    def acknowledged(self, position: int) -> int:
        """The step that was known to be durable at a position of the log."""
        at = bisect_right(self.said, position, key=lambda row: row[0])
        number = self.said[at - 1][1] if at else 0
        return next((step for newest, step in self.steps if newest >= number > 0), 0)


async def scenario(
    world: OpenWorld, workdir: Path, vfs: RecordingDisk, story: Story, runs: int = 3
) -> None:
    """Runs of three stages, with cuts and checkpoints in between."""
    assert world._opened.database is not None
    world._opened.database.checkpoint_pages = 40
    stream = world.events()

    async def listen() -> None:
        async for event in stream:
            story.said.append((vfs.recording.position, event.number))
            if event.number % 7 == 0:
                assert world._host.cutting is not None
                world._host.cutting.hasten()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        for number in range(runs):
            run = await world.spawn(
                three("put", "submit_output"), task=LONG, key=str(number), workdir=workdir
            )
            await run.wait()
        await until(lambda: world._host.is_settled)
        nursery.cancel_scope.cancel()


def read_back(home: Path, story: Story) -> None:
    """Fill in what the undamaged home says."""
    from leviath.persistence.journal import decode_events

    newest = 0
    with open_database(home / "world.db", level="process", read_only=True) as reader:
        for row in reader.journal_after(0):
            story.digests[row.step] = row.digest
            for event in decode_events(row):
                newest = event.number
            story.steps.append((newest, row.step))


def told(tmp_path: Path, *faults: Fault) -> Story:
    """Play the scenario on a recorded disk."""
    home = tmp_path / "home"
    story = Story()

    async def main(vfs: RecordingDisk) -> None:
        async with opened(
            home, [script()], tools=[put], durability="full", vfs=vfs.name, seed=7
        ) as world:
            vfs.recording.arm(*faults)
            await scenario(world, tmp_path, vfs, story)
        vfs.recording.arm()

    with disk(home) as vfs:
        trio.run(main, vfs)
        story.log = list(vfs.recording.log)
    read_back(home, story)
    return story


async def load(home: Path) -> tuple[int, bytes, dict[int, list[Any]]]:
    """Load a home without a step: its newest step, digest, and all components."""
    found = await open_home(home, durability="process", clock=ManualClock(), seed=None)
    try:
        assert not found.loaded.quarantined
        world = found.world
        parts = {owner: world.parts_of(owner) for owner in (0, *sorted(world.owners()))}
        for owner, row in parts.items():
            assert len({type(part) for part in row}) == len(row), owner
        return found.loaded.step, found.loaded.digest, parts
    finally:
        found.release()


def check_images(story: Story, tmp_path: Path) -> int:
    """Load every image; the count of those that could be hosted."""
    image_home = tmp_path / "image"
    hosted = 0
    for image in crash_images(story.log):
        shutil.rmtree(image_home, ignore_errors=True)
        materialise(image, image_home)
        least = story.acknowledged(image.position)
        step, digest, parts = trio.run(load, image_home)
        assert step >= least, (image.position, step, least)
        if step:
            hosted += 1
            assert digest == story.digests[step], (image.position, step)
        assert trio.run(load, image_home) == (step, digest, parts)
    return hosted


def test_every_crash_image_loads_to_a_step_that_was_not_acknowledged_in_vain(
    tmp_path: Path,
) -> None:
    story = told(tmp_path)
    assert story.acknowledged(len(story.log)) > 20
    assert check_images(story, tmp_path) > 100


def test_a_skipped_sync_is_caught(tmp_path: Path) -> None:
    story = told(tmp_path, Fault("sync", 4, "skip", None))
    with pytest.raises((AssertionError, StorageError)):
        check_images(story, tmp_path)


def test_a_run_goes_on_from_any_crash_image_to_the_same_end(tmp_path: Path) -> None:
    story = told(tmp_path)

    async def finish(home: Path) -> None:
        async with opened(home, [script()], tools=[put]) as world:
            for number in range(3):
                run = await world.spawn(
                    three("put", "submit_output"), task=LONG, key=str(number), workdir=tmp_path
                )
                row = await run.wait()
                assert (row.status, row.cost_priced_nano, row.tool_calls) == ("complete", 6_000, 4)
                assert run.result() == "the result " * 300
                assert [line.certainty for line in run.ledger()].count("provider") == 6

    images = list(crash_images(story.log))
    for number, image in enumerate(images[:: max(1, len(images) // 40)]):
        home = tmp_path / f"image{number}"
        materialise(image, home)
        trio.run(finish, home)
        shutil.rmtree(home)


@pytest.mark.parametrize("kind", ["write", "sync"])
@pytest.mark.parametrize("failure", ["enospc", "eio"])
def test_a_failure_at_any_call_loses_nothing_that_was_said(
    tmp_path: Path, kind: Literal["write", "sync"], failure: Literal["enospc", "eio"]
) -> None:
    nth = 0
    while nth < 1_000:
        nth += 1 if nth < 60 else 3
        home = tmp_path / f"{kind}-{nth}"
        story, clock = Story(), ManualClock()
        with disk(home) as vfs:
            vfs.recording.arm(Fault(kind, nth, failure))
            before = vfs.recording.calls[kind]
            try:
                trio.run(_with_fault, home, tmp_path, vfs, story, clock)
            except DiskFull:
                # Only where nothing can wait: while opening and closing.
                assert failure == "enospc"
            except StorageError as error:
                assert failure == "eio"
                assert error.fields.get("io"), error  # noqa: PT017 - it need not be raised
            done = vfs.recording.calls[kind] - before < nth
        trio.run(_finished, home, tmp_path, story)
        shutil.rmtree(home)
        if done:
            assert nth > 20
            return
    raise AssertionError("the scenario makes more calls than this test fails")


async def _with_fault(
    home: Path, workdir: Path, vfs: RecordingDisk, story: Story, clock: ManualClock
) -> None:
    async with (
        opened(
            home, [script()], tools=[put], durability="full", vfs=vfs.name, clock=clock
        ) as world,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(until, lambda: False, clock)
        await scenario(world, workdir, vfs, story, runs=1)
        nursery.cancel_scope.cancel()


async def _finished(home: Path, workdir: Path, story: Story) -> None:
    """The home opens on a sound disk, has all that was heard, and its runs end as they should."""
    async with opened(home, [script()], tools=[put]) as world:
        heard = {number for _, number in story.said}
        known: set[int] = set()
        for row in world.listing():
            run = world.run(row.run_id)
            ended = await run.wait()
            assert (ended.status, ended.cost_priced_nano) == ("complete", 6_000)
        newest = world._host.world.get(WORLD_OWNER, Counters).event
        async for event in world.events(after=0):
            known.add(event.number)
            if event.number >= newest:
                break
        assert heard <= known


def test_a_log_cut_anywhere_loads_to_a_whole_step_and_takes_new_ones(tmp_path: Path) -> None:
    """Bytes that are gone from the tail lose steps, but never half of one."""
    home = tmp_path / "home"
    story = Story()

    async def main() -> None:
        async with opened(home, [script()], tools=[put]) as world:
            run = await world.spawn(
                three("put", "submit_output"), task=LONG, key="0", workdir=tmp_path
            )
            await run.wait()
            await until(lambda: world._host.is_settled)
            shutil.copytree(home, tmp_path / "copy", ignore=shutil.ignore_patterns("*-shm", "lock"))

    async def finish(cut: Path) -> None:
        async with opened(cut, [script()], tools=[put]) as world:
            run = await world.spawn(
                three("put", "submit_output"), task=LONG, key="0", workdir=tmp_path
            )
            assert (await run.wait()).status == "complete"

    trio.run(main)
    read_back(home, story)
    size = (tmp_path / "copy" / "world.db-wal").stat().st_size
    steps: set[int] = set()
    for number in range(24):
        cut = tmp_path / f"cut-{number}"
        shutil.copytree(tmp_path / "copy", cut)
        with open(cut / "world.db-wal", "r+b") as log:
            log.truncate(max(0, size - number * size // 24 - 7 * number))
        step, digest, parts = trio.run(load, cut)
        assert not step or digest == story.digests[step]
        assert trio.run(load, cut) == (step, digest, parts)
        steps.add(step)
        trio.run(finish, cut)
        shutil.rmtree(cut)
    assert len(steps) > 5
