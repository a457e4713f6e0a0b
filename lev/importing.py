"""``lev import``: take the runs of another home into this one.

Each run folder is read, copied whole under a name that no run can have, moved into ``runs`` in one
step, and taken in by an opening of the home, like any folder that its world does not know. The
other home keeps its own copy; a run that has not ended is held, so that it is not driven twice
unasked.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from leviath.components.errors import (
    ConfigError,
    DocumentError,
    LevError,
    Locked,
    RunConflict,
    RunNotFound,
)
from leviath.engine.run_folders import ImportedRun, Unreadable, blueprint_at, read_run_folder
from leviath.engine.world import open_world
from leviath.lev.control import asked_of
from leviath.lev.homes import home_of
from leviath.lev.text import home_option, note, one_line, plural
from leviath.persistence.files import FILE_MODE, FOLDER_MODE, REAL
from leviath.persistence.home import hosting_state, make_home
from leviath.persistence.listing import Listing

if TYPE_CHECKING:
    import argparse

_COMING: Final = ".coming-"
"""How the name of a folder begins that is being copied; no run id begins with a dot."""
META_NAME: Final = "meta.json"


def import_runs(arguments: argparse.Namespace) -> int:
    """0 when every run folder found has become a run here, else 1."""
    home = home_of(arguments.home)
    folders = run_folders(arguments.folder)
    _check_hosts(home, folders[0].parent.parent)
    make_home(home)
    come: list[str] = []
    for folder in folders:
        try:
            found = _check(home, folder)
            copy_run(folder, home)
        except (LevError, OSError) as error:
            note(f"{folder.name} was not imported: {error}")
        else:
            come.append(folder.name)
            for lost in found.lost:
                note(f"{folder.name} comes without {lost}")
    taken: dict[str, str] = {}

    async def work() -> int:
        async with open_world(home, drive=False) as world:
            why: dict[str, str] = defaultdict(lambda: "it may come with the next host")
            why.update((folder.folder, folder.reason) for folder in world.report.unreadable)
            for run_id in come:
                try:
                    taken[run_id] = world.run(run_id).row().status
                except RunNotFound:
                    note(f"{run_id} was copied to {home / 'runs'}, and not taken in: {why[run_id]}")
        return 0

    if come and asked_of(home, work) is None:
        return 1
    _tell(taken, home_option(arguments.home))
    return 0 if len(taken) == len(folders) else 1


def _tell(taken: dict[str, str], option: str) -> None:
    for run_id, status in taken.items():
        print(f"imported {run_id} ({status})")
    held = sum(status == "paused" for status in taken.values())
    if held:
        note(f"{plural(held, 'run')} held: `lev resume{option} RUN` lets one go on here")


def run_folders(given: str) -> list[Path]:
    """The run folders that ``given`` names: itself, those in it, or those in its ``runs``.

    Raises ConfigError when there is none.
    """
    if "\x00" in given:
        raise ConfigError("the folder to import from contains NUL")
    folder = Path(os.path.realpath(given))
    if (folder / META_NAME).is_file():
        return [folder]
    inner = folder / "runs" if (folder / "runs").is_dir() else folder
    try:
        with os.scandir(inner) as entries:
            found = [
                Path(entry.path)
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
            ]
    except OSError as error:
        raise ConfigError(f"{inner}: cannot be read ({error.strerror})") from error
    if not found:
        raise ConfigError(f"{one_line(given)} holds no run: give a run's folder, or a home")
    return sorted(found)


def _check_hosts(home: Path, other: Path) -> None:
    """Neither home may be hosted: both would drive what is copied."""
    if other == home:
        raise ConfigError(f"{home} is the home to import into; give another one's runs")
    for place in (home, other):
        if hosting_state(place) == "hosted":
            raise Locked(f"{place} is hosted; stop that host and repeat this", home=str(place))


def _check(home: Path, folder: Path) -> ImportedRun:
    """Read a folder; refuse one that holds no readable run, and a run that this home has."""
    found = read_run_folder(
        folder.parent, folder.name, world_ms=0, rebuilding=False, load=blueprint_at, fs=REAL
    )
    if isinstance(found, Unreadable):
        raise DocumentError(found.reason)
    listing = Listing.open(home)
    known = False
    if listing is not None:
        with listing:
            known = listing.run(folder.name) is not None
            if not known and folder.name in listing.forgotten():
                raise RunConflict(
                    f"{home} has removed a run of that id, and its next opening finishes that: "
                    "call `lev host` once, and repeat this",
                    run_id=folder.name,
                )
    if known or os.path.lexists(home / "runs" / folder.name):
        raise RunConflict(f"{home} has a run of that id already", run_id=folder.name)
    return found


def copy_run(folder: Path, home: Path) -> None:
    """Copy a run's folder below ``home/runs``: whole, private, and without any link it may hold."""
    runs = home / "runs"
    runs.mkdir(mode=FOLDER_MODE, exist_ok=True)
    target = home / f"{_COMING}{folder.name}"
    if target.exists():
        shutil.rmtree(target)
    try:
        _copy(folder, target)
        os.rename(target, runs / folder.name)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _copy(folder: Path, target: Path) -> None:
    target.mkdir(mode=FOLDER_MODE)
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _copy(Path(entry.path), target / entry.name)
            elif entry.is_file(follow_symlinks=False) and not entry.name.startswith("."):
                _copy_file(entry.path, target / entry.name)


def _copy_file(source: str, target: Path) -> None:
    taken = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(taken, "rb") as read:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(target, flags, FILE_MODE), "wb") as write:
            shutil.copyfileobj(read, write)
