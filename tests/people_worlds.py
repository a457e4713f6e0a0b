"""Runs that ask people, in a world that is driven by hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hand_agents import TOOLS, agent
from tree_hands import asks, infer_of, says

from leviath.components.blueprint import PointSpec
from leviath.components.context import AskedCall
from leviath.components.inputs import Answered
from leviath.components.people import Prompt, Prompts
from leviath.components.text import inline
from leviath.components.world_facts import OfferedTool
from leviath.engine.person_tools import PERSON_TOOL_SPECS, person_fields
from leviath.engine.texts import Texts
from leviath.simulation.hand import Hand

if TYPE_CHECKING:
    from leviath.engine.step import StepResult

__all__ = ["ASKER", "answer", "asks", "hand", "infer_of", "point_agent", "pose", "prompts", "says"]
PERSON_TOOLS = tuple(
    OfferedTool(spec.name, "step", 0, spec.name.encode()) for spec in PERSON_TOOL_SPECS
)
_NAMES = json.dumps([tool.name for tool in PERSON_TOOLS] + ["send", "look", "submit_output"])
ASKER = agent(
    f"[stages.main]\navailable_tools = {_NAMES}\n[stages.main.tool_permissions]\nsend = 'ask'\n"
)
"""One stage that may ask people, and has to ask before it sends."""


def hand(**more: Any) -> Hand:
    """A world that offers the tools with which models ask people."""
    return Hand(tools=(*TOOLS, *PERSON_TOOLS), **more)


def pose(tool: str, call_id: str = "c", **arguments: Any) -> AskedCall:
    """A question as the border makes it of a model's JSON."""
    fields, fault = person_fields(tool, arguments, Texts(lambda digest: None))
    return AskedCall(call_id, tool, inline(json.dumps(arguments)), fault, fields)


def prompts(hand: Hand, run: int) -> tuple[Prompt, ...]:
    """The run's open questions."""
    found = hand.world.find(run, Prompts)
    return () if found is None else found.items


def answer(hand: Hand, run: int, question: str, **values: Any) -> str:
    """Answer a question; returns why it was refused, "" when it was taken."""
    if "text" in values:
        values["text"] = inline(values["text"])
    result: StepResult = hand.post(Answered(run, question, ticket=1, actor="ann", **values))
    (ack,) = result.acks
    return ack.message if ack.code else ""


def point_agent(*points: str, rest: str = "") -> Any:
    """A stage with these points, and one behind it."""
    body = '[stages.draft]\nmode = "interactive_points"\n'
    for point in points:
        body += f"[[stages.draft.interaction_points]]\n{point}\n"
    return agent(body + "[stages.after]\n" + rest)


assert PointSpec().choices == ()
