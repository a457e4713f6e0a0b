"""A run that was forgotten stays so: its folder goes, whenever the host dies meanwhile."""

from __future__ import annotations

import itertools
import os
import shutil
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
from engine_worlds import in_trio, one, opened, priced, until

from leviath.lev.ps import look
from leviath.persistence.database import open_database
from leviath.providers.scripted import Scripted
from leviath.simulation.disk import Fault, Recording, RecordingDisk, RecordingFileSystem
from leviath.simulation.disk_log import materialise

if TYPE_CHECKING:
    from pathlib import Path

    from leviath.engine.world import OpenWorld

_numbers = itertools.count()
NEVER = Fault("delete", 1, "eio", times=None)
"""Nothing can be removed."""


def script() -> Scripted:
    return Scripted.of(priced("done"), loop=True)


async def ended_run(world: OpenWorld, workdir: Path, name: str = "x") -> None:
    """A run to its end, with all its files."""
    run = await world.spawn(one(), task="t", workdir=workdir, run_id=name)
    await run.wait()
    written = world.home / "runs" / name / "meta.json" if world.home else workdir
    await until(written.exists)


def owed(home: Path) -> list[tuple[int, str]]:
    """Folders that are to go, as the store has them."""
    with open_database(home / "world.db", level="process", read_only=True) as database:
        return database.forgotten()


def test_no_loss_of_power_brings_a_forgotten_run_back(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    recording = Recording(home)
    disk = RecordingDisk(f"forgotten-{next(_numbers)}", recording)
    files = RecordingFileSystem(recording)
    since = 0

    async def forget() -> None:
        nonlocal since
        async with opened(home, [script()], durability="full", vfs=disk.name, fs=files) as world:
            for name in ("kept", "x"):
                await ended_run(world, tmp_path, name)
            since = recording.position
            await world.run("x").forget()
            since_durable.append(recording.position)

    since_durable: list[int] = []
    try:
        trio.run(forget)
    finally:
        disk.unregister()
    assert sorted(os.listdir(home / "runs")) == ["kept"]
    assert owed(home) == [], "a host that closes in order owes nothing"

    async def reopen(copy: Path, *, durable: bool) -> None:
        before = look(copy, limit=10, after=None, ended=True)
        assert (before.unreadable, before.not_imported) == ([], [])
        async with opened(copy, [script()]) as world:
            report = world.report
            assert (report.unreadable, report.imported, report.set_aside) == ((), (), ())
            names = {row.run_id for row in world.listing()}
            assert names == {"kept"} if durable else names >= {"kept"}
        assert set(os.listdir(copy / "runs")) == names
        assert owed(copy) == []

    images = [image for image in recording.crash_images() if image.position >= since]
    assert len(images) > 20
    parts = 0
    for number, image in enumerate(images):
        copy = tmp_path / str(number)
        materialise(image, copy)
        left = sum(name.startswith("runs/x/") for name in image.files)
        parts += 0 < left < 5
        trio.run(partial(reopen, copy, durable=image.position >= since_durable[0]))
        shutil.rmtree(copy)
    assert parts, "some image has a part of the folder"


@in_trio
async def test_a_folder_that_cannot_be_removed_goes_with_the_next_host(tmp_path: Path) -> None:
    home = tmp_path / "home"
    recording = Recording(home)
    files = RecordingFileSystem(recording)
    home.mkdir(mode=0o700)
    async with opened(home, [script()], fs=files) as world:
        await ended_run(world, tmp_path)
        recording.arm(NEVER)
        await world.run("x").forget()
    assert "x" in os.listdir(home / "runs")
    assert [name for _, name in owed(home)] == ["x"]
    async with opened(home, [script()], drive=False) as world:
        assert world.report.imported == ()
        assert world.listing() == []
    assert os.listdir(home / "runs") == []
    assert owed(home) == []


@in_trio
async def test_a_run_that_has_the_id_by_now_keeps_its_folder(tmp_path: Path) -> None:
    home = tmp_path / "home"
    recording = Recording(home)
    home.mkdir(mode=0o700)
    async with opened(home, [script()], fs=RecordingFileSystem(recording)) as world:
        await ended_run(world, tmp_path)
        recording.arm(NEVER)
        await world.run("x").forget()
        await until(lambda: bool(world.file_problems))
        recording.arm()
        await ended_run(world, tmp_path)
    async with opened(home, [script()]) as world:
        assert [row.run_id for row in world.listing()] == ["x"]
    assert (home / "runs/x/meta.json").exists()
    assert owed(home) == []


@pytest.mark.parametrize("kind", ["link", "file"])
@in_trio
async def test_what_is_no_folder_of_ours_is_left_alone(tmp_path: Path, kind: str) -> None:
    home, outside = tmp_path / "home", tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("stays")
    recording = Recording(home)
    home.mkdir(mode=0o700)
    async with opened(home, [script()], fs=RecordingFileSystem(recording)) as world:
        await ended_run(world, tmp_path)
        recording.arm(NEVER)
        await world.run("x").forget()
    shutil.rmtree(home / "runs/x")
    if kind == "link":
        (home / "runs/x").symlink_to(outside)
    else:
        (home / "runs/x").write_text("a file")
    async with opened(home, [script()]):
        pass
    assert (home / "runs/x").is_symlink() or (home / "runs/x").read_text() == "a file"
    assert (outside / "file").read_text() == "stays"
    assert owed(home) == []
