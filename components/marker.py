"""Status says who may act, the marker says what is next; this table holds every legal pair and
move.

The source is architecture section 5. Everything that changes a status or a marker goes through
``systems.moves``, which checks here.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Final

from leviath.components.run_status import RunStatus


class Marker(StrEnum):
    """What happens next to a run. A run that has not ended has exactly one."""

    preparing = "preparing"
    ready_to_infer = "ready_to_infer"
    awaiting_inference = "awaiting_inference"
    awaiting_tools = "awaiting_tools"
    backoff = "backoff"
    awaiting_transition_choice = "awaiting_transition_choice"
    awaiting_compaction = "awaiting_compaction"
    awaiting_person = "awaiting_person"
    waiting_for_children = "waiting_for_children"
    fan_out_waiting = "fan_out_waiting"
    awaiting_message = "awaiting_message"
    # only inside a step
    process_response = "process_response"
    ready_for_tools = "ready_for_tools"
    ready_for_transition = "ready_for_transition"
    resolve_transition = "resolve_transition"


TRANSIENT: Final = (
    Marker.process_response,
    Marker.ready_for_tools,
    Marker.ready_for_transition,
    Marker.resolve_transition,
)
"""Markers that no run holds between two steps."""

_RUNNING: Final = frozenset(
    {
        Marker.ready_to_infer,
        Marker.awaiting_inference,
        Marker.awaiting_tools,
        Marker.backoff,
        Marker.awaiting_transition_choice,
        Marker.awaiting_compaction,
    }
)
_WAITING: Final = frozenset(
    {Marker.awaiting_person, Marker.waiting_for_children, Marker.fan_out_waiting}
)

AT_REST: Final = MappingProxyType(
    {
        RunStatus.STARTING: frozenset({Marker.preparing}),
        RunStatus.RUNNING: _RUNNING,
        RunStatus.WAITING_INPUT: _WAITING,
        RunStatus.PAUSED: _RUNNING | _WAITING | {Marker.preparing},
        RunStatus.COMPLETE_INTERACTIVE: frozenset({Marker.awaiting_message}),
        RunStatus.COMPLETE: frozenset[Marker](),
        RunStatus.ERROR: frozenset[Marker](),
        RunStatus.CANCELLED: frozenset[Marker](),
    }
)
"""The markers that a run of each status may hold between two steps; an ended run holds none."""

MOVES: Final = MappingProxyType(
    {
        RunStatus.STARTING: frozenset(
            {
                RunStatus.RUNNING,
                RunStatus.WAITING_INPUT,
                RunStatus.PAUSED,
                RunStatus.ERROR,
                RunStatus.CANCELLED,
            }
        ),
        RunStatus.RUNNING: frozenset(
            {
                RunStatus.WAITING_INPUT,
                RunStatus.PAUSED,
                RunStatus.COMPLETE,
                RunStatus.COMPLETE_INTERACTIVE,
                RunStatus.ERROR,
                RunStatus.CANCELLED,
            }
        ),
        RunStatus.WAITING_INPUT: frozenset(
            {RunStatus.RUNNING, RunStatus.PAUSED, RunStatus.ERROR, RunStatus.CANCELLED}
        ),
        RunStatus.PAUSED: frozenset(
            {
                RunStatus.STARTING,
                RunStatus.RUNNING,
                RunStatus.WAITING_INPUT,
                RunStatus.CANCELLED,
            }
        ),
        RunStatus.COMPLETE_INTERACTIVE: frozenset(
            {RunStatus.RUNNING, RunStatus.COMPLETE, RunStatus.CANCELLED}
        ),
        RunStatus.ERROR: frozenset({RunStatus.RUNNING}),
        RunStatus.CANCELLED: frozenset({RunStatus.RUNNING}),
        RunStatus.COMPLETE: frozenset[RunStatus](),
    }
)
"""The moves between statuses. ``paused`` goes back to what it was, or to cancelled; error and
cancelled go to running by an explicit resume only."""


def pair_is_legal(status: RunStatus, marker: Marker | None) -> bool:
    """Whether a run may rest with this status and marker."""
    legal = AT_REST[status]
    return marker is None if not legal else marker in legal
