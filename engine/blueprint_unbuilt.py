"""Keys that change behaviour and that this version does not act on.

Such a key passes validation with a warning and makes spawn refuse: running an agent without what
its author asked for is worse than not running it. Keys that leave no trace in the structs are noted
while the document is read; the rest are found in the structs, so that a blueprint built in Python
is held to the same.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from leviath.components.blueprint import (
    Blueprint,
    Edge,
    OutputShape,
    RegionKind,
    RegionSpec,
    StageSpec,
    Transform,
)
from leviath.engine.blueprint_reader import Table, place_of

_REMEDIES: Final[dict[str, str]] = {
    "available_connectors": "remove it, and offer the same as tools of the host",
    "batch_tool_hint": "remove it, and say so in system_prompt",
    "compaction": "remove the section, and use sliding_window regions",
    "dynamic_tools": "remove it, and list every tool in available_tools",
    "sandbox": 'remove the section or set kind = "none"',
    "security": "remove the section or set taint_tracking = false",
    "shell_hint": "remove it, and say so in system_prompt",
    "transforms": "remove the section, and put what the child needs into its task",
}
_HOOK_REMEDY: Final = "remove the hook"
_SEED_REMEDIES: Final[dict[str, str]] = {
    "command": "run the command beforehand, and seed from files or the caller",
    "rhai": "seed from files or the caller",
    "tools": "let the first stage call the tool",
}
_KIND_REMEDIES: Final[dict[RegionKind, str]] = {
    RegionKind.compacting: 'use kind = "sliding_window" or "temporary"',
    RegionKind.compact_history: 'use kind = "pinned", and let a stage write to it',
    RegionKind.custom: "use one of the built-in kinds",
}


class Unbuilt:
    """What a document asks for that leaves no trace in the structs, in the order of reading."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def if_any(self, table: Table, key: str, value: object) -> None:
        """Note ``key`` of ``table`` if its ``value`` asks for anything."""
        if value:
            remedy = _REMEDIES.get(key, _HOOK_REMEDY)
            self.lines.append(_line(table.place, key, remedy))


def read_security(table: Table, unbuilt: Unbuilt) -> None:
    """Read the ``security`` section of an agent or stage; its presence alone turns tracking on."""
    inner = table.table("security")
    if inner is not None:
        unbuilt.if_any(table, "security", inner.flag("taint_tracking", default=True))
        inner.done()


def read_sandbox(table: Table, unbuilt: Unbuilt) -> None:
    """Read the ``sandbox`` section of an agent or stage."""
    inner = table.table("sandbox")
    if inner is not None:
        unbuilt.if_any(table, "sandbox", inner.text("kind", "none") != "none")
        inner.text("image")
        inner.text("engine")
        inner.flag("network", default=True)
        inner.flag("persist")
        inner.texts("mount")
        inner.text("on_unavailable")
        inner.done()


def edge_places(stage: StageSpec) -> tuple[str, ...]:
    """Return the place of each edge: by its target, or its position if others have that target."""
    place = place_of("stages", stage.name)
    targets = Counter(edge.to for edge in stage.edges)
    return tuple(
        place_of(f"{place}.transitions", edge.to)
        if targets[edge.to] == 1
        else f"{place}.edges[{index}]"
        for index, edge in enumerate(stage.edges)
    )


def found_in(blueprint: Blueprint) -> tuple[str, ...]:
    """Return the lines for what the structs themselves ask for, in order."""
    lines = _in_output("agent", blueprint.output)
    for region in blueprint.regions:
        lines += _in_region("context.regions", region)
    for stage in blueprint.stages:
        place = place_of("stages", stage.name)
        lines += _in_output(place, stage.output)
        for region in stage.regions or ():
            lines += _in_region(f"{place}.context.regions", region)
        for spot, edge in zip(edge_places(stage), stage.edges, strict=True):
            lines += _in_edge(spot, edge)
    return tuple(lines)


def _in_output(place: str, output: OutputShape | None) -> list[str]:
    if output is None or not output.validator:
        return []
    return [_line(f"{place}.output", "validator", "remove it, and describe the form in schema")]


def _in_region(parent: str, region: RegionSpec) -> list[str]:
    place = place_of(parent, region.name)
    lines: list[str] = []
    if region.kind in _KIND_REMEDIES:
        lines.append(_line(place, f"kind {region.kind.value}", _KIND_REMEDIES[region.kind]))
    if region.strategy == "compact":
        lines.append(_line(place, "strategy compact", 'use strategy = "bulk"'))
    if region.seed is not None and region.seed.kind in _SEED_REMEDIES:
        lines.append(_line(place, f"seed by {region.seed.kind}", _SEED_REMEDIES[region.seed.kind]))
    return lines


def _in_edge(place: str, edge: Edge) -> list[str]:
    if edge.transform is Transform.compact:
        return [_line(place, "transform compact", 'use transform = "direct" or "clear"')]
    if edge.compact:
        return [_line(f"{place}.transform_config", "compact", "move the regions to carry or clear")]
    return []


def _line(place: str, key: str, remedy: str) -> str:
    return f"{place or 'blueprint'}: {key}: {remedy}"
