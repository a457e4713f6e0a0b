"""Measure what the engine must reach; see bench/NOTES.md. Called by ``make bench``.

Each benchmark runs in a process of its own, right after the calibration loop. The table goes to
standard output, and all rows to bench/results/latest.json unless the run was quick or partial.
"""

from __future__ import annotations

import argparse
import cProfile
import dataclasses
import json
import os
import pstats
import subprocess
import sys
import time
from pathlib import Path

import fleets
import harness
import histories
import homes
import replays
import steps
import store
import stretches
import trees
import turns
from harness import Benchmark, Row, calibrate, scratch

BENCHMARKS: list[Benchmark] = [
    *turns.BENCHMARKS,
    *stretches.BENCHMARKS,
    *homes.BENCHMARKS,
    *steps.BENCHMARKS,
    *fleets.BENCHMARKS,
    *store.BENCHMARKS,
    *histories.BENCHMARKS,
    *replays.BENCHMARKS,
    *trees.BENCHMARKS,
]
LATEST = Path(__file__).parent / "results" / "latest.json"
_TIMEOUT_S = 900


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", metavar="NAME", action="append", help="just this benchmark")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it still work?")
    parser.add_argument("--profile", metavar="NAME", help="where one benchmark's time goes")
    parser.add_argument("--list", action="store_true", help="names, and what they measure")
    parser.add_argument("--child", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    known = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    named = [*(options.only or ()), *filter(None, (options.profile, options.child))]
    for name in named:
        if name not in known:
            parser.error(f"no benchmark is called {name!r}; there are {', '.join(known)}")
    if options.list:
        for benchmark in BENCHMARKS:
            print(f"{benchmark.name:24} {benchmark.what}")
    elif options.child:
        _child(known[options.child], quick=options.quick)
    else:
        with scratch() as folder:
            os.environ[homes.FOLDER] = str(folder)
            if options.profile:
                _profile(known[options.profile], quick=options.quick)
                return 0
            rows = _measure([known[name] for name in options.only or known], quick=options.quick)
        if not (options.only or options.quick):
            _write(rows)
    return 0


def _measure(chosen: list[Benchmark], *, quick: bool) -> list[Row]:
    print(f"{'':30}{'value':>12}  {'unit':16}{'target':>10}        {'calibration':>12}")
    rows: list[Row] = []
    for benchmark in chosen:
        began = time.monotonic()
        measured = _spawn(benchmark, quick=quick)
        rows.extend(measured)
        for row in measured:
            _print(row)
        print(f"  {benchmark.name} took {time.monotonic() - began:.1f} s", file=sys.stderr)
    return rows


def _spawn(benchmark: Benchmark, *, quick: bool) -> list[Row]:
    command = [sys.executable, __file__, "--child", benchmark.name, *(["--quick"] * quick)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=_TIMEOUT_S, check=True)
    except subprocess.SubprocessError as error:
        return [Row(benchmark.name, None, "", None, "lower", f"failed: {error}")]
    return [Row(**row) for row in json.loads(done.stdout)]


def _child(benchmark: Benchmark, *, quick: bool) -> None:
    calibration_ms = calibrate()
    rows = benchmark.measure(quick=quick)
    for row in rows:
        row.calibration_ms = round(calibration_ms, 1)
    print(json.dumps([dataclasses.asdict(row) for row in rows]))


def _profile(benchmark: Benchmark, *, quick: bool) -> None:
    """The main thread's time; the writer and the threads of plain tools are not in it."""
    harness.profile = cProfile.Profile()
    benchmark.measure(quick=quick)
    stats = pstats.Stats(harness.profile)
    stats.sort_stats("tottime").print_stats(40)
    stats.sort_stats("cumtime").print_stats(40)


def _print(row: Row) -> None:
    value = "-" if row.value is None else _number(row.value)
    target = "" if row.target is None else _number(row.target)
    print(
        f"{row.name:30}{value:>12}  {row.unit:16}{target:>10}  {row.verdict:6}"
        f"{row.calibration_ms:>9.1f} ms  {row.note}",
        flush=True,
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"


def _write(rows: list[Row]) -> None:
    LATEST.parent.mkdir(exist_ok=True)
    LATEST.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=2) + "\n")
    print(f"wrote {LATEST}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
