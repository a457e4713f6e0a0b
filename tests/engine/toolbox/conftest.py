"""A run's folder and workdir, and calls in them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from leviath.engine.tools import Tool, ToolCall, builtin_tools


@pytest.fixture
def tools() -> dict[str, Tool]:
    """The built-in tools by name."""
    return {made.name: made for made in builtin_tools()}


@pytest.fixture
def make_call(tmp_path: Path) -> Callable[..., ToolCall]:
    """Makes a call with workdir ``tmp_path/work`` and run folder ``tmp_path/run``."""
    (tmp_path / "work").mkdir()
    (tmp_path / "run").mkdir(mode=0o700)

    def make(call_id: str = "c1", attempt: int = 1, deadline_ms: int = 30_000) -> ToolCall:
        return ToolCall(
            run_id="r1",
            call_id=call_id,
            tool="sample",
            attempt=attempt,
            idempotency_key=f"r1-{call_id}",
            deadline_ms=deadline_ms,
            workdir=str(tmp_path / "work"),
            spill_dir=str(tmp_path / "run" / "spill"),
        )

    return make
