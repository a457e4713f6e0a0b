"""What one stage of one blueprint looks like under the present offer, worked out once.

Derived from immutable content by digest and from the offer, so it is kept until the offer changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leviath.components.blueprint import Condition, StageMode
from leviath.components.identity import Launch
from leviath.components.parts import WORLD_OWNER
from leviath.components.progress import Stage
from leviath.components.world_facts import Offer

if TYPE_CHECKING:
    from leviath.components.blueprint import (
        Blueprint,
        Permission,
        RegionSpec,
        StageSpec,
        ToolRoute,
    )
    from leviath.components.world_facts import OfferedTool
    from leviath.systems.run import Run

SUBMIT_OUTPUT = "submit_output"
FAN_OUT = "fan_out"
QUESTION_TOOLS = frozenset(
    ("ask_user_text", "ask_user_choice", "ask_user_confirm", "present_for_review", "edit_document")
)
"""Tools with which a model asks a person."""


class StageView:
    """The tools and regions of one stage. Treat as frozen."""

    __slots__ = (
        "can_get_stuck",
        "missing",
        "permissions",
        "regions",
        "routes",
        "spec",
        "tool_specs",
        "tools",
        "visible",
    )

    def __init__(
        self, blueprint: Blueprint, spec: StageSpec, offer: Offer | None, *, asks: bool = True
    ) -> None:
        self.spec: StageSpec = spec
        names = named(spec) if asks else without_questions(spec)
        self.tools: dict[str, OfferedTool] = _tools(names, offer)
        """What the stage offers and the host has, in the stage's order."""
        self.missing: tuple[str, ...] = tuple(n for n in names if n not in self.tools)
        """What the stage offers and the host does not have: its turns wait for it."""
        self.tool_specs: tuple[bytes, ...] = tuple(tool.spec for tool in self.tools.values())
        self.visible: tuple[RegionSpec, ...] = blueprint.visible_regions(spec)
        """What the stage's requests show, in their order."""
        self.regions: dict[str, RegionSpec] = {region.name: region for region in self.visible}
        for region in all_regions(blueprint):
            self.regions.setdefault(region.name, region)
        self.routes: dict[str, ToolRoute] = {name: spec.routing.route(name) for name in self.tools}
        """Where the results of the tools go that are offered and here."""
        self.permissions: dict[str, Permission | None] = {
            name: blueprint.permission(spec, name) for name in self.tools
        }
        self.can_get_stuck: bool = any(edge.condition is Condition.stuck for edge in spec.edges)

    def route(self, tool: str) -> ToolRoute:
        """Where results of any tool go."""
        return self.routes.get(tool) or self.spec.routing.route(tool)


def named(spec: StageSpec) -> tuple[str, ...]:
    """The tools that a stage offers to its model, each once, in order."""
    names = dict.fromkeys((*spec.available_tools, *spec.required_tools))
    if spec.require_output:
        names[SUBMIT_OUTPUT] = None
    if spec.mode is StageMode.fan_out:
        names[FAN_OUT] = None
    return tuple(names)


def without_questions(spec: StageSpec) -> tuple[str, ...]:
    """The same for a run whose questions nobody answers: a tool that asks a person is offered only
    where the author insists on it."""
    if spec.allow_blocking_tools:
        return named(spec)
    return tuple(n for n in named(spec) if n not in QUESTION_TOOLS or n in spec.required_tools)


def _tools(names: tuple[str, ...], offer: Offer | None) -> dict[str, OfferedTool]:
    known = {} if offer is None else {tool.name: tool for tool in offer.tools}
    return {name: known[name] for name in names if name in known}


def all_regions(blueprint: Blueprint) -> tuple[RegionSpec, ...]:
    """Every region that any stage of a blueprint may see, each name once, in order."""
    specs = {spec.name: spec for spec in blueprint.regions}
    for stage in blueprint.stages:
        for spec in stage.regions or ():
            specs.setdefault(spec.name, spec)
    return tuple(specs.values())


def view_of(run: Run) -> StageView:
    """The view of the run's present stage."""
    row = run.row
    launch: Launch = row[Launch]
    key = (launch.blueprint, row[Stage].index, not launch.answers_nobody)
    view = run.world.views.get(key)
    return _make_view(run, key) if view is None else view


def _make_view(run: Run, key: tuple[bytes, int, bool]) -> StageView:
    blueprint = run.blueprint
    offer = run.world.find(WORLD_OWNER, Offer)
    view = StageView(blueprint, blueprint.stages[key[1]], offer, asks=key[2])
    run.world.views[key] = view
    return view


def offered_tool(run: Run, name: str) -> OfferedTool | None:
    """What the host says about a tool, whether or not the present stage offers it."""
    tool = view_of(run).tools.get(name)
    if tool is not None:
        return tool
    offer = run.world.find(WORLD_OWNER, Offer)
    for known in () if offer is None else offer.tools:
        if known.name == name:
            return known
    return None
