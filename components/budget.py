"""What a run, a tree of runs or a whole world may spend, what is set aside for calls under way, and
what shared budgets have seen spent.

What a run itself has spent is in no part of its own: its cost and its turns tell. The sums of a
tree and of a world are kept, because runs that have ended leave memory, and some leave the home.
"""

from __future__ import annotations

from leviath.components.base import Component, Part


class Limits(Part):
    """A budget as it is recorded. None is no limit; every number is at least 1."""

    nano_usd: int | None = None
    tokens: int | None = None
    """Of all four kinds together."""
    turns: int | None = None
    """Model turns over all stages."""
    wall_ms: int | None = None
    """World time from where the budget begins."""


class Allowance(Component):
    """What a run may spend. Set at spawn, raised by a resume; not there without a budget."""

    own: Limits | None = None
    tree: Limits | None = None
    """For the run and all runs below it together; at a tree's root only."""
    own_since_ms: int = 0
    """World time from which ``own.wall_ms`` counts."""
    tree_since_ms: int = 0
    is_out_of_time: bool = False
    """A time budget has ended the work; it is not looked at again until it is raised."""


class Hold(Part):
    """The most that one attempt at a model call may take."""

    effect: int
    attempt: int
    nano_usd: int
    tokens: int
    turns: int


class Reserved(Component):
    """What is set aside for a run's calls, and the bounds of calls whose usage never came."""

    holds: tuple[Hold, ...] = ()
    lost_nano: int = 0
    lost_tokens: int = 0
    refused_at: int = -1
    """The run's effects so far when a call was refused last. Another refusal at the same count ends
    the run: the stage that took the error has nothing it can do."""


class TreeSpent(Component):
    """What a tree with a budget has spent since it has one, bounds included; at its root."""

    nano_usd: int = 0
    tokens: int = 0
    turns: int = 0


class FleetSpent(Component):
    """What hosts with a fleet budget have spent, bounds included; of the world itself."""

    nano_usd: int = 0
    tokens: int = 0
    turns: int = 0
