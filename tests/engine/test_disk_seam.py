"""Store and run files of an open world go through one disk that somebody else may give."""

from __future__ import annotations

import itertools
import shutil
from typing import TYPE_CHECKING

import pytest
import trio
from engine_worlds import in_trio, one, opened, priced, until

from leviath.components.errors import ConfigError
from leviath.simulation.disk import Fault, Recording, RecordingDisk, RecordingFileSystem
from leviath.simulation.disk_log import FolderSync, Link, Rename, Unlink, materialise

if TYPE_CHECKING:
    from pathlib import Path

_numbers = itertools.count()


def told(home: Path, *faults: Fault) -> Recording:
    """One run to its end, then forgotten, over a disk that records."""
    home.mkdir(mode=0o700)
    recording = Recording(home)
    disk = RecordingDisk(f"seam-{next(_numbers)}", recording)
    files = RecordingFileSystem(recording)

    async def main() -> None:
        async with opened(
            home, [priced_script()], durability="full", vfs=disk.name, fs=files
        ) as world:
            recording.arm(*faults)
            for name in ("kept", "forgotten"):
                run = await world.spawn(one(), task="x", workdir=home.parent, run_id=name)
                assert (await run.wait()).status == "complete"
            written = home / "runs" / "forgotten" / "meta.json"
            await until(written.exists)
            await run.forget()
            recording.arm()

    try:
        trio.run(main)
    finally:
        disk.unregister()
    return recording


def priced_script() -> object:
    from leviath.providers.scripted import Scripted

    return Scripted.of(priced("done"), loop=True)


def test_run_files_and_the_store_are_in_one_record(tmp_path: Path) -> None:
    recording = told(tmp_path / "home")
    named = [op for op in recording.log if isinstance(op, Link | Rename | Unlink)]
    assert any(isinstance(op, Link) and op.name == "world.db-wal" for op in named)
    assert Rename("runs/kept/meta.json.tmp", "runs/kept/meta.json") in named
    assert FolderSync("runs/kept") in recording.log
    assert Unlink("runs/forgotten/meta.json") in named
    runs = {
        str(file.relative_to(tmp_path / "home")): file.read_bytes()
        for file in (tmp_path / "home" / "runs").rglob("*")
        if file.is_file()
    }
    assert {f"runs/kept/{name}" for name in ("meta.json", "state.lev")} <= set(runs)
    last = [
        image.files for image in recording.crash_images() if image.position == len(recording.log)
    ]
    assert any(
        {name: data for name, data in files.items() if name.startswith("runs/")} == runs
        for files in last
    ), "one image is the whole disk"


def test_an_image_with_run_files_is_opened_and_its_runs_are_readable(tmp_path: Path) -> None:
    recording = told(tmp_path / "home")

    async def look(home: Path) -> None:
        async with opened(home, [priced_script()]) as world:
            assert not world.report.unreadable
            assert not world.report.set_aside
            for row in world.listing():
                await world.run(row.run_id).wait()

    for number, image in enumerate(list(recording.crash_images())[::25]):
        home = tmp_path / str(number)
        materialise(image, home)
        trio.run(look, home)
        shutil.rmtree(home)


def test_a_file_system_that_is_none_is_refused() -> None:
    async def refused() -> None:
        with pytest.raises(ConfigError, match="fs must be a file system, not 7"):
            async with opened("nowhere", [], fs=7):
                pass

    in_trio(refused)()
