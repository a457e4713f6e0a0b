"""The words for how a run of the run store stands, and which may follow which.

The words are those of io-harness (section 2.3), the moves are ours: what has ended is taken up
again by a resume and by nothing else, and success is final.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

SUCCESS: Final = "success"
"""The only ending that counts as one."""
FINAL: Final = ("success", "finished", "denied", "refused", "plan_rejected")
"""Endings that nothing follows."""
RESUMABLE: Final = (
    *("cancelled", "stalled", "escalated_retryable", "escalated_terminal", "step_cap_reached"),
    *("cost_budget_exceeded", "budget_ceiling_reached", "time_budget_exceeded"),
)
"""Endings that a resume may follow."""
ENDINGS: Final = (*FINAL, *RESUMABLE)
PAUSES: Final = ("awaiting_answer", "awaiting_approval", "awaiting_plan", "awaiting_recovery")
"""A person is awaited: no ending, and no summary."""
OUTCOMES: Final = (*ENDINGS, *PAUSES)
RUNNING: Final = "running"
"""Stands for a run without an outcome."""


def _moves() -> dict[str, frozenset[str]]:
    going = frozenset(OUTCOMES)
    moves = {RUNNING: going}
    for pause in PAUSES:
        moves[pause] = going - {pause} | {RUNNING}
    for ending in ENDINGS:
        moves[ending] = frozenset({RUNNING}) if ending in RESUMABLE else frozenset()
    return moves


MOVES: Final = MappingProxyType(_moves())
"""What may follow each outcome; ``running`` is what a resume leads to."""
