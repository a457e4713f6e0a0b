"""The pytest plugin, in a project of somebody else's: a process of its own that has leviath."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PLUGIN = "leviath.simulation.pytest_plugin"
AGENT = """
import leviath, pytest

AGENT = leviath.parse_blueprint('''
[stages.main]
model = { provider = "scripted", model = "any" }
''', where="agent")


class Real:
    name = "scripted"
    asked = 0

    async def infer(self, request, on_text):
        Real.asked += 1
        return leviath.InferenceReply(text=f"word {request.messages[-1].text}")
"""


def run(project: Path, body: str, *options: str, ini: str = "") -> tuple[dict[str, int], str]:
    """Run a test file in a fresh project; its outcomes by word, and what was printed."""
    (project / "test_mine.py").write_text(AGENT + body)
    (project / "pytest.ini").write_text(f"[pytest]\nfilterwarnings = error\n{ini}\n")
    known = any(entry.value == PLUGIN for entry in entry_points(group="pytest11"))
    plugin = [] if known else ["-p", PLUGIN]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    argv = [sys.executable, "-m", "pytest", "-p", "no:hypothesispytest", *plugin, *options]
    done = subprocess.run(
        argv, cwd=project, env=environ, capture_output=True, text=True, check=False, timeout=100
    )
    words = (done.stdout.splitlines() or [""])[-1].strip("= ").split()
    counts = {word.strip(","): int(n) for n, word in pairwise(words) if n.isdigit()}
    return counts, done.stdout + done.stderr


def test_a_world_moves_when_the_test_moves_its_clock(tmp_path: Path) -> None:
    body = """
def test_backoff(leviath_world, leviath_clock):
    down = leviath.Failure(
        kind=leviath.ErrorKind.SERVER, message="down", retry_after_ms=60_000
    )
    script = leviath.Scripted.of(leviath.Reply(text="up", failures=((1, down),)))
    with leviath_world(script) as world:
        run = world.spawn(AGENT, task="t")
        leviath_clock.advance(59_000)
        assert run.row().status == "running"
        leviath_clock.advance(2_000)
        assert run.row().status == "complete"


def test_hosts_follow_each_other(leviath_world, leviath_clock, tmp_path):
    with leviath_world(home=tmp_path / "home") as world:
        run = world.spawn(AGENT, task="t")
        leviath_clock.advance(1_000)
        assert run.row().waiting_on == "needs_setup"
    with leviath_world(leviath.Scripted.of("done"), home=tmp_path / "home") as world:
        leviath_clock.until(lambda: world.run(run.run_id).row().status == "complete")
    assert leviath_clock.wall_ms() > 1_790_000_000_000


def test_two_worlds_need_two_clocks(leviath_world):
    with leviath_world(), pytest.raises(leviath.ConfigError, match="drives a world already"):
        with leviath_world():
            pass
"""
    counts, said = run(tmp_path, body)
    assert counts == {"passed": 3}, said


SPENDING = """
def spend(world):
    return world.spawn(AGENT, task="t").wait(timeout_s=20)


def test_spends(leviath_world):
    with leviath_world(Real()) as world:
        assert spend(world).status == "error"
    assert Real.asked == 0


@pytest.mark.leviath_paid
def test_may_spend(leviath_world):
    with leviath_world(Real()) as world:
        assert spend(world).status == "complete"


def test_costs_nothing(leviath_world):
    Real.paid = False
    try:
        with leviath_world(Real()) as world:
            assert spend(world).status == "complete"
    finally:
        del Real.paid
"""


def test_a_test_that_reaches_a_paid_provider_fails(tmp_path: Path) -> None:
    counts, said = run(tmp_path, SPENDING)
    # Its own assertions hold, and it fails all the same, when it ends.
    assert counts == {"passed": 3, "error": 1}, said
    assert "asks provider 'scripted', which may cost money" in said
    assert "leviath_paid" in said


def test_a_project_may_allow_spending(tmp_path: Path) -> None:
    body = SPENDING.replace('"error"', '"complete"').replace("asked == 0", "asked == 1")
    counts, said = run(tmp_path, body, ini="leviath_spending = allow")
    assert counts == {"passed": 3}, said


def test_a_word_that_is_none_is_refused(tmp_path: Path) -> None:
    said = run(tmp_path, "def test(): pass\n", ini="leviath_spending = maybe")[1]
    assert "leviath_spending is 'maybe'; write one of refuse, allow" in said


def test_a_host_started_as_a_process_spends_nothing_either(tmp_path: Path) -> None:
    body = """
import os, subprocess, sys

def test_process():
    code = "import os; assert os.environ['LEVIATH_NO_SPENDING'] == '1'"
    subprocess.run([sys.executable, "-c", code], check=True)

def test_after():
    assert os.environ.get("LEVIATH_NO_SPENDING") == "1"
"""
    counts, said = run(tmp_path, body)
    assert counts == {"passed": 2}, said


RECORDED = """
@pytest.mark.parametrize("task", ["tea", "coffee"])
def test_recorded(leviath_world, leviath_recorded, task):
    model = leviath_recorded("cassettes.jsonl", Real())
    with leviath_world(model) as world:
        run = world.spawn(AGENT, task=task)
        assert run.wait(timeout_s=20).status == "complete"
"""


def test_calls_are_recorded_once_and_a_miss_fails_loudly(tmp_path: Path) -> None:
    counts, said = run(tmp_path, RECORDED, "--leviath-record=new")
    assert counts == {"passed": 2}, said
    silent = RECORDED.replace("Real()", 'name="scripted"')
    counts, said = run(tmp_path, silent)
    assert counts == {"passed": 2}, said
    counts, said = run(tmp_path, silent.replace('"coffee"', '"cocoa"').replace("complete", "error"))
    assert "-user: coffee" in said or "-user: tea" in said
    assert "+user: cocoa" in said
    assert "--leviath-record=new" in said


@pytest.mark.parametrize("fixture", ["leviath_world", "leviath_clock", "leviath_recorded"])
def test_the_fixtures_are_listed_with_their_docs(tmp_path: Path, fixture: str) -> None:
    said = run(tmp_path, "", "--fixtures", "-q")[1]
    line = next(number for number, line in enumerate(said.splitlines()) if line.startswith(fixture))
    assert said.splitlines()[line + 1].strip()
