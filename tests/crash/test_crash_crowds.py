"""A crowd of runs that ends at once: their files follow with later commits, and a crash in between
leaves no file that tells of a run what is no longer so."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import trio
from engine_worlds import opened, until
from msgspec.structs import replace
from recording_disks import disk
from tree_worlds import Stops, splitter

from leviath.engine.limits import MIRROR_RUNS_COMMIT
from leviath.simulation.disk import RecordingFileSystem
from leviath.simulation.disk_log import Sync, crash_images, materialise

if TYPE_CHECKING:
    from pathlib import Path

    from leviath.components.world_facts import Policy
    from leviath.engine.world import OpenWorld
    from leviath.simulation.disk import RecordingDisk
    from leviath.simulation.disk_log import Operation

WORKERS = MIRROR_RUNS_COMMIT + 16
AGENT = splitter("max_workers = 0")


def at_once(policy: Policy) -> Policy:
    """All workers follow their parent within one step."""
    return replace(policy, tree_moves_max=2 * WORKERS)


def told(home: Path, run_id: str) -> str:
    """The status that a run's own file tells."""
    text = (home / "runs" / run_id / "meta.json").read_text()
    return str(json.loads(text)["status"])


def written(home: Path, world: OpenWorld) -> bool:
    """Whether every file tells what the world knows."""
    rows = world.runs()
    return all(told(home, handle.run_id) == handle.row().status for handle in rows)


def soon_after(log: list[Operation], begin: int) -> int:
    """The place in the log by which the first commits after ``begin`` are durable."""
    syncs = [at for at, one in enumerate(log) if isinstance(one, Sync) and at >= begin]
    return syncs[3]


async def reopened(home: Path) -> tuple[int, int]:
    """(runs whose files were behind, runs that have ended) of a crash image; checks that the files
    of all of them are whole before long."""
    async with opened(home, [Stops(WORKERS, 0)], drive=False) as world:
        ended = [handle for handle in world.runs() if handle.row().status == "cancelled"]
        await until(lambda: world._host.is_settled and world._host.mirror.is_idle)
        assert written(home, world)
        assert await world.check() == []
        return len(world.report.rewritten), len(ended)


def test_files_of_a_crowd_that_ended_are_made_up_for_after_any_crash(tmp_path: Path) -> None:
    home = tmp_path / "home"
    log: list[Operation] = []
    before: list[int] = []

    async def play(vfs: RecordingDisk) -> None:
        provider = Stops(WORKERS, 1)
        fs = RecordingFileSystem(vfs.recording)
        async with opened(
            home, [provider], durability="full", vfs=vfs.name, fs=fs, policy=at_once, seed=7
        ) as world:
            host = world._host
            run = await world.spawn(AGENT, task="all", workdir=tmp_path)
            await provider.stopped.wait()
            await until(lambda: len(run.children()) == WORKERS)
            await until(lambda: host.is_settled and host.mirror.is_idle)
            assert written(home, world)
            before.append(len(vfs.recording.log))
            await run.cancel()
            await until(lambda: host.is_settled and host.mirror.is_idle)
            assert written(home, world)
            log.extend(vfs.recording.log)

    with disk(home) as vfs:
        trio.run(play, vfs)
    images = crash_images(log, soon_after(log, before[0]))
    late = [image for image in images if image.position >= before[0]]
    found: list[tuple[int, int]] = []
    for number, image in enumerate(late[::3]):
        copy = tmp_path / f"image{number}"
        materialise(image, copy)
        found.append(trio.run(reopened, copy))
        shutil.rmtree(copy)
    assert any(ended > MIRROR_RUNS_COMMIT for _, ended in found), "a crowd ended before the crash"
    assert any(behind > 0 for behind, ended in found if ended), "files were behind"
