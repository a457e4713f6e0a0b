"""From an input to the system that takes it. Bad references are answered, never raised."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from leviath.components.inputs import (
    AgentFound,
    Answered,
    Cancel,
    Configured,
    Decide,
    Delivered,
    Fork,
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
from leviath.systems import control, forking, importing, joins, opening, spawning, tools
from leviath.systems.answers import take_answer
from leviath.systems.deliveries import take_delivered
from leviath.systems.inference import take_inference
from leviath.systems.run import Ack, Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from leviath.systems.caches import Caches
    from leviath.systems.run import Tick
    from leviath.systems.world import World

Take: TypeAlias = "Callable[[Run, Tick, Caches, Any], None]"


def owner_of(item: Input) -> int:
    """The run that an input is about; 0 for none."""
    return getattr(item, "run", 0)


def take(world: World, tick: Tick, caches: Caches, item: Input) -> None:
    """Apply one input."""
    match item:
        case HostOpened():
            opening.take_opened(world, tick, item)
        case Configured():
            opening.take_configured(world, tick, caches, item)
        case Settle():
            opening.take_settle(world, tick, caches, item)
        case Spawn():
            spawning.take_spawn(world, tick, item)
        case Import():
            importing.take_import(world, tick, caches, item)
        case Fork():
            forking.take_fork(world, tick, caches, item)
        case HostClosing():
            opening.take_closing(world, item)
        case Slept():
            pass
        case _:
            _take_for_run(world, tick, caches, item)


def _take_for_run(world: World, tick: Tick, caches: Caches, item: Input) -> None:
    n = owner_of(item)
    if n in world and not world.is_leaving(n):
        FOR_RUN[type(item)](Run(world, n), tick, caches, item)
        return
    ticket = getattr(item, "ticket", 0)
    if ticket:
        message = f"no run with ordinal {n} is hosted here"
        tick.acks.append(Ack(ticket, n, "", "run_not_found", message))


def _plain(take: Callable[[Run, Tick, Any], None]) -> Take:
    return lambda run, tick, caches, item: take(run, tick, item)


FOR_RUN: Final[MappingProxyType[type, Take]] = MappingProxyType(
    {
        InferenceFinished: take_inference,
        ToolFinished: _plain(tools.take_tool),
        Gathered: _plain(spawning.take_gathered),
        AgentFound: _plain(joins.take_found),
        Pause: _plain(control.take_pause),
        Resume: control.take_resume,
        Cancel: _plain(control.take_cancel),
        Post: _plain(control.take_post),
        Decide: _plain(control.take_decide),
        Answered: _plain(take_answer),
        Release: _plain(importing.take_release),
        Delivered: _plain(take_delivered),
    }
)
"""Who takes an input about one run. A table, because each turn looks here twice."""
