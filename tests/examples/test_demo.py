"""The demo prints what the file beside it says, a killed host included."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo"


def sections(text: str) -> list[list[str]]:
    """The lines of each part, sorted: calls that run side by side end in any order."""
    return [sorted(part.splitlines()) for part in text.strip().split("\n\n")]


@pytest.mark.timeout(120)
def test_the_demo_prints_what_it_promises(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    done = subprocess.run(
        [sys.executable, "-W", "error", DEMO / "run.py", "--keep", kept],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    expected = (DEMO / "expected.txt").read_text(encoding="utf-8")
    assert sections(done.stdout.decode()) == sections(expected)
    # Whatever was decided, the report was sent once.
    assert (kept / "work-2" / "outbox.log").read_text().count("sent:") == 1


def test_a_planted_difference_is_seen() -> None:
    expected = (DEMO / "expected.txt").read_text(encoding="utf-8")
    planted = expected.replace("again (attempt 2)", "again (attempt 3)")
    assert sections(planted) != sections(expected)
    assert len(sections(expected)) == 5
