"""Worlds by hand whose calls have prices, and what became of the budgets of their runs."""

from __future__ import annotations

from typing import Any

from hand_agents import (
    TOOLS,
)

from leviath.components.budget import Hold, Reserved
from leviath.components.events import CallRefused
from leviath.components.money import Rates
from leviath.components.world_facts import Policy, Priced, Prices
from leviath.simulation.hand import Hand
from leviath.systems.run import EndingFact

PRICES = Prices(
    (
        Priced("scripted", "m", Rates(1_000_000, 2_000_000, 1_000_000, 1_000_000)),
        Priced("spare", "s", Rates(10_000, 20_000, 10_000, 10_000)),
    )
)
"""A prompt token of ``m`` costs one nano-dollar, a reply token two: sums can be read."""
SHORT = Policy(budget_output_tokens=100)
CALL_TOKENS = 512 + 100
"""What a call of ``TALK`` may take: an empty prompt's bound, and a reply."""
CALL_NANO = 512 + 200


def priced(policy: Policy = SHORT, **more: Any) -> Hand:
    return Hand(policy=policy, prices=PRICES, tools=TOOLS, **more)


def refused(hand: Hand) -> list[str]:
    """Causes of the calls that the newest step did not make."""
    return [e.cause for e in hand.results[-1].events if isinstance(e, CallRefused)]


def outcome(hand: Hand, run: int) -> str:
    """What the run store was told of the run's newest ending."""
    told = [
        f for r in hand.results for f in r.endings if isinstance(f, EndingFact) and f.run == run
    ]
    return told[-1].outcome


def held(hand: Hand, run: int) -> tuple[Hold, ...]:
    reserved = hand.world.find(run, Reserved)
    return () if reserved is None else reserved.holds


def talk_on(hand: Hand, **usage: Any) -> None:
    """One turn that leads to another: a call of a tool, and its result."""
    values: dict[str, Any] = {"prompt": 0, "completion": 0, "cost_nano_usd": None} | usage
    hand.reply("", ("c", "look", "{}"), **values)
    hand.tool("seen")
