"""``lev import``: runs of another home become runs here, or nothing of them does."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest
from lev_commands import Place

from leviath.lev.importing import copy_run, run_folders
from leviath.persistence.database import open_database
from leviath.persistence.home import HomeLock
from leviath.persistence.run_meta import RunMeta

if TYPE_CHECKING:
    from pathlib import Path


def other_home(place: Place, *statuses: str) -> Path:
    """Another home with one run folder for each status word, of our agent."""
    agent = place.path / "agent"
    for number, status in enumerate(statuses):
        run_id = f"far-{number}"
        meta = RunMeta.new(
            run_id, "small", str(agent), "Look.", None, str(place.path), 1, now=1_700_000_000
        )
        text = meta.to_json().decode().replace('"starting"', f'"{status}"')
        place.write(f"other/runs/{run_id}/meta.json", text)
    return place.path / "other"


def test_ended_and_unfinished_runs_come_and_unfinished_ones_are_held(place: Place) -> None:
    place.spawn()
    other = other_home(place, "complete", "running")
    answer = place.lev("import", str(other))
    assert answer.code == 0, answer.err
    assert answer.out == "imported far-0 (complete)\nimported far-1 (paused)\n"
    assert "1 run held" in answer.err
    assert len(place.ids()) == 3
    assert place.lev("ps", "--json").document()["not_imported"] == []
    again = place.lev("import", str(other))
    assert again.code == 1
    assert again.err.count("has a run of that id already") == 2
    assert len(place.ids()) == 3
    assert place.lev("resume", "far-1").code == 0
    assert place.lev("host", "--script", str(place.path / "replies.toml")).code == 0
    assert place.lev("result", "far-1").out == "two notes\n"


def test_one_folder_or_a_folder_of_folders_will_do(place: Place) -> None:
    other = other_home(place, "complete", "complete")
    assert run_folders(str(other / "runs/far-1")) == [other / "runs/far-1"]
    assert run_folders(str(other / "runs")) == run_folders(str(other))
    answer = place.lev("import", str(other / "runs/far-1"))
    assert answer.code == 0, answer.err
    assert place.ids() == ["far-1"]


def test_what_cannot_be_read_stays_where_it_is_and_the_rest_comes(place: Place) -> None:
    other = other_home(place, "complete", "hibernating")
    place.write("other/runs/torn/meta.json", "{")
    place.write("other/runs/renamed/meta.json", (other / "runs/far-0/meta.json").read_text())
    (other / "runs/CON").mkdir()
    (other / "runs/link").symlink_to(other / "runs/far-0")
    answer = place.lev("import", str(other))
    assert answer.code == 1
    assert answer.out == "imported far-0 (complete)\n"
    for name in ("far-1", "torn", "renamed", "CON"):
        assert f"{name} was not imported: " in answer.err
    assert sorted(os.listdir(place.home / "runs")) == ["far-0"]
    assert sorted(os.listdir(other / "runs")) == [
        *("CON", "far-0", "far-1", "link", "renamed", "torn")
    ]


def test_nothing_to_import_is_an_error_that_makes_nothing(place: Place) -> None:
    (place.path / "empty").mkdir()
    for given in ("empty", "nowhere", "a\0b"):
        answer = place.lev("import", str(place.path / given))
        assert answer.code == 1
        assert "Error: " in answer.err
        assert not place.home.exists()
    (place.home / "runs/x").mkdir(parents=True)
    assert "is the home to import into" in place.lev("import", str(place.home)).err


@pytest.mark.parametrize("hosted", ["home", "other"])
def test_neither_home_may_have_a_host(place: Place, hosted: str) -> None:
    place.spawn()
    other = other_home(place, "complete")
    with HomeLock.acquire(place.path / hosted):
        answer = place.lev("import", str(other))
    assert answer.code == 1
    assert "is hosted; stop that host" in answer.err
    assert len(place.ids()) == 1


def test_a_copy_is_private_and_follows_no_link(place: Place) -> None:
    other = other_home(place, "complete")
    folder = other / "runs/far-0"
    secret = place.write("secret", "not of the run")
    (folder / "link").symlink_to(secret)
    (folder / "folder-link").symlink_to(place.path)
    os.mkfifo(folder / "pipe")
    place.write("other/runs/far-0/spill/one", "text").chmod(0o644)
    place.home.mkdir()
    copy_run(folder, place.home)
    copied = place.home / "runs/far-0"
    found = {str(path.relative_to(copied)): path for path in copied.rglob("*")}
    assert sorted(found) == ["meta.json", "spill", "spill/one"]
    for path in found.values():
        assert stat.S_IMODE(path.lstat().st_mode) == (0o700 if path.is_dir() else 0o600)
    assert [name for name in os.listdir(place.home) if name.startswith(".")] == []


def test_a_run_whose_removal_is_not_finished_does_not_come_in_its_place(place: Place) -> None:
    place.spawn()
    other = other_home(place, "complete")
    with open_database(place.home / "world.db", level="process") as database:
        database.connection.execute("insert into mirror values (-9, 'far-0', 1, 0, x'', x'')")
    answer = place.lev("import", str(other))
    assert answer.code == 1
    assert "its next opening finishes that: call `lev host` once" in answer.err
    assert place.lev("host").code == 0
    assert place.lev("import", str(other)).code == 0
