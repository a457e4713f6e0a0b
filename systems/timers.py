"""What is due: deadlines of effects, ends of backoffs, stalls, stages that last too long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from leviath.components.budget import Allowance
from leviath.components.commands import Abort
from leviath.components.effects import Effect, Effects, Timers
from leviath.components.marker import Marker
from leviath.components.progress import Resolution
from leviath.components.run_status import RunStatus
from leviath.components.status import Waiting
from leviath.systems import stages
from leviath.systems.budgets import time_refusal
from leviath.systems.control import fail_stage
from leviath.systems.deliveries import deliveries_due
from leviath.systems.inference import backoff_over
from leviath.systems.moves import park
from leviath.systems.reserves import WORKS, over_ms

if TYPE_CHECKING:
    from leviath.systems.run import Run, Tick


def on_due(run: Run, tick: Tick) -> None:
    """Look at everything of one run that may be due. Leaves nothing due at this time."""
    deliveries_due(run, tick)
    if run.status.is_ended:
        return
    allowance = run.find(Allowance)
    if allowance is not None and run.status in WORKS:
        over = over_ms(allowance)
        if over is not None and over <= tick.now.world_ms:
            _time_over(run, tick, allowance)
            return
    _effects_due(run, tick)
    timers = run.find(Timers)
    if timers is None or run.status is not RunStatus.RUNNING:
        return
    if timers.stall_ms is not None and timers.stall_ms <= tick.now.world_ms:
        run.put(replace(timers, stall_ms=None))
        _stalled(run, tick)
    if timers.stuck_ms is not None and timers.stuck_ms <= tick.now.world_ms:
        run.put(replace(run.get(Timers), stuck_ms=None))
        # A run in mid-call is looked at when its turn is over; one that stands ready, now.
        if run.marker is Marker.ready_to_infer:
            stages.begin_turn(run, tick)


def _time_over(run: Run, tick: Tick, allowance: Allowance) -> None:
    """A time budget is over: the stage ends in error, and what is outside is aborted."""
    why = time_refusal(run, tick.now.world_ms)
    run.put(replace(allowance, is_out_of_time=True))
    if why is not None:
        fail_stage(run, tick, why.message, why.cause)


def _effects_due(run: Run, tick: Tick) -> None:
    effects = run.get(Effects)
    over = False
    items: list[Effect] = []
    for effect in effects.items:
        if effect.aborting or not effect.due_ms or effect.due_ms > tick.now.world_ms:
            items.append(effect)
        elif effect.live:
            tick.commands.append(Abort(run.n, effect.number, effect.attempt))
            items.append(replace(effect, aborting=True, due_ms=0))
        elif run.status is RunStatus.PAUSED:
            items.append(effect)
        else:
            items.append(replace(effect, due_ms=0))
            over = True
    if tuple(items) != effects.items:
        run.put(replace(effects, items=tuple(items)))
    if over and run.marker is Marker.backoff:
        backoff_over(run, tick)


def _stalled(run: Run, tick: Tick) -> None:
    """Ready for longer than anybody should wait while every provider is out of service."""
    if run.marker is not Marker.ready_to_infer:
        return
    resolution = run.get(Resolution)
    names = ", ".join(dict.fromkeys(provider for provider, _ in resolution.candidates))
    remedy = f"{names} failed too often of late; when it works again, resume the run"
    park(run, tick, Waiting("needs_setup", "providers_unavailable", remedy))
