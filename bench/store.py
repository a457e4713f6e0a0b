"""What the run store takes: steps recorded, pages read, sums over 100,000 summaries."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from harness import Benchmark, Row, median, scratch

from leviath.persistence.store import Store
from leviath.persistence.store_rows import StepRecord

_STEP = StepRecord(1, "decided", "done", tokens=900, cost_nano_usd=4_000_000)
_STEPS_A_RUN = 50
_STEPS_A_COMMIT = 1_000


def _fill(store: Store, runs: int) -> None:
    """Runs that ended, a second apart, of ten agents and three models."""
    words = ("success", "success", "success", "finished", "stalled")
    for first in range(0, runs, 1_000):
        with store.batch():
            for number in range(first, min(first + 1_000, runs)):
                run = store.start_run(
                    f"goal {number}", "f", agent=f"agent {number % 10}", model=f"m{number % 3}"
                )
                store.record(run, _STEP)
                store.finish_run(run, words[number % 5])


def _record(*, quick: bool) -> list[Row]:
    steps = 20_000 if quick else 200_000
    records = [
        StepRecord(number, "decided", "done", tokens=900, cost_nano_usd=4_000_000)
        for number in range(1, _STEPS_A_RUN + 1)
    ]
    with scratch() as folder, Store.open(folder / "runs.db") as store:
        began = time.perf_counter()
        for _ in range(steps // _STEPS_A_COMMIT):
            with store.batch():
                for _ in range(_STEPS_A_COMMIT // _STEPS_A_RUN):
                    run = store.start_run("goal", "file")
                    for record in records:
                        store.record(run, record)
                    store.finish_run(run, "success")
        rate = steps / (time.perf_counter() - began)
    note = f"{steps:,} steps, {_STEPS_A_RUN} a run, {_STEPS_A_COMMIT:,} a commit, durable"
    return [Row("store_record", rate, "steps/s", 60_000, "higher", note)]


def _read(*, quick: bool) -> list[Row]:
    runs = 5_000 if quick else 100_000
    with scratch() as folder:
        path = folder / "runs.db"
        with Store.open(path, level="process") as store:
            _fill(store, runs)
        opening: list[float] = []
        for _ in range(5):
            began = time.perf_counter()
            store = Store.open(path)
            opening.append((time.perf_counter() - began) * 1_000)
            store.close()
        pages: list[float] = []
        with Store.open(path) as store:
            after = None
            for _ in range(20):
                began = time.perf_counter()
                page = store.summaries(outcome="success", since_ms=1, limit=50, after=after)
                pages.append((time.perf_counter() - began) * 1_000)
                after = page[-1][0]
            sums: list[float] = []
            for by in ("", "agent", "model"):
                began = time.perf_counter()
                store.stats(by=by)
                sums.append((time.perf_counter() - began) * 1_000)
    note = f"of {runs:,} runs"
    return [
        Row("store_open", median(opening), "ms", 5, "lower", note),
        Row("store_page", median(pages), "ms", 2, "lower", f"50 of one outcome, {note}"),
        Row("store_stats", max(sums), "ms", 200, "lower", f"dearest of three groupings, {note}"),
    ]


def _command(*, quick: bool) -> list[Row]:
    """The command as a process, over the summaries of a world."""
    runs = 2_000 if quick else 100_000
    with scratch() as folder:
        home = folder / "home"
        _world(home, runs)
        argv = [sys.executable, "-m", "leviath.lev", "stats", "--home", str(home), "--by", "agent"]
        spans: list[float] = []
        for _ in range(5):
            began = time.perf_counter()
            subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, env=os.environ)
            spans.append((time.perf_counter() - began) * 1_000)
    note = f"`lev stats --by agent`, process start to end, {runs:,} summaries"
    return [Row("lev_stats", median(spans), "ms", 200, "lower", note)]


def _world(home: Path, runs: int) -> None:
    """A home whose world has so many summaries and no runs: a listing is no part of the figure."""
    from leviath.persistence.database import Batch, open_database
    from leviath.persistence.store_endings import EndingRow

    home.mkdir(mode=0o700)
    database = open_database(home / "world.db", level="process")
    database.initialise("bench", 1)
    database.claim(1, "1")
    for first in range(1, runs + 1, 10_000):
        endings = [
            EndingRow(n, "success", 1, 20, 18_000, n, n + 60_000, 80_000_000, 0, f"a{n % 10}", "m")
            for n in range(first, min(first + 10_000, runs + 1))
        ]
        database.commit(Batch(endings=endings))
    database.close()


BENCHMARKS = [
    Benchmark("store_record", "steps and endings recorded in a file of its own", _record),
    Benchmark("store_read", "opening, pages and sums of a store of 100,000 runs", _read),
    Benchmark("lev_stats", "`lev stats` over 100,000 summaries", _command),
]
