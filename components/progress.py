"""How far a run is: its clock, its costs, its stage."""

from __future__ import annotations

from leviath.components.base import Component, Part


class Clock(Component):
    """Spans of one run. World milliseconds do not advance while nobody hosts the world."""

    progress_ms: int | None = None
    """Unix milliseconds of the last move of (stage, iteration, status); never goes backwards."""
    active_ms: int = 0
    """Working time of closed spans."""
    since_ms: int | None = None
    """World time at which the open span began; None while the clock stands."""
    ended_ms: int | None = None
    """Unix milliseconds of the ending."""
    kept: bool = True
    """False for an imported run whose document carried no clock."""


class Cost(Component):
    """A fold of the run's ledger. Unknown is not zero: a call without a price counts as
    unpriced."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    cache_write: int = 0
    tool_calls: int = 0
    priced_nano: int = 0
    """Nano-dollars of all calls that have a price."""
    unpriced: int = 0
    """Calls without a price, interrupted ones included."""
    computed: int = 0
    """Calls priced from rates rather than by the provider's own figure."""
    upper_nano: int = 0
    """Upper bound of what interrupted calls may have cost; shown beside, never added."""
    bounded: int = 0
    """Interrupted calls that ``upper_nano`` bounds; for the others no bound is known."""

    @property
    def is_exact(self) -> bool:
        return self.computed == 0 and self.unpriced == 0


class StageTotals(Part):
    """One row of ``stages.json``."""

    name: str
    entered: bool = False
    prompt: int = 0
    completion: int = 0
    cached: int = 0
    cache_write: int = 0
    priced_nano: int = 0
    unpriced: int = 0
    computed: int = 0
    started_ms: int | None = None
    ended_ms: int | None = None
    visits: int = 0


class Ledgers(Component):
    """Totals per stage, in the blueprint's order."""

    stages: tuple[StageTotals, ...] = ()


class Outcome(Part):
    """Why a stage ended other than by itself."""

    kind: str
    """errored, max_iterations or stuck."""
    message: str = ""
    cause: str = ""
    """Of errored, what the run store calls it: retries_spent, not_retryable, step_cap; "" for
    anything else."""


class Stage(Component):
    """The stage a run is in and what counts within it. Reset on entry."""

    index: int
    name: str
    iteration: int = 0
    """Turns taken in this stage since it was entered."""
    entered_ms: int = 0
    """World time of entry."""
    tool_calls: int = 0
    modifying: int = 0
    """Successful calls of tracked write tools."""
    blocked: int = 0
    """Calls of tracked write tools that policy denied."""
    nudges: int = 0
    gate_reentries: int = 0
    required_reentries: int = 0
    output_reentries: int = 0
    stuck_fired: bool = False
    submitted: bool = False
    """This visit submitted a final output."""
    edits: tuple[tuple[str, int], ...] = ()
    """How often each path was edited, first edit first."""
    region_marks: tuple[tuple[str, bytes], ...] = ()
    """What the regions named by ``require_region_updated`` gates held at entry, as digests."""
    outcome: Outcome | None = None
    asking: tuple[str, ...] = ()
    """Targets offered to the model while a routing call is wanted or under way."""
    repeats: tuple[tuple[bytes, int], ...] = ()
    """Call counts by digest of (tool, arguments), for the repetition nudge."""
    readonly_streak: int = 0
    split: bool = False
    """This visit of a fan-out stage has split its work."""
    split_reentries: int = 0
    points_done: int = 0
    """Interaction points of the stage that are passed in this visit."""


class Visits(Component):
    """How often each stage was entered, and the run's turns over all stages."""

    counts: tuple[int, ...]
    turns: int = 0
    """Model turns over all stages: the step number of the run store."""
    routings: int = 0
    """Routing calls that are over: one less than the ordinal of the next."""
    turn_calls: int = 0
    """Turn calls that are over, by a reply or for good: one less than the ordinal of the next.
    Retries and the next model after a failover keep the ordinal of the call that they repeat."""


class Resolution(Component):
    """Which model the current stage uses."""

    entry_model: str | None = None
    """``provider/model`` of the entry stage; never rewritten."""
    candidates: tuple[tuple[str, str], ...] = ()
    """(provider, model) in order of preference, for the current stage."""
    choice: int = 0
    """Index of the candidate in use; lasts until the stage is left."""
