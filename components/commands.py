"""What systems want done outside. A command leaves only after the commit of its step.

Commands are not journaled: after a restart they follow again from the effects that are still open.
"""

from __future__ import annotations

from typing import TypeAlias

from leviath.components.base import Part
from leviath.components.context import Region
from leviath.components.identity import Identity, Launch, Tree
from leviath.components.outbox import Delivery
from leviath.components.text import Text


class Infer(Part):
    """Make one model call."""

    run: int
    run_id: str
    effect: int
    attempt: int
    epoch: int
    purpose: str
    """turn or routing."""
    ordinal: int
    provider: str
    model: str
    stage: str
    blueprint: bytes
    stage_index: int
    regions: tuple[Region, ...]
    """What the model sees, in the blueprint's order."""
    tools: tuple[bytes, ...]
    """Digests of the offered tools' specs."""
    timeout_ms: int
    workdir: str
    question: str = ""
    """Of a routing call: asked after everything else, and kept out of the context."""
    output_tokens_max: int = 0
    """Longest reply, where a budget needs one and the stage sets none; 0 for none."""


class CallTool(Part):
    """Make one tool call."""

    run: int
    run_id: str
    effect: int
    attempt: int
    epoch: int
    call_id: str
    tool: str
    arguments: Text
    timeout_ms: int
    workdir: str
    result_bytes_max: int
    """What of the result goes to the model; the rest is spilled to a file."""


class Gather(Part):
    """Read what a run needs before it starts."""

    run: int
    run_id: str
    effect: int
    attempt: int
    workdir: str
    seeds: tuple[tuple[str, str, tuple[str, ...]], ...]
    """(region, kind, patterns)."""
    timeout_ms: int


class FindAgent(Part):
    """Find and check a blueprint that a run named."""

    run: int
    run_id: str
    effect: int
    attempt: int
    wanted: str
    """A name or a path; for a query, words of its name or description."""
    is_query: bool
    agent_path: str
    """Folder of the asking run's own blueprint; "" for one built in Python."""
    workdir: str
    timeout_ms: int


class Abort(Part):
    """End one effect early. Its outcome is still owed."""

    run: int
    effect: int
    attempt: int


class Stop(Part):
    """A run ended: nothing of it may still be alive outside."""

    run: int


class Deliver(Part):
    """Tell the address of ``launch.callback_url`` how the run ended."""

    run: int
    delivery: Delivery
    identity: Identity
    launch: Launch
    tree: Tree


Command: TypeAlias = Infer | CallTool | Gather | FindAgent | Abort | Stop | Deliver
