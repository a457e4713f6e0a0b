"""A run's status, its marker's place in the queue, and what it waits for."""

from __future__ import annotations

from leviath.components.base import Component, Part
from leviath.components.marker import Marker
from leviath.components.run_status import RunStatus


class Waiting(Part):
    """Why a run is parked, in the seed's words (``RunMeta.waiting_on``)."""

    reason: str
    """tool_approval, user_prompt, interaction_point, needs_setup, fan_out_workers, children."""
    blocker: str = ""
    """Of needs_setup: provider_missing, credits_exhausted, auth_failed, forbidden,
    providers_unavailable."""
    remedy: str = ""
    outstanding: int = 0


class Status(Component):
    """Who may act on the run. Changed by ``systems.moves`` alone."""

    status: RunStatus
    error: str | None = None
    """Set exactly while status is error."""
    actor: str = "engine"
    """Who made the last move: engine, host, operator or a caller's own word."""
    why: str = ""
    waiting: Waiting | None = None
    """Set while the run is parked for a reason; kept through a pause."""
    paused_from: RunStatus | None = None
    """Set exactly while status is paused: where resume goes."""
    attempt: int = 1
    """How often the run was started: 1, and 1 more for each resume after an ending."""
    held_by: int = 0
    """Ordinal of the parent whose pause holds this run too; 0 for a pause of its own."""


class Position(Component):
    """The marker, and the run's place in that marker's queue."""

    marker: Marker
    sequence: int
    """World-wide count of marker moves: queues are first in, first out by it, also after a load."""
