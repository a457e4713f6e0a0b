"""Power cuts and restarts in the middle of a fan-out of ten: the same end, and no call paid twice.

Every model call that was answered and became durable is answered once; those in flight at the cut
are made again, and say so in the ledger.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
import trio
from engine_worlds import in_trio, opened, until
from msgspec.structs import replace
from recording_disks import disk
from tree_worlds import Stops, answers, expected, splitter

from leviath.simulation.disk import RecordingDisk
from leviath.simulation.disk_log import crash_images, materialise

if TYPE_CHECKING:
    from pathlib import Path

    from leviath.components.world_facts import Policy
    from leviath.engine.run_handle import RunHandle
    from leviath.engine.world import OpenWorld

ITEMS = 10
CALLS = 1 + ITEMS + 2
"""The split, a turn of each worker, and two of the merge."""
AGENT = splitter("max_workers = 4")


def slowly(policy: Policy) -> Policy:
    """Few moves a step, so that starting workers takes several."""
    return replace(policy, tree_moves_max=2)


async def begin(world: OpenWorld, workdir: Path) -> RunHandle:
    return await world.spawn(AGENT, task="all", workdir=workdir, key="one")


async def finish(home: Path, workdir: Path) -> None:
    """Open a home, whatever state its fan-out is in, and see it end as it should."""
    async with opened(home, [answers(ITEMS)], policy=slowly) as world:
        run = await begin(world, workdir)
        row = await run.wait()
        assert row.status == "complete" and run.result() == expected(ITEMS)
        children = run.children()
        assert len(children) == ITEMS
        rows = [row for one in (run, *children) for row in one.ledger()]
        answered = [row for row in rows if row.certainty == "provider"]
        assert len(answered) == CALLS, "each call is answered and paid once"
        total = run.total()
        assert (total.runs, total.priced_nano) == (ITEMS + 1, 1_000 * CALLS)
        assert total.unpriced == len(rows) - CALLS, "what was cut off is not forgotten"
        assert await world.check() == []


@pytest.mark.parametrize("most", range(CALLS))
def test_a_restart_before_each_call_of_a_fan_out_ends_alike(tmp_path: Path, most: int) -> None:
    """Before the split, during it, after each worker, during the merge."""
    home = tmp_path / "home"

    @in_trio
    async def begun() -> None:
        provider = Stops(ITEMS, most)
        async with opened(home, [provider], policy=slowly) as world:
            await begin(world, tmp_path)
            await provider.stopped.wait()
            await until(lambda: world._host.is_settled)

    begun()
    in_trio(finish)(home=home, workdir=tmp_path)


def test_a_fan_out_goes_on_from_any_crash_image_to_the_same_end(tmp_path: Path) -> None:
    home = tmp_path / "home"

    async def play(vfs: RecordingDisk) -> None:
        async with opened(
            home, [answers(ITEMS)], durability="full", vfs=vfs.name, policy=slowly, seed=7
        ) as world:
            assert world._host.cutting is not None
            run = await begin(world, tmp_path)
            while run.row().status != "complete":
                # Cuts in between: ended workers leave memory while others are at work.
                world._host.cutting.hasten()
                world._host.wake()
                await world._host.feed.progressed()
            await until(lambda: world._host.is_settled)

    with disk(home) as vfs:
        trio.run(play, vfs)
        log = list(vfs.recording.log)
    images = list(crash_images(log))
    assert len(images) > 60
    for number, image in enumerate(images[:: max(1, len(images) // 60)]):
        copy = tmp_path / f"image{number}"
        materialise(image, copy)
        trio.run(finish, copy, tmp_path)
        shutil.rmtree(copy)
