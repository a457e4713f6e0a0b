"""Reading ``[stages.<name>]`` tables into stage specs: models, routing, edges, gates."""

from __future__ import annotations

from typing import Final

import msgspec

from leviath.components.blueprint import (
    Condition,
    Edge,
    Gate,
    ModelRef,
    ModelSpec,
    Nudge,
    OutputShape,
    Permission,
    Routing,
    StageMode,
    StageSpec,
    ToolRoute,
    Transform,
)
from leviath.engine.blueprint_fan_out import read_fan_out
from leviath.engine.blueprint_points import read_points
from leviath.engine.blueprint_reader import Table, canonical_json, kind_of
from leviath.engine.blueprint_regions import read_regions
from leviath.engine.blueprint_unbuilt import Unbuilt, read_sandbox, read_security

_HOOKS: Final = (
    "on_stage_enter",
    "on_stage_exit",
    "before_inference",
    "after_inference",
    "on_tool_call",
    "on_completion",
    "on_error",
)
_MODEL_REMEDY: Final = "a model needs both provider and model"


def read_stage(name: str, table: Table, nudge: Nudge, unbuilt: Unbuilt) -> StageSpec:
    """Return the stage that ``table`` describes; ``nudge`` is what the agent's section says."""
    mode = table.choice("mode", StageMode, StageMode.autonomous)
    context = table.table("context")
    regions = read_regions(context) if context is not None else None
    if context is not None:
        context.done()
    edges, edges_declared = _edges(table)
    stage = StageSpec(
        name=name,
        mode=mode,
        system_prompt=table.text("system_prompt"),
        description=table.text("description"),
        transition_prompt=table.text("transition_prompt"),
        available_tools=table.texts("available_tools"),
        required_tools=table.texts("required_tools"),
        max_iterations=table.maybe_whole("max_iterations", least=0) or None,
        max_revisits=table.maybe_whole("max_revisits"),
        allow_complete=table.flag("allow_complete"),
        require_output=table.flag("require_output") or mode is StageMode.output,
        accepts_messages=table.flag("accepts_messages", default=True),
        allow_as_worker=table.flag("allow_as_worker"),
        allow_blocking_tools=table.flag("allow_blocking_tools"),
        nudge=read_nudge(table, nudge),
        output=read_output(table),
        permissions=read_permissions(table, "tool_permissions"),
        regions=regions or None,
        model=_model(table.table("model")),
        routing=_routing(table.table("tool_routing")),
        edges=edges,
        edges_declared=edges_declared,
        requires_children=table.flag("requires_children"),
        fan_out=read_fan_out(table, mode),
        points=read_points(table),
    )
    _read_unbuilt(table, unbuilt)
    table.done()
    return stage


def read_nudge(table: Table, base: Nudge | None) -> Nudge | None:
    """Return the ``nudge`` of ``table``, what it leaves out taken from ``base``; None if absent."""
    inner = table.table("nudge")
    if inner is None:
        return None
    base = base or Nudge()
    nudge = Nudge(
        enabled=inner.flag("enabled", default=base.enabled),
        max=inner.whole("max", base.max),
        text=inner.text("text") or base.text,
    )
    inner.done()
    return nudge


def read_output(table: Table) -> OutputShape | None:
    """Return the ``output`` of ``table``, None if absent."""
    inner = table.table("output")
    if inner is None:
        return None
    output = OutputShape(
        format=inner.text("format"),
        instructions=inner.text("instructions"),
        example=inner.text("example"),
        schema_json=inner.json("schema"),
        validator=inner.text("validator"),
    )
    inner.done()
    return output


def read_permissions(table: Table, key: str) -> tuple[tuple[str, Permission], ...]:
    """Return ``tool = policy`` pairs; finishing a blueprint sorts them."""
    inner = table.table(key)
    if inner is None:
        return ()
    return tuple((tool, inner.choice(tool, Permission, Permission.ask)) for tool in inner.data)


def _edges(table: Table) -> tuple[tuple[Edge, ...], bool]:
    # Two spellings: a table by target (one edge each), or an array where targets may repeat.
    declared = "transitions" in table.data or "edges" in table.data
    edges = [_edge(to, inner) for to, inner in table.named_tables("transitions")]
    for inner in table.tables("edges"):
        edge = _edge(inner.needed("to", "name the stage that this edge leads to"), inner)
        if edge.to:
            edges.append(edge)
    if "transitions" in table.data and "edges" in table.data:
        table.fault(
            "edges", "a stage has either [transitions.<target>] or [[edges]]; move all to one"
        )
    return tuple(edges), declared


def _edge(to: str, table: Table) -> Edge:
    config = table.table("transform_config")
    transform = table.choice(
        "transform", Transform, Transform.direct, also={"summarize": Transform.compact}
    )
    edge = Edge(
        to=to,
        condition=table.choice("condition", Condition, Condition.always),
        hint=table.text("hint"),
        transform=transform,
        carry=config.texts("carry") if config else (),
        compact=config.texts("compact") if config else (),
        clear=config.texts("clear") if config else (),
        gate=_gate(table.table("gate")),
        stuck_after_iterations=table.whole("stuck_after_iterations", 0, least=1),
        stuck_after_minutes=table.whole("stuck_after_minutes", 0, least=1),
        stuck_after_same_file_edits=table.whole("stuck_after_same_file_edits", 0, least=1),
        stuck_after_tool_calls=table.whole("stuck_after_tool_calls", 0, least=1),
    )
    if config is not None:
        # Says how to summarise, which only compacting acts on; checked and left to it.
        config.text("compact_prompt")
        config.done()
    table.done()
    return edge


