"""The store against a plain dict, under any history, with a crash between any two statements."""

from __future__ import annotations

import itertools
import multiprocessing
from bisect import bisect_right
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from leviath.components.errors import ConfigError, RunConflict
from leviath.components.run_outcome import ENDINGS, MOVES, OUTCOMES, RUNNING
from leviath.persistence.store import Store
from leviath.persistence.store_rows import INT64_MAX, StepRecord
from leviath.simulation.disk import Recording, RecordingDisk
from leviath.simulation.disk_log import materialise

Model = dict[int, dict[str, Any]]
TOKENS = st.one_of(st.integers(0, 10), st.sampled_from([INT64_MAX, INT64_MAX // 2]))


def seen(store: Store) -> Model:
    """What a store says of all its runs, in the words of the model."""
    found: Model = {}
    for info in store.runs(limit=10_000):
        summary = store.run_summary(info.run_id)
        found[info.run_id] = {
            "parent": info.parent,
            "outcome": info.outcome,
            "steps": [(row.step, row.attempt, row.tokens) for row in store.steps(info.run_id)],
            "summary": None
            if summary is None
            else (summary.outcome, summary.success, summary.steps, summary.tokens),
            "superseded": [old.outcome for old in store.superseded(info.run_id)],
        }
    return found


class StoreMachine(RuleBasedStateMachine):
    """Calls in any order, each held to the model; two handles, and crashes."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.path = Path(self.folder.name) / "runs.db"
        self.store = Store.open(self.path, level="process")
        self.model: Model = {}

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from([None, *self.model])) if self.model else None
        if parent is None:
            run = self.store.start_run("g", "f")
        else:
            run = self.store.start_child_run("g", "f", parent)
        assert run not in self.model
        self.model[run] = {
            "parent": parent,
            "outcome": None,
            "steps": [],
            "summary": None,
            "superseded": [],
        }

    @precondition(lambda self: self.model)
    @rule(data=st.data(), step=st.integers(1, 5), tokens=TOKENS, is_retry=st.booleans())
    def record(self, data: st.DataObject, step: int, tokens: int, is_retry: bool) -> None:
        run = data.draw(st.sampled_from(sorted(self.model)))
        row = self.model[run]
        steps = row["steps"]
        record = StepRecord(step, "d", "r", tokens=tokens, is_retry=is_retry)
        last = steps[-1][0] if steps else 0
        if row["outcome"] is not None or step < last:
            with pytest.raises(RunConflict):
                self.store.record(run, record)
        elif sum(old[2] for old in steps) + tokens > INT64_MAX:
            with pytest.raises(ConfigError):
                self.store.record(run, record)
        else:
            self.store.record(run, record)
            attempt = 1 + sum(old[0] == step for old in steps)
            steps.append((step, attempt, tokens))
            row.setdefault("done", 0)
            if not is_retry:
                row["done"] = step

    @precondition(lambda self: self.model)
    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES))
    def finish(self, data: st.DataObject, outcome: str) -> None:
        run = data.draw(st.sampled_from(sorted(self.model)))
        row = self.model[run]
        if outcome not in MOVES[row["outcome"] or RUNNING]:
            with pytest.raises(RunConflict):
                self.store.finish_run(run, outcome)
            return
        self.store.finish_run(run, outcome)
        row["outcome"] = outcome
        if outcome in ENDINGS:
            tokens = sum(step[2] for step in row["steps"])
            row["summary"] = (outcome, outcome == "success", row.get("done", 0), tokens)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(sorted(self.model)))
        row = self.model[run]
        if RUNNING not in MOVES[row["outcome"] or RUNNING]:
            with pytest.raises(RunConflict):
                self.store.resume_run(run)
            return
        self.store.resume_run(run)
        if row["summary"] is not None:
            row["superseded"].append(row["outcome"])
        row["outcome"] = row["summary"] = None

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = Store.open(self.path, level="process")

    @rule()
    def lose_a_batch(self) -> None:
        """A process that dies within a batch leaves nothing of it."""

        def die() -> None:
            with self.store.batch():
                run = self.store.start_run("lost", "f")
                self.store.record(run, StepRecord(1, "d", "r"))
                self.store.finish_run(run, "success")
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            die()

    @invariant()
    def it_says_what_the_model_says(self) -> None:
        model = {
            run: {key: value for key, value in row.items() if key != "done"}
            for run, row in self.model.items()
        }
        assert seen(self.store) == model


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


# --- crashes --------------------------------------------------------------------------------------

_numbers = itertools.count()


def story(store: Store, disk: RecordingDisk) -> tuple[list[Model], list[int]]:
    """A history of a store; what it said after each call, and where the disk's record was then."""
    states, positions = [seen(store)], [disk.recording.position]

    def said() -> None:
        states.append(seen(store))
        positions.append(disk.recording.position)

    run = store.start_run("g" * 900, "f")
    said()
    for number in (1, 2):
        store.record(run, StepRecord(number, "d" * 2_000, "r" * 2_000, tokens=number))
        said()
    store.finish_run(run, "awaiting_answer")
    said()
    store.resume_run(run)
    said()
    store.finish_run(run, "stalled")
    said()
    store.resume_run(run)
    said()
    with store.batch():
        child = store.start_child_run("g", "f", run)
        store.record(child, StepRecord(1, "d" * 3_000, "r", tokens=5))
        store.finish_run(child, "success")
        store.record(run, StepRecord(3, "d", "r", tokens=3))
        store.finish_run(run, "success")
    said()
    return states, positions


def test_a_crash_between_any_two_statements_leaves_a_whole_state(tmp_path: Path) -> None:
    root = tmp_path / "home"
    root.mkdir()
    disk = RecordingDisk(f"store-{next(_numbers)}", Recording(root))
    try:
        store = Store.open(root / "runs.db", vfs=disk.name)
        states, positions = story(store, disk)
        store.close()
    finally:
        disk.unregister()
    found: list[Model] = []
    for number, image in enumerate(disk.recording.crash_images()):
        place = tmp_path / f"image-{number}"
        materialise(image, place)
        with Store.open(place / "runs.db") as store:
            state = seen(store)
        # What was acknowledged before the crash is there, whole, and nothing is half there.
        acknowledged = max(0, bisect_right(positions, image.position) - 1)
        assert state in states[acknowledged:], f"image {number} lost what was acknowledged"
        found.append(state)
        for row in state.values():
            assert (row["summary"] is not None) == (row["outcome"] in ENDINGS)
    assert all(state in found for state in states)


# --- two processes --------------------------------------------------------------------------------


def write_runs(path: str, name: str, count: int) -> None:
    """What each process does: runs of its own, a step a commit."""
    with Store.open(path, level="process") as store:
        for number in range(count):
            run = store.start_run(f"{name} {number}", "f", agent=name)
            for step in range(1, 4):
                store.record(run, StepRecord(step, "d", "r", tokens=7))
            store.finish_run(run, "success")


def test_two_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.db")
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_runs, args=(path, name, 60)) for name in ("one", "two")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
        assert writer.exitcode == 0
    with Store.open(path) as store:
        groups = {group.group: group for group in store.stats(by="agent")}
        assert {name: (row.runs, row.steps, row.tokens) for name, row in groups.items()} == {
            "one": (60, 180, 1_260),
            "two": (60, 180, 1_260),
        }
        goals = {info.goal for info in store.runs(limit=1_000)}
        assert goals == {f"{name} {n}" for name in ("one", "two") for n in range(60)}


def open_and_start(path: str, name: str, go: Any) -> None:
    go.wait(60)
    with Store.open(path, level="process") as store:
        store.finish_run(store.start_run(name, "f"), "success")


def test_processes_that_make_one_file_at_the_same_moment_all_have_it(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.db")
    context = multiprocessing.get_context("spawn")
    go = context.Event()
    makers = [context.Process(target=open_and_start, args=(path, str(n), go)) for n in range(4)]
    for maker in makers:
        maker.start()
    go.set()
    for maker in makers:
        maker.join(60)
        assert maker.exitcode == 0
    with Store.open(path) as store:
        assert sorted(info.goal for info in store.runs()) == ["0", "1", "2", "3"]
