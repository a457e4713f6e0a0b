"""Replay: a home comes out the same, and one changed rule is found at its step and component."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from engine_worlds import Counting, in_trio, opened, priced, three
from msgspec.structs import replace as changed_to
from saved_worlds import fill

import leviath
from leviath.components.errors import ConfigError, Damaged, ReplayDivergence
from leviath.components.marker import Marker
from leviath.components.output import Flags
from leviath.persistence.history import History
from leviath.persistence.saved import open_saved
from leviath.persistence.sqlite import connect
from leviath.simulation.replay import accept, replay
from leviath.systems.schedule import PER_RUN, RULES

if TYPE_CHECKING:
    from leviath.systems.run import Run, Tick

SRC = str(Path(__file__).parents[2] / "src")
LAST = Marker.resolve_transition


@in_trio
async def test_a_home_that_several_hosts_had_replays_the_same(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await fill(home)
    before = sorted((path, path.stat().st_size) for path in home.rglob("*") if path.is_file())
    report = replay(home)
    report.expect_same()
    assert report.same
    assert report.steps == report.last > 20
    with open_saved(home) as saved:
        assert (saved.base, saved.last) == (0, report.last)
        *_, newest = saved.journal(report.last - 1)
    assert newest.digest.hex() == report.digest
    left = sorted((path, path.stat().st_size) for path in home.rglob("*") if path.is_file())
    assert [one for one in left if not one[0].name.endswith(("-wal", "-shm"))] == before


@in_trio
async def test_a_hosted_home_replays_as_far_as_it_had_come(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with opened(home, [Counting(priced("a"), loop=True)]) as world:
        handle = await world.spawn(three(), workdir=tmp_path)
        await handle.wait()
        report = replay(home)
        assert report.same
        assert report.last > 3


@in_trio
async def test_one_changed_rule_is_found_at_its_step_and_component(tmp_path: Path) -> None:
    home = tmp_path / "home"
    ids = await fill(home, hosts=1, runs=2)
    seen: list[tuple[int, str]] = []

    def counts_a_file(run: Run, tick: Tick) -> None:
        """The rule as it is, but for the third reply that it works on."""
        seen.append((tick.now.world_ms, run.run_id))
        if len(seen) == 3:
            run.put(changed_to(run.get(Flags), modified_count=7))
        PER_RUN[Marker.process_response](run, tick)

    report = replay(home, schedule={**PER_RUN, Marker.process_response: counts_a_file})
    first = report.first
    assert first is not None
    assert first.component == "Flags"
    assert (first.world_ms, first.run_id) == seen[2]
    assert first.run_id in ids
    assert isinstance(first.new, Flags)
    assert first.new.modified_count == 7
    assert first.old is None
    assert not first.rules_changed
    with open_saved(home) as saved:
        causes = History(saved).why(first.run_id)
    assert first.step in [cause.step for cause in causes]
    with pytest.raises(ReplayDivergence, match=rf"step {first.step} .*{first.run_id}, Flags"):
        report.expect_same()


@in_trio
async def test_a_difference_under_other_rules_says_so(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await fill(home, hosts=1, runs=1)
    database = connect(str(home / "world.db"), flags=2, vfs=None)
    database.execute("update opening set rules = '1'")
    database.close()
    report = replay(home, schedule={m: s for m, s in PER_RUN.items() if m is not LAST})
    assert report.first is not None
    assert report.first.rules_changed
    assert (report.first.rules_recorded, report.first.rules_now) == ("1", str(RULES))
    assert "rules changed from 1 to" in str(report.first)
    with pytest.raises(ConfigError, match="export"):
        accept(home)


@in_trio
async def test_a_lost_or_altered_row_is_one_clear_error(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await fill(home, hosts=1, runs=1)
    database = connect(str(home / "world.db"), flags=2, vfs=None)
    rows = database.execute("select step, inputs, changes from journal").fetchall()
    for step, inputs, changes in rows:
        for column, body in (("inputs", inputs), ("changes", changes)):
            altered = bytes(body[:-1]) + bytes([body[-1] ^ 1])
            update = f"update journal set {column} = ? where step = ?"
            database.execute(update, (altered, step))
            with pytest.raises(Damaged, match=f"step {step} "):
                replay(home)
            database.execute(update, (body, step))
    assert replay(home).same
    for step, *_ in rows:
        database.execute("begin")
        database.execute("create temp table kept as select * from journal where step = ?", (step,))
        database.execute("delete from journal where step = ?", (step,))
        database.execute("commit")
        with pytest.raises(Damaged, match=r"is missing|state there is gone"):
            replay(home)
        database.execute("insert into journal select * from kept")
        database.execute("drop table kept")
    database.execute("delete from entry where digest in (select digest from entry)")
    with pytest.raises(Damaged, match=r"blueprint [0-9a-f]{32} is missing"):
        replay(home)
    database.close()


def test_what_is_no_saved_world_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no saved world"):
        replay(tmp_path)
    with pytest.raises(ConfigError, match="no saved world"):
        replay(tmp_path / "nowhere")


@in_trio
async def test_a_step_that_is_not_there_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await fill(home, hosts=1, runs=1)
    last = replay(home).last
    assert replay(home, upto=last - 1).last == last - 1
    with pytest.raises(ConfigError, match=f"has no step {last + 1}"):
        replay(home, upto=last + 1)


def test_two_processes_under_two_hash_seeds_recompute_one_chain(tmp_path: Path) -> None:
    home = tmp_path / "home"
    trio.run(fill, home)
    code = "import sys; from leviath.simulation.replay import replay; r = replay(sys.argv[1]);"
    code += " assert r.same; print(r.digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", code, str(home)],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": SRC},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert digests == {replay(home).digest.encode() + b"\n"}


@in_trio
async def test_history_tells_states_differences_and_causes(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (run_id,) = await fill(home, hosts=1, runs=1)
    with open_saved(home) as saved:
        history = History(saved)
        causes = history.why(run_id)
        assert type(causes[0].inputs[0]).__name__ == "Spawn"
        assert "-> complete" in " ".join(causes[-1].moves)
        born = causes[0].step
        assert 1 not in history.at(born - 1).owners
        assert history.at(born).run_id(1) == run_id
        names = {one.component for one in history.diff(born, saved.last) if one.owner}
        assert {"Status", "Cost", "Stage"} <= names
        assert history.diff(born, born) == []
        with pytest.raises(ConfigError, match="has no step"):
            history.at(saved.last + 1)
        with pytest.raises(leviath.RunNotFound, match="no run is called"):
            history.why("nobody")
