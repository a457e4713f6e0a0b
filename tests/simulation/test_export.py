"""Exported worlds: they replay exactly, diff well, and say in one error what is wrong with them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from engine_worlds import Counting, in_trio, opened, priced, three
from saved_worlds import fill

from leviath.components.errors import (
    ConfigError,
    Damaged,
    LevError,
    NewerFormat,
    ReplayDivergence,
    RunNotFound,
)
from leviath.components.marker import Marker
from leviath.persistence.exporting import export_world
from leviath.persistence.saved import open_saved
from leviath.simulation.replay import accept, replay
from leviath.systems.schedule import PER_RUN, RULES, Schedule

if TYPE_CHECKING:
    from pathlib import Path

    from leviath.persistence.exporting import Exported

FILE = "world.jsonl"


def export(home: Path, folder: Path, run: str | None = None) -> Exported:
    with open_saved(home) as saved:
        return export_world(saved, folder, run=run)


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@in_trio
async def test_an_export_replays_exactly_and_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    home = tmp_path / "home"
    ids = await fill(home)
    done = export(home, tmp_path / "out")
    assert list(done.runs) == ids
    assert done.texts > 1
    report = replay(tmp_path / "out")
    report.expect_same()
    assert report.digest == replay(home).digest
    export(home, tmp_path / "again")
    export(tmp_path / "out", tmp_path / "third")
    assert content(tmp_path / "out") == content(tmp_path / "again") == content(tmp_path / "third")
    for path in (tmp_path / "out").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0


@in_trio
async def test_an_export_of_one_run_ends_with_it_and_replays(tmp_path: Path) -> None:
    home = tmp_path / "home"
    ids = await fill(home, hosts=2, runs=1)
    done = export(home, tmp_path / "one", ids[0])
    assert done.runs == (ids[0],)
    whole = replay(home)
    one = replay(tmp_path / "one")
    assert one.same
    assert 0 < one.last < whole.last
    assert replay(home, upto=one.last).digest == one.digest
    with pytest.raises(RunNotFound):
        export(home, tmp_path / "none", "nobody")
    assert not (tmp_path / "none").exists()


@in_trio
async def test_texts_of_other_runs_stay_behind(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with opened(home, [Counting(priced("a"), loop=True)]) as world:
        first = await world.spawn(three(), task="mine " * 500, workdir=tmp_path)
        other = await world.spawn(three(), task="theirs " * 500, workdir=tmp_path)
        await first.wait()
        await other.wait()
    export(home, tmp_path / "one", first.run_id)
    kept = b"".join(content(tmp_path / "one").values())
    assert b"mine mine" in kept
    assert b"theirs theirs theirs theirs" * 20 not in kept
    assert replay(tmp_path / "one").same


@in_trio
async def test_a_hosted_home_is_exported_as_far_as_it_had_come(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with opened(home, [Counting(priced("a"), loop=True)]) as world:
        await (await world.spawn(three(), workdir=tmp_path)).wait()
        export(home, tmp_path / "out")
        await (await world.spawn(three(), workdir=tmp_path)).wait()
    assert replay(tmp_path / "out").same
    assert replay(tmp_path / "out").last < replay(home).last


@in_trio
async def test_a_folder_cut_at_every_byte_is_one_clear_error(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "out"
    await fill(home, hosts=1, runs=1)
    export(home, folder)
    whole = (folder / FILE).read_bytes()
    head, tail = whole.index(b"\n"), len(whole) - len(whole.splitlines()[-1])
    places = {*range(head + 2), *range(tail - 3, len(whole)), *range(0, len(whole), 997)}
    for place in sorted(places):
        (folder / FILE).write_bytes(whole[:place])
        with pytest.raises(Damaged) as caught:
            replay(folder)
        assert str(folder) in str(caught.value)
        assert (folder / FILE).read_bytes() == whole[:place]


@in_trio
async def test_one_altered_byte_never_passes(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "out"
    await fill(home, hosts=1, runs=1)
    export(home, folder)
    whole = (folder / FILE).read_bytes()
    events = whole.count(b'"events"')
    assert events
    for place in range(0, len(whole), 211):
        altered = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        (folder / FILE).write_bytes(altered)
        with pytest.raises(LevError):
            # What is no part of the chain, an event, is no damage but a difference.
            replay(folder).expect_same()


@in_trio
async def test_missing_and_altered_texts_are_named(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "out"
    await fill(home, hosts=1, runs=1)
    export(home, folder)
    for text in sorted((folder / "texts").iterdir()):
        body = text.read_bytes()
        text.write_bytes(body + b"x")
        with pytest.raises(Damaged, match=text.name):
            replay(folder)
        text.unlink()
        with pytest.raises(Damaged, match=text.name):
            replay(folder)
        text.write_bytes(body)
    assert replay(folder).same


def change_head(folder: Path, **values: object) -> None:
    from leviath.persistence import saved_folder

    lines = (folder / FILE).read_bytes().split(b"\n", 1)
    head = json.loads(lines[0]) | values
    head["check"] = saved_folder._check(head)  # as a newer release has it
    (folder / FILE).write_bytes(json.dumps(head).encode() + b"\n" + lines[1])


@in_trio
async def test_what_a_newer_release_wrote_is_refused_with_advice(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "out"
    await fill(home, hosts=1, runs=1)
    export(home, folder)
    before = content(folder)
    change_head(folder, format=2)
    with pytest.raises(NewerFormat, match=r"format 2.*use the newer leviath"):
        replay(folder)
    (folder / FILE).write_bytes(before[FILE])
    change_head(folder, rules={"1": str(RULES + 1)})
    with pytest.raises(NewerFormat, match=r"rules.*use the newer leviath"):
        accept(folder)
    (folder / FILE).write_bytes(before[FILE])
    assert content(folder) == before
    assert replay(folder).same


@in_trio
async def test_accept_makes_what_the_rules_do_now_the_expectation(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "out"
    await fill(home, hosts=1, runs=1)
    export(home, folder)
    before = content(folder)
    assert accept(folder).same
    assert content(folder) == before
    # An expectation of other rules: the same inputs, and changes that nobody makes now.
    from leviath.persistence.saved_folder import SavedFolder, write_world
    from leviath.simulation.replay import Replayer

    with open_saved(folder) as saved:
        assert isinstance(saved, SavedFolder)
        without: Schedule = {m: s for m, s in PER_RUN.items() if m is not Marker.resolve_transition}
        rows = list(Replayer(saved, schedule=without).rows())
        write_world(folder, saved.header_under("1", rows[-1]), saved.base_parts(), rows)
    report = replay(folder)
    assert report.first is not None
    assert report.first.rules_changed
    with pytest.raises(ReplayDivergence, match="rules changed from 1"):
        report.expect_same()
    assert accept(folder) == report
    assert replay(folder).same
    assert content(folder) == before


@in_trio
async def test_only_a_folder_of_exports_is_written_over(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "out"
    ids = await fill(home, hosts=2, runs=1)
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="something else"):
        export(home, folder)
    assert content(folder) == {"notes.txt": b"mine"}
    (folder / "notes.txt").unlink()
    export(home, folder)
    export(home, folder, ids[0])
    export(home, tmp_path / "fresh", ids[0])
    assert content(folder) == content(tmp_path / "fresh")


@in_trio
async def test_the_value_of_a_secret_keeps_a_history_from_being_exported(tmp_path: Path) -> None:
    from leviath.persistence.sqlite import connect

    home = tmp_path / "home"
    await fill(home, hosts=1, runs=1)
    database = connect(str(home / "world.db"), flags=2, vfs=None)
    database.execute("insert into secret values ('r', 'ttttttttttt')")
    database.close()
    with pytest.raises(ConfigError, match="secret"):
        export(home, tmp_path / "out")
    assert not (tmp_path / "out").exists()
