"""What a database refuses: newer, foreign and damaged files, and failing migrations."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from database_rows import hosted, journal_row, run_row, state_row

from leviath.components.errors import Damaged, Locked, NewerFormat, StorageError
from leviath.persistence import schema, sqlite
from leviath.persistence.connect import keep_copy, move_aside
from leviath.persistence.database import (
    Batch,
    Database,
    open_database,
)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    database = hosted(tmp_path)
    yield database
    database.close()


def everything(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir()}


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.mark.parametrize("with_wal", [False, True])
def test_a_newer_format_is_refused_and_nothing_is_touched(tmp_path: Path, with_wal: bool) -> None:
    db = hosted(tmp_path)
    db.commit(Batch(journal=[journal_row(1)]))
    if with_wal:
        saved = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
        db.close()
        for name, data in saved.items():
            (tmp_path / name).write_bytes(data)
    else:
        db.close()
    overwrite(tmp_path / "world.db", 60, (schema.FORMAT + 1).to_bytes(4, "big"))
    before = everything(tmp_path)
    for read_only in (False, True):
        with pytest.raises(NewerFormat, match="nothing was changed"):
            open_database(tmp_path / "world.db", level="full", read_only=read_only)
    assert everything(tmp_path) == before


@pytest.mark.parametrize(
    "content", [b"x" * 5_000, bytes(8_192), b"SQLite format 3\x00", b"{}"], ids=lambda c: c[:8]
)
def test_what_is_no_database_is_damaged_and_untouched(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "world.db").write_bytes(content)
    before = everything(tmp_path)
    with pytest.raises(Damaged):
        open_database(tmp_path / "world.db", level="full")
    assert everything(tmp_path) == before


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    other = sqlite.connect(str(tmp_path / "world.db"), flags=flags, vfs=None)
    other.execute("create table world (x)")
    other.close()
    before = everything(tmp_path)
    with pytest.raises(Damaged, match="another program"):
        open_database(tmp_path / "world.db", level="full")
    assert everything(tmp_path) == before


def test_an_emptied_database_with_a_log_is_damaged(tmp_path: Path) -> None:
    db = hosted(tmp_path)
    db.commit(Batch(journal=[journal_row(1)]))
    wal = (tmp_path / "world.db-wal").read_bytes()
    db.close()
    (tmp_path / "world.db").write_bytes(b"")
    (tmp_path / "world.db-wal").write_bytes(wal)
    with pytest.raises(Damaged, match="log"):
        open_database(tmp_path / "world.db", level="full")


def read_everything(db: Database) -> None:
    for read in (db.world, db.run_rows, db.mirror_rows, db.openings, db.run_counts):
        read()
    for rows in (db.journal_after(0), db.state_rows(), db.ledger(1)):
        list(rows)
    db.run_by_id("run-1")


def test_damaged_pages_are_reported_wherever_they_are_met(tmp_path: Path) -> None:
    db = hosted(tmp_path)
    db.commit(Batch(journal=[journal_row(n) for n in range(1, 500)], runs=[run_row(1)]))
    db.write_state([state_row(n, "a", 1, b"x" * 500) for n in range(100)])
    db.finish_cut(1, keep_history_from=None)
    db.close()
    path = tmp_path / "world.db"
    whole = path.read_bytes()
    pages = len(whole) // 4096
    met = 0
    for page in range(1, pages):
        path.write_bytes(whole)
        overwrite(path, page * 4096, b"\xff" * 4096)
        try:
            db = open_database(path, level="process", read_only=True)
        except Damaged:
            met += 1
            continue
        try:
            read_everything(db)
        except Damaged:
            met += 1
        finally:
            db.close()
    assert met > pages // 2  # pages of unused indexes are not read


def test_a_missing_table_is_damage(tmp_path: Path) -> None:
    db = hosted(tmp_path)
    db.connection.execute("drop table ledger")
    db.close()
    with pytest.raises(Damaged, match="lacks table ledger"):
        open_database(tmp_path / "world.db", level="process")


def test_altered_bodies_are_named(db: Database) -> None:
    db.commit(Batch(entries=[(b"\x01\x02", b"body")], journal=[journal_row(1)]))
    db.write_state([state_row(3, "clock", 1, b"body")])
    db.finish_cut(1, keep_history_from=None)
    db.connection.execute("update state set body = x'00'")
    db.connection.execute("update entry set body = x'00'")
    with pytest.raises(Damaged, match="owner 3, part clock") as caught:
        list(db.state_rows())
    assert (caught.value.fields["owner"], caught.value.fields["part"]) == (3, "clock")
    with pytest.raises(Damaged, match="0102"):
        db.entry(b"\x01\x02")


def test_a_damaged_database_is_moved_aside_whole_and_never_twice_to_one_name(
    tmp_path: Path,
) -> None:
    path = tmp_path / "world.db"
    for number in (1, 2):
        for end in ("", "-wal", "-shm"):
            Path(f"{path}{end}").write_text(f"{number}{end}")
        assert move_aside(path) == tmp_path / f"world.db.damaged-{number}"
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {
        f"world.db.damaged-{number}{end}": f"{number}{end}"
        for number in (1, 2)
        for end in ("", "-wal", "-shm")
    }
    open_database(path, level="full").close()


def test_a_folder_in_the_databases_place_is_no_damage(tmp_path: Path) -> None:
    (tmp_path / "world.db").mkdir()
    with pytest.raises(StorageError, match="cannot be read") as caught:
        open_database(tmp_path / "world.db", level="full")
    assert not isinstance(caught.value, Damaged)


def test_a_reader_does_not_migrate(tmp_path: Path) -> None:
    db = hosted(tmp_path)
    db.connection.pragma("user_version", 0)
    db.close()
    with pytest.raises(StorageError, match="older format"):
        open_database(tmp_path / "world.db", level="full", read_only=True)


def test_a_busy_database_is_no_other_host(tmp_path: Path, db: Database) -> None:
    db.commit(Batch(journal=[journal_row(1)]))
    with open_database(tmp_path / "world.db", level="process") as other:
        other.connection.execute("begin immediate")
        db.connection.set_busy_timeout(0)
        with pytest.raises(StorageError, match="busy") as caught:
            db.commit(Batch(journal=[journal_row(2)]))
        assert caught.value.fields["busy"] is True
        assert not isinstance(caught.value, Locked)
        other.connection.execute("rollback")
    db.commit(Batch(journal=[journal_row(2)]))


# --- the way to a next format -------------------------------------------------------------------

NEXT = (*schema.MIGRATIONS, "alter table run add column colour text")


def test_a_migration_keeps_a_copy_and_everything_in_it(tmp_path: Path) -> None:
    db = hosted(tmp_path)
    db.commit(Batch(journal=[journal_row(1)], runs=[run_row(1)]))
    path = tmp_path / "world.db"
    schema.migrate(
        db.connection, NEXT, keep_copy=lambda old: keep_copy(db.connection, path, old, None)
    )
    assert schema.format_of(db.connection) == len(NEXT)
    assert db.connection.execute("select run_id, colour from run").fetchall() == [("run-1", None)]
    assert db.connection.pragma("journal_mode") == "wal"
    db.close()
    with pytest.raises(NewerFormat):
        open_database(path, level="full")
    copy = tmp_path / f"world.db.format-{schema.FORMAT}"
    assert copy.stat().st_mode & 0o777 == 0o600
    old = open_database(copy, level="full")
    assert [row.run_id for row in old.run_rows()] == ["run-1"]
    old.close()


def test_a_failing_migration_changes_nothing(tmp_path: Path) -> None:
    db = hosted(tmp_path)
    db.commit(Batch(runs=[run_row(1)]))
    broken = (*NEXT, "insert into nowhere values (1)")
    with pytest.raises(apsw.SQLError):
        schema.migrate(db.connection, broken)
    assert schema.format_of(db.connection) == schema.FORMAT
    db.close()
    again = open_database(tmp_path / "world.db", level="full")
    assert [row.run_id for row in again.run_rows()] == ["run-1"]
    again.close()


def test_listing_needs_neither_msgspec_nor_trio_to_know_the_columns() -> None:
    code = (
        "import sys, leviath.persistence.schema;"
        "sys.exit(any(m in sys.modules for m in ('msgspec', 'trio')))"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environ, check=False).returncode == 0
