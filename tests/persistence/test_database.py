"""What a database accepts, refuses and gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from database_rows import hosted, journal_row, run_row, state_row

from leviath.components.errors import Locked, StorageError, WorldError
from leviath.persistence import schema
from leviath.persistence.database import (
    Batch,
    Database,
    LedgerRow,
    LivenessRow,
    MirrorRow,
    OpeningRow,
    RunRow,
    WorldRow,
    open_database,
)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    database = hosted(tmp_path)
    yield database
    database.close()


def test_a_new_home_has_no_world(tmp_path: Path) -> None:
    with_seed = 2**64 - 1
    db = open_database(tmp_path / "world.db", level="full")
    assert db.world() is None
    assert db.liveness_read() is None
    with pytest.raises(StorageError, match="no world to host"):
        db.claim(0, "r")
    db.initialise("w", with_seed)
    assert db.world() == WorldRow("w", with_seed, schema.FORMAT, 0, 0, 0)
    with pytest.raises(StorageError):
        db.initialise("w2", 1)
    with pytest.raises(WorldError):
        db.initialise("w2", 2**64)
    db.close()


def test_files_are_private(tmp_path: Path, db: Database) -> None:
    assert {p.name for p in tmp_path.iterdir()} == {"world.db", "world.db-wal", "world.db-shm"}
    assert {p.stat().st_mode & 0o777 for p in tmp_path.iterdir()} == {0o600}


def test_writing_needs_a_claim(tmp_path: Path) -> None:
    db = open_database(tmp_path / "world.db", level="process")
    db.initialise("w", 1)
    with pytest.raises(WorldError, match="claim"):
        db.commit(Batch(journal=[journal_row(1)]))
    db.close()


def test_a_commit_gives_everything_back(db: Database) -> None:
    batch = Batch(
        entries=[(b"d1", b"body one"), (b"d2", b"")],
        journal=[journal_row(1), journal_row(2)],
        runs=[run_row(1, key="k", title="Ünïcode", yolo=True, ended_ms=9)],
        ledger=[LedgerRow(1, 1, 2, "turn", "p", "m", 1, 2, 3, 4, None, "interrupted", 2)],
        mirror=[MirrorRow(1, "meta.json", 2, 10, b"", b"after")],
        secrets=[("ref", "value")],
    )
    db.commit(batch)
    assert list(db.journal_after(0)) == batch.journal
    assert list(db.journal_after(1)) == batch.journal[1:]
    assert db.journal_digest_at(2) == batch.journal[1].digest
    assert db.journal_digest_at(3) is None
    assert db.entries([b"d1", b"d2", b"missing"]) == dict(batch.entries)
    assert db.entry(b"missing") is None
    assert db.run_by_id("run-1") == db.run_by_key("k") == db.run_by_ordinal(1) == batch.runs[0]
    assert db.run_by_id("run-1").yolo is True  # type: ignore[union-attr]
    assert db.run_by_key("other") is None
    assert db.ledger(1) == batch.ledger and db.ledger(2) == []
    assert db.mirror_rows() == db.mirror_rows(1) == batch.mirror
    assert db.mirror_rows(2) == []
    assert db.secret("ref") == "value" and db.secret("other") is None
    world = db.world()
    assert world is not None and world.step == 2


def test_a_refused_batch_leaves_nothing(db: Database) -> None:
    db.commit(Batch(journal=[journal_row(1)], runs=[run_row(1)]))
    twice = run_row(2, run_id="run-1")
    with pytest.raises(StorageError):
        db.commit(Batch(entries=[(b"d", b"x")], journal=[journal_row(2)], runs=[twice]))
    assert db.entry(b"d") is None
    assert [row.step for row in db.journal_after(0)] == [1]
    db.commit(Batch(journal=[journal_row(2)]))


@pytest.mark.parametrize("secret", [("ref", "half \ud83d"), ("ref", 2**70)])
def test_a_value_that_sqlite_cannot_hold_leaves_nothing(
    db: Database, secret: tuple[str, str]
) -> None:
    with pytest.raises((UnicodeEncodeError, OverflowError)):
        db.commit(Batch(entries=[(b"d", b"x")], secrets=[secret]))
    assert db.entry(b"d") is None
    db.commit(Batch(journal=[journal_row(1)]))


def test_a_step_comes_after_the_last_one(tmp_path: Path) -> None:
    db = hosted(tmp_path)
    db.commit(Batch(journal=[journal_row(1), journal_row(3)]))
    for step in (1, 2, 3):
        with pytest.raises(WorldError, match="does not come after step 3"):
            db.commit(Batch(journal=[journal_row(step)]))
    db.close()
    db = open_database(tmp_path / "world.db", level="process")
    db.claim(0, "r")
    with pytest.raises(WorldError):
        db.commit(Batch(journal=[journal_row(3)]))
    db.close()


def test_another_host_fences_the_first(tmp_path: Path, db: Database) -> None:
    db.commit(Batch(journal=[journal_row(1)]))
    second = open_database(tmp_path / "world.db", level="process")
    assert second.claim(2_000, "rules-2") == 2
    writes: tuple[Callable[[], object], ...] = (
        lambda: db.commit(Batch(journal=[journal_row(2)])),
        lambda: db.commit(Batch()),
        lambda: db.write_state([state_row(0, "p", 1, b"x")]),
        lambda: db.finish_cut(1, keep_history_from=None),
        lambda: db.liveness(1),
        db.mark_loaded,
        db.mark_clean,
        lambda: db.set_loading(3),
    )
    for write in writes:
        with pytest.raises(Locked, match="another host took over"):
            write()
    assert second.liveness_read() is None
    assert list(second.state_rows()) == []
    assert [row.step for row in second.journal_after(0)] == [1]
    second.close()


def test_openings_tell_who_died_where(tmp_path: Path) -> None:
    db = hosted(tmp_path)
    db.set_loading(5)
    db.close()
    db = open_database(tmp_path / "world.db", level="full")
    db.claim(2_000, "rules-2")
    db.set_loading(5)
    db.set_loading(None)
    db.mark_loaded()
    db.liveness(2_500)
    db.mark_clean()
    assert db.openings() == [
        OpeningRow(1, 1_000, "rules-1", 5, loaded=False, clean=False),
        OpeningRow(2, 2_000, "rules-2", None, loaded=True, clean=True),
    ]
    assert db.liveness_read() == LivenessRow(2, 2_500)
    assert db.connection.pragma("synchronous") == 2
    db.close()


def test_a_cut_becomes_valid_at_once(db: Database) -> None:
    db.commit(Batch(journal=[journal_row(n) for n in range(1, 6)]))
    db.write_state([state_row(1, "b", 2, b"1b"), state_row(0, "a", 2, b"0a")])
    db.write_state([state_row(1, "a", 2, b"1a")])
    assert list(db.state_rows()) == []
    db.finish_cut(2, keep_history_from=None)
    bodies = [(row.owner, row.part, row.body) for row in db.state_rows()]
    assert bodies == [(0, "a", b"0a"), (1, "a", b"1a"), (1, "b", b"1b")]
    db.write_state([state_row(1, "a", 4, b"new"), state_row(1, "b", 4, None)])
    assert [row.body for row in db.owner_state(1)] == [b"1a", b"1b"]
    db.finish_cut(4, keep_history_from=3)
    assert [row.body for row in db.owner_state(1)] == [b"new"]
    assert db.connection.execute("select count(*) from state").fetchone() == (2,)
    assert [row.step for row in db.journal_after(0)] == [3, 4, 5]
    for cut in (2, 4, 6):  # older than the newest cut, the cut itself, not committed yet
        with pytest.raises(WorldError):
            db.write_state([state_row(1, "a", 5, b"5"), state_row(1, "a", cut, b"x")])
    assert [row.body for row in db.owner_state(1)] == [b"new"]
    with pytest.raises(WorldError):
        db.finish_cut(6, keep_history_from=None)
    with pytest.raises(WorldError):
        db.finish_cut(3, keep_history_from=None)


def test_history_newer_than_the_cut_always_stays(db: Database) -> None:
    db.commit(Batch(journal=[journal_row(n) for n in (1, 2, 7, 8)]))
    db.finish_cut(5, keep_history_from=100)
    assert [row.step for row in db.journal_after(0)] == [2, 7, 8]


def test_an_unfinished_cut_is_dropped_by_the_next_host(tmp_path: Path) -> None:
    db = hosted(tmp_path)
    db.commit(Batch(journal=[journal_row(1)]))
    db.write_state([state_row(1, "a", 1, b"half")])
    db.close()
    db = open_database(tmp_path / "world.db", level="process")
    db.claim(0, "r")
    db.commit(Batch(journal=[journal_row(2)]))
    db.finish_cut(2, keep_history_from=None)
    assert list(db.state_rows()) == []
    db.close()


def test_a_deleted_run_keeps_its_state_until_a_cut_passes_it(db: Database) -> None:
    db.commit(Batch(journal=[journal_row(1)], runs=[run_row(1), run_row(2)]))
    db.write_state([state_row(1, "a", 1, b"1"), state_row(2, "a", 1, b"2")])
    db.finish_cut(1, keep_history_from=None)
    db.commit(Batch(journal=[journal_row(2)]))
    db.commit(Batch(journal=[journal_row(3)], gone=[1]))
    assert db.run_by_id("run-1") is None
    db.finish_cut(2, keep_history_from=None)
    assert [row.owner for row in db.state_rows()] == [1, 2]
    db.finish_cut(3, keep_history_from=None)
    assert [row.owner for row in db.state_rows()] == [2]


def test_a_load_can_leave_ended_runs_alone(db: Database) -> None:
    runs = [run_row(1, ended_ms=5, status="complete"), run_row(2)]
    db.commit(Batch(journal=[journal_row(1)], runs=runs))
    db.write_state([state_row(owner, "a", 1, b"x") for owner in (0, 1, 2)])
    db.finish_cut(1, keep_history_from=None)
    assert [row.owner for row in db.state_rows(ended=False)] == [0, 2]
    assert [row.owner for row in db.state_rows()] == [0, 1, 2]


def test_listing_filters_and_pages(db: Database) -> None:
    runs = [
        run_row(n, status=("running", "complete")[n % 2], updated_ms=n // 2, agent_name=f"a{n % 3}")
        for n in range(1, 21)
    ]
    db.commit(Batch(runs=runs))
    expected = sorted(runs, key=lambda r: (-r.updated_ms, -r.ordinal))
    paged: list[RunRow] = []
    after = None
    while page := db.run_rows(after=after, limit=3):
        paged += page
        after = (page[-1].updated_ms, page[-1].ordinal)
    assert paged == expected == db.run_rows()
    assert db.run_rows(statuses=["complete"]) == [r for r in expected if r.status == "complete"]
    assert db.run_rows(agent_name="a1") == [r for r in expected if r.agent_name == "a1"]
    assert db.run_rows(parent_run_id="none") == []
    assert db.run_counts() == {"running": 10, "complete": 10}
    db.commit(Batch(runs=[run_row(1, ended_ms=50, parent_run_id="run-2")]))
    assert [r.ordinal for r in db.run_rows(ended_before_ms=51)] == [1]
    assert [r.ordinal for r in db.run_rows(parent_run_id="run-2")] == [1]


@pytest.mark.parametrize("column", ["updated_ms", "status"])
def test_listing_reads_an_index_and_not_the_table(db: Database, column: str) -> None:
    where = "where status = 'running' " if column == "status" else ""
    plan = db.connection.execute(
        f"explain query plan select * from run {where}order by updated_ms desc, ordinal desc"
    ).fetchall()
    assert "INDEX run_by_" in str(plan)
    assert "TEMP B-TREE" not in str(plan)


def test_a_reader_sees_what_is_committed(tmp_path: Path, db: Database) -> None:
    reader = open_database(tmp_path / "world.db", level="process", read_only=True)
    db.commit(Batch(journal=[journal_row(1)], runs=[run_row(1)]))
    assert [row.run_id for row in reader.run_rows()] == ["run-1"]
    with pytest.raises(StorageError):
        reader.initialise("w", 1)
    reader.close()


def test_reading_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        open_database(tmp_path / "world.db", level="full", read_only=True)
    assert caught.value.fields["missing"] is True
    assert list(tmp_path.iterdir()) == []


# --- files that are not ours, newer, or damaged -------------------------------------------------
