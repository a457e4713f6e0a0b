"""What a host says when it takes a world, and what becomes of effects that the last one had in
flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from leviath.components.effects import Effect, Effects, Turn
from leviath.components.error_kind import ErrorKind
from leviath.components.errors import WorldError
from leviath.components.events import HomeOpened
from leviath.components.marker import MOVES, Marker
from leviath.components.parts import WORLD_OWNER
from leviath.components.run_status import RunStatus
from leviath.components.status import Status, Waiting
from leviath.components.world_facts import Counters, Offer
from leviath.systems import budgets, slots, stages, tools
from leviath.systems.deliveries import settle_deliveries
from leviath.systems.inference import charge_interrupted, give_up
from leviath.systems.moves import move, park, progressed, set_marker, touch
from leviath.systems.spawning import gather
from leviath.systems.views import view_of

if TYPE_CHECKING:
    from leviath.components.inputs import Configured, HostClosing, HostOpened, Settle
    from leviath.systems.caches import Caches
    from leviath.systems.run import Run, Tick
    from leviath.systems.world import World


def take_opened(world: World, tick: Tick, opened: HostOpened) -> None:
    """A new epoch: outcomes of older ones are no longer applied."""
    counters = world.get(WORLD_OWNER, Counters)
    world.put(
        WORLD_OWNER,
        replace(counters, epoch=opened.epoch, rules=opened.rules, driven=opened.drive),
    )
    tick.events.append(
        HomeOpened(
            tick.next_event, "", tick.now.wall_ms, opened.epoch, opened.clean, *opened.found[:6]
        )
    )


def take_closing(world: World, closing: HostClosing) -> None:
    """Send nothing more: a call that was never sent is no call that may have happened."""
    if closing.sends_no_more:
        counters = world.get(WORLD_OWNER, Counters)
        world.put(WORLD_OWNER, replace(counters, driven=False))


def take_configured(world: World, tick: Tick, caches: Caches, configured: Configured) -> None:
    """Take over policy, offer and prices; runs that waited for a provider go on if it came."""
    offer = configured.offer
    known = world.find(WORLD_OWNER, Offer)
    fresh = offer is not None and (
        known is None or (known.providers, known.tools) != (offer.providers, offer.tools)
    )
    for part in (configured.policy, configured.offer, configured.prices):
        if part is not None and world.find(WORLD_OWNER, type(part)) != part:
            world.put(WORLD_OWNER, part)
    if fresh:
        # Else whoever waits for a provider still does: 100,000 of them need not be asked.
        for n in list(world.runs_with(Marker.awaiting_person)):
            tick.guard(n, "wake_set_up", wake_set_up)
    for key in caches.waiting:
        caches.dirty[key] = None


def wake_set_up(run: Run, tick: Tick) -> None:
    """Drive a run again that waits for its provider, if that is offered now."""
    status = run.get(Status)
    waiting = status.waiting
    if waiting is None or waiting.blocker != "provider_missing":
        return
    if status.status is not RunStatus.WAITING_INPUT:
        return
    if run.find(Turn) is not None:
        lacking = tools.lacking_tools(run)
        if lacking:
            _wait_for(run, tick, tools.missing_tools(lacking))
        else:
            tools.go_on(run, tick)
    elif stages.refresh_candidates(run):
        lacking = view_of(run).missing
        if lacking:
            # Its provider is here; what it waits for now is another thing, and so is the remedy.
            _wait_for(run, tick, tools.missing_tools(lacking))
        else:
            move(run, tick, RunStatus.RUNNING, Marker.ready_to_infer, why="set-up is back")


def _wait_for(run: Run, tick: Tick, waiting: Waiting) -> None:
    if run.get(Status).waiting != waiting:
        park(run, tick, waiting)


def take_settle(world: World, tick: Tick, caches: Caches, settle: Settle) -> None:
    """Runs that the last host drove are driven again, each from what was durable."""
    for n in settle.ordinals:
        if n not in world:
            continue
        if settle.hold:
            tick.guard(n, "hold", lambda run, tick: hold_run(run, tick, settle.hold))
        else:
            tick.guard(n, "settle", lambda run, tick: settle_run(run, tick, caches))


def settle_run(run: Run, tick: Tick, caches: Caches) -> None:
    """What was in flight: model calls and safe tools go out again, others may have happened."""
    settle_deliveries(run, tick)
    status = run.status
    epoch = run.world.get(WORLD_OWNER, Counters).epoch
    stale = [e for e in run.get(Effects).items if e.live and e.epoch != epoch]
    for effect in stale:
        if effect.superseded:
            _drop(run, tick, caches, effect)
        elif effect.kind == "tool":
            _settle_tool(run, tick, effect)
        elif effect.kind == "gather":
            gather(run, tick, _renew(run, tick, effect, run.world.policy.gather_deadline_ms))
        else:
            _settle_call(run, tick, caches, effect)
    if status in (RunStatus.STARTING, RunStatus.RUNNING):
        progressed(run, tick)
    turn = run.find(Turn)
    if turn is not None and stages.is_running(run) and run.marker is Marker.awaiting_tools:
        tools.go_on(run, tick)


def hold_run(run: Run, tick: Tick, why: str) -> None:
    """Hold a run that the last host may have taken further than is known here."""
    if run.status is RunStatus.PAUSED:
        status = run.get(Status)
        run.put(replace(status, actor="engine", why=why))
    elif RunStatus.PAUSED in MOVES[run.status]:
        waiting = run.get(Status).waiting
        move(run, tick, RunStatus.PAUSED, run.marker, actor="engine", why=why, waiting=waiting)
    else:
        return
    rest_run(run, tick)
    touch(run, tick, urgent=True)


def rest_run(run: Run, tick: Tick) -> None:
    """A run from elsewhere that is held: what it had outside is not made again until it is resumed.

    Reading for its start is: nobody pays for it, and nothing else moves while the run is paused.
    """
    for effect in run.get(Effects).items:
        if not effect.live or effect.kind == "gather":
            continue
        call = tools.call_of(run, effect) if effect.kind == "tool" else None
        if call is not None and call.effect_class == "once":
            tools.mark_unknown(run, tick, call, effect)
            continue
        if effect.provider:
            charge_interrupted(run, tick, effect)
            run.world.set_marker(run.n, Marker.ready_to_infer)
        resting = replace(effect, live=False, aborting=False, due_ms=0)
        effects = run.get(Effects)
        items = tuple(resting if e.number == effect.number else e for e in effects.items)
        run.put(replace(effects, items=items))


def _drop(run: Run, tick: Tick, caches: Caches, effect: Effect) -> None:
    """Nobody waits for it: a model call is charged as unknown, and it is forgotten."""
    if effect.provider:
        charge_interrupted(run, tick, effect)
        slots.drop_probe(run.world, caches, run.n, effect.provider)
    effects = run.get(Effects)
    run.put(replace(effects, items=tuple(e for e in effects.items if e.number != effect.number)))


def _renew(run: Run, tick: Tick, effect: Effect, timeout_ms: int) -> Effect:
    effects = run.get(Effects)
    again = replace(
        effect,
        attempt=effect.attempt + 1,
        epoch=run.world.get(WORLD_OWNER, Counters).epoch,
        due_ms=tick.now.world_ms + timeout_ms,
        aborting=False,
    )
    items = tuple(again if e.number == effect.number else e for e in effects.items)
    run.put(replace(effects, items=items))
    return again


def _settle_call(run: Run, tick: Tick, caches: Caches, effect: Effect) -> None:
    """A model call is made again at once, in the slot that it held, as the next attempt. One that
    was out of time already is given up."""
    if effect.aborting:
        _drop(run, tick, caches, effect)
        give_up(run, tick, effect, ErrorKind.TIMEOUT, "the model call was out of time")
        return
    charge_interrupted(run, tick, effect)
    offer = run.world.find(WORLD_OWNER, Offer)
    no_provider = offer is not None and effect.provider not in offer.providers
    if no_provider or (effect.kind == "turn" and view_of(run).missing):
        effects = run.get(Effects)
        gone = replace(effect, live=False, due_ms=0)
        items = tuple(gone if e.number == effect.number else e for e in effects.items)
        run.put(replace(effects, items=items))
        slots.drop_probe(run.world, caches, run.n, effect.provider)
        set_marker(run, tick, Marker.ready_to_infer)
        return
    timeout_ms = slots.call_total_ms(run)
    if run.world.purses.armed:
        why = budgets.reserve(
            run,
            tick,
            effect.number,
            effect.attempt + 1,
            effect.provider,
            effect.model,
            is_routing=effect.kind == "routing",
        )
        if why is not None:
            effects = run.get(Effects)
            gone = replace(effect, live=False, due_ms=0)
            items = tuple(gone if e.number == effect.number else e for e in effects.items)
            run.put(replace(effects, items=items))
            slots.drop_probe(run.world, caches, run.n, effect.provider)
            budgets.refuse(run, tick, why)
            return
    again = _renew(run, tick, effect, timeout_ms)
    tick.commands.append(slots.infer_command(run, again, timeout_ms))


def _settle_tool(run: Run, tick: Tick, effect: Effect) -> None:
    call = tools.call_of(run, effect)
    if call is None:
        raise WorldError(f"{run.run_id}: no call belongs to effect {effect.number}")
    if call.effect_class == "once":
        tools.mark_unknown(run, tick, call, effect)
    else:
        tools.send_again(run, tick, call, effect)
