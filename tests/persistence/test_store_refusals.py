"""What the run store refuses, and what it does with files that are none of its."""

from __future__ import annotations

import hashlib
import stat
from typing import TYPE_CHECKING, Any

import apsw
import msgspec
import pytest

from leviath.components.errors import (
    ConfigError,
    Damaged,
    DiskFull,
    LevError,
    NewerFormat,
    RunConflict,
    RunNotFound,
    StorageError,
)
from leviath.persistence import store_schema
from leviath.persistence.store import Store
from leviath.persistence.store_rows import StepRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MOST = 2**63 - 1


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def store(clock: Time) -> Iterator[Store]:
    with Store.memory(now_ms=clock) as opened:
        yield opened


def step(number: int, tokens: int = 0, **more: Any) -> StepRecord:
    return StepRecord(number, "decided", "done", tokens=tokens, **more)


def dump(store: Store) -> list[Any]:
    """Everything that is in a store."""
    tables = ("store_run", "store_step", "store_summary", "store_superseded")
    return [store._db.execute(f"select * from {table}").fetchall() for table in tables]


CALLS: list[Callable[[Store, Any], object]] = [
    lambda store, run: store.record(run, step(1)),
    lambda store, run: store.finish_run(run, "success"),
    lambda store, run: store.finish_run(run, "awaiting_answer"),
    lambda store, run: store.resume_run(run),
    lambda store, run: store.take_run(run),
    lambda store, run: store.release_run(run),
    lambda store, run: store.start_child_run("g", "f", run),
    lambda store, run: store.run_summary(run),
    lambda store, run: store.superseded(run),
    lambda store, run: store.run(run),
    lambda store, run: store.steps(run),
    lambda store, run: store.next_step(run),
    lambda store, run: store.tree_summary(run),
]


@pytest.mark.parametrize("run", [99, 0, -1, MOST, 2**70, "1", None, True, 1.0])
@pytest.mark.parametrize("call", range(len(CALLS)))
def test_an_unknown_run_is_a_typed_error_in_every_call(store: Store, call: int, run: Any) -> None:
    store.start_run("g", "f")
    before = dump(store)
    with pytest.raises(RunNotFound, match="no run"):
        CALLS[call](store, run)
    assert dump(store) == before


BAD_STEPS: list[dict[str, Any]] = [
    {"step": 0},
    {"step": -1},
    {"step": 2**63},
    {"step": True},
    {"tokens": -1},
    {"tokens": 2**63},
    {"tokens": 1.5},
    {"cost_nano_usd": -1},
    {"cost_nano_usd": 2**63},
    {"decision": "a\0b"},
    {"result": "half \ud83d"},
    {"prompt": 7},
    {"tool_call": b"x"},
    {"is_retry": 1},
]


@pytest.mark.parametrize("fields", BAD_STEPS, ids=str)
def test_a_step_that_cannot_be_kept_is_refused_before_anything_is_written(
    store: Store, fields: dict[str, Any]
) -> None:
    run = store.start_run("g", "f")
    before = dump(store)
    good: dict[str, Any] = {"step": 1, "decision": "d", "result": "r"}
    with pytest.raises(ConfigError, match=next(iter(fields))):
        store.record(run, StepRecord(**(good | fields)))
    assert dump(store) == before


def test_steps_come_in_their_order(store: Store) -> None:
    run = store.start_run("g", "f")
    store.record(run, step(5))
    with pytest.raises(RunConflict, match="step 4 of run 1 comes after step 5"):
        store.record(run, step(4))


def test_a_sum_that_overflows_is_refused_and_nothing_is_kept(store: Store) -> None:
    run = store.start_run("g", "f")
    store.record(run, step(1, MOST, cost_nano_usd=MOST))
    before = dump(store)
    for record in (step(2, 1), step(2, 0, cost_nano_usd=1)):
        with pytest.raises(ConfigError, match="past 9223372036854775807"):
            store.record(run, record)
    assert dump(store) == before
    summary = store.finish_run(run, "success")
    assert summary is not None
    assert summary.tokens == MOST


def test_what_has_ended_takes_no_steps_and_does_not_end_twice(store: Store) -> None:
    run = store.start_run("g", "f")
    store.finish_run(run, "cancelled")
    before = dump(store)
    with pytest.raises(RunConflict, match="resume it first"):
        store.record(run, step(1))
    with pytest.raises(RunConflict, match="may not become cancelled"):
        store.finish_run(run, "cancelled")
    assert dump(store) == before


