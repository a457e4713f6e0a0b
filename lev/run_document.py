"""One run as JSON values: its public record, and what a record of a run cannot say about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leviath.components.effects import Turn
from leviath.components.identity import Identity, Launch
from leviath.components.money import NANO_PER_USD
from leviath.components.progress import Cost
from leviath.engine.clock import RealClock
from leviath.engine.tree_loading import totals_of_row
from leviath.lev.budgets import budget_document
from leviath.lev.drift import drift
from leviath.persistence.projection import project_meta

if TYPE_CHECKING:
    from leviath.lev.run_parts import RunParts
    from leviath.persistence.home import HostingState

_HOSTED = {"hosted": True, "not_hosted": False, "unknown": None}


def run_document(parts: RunParts, hosting: HostingState) -> dict[str, object]:
    """The keys of ``meta.json`` without its secret, then those of ``lev show`` alone.

    A run whose components cannot be read has ``run_id``, ``status`` and ``quarantined`` of them.
    """
    row = parts.row
    live = row.ended_ms is None
    own: dict[str, object] = {
        "hosted": _HOSTED[hosting] if live and not parts.fault else False,
        "interrupted": row.status in ("starting", "running") and hosting == "not_hosted",
        "quarantined": parts.fault or None,
        "ledger_calls": len(parts.ledger),
        "interrupted_calls": sum(1 for call in parts.ledger if call.certainty == "interrupted"),
    }
    if parts.fault:
        return {"run_id": row.run_id, "status": row.status, **own}
    meta = project_meta(
        parts.components,
        now_s=RealClock().wall_ms() // 1_000,
        world_ms=parts.world_ms,
        children=parts.children,
        resolve=parts.text,
    )
    cost, identity, launch = parts.find(Cost), parts.find(Identity), parts.find(Launch)
    drifted = ""
    if identity is not None and launch is not None:
        drifted = drift(identity.agent_path, launch.blueprint)
    upper = 0 if cost is None else cost.upper_nano
    return (
        meta.public_dict()
        | own
        | {
            "cost_interrupted_at_most_usd": upper / 1_000_000_000 if upper else None,
            "blueprint_drift": drifted or None,
            "waiting_calls": _calls(parts),
            "subtree": _subtree(parts),
            **budget_document(parts),
        }
    )


def _subtree(parts: RunParts) -> dict[str, object]:
    """The run and all runs below it together. A cost that is not known is null, as everywhere."""
    total = totals_of_row(parts.row)
    total.add(parts.below.total)
    nano = total.nano_usd
    return {
        "runs": total.runs,
        "prompt_tokens": total.prompt,
        "completion_tokens": total.completion,
        "cached_tokens": total.cached,
        "cache_write_tokens": total.cache_write,
        "tool_calls": total.tool_calls,
        "cost_usd": None if nano is None else nano / NANO_PER_USD,
        "cost_priced_usd": total.priced_nano / NANO_PER_USD,
        "unpriced_calls": total.unpriced,
        "cost_is_exact": total.is_exact,
    }


def _calls(parts: RunParts) -> list[dict[str, object]]:
    turn = parts.find(Turn)
    return [
        {
            "call_id": call.call_id,
            "tool": call.tool,
            "state": "may_have_happened" if call.state == "unknown" else "asks",
            "arguments": parts.text(call.arguments),
        }
        for call in (() if turn is None else turn.calls)
        if call.state in ("asked", "unknown")
    ]