def _gate(table: Table | None) -> Gate | None:
    if table is None:
        return None
    gate = Gate(
        require_modifications=table.flag("require_modifications"),
        require_regions=table.texts("require_regions"),
        require_region_updated=table.text("require_region_updated"),
        require_no_open_items=table.text("require_no_open_items"),
        region=table.text("region"),
        tools=table.texts("tools"),
        message=table.text("message"),
        max_attempts=table.whole("max_attempts", 3),
    )
    table.done()
    return gate


def _model(table: Table | None) -> ModelSpec:
    if table is None:
        return ModelSpec()
    parameters = table.table("parameters")
    spec = ModelSpec(
        models=_models(table),
        allow_user_default=table.flag("allow_user_default", default=True),
        request_timeout_ms=table.whole("request_timeout_secs", 900) * 1000,
    )
    if parameters is not None:
        known = ("temperature", "max_output_tokens")
        rest = {key: value for key, value in parameters.data.items() if key not in known}
        spec = msgspec.structs.replace(
            spec,
            temperature_milli=parameters.thousandths("temperature"),
            max_output_tokens=parameters.maybe_whole("max_output_tokens"),
            parameters_json=canonical_json(rest, parameters.place, table.faults) if rest else "",
        )
    table.done()
    return spec


def _models(table: Table) -> tuple[ModelRef, ...]:
    # Either models = [{provider, model}, ...] or provider, model and fallbacks of the same form.
    refs = [_model_ref(inner) for inner in table.tables("models")]
    single = [key for key in ("provider", "model", "fallbacks") if key in table.data]
    provider, model = table.text("provider"), table.text("model")
    fallbacks = [_model_ref(inner) for inner in table.tables("fallbacks")]
    if single and "models" in table.data:
        table.fault(single[0], "stands beside models; put every model into the models array")
    elif single and not (provider and model):
        missing = "model" if provider else "provider"
        table.fault(missing, f"is missing; {_MODEL_REMEDY}")
    elif single:
        refs = [ModelRef(provider=provider, model=model), *fallbacks]
    elif "models" in table.data and table.data["models"] == []:
        table.fault("models", "is empty; name a model or leave the key out")
    found = tuple(ref for ref in refs if ref is not None)
    return found or ModelSpec().models


def _model_ref(table: Table) -> ModelRef | None:
    provider, model = (table.needed(key, _MODEL_REMEDY) for key in ("provider", "model"))
    table.done()
    return ModelRef(provider=provider, model=model) if provider and model else None


def _routing(table: Table | None) -> Routing:
    if table is None:
        return Routing()
    limits = _result_limits(table)
    routes: list[ToolRoute] = []
    default_region = table.text("default_region") or "tool_results"
    overrides = table.table("overrides")
    for tool, value in overrides.data.items() if overrides else ():
        assert overrides is not None
        if isinstance(value, str):
            routes.append(
                ToolRoute(
                    tool=tool, region=overrides.text(tool), max_result_tokens=limits.pop(tool, None)
                )
            )
            continue
        if not isinstance(value, dict):
            overrides.fault(tool, f"is {kind_of(value)}; write a region or a table")
            continue
        inner = overrides.table(tool)
        assert inner is not None
        limit = limits.pop(tool, None)
        own = inner.maybe_whole("max_result_tokens")
        region = inner.text("region") or default_region
        routes.append(
            ToolRoute(tool=tool, region=region, max_result_tokens=own if own is not None else limit)
        )
        inner.done()
    routes.extend(
        ToolRoute(tool=tool, region=default_region, max_result_tokens=limit)
        for tool, limit in limits.items()
    )
    routing = Routing(
        default_region=default_region,
        persist=table.flag("persist", default=True),
        max_result_tokens=table.maybe_whole("max_result_tokens"),
        overrides=tuple(sorted(routes, key=lambda route: route.tool)),
    )
    table.done()
    return routing


def _result_limits(table: Table) -> dict[str, int]:
    inner = table.table("max_result_tokens_per_tool")
    found: dict[str, int] = {}
    for tool in inner.data if inner else ():
        assert inner is not None
        limit = inner.maybe_whole(tool, like="max_result_tokens")
        if limit is not None:
            found[tool] = limit
    return found


def _read_unbuilt(table: Table, unbuilt: Unbuilt) -> None:
    read_security(table, unbuilt)
    read_sandbox(table, unbuilt)
    unbuilt.if_any(table, "available_connectors", table.texts("available_connectors"))
    unbuilt.if_any(table, "batch_tool_hint", table.flag("batch_tool_hint"))
    unbuilt.if_any(table, "shell_hint", table.flag("shell_hint"))
    hooks = table.table("hooks")
    if hooks is not None:
        for hook in _HOOKS:
            unbuilt.if_any(hooks, hook, hooks.text(hook))
        hooks.done()
