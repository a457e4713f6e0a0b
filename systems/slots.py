"""Granting model calls: slots per (provider, model), evened out between root runs, and breakers.

A run holds a slot from the grant to the outcome, never during a backoff or while a person is
awaited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from leviath.components.budget import Reserved
from leviath.components.commands import Infer
from leviath.components.context import Context
from leviath.components.effects import Effect, Effects, Inbox, Timers
from leviath.components.events import MessageDelivered
from leviath.components.identity import Launch
from leviath.components.marker import Marker
from leviath.components.parts import WORLD_OWNER
from leviath.components.progress import Resolution, Stage, Visits
from leviath.components.status import Waiting
from leviath.components.world_facts import Breaker, Breakers, Counters, Offer
from leviath.systems import budgets, regions
from leviath.systems.moves import park, set_marker
from leviath.systems.run import Run
from leviath.systems.stages import refresh_candidates
from leviath.systems.tools import missing_tools
from leviath.systems.transitions import routing_question
from leviath.systems.views import view_of

if TYPE_CHECKING:
    from leviath.systems.caches import Caches, SlotKey
    from leviath.systems.run import Tick
    from leviath.systems.world import World


def grant(world: World, tick: Tick, caches: Caches) -> bool:
    """Give free slots to the runs that wait for them. True when anything moved."""
    if not world.get(WORLD_OWNER, Counters).driven:
        return False
    moved = False
    caches.refresh()
    while caches.dirty:
        key = next(iter(caches.dirty))
        del caches.dirty[key]
        moved = _grant_key(world, tick, caches, key) or moved
        caches.refresh()
    return moved


def slot_cap(world: World, key: SlotKey) -> int:
    """Concurrent calls that one (provider, model) may have."""
    for provider, model, count in world.policy.slots:
        if (provider, model) == key:
            return count
    return world.policy.slots_default


def _grant_key(world: World, tick: Tick, caches: Caches, key: SlotKey) -> bool:
    moved = False
    if key not in caches.waiting:
        return moved
    offer = world.find(WORLD_OWNER, Offer)
    if offer is not None and key[0] not in offer.providers:
        for n in _all_waiting(caches, key):
            tick.guard(n, "park_missing", park_missing)
        return True
    cap = slot_cap(world, key)
    while caches.in_use.get(key, 0) < cap and key in caches.waiting:
        state = _breaker_state(world, tick, key[0])
        if state == "open":
            return _pass_over(world, tick, caches, key) or moved
        room = 1 if state == "probe" else cap - caches.in_use.get(key, 0)
        chosen = caches.fairest(key, room)
        if not chosen:
            break
        for n in chosen:
            tick.guard(n, "issue", issue_probe if state == "probe" else issue)
        caches.refresh()
        moved = True
    return moved


def unwatched(world: World, caches: Caches, world_ms: int) -> list[SlotKey]:
    """Queues that stand although there is room, while no call and no time would have them looked
    at. There are none between two steps of a host that drives."""
    if not world.get(WORLD_OWNER, Counters).driven:
        return []
    found: list[SlotKey] = []
    for key in caches.waiting:
        row = find_breaker(world, key[0])
        is_open = row is not None and (row.open_until_ms > world_ms or _is_probed(world, row))
        if not is_open and caches.in_use.get(key, 0) < slot_cap(world, key):
            found.append(key)
    return found


def _all_waiting(caches: Caches, key: SlotKey) -> list[int]:
    return [n for runs in caches.waiting.get(key, {}).values() for n in runs]


def park_missing(run: Run, tick: Tick) -> None:
    """The provider is not here: go on with another of the stage's, else wait for it."""
    provider = choice_of(run)[0]
    if refresh_candidates(run):
        # To the tail of the other queue, which is ordered by when a run joined it.
        set_marker(run, tick, Marker.ready_to_infer)
        return
    park(run, tick, missing(provider))


def missing(provider: str) -> Waiting:
    """What a run waits for whose provider the host did not open."""
    remedy = f"open the world with a provider called {provider}"
    return Waiting("needs_setup", "provider_missing", remedy)


# --- breakers -----------------------------------------------------------------------------------


def find_breaker(world: World, provider: str) -> Breaker | None:
    """The breaker of a provider that failed of late."""
    breakers = world.find(WORLD_OWNER, Breakers)
    for row in () if breakers is None else breakers.rows:
        if row.provider == provider:
            return row
    return None


def _breaker_state(world: World, tick: Tick, provider: str) -> str:
    """closed, open, or probe: the cooldown is over and one call may test the provider."""
    row = find_breaker(world, provider)
    if row is None or not row.open_until_ms:
        return "closed"
    if tick.now.world_ms < row.open_until_ms or _is_probed(world, row):
        return "open"
    return "probe"


