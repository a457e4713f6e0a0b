"""Retention: whatever is folded, the rest replays exactly, and no run is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from engine_worlds import Counting, in_trio, opened, priced, three
from saved_worlds import fill

from leviath.components.errors import ConfigError, Damaged
from leviath.persistence.database import open_database
from leviath.persistence.exporting import export_world
from leviath.persistence.history import History
from leviath.persistence.retention import base_step, fold_history
from leviath.persistence.saved import open_saved
from leviath.persistence.sqlite import connect
from leviath.simulation.replay import replay

if TYPE_CHECKING:
    from pathlib import Path


def fold(home: Path, upto: int, *, steps_max: int = 10_000) -> int:
    with open_database(home / "world.db", level="process") as database:
        database.claim(1, "2")
        return fold_history(database, upto, steps_max=steps_max)


@in_trio
async def test_what_is_kept_replays_exactly_wherever_history_begins(tmp_path: Path) -> None:
    home = tmp_path / "home"
    ids = await fill(home, hosts=2, runs=2)
    whole = replay(home)
    with open_saved(home) as saved:
        states = {step: History(saved).at(step) for step in (whole.last - 3, whole.last)}
    for upto in range(3, whole.last, 7):
        assert fold(home, upto) == upto
        report = replay(home)
        report.expect_same()
        assert (report.base, report.last, report.digest) == (upto, whole.last, whole.digest)
    base = replay(home).base
    with open_saved(home) as saved:
        history = History(saved)
        for step, state in states.items():
            if step > base:
                assert history.at(step).owners == state.owners
        with pytest.raises(ConfigError, match="has no step"):
            history.at(base - 1)
        export_world(saved, tmp_path / "out")
    exported = replay(tmp_path / "out")
    assert exported.same
    assert (exported.base, exported.digest) == (base, whole.digest)
    async with opened(home, [Counting(priced("a"), loop=True)]) as world:
        assert {row.run_id for row in world.listing()} == set(ids)
        await (await world.spawn(three(), workdir=tmp_path)).wait()
    assert replay(home).same


@in_trio
async def test_small_slices_come_to_the_same_as_one_large_one(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await fill(home, hosts=1, runs=2)
    last = replay(home).last
    for step in range(2, last + 1):
        assert fold(home, last, steps_max=2) == min(2 * step - 2, last)
        assert replay(home).same
    with open_saved(home) as saved:
        parts = list(saved.base_parts())
    assert fold(home, last) == last
    with open_database(home / "world.db", level="process", read_only=True) as database:
        rows = database.rows(
            "select owner, part, body from state where owner > 0 and body not null"
        )
    assert {part[:2]: part[2] for part in parts if part[0]} == {(o, p): b for o, p, b in rows}


@in_trio
async def test_nothing_after_the_newest_cut_is_folded(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with opened(home, [Counting(priced("a"), loop=True)]) as world:
        await (await world.spawn(three(), workdir=tmp_path)).wait()
        with open_database(home / "world.db", level="process", read_only=True) as database:
            row = database.world()
        assert row is not None
        assert row.cut < row.step
    assert fold(home, 10_000) == replay(home).last


@in_trio
async def test_a_damaged_step_or_base_is_not_folded_and_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await fill(home, hosts=1, runs=1)
    raw = connect(str(home / "world.db"), flags=2, vfs=None)
    ((kept,),) = raw.execute("select changes from journal where step = 4").fetchall()
    raw.execute("update journal set changes = zeroblob(3) where step = 4")
    with pytest.raises(Damaged, match="step 4"):
        fold(home, 6)
    with open_database(home / "world.db", level="process", read_only=True) as database:
        assert base_step(database) == 0
    raw.execute("update journal set changes = ? where step = 4", (kept,))
    assert fold(home, 6) == 6
    raw.execute("update base set body = zeroblob(3) where part = 'Counters'")
    with pytest.raises(Damaged, match="Counters"):
        replay(home)
    raw.execute("delete from base")
    with pytest.raises(Damaged, match="state there is gone"):
        replay(home)
    raw.close()


@in_trio
async def test_a_host_folds_while_it_works_and_when_it_closes(tmp_path: Path) -> None:
    home = tmp_path / "home"
    script = [Counting(priced("a"), loop=True)]
    async with opened(home, script, history=1_000) as world:
        for _ in range(280):
            await (await world.spawn(three(), workdir=tmp_path)).wait()
    report = replay(home)
    report.expect_same()
    assert report.base > 0
    assert 1_000 <= report.steps <= 1_300
    async with opened(home, script, history=1_000) as world:
        assert len(world.listing(limit=1_000)) == 280


@in_trio
async def test_too_short_a_history_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="history"):
        async with opened(tmp_path / "home", [], history=10):
            pass
    assert not (tmp_path / "home").exists()
