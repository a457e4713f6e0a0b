"""Simulated fleets: turns a second of one process, and a thousand agents for a month."""

from __future__ import annotations

import time
from typing import Any

from harness import Benchmark, Row, measured

from leviath.simulation import Report, Scenario, simulate


def _table(*, runs: int, over: str, every: str, duration: str, tool: dict[str, str]) -> Scenario:
    table: dict[str, Any] = {
        "title": "bench",
        "duration": duration,
        "sample": "1h",
        "policy": {"slots_default": 256},
        "providers": {
            "acme": {
                "latency": {"min": "400ms", "p50": "1500ms", "p99": "9s", "max": "30s"},
                "errors_permille": {"overloaded": 5},
            }
        },
        "prices": {"acme/large": {"prompt": "3.00", "completion": "15.00"}},
        "tools": {"read": {"latency": tool}},
        "agents": {
            "worker": {
                "models": ["acme/large"],
                "tools": {"read": 1},
                "turns": 20,
                "completion_tokens": {"min": 20, "p50": 180, "max": 2_000},
            }
        },
        "arrivals": [{"agent": "worker", "count": runs, "over": over, "every": every}],
    }
    return Scenario.parse(table)


def _play(scenario: Scenario, *, check: bool = False) -> tuple[float, float, Report]:
    began, used = time.perf_counter(), time.process_time()
    with measured():
        report = simulate(scenario, check=check)
    return time.perf_counter() - began, time.process_time() - used, report


def _turns(*, quick: bool) -> list[Row]:
    runs = 100 if quick else 1_000
    scenario = _table(
        runs=runs, over="10m", every="1d", duration="12h", tool={"min": "50ms", "max": "9s"}
    )
    wall_s, used_s, report = _play(scenario)
    note = f"{report.steps / report.turns:.2f} steps a turn; a second of CPU: "
    note += f"{report.turns / used_s:,.0f}"
    rows = [Row("sim_turns", report.turns / wall_s, "turns/s", 12_000, "higher", note)]
    wall_s, used_s, report = _play(scenario, check=True)
    note = f"printed only; a second of CPU: {report.turns / used_s:,.0f}"
    rows.append(Row("sim_turns_checked", report.turns / wall_s, "turns/s", None, "higher", note))
    return rows


def _month(*, quick: bool) -> list[Row]:
    """Each agent works off a task of 20 turns a day, spread over the day."""
    days = 1 if quick else 30
    scenario = _table(
        runs=1_000,
        over="23h",
        every="1d",
        duration=f"{days}d",
        tool={"min": "100ms", "p50": "20s", "max": "3m"},
    )
    wall_s, used_s, report = _play(scenario)
    note = f"{report.turns:,} turns; CPU {used_s:,.1f} s"
    return [Row("sim_month", wall_s, "s", 50, "lower", note)]


BENCHMARKS = [
    Benchmark("sim_turns", "turns a second of a simulated fleet", _turns),
    Benchmark("sim_month", "1,000 simulated agents for 30 days, 20 turns a day each", _month),
]
