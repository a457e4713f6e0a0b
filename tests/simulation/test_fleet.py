"""The simulator: equal seeds, equal histories; rules and totals hold; a crash loses what it may."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fleet_scenarios import SMALL, results, small
from hypothesis import given, settings
from hypothesis import strategies as st

from leviath.simulation import Report, Scenario, simulate

TESTS = Path(__file__).resolve().parents[1]


def play(table: dict[str, Any], **more: Any) -> Report:
    return simulate(Scenario.parse(table), **more)


def pythons() -> list[str]:
    """Interpreters that can simulate: this one, and others that have the packages."""
    found = [sys.executable]
    named = [path for path in os.environ.get("LEVIATH_PYTHONS", "").split(os.pathsep) if path]
    on_path = (shutil.which(f"python3.{minor}") for minor in (11, 12, 13))
    for python in [*named, *(path for path in on_path if path)]:
        if Path(python).resolve() == Path(sys.executable).resolve():
            continue
        probe = [python, "-c", "import esper, msgspec, sys; assert sys.version_info >= (3, 11)"]
        if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            found.append(python)
    return found


def test_equal_seeds_give_equal_bytes_in_other_processes() -> None:
    here = results()
    path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    for python in pythons():
        for hash_seed in ("1", "2"):
            done = subprocess.run(
                [python, str(TESTS / "fleet_scenarios.py")],
                env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path},
                capture_output=True,
                check=True,
            )
            assert json.loads(done.stdout) == here, (python, hash_seed)


def test_another_seed_gives_another_history() -> None:
    table = small(duration="1h")
    assert play(table, seed=1, digest=True).digest != play(table, seed=2, digest=True).digest


def test_a_world_that_is_not_written_down_does_the_same() -> None:
    """The redo list is all that an unwritten world leaves out."""
    table = small(duration="3h")
    written, plain = play(table, digest=True), play(table)
    assert written.digest
    assert json.loads(written.json()) == {**json.loads(plain.json()), "digest": written.digest}


def test_everything_in_the_scenario_comes_to_pass() -> None:
    """Else the tests above prove nothing about it."""
    report = play(SMALL, check=True)
    assert report.crashes == 2
    assert {"overloaded", "transport", "server", "rate_limited", "auth"} <= set(report.errors)
    assert set(report.tool_calls) == set(report.tool_errors) == {"look", "send", "hang"}
    assert {"tool_approval", "needs_setup"} <= set(report.parked)
    assert report.answers.count > 10
    assert sum(row.interrupted for row in report.costs) > 0
    assert {row.provider for row in report.costs} == {"acme", "spare"}
    assert next(row for row in report.costs if row.provider == "spare").priced_nano_usd == 0
    assert report.spent_nano_usd == sum(row.priced_nano_usd for row in report.costs) > 0
    assert next(row for row in report.slots if row.provider == "acme").waits.max_ms > 0
    assert report.runs == 12 * 48 + 9
    assert all(sum(sample.statuses.values()) <= report.runs for sample in report.samples)


@pytest.mark.parametrize("commit", ["0ms", "3ms", "5s"])
def test_a_crash_loses_no_run(commit: str) -> None:
    """Who was not acknowledged asks again, under the same key."""
    table = small(
        commit=commit,
        arrivals=[{"agent": "worker", "count": 200, "over": "20m"}],
        crashes=[{"at": f"{minute}m", "down": "90s"} for minute in range(2, 30, 4)],
    )
    report = play(table, check=True)
    assert report.runs == 200
    assert sum(report.statuses.values()) == 200
    assert report.crashes == 7


def test_a_crash_later_than_the_last_run_changes_nothing_before_it() -> None:
    calm = play(small(crashes=[], duration="1h"), digest=True)
    assert play(small(crashes=[{"at": "2h"}], duration="1h"), digest=True).digest == calm.digest


def test_slots_are_the_bound_that_they_are_meant_to_be() -> None:
    wide, narrow = (
        play(small(policy={"slots_default": slots}, crashes=[])) for slots in (1_000, 2)
    )
    acme = narrow.slots[0]
    assert acme.peak == acme.cap == 2
    assert acme.waits.mean_ms > wide.slots[0].waits.mean_ms == 0
    assert acme.use_permille <= 1_000


def test_a_limit_refuses_what_is_above_it_and_says_when_to_come_back() -> None:
    limited = {"latency": "1s", "limit": {"calls": 10, "window": "1m"}}
    report = play(
        small(
            providers={"acme": limited, "spare": {"latency": "1s"}},
            arrivals=[{"agent": "talker", "count": 25}],
            crashes=[],
            policy={"slots_default": 100},
        )
    )
    assert report.errors == {"rate_limited": 15 + 5}
    assert report.statuses["complete"] == 25
    assert report.ended_ms >= 120_000


def test_without_people_nobody_answers_and_the_report_says_so() -> None:
    table = small(people={}, crashes=[], arrivals=[{"agent": "worker", "count": 40}])
    report = play(table)
    assert report.unfinished.keys() <= {"tool_approval", "auth_failed", "providers_unavailable"}
    assert report.unfinished["tool_approval"] > 0
    assert report.answers.count == 0


def test_people_answer_within_their_hours() -> None:
    table = small(
        people={"answer": "1s", "from_hour": 9, "to_hour": 17},
        arrivals=[{"agent": "worker", "count": 30}],
        crashes=[],
    )
    report = play(table)
    assert report.answers.count > 0
    assert report.answers.p90_ms > 8 * 3_600_000
    assert report.ended_ms > 9 * 3_600_000


ALL_PRICED = SMALL["prices"] | {"spare/small": {"prompt": "0.10", "completion": "0.40"}}


def test_a_budget_stops_the_runs_whose_calls_it_does_not_cover() -> None:
    free, cheap, dear = (
        play(small(crashes=[], prices=ALL_PRICED, **more))
        for more in ({}, {"budget_usd": "100000"}, {"budget_usd": "0.05"})
    )
    assert (cheap.budget_spent_ms, cheap.budget_runs) == (None, 0)
    assert cheap.statuses == free.statuses and cheap.spent_nano_usd == free.spent_nano_usd
    assert dear.budget_spent_ms is not None
    assert 0 < dear.budget_spent_ms < cheap.ended_ms
    assert dear.statuses["error"] >= dear.budget_runs - cheap.statuses["error"] > 0
    assert dear.statuses["complete"] < cheap.statuses["complete"]
    assert dear.spent_nano_usd < cheap.spent_nano_usd


def test_a_report_survives_its_json() -> None:
    report = play(small(duration="20m"))
    assert Report.of_json(report.json()) == report


RANDOM = st.fixed_dictionaries(
    {
        "slots": st.integers(1, 6),
        "latency": st.integers(0, 5_000),
        "errors": st.dictionaries(
            st.sampled_from(["overloaded", "server", "auth", "bad_request", "timeout", "other"]),
            st.integers(0, 160),
            max_size=4,
        ),
        "limit": st.none() | st.integers(1, 40),
        "unknown": st.integers(0, 500),
        "turns": st.integers(1, 6),
        "commit": st.integers(0, 20_000),
        "crashes": st.lists(st.integers(1, 3_000), max_size=3, unique=True).map(sorted),
        "down": st.integers(0, 900),
        "attempts": st.integers(1, 4),
    }
)


@settings(max_examples=40, deadline=None)
@given(RANDOM, st.integers(0, 1 << 62))
def test_in_any_small_fleet_rules_hold_and_every_run_ends_or_has_a_reason(
    given: dict[str, Any], seed: int
) -> None:
    provider: dict[str, Any] = {
        "latency": {"min": "0ms", "max": f"{given['latency']}ms"},
        "errors_permille": given["errors"],
    }
    if given["limit"]:
        provider["limit"] = {"calls": given["limit"], "window": "30s"}
    tools = {**SMALL["tools"]}
    tools["send"] = {**tools["send"], "unknown_permille": given["unknown"]}
    table = small(
        duration="30d",
        commit=f"{given['commit']}ms",
        policy={"slots_default": given["slots"], "attempts_max": given["attempts"]},
        providers={"acme": provider, "spare": {"latency": "700ms"}},
        tools=tools,
        arrivals=[
            {"agent": "worker", "count": 6, "over": "10m", "at_random": True},
            {"agent": "talker", "count": 4},
        ],
        crashes=[{"at": f"{at + 1_000 * n}s", "down": f"{given['down']}s"}
                 for n, at in enumerate(given["crashes"])],
    )  # fmt: skip
    table["agents"]["worker"]["turns"] = given["turns"]
    report = play(table, seed=seed, check=True)
    assert sum(report.statuses.values()) == report.runs == 10
    ended = sum(report.statuses[word] for word in ("complete", "error", "cancelled"))
    assert ended + sum(report.unfinished.values()) == 10
    # People answer and set things up: within a month nothing is left.
    assert not report.unfinished