def _is_probed(world: World, row: Breaker) -> bool:
    """Whether the call that tests the provider is outside. A run that was to make it and rests now,
    for want of a tool or because its effects were given up, tests nothing."""
    effects = world.find(row.probe, Effects) if row.probe else None
    return effects is not None and any(
        effect.live and effect.provider == row.provider for effect in effects.items
    )


def _store_breaker(world: World, row: Breaker | None, *, drop: str = "") -> None:
    breakers = world.find(WORLD_OWNER, Breakers) or Breakers()
    name = drop if row is None else row.provider
    rows = [old for old in breakers.rows if old.provider != name]
    if row is not None:
        rows.append(row)
    world.put(WORLD_OWNER, Breakers(tuple(sorted(rows, key=lambda old: old.provider))))


def count_failure(world: World, tick: Tick, caches: Caches, provider: str, run: int) -> None:
    """One more failure in a row; opens the breaker at the threshold, or again after a failed
    probe."""
    policy = world.policy
    if not policy.breaker_failures:
        return
    row = find_breaker(world, provider) or Breaker(provider)
    failures = row.failures + 1
    until = row.open_until_ms
    probing = row.probe == run and run != 0
    if probing or (not until and failures >= policy.breaker_failures):
        until = tick.now.world_ms + policy.breaker_cooldown_ms
    _store_breaker(world, Breaker(provider, failures, until, 0 if probing else row.probe))
    mark_provider_dirty(caches, provider)


def count_success(world: World, caches: Caches, provider: str) -> None:
    """A reply: the provider works."""
    if find_breaker(world, provider) is not None:
        _store_breaker(world, None, drop=provider)
        mark_provider_dirty(caches, provider)


def drop_probe(world: World, caches: Caches, run: int, provider: str) -> None:
    """A probing call ended without a verdict on its provider: the next one may test it."""
    row = find_breaker(world, provider)
    if row is not None and row.probe == run:
        _store_breaker(world, replace(row, probe=0))
        mark_provider_dirty(caches, provider)


def let_probe(world: World, tick: Tick, caches: Caches, provider: str) -> None:
    """End the cooldown of an open breaker: somebody says that the provider works again."""
    row = find_breaker(world, provider)
    if row is not None and row.open_until_ms > tick.now.world_ms:
        # 0 would close it. World time starts at 0, and so does no cooldown.
        _store_breaker(world, replace(row, open_until_ms=max(1, tick.now.world_ms)))
        mark_provider_dirty(caches, provider)


def mark_provider_dirty(caches: Caches, provider: str) -> None:
    """Look again at every queue of a provider's models."""
    for key in caches.waiting:
        if key[0] == provider:
            caches.dirty[key] = None


def next_breaker_ms(world: World, world_ms: int) -> int | None:
    """When the next open breaker may be tested, among those still in their cooldown."""
    breakers = world.find(WORLD_OWNER, Breakers)
    times = [
        row.open_until_ms
        for row in (() if breakers is None else breakers.rows)
        if row.open_until_ms > world_ms and not _is_probed(world, row)
    ]
    return min(times, default=None)


def wake_breakers(world: World, tick: Tick, caches: Caches) -> None:
    """Breakers whose cooldown is over let their queues be looked at again."""
    breakers = world.find(WORLD_OWNER, Breakers)
    for row in () if breakers is None else breakers.rows:
        is_over = row.open_until_ms and row.open_until_ms <= tick.now.world_ms
        if is_over and not _is_probed(world, row):
            mark_provider_dirty(caches, row.provider)


def _pass_over(world: World, tick: Tick, caches: Caches, key: SlotKey) -> bool:
    """The breaker is open: runs with another candidate take it, the others begin to stall."""
    moved = False
    for n in _all_waiting(caches, key):
        run = Run(world, n)
        resolution = run.get(Resolution)
        if resolution.choice + 1 < len(resolution.candidates):
            tick.guard(n, "rotate", _rotate)
            moved = True
            continue
        timers = run.find(Timers) or Timers()
        if timers.stall_ms is None:
            run.put(replace(timers, stall_ms=tick.now.world_ms + world.policy.stall_ms))
    return moved


def _rotate(run: Run, tick: Tick) -> None:
    """Stand for the next model. An attempt that waited here is made there, as a call of its own."""
    resolution = run.get(Resolution)
    drop_pending(run)
    run.put(replace(resolution, choice=resolution.choice + 1))
    set_marker(run, tick, Marker.ready_to_infer)


def drop_pending(run: Run) -> None:
    """Make the call that waits for its next attempt as one of its own, with all of its time."""
    pending = _pending(run)
    if pending is not None:
        effects = run.get(Effects)
        run.put(replace(effects, items=tuple(e for e in effects.items if e is not pending)))


def _pending(run: Run) -> Effect | None:
    """The effect of a call that waits for its next attempt."""
    for effect in run.get(Effects).items:
        if not effect.live and effect.kind in ("turn", "routing"):
            return effect
    return None


