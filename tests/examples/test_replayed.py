"""The project that only installs leviath: its own tests pass, in a process of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "examples" / "replayed"
PLUGIN = "leviath.simulation.pytest_plugin"


def run_tests(project: Path) -> subprocess.CompletedProcess[str]:
    known = any(entry.value == PLUGIN for entry in entry_points(group="pytest11"))
    plugin = [] if known else ["-p", PLUGIN]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:hypothesispytest", *plugin, "tests"]
    return subprocess.run(
        argv, cwd=project, env=environ, capture_output=True, text=True, check=False, timeout=100
    )


def test_the_tests_of_the_project_pass(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(PROJECT, project)
    done = run_tests(project)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_a_world_that_did_something_else_fails_them(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(PROJECT, project)
    world = project / "tests" / "worlds" / "triage" / "world.jsonl"
    altered = world.read_text().replace('"end",120,20', '"end",121,20', 1)
    assert altered != world.read_text()
    world.write_text(altered)
    done = run_tests(project)
    assert "2 failed" in done.stdout, done.stdout
    assert "Damaged" in done.stdout
