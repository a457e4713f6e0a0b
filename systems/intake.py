"""From an input to the system that takes it. Bad references are answered, never raised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leviath.components.inputs import (
    Cancel,
    Configured,
    Decide,
    Gathered,
    HostClosing,
    HostOpened,
    Import,
    InferenceFinished,
    Input,
    Pause,
    Post,
    Release,
    Resume,
    Settle,
    Slept,
    Spawn,
    ToolFinished,
)
from leviath.systems import control, importing, opening, spawning, tools
from leviath.systems.inference import take_inference
from leviath.systems.run import Ack, Run

if TYPE_CHECKING:
    from leviath.systems.caches import Caches
    from leviath.systems.run import Tick
    from leviath.systems.world import World


def owner_of(item: Input) -> int:
    """The run that an input is about; 0 for none."""
    return getattr(item, "run", 0)


def take(world: World, tick: Tick, caches: Caches, item: Input) -> None:
    """Apply one input."""
    match item:
        case HostOpened():
            opening.take_opened(world, item)
        case Configured():
            opening.take_configured(world, tick, caches, item)
        case Settle():
            opening.take_settle(world, tick, caches, item)
        case Spawn():
            spawning.take_spawn(world, tick, item)
        case Import():
            importing.take_import(world, tick, item)
        case HostClosing() | Slept():
            pass
        case _:
            _take_for_run(world, tick, caches, item)


def _take_for_run(world: World, tick: Tick, caches: Caches, item: Input) -> None:
    n = owner_of(item)
    if n not in world:
        ticket = getattr(item, "ticket", 0)
        if ticket:
            tick.acks.append(
                Ack(ticket, n, "", "run_not_found", f"no run with ordinal {n} is hosted here")
            )
        return
    run = Run(world, n)
    match item:
        case InferenceFinished():
            take_inference(run, tick, caches, item)
        case ToolFinished():
            tools.take_tool(run, tick, item)
        case Gathered():
            spawning.take_gathered(run, tick, item)
        case Pause():
            control.take_pause(run, tick, item)
        case Resume():
            control.take_resume(run, tick, caches, item)
        case Cancel():
            control.take_cancel(run, tick, item)
        case Post():
            control.take_post(run, tick, item)
        case Decide():
            control.take_decide(run, tick, item)
        case Release():
            importing.take_release(run, tick, item)
        case _:
            raise AssertionError(item)