# --- issuing ------------------------------------------------------------------------------------


def issue_probe(run: Run, tick: Tick) -> None:
    """Make the one call that tests a provider after its cooldown."""
    row = find_breaker(run.world, choice_of(run)[0])
    if row is not None:
        _store_breaker(run.world, replace(row, probe=run.n))
    issue(run, tick)
    probing = find_breaker(run.world, row.provider) if row is not None else None
    if probing is not None and not any(effect.live for effect in run.get(Effects).items):
        # It was not made after all: the next run in line may test the provider.
        _store_breaker(run.world, replace(probing, probe=0))


def issue(run: Run, tick: Tick) -> None:
    """Make the granted call: a turn, or the question which edge to take."""
    lacking = view_of(run).missing
    if lacking:
        park(run, tick, missing_tools(lacking))
        return
    world_ms = tick.now.world_ms
    routing = bool(run.get(Stage).asking)
    effects = run.get(Effects)
    pending = _pending(run)
    provider, model = choice_of(run)
    if run.world.purses.armed:
        number, attempt = effects.counter + 1, 1
        if pending is not None:
            number, attempt = pending.number, pending.attempt + 1
        why = budgets.reserve(run, tick, number, attempt, provider, model, is_routing=routing)
        if why is not None:
            budgets.refuse(run, tick, why)
            return
    epoch = run.world.get(WORLD_OWNER, Counters).epoch
    if pending is None:
        visits = run.get(Visits)
        timeout_ms = max(1_000, call_total_ms(run))
        effect = Effect(
            number=effects.counter + 1,
            kind="routing" if routing else "turn",
            ordinal=1 + (visits.routings if routing else visits.turn_calls),
            epoch=epoch,
            due_ms=world_ms + timeout_ms,
            provider=provider,
            model=model,
            started_ms=world_ms,
        )
        others = effects.items
    else:
        timeout_ms = call_timeout_ms(run, pending, world_ms)
        effect = replace(
            pending,
            attempt=pending.attempt + 1,
            live=True,
            provider=provider,
            model=model,
            epoch=epoch,
            due_ms=world_ms + timeout_ms,
        )
        others = effects.without(pending)
    run.put(replace(effects, counter=max(effects.counter, effect.number), items=(*others, effect)))
    timers = run.find(Timers)
    if timers is not None and timers.stall_ms is not None:
        run.put(replace(timers, stall_ms=None))
    if not routing and pending is None:
        _deliver(run, tick)
    set_marker(
        run, tick, Marker.awaiting_transition_choice if routing else Marker.awaiting_inference
    )
    tick.commands.append(infer_command(run, effect, timeout_ms))


def call_timeout_ms(run: Run, effect: Effect, world_ms: int) -> int:
    """What is left for this attempt of all the time that the call may take."""
    return max(1_000, call_total_ms(run) - (world_ms - effect.started_ms))


def call_total_ms(run: Run) -> int:
    """All attempts at one call together."""
    return view_of(run).spec.model.request_timeout_ms or run.world.policy.call_total_ms


def choice_of(run: Run) -> SlotKey:
    """The (provider, model) that the run's next call goes to."""
    resolution = run.get(Resolution)
    return resolution.candidates[resolution.choice]


def _deliver(run: Run, tick: Tick) -> None:
    """Messages enter the context right before the request that they may influence, once."""
    inbox = run.get(Inbox)
    if not inbox.messages:
        return
    run.put(Inbox())
    for message in inbox.messages:
        entry = (regions.entry_of(message.text, "user"),)
        if not (message.region and regions.append(run, message.region, entry)):
            regions.append(run, regions.CONVERSATION, entry)
        tick.events.append(
            MessageDelivered(tick.next_event, run.run_id, tick.now.wall_ms, message.sender)
        )


def infer_command(run: Run, effect: Effect, timeout_ms: int) -> Infer:
    """The whole call, made of immutable pieces of the present state."""
    stage = run.get(Stage)
    view = view_of(run)
    by_name = {region.name: region for region in run.get(Context).regions}
    visible = tuple(by_name[seen.name] for seen in view.visible if seen.name in by_name)
    launch = run.get(Launch)
    routing = effect.kind == "routing"
    return Infer(
        run=run.n,
        run_id=run.run_id,
        effect=effect.number,
        attempt=effect.attempt,
        epoch=effect.epoch,
        purpose=effect.kind,
        ordinal=effect.ordinal,
        provider=effect.provider,
        model=effect.model,
        stage=stage.name,
        blueprint=launch.blueprint,
        stage_index=stage.index,
        regions=visible,
        tools=() if routing else view.tool_specs,
        timeout_ms=timeout_ms,
        workdir=launch.workdir,
        question=routing_question(run) if routing else "",
        output_tokens_max=run.world.policy.budget_output_tokens if Reserved in run.row else 0,
    )
