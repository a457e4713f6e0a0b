"""A sweep: a grid of simulations, the same from one process and from two."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leviath.components.errors import ConfigError
from leviath.simulation import Scenario, simulate, sweep
from leviath.simulation.sweep import parse_sweep

if TYPE_CHECKING:
    from pathlib import Path

PLAN = """
title = "plan"
duration = "1h"
[providers.acme]
latency = { min = "1s", max = "9s" }
[tools.look]
[agents.worker]
models = ["acme/large"]
tools = { look = 1 }
turns = 4
[[arrivals]]
agent = "worker"
count = 20
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    file = tmp_path / "plan.toml"
    file.write_text(PLAN)
    return file


GRID = {"policy.slots_default": [1, 20], "arrivals.0.count": [3, 20], "seed": [1, 2]}


def test_a_sweep_is_the_same_from_one_process_and_from_two(plan: Path) -> None:
    done: list[tuple[int, int]] = []
    one = sweep(plan, GRID, processes=1)
    two = sweep(plan, GRID, processes=2, on_done=lambda count, of: done.append((count, of)))
    assert one == two
    assert done == [(count, 8) for count in range(1, 9)]
    assert [changes for changes, _ in one] == [
        {"policy.slots_default": slots, "arrivals.0.count": count, "seed": seed}
        for slots in (1, 20)
        for count in (3, 20)
        for seed in (1, 2)
    ]
    for changes, report in one:
        assert report == simulate(Scenario.load(plan, changes))
        assert report.slots[0].cap == changes["policy.slots_default"]
        assert report.runs == changes["arrivals.0.count"]


def test_a_fault_anywhere_in_the_grid_is_told_before_anything_is_played(plan: Path) -> None:
    done: list[int] = []
    with pytest.raises(ConfigError, match="slots_default=0 has faults"):
        sweep(plan, {"policy.slots_default": [1, 0]}, on_done=lambda count, of: done.append(of))
    assert not done
    with pytest.raises(ConfigError, match="has no values"):
        sweep(plan, {"seed": []})
    with pytest.raises(ConfigError, match="too large"):
        sweep(plan, {"seed": range(101), "commit": [f"{at}ms" for at in range(100)]})


def test_values_of_a_sweep_are_read_as_toml_or_taken_as_text() -> None:
    assert parse_sweep("a.b=1, 2") == ("a.b", [1, 2])
    assert parse_sweep("people.fix=2m,true") == ("people.fix", ["2m", True])
    for text in ("a", "=1", "a=", "a=1,,2"):
        with pytest.raises(ConfigError, match="is no sweep"):
            parse_sweep(text)
