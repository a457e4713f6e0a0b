"""Same inputs, same bytes: in another process, under another hash seed, on another Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import scenario_odd

from leviath.components.error_kind import ErrorKind

TESTS = Path(__file__).resolve().parents[1]
GOLDEN = TESTS / "golden" / "digest_chain.json"
ADVICE = (
    "the same inputs give other changes than before: raise RULES in systems/schedule.py and write "
    "the golden file again (see tests/scenario_odd.py)"
)


def environment(hash_seed: str) -> dict[str, str]:
    path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    return {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}


def chain(python: str, hash_seed: str) -> Any:
    done = subprocess.run(
        [python, str(TESTS / "scenario_odd.py")],
        env=environment(hash_seed),
        capture_output=True,
        check=True,
        text=True,
    )
    return json.loads(done.stdout)


def other_pythons() -> list[str]:
    """Interpreters that can run the scenario, beside this one."""
    named = [path for path in os.environ.get("LEVIATH_PYTHONS", "").split(os.pathsep) if path]
    on_path = (shutil.which(f"python3.{minor}") for minor in (11, 12, 13))
    found: list[str] = []
    for python in [*named, *(path for path in on_path if path)]:
        if Path(python).resolve() == Path(sys.executable).resolve():
            continue
        probe = [python, "-c", "import esper, msgspec, sys; assert sys.version_info >= (3, 11)"]
        if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            found.append(python)
    return found


@pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
def test_the_digest_chain_is_the_golden_one_under_any_hash_seed(hash_seed: str) -> None:
    golden = json.loads(GOLDEN.read_text())
    assert chain(sys.executable, hash_seed) == golden, ADVICE


def test_the_digest_chain_is_the_golden_one_on_other_versions_of_python() -> None:
    pythons = other_pythons()
    if not pythons:
        pytest.skip("no other Python with esper and msgspec: name some in LEVIATH_PYTHONS")
    golden = json.loads(GOLDEN.read_text())
    for python in pythons:
        assert chain(python, "random") == golden, f"{python}: {ADVICE}"


def test_the_scenario_takes_every_path_that_it_is_there_for() -> None:
    """A chain proves nothing about what it never meets."""
    hand = scenario_odd.play()
    seen: set[str] = set()
    for result in hand.results:
        assert not result.failures, result.failures
        seen.update(type(item).__name__ for item in (*result.inputs, *result.events))
        seen.update(getattr(event, "kind", "") for event in result.events)
        seen.update(getattr(event, "status", "") for event in result.events)
        seen.update(fact.certainty for fact in result.facts)
    kinds = {kind.value for kind in ErrorKind}
    words = {"complete", "error", "cancelled", "paused", "waiting_input", "running"}
    events = {"Spawned", "StageEntered", "CallFailed", "CallUnknown", "OutputSubmitted", "Ended"}
    wanted = kinds | words | events | {"interrupted", "computed", "unknown", "provider"}
    assert wanted <= seen, sorted(wanted - seen)
