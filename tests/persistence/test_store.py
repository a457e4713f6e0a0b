"""The run store: what a summary says, what may follow what, and who may write."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import apsw
import msgspec
import pytest

from leviath.components.errors import (
    RunConflict,
    RunNotFound,
)
from leviath.components.run_outcome import ENDINGS, FINAL, MOVES, OUTCOMES, PAUSES, RUNNING
from leviath.persistence.store import Store
from leviath.persistence.store_rows import RunSummary, StepRecord

if TYPE_CHECKING:
    from collections.abc import Iterator
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


# --- what a summary says --------------------------------------------------------------------------


def test_a_summary_is_written_once_at_the_end_and_is_one_row(store: Store, clock: Time) -> None:
    run = store.start_run("goal", "file")
    store.record(run, step(1, 10, cost_nano_usd=7))
    clock.ms += 1_234
    summary = store.finish_run(run, "success")
    assert summary == RunSummary(
        run, "success", True, 1, 10, 1_234, "2023-11-14T22:13:21.234Z", 7, 0
    )
    clock.ms += 99
    assert store.run_summary(run) == summary
    assert len(dump(store)[2]) == 1
    decoded = msgspec.json.decode(msgspec.json.encode(summary), type=RunSummary)
    assert decoded == summary
    names = list(msgspec.json.decode(msgspec.json.encode(summary)))
    assert names[:7] == [
        *("run_id", "outcome", "success", "steps", "tokens", "duration_ms", "finished_at")
    ]


@pytest.mark.parametrize("outcome", ENDINGS)
def test_success_is_true_for_exactly_one_outcome(store: Store, outcome: str) -> None:
    summary = store.finish_run(store.start_run("g", "f"), outcome)
    assert summary is not None
    assert summary.success is (outcome == "success")


def test_steps_are_the_largest_step_and_a_retry_is_an_attempt(store: Store) -> None:
    run = store.start_run("g", "f")
    for record in (step(1, 3, is_retry=True), step(1, 4), step(2, 5), step(7, 6)):
        store.record(run, record)
    store.record(run, step(8, 1, is_retry=True))
    assert [(row.step, row.attempt) for row in store.steps(run)] == [
        *((1, 1), (1, 2), (2, 1), (7, 1), (8, 1))
    ]
    # Step 8 was tried and not done: whoever goes on does it.
    assert store.next_step(run) == 8
    summary = store.finish_run(run, "success")
    assert summary is not None
    assert (summary.steps, summary.tokens) == (7, 19)


def test_a_run_without_steps_has_a_summary_of_nothing(store: Store) -> None:
    summary = store.finish_run(store.start_run("g", "f"), "finished")
    assert summary is not None
    assert (summary.steps, summary.tokens, summary.duration_ms) == (0, 0, 0)


def test_a_summary_is_that_of_the_run_alone_and_the_tree_has_its_own(
    store: Store, clock: Time
) -> None:
    root = store.start_run("g", "f")
    store.record(root, step(1, 160))
    child = store.start_child_run("part", "f", root)
    grandchild = store.start_child_run("part", "f", child)
    for number in range(1, 6):
        store.record(child, step(number, 100, cost_nano_usd=2))
    clock.ms += 50
    for run in (grandchild, child, root):
        assert store.tree_summary(root).duration_ms is None
        store.finish_run(run, "success" if run != grandchild else "stalled")
    summary = store.run_summary(root)
    assert summary is not None
    assert (summary.steps, summary.tokens) == (1, 160)
    tree = store.tree_summary(root)
    assert (tree.runs, tree.finished, tree.succeeded) == (3, 3, 2)
    assert (tree.steps, tree.tokens, tree.cost_nano_usd, tree.unpriced) == (6, 660, 10, 1)
    assert tree.duration_ms == 50
    assert store.tree_summary(child).tokens == 500


@pytest.mark.parametrize(
    ("moved", "duration"), [(0, 0), (1, 1), (999, 999), (-5_000, 0), (10**12, 10**12)]
)
def test_a_duration_is_whole_milliseconds_and_never_negative(
    store: Store, clock: Time, moved: int, duration: int
) -> None:
    run = store.start_run("g", "f")
    clock.ms += moved
    summary = store.finish_run(run, "success")
    assert summary is not None
    assert summary.duration_ms == duration


def test_a_run_without_a_usable_start_has_no_duration(store: Store) -> None:
    run = store.start_run("g", "f")
    store._db.execute("update store_run set started_ms = null")
    summary = store.finish_run(run, "success")
    assert summary is not None
    assert summary.duration_ms is None


@pytest.mark.parametrize("pause", PAUSES)
def test_there_is_no_summary_before_the_end_nor_while_a_person_is_awaited(
    store: Store, pause: str
) -> None:
    run = store.start_run("g", "f")
    assert store.run_summary(run) is None
    store.record(run, step(1, 5))
    assert store.finish_run(run, pause) is None
    assert store.run_summary(run) is None
    with pytest.raises(RunConflict, match=pause):
        store.record(run, step(2))
    store.resume_run(run)
    store.record(run, step(2, 6))
    summary = store.finish_run(run, "success")
    assert summary is not None
    assert (summary.steps, summary.tokens) == (2, 11)
    assert store.superseded(run) == []


def test_a_resume_clears_the_outcome_and_keeps_the_old_summary_as_superseded(store: Store) -> None:
    run = store.start_run("g", "f")
    first = store.finish_run(run, "stalled")
    store.resume_run(run)
    assert store.run_summary(run) is None
    assert store.run(run).outcome is None
    store.record(run, step(1, 9))
    second = store.finish_run(run, "success")
    assert store.run_summary(run) == second
    assert store.superseded(run) == [first]
    assert store.run(run).attempt == 2


# --- what may follow what -------------------------------------------------------------------------


@pytest.mark.parametrize("was", [RUNNING, *OUTCOMES])
@pytest.mark.parametrize("becomes", OUTCOMES)
def test_outcomes_follow_each_other_by_the_table(store: Store, was: str, becomes: str) -> None:
    run = store.start_run("g", "f")
    if was != RUNNING:
        store.finish_run(run, was)
    before = dump(store)
    if becomes in MOVES[was]:
        store.finish_run(run, becomes)
        assert store.run(run).outcome == becomes
        return
    with pytest.raises(RunConflict, match="may not become"):
        store.finish_run(run, becomes)
    assert dump(store) == before


@pytest.mark.parametrize("was", [RUNNING, *OUTCOMES])
def test_a_resume_follows_what_is_not_final(store: Store, was: str) -> None:
    run = store.start_run("g", "f")
    if was != RUNNING:
        store.finish_run(run, was)
    if was == RUNNING or was in FINAL:
        with pytest.raises(RunConflict, match="cannot be resumed"):
            store.resume_run(run)
    else:
        store.resume_run(run)
        assert store.run(run).outcome is None


SUMMARY_OF_RUNNING = (
    "insert into store_summary (run, attempt, outcome, steps, tokens, finished_ms, cost_nano,"
    " unpriced, agent, model) values (2, 1, 'success', 0, 0, 0, 0, 0, '', '')"
)


@pytest.mark.parametrize(
    "sql",
    [
        "update store_run set outcome = 'almost'",
        "update store_run set outcome = 'stalled' where outcome = 'success'",
        "insert into store_step values (1, 9, 1, 0, '', '', '', '', 0, null, '', 0)",
        "insert into store_step values (77, 1, 1, 0, '', '', '', '', 0, null, '', 0)",
        "insert into store_step values (2, 0, 1, 0, '', '', '', '', 0, null, '', 0)",
        "insert into store_step values (2, 1, 1, 0, '', '', '', '', -1, null, '', 0)",
        "update store_summary set tokens = 1",
        SUMMARY_OF_RUNNING,
        "insert into store_run (goal, file, parent) values ('', '', 77)",
    ],
)
def test_the_database_itself_refuses_what_must_not_be(store: Store, sql: str) -> None:
    ended, running = store.start_run("g", "f"), store.start_run("g", "f")
    store.finish_run(ended, "success")
    assert (ended, running) == (1, 2)
    before = dump(store)
    with pytest.raises(apsw.ConstraintError):
        store._db.execute(sql)
    assert dump(store) == before


# --- who may write --------------------------------------------------------------------------------


def test_the_second_driver_of_a_run_is_refused_by_name_until_the_first_lets_go(
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs.db"
    with Store.open(path) as first, Store.open(path) as second:
        run = first.start_run("g", "f")
        first.record(run, step(1, 1))
        before = dump(first)
        for attempt in (
            lambda: second.record(run, step(2)),
            lambda: second.finish_run(run, "success"),
            lambda: second.take_run(run),
            lambda: second.start_child_run("g", "f", run),
        ):
            with pytest.raises(RunConflict, match=f"driven by process {os.getpid()} on ") as said:
                attempt()
            assert said.value.fields["until_ms"] > 0
        assert dump(first) == before
        first.release_run(run)
        second.record(run, step(2, 2))
        # The first was replaced: nothing more is written from there, children included.
        with pytest.raises(RunConflict):
            first.record(run, step(3))
        summary = second.finish_run(run, "success")
        assert summary is not None
        assert summary.tokens == 3


def test_a_driver_that_was_replaced_writes_nothing_in_the_whole_tree(tmp_path: Path) -> None:
    path, clock = tmp_path / "runs.db", Time()
    with Store.open(path, now_ms=clock) as first, Store.open(path, now_ms=clock) as second:
        root = first.start_run("g", "f")
        child = first.start_child_run("g", "f", root)
        other = first.start_run("g", "f")
        clock.ms += 61_000  # it has not written for longer than it counts
        second.take_run(root)
        before = dump(second)
        for run in (root, child):
            with pytest.raises(RunConflict, match=r"taken over by|driven by"):
                first.record(run, step(1))
            with pytest.raises(RunConflict, match=r"taken over by|driven by"):
                first.finish_run(run, "success")
        assert dump(second) == before
        first.record(other, step(1))
        second.record(child, step(1))


def test_a_process_that_died_holds_no_run(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    code = (
        "import os, sys; from leviath import Store;"
        "store = Store.open(sys.argv[1]); print(store.start_run('g', 'f'), flush=True);"
        "os.kill(os.getpid(), 9)"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    run = int(done.stdout)
    with Store.open(path) as store:
        store.record(run, step(1))
        assert store.finish_run(run, "success") is not None


def test_a_number_that_a_driver_got_is_never_given_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    numbers: list[int] = []
    run = 0
    for _ in range(4):
        with Store.open(path) as store:
            run = run or store.start_run("g", "f")
            store.take_run(run)
            numbers.append(store._driven[run])
    assert numbers == [1, 2, 3, 4]


# --- many together --------------------------------------------------------------------------------


def test_what_was_recorded_before_a_release_in_the_same_batch_counts(store: Store) -> None:
    run = store.start_run("g", "f")
    with store.batch():
        store.record(run, StepRecord(1, "d", "r", tokens=5))
        store.release_run(run)
    assert (store.run(run).steps, store.run(run).tokens) == (1, 5)


def test_a_driver_forgets_what_it_has_finished(store: Store) -> None:
    for _ in range(20):
        store.finish_run(store.start_run("g", "f"), "stalled")
    assert store._driven == {}
    with pytest.raises(RunConflict):
        store.record(1, StepRecord(1, "d", "r"))
    assert store._driven == {}
    store.resume_run(1)
    assert list(store._driven) == [1]


def test_sums_over_many_runs_may_pass_what_an_integer_holds(store: Store) -> None:
    most = 2**63 - 1
    root = store.start_run("g", "f")
    for parent in (root, root, root):
        run = store.start_child_run("g", "f", parent)
        store.record(run, StepRecord(1, "d", "r", tokens=most, cost_nano_usd=most))
        store.finish_run(run, "success")
    tree = store.tree_summary(root)
    assert (tree.tokens, tree.cost_nano_usd) == (3 * most, 3 * most)
    (whole,) = store.stats()
    assert (whole.tokens, whole.cost_nano_usd) == (3 * most, 3 * most)


def test_a_batch_is_all_or_nothing(store: Store) -> None:
    run = store.start_run("g", "f")
    before = dump(store)

    def fail() -> None:
        with store.batch():
            store.record(run, step(1, 5))
            store.start_run("h", "f")
            store.finish_run(run, "success")
            store.record(99, step(1))

    with pytest.raises(RunNotFound):
        fail()
    assert dump(store) == before
    with store.batch(), store.batch():
        store.record(run, step(1, 5))
        other = store.start_run("h", "f")
        store.finish_run(run, "success")
    summary = store.run_summary(run)
    assert summary is not None
    assert summary.tokens == 5
    store.record(other, step(1))


def test_pages_and_filters(store: Store, clock: Time) -> None:
    for number in range(30):
        run = store.start_run(f"Fix issue {number}", "f", agent=f"a{number % 3}", model="m")
        store.record(run, step(1, number, cost_nano_usd=None if number % 5 == 0 else 10))
        clock.ms += 10
        store.finish_run(run, "success" if number % 2 else "stalled")
    seen: list[int] = []
    after = None
    while page := store.summaries(limit=7, after=after):
        seen += [summary.run_id for _, summary in page]
        after = page[-1][0]
    assert seen == list(range(30, 0, -1))
    start = 1_700_000_000_000
    found = store.summaries(since_ms=start + 100, until_ms=start + 200, outcome="success")
    assert [summary.run_id for _, summary in found] == [18, 16, 14, 12, 10]
    found = store.summaries(goal="ISSUE 2")
    assert [summary.run_id for _, summary in found] == [*range(30, 20, -1), 3]
    assert [info.run_id for info in store.runs(limit=2, before=5)] == [4, 3]
    documents = [msgspec.json.decode(line) for line in store.export()]
    assert [document["run_id"] for document in documents] == list(range(1, 31))
    assert documents[3]["goal"] == "Fix issue 3"
    (whole,) = store.stats()
    assert (whole.runs, whole.succeeded, whole.tokens) == (30, 15, sum(range(30)))
    assert (whole.cost_nano_usd, whole.unpriced_runs, whole.duration_ms) == (240, 6, 300)
    groups = store.stats(by="agent")
    assert {group.group: group.runs for group in groups} == {"a0": 10, "a1": 10, "a2": 10}
    assert sum(group.tokens for group in groups) == whole.tokens
    assert [group.group for group in store.stats(by="outcome")] == ["stalled", "success"]
    assert store.stats(since_ms=start + 10**9)[0].runs == 0


def test_an_export_goes_on_while_others_write(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with Store.open(path) as writer, Store.open(path) as reader:
        with writer.batch():
            for _ in range(1_200):
                writer.finish_run(writer.start_run("g", "f"), "success")
        lines = reader.export()
        first = next(lines)
        writer.finish_run(writer.start_run("late", "f"), "success")
        rest = list(lines)
    assert len([first, *rest]) in (1_200, 1_201)
