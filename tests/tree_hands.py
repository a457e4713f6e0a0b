"""Trees of runs in a world that is driven by hand: parents, workers, and what they are asked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hand_agents import MODEL, TOOLS, agent
from msgspec.structs import replace

from leviath.components.commands import FindAgent, Infer
from leviath.components.context import AskedCall, Context
from leviath.components.identity import Identity, Tree
from leviath.components.inputs import AgentFound
from leviath.components.text import inline
from leviath.components.world_facts import OfferedTool, Policy
from leviath.engine.agent_tools import AGENT_TOOL_SPECS, agent_fields
from leviath.engine.texts import Texts
from leviath.simulation.hand import Hand
from leviath.systems.invariants import broken

if TYPE_CHECKING:
    from leviath.components.blueprint import Blueprint
    from leviath.engine.step import StepResult

AGENT_TOOLS = tuple(
    OfferedTool(spec.name, "step", 0, spec.name.encode()) for spec in AGENT_TOOL_SPECS
)
NAMES = json.dumps([spec.name for spec in AGENT_TOOL_SPECS] + ["send", "look", "submit_output"])
BOSS = agent(f"[stages.main]\navailable_tools = {NAMES}\n", head="max_child_depth = 8")
"""One stage with every tool that starts and steers agents."""


def fan_out(keys: str = "", *, rest: str = "", models: str = MODEL) -> Blueprint:
    """A stage that splits, its workers' stage, and a merge that ends the run."""
    return agent(
        f"""
[stages.split]
mode = "fan_out"
worker_stage = "work"
merge_stage = "merge"
{keys}
[stages.work]
allow_as_worker = true
system_prompt = "Work."
[stages.merge]
system_prompt = "Merge."
[stages.merge.transitions]
{rest}
""",
        models=models,
    )


def hand(policy: Policy | None = None, **more: Any) -> Hand:
    """A world that offers the tools of agents."""
    return Hand(tools=(*TOOLS, *AGENT_TOOLS), policy=policy, **more)


def call(tool: str, call_id: str = "c", **arguments: Any) -> AskedCall:
    """A tool call as the border makes it of a model's JSON."""
    fields, fault = agent_fields(tool, arguments, Texts(lambda digest: None))
    return AskedCall(call_id, tool, inline(json.dumps(arguments)), fault, fields)


def asks(hand: Hand, run: int, *calls: AskedCall, **more: Any) -> StepResult:
    """The run's model asks for these calls."""
    return hand.post(hand.inferred(infer_of(hand, run), calls=calls, cost_nano_usd=10, **more))


def says(hand: Hand, run: int, text: str = "done", **more: Any) -> StepResult:
    """The run's model answers with text."""
    values = {"cost_nano_usd": 10, "prompt": 5} | more
    return hand.post(hand.inferred(infer_of(hand, run), text=inline(text), **values))


def infer_of(hand: Hand, run: int) -> Infer:
    """Take the model call that a run waits for."""
    for command in hand.commands:
        if isinstance(command, Infer) and command.run == run:
            hand.commands.remove(command)
            return command
    raise AssertionError(f"run {run} wants no model call: {hand.status(run)}")


def asking(hand: Hand) -> list[int]:
    """Runs whose model is asked and that have not ended."""
    return [
        command.run
        for command in hand.commands
        if isinstance(command, Infer) and not hand.status(command.run).status.is_ended
    ]


def found(hand: Hand, blueprint: Blueprint, **more: Any) -> StepResult:
    """Answer the oldest look-up of an agent."""
    command = next(c for c in hand.commands if isinstance(c, FindAgent))
    hand.commands.remove(command)
    digest = hand._shelve(blueprint)
    values: dict[str, Any] = {"blueprint": digest, "agent_name": blueprint.name} | more
    return hand.post(AgentFound(command.run, command.effect, command.attempt, **values))


def drain(hand: Hand) -> None:
    """Take the steps that a tree asks for without waiting."""
    for _ in range(1_000):
        due = hand.results[-1].next_due_ms
        if due is None or due > hand.world_ms:
            return
        hand.post()
    raise AssertionError("the world never comes to rest")


def spawn_child(hand: Hand, run: int, blueprint: Blueprint, **more: Any) -> int:
    """Let a run's model start an agent; returns its ordinal."""
    asks(hand, run, call("spawn_agent", agent=blueprint.name, task="go", **more))
    before = newest(hand)
    found(hand, blueprint)
    assert newest(hand) == before + 1, results(hand, run)
    return newest(hand)


def newest(hand: Hand) -> int:
    """Ordinal of the newest run."""
    return max(hand.world.owners(), default=0)


def run_id(hand: Hand, run: int) -> str:
    return hand.world.get(run, Identity).run_id


def children(hand: Hand, run: int) -> list[int]:
    """Runs that name this one as their parent, oldest first."""
    return sorted(n for n in hand.world.owners() if hand.world.get(n, Tree).parent == run)


def results(hand: Hand, run: int) -> list[str]:
    """What the run's tools answered, newest last, with the results that they refer to."""
    region = hand.world.get(run, Context).region("conversation")
    assert region is not None
    return [
        "\n".join([entry.text.body, *(f"{r.label}: {r.text.body}" for r in entry.references)])
        for entry in region.entries
        if entry.kind == "tool_result"
    ]


def words(hand: Hand, *runs: int) -> list[str]:
    """Statuses of runs."""
    return [hand.status(run).status.wire() for run in runs]


def is_sound(hand: Hand) -> None:
    """Every invariant over the whole world."""
    assert broken(hand.world, hand.world.owners()) == []


def all_ended(hand: Hand) -> bool:
    return all(hand.status(n).status.is_ended for n in hand.world.owners())


def narrow(**caps: int) -> Policy:
    """The policy with other caps."""
    return replace(Policy(), **caps)
