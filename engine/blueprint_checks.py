"""What must hold between the parts of a blueprint, and what is allowed but looks like a mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import cast

import msgspec

from leviath.components.blueprint import (
    AUTO_REGIONS,
    Blueprint,
    Condition,
    Edge,
    Gate,
    Node,
    RegionKind,
    RegionSpec,
    StageMode,
    StageSpec,
    Transform,
)
from leviath.engine import limits
from leviath.engine.blueprint_fan_out import check_fan_out, next_stages
from leviath.engine.blueprint_points import check_points
from leviath.engine.blueprint_reader import (
    BOUNDS,
    NAME,
    TOOL_NAME,
    Faults,
    place_of,
    text_fault,
)
from leviath.engine.blueprint_unbuilt import edge_places


def check_values(node: Node, place: str, faults: Faults) -> None:
    """Check the bounds of numbers and the characters of texts, throughout ``node``."""
    for field in msgspec.structs.fields(node):
        value = getattr(node, field.name)
        spot = place_of(place, field.name)
        if isinstance(value, bool):
            continue
        if isinstance(value, int):
            low, high = BOUNDS[field.name]
            if not low <= value <= high:
                faults.add(spot, f"{value} is out of bounds; use {low} to {high}")
            continue
        many = isinstance(value, tuple)
        items = cast("tuple[object, ...]", value) if many else (value,)
        for index, item in enumerate(items):
            inner = f"{spot}[{index}]" if many else spot
            if isinstance(item, Node):
                name = getattr(item, "name", "")
                check_values(item, place_of(spot, name) if name else inner, faults)
            elif isinstance(item, str) and (fault := text_fault(item)) is not None:
                faults.add(inner, fault)


def check_graph(blueprint: Blueprint, faults: Faults) -> None:
    """Check names, references between parts, edges, gates and the way to an end."""
    known = len(faults)
    _check_counts(blueprint, faults)
    if len(faults) > known:
        # What follows compares parts with each other; it is not for documents without measure.
        return
    _check_stage_names(blueprint.stages, faults)
    _check_regions("context.regions", blueprint.regions, faults)
    _check_tools("tool_permissions", [tool for tool, _ in blueprint.permissions], faults)
    tracking = blueprint.file_tracking
    if tracking is not None:
        names = [region.name for region in blueprint.regions]
        _check_one_of("context.file_tracking.region", tracking.region, names, "region", faults)
    for stage in blueprint.stages:
        _check_stage(blueprint, stage, place_of("stages", stage.name), faults)
    if not 0 <= blueprint.entry < len(blueprint.stages):
        faults.add("agent.entry_stage", f"there is no stage number {blueprint.entry}")
    elif not faults and not _reaches_end(blueprint):
        # Only asked of a sound graph: a missing target would be told twice.
        entry = blueprint.stages[blueprint.entry].name
        faults.add(
            place_of("stages", entry),
            "no path from this entry stage leads to an end; give one stage on the way an empty "
            "[transitions] table or allow_complete = true",
        )


def lint_graph(blueprint: Blueprint) -> tuple[str, ...]:
    """Return what is allowed but has no effect or looks like a mistake, as ``place: what``."""
    lines: list[str] = []
    reached = _reachable(blueprint)
    for index, stage in enumerate(blueprint.stages):
        place = place_of("stages", stage.name)
        if index not in reached and not stage.allow_as_worker:
            lines.append(f"{place}: no edge leads here from the entry stage")
        if stage.mode is StageMode.interactive:
            lines.append(f"{place}.mode: interactive acts as autonomous")
        if stage.mode is StageMode.interactive_points and not stage.points:
            lines.append(f"{place}.mode: interactive_points without interaction_points asks nobody")
        lines += (
            f"{place}.required_tools: {tool} is not in available_tools, so the model never sees it"
            for tool in stage.required_tools
            if tool not in stage.available_tools
        )
        lines += _lint_edges(blueprint, stage)
    lines += _lint_regions(blueprint)
    return tuple(lines)


def terminal(blueprint: Blueprint, index: int) -> bool:
    """Return whether a run may end complete in the stage at ``index``."""
    stage = blueprint.stages[index]
    if stage.allow_complete:
        return True
    if not stage.edges_declared:
        return index == len(blueprint.stages) - 1
    return not any(edge.condition.choosable for edge in stage.edges)


def _check_counts(blueprint: Blueprint, faults: Faults) -> None:
    most = limits.BLUEPRINT_STAGES_MAX
    layouts = [("context.regions", blueprint.regions)]
    if len(blueprint.stages) > most:
        faults.add(
            "stages", f"{len(blueprint.stages)} stages are more than {most}; split the agent"
        )
    for stage in blueprint.stages:
        place = place_of("stages", stage.name)
        layouts.append((f"{place}.context.regions", stage.regions or ()))
        if len(stage.edges) > most:
            faults.add(place, f"{len(stage.edges)} edges are more than {most}; put a stage between")
    most = limits.BLUEPRINT_REGIONS_MAX
    for place, regions in layouts:
        if len(regions) > most + len(AUTO_REGIONS):
            faults.add(place, f"{len(regions)} regions are more than {most}; merge some")


def _check_stage_names(stages: tuple[StageSpec, ...], faults: Faults) -> None:
    seen: dict[str, str] = {}
    for stage in stages:
        place = place_of("stages", stage.name)
        _check_name(place, stage.name, "stage", faults)
        # The model picks a stage by its name in any case, and ends a run by the word DONE.
        word = stage.name.lower()
        if word == "done":
            faults.add(place, "is what the model answers to end a run; choose another name")
        elif word in seen:
            faults.add(place, f"differs from {seen[word]!a} at most in case; rename one")
        seen.setdefault(word, stage.name)


def _check_name(place: str, name: str, what: str, faults: Faults) -> None:
    if not NAME.fullmatch(name):
        faults.add(
            place,
            f"{name[:64]!a} is no name for a {what}; use 1 to 64 of A-Z a-z 0-9 _ -, not - first",
        )


def _check_tools(place: str, tools: Iterable[str], faults: Faults) -> None:
    seen: set[str] = set()
    for tool in tools:
        if not TOOL_NAME.fullmatch(tool):
            faults.add(
                place, f"{tool[:64]!a} is no tool name; use 1 to 128 printable ASCII characters"
            )
        if tool in seen:
            faults.add(place, f"{tool!a} is listed twice; remove one")
        seen.add(tool)


def _check_one_of(place: str, name: str, names: Iterable[str], what: str, faults: Faults) -> None:
    known = tuple(names)
    if name not in known:
        faults.add(place, f"there is no {what} {name[:64]!a} here; {faults.suggest(name, known)}")


def _check_regions(place: str, regions: tuple[RegionSpec, ...], faults: Faults) -> None:
    kinds: dict[str, RegionKind] = {}
    for region in regions:
        spot = place_of(place, region.name)
        _check_name(spot, region.name, "region", faults)
        if region.name in kinds:
            faults.add(spot, "is declared twice; remove one")
        kinds[region.name] = region.kind
        if region.max_tokens is not None and region.min_tokens > region.max_tokens:
            faults.add(f"{spot}.min_tokens", "is greater than max_tokens; lower it")
        if region.kind is RegionKind.custom and not region.script:
            faults.add(f"{spot}.script", "is missing; a custom region needs the path of its script")
    for region in regions:
        if region.source_region and kinds.get(region.source_region) is not RegionKind.compacting:
            sources = [name for name, kind in kinds.items() if kind is RegionKind.compacting]
            spot = f"{place_of(place, region.name)}.source_region"
            _check_one_of(spot, region.source_region, sources, "compacting region", faults)


def _check_stage(blueprint: Blueprint, stage: StageSpec, place: str, faults: Faults) -> None:
    if stage.regions is not None:
        _check_regions(f"{place}.context.regions", stage.regions, faults)
    _check_tools(f"{place}.available_tools", stage.available_tools, faults)
    _check_tools(f"{place}.required_tools", stage.required_tools, faults)
    _check_tools(f"{place}.tool_permissions", (tool for tool, _ in stage.permissions), faults)
    if not stage.model.models and not stage.model.allow_user_default:
        faults.add(f"{place}.model", "names no model and refuses the user's; name one")
    regions = [region.name for region in blueprint.visible_regions(stage)]
    routing = stage.routing
    _check_tools(f"{place}.tool_routing.overrides", (r.tool for r in routing.overrides), faults)
    _check_one_of(
        f"{place}.tool_routing.default_region", routing.default_region, regions, "region", faults
    )
    for route in routing.overrides:
        spot = place_of(f"{place}.tool_routing.overrides", route.tool)
        _check_one_of(spot, route.region, regions, "region", faults)
    check_fan_out(blueprint, stage, place, faults)
    check_points(blueprint, stage, place, faults)
    for spot, edge in zip(edge_places(stage), stage.edges, strict=True):
        _check_edge(blueprint, stage, edge, spot, faults)


def _check_edge(
    blueprint: Blueprint, stage: StageSpec, edge: Edge, place: str, faults: Faults
) -> None:
    _check_one_of(place, edge.to, (s.name for s in blueprint.stages), "stage", faults)
    if edge.to == stage.name and stage.max_revisits is None:
        faults.add(place, "leads back to its own stage; set max_revisits on the stage")
    armed = (
        edge.stuck_after_iterations
        or edge.stuck_after_minutes
        or edge.stuck_after_same_file_edits
        or edge.stuck_after_tool_calls
    )
    if edge.condition is Condition.stuck and not armed:
        faults.add(place, "is never taken; set one of stuck_after_iterations, _minutes, ...")
    if edge.condition is not Condition.stuck and armed:
        faults.add(place, 'stuck_after_* is given; set condition = "stuck" or remove it')
    names = [region.name for region in blueprint.visible_regions(stage)]
    lists = (("carry", edge.carry), ("compact", edge.compact), ("clear", edge.clear))
    placed: dict[str, str] = {}
    for key, regions in lists:
        spot = f"{place}.transform_config.{key}"
        if regions and edge.transform is not Transform.custom:
            faults.add(spot, 'is given; set transform = "custom" or remove it')
        for name in regions:
            _check_one_of(spot, name, names, "region", faults)
            if placed.setdefault(name, key) != key:
                faults.add(spot, f"{name!a} is in {placed[name]} as well; keep one")
    if edge.gate is not None:
        _check_gate(blueprint, stage, edge.gate, f"{place}.gate", faults)


def _check_gate(
    blueprint: Blueprint, stage: StageSpec, gate: Gate, place: str, faults: Faults
) -> None:
    regions = {region.name: region.kind for region in blueprint.visible_regions(stage)}
    wanted = (
        *(("require_regions", name) for name in gate.require_regions),
        ("require_region_updated", gate.require_region_updated),
        ("region", gate.region),
    )
    for key, name in wanted:
        if name or key == "require_regions":
            _check_one_of(f"{place}.{key}", name, regions, "region", faults)
    if gate.require_no_open_items:
        checklists = [name for name, kind in regions.items() if kind is RegionKind.checklist]
        spot = f"{place}.require_no_open_items"
        _check_one_of(spot, gate.require_no_open_items, checklists, "checklist region", faults)
    for tool in gate.tools:
        _check_one_of(f"{place}.tools", tool, stage.available_tools, "offered tool", faults)
    for key, given in (("region", gate.region), ("tools", gate.tools)):
        if given and not gate.require_modifications:
            faults.add(
                f"{place}.{key}", "has a meaning only with require_modifications; set or remove it"
            )


def _next(blueprint: Blueprint, index: int) -> Iterator[int]:
    stage = blueprint.stages[index]
    names = {other.name: at for at, other in enumerate(blueprint.stages)}
    yield from (names[name] for name in next_stages(stage) if name in names)
    if stage.edges_declared:
        yield from (names[edge.to] for edge in stage.edges if edge.to in names)
    elif index + 1 < len(blueprint.stages):
        yield index + 1


def _reachable(blueprint: Blueprint) -> set[int]:
    reached: set[int] = set()
    todo = [blueprint.entry]
    while todo:
        index = todo.pop()
        if index not in reached:
            reached.add(index)
            todo.extend(_next(blueprint, index))
    return reached


def _reaches_end(blueprint: Blueprint) -> bool:
    return any(terminal(blueprint, index) for index in _reachable(blueprint))


def _lint_edges(blueprint: Blueprint, stage: StageSpec) -> Iterator[str]:
    limited = {s.name for s in blueprint.stages if s.max_revisits is not None}
    choosable = [edge for edge in stage.edges if edge.condition.choosable]
    conditions = {edge.condition for edge in stage.edges}
    unlimited: set[Condition] = set()
    targets: set[str] = set()
    for place, edge in zip(edge_places(stage), stage.edges, strict=True):
        if edge.gate is not None and not edge.condition.choosable:
            yield f"{place}.gate: edges on {edge.condition.value} are taken without asking a gate"
        if edge.condition.choosable:
            if edge.to in targets:
                yield f"{place}: the model cannot tell it from an earlier edge to {edge.to}"
            targets.add(edge.to)
            continue
        if edge.condition is Condition.stuck:
            continue
        if edge.condition in unlimited:
            yield f"{place}: never taken, an earlier {edge.condition.value} edge always wins"
        if edge.to not in limited:
            unlimited.add(edge.condition)
        dead_end = choosable and all(other.to in limited for other in choosable)
        if edge.condition is Condition.dead_end and not dead_end and Condition.error in conditions:
            yield f"{place}: never taken, this stage cannot run out of targets"


# Keys of a region and the kinds that act on them.
_KIND_KEYS: dict[str, Callable[[RegionSpec], bool]] = {
    "max_items": lambda r: r.kind is RegionKind.sliding_window,
    "strategy": lambda r: r.kind is RegionKind.sliding_window,
    "overflow": lambda r: r.kind is RegionKind.sliding_window and r.strategy == "bulk",
    "compact_count": lambda r: r.kind is RegionKind.sliding_window and r.strategy == "compact",
    "compact_at_permille": lambda r: r.kind is RegionKind.compacting,
    "threshold_tokens": lambda r: r.kind is RegionKind.compacting,
    "source_region": lambda r: r.kind is RegionKind.compact_history,
    "max_entries": lambda r: r.kind is RegionKind.hashmap,
    "script": lambda r: r.kind is RegionKind.custom,
    "persistent": lambda r: r.kind is RegionKind.custom,
}


def _lint_regions(blueprint: Blueprint) -> Iterator[str]:
    kinds = {region.name: region.kind for region in blueprint.regions}
    yield from _lint_layout("context.regions", blueprint.regions)
    for stage in blueprint.stages:
        place = f"{place_of('stages', stage.name)}.context.regions"
        yield from _lint_layout(place, stage.regions or ())
        for region in stage.regions or ():
            if kinds.setdefault(region.name, region.kind) is not region.kind:
                yield f"{place_of(place, region.name)}.kind: differs from another layout's"


def _lint_layout(place: str, regions: tuple[RegionSpec, ...]) -> Iterator[str]:
    defaults = RegionSpec(name="")
    for region in regions:
        spot = place_of(place, region.name)
        for key, acts in _KIND_KEYS.items():
            if getattr(region, key) != getattr(defaults, key) and not acts(region):
                yield f"{spot}.{key}: has no effect on a region of kind {region.kind.value}"
        if region.required_message and not region.required:
            yield f"{spot}.required_message: has no effect without required"
        if region.kind is RegionKind.compact_history and not region.source_region:
            yield f"{spot}.source_region: is missing, so nothing is ever put here"
