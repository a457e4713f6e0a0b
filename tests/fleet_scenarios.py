"""Scenarios for tests of the simulator, and a program that prints a digest of each.

``python tests/fleet_scenarios.py`` prints what two processes must agree on.
"""

from __future__ import annotations

import copy
import json
import sys
from typing import Any

from leviath.simulation.fleet import simulate
from leviath.simulation.fleet_scenario import Scenario

SMALL: dict[str, Any] = {
    "title": "small",
    "duration": "1d",
    "policy": {"slots_default": 4},
    "providers": {
        "acme": {
            "latency": {"min": "50ms", "p50": "4s", "p99": "12s", "max": "30s"},
            "token_us": 2_000,
            "cached_permille": 300,
            "errors_permille": {"overloaded": 20, "transport": 10, "auth": 2},
            "retry_after": {"min": "1s", "max": "9s"},
            "limit": {"calls": 12, "tokens": 90_000, "window": "1m"},
            "outages": [{"at": "10m", "for": "6m", "error": "server", "permille": 800}],
        },
        "spare": {"latency": {"mean": "2s"}},
    },
    "prices": {"acme/large": {"prompt": "3.00", "completion": "15.00", "cached": "0.30"}},
    "tools": {
        "look": {"latency": {"min": "0ms", "max": "3s"}, "failures_permille": 100},
        "send": {"effect": "once", "latency": "2s", "unknown_permille": 100, "deadline": "3s"},
        "hang": {"effect": "idempotent", "latency": {"mean": "1h"}, "deadline": "10m"},
    },
    "agents": {
        "worker": {
            "models": ["acme/large", "spare/small"],
            "tools": {"look": 6, "send": 2, "hang": 1},
            "asks": ["send"],
            "turns": {"min": 1, "p50": 5, "max": 12},
            "calls": {"min": 1, "max": 3},
            "completion_tokens": {"mean": 300},
        },
        "talker": {"models": ["acme/large"], "turns": 1},
    },
    "people": {
        "answer": {"min": "1s", "p50": "2m", "max": "40m"},
        "fix": {"min": "1m", "max": "20m"},
        "deny_permille": 200,
        "again_permille": 500,
        "from_hour": 0,
        "to_hour": 20,
    },
    "arrivals": [
        {"agent": "worker", "count": 12, "over": "5m", "at_random": True, "every": "30m"},
        {"agent": "talker", "count": 9, "at": "9m", "over": "4m"},
    ],
    "crashes": [{"at": "11m", "down": "30s"}, {"at": "32m"}],
}
"""Everything that can happen, within a virtual day."""


def small(**changes: Any) -> dict[str, Any]:
    """SMALL with some of its tables replaced."""
    return {**copy.deepcopy(SMALL), **changes}


def results() -> dict[str, object]:
    """What is the same in every process: digests of steps and of the report."""
    table = small(duration="2h")
    report = simulate(Scenario.parse(table), digest=True)
    plain = simulate(Scenario.parse(table))
    return {"digest": report.digest, "report": plain.json(), "turns": plain.turns}


if __name__ == "__main__":
    json.dump(results(), sys.stdout)
