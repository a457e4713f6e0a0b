"""Telling a callback address of a run's endings: announced, sent, tried again, given up.

The outbox is part of the run, so a delivery is as durable as the ending it tells of. It goes out at
least once: an attempt whose outcome was lost is made again, under the same delivery id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from leviath.components.commands import Abort, Deliver
from leviath.components.effects import Effects
from leviath.components.events import WebhookDelivered, WebhookFailed
from leviath.components.identity import Identity, Launch, Tree
from leviath.components.outbox import DELIVERIES_KEPT, Delivery, Outbox, delivery_id
from leviath.components.output import Flags, Output
from leviath.components.parts import WORLD_OWNER
from leviath.components.progress import Clock, Cost
from leviath.components.status import Status
from leviath.components.world_facts import Counters
from leviath.systems.draw import jittered

if TYPE_CHECKING:
    from leviath.components.inputs import Delivered
    from leviath.systems.run import Run, Tick


def announce(run: Run, tick: Tick) -> None:
    """The run has just ended: its callback address, if it has one, is to hear of it."""
    launch = run.find(Launch)
    if launch is None or launch.callback_url is None:
        return
    # A run that was put down may lack what any other has; its address hears of it all the same.
    effects = run.find(Effects) or Effects()
    number = effects.counter + 1
    run.put(replace(effects, counter=number))
    status = run.get(Status)
    cost = run.find(Cost) or Cost()
    # What calls in flight will cost is not known yet, and the body never changes.
    outside = sum(1 for effect in effects.items if effect.live and effect.provider)
    delivery = Delivery(
        number,
        status.attempt,
        status,
        run.find(Clock) or Clock(),
        replace(cost, unpriced=cost.unpriced + outside),
        run.find(Flags) or Flags(),
        run.find(Output),
        state="waiting",
        attempt=0,
    )
    box = run.find(Outbox) or Outbox()
    settled = [old for old in box.items if not old.is_owed][: -(DELIVERIES_KEPT - 1)]
    kept = tuple(old for old in box.items if old not in settled)
    run.put(Outbox((*kept, delivery)))
    _send(run, tick, delivery)


def _send(run: Run, tick: Tick, delivery: Delivery) -> None:
    """Make the next attempt; a host that sends nothing leaves it to the next one."""
    world = run.world
    counters = world.get(WORLD_OWNER, Counters)
    if not counters.driven:
        _put(run, replace(delivery, state="waiting", epoch=counters.epoch, due_ms=0))
        return
    sent = replace(
        delivery,
        state="sent",
        attempt=delivery.attempt + 1,
        epoch=counters.epoch,
        due_ms=tick.now.world_ms + world.policy.deliver_deadline_ms,
    )
    _put(run, sent)
    tick.commands.append(
        Deliver(run.n, sent, run.get(Identity), run.get(Launch), run.find(Tree) or Tree())
    )


def _put(run: Run, delivery: Delivery) -> None:
    items = run.get(Outbox).items
    run.put(Outbox(tuple(delivery if old.number == delivery.number else old for old in items)))


def take_delivered(run: Run, tick: Tick, item: Delivered) -> None:
    """The outcome of an attempt. One of an older attempt still confirms; it cannot fail a newer
    one."""
    box = run.find(Outbox)
    known = () if box is None else box.items
    delivery = next((known for known in known if known.number == item.effect), None)
    if delivery is None or not delivery.is_open:
        return
    tick.mirror.setdefault(run.n, False)
    if item.accepted:
        done = replace(delivery, state="delivered", due_ms=0, answer=item.answer)
        _put(run, done)
        tick.events.append(
            WebhookDelivered(
                tick.next_event,
                run.run_id,
                tick.now.wall_ms,
                delivery_id(run.run_id, delivery.generation),
                item.attempt,
                item.answer,
            )
        )
    elif delivery.state == "sent" and delivery.attempt == item.attempt:
        _failed(run, tick, delivery, item)


def _failed(run: Run, tick: Tick, delivery: Delivery, item: Delivered) -> None:
    policy = run.world.policy
    counted = delivery.attempt if item.charged else delivery.attempt - 1
    retry_in_ms: int | None = None
    if item.refused:
        counted = delivery.attempt - 1
    elif item.retryable and counted < policy.deliver_attempts_max:
        doublings = min(max(counted - 1, 0), 30)
        span_ms = min(policy.deliver_base_ms << doublings, policy.deliver_max_ms)
        subject = f"{run.run_id}:{delivery.number}"
        retry_in_ms = jittered(run.world, subject, delivery.attempt, span_ms)
        if item.retry_after_ms is not None:
            retry_in_ms = max(retry_in_ms, min(item.retry_after_ms, policy.deliver_max_ms))
    waits = retry_in_ms is not None
    _put(
        run,
        replace(
            delivery,
            state="refused" if item.refused else "waiting" if waits else "failed",
            attempt=counted,
            due_ms=0 if retry_in_ms is None else tick.now.world_ms + retry_in_ms,
            answer=item.answer,
        ),
    )
    tick.events.append(
        WebhookFailed(
            tick.next_event,
            run.run_id,
            tick.now.wall_ms,
            delivery_id(run.run_id, delivery.generation),
            item.attempt,
            item.answer,
            retry_in_ms,
        )
    )


def deliveries_due(run: Run, tick: Tick) -> None:
    """Break off attempts that took too long, and make those whose backoff is over."""
    box = run.find(Outbox)
    for delivery in () if box is None else box.items:
        if not delivery.due_ms or delivery.due_ms > tick.now.world_ms:
            continue
        if delivery.state == "sent":
            tick.commands.append(Abort(run.n, delivery.number, delivery.attempt))
            _put(run, replace(delivery, due_ms=0))
        elif delivery.state == "waiting":
            _send(run, tick, delivery)


def settle_deliveries(run: Run, tick: Tick) -> None:
    """After a restart: what was outside is sent again, since nobody knows whether it arrived, and
    what waited for a host that sends."""
    box = run.find(Outbox)
    epoch = run.world.get(WORLD_OWNER, Counters).epoch
    for delivery in () if box is None else box.items:
        lost = delivery.state in ("sent", "refused") and delivery.epoch != epoch
        if lost or (delivery.state == "waiting" and not delivery.due_ms):
            _send(run, tick, delivery)


def hold_deliveries(run: Run) -> None:
    """The run came from another home, whose host may be telling its address at this moment."""
    box = run.find(Outbox)
    if box is not None and box.is_owed:
        why = "held: the run was brought in from another home"
        held = tuple(
            replace(item, state="held", due_ms=0, answer=why) if item.is_owed else item
            for item in box.items
        )
        run.put(Outbox(held))
