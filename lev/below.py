"""The runs below one, as ``lev show`` tells them: how they stand, and what they cost together."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from leviath.engine.tree_loading import children_rows, totals_of_row
from leviath.lev.progress import cost_text
from leviath.lev.text import one_line, plural, table
from leviath.systems.tree_index import Totals

if TYPE_CHECKING:
    from leviath.persistence.reader import Reader
    from leviath.persistence.rows import RunRow

SHOWN_MAX: Final = 50
"""Runs of a tree that are listed; the others are counted."""


class Below(Struct):
    """All runs below one."""

    rows: list[tuple[int, RunRow]]
    """Depth and row of the first ones, each before its children, oldest first."""
    statuses: Counter[str]
    total: Totals
    """What they cost together."""


def read_below(reader: Reader, run_id: str) -> Below:
    """Walk the index from a run down. A run is met once, whatever its documents say of parents."""
    below = Below([], Counter(), Totals())
    seen = {run_id}
    todo = [(1, row) for row in reversed(children_rows(reader, run_id))]
    while todo:
        depth, row = todo.pop()
        if row.run_id in seen:
            continue
        seen.add(row.run_id)
        below.statuses[row.status] += 1
        below.total.add(totals_of_row(row))
        if len(below.rows) < SHOWN_MAX:
            below.rows.append((depth, row))
        todo += [(depth + 1, child) for child in reversed(children_rows(reader, row.run_id))]
    return below


def below_text(own: RunRow, below: Below) -> str:
    """How many runs stand below one, and what the whole cost."""
    words = ", ".join(f"{count} {word}" for word, count in sorted(below.statuses.items()))
    total = totals_of_row(own)
    total.add(below.total)
    cost = cost_text(total.priced_nano, total.unpriced, 0, 0, ())
    return f"{plural(below.total.runs, 'run')} ({words}); with this one {cost}"


def below_table(below: Below) -> list[str]:
    """The tree, a run a line; empty for a run without children."""
    if not below.rows:
        return []
    rows = [
        [
            "  " * (depth - 1) + row.run_id,
            row.status if row.error is None else f"{row.status}: {one_line(row.error)}"[:60],
            row.stage or "-",
            cost_text(row.cost_priced_nano, row.unpriced_calls, 0, 0, ()),
        ]
        for depth, row in below.rows
    ]
    lines = ["", *table([["BELOW", "STATUS", "STAGE", "COST"], *rows], right=(3,))]
    more = below.total.runs - len(below.rows)
    return [*lines, f"and {more} more"] if more else lines
