"""Who plays in a random history: agents, tools of every class, models that fail, prices."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from leviath.components.blueprint import digest
from leviath.components.money import Rates
from leviath.components.world_facts import (
    Offer,
    OfferedModel,
    OfferedTool,
    Policy,
    Priced,
    Prices,
)
from leviath.engine.agent_tools import AGENT_TOOL_SPECS
from leviath.engine.blueprints import parse_blueprint
from leviath.engine.offering import Offering
from leviath.engine.person_tools import PERSON_TOOL_SPECS
from leviath.engine.tools import as_tools, builtin_tools

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from leviath.components.blueprint import Blueprint
    from leviath.engine.tools import Tool


class Cast(Struct, frozen=True):
    """What a history plays with."""

    blueprints: tuple[Blueprint, ...]
    offer: Offer
    policy: Policy
    prices: Prices
    shelf: dict[bytes, Blueprint]
    """The blueprints by digest."""


_TOOLS: Final = '["look", "find", "edit", "send", "submit_output", "context_write"]'
_MODEL: Final = 'models = [{ provider = "scripted", model = "m" }]'
_TWO: Final = (
    'models = [{ provider = "scripted", model = "m" }, { provider = "spare", model = "s" }]'
)

_ONE: Final = f"""
[agent]
name = "one"
[stages.main]
available_tools = {_TOOLS}
[stages.main.model]
{_MODEL}
"""
_TALK: Final = f"""
[agent]
name = "talk"
[stages.main]
[stages.main.model]
{_MODEL}
"""
_GRAPH: Final = f"""
[agent]
name = "graph"
[stages.first]
available_tools = {_TOOLS}
max_iterations = 3
max_revisits = 1
[[stages.first.edges]]
to = "second"
gate = {{ require_modifications = true, max_attempts = 2 }}
[[stages.first.edges]]
to = "last-one"
condition = "error"
[[stages.first.edges]]
to = "second"
condition = "stuck"
stuck_after_minutes = 2
stuck_after_tool_calls = 4
[stages.first.model]
{_TWO}
[stages.second]
available_tools = {_TOOLS}
max_iterations = 3
max_revisits = 1
allow_complete = true
transition_prompt = "Where to?"
[[stages.second.edges]]
to = "first"
condition = "llm_choice"
transform = "clear"
[[stages.second.edges]]
to = "last-one"
condition = "llm_choice"
[[stages.second.edges]]
to = "last-one"
condition = "dead_end"
[stages.second.model]
{_TWO}
[stages.last-one]
mode = "output"
available_tools = {_TOOLS}
max_iterations = 4
max_revisits = 2
[stages.last-one.model]
{_TWO}
[tool_permissions]
edit = "ask"
find = "deny"
[repetition_detection]
max_repeat_calls = 2
"""
_SEEDED: Final = f"""
[agent]
name = "seeded"
[stages.main]
available_tools = {_TOOLS}
max_iterations = 2
[stages.main.model]
{_MODEL}
[context.regions]
notes = {{ kind = "temporary", max_tokens = 20 }}
files = {{ kind = "pinned", seed = {{ files = ["a.txt"] }} }}
conversation = {{ kind = "sliding_window", max_items = 3, max_tokens = 40 }}
"""
_BOSS: Final = f"""
[agent]
name = "boss"
max_child_depth = 3
[stages.main]
available_tools = {json.dumps([spec.name for spec in AGENT_TOOL_SPECS])[:-1]}, "send", "look"]
max_iterations = 6
[stages.main.model]
{_MODEL}
"""
_SPLIT: Final = f"""
[agent]
name = "split"
max_child_depth = 2
[stages.split]
mode = "fan_out"
worker_stage = "work"
merge_stage = "merge"
max_workers = 2
[stages.split.model]
{_MODEL}
[stages.work]
allow_as_worker = true
available_tools = {_TOOLS}
[stages.work.model]
{_MODEL}
[stages.merge]
[stages.merge.model]
{_MODEL}
[stages.merge.transitions]
"""

_LEAD: Final = f"""
[agent]
name = "lead"
max_child_depth = 3
[stages.main]
available_tools = {json.dumps([spec.name for spec in AGENT_TOOL_SPECS])[:-1]}, "send"]
requires_children = true
[stages.main.model]
{_TWO}
"""
_ASKER: Final = f"""
[agent]
name = "asker"
[stages.main]
available_tools = ["edit", "send"]
required_tools = {json.dumps([spec.name for spec in PERSON_TOOL_SPECS])}
[[stages.main.interaction_points]]
prompt = "Well?"
style = "confirm"
[stages.main.model]
{_TWO}
[tool_permissions]
edit = "ask"
"""
_JOINING: Final = f"""
[agent]
name = "JOIN"
max_child_depth = 3
[stages.split]
mode = "fan_out"
worker_agent = "any"
join = "JOIN"
QUORUM
max_attempts = 1
[stages.split.model]
{_TWO}
"""
"""Workers of any agent, with each of the joins; no merge."""

_OFFER: Final = Offer(
    ("scripted", "spare"),
    (
        OfferedTool("edit", "idempotent", 60_000, b"edit", modifies=True),
        OfferedTool("find", "pure", 60_000, b"find", searches=True),
        OfferedTool("look", "pure", 60_000, b"look"),
        OfferedTool("send", "once", 60_000, b"send"),
        OfferedTool("submit_output", "step", 0, b"submit"),
        OfferedTool("context_write", "step", 0, b"write"),
        *(OfferedTool(spec.name, "step", 0, spec.name.encode()) for spec in AGENT_TOOL_SPECS),
    ),
    (OfferedModel("scripted", "m", 10_000),),
)
_POLICY: Final = Policy(
    slots_default=2,
    breaker_failures=2,
    stall_ms=20_000,
    iterations_default=4,
    inbox_messages_max=3,
    tree_children_max=3,
    tree_runs_max=10,
    tree_depth_max=3,
)
"""Small numbers: what takes a fleet and a day otherwise happens within a few inputs."""


def built_in() -> Cast:
    """Six small agents that use every kind of stage, edge and tool."""
    texts = {"one": _ONE, "talk": _TALK, "graph": _GRAPH, "seeded": _SEEDED}
    texts |= {"boss": _BOSS, "split": _SPLIT}
    blueprints = tuple(parse_blueprint(text, where=name) for name, text in texts.items())
    prices = Prices((Priced("scripted", "m", Rates(1_000_000, 2_000_000, 100_000, 1_000_000)),))
    return Cast(blueprints, _OFFER, _POLICY, prices, _shelf(blueprints))


def trees() -> Cast:
    """Agents that start, wait for and split among others, and ask people meanwhile."""
    texts = {"boss": _BOSS, "split": _SPLIT, "lead": _LEAD, "asker": _ASKER}
    for join in ("all", "fail_all", "first", "quorum"):
        more = "quorum = 2" if join == "quorum" else ""
        texts[join] = _JOINING.replace("JOIN", join).replace("QUORUM", more)
    blueprints = tuple(parse_blueprint(text, where=name) for name, text in texts.items())
    names = [spec.name for spec in PERSON_TOOL_SPECS]
    asking = tuple(OfferedTool(name, "step", 0, name.encode()) for name in names)
    offer = replace(_OFFER, tools=(*_OFFER.tools, *asking))
    policy = replace(_POLICY, tree_moves_max=2, tree_children_max=4)
    return Cast(blueprints, offer, policy, Prices(), _shelf(blueprints))


def cast_of(blueprints: Iterable[Blueprint], tools: Iterable[Tool | Callable[..., object]]) -> Cast:
    """A host's own agents with its tools and leviath's; models with the names that they use."""
    agents = tuple(blueprints)
    own = (*builtin_tools(), *as_tools(tools))
    offer = Offering((), own).offer
    providers = {
        candidate.provider
        for blueprint in agents
        for stage in blueprint.stages
        for candidate in stage.model.models
    }
    offer = Offer(tuple(sorted(providers)), offer.tools, offer.contexts)
    return Cast(agents, offer, _POLICY, Prices(), _shelf(agents))


def _shelf(blueprints: tuple[Blueprint, ...]) -> dict[bytes, Blueprint]:
    return {digest(blueprint): blueprint for blueprint in blueprints}
