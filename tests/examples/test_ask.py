"""The example that asks prints what the file beside it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "ask"


@pytest.mark.timeout(120)
def test_the_example_that_asks_prints_what_it_promises(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLE / "run.py", "--keep", tmp_path / "kept"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    assert done.stdout.decode() == (EXAMPLE / "expected.txt").read_text(encoding="utf-8")
