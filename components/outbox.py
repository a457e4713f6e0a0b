"""What a run owes to the address that was named at its spawn: word of each of its endings."""

from __future__ import annotations

from typing import Final

from leviath.components.base import Component, Part
from leviath.components.output import Flags, Output
from leviath.components.progress import Clock, Cost
from leviath.components.status import Status

DELIVERIES_KEPT: Final = 32
"""Settled deliveries that a run remembers, the newest: each resume after an ending adds one."""


class Delivery(Part):
    """One ending, as it was, and how far the word of it has come.

    What the body says is kept here, because the run may be resumed before it was delivered.
    """

    number: int
    """Of its effect; shared with the run's other effects, so that an Abort finds it."""
    generation: int
    """Counts the run's starts from 1 (``Status.attempt``); part of the delivery id."""
    status: Status
    clock: Clock
    cost: Cost
    flags: Flags
    output: Output | None = None
    state: str = "sent"
    """sent (an attempt is outside), waiting (for its next attempt), refused (this host may not send
    it there, another may), delivered, failed or held (its run came from another home)."""
    attempt: int = 1
    """Counts the attempts at it, lost ones included."""
    epoch: int = 0
    due_ms: int = 0
    """World time: deadline of an attempt that is outside, end of the backoff of one that waits."""
    answer: str = ""
    """What the newest finished attempt came to."""

    @property
    def is_open(self) -> bool:
        """The receiver has not confirmed it, and nobody gave it up."""
        return self.state in ("sent", "waiting")

    @property
    def is_owed(self) -> bool:
        """It is open, or another host may send it."""
        return self.is_open or self.state == "refused"


class Outbox(Component):
    """A run's deliveries, oldest first."""

    items: tuple[Delivery, ...] = ()

    @property
    def is_open(self) -> bool:
        """Something of it has yet to arrive."""
        return any(delivery.is_open for delivery in self.items)

    @property
    def is_owed(self) -> bool:
        """Something of it may arrive yet, if from another host."""
        return any(delivery.is_owed for delivery in self.items)


def delivery_id(run_id: str, generation: int) -> str:
    """The name by which a receiver tells deliveries apart: the same for all attempts at one ending,
    another after a resume (leviath-run-files 7, 9)."""
    first = f"agent_completed:{run_id}"
    return first if generation == 1 else f"{first}:{generation}"
