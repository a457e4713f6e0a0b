"""A world driven by hand takes the tools that a host takes."""

from __future__ import annotations

import leviath
from leviath.components.commands import CallTool
from leviath.components.world_facts import OfferedTool
from leviath.engine.offering import IN_STEP_TOOLS
from leviath.simulation.testing import Hand

AGENT = leviath.parse_blueprint(
    """
    [stages.main]
    available_tools = ["search", "submit_output"]
    model = { provider = "scripted", model = "any" }
    """,
    where="agent",
)


@leviath.tool(effect="pure", deadline_ms=5_000)
def search(words: str) -> str:
    """Search."""
    raise AssertionError(words)  # a world driven by hand runs no tool


def names(hand: Hand) -> list[str]:
    return [tool.name for tool in hand.offer.tools]


def test_ordinary_tools_are_offered_as_a_host_offers_them() -> None:
    hand = Hand(tools=[search])
    assert names(hand) == ["search", *(spec.name for spec in IN_STEP_TOOLS)]
    assert hand.offer.tools[0].effect_class == "pure"
    assert hand.offer.tools[0].deadline_ms == 5_000
    run = hand.spawn(AGENT)
    hand.reply("", ("c1", "search", '{"words": "tea"}'))
    assert [call.tool for call in hand.commands if isinstance(call, CallTool)] == ["search"]
    hand.tool("nothing")
    hand.reply("", ("c2", "submit_output", '{"content": "none"}'))
    hand.reply("Done.")
    assert hand.status(run).status == leviath.RunStatus.COMPLETE


def test_an_offered_tool_stands_for_itself() -> None:
    offered = OfferedTool("search", "once", 1_000, b"spec")
    assert Hand(tools=[offered]).offer.tools == (offered,)
    hand = Hand()
    assert names(hand) == []
    hand.configure(tools=[search])
    assert names(hand) == ["search", *(spec.name for spec in IN_STEP_TOOLS)]
