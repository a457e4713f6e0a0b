"""Rows and homes for tests of the database."""

from __future__ import annotations

import zlib
from pathlib import Path

from leviath.persistence.database import (
    Database,
    JournalRow,
    RunRow,
    StateRow,
    open_database,
)


def journal_row(step: int, epoch: int = 1) -> JournalRow:
    return JournalRow(
        step, epoch, step, step, b"in", b"changes", b"events", step.to_bytes(8, "big")
    )


def state_row(owner: int, part: str, cut: int, body: bytes | None) -> StateRow:
    return StateRow(owner, part, cut, zlib.crc32(body or b""), body)


def run_row(ordinal: int, **changes: object) -> RunRow:
    values: dict[str, object] = {
        **dict.fromkeys(RunRow.__struct_fields__, 0),
        **dict.fromkeys(("key", "waiting_on", "model", "progress_ms", "ended_ms"), None),
        **dict.fromkeys(("parent_run_id", "title", "error"), None),
        **dict.fromkeys(("agent_name", "agent_path", "task_head", "stage", "workdir"), "x"),
        **dict.fromkeys(("cost_exact", "yolo", "has_output", "empty_output"), False),
        "ordinal": ordinal,
        "run_id": f"run-{ordinal}",
        "status": "running",
        "updated_ms": ordinal,
    }
    return RunRow(**{**values, **changes})  # type: ignore[arg-type]


def hosted(path: Path) -> Database:
    db = open_database(path / "world.db", level="process")
    db.initialise("world-1", 7)
    db.claim(1_000, "rules-1")
    return db
