"""Runs that work for other runs: what a parent waits for, what a worker is, what a tree has used.

Who the children of a run are is in none of these: it follows from each child's ``Tree``.
"""

from __future__ import annotations

from leviath.components.base import Component, Part
from leviath.components.text import EMPTY, Text


class TreeUse(Component):
    """On the root of a tree: what its runs have used of the tree's caps."""

    spawned: int = 0
    """Runs that runs of this tree ever started; the root is not one of them."""
    window_ms: int = 0
    """World time at which the present window of the rate began."""
    window_spawned: int = 0


class Worker(Component):
    """On a run that a fan-out started."""

    item: str
    """Id of the item it works on."""
    entry: int = -1
    """Stage of its blueprint to begin in; -1 for the blueprint's own entry."""


class Join(Part):
    """A tool call that is settled once children have ended."""

    call_id: str
    targets: tuple[int, ...]
    """Ordinals of the children, in the order in which their results are given."""
    mode: str = "all"
    """all, fail_all, first or quorum."""
    quorum: int = 0
    """Of quorum: how many must have succeeded."""


class Joins(Component):
    """What the turn under way waits for, beside a fan-out."""

    items: tuple[Join, ...] = ()


class Item(Part):
    """One piece of work of a fan-out."""

    id: str
    task: Text


class Split(Component):
    """A fan-out as it was asked for. Written once, and once more when its last worker started."""

    call_id: str
    """The call that its result answers."""
    from_stage: bool
    """A fan-out stage asked; else a tool call of another stage."""
    items: tuple[Item, ...]
    """Empty once all were handed out: each worker has its own as its task."""
    blueprint: bytes
    """Digest of the workers' blueprint."""
    agent_name: str
    agent_path: str
    entry: int = -1
    """See ``Worker``."""
    no_output_tools: bool = False
    read_paths_declared: int | None = None
    mode: str = "all"
    quorum: int = 0
    max_workers: int = 0
    """At work at once; 0 for all."""


class FanOut(Component):
    """How far a fan-out is. Gone when it is over."""

    total: int
    started: int = 0
    ended: int = 0
    succeeded: int = 0
    first: int = 0
    """No worker of this fan-out has a lower ordinal, and every worker of an older one has."""


class Round(Part):
    """The newest split of one stage."""

    stage: str
    rounds: int
    total: int
    ids: tuple[str, ...]
    """Of its first items."""


class Rounds(Component):
    """What earlier visits of fan-out stages covered, told to the next one."""

    items: tuple[Round, ...] = ()


class Outcome(Part):
    """How a child ended, as its parent hears of it."""

    ordinal: int
    run_id: str
    status: str
    """RunStatus in wire words; "" for one that is not known any more."""
    succeeded: bool
    item: str = ""
    result: Text = EMPTY
    error: str = ""
