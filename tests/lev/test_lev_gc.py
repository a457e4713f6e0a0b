"""``lev gc``: what may go goes whole, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lev_commands import Place

from leviath.lev.gc import due
from leviath.persistence.database import open_database
from leviath.persistence.listing import EndedRun, Listing


def folders(place: Place) -> list[str]:
    runs = place.home / "runs"
    return sorted(entry.name for entry in runs.iterdir()) if runs.exists() else []


def age_all(place: Place, days: int) -> None:
    """Make every ended run look that old."""
    with open_database(place.home / "world.db", level="process") as database:
        database.connection.execute("update run set ended_ms = ended_ms - ?", (days * 86_400_000,))


def test_it_wants_to_know_what_may_go(place: Place) -> None:
    answer = place.lev("gc")
    assert answer.code == 1
    assert "--older-than" in answer.err
    assert place.lev("gc", "--keep", "1").code == 1
    assert not place.home.exists()


def test_the_newest_are_kept_and_a_dry_run_removes_nothing(place: Place) -> None:
    place.spawn("--count", "3")
    newest, *others = place.ids()
    for run_id in place.ids():
        place.write(f"home/runs/{run_id}/note", "text")
    dry = place.lev("gc", "--keep", "1", "--dry-run")
    assert dry.code == 0
    assert "2 runs would go" in dry.out
    assert len(place.ids()) == 3
    assert place.lev("gc", "--keep", "1").out == "removed 2 runs\n"
    assert len(place.ids()) == 1
    assert folders(place) == place.ids()
    assert [name.name for name in place.home.iterdir() if name.name.startswith(".")] == []
    assert place.lev("host").code == 0
    assert len(place.ids()) == 1
    assert {newest, *others} >= set(place.ids())


def test_only_what_is_old_enough_goes(place: Place) -> None:
    place.spawn()
    (old,) = place.ids()
    age_all(place, 40)
    place.spawn()
    assert place.lev("gc", "--older-than", "41d").out == "nothing to remove\n"
    assert place.lev("gc", "--older-than", "30d").out == "removed 1 run\n"
    assert old not in place.ids()
    assert place.lev("show", old).code == 1
    with open_database(place.home / "world.db", level="process", read_only=True) as database:
        owners = {row.owner for row in database.state_rows()}
    assert owners == {0, 2}


def test_a_run_that_has_not_ended_and_a_folder_nobody_knows_are_never_touched(
    place: Place,
) -> None:
    place.lev("run", str(place.path / "agent"), "--task", "a b")
    (waiting,) = place.ids()
    place.write(f"home/runs/{waiting}/note", "text")
    place.write("home/runs/torn/meta.json", "{")
    assert place.lev("gc", "--keep", "0").out == "nothing to remove\n"
    assert place.lev("gc", "--older-than", "0s").out == "nothing to remove\n"
    assert place.ids() == [waiting]
    assert folders(place) == sorted([waiting, "torn"])


def test_a_parent_stays_while_a_child_has_not_ended(place: Place) -> None:
    place.spawn("--count", "2")
    child, parent = place.ids()
    with open_database(place.home / "world.db", level="process") as database:
        database.connection.execute(
            "update run set parent_run_id = ?, status = 'running' where run_id = ?",
            (parent, child),
        )
    listing = Listing.open(place.home)
    assert listing is not None
    with listing:
        assert listing.ended() == []


@given(
    st.lists(st.integers(0, 100), max_size=20),
    st.none() | st.integers(0, 100),
    st.none() | st.integers(0, 25),
)
def test_what_may_go_is_old_enough_and_not_among_those_to_keep(
    ended: list[int], older_than_s: int | None, keep: int | None
) -> None:
    now_s = 100
    newest_first = [
        EndedRun(str(n), "complete", at * 1_000) for n, at in enumerate(sorted(ended, reverse=True))
    ]
    going = due(newest_first, now_s * 1_000, older_than_s, keep)
    for place, run in enumerate(newest_first):
        kept = keep is not None and place < keep
        young = older_than_s is not None and run.ended_ms > (now_s - older_than_s) * 1_000
        assert (run in going) == (not kept and not young)


@pytest.mark.parametrize("count", [1, 4])
def test_releasing_costs_one_opening_whatever_the_count(place: Place, count: int) -> None:
    place.spawn("--count", str(count))
    with open_database(place.home / "world.db", level="process", read_only=True) as database:
        before = len(database.openings())
    assert place.lev("gc", "--keep", "0").out.startswith(f"removed {count} run")
    with open_database(place.home / "world.db", level="process", read_only=True) as database:
        assert len(database.openings()) == before + 1
        assert database.run_counts() == {}
