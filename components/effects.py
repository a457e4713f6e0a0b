"""What a run has in flight, what it asks for, and what it was told while held."""

from __future__ import annotations

from leviath.components.base import Component, Part
from leviath.components.context import Reference
from leviath.components.text import Text


class Effect(Part):
    """One thing the outside does for a run. A component until its outcome is taken."""

    number: int
    """Counts the run's effects from 1; run id and number make the idempotency key."""
    kind: str
    """turn, routing, tool or gather."""
    ordinal: int
    """Counts the run's effects of that kind from 1; retries keep it."""
    attempt: int = 1
    epoch: int = 0
    live: bool = True
    """Issued and without an outcome. False while backing off between attempts."""
    due_ms: int = 0
    """World time: deadline of a live effect, end of the backoff of one that is not."""
    provider: str = ""
    model: str = ""
    started_ms: int = 0
    """World time of the first attempt: bounds all attempts together."""
    slept_ms: int = 0
    """Backoff spent so far."""
    aborting: bool = False
    """An Abort was issued; the outcome is still owed."""
    superseded: bool = False
    """Nobody waits for the outcome any more: its stage or its run was ended meanwhile."""


class Effects(Component):
    """All effects of a run, oldest first, and the counter they come from."""

    counter: int = 0
    calls: int = 0
    """Tool calls released so far: their ordinal."""
    gathers: int = 0
    items: tuple[Effect, ...] = ()

    def find(self, number: int) -> Effect | None:
        """The effect of that number, as long as it is one of the run's."""
        for effect in self.items:
            if effect.number == number:
                return effect
        return None

    def without(self, gone: Effect) -> tuple[Effect, ...]:
        """All effects but this one."""
        items = self.items
        if len(items) == 1 and items[0] is gone:
            return ()
        return tuple([effect for effect in items if effect is not gone])


class Call(Part):
    """One tool call of the turn under way."""

    call_id: str
    tool: str
    arguments: Text
    effect: int = 0
    """Number of its effect; 0 for a call that never leaves the step."""
    effect_class: str = ""
    """pure, idempotent or once, as declared when the call was released."""
    state: str = "open"
    """open, asked (a person decides), unknown (may have happened), posed (it is a question to a
    person), waiting (for other runs), done."""
    result: Text | None = None
    is_error: bool = False
    modified: tuple[str, ...] = ()
    note: str = ""
    """Beside the result: how it was settled, when that was not by an outcome."""
    fault: str = ""
    fields: tuple[tuple[str, Text], ...] = ()
    """Of the asked call, see ``AskedCall``."""
    references: tuple[Reference, ...] = ()
    """Of the result, see ``Entry``."""


class Turn(Component):
    """The reply that is being worked on. Present from a reply until its last tool result."""

    text: Text
    calls: tuple[Call, ...] = ()
    stop_reason: str = "end"
    counted: bool = False
    """The reply is in the conversation, and its calls are owed results there."""


class Held(Component):
    """A model's reply that landed while the run was paused; used on resume, without a second
    call."""

    effect: int
    text: Text
    calls: tuple[Call, ...] = ()
    stop_reason: str = "end"
    purpose: str = "turn"


class Timers(Component):
    """World times at which something is due that is no effect."""

    stall_ms: int | None = None
    """When a run that no permit can help is parked."""
    stuck_ms: int | None = None
    """When the stage has lasted as long as its stuck edge allows."""


class Message(Part):
    """A message to a run that has not yet been put before the model."""

    text: Text
    sender: str = ""
    region: str = ""


class Inbox(Component):
    """Messages in order of arrival; delivered once, before the next request."""

    messages: tuple[Message, ...] = ()
