"""Taking the outcome of a model call: charge it, then use it, hold it, retry it, or give it up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from leviath.components.budget import Reserved
from leviath.components.effects import Call, Effect, Effects, Held, Turn
from leviath.components.error_kind import ErrorKind, error_kind, error_policy
from leviath.components.events import CallFailed, TurnFinished
from leviath.components.marker import Marker
from leviath.components.money import amount, amount_at_most
from leviath.components.output import Flags
from leviath.components.parts import WORLD_OWNER
from leviath.components.progress import Cost, Ledgers, Resolution, Stage, Visits
from leviath.components.run_status import RunStatus
from leviath.components.status import Waiting
from leviath.components.world_facts import Counters
from leviath.systems import reserves, slots
from leviath.systems.budgets import rates_of, window_of
from leviath.systems.draw import jittered
from leviath.systems.endings import charge_late
from leviath.systems.moves import park, set_marker, set_totals, touch
from leviath.systems.run import LedgerFact
from leviath.systems.stages import fail

if TYPE_CHECKING:
    from leviath.components.inputs import InferenceFinished
    from leviath.systems.caches import Caches
    from leviath.systems.run import Run, Tick

CALL_NANO_MAX = 10**15
"""A million dollars for one call: beyond it the figure is taken for unknown."""
TOTAL_MAX = 1 << 62
"""Totals stop here, below what an SQLite integer holds; money that would pass it is unpriced."""
_CAPACITY = (ErrorKind.RATE_LIMITED, ErrorKind.OVERLOADED)
_BLOCKERS = {
    ErrorKind.CREDITS: ("credits_exhausted", "add credit with {provider}, then resume the run"),
    ErrorKind.AUTH: ("auth_failed", "set a valid key for {provider}, then resume the run"),
    ErrorKind.FORBIDDEN: ("forbidden", "get access to {model} at {provider}, then resume the run"),
    ErrorKind.TRANSPORT: (
        "providers_unavailable",
        "{provider} cannot be reached; check the network, then resume the run",
    ),
}


def take_inference(run: Run, tick: Tick, caches: Caches, done: InferenceFinished) -> None:
    """One attempt at a model call ended. An outcome of an older attempt is charged, not applied.

    A reply that lands after its deadline is used: it was paid for, and the run still waits for it.
    """
    effects = run.get(Effects)
    effect = effects.find(done.effect)
    fact = _charge(run, tick, effect, done)
    if Reserved in run.row:
        _settle(run, effect, done, fact)
    if effect is None or effect.attempt != done.attempt or not effect.live:
        _replaces_interrupted(run, tick, done, fact)
        return
    if done.error_kind:
        _failed(run, tick, caches, effect, done)
        return
    slots.count_success(run.world, caches, effect.provider)
    run.put(replace(effects, items=effects.without(effect)))
    if effect.superseded:
        return
    status = run.status
    if effect.kind == "turn" and fact is not None:
        _announce(run, tick, fact, len(done.calls))
    calls = tuple(
        [
            Call(asked.call_id, asked.tool, asked.arguments, fault=asked.fault, fields=asked.fields)
            for asked in done.calls
        ]
    )
    if status is RunStatus.PAUSED:
        run.put(Held(effect.number, done.text, calls, done.stop_reason, effect.kind))
        return
    use_reply(run, tick, Turn(done.text, calls, done.stop_reason))


def _replaces_interrupted(
    run: Run, tick: Tick, done: InferenceFinished, fact: LedgerFact | None
) -> None:
    """A figure for an attempt of an older epoch takes the place of its ``interrupted`` row."""
    if fact is not None and done.epoch != run.world.get(WORLD_OWNER, Counters).epoch:
        cost = run.get(Cost)
        run.put(replace(cost, unpriced=max(0, cost.unpriced - 1)))
        stage = run.find(Stage)
        if stage is not None:
            row = run.get(Ledgers).stages[stage.index]
            set_totals(run, stage.index, replace(row, unpriced=max(0, row.unpriced - 1)))
        if run.status.is_ended:
            charge_late(run, tick)


def use_reply(run: Run, tick: Tick, turn: Turn) -> None:
    """Work on a reply: the next systems of this step do."""
    run.put(turn)
    set_marker(run, tick, Marker.process_response)


# --- charging -----------------------------------------------------------------------------------


def _settle(
    run: Run, effect: Effect | None, done: InferenceFinished, fact: LedgerFact | None
) -> None:
    """Give back what was set aside for an attempt that ended."""
    waits = effect is not None and not effect.superseded and run.status is RunStatus.PAUSED
    reserves.settle(
        run,
        done.effect,
        done.attempt,
        fact,
        done.error_kind,
        keeps_turn=waits and not done.error_kind,
    )


def _announce(run: Run, tick: Tick, fact: LedgerFact, tool_calls: int) -> None:
    stage = run.get(Stage)
    tick.events.append(
        TurnFinished(
            tick.next_event,
            run.run_id,
            tick.now.wall_ms,
            stage.name,
            stage.iteration + 1,
            run.get(Visits).turns + 1,
            fact.prompt,
            fact.completion,
            fact.cached,
            fact.cache_write,
            fact.nano_usd,
            tool_calls,
        )
    )


def _charge(
    run: Run, tick: Tick, effect: Effect | None, done: InferenceFinished
) -> LedgerFact | None:
    """Write the attempt into the ledger and fold it into the totals; None if it cost nothing."""
    if not done.charged:
        return None
    provider, model = ("", "") if effect is None else (effect.provider, effect.model)
    kind = "turn" if effect is None else effect.kind
    tokens = (done.prompt, done.completion, done.cached, done.cache_write)
    nano = done.cost_nano_usd
    certainty = "provider"
    if nano is None:
        rates = rates_of(run.world, provider, model)
        known = any(tokens) or not done.error_kind
        if rates is not None and known:
            nano, certainty = amount(rates, *tokens), "computed"
        else:
            certainty = "unknown"
    if nano is not None and nano > CALL_NANO_MAX:
        # No call costs a million dollars: the counts or the rates are wrong.
        nano, certainty = None, "unknown"
    fact = LedgerFact(
        run.n,
        done.effect,
        done.attempt,
        kind,
        provider,
        model,
        *tokens,
        nano,
        certainty,
        _turn(run),
    )
    charge(run, tick, fact)
    return fact


def _turn(run: Run) -> int:
    """The turn that is under way."""
    visits = run.find(Visits)
    return 1 if visits is None else visits.turns + 1


def charge(run: Run, tick: Tick, fact: LedgerFact) -> None:
    """Add one ledger row, and what it means for the run and its stage."""
    tick.facts.append(fact)
    if run.world.purses.armed:
        reserves.count_fact(run, fact)
    cost = run.get(Cost)
    nano = fact.nano_usd or 0
    if cost.priced_nano + nano > TOTAL_MAX:
        nano = 0
    unpriced = fact.nano_usd is None or nano != fact.nano_usd
    run.put(
        replace(
            cost,
            prompt=min(cost.prompt + fact.prompt, TOTAL_MAX),
            completion=min(cost.completion + fact.completion, TOTAL_MAX),
            cached=min(cost.cached + fact.cached, TOTAL_MAX),
            cache_write=min(cost.cache_write + fact.cache_write, TOTAL_MAX),
            priced_nano=cost.priced_nano + nano,
            unpriced=cost.unpriced + unpriced,
            computed=cost.computed + (fact.certainty == "computed"),
        )
    )
    stage = run.find(Stage)
    if stage is not None:
        row = run.get(Ledgers).stages[stage.index]
        set_totals(
            run,
            stage.index,
            replace(
                row,
                prompt=min(row.prompt + fact.prompt, TOTAL_MAX),
                completion=min(row.completion + fact.completion, TOTAL_MAX),
                cached=min(row.cached + fact.cached, TOTAL_MAX),
                cache_write=min(row.cache_write + fact.cache_write, TOTAL_MAX),
                priced_nano=row.priced_nano + nano,
                unpriced=row.unpriced + unpriced,
                computed=row.computed + (fact.certainty == "computed"),
            ),
        )
    touch(run, tick)
    if run.status.is_ended:
        charge_late(run, tick)


def charge_interrupted(run: Run, tick: Tick, effect: Effect) -> None:
    """The host went away during this attempt: what it cost is not known, at most a bound."""
    fact = LedgerFact(
        run.n,
        effect.number,
        effect.attempt,
        effect.kind,
        effect.provider,
        effect.model,
        0,
        0,
        0,
        0,
        None,
        "interrupted",
        _turn(run),
    )
    charge(run, tick, fact)
    hold = reserves.lose_hold(run, effect.number, effect.attempt)
    most = hold.nano_usd if hold is not None and hold.nano_usd else _at_most(run, effect)
    if most is not None:
        cost = run.get(Cost)
        run.put(replace(cost, upper_nano=cost.upper_nano + most, bounded=cost.bounded + 1))


def _at_most(run: Run, effect: Effect) -> int | None:
    """What one attempt may have cost: prompt and reply together fit the model's window, as far as
    that and the rates are known."""
    rates = rates_of(run.world, effect.provider, effect.model)
    window = window_of(run.world, effect.provider, effect.model)
    if window is None or rates is None:
        return None
    limit = run.stage_spec.model.max_output_tokens
    return amount_at_most(rates, window, window if limit is None else min(limit, window))


# --- failing ------------------------------------------------------------------------------------


def _failed(run: Run, tick: Tick, caches: Caches, effect: Effect, done: InferenceFinished) -> None:
    kind = error_kind(done.error_kind)
    policy = error_policy(done.error_kind)
    if policy.counts_for_breaker:
        slots.count_failure(run.world, tick, caches, effect.provider, run.n)
    else:
        slots.drop_probe(run.world, caches, run.n, effect.provider)
    effects = run.get(Effects)
    others = tuple(e for e in effects.items if e.number != effect.number)
    if effect.superseded:
        run.put(replace(effects, items=others))
        return
    wait_ms = None
    if policy.retryable and not effect.aborting:
        wait_ms = _backoff_ms(run, tick, effect, kind, done.retry_after_ms)
    tick.events.append(
        CallFailed(
            tick.next_event,
            run.run_id,
            tick.now.wall_ms,
            kind.value,
            done.error,
            effect.attempt,
            wait_ms,
        )
    )
    if wait_ms is not None:
        waiting = replace(
            effect,
            live=False,
            due_ms=tick.now.world_ms + wait_ms,
            slept_ms=effect.slept_ms + wait_ms,
        )
        run.put(replace(effects, items=(*others, waiting)))
        _back_off(run, tick)
        return
    run.put(replace(effects, items=others))
    give_up(run, tick, effect, kind, done.error)


def _back_off(run: Run, tick: Tick) -> None:
    if run.status is RunStatus.PAUSED:
        run.world.set_marker(run.n, Marker.backoff)
    else:
        set_marker(run, tick, Marker.backoff)


def _backoff_ms(
    run: Run, tick: Tick, effect: Effect, kind: ErrorKind, retry_after_ms: int | None
) -> int | None:
    """How long to wait before the next attempt; None when there is none on this model."""
    policy = run.world.policy
    if effect.attempt >= policy.attempts_max:
        return None
    doublings = min(effect.attempt - 1, 20)
    if retry_after_ms is not None:
        # The provider knows best; 1 ms at least, since a wait that is due already is none.
        wait = min(max(1, retry_after_ms), policy.capacity_max_ms)
    else:
        span = policy.retry_base_ms << doublings
        if kind in _CAPACITY:
            span = policy.capacity_base_ms << doublings
        span = min(span, policy.capacity_max_ms)
        wait = max(1, jittered(run.world, run.run_id, effect.number * 64 + effect.attempt, span))
    spent = tick.now.world_ms + wait - effect.started_ms
    if effect.slept_ms + wait > policy.backoff_total_ms or spent >= slots.call_total_ms(run):
        return None
    return wait


def give_up(run: Run, tick: Tick, effect: Effect, kind: ErrorKind, error: str) -> None:
    """No attempt is left on this model: the next model, a person, or the stage's error edge.

    A paused run makes its call afresh when it is resumed.
    """
    if run.status is RunStatus.PAUSED:
        run.world.set_marker(run.n, Marker.ready_to_infer)
        return
    resolution = run.get(Resolution)
    if error_policy(kind).allows_failover and resolution.choice + 1 < len(resolution.candidates):
        run.put(replace(resolution, choice=resolution.choice + 1))
        set_marker(run, tick, Marker.ready_to_infer)
        return
    if kind is ErrorKind.WORKSPACE_LOST:
        run.put(replace(run.get(Flags), workspace_lost=True))
    if kind is ErrorKind.PROVIDER_MISSING:
        park(run, tick, slots.missing(effect.provider))
        return
    blocker = _BLOCKERS.get(kind)
    if blocker is not None:
        remedy = blocker[1].format(provider=effect.provider, model=effect.model)
        park(run, tick, Waiting("needs_setup", blocker[0], remedy), why=error)
        return
    visits = run.get(Visits)
    if effect.kind == "turn":
        run.put(replace(visits, turn_calls=visits.turn_calls + 1))
    else:
        run.put(replace(visits, routings=visits.routings + 1))
    cause = "retries_spent" if error_policy(kind).retryable else "not_retryable"
    fail(run, tick, error or f"the model call failed: {kind.value}", cause)


def backoff_over(run: Run, tick: Tick) -> None:
    """The wait between two attempts is over: stand for a slot again."""
    set_marker(run, tick, Marker.ready_to_infer)


def resume_held(run: Run, tick: Tick, held: Held) -> None:
    """Use the reply that landed during a pause."""
    run.remove(Held)
    use_reply(run, tick, Turn(held.text, held.calls, held.stop_reason))
