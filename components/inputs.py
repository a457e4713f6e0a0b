"""Everything that enters a world. A step is a function of its state, its times and these.

Tags and field order never change; new fields are appended with a default (see ``base``). Texts were
cleaned and interned at the border; secrets are references.
"""

from __future__ import annotations

from typing import TypeAlias, dataclass_transform

from msgspec import Struct, field

from leviath.components.budget import Limits
from leviath.components.context import AskedCall
from leviath.components.identity import Launch
from leviath.components.text import Text
from leviath.components.world_facts import Offer, Policy, Prices


# msgspec inherits ``frozen``; the type checkers have to be told.
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class _Input(Struct, frozen=True, array_like=True, gc=False, tag_field="i"):
    pass


class HostOpened(_Input, tag="opened"):
    """A host took the world. Comes first in its epoch."""

    epoch: int
    rules: int
    """Version of the rules that this host applies."""
    away_ms: int = 0
    """Wall time since the last step of the last host, never negative."""
    clean: bool = True
    """The last host closed in order."""
    drive: bool = True
    """False for a host that only carries out requests: nothing is sent, no run moves on."""
    found: tuple[int, ...] = ()
    """How many runs were rewritten and imported, files set aside, folders unreadable, runs
    quarantined and runs rolled back while the home was opened."""


class HostClosing(_Input, tag="closing"):
    """The host lets go in order. Changes no status."""

    sends_no_more: bool = False
    """Nothing is sent from now on: what the runs want next is left to the next host."""


class Configured(_Input, tag="configured"):
    """What the host offers and how it decides. None leaves a part as it is."""

    policy: Policy | None = None
    offer: Offer | None = None
    prices: Prices | None = None


class Settle(_Input, tag="settle"):
    """Runs whose effects were in flight when the last host went away. Sliced by the host."""

    ordinals: tuple[int, ...]
    hold: str = ""
    """Why these are held paused, with nothing made again until somebody resumes them."""


class Slept(_Input, tag="slept"):
    """The machine slept: wall time that world time leaves out."""

    gap_ms: int


class Spawn(_Input, tag="spawn"):
    """Start a run. The blueprint of ``launch.blueprint`` is on the world's shelf."""

    ticket: int
    """Names the caller that waits for the acknowledgement."""
    agent_name: str
    agent_path: str
    launch: Launch
    key: str = ""
    run_id: str = ""
    """"" lets the step mint one."""
    parent: int = 0
    budget: Limits | None = None
    """Of the run alone."""
    tree_budget: Limits | None = None
    """Of the run and all runs below it together."""


class Gathered(_Input, tag="gathered"):
    """What was read for a run in preparation."""

    run: int
    effect: int
    attempt: int
    regions: tuple[tuple[str, tuple[Text, ...]], ...] = ()
    error: str = ""
    workspace_lost: bool = False


class InferenceFinished(_Input, tag="inferred"):
    """Outcome of one attempt at a model call."""

    run: int
    effect: int
    attempt: int
    epoch: int
    text: Text = Text()
    calls: tuple[AskedCall, ...] = ()
    stop_reason: str = "end"
    prompt: int = 0
    completion: int = 0
    cached: int = 0
    cache_write: int = 0
    cost_nano_usd: int | None = None
    """The provider's own figure."""
    error_kind: str = ""
    """"" for a reply; else a word of ErrorKind."""
    error: str = ""
    retry_after_ms: int | None = None
    retryable: bool = False
    charged: bool = True
    """False when the attempt certainly cost nothing: it was never sent."""


class ToolFinished(_Input, tag="tooled"):
    """Outcome of one attempt at a tool call."""

    run: int
    effect: int
    attempt: int
    epoch: int
    result: Text = Text()
    is_error: bool = False
    modified: tuple[str, ...] = ()
    unknown: bool = False
    """The tool itself cannot tell whether it happened."""
    empty: bool = False
    """A search that found nothing."""
    workspace_lost: bool = False


class Delivered(_Input, tag="delivered"):
    """Outcome of one attempt at a delivery."""

    run: int
    effect: int
    """Number of the delivery."""
    attempt: int
    epoch: int
    answer: str
    """The receiver's status line, or what kept it from answering."""
    accepted: bool = False
    retryable: bool = False
    retry_after_ms: int | None = None
    charged: bool = True
    """False when nothing was sent: the attempt does not count."""
    refused: bool = False
    """This host may not send it there."""


class Pause(_Input, tag="pause"):
    """Hold a run until it is resumed."""

    run: int
    ticket: int = 0
    actor: str = "host"
    why: str = ""


class Resume(_Input, tag="resume"):
    """Let a run go on."""

    run: int
    ticket: int = 0
    actor: str = "host"
    budget: Limits | None = None
    """What it names takes the place of the old limits; the others stay."""
    tree_budget: Limits | None = None


class Cancel(_Input, tag="cancel"):
    """End a run from outside."""

    run: int
    ticket: int = 0
    actor: str = "host"
    why: str = ""


class Post(_Input, tag="message"):
    """A message to a run."""

    run: int
    text: Text
    ticket: int = 0
    sender: str = ""
    region: str = ""


class Decide(_Input, tag="decide"):
    """A person's word on a parked tool call."""

    run: int
    call_id: str
    verdict: str
    """again, done or stop for a call that may have happened; allow or deny for one that is
    asked."""
    ticket: int = 0
    actor: str = "host"


class Import(_Input, tag="import"):
    """A run folder that this world did not know: its components as encoded parts."""

    ticket: int
    parts: tuple[tuple[str, bytes], ...]
    hold: bool = True
    """Held paused, unless the home had no world of its own."""
    why: str = ""
    """What a run that is held says of it; "" when nothing of it was lost."""


class Release(_Input, tag="release"):
    """Drop a run that ended from the world (retention)."""

    run: int
    ticket: int = 0


class AgentFound(_Input, tag="agent"):
    """The blueprint that a run asked for by name or path. It is on the world's shelf."""

    run: int
    effect: int
    attempt: int
    blueprint: bytes = b""
    agent_name: str = ""
    agent_path: str = ""
    no_output_tools: bool = False
    read_paths_declared: int | None = None
    error: str = ""
    """Why there is none; "" when there is one."""


class Fork(_Input, tag="fork"):
    """Start a run where another one was after a step. Its blueprint is on the world's shelf."""

    ticket: int
    parts: tuple[tuple[str, bytes], ...]
    """The other run's components at that step, as encoded parts."""
    source_world_id: str
    source_run_id: str
    step: int
    source_world_ms: int
    """World time of the step, on the other world's clock."""
    agent_name: str
    agent_path: str
    workdir: str
    blueprint: bytes
    key: str = ""
    run_id: str = ""
    """"" lets the step mint one."""


class Answered(_Input, tag="answered"):
    """A person's answer to a question."""

    run: int
    question: str
    verdict: str = ""
    """yes, no or ""."""
    choice: int = -1
    """Index of the choice; -1 for none."""
    text: Text = Text()
    scope: str = "once"
    """Of a yes to an approval: once, stage or run."""
    ticket: int = 0
    actor: str = "host"


Input: TypeAlias = (
    HostOpened
    | HostClosing
    | Configured
    | Settle
    | Slept
    | Spawn
    | Gathered
    | InferenceFinished
    | ToolFinished
    | Pause
    | Resume
    | Cancel
    | Post
    | Decide
    | Import
    | Release
    | Delivered
    | AgentFound
    | Fork
    | Answered
)