@pytest.mark.parametrize("outcome", ["", "Success", "success ", "running", "done", None, 3])
def test_an_unknown_outcome_is_refused(store: Store, outcome: Any) -> None:
    run = store.start_run("g", "f")
    with pytest.raises(ConfigError, match="write one of"):
        store.finish_run(run, outcome)
    with pytest.raises(ConfigError, match="write one of"):
        store.summaries(outcome=outcome if outcome is not None else "no")
    assert store.run(run).outcome is None


@pytest.mark.parametrize("goal", ["a\0", "\udc00", 7, None])
def test_a_goal_that_no_file_can_hold_is_refused(store: Store, goal: Any) -> None:
    with pytest.raises(ConfigError, match="goal"):
        store.start_run(goal, "f")
    assert store.runs() == []


@pytest.mark.parametrize("limit", [0, -1, 10_001, "5", True])
def test_a_page_has_bounds(store: Store, limit: Any) -> None:
    with pytest.raises(ConfigError, match="limit"):
        store.summaries(limit=limit)


def test_odd_texts_come_back_as_they_were(store: Store) -> None:
    odd = "é\N{BABY CHICK}\x1b[31m'\"; drop table store_run;\n\u202e"
    run = store.start_run(odd, odd)
    store.record(run, StepRecord(1, odd, odd, odd, odd, model=odd))
    (row,) = store.steps(run)
    assert (store.run(run).goal, row.decision, row.tool_call) == (odd, odd, odd)
    assert msgspec.json.decode(next(iter(_exported(store, run))))["goal"] == odd


def _exported(store: Store, run: int) -> Iterator[str]:
    store.finish_run(run, "success")
    return store.export()


# --- files ----------------------------------------------------------------------------------------


def test_a_store_is_a_private_file_that_can_be_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with Store.open(path) as store:
        run = store.start_run("g", "f")
        store.record(run, step(1, 4))
    for _ in range(2):
        with Store.open(path) as store:
            assert store.steps(run)[0].tokens == 4
    mode = stat.S_IMODE(path.stat().st_mode)
    assert mode == 0o600


@pytest.mark.parametrize("body", [b"no database at all" * 99, b"\0" * 4_096, b"SQLite format 3\0"])
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "runs.db"
    path.write_bytes(body)
    with pytest.raises(Damaged, match=r"runs\.db"):
        Store.open(path)
    assert path.read_bytes() == body


def test_the_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    other = apsw.Connection(str(path))
    other.execute("create table mine (x)")
    other.close()
    body = path.read_bytes()
    with pytest.raises(Damaged, match="another program"):
        Store.open(path)
    assert path.read_bytes() == body


def test_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    Store.open(path).close()
    db = apsw.Connection(str(path))
    db.pragma("user_version", store_schema.FORMAT + 1)
    db.close()
    with pytest.raises(NewerFormat, match="use the newer leviath"):
        Store.open(path)


def test_a_newer_format_that_only_the_log_knows_of_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    Store.open(path).close()
    db = apsw.Connection(str(path))
    db.pragma("user_version", store_schema.FORMAT + 1)
    assert path.read_bytes()[63] == store_schema.FORMAT, "the header is behind its log"
    with pytest.raises(NewerFormat, match="use the newer leviath"):
        Store.open(path)
    db.close()


def test_a_released_migration_never_changes() -> None:
    digests = [hashlib.sha256(sql.encode()).hexdigest()[:16] for sql in store_schema.MIGRATIONS]
    assert digests == ["c37773d9e3de05d6"]


def test_what_follows_an_error_that_ended_a_batch_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with Store.open(path) as store:
        run = store.start_run("g", "f")
        before = dump(store)

        def go_on() -> None:
            with store.batch():
                store.record(run, step(1))
                store._db.execute("rollback")  # as SQLite does by itself when the disk is full
                with pytest.raises(StorageError, match="nothing of it is kept"):
                    store.record(run, step(2))

        with pytest.raises(StorageError, match="nothing of it is kept"):
            go_on()
        assert dump(store) == before
        store.record(run, step(1))


def test_a_full_disk_is_said_and_nothing_is_half_written(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with Store.open(path) as store:
        run = store.start_run("g", "f")
        store._db.pragma("max_page_count", store._db.pragma("page_count"))
        before = dump(store)

        def fill() -> None:
            with store.batch():
                for number in range(1, 2_000):
                    store.record(run, StepRecord(number, "d" * 500, "r" * 500))

        with pytest.raises(DiskFull):
            fill()
        assert dump(store) == before
        store._db.pragma("max_page_count", 1_000_000)
        store.record(run, step(1))


def test_a_store_that_is_closed_says_so(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "runs.db")
    store.close()
    store.close()
    for call in (lambda: store.start_run("g", "f"), store.runs):
        with pytest.raises(LevError, match="closed"):
            call()


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nowhere"):
        Store.open(tmp_path / "nowhere" / "runs.db")
