"""What the run store calls an ending, and the one row that it gets of it."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from leviath.components.identity import Identity, Launch
from leviath.components.output import Flags, Output
from leviath.components.progress import Clock, Cost, Resolution, Stage, Visits
from leviath.components.run_status import RunStatus
from leviath.components.status import Status
from leviath.systems.run import EndingFact, LateCostFact

if TYPE_CHECKING:
    from leviath.systems.run import Run, Tick

CAUSES: Final = MappingProxyType(
    {
        "retries_spent": "escalated_retryable",
        "not_retryable": "escalated_terminal",
        "step_cap": "step_cap_reached",
        "own_budget": "cost_budget_exceeded",
        "shared_budget": "budget_ceiling_reached",
        "time_budget": "time_budget_exceeded",
        "stalled": "stalled",
        "refused": "refused",
        "denied": "denied",
    }
)
"""Causes of an error, and the outcome of each; any other is ``escalated_terminal``."""
TOTAL_MAX: Final = 2**63 - 1


def outcome_of(run: Run, cause: str = "") -> str:
    """The outcome of a run that has ended. Success takes a run that is complete, left something,
    and was forced past no gate and no required region."""
    status = run.get(Status).status
    if status is RunStatus.CANCELLED:
        return "cancelled"
    if status is RunStatus.ERROR:
        return CAUSES.get(cause, "escalated_terminal")
    flags = run.find(Flags) or Flags()
    left = (
        run.find(Output) is not None or flags.imported_produced_output or flags.modified_count > 0
    )
    forced = flags.gates_forced or flags.required_abandoned
    return "success" if left and not forced else "finished"


def tokens_of_run(cost: Cost) -> int:
    """All tokens of a run, as far as an integer of the store goes."""
    return min(cost.prompt + cost.completion + cost.cached + cost.cache_write, TOTAL_MAX)


def charge_late(run: Run, tick: Tick) -> None:
    """Something of a run that has ended was charged: its summary says so."""
    cost = run.get(Cost)
    tick.facts.append(LateCostFact(run.n, tokens_of_run(cost), cost.priced_nano, cost.unpriced))


def known_cause(run: Run) -> str:
    """Why the stage that an ended run is in was left, as far as its components still say it."""
    stage = run.find(Stage)
    return "" if stage is None or stage.outcome is None else stage.outcome.cause


def summarise(run: Run, tick: Tick, cause: str = "") -> None:
    """The run has just ended, or came in ended: the store gets its summary."""
    launch, identity = run.find(Launch), run.find(Identity)
    if launch is None or identity is None:
        return
    clock, cost = run.find(Clock) or Clock(), run.find(Cost) or Cost()
    visits, resolution = run.find(Visits), run.find(Resolution)
    tick.facts.append(
        EndingFact(
            run.n,
            run.get(Status).attempt,
            outcome_of(run, cause),
            0 if visits is None else visits.turns,
            tokens_of_run(cost),
            launch.started_ms,
            tick.now.wall_ms if clock.ended_ms is None else clock.ended_ms,
            cost.priced_nano,
            cost.unpriced,
            identity.agent_name,
            "" if resolution is None else resolution.entry_model or "",
        )
    )
