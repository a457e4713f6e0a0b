"""What subscribers hear. Numbered without a gap; durable before anybody hears of it."""

from __future__ import annotations

from typing import TypeAlias, dataclass_transform

from msgspec import Struct, field


# msgspec inherits ``frozen``; the type checkers have to be told.
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Event(Struct, frozen=True, array_like=True, gc=False, tag_field="e"):
    """``number`` counts all events of a world; ``wall_ms`` is the wall time of the step."""

    number: int
    run_id: str
    wall_ms: int


class HomeOpened(Event, tag="opened"):
    """A host took the home; ``run_id`` is empty. What is not zero is in ``OpenWorld.report``."""

    epoch: int
    clean: bool
    """The last host closed in order."""
    rewritten: int = 0
    imported: int = 0
    set_aside: int = 0
    unreadable: int = 0
    quarantined: int = 0
    rolled_back: int = 0


class Spawned(Event, tag="spawned"):
    """A run exists, at its entry stage."""

    agent_name: str
    stage: str


class ChildSpawned(Event, tag="child"):
    """A run started another one; the child's own events carry its id."""

    child: str
    agent_name: str
    depth: int
    """Of the child."""
    item: str = ""
    """Of a fan-out's worker."""


class ChildrenJoined(Event, tag="joined"):
    """A run goes on with what its children handed back."""

    mode: str
    """all, fail_all, first or quorum."""
    total: int
    succeeded: int
    failed: int
    stopped: int
    """Were not needed any more, and are cancelled."""


class StatusChanged(Event, tag="status"):
    """A run's status, or what it waits for, changed."""

    status: str
    """RunStatus in wire words."""
    previous: str
    stage: str
    waiting_on: str = ""
    why: str = ""
    actor: str = "engine"


class StageEntered(Event, tag="stage"):
    """A run entered a stage; ``visit`` counts its entries from 1."""

    stage: str
    previous: str
    visit: int


class TurnFinished(Event, tag="turn"):
    """A model answered: one turn's tokens and price."""

    stage: str
    iteration: int
    """Of this visit to the stage."""
    turn: int
    """Over all stages."""
    prompt: int
    completion: int
    cached: int
    cache_write: int
    nano_usd: int | None
    """None: the call has no price."""
    tool_calls: int


class CallFailed(Event, tag="failed"):
    """One attempt at a model call failed."""

    kind: str
    message: str
    attempt: int
    retry_in_ms: int | None
    """None: this was the last attempt on this model."""


class CallRefused(Event, tag="refused"):
    """A model call was not made: a budget does not cover it, or its price is not known."""

    cause: str
    """own_budget, shared_budget, time_budget, step_cap for turns, or not_retryable for a price."""
    message: str


class ToolStarted(Event, tag="tool"):
    """One attempt at a tool call goes out."""

    call_id: str
    tool: str
    attempt: int


class ToolEnded(Event, tag="tooled"):
    """A tool call has its result, or was settled otherwise (``note``)."""

    call_id: str
    tool: str
    is_error: bool
    note: str = ""


class CallUnknown(Event, tag="unknown"):
    """A tool call may have happened; a person decides, or the model is told."""

    call_id: str
    tool: str


class QuestionAsked(Event, tag="asked"):
    """A run asks a person; ``OpenWorld.questions`` has the text."""

    question: str
    """Its id."""
    kind: str
    """text, choice, confirm, review, edit, approval, unknown or point."""
    call_id: str = ""
    tool: str = ""


class QuestionAnswered(Event, tag="answered"):
    """A person answered; a paused run uses the answer when it is resumed."""

    question: str
    kind: str
    answer: str
    """yes, no, choice or text; of a call, the word that was said of it."""
    actor: str = "host"


class QuestionClosed(Event, tag="unasked"):
    """A question needs no answer any more: its stage or its run is over."""

    question: str
    kind: str


class OutputSubmitted(Event, tag="output"):
    """A run handed in its final output; a later one replaces it."""

    stage: str
    size_bytes: int


class MessageDelivered(Event, tag="message"):
    """A message was put before the model."""

    sender: str


class Ended(Event, tag="ended"):
    """The run is complete, in error or cancelled."""

    status: str
    error: str | None
    cost_nano_usd: int | None
    """None: some call has no price."""
    priced_nano_usd: int
    turns: int


class WebhookDelivered(Event, tag="webhook"):
    """A callback address confirmed that it knows of an ending."""

    delivery_id: str
    attempt: int
    answer: str


class WebhookFailed(Event, tag="unhooked"):
    """An attempt to tell a callback address of an ending failed."""

    delivery_id: str
    attempt: int
    answer: str
    retry_in_ms: int | None
    """None: it was given up."""


class Confirmed(Struct, frozen=True, gc=False):
    """Everything that was previewed up to this step is durable. Heard by previews only."""

    step: int


class Withdrawn(Struct, frozen=True, gc=False):
    """What was previewed after this step never became durable: it did not happen."""

    step: int


WorldEvent: TypeAlias = (
    HomeOpened
    | Spawned
    | StatusChanged
    | StageEntered
    | TurnFinished
    | CallFailed
    | CallRefused
    | ToolStarted
    | ToolEnded
    | CallUnknown
    | OutputSubmitted
    | MessageDelivered
    | Ended
    | WebhookDelivered
    | WebhookFailed
    | ChildSpawned
    | ChildrenJoined
    | QuestionAsked
    | QuestionAnswered
    | QuestionClosed
)
