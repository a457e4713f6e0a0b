"""Writing and replacing the summary of an ending: the same statements in every store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leviath.persistence.sqlite import Connection

_COLUMNS: Final = (
    "run, attempt, outcome, steps, tokens, duration_ms, finished_ms, cost_nano, unpriced, agent,"
    " model"
)
_SUPERSEDE: Final = (
    f"insert or replace into store_superseded ({_COLUMNS}) select {_COLUMNS} from store_summary"  # noqa: S608
    " where run = ?"
)
_INSERT: Final = f"insert into store_summary ({_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608

_CHARGE_LATE: Final = (
    "update store_summary set tokens = ?, cost_nano = ?, unpriced = ? where run = ?"
)


class EndingRow(Struct, frozen=True, gc=False):
    """How a run of a world ended; ``outcome`` "" says that it was taken up again."""

    run: int
    outcome: str = ""
    attempt: int = 1
    steps: int = 0
    tokens: int = 0
    started_ms: int = 0
    finished_ms: int = 0
    cost_nano: int = 0
    unpriced: int = 0
    agent: str = ""
    model: str = ""


class LateCostRow(Struct, frozen=True, gc=False):
    """What a run had come to when something that was in flight at its ending was charged."""

    run: int
    tokens: int
    cost_nano: int
    unpriced: int


StoreRow: TypeAlias = EndingRow | LateCostRow


def supersede(db: Connection, run: int) -> None:
    """Keep the summary of an ending that no longer stands beside the one to come."""
    db.execute(_SUPERSEDE, (run,))
    db.execute("delete from store_summary where run = ?", (run,))


def write_endings(db: Connection, endings: Sequence[StoreRow]) -> None:
    """Write what became of runs, in the order in which it did."""
    for ending in endings:
        if isinstance(ending, LateCostRow):
            late = (ending.tokens, ending.cost_nano, ending.unpriced, ending.run)
            db.execute(_CHARGE_LATE, late)
            continue
        supersede(db, ending.run)
        if not ending.outcome:
            continue
        started = ending.started_ms
        db.execute(
            _INSERT,
            (
                ending.run,
                ending.attempt,
                ending.outcome,
                ending.steps,
                ending.tokens,
                max(0, ending.finished_ms - started) if started > 0 else None,
                ending.finished_ms,
                ending.cost_nano,
                ending.unpriced,
                ending.agent,
                ending.model,
            ),
        )
