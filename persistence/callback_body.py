"""The body of a callback: one projection of an ending, the same bytes for all attempts at it.

Keys and meanings are those of leviath-run-files section 7, with the cost beside the tokens, the
number of the ending and its time; so a receiver written for the reference reads ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from leviath.components.outbox import delivery_id
from leviath.components.output import Flags, Output
from leviath.components.progress import Clock, Cost
from leviath.components.status import Status
from leviath.persistence.projection import body_only, project_meta

if TYPE_CHECKING:
    from leviath.components.base import Component
    from leviath.components.commands import Deliver
    from leviath.persistence.projection import Resolve

EVENT = "agent_completed"


def callback_body(command: Deliver, resolve: Resolve = body_only) -> bytes:
    """The JSON bytes to send; ``resolve`` gives the whole of a Text.

    Raises what ``resolve`` raises when the store has lost the final output.
    """
    delivery = command.delivery
    parts: dict[type[Component], Component] = {
        type(part): part for part in (command.identity, command.launch, command.tree)
    }
    parts.update({Status: delivery.status, Clock: delivery.clock})
    parts.update({Cost: delivery.cost, Flags: delivery.flags})
    if delivery.output is not None:
        parts[Output] = delivery.output
    ended_s = (delivery.clock.ended_ms or 0) // 1_000
    meta = project_meta(parts, now_s=ended_s, world_ms=0, resolve=resolve)
    answer = delivery.output
    body = {
        "event": EVENT,
        "delivery_id": delivery_id(meta.run_id, delivery.generation),
        "run_id": meta.run_id,
        "agent_id": meta.agent_name,
        "status": meta.status.wire(),
        "result": meta.error,
        "final_output": None if answer is None else resolve(answer.content),
        "metadata": dict(meta.metadata),
        "tokens": {
            "prompt": meta.prompt_tokens,
            "completion": meta.completion_tokens,
            "cached": meta.cached_tokens,
            "cache_write": meta.cache_write_tokens,
        },
        "cost": {
            "usd": meta.cost_usd,
            "priced_usd": meta.cost_priced_usd,
            "unpriced_calls": meta.unpriced_calls,
            "is_exact": meta.cost_is_exact,
        },
        "empty_output": meta.flags.empty_output,
        "splits_degraded": meta.flags.splits_degraded,
        "broken_scripts": list(meta.flags.broken_scripts),
        "attempt": delivery.generation,
        "ended_at": ended_s,
    }
    return msgspec.json.encode(body)
