"""Every key of a manifest: what it sets, and how a value of the wrong type is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any, cast

import msgspec
import pytest

from leviath.components.blueprint import (
    Blueprint,
    Condition,
    Edge,
    ModelRef,
    Node,
    Permission,
    RegionKind,
    RegionSpec,
    Repetition,
    SeedSpec,
    StageMode,
    ToolRoute,
    Transform,
)
from leviath.components.errors import BlueprintError, SpawnError
from leviath.engine.blueprint_reader import BOUNDS, is_array, is_table
from leviath.engine.blueprints import check_spawnable, lint, parse_blueprint

Keys = tuple[str, ...]
Document = dict[str, Any]

BASE: Document = {
    "agent": {},
    "stages": {
        "a": {"available_tools": ["edit"], "max_revisits": 2, "transitions": {"b": {}}},
        "b": {"transitions": {}},
    },
    "context": {"regions": {"r": {}, "todo": {"kind": "checklist"}, "log": {"kind": "pinned"}}},
}
STAGE = ("stages", "a")
EDGE = (*STAGE, "transitions", "b")
GATE = (*EDGE, "gate")
MODEL = (*STAGE, "model")
ROUTING = (*STAGE, "tool_routing")
REGION = ("context", "regions", "r")
POINT = (*STAGE, "interaction_points")


def toml_value(value: object) -> str:
    """Write a value inline; JSON and TOML texts agree but for DEL and halves of surrogate pairs."""
    if is_table(value):
        return "{" + ", ".join(f"{toml_value(k)} = {toml_value(v)}" for k, v in value.items()) + "}"
    if is_array(value):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)


def toml(document: Document) -> str:
    return "".join(f"{toml_value(key)} = {toml_value(value)}\n" for key, value in document.items())


def changed(path: Keys, value: object, *more: tuple[Keys, object]) -> Document:
    document = deepcopy(BASE)
    for where, what in ((path, value), *more):
        table = document
        for key in where[:-1]:
            table = table.setdefault(key, {})
        table[where[-1]] = what
    return document


def parse(document: Document) -> Blueprint:
    return parse_blueprint(toml(document), where="test")


def faults(document: Document) -> tuple[str, ...]:
    with pytest.raises(BlueprintError) as caught:
        parse(document)
    return caught.value.faults


Read = Callable[[Blueprint], Any]


def stage(name: str) -> Read:
    return lambda bp: getattr(bp.stages[0], name)


def edge(name: str) -> Read:
    return lambda bp: getattr(bp.stages[0].edges[0], name)


def gate(name: str) -> Read:
    def read(bp: Blueprint) -> Any:
        found = bp.stages[0].edges[0].gate
        assert found is not None
        return getattr(found, name)

    return read


def part(owner: Read, name: str) -> Read:
    return lambda bp: getattr(owner(bp), name)


def region(name: str) -> Read:
    return lambda bp: getattr(bp.region("r"), name)


def model(name: str) -> Read:
    return part(stage("model"), name)


def routing(name: str) -> Read:
    return part(stage("routing"), name)


def agent(name: str) -> Read:
    return lambda bp: getattr(bp, name)


STUCK = ((*EDGE, "condition"), "stuck")
P_M = (ModelRef(provider="p", model="m"),)
DENY_EDIT = (("edit", Permission.deny),)
STUCK_AFTER = ("iterations", "minutes", "same_file_edits", "tool_calls")
REGION_NUMBERS = (
    *("max_tokens", "min_tokens", "max_items", "overflow"),
    *("compact_count", "threshold_tokens", "max_entries"),
)
CUSTOM = ((*EDGE, "transform"), "custom")
MODIFIES = ((*GATE, "require_modifications"), True)
NOTES = (("context", "regions", "files"), {"kind": "hashmap"})

# (path, value, what it sets, the value there, what else the document needs)
SETS: list[tuple[Keys, object, Read, object, tuple[tuple[Keys, object], ...]]] = [
    (("agent", "name"), "fixer", agent("name"), "fixer", ()),
    (("agent", "version"), "2.0", agent("version"), "2.0", ()),
    (("agent", "description"), "does", agent("description"), "does", ()),
    (("agent", "entry_stage"), "b", agent("entry"), 1, ()),
    (("agent", "max_child_depth"), 7, agent("max_child_depth"), 7, ()),
    (("agent", "nudge", "enabled"), False, part(agent("nudge"), "enabled"), False, ()),
    (("agent", "nudge", "max"), 9, part(agent("nudge"), "max"), 9, ()),
    (("agent", "nudge", "text"), "go on", part(agent("nudge"), "text"), "go on", ()),
    (("agent", "output", "format"), "json", part(agent("output"), "format"), "json", ()),
    (("agent", "output", "instructions"), "i", part(agent("output"), "instructions"), "i", ()),
    (("agent", "output", "example"), "e", part(agent("output"), "example"), "e", ()),
    (
        ("agent", "output", "schema"),
        {"type": "object", "a": [1, 2.5]},
        part(agent("output"), "schema_json"),
        '{"a":[1,2.5],"type":"object"}',
        (),
    ),
    ((*STAGE, "mode"), "output", stage("mode"), StageMode.output, ()),
    ((*STAGE, "system_prompt"), "do", stage("system_prompt"), "do", ()),
    ((*STAGE, "description"), "d", stage("description"), "d", ()),
    ((*STAGE, "transition_prompt"), "t", stage("transition_prompt"), "t", ()),
    ((*STAGE, "available_tools"), ["x", "y"], stage("available_tools"), ("x", "y"), ()),
    ((*STAGE, "required_tools"), ["edit"], stage("required_tools"), ("edit",), ()),
    ((*STAGE, "max_iterations"), 12, stage("max_iterations"), 12, ()),
    ((*STAGE, "max_revisits"), 0, stage("max_revisits"), 0, ()),
    *(
        ((*STAGE, key), True, stage(key), True, ())
        for key in ("allow_complete", "allow_as_worker", "allow_blocking_tools", "require_output")
    ),
    ((*STAGE, "accepts_messages"), False, stage("accepts_messages"), False, ()),
    ((*STAGE, "nudge", "max"), 1, part(stage("nudge"), "max"), 1, ()),
    ((*STAGE, "output", "format"), "text", part(stage("output"), "format"), "text", ()),
    ((*STAGE, "tool_permissions", "edit"), "deny", stage("permissions"), DENY_EDIT, ()),
    (
        (*STAGE, "context", "regions", "own"),
        {"kind": "pinned"},
        stage("regions"),
        (RegionSpec(name="own", kind=RegionKind.pinned),),
        (),
    ),
    ((*MODEL, "models"), [{"provider": "p", "model": "m"}], model("models"), P_M, ()),
    ((*MODEL, "provider"), "p", model("models"), P_M, (((*MODEL, "model"), "m"),)),
    ((*MODEL, "model"), "m", model("models"), P_M, (((*MODEL, "provider"), "p"),)),
    (
        (*MODEL, "fallbacks"),
        [{"provider": "q", "model": "n"}],
        model("models"),
        (ModelRef(provider="p", model="m"), ModelRef(provider="q", model="n")),
        (((*MODEL, "provider"), "p"), ((*MODEL, "model"), "m")),
    ),
    ((*MODEL, "allow_user_default"), False, model("allow_user_default"), False, ()),
    ((*MODEL, "request_timeout_secs"), 60, model("request_timeout_ms"), 60_000, ()),
    ((*MODEL, "parameters", "temperature"), 0.25, model("temperature_milli"), 250, ()),
    ((*MODEL, "parameters", "max_output_tokens"), 99, model("max_output_tokens"), 99, ()),
    (
        (*MODEL, "parameters"),
        {"top_p": 0.5, "effort": "high"},
        model("parameters_json"),
        '{"effort":"high","top_p":0.5}',
        (),
    ),
    ((*ROUTING, "default_region"), "r", routing("default_region"), "r", ()),
    ((*ROUTING, "persist"), False, routing("persist"), False, ()),
    ((*ROUTING, "max_result_tokens"), 8, routing("max_result_tokens"), 8, ()),
    (
        (*ROUTING, "overrides"),
        {"x": "r", "edit": {"region": "log", "max_result_tokens": 5}},
        routing("overrides"),
        (
            ToolRoute(tool="edit", region="log", max_result_tokens=5),
            ToolRoute(tool="x", region="r"),
        ),
        (),
    ),
    (
        (*ROUTING, "max_result_tokens_per_tool"),
        {"edit": 6, "x": 7},
        routing("overrides"),
        (
            ToolRoute(tool="edit", region="r", max_result_tokens=6),
            ToolRoute(tool="x", region="tool_results", max_result_tokens=7),
        ),
        (((*ROUTING, "overrides"), {"edit": "r"}),),
    ),
    ((*EDGE, "condition"), "llm_choice", edge("condition"), Condition.llm_choice, ()),
    ((*EDGE, "hint"), "h", edge("hint"), "h", ()),
    ((*EDGE, "transform"), "clear", edge("transform"), Transform.clear, ()),
    ((*EDGE, "transform_config", "carry"), ["r"], edge("carry"), ("r",), (CUSTOM,)),
    ((*EDGE, "transform_config", "clear"), ["r"], edge("clear"), ("r",), (CUSTOM,)),
    ((*EDGE, "transform_config", "compact_prompt"), "c", edge("carry"), (), (CUSTOM,)),
    *(
        ((*EDGE, key), 4, edge(key), 4, (STUCK,))
        for key in (f"stuck_after_{what}" for what in STUCK_AFTER)
    ),
    ((*GATE, "require_modifications"), True, gate("require_modifications"), True, ()),
    ((*GATE, "require_regions"), ["r"], gate("require_regions"), ("r",), ()),
    ((*GATE, "require_region_updated"), "r", gate("require_region_updated"), "r", ()),
    ((*GATE, "require_no_open_items"), "todo", gate("require_no_open_items"), "todo", ()),
    ((*GATE, "region"), "r", gate("region"), "r", (MODIFIES,)),
    ((*GATE, "tools"), ["edit"], gate("tools"), ("edit",), (MODIFIES,)),
    ((*GATE, "message"), "m", gate("message"), "m", ()),
    ((*GATE, "max_attempts"), 0, gate("max_attempts"), 0, ()),
    ((*REGION, "kind"), "hashmap", region("kind"), RegionKind.hashmap, ()),
    ((*REGION, "budget"), "12.5%", region("budget_permille"), 125, ()),
    *(((*REGION, key), 77, region(key), 77, ()) for key in REGION_NUMBERS),
    ((*REGION, "seed"), "task_input", region("seed"), SeedSpec(kind="task_input"), ()),
    ((*REGION, "required"), True, region("required"), True, ()),
    ((*REGION, "required_message"), "fill", region("required_message"), "fill", ()),
    ((*REGION, "summarizable"), False, region("summarizable"), False, ()),
    ((*REGION, "admission"), "reject", region("admission"), "reject", ()),
    ((*REGION, "volatility"), "grows", region("volatility"), "grows", ()),
    ((*REGION, "description"), "d", region("description"), "d", ()),
    ((*REGION, "describe_in_prompt"), True, region("describe_in_prompt"), True, ()),
    ((*REGION, "strategy"), "bulk", region("strategy"), "bulk", ()),
    ((*REGION, "compact_at"), "75%", region("compact_at_permille"), 750, ()),
    (
        (*REGION, "source_region"),
        "src",
        region("source_region"),
        "src",
        ((("context", "regions", "src"), {"kind": "compacting"}),),
    ),
    ((*REGION, "script"), "s.rhai", region("script"), "s.rhai", ()),
    ((*REGION, "persistent"), True, region("persistent"), True, ()),
    *(
        (("context", "file_tracking", key), value, part(agent("file_tracking"), key), value, more)
        for key, value, more in (
            ("region", "r", ()),
            ("track_reads", False, (NOTES,)),
            ("track_writes", False, (NOTES,)),
            ("max_file_tokens", 5, (NOTES,)),
        )
    ),
    (("tool_permissions", "x"), "ask", agent("permissions"), (("x", Permission.ask),), ()),
    (("repetition_detection", "enabled"), False, agent("repetition"), None, ()),
    *(
        (("repetition_detection", key), 5, agent("repetition"), Repetition(**{key: 5}), ())
        for key in ("max_repeat_calls", "max_readonly_streak")
    ),
    (("read_paths", "allow"), ["/usr/share"], agent("read_paths"), ("/usr/share",), ()),
    (("safe_commands", "tools"), ["ls"], agent("unbuilt"), (), ()),
    (("safe_commands", "shell"), ["ls"], agent("unbuilt"), (), ()),
]

FAN_OUT = ((*STAGE, "mode"), "fan_out")
WORKER = ((*STAGE, "worker_stage"), "b")
HOOKS = (
    *("on_stage_enter", "on_stage_exit", "before_inference", "after_inference"),
    *("on_tool_call", "on_completion", "on_error"),
)
POINT_VALUES: dict[str, object] = {
    "name": "n",
    "prompt": "p",
    "required": False,
    "unattended": "ask",
    "style": "confirm",
    "options": ["o"],
    "choices": ["o"],
    "directives": ["d"],
    "followups": ["d"],
    "abort_options": ["x"],
    "edit_options": ["x"],
    "document_region": "r",
}
# (path, value, the start of the line that says it is not built yet, what else the document needs)
UNBUILT: list[tuple[Keys, object, str, tuple[tuple[Keys, object], ...]]] = [
    (("agent", "dynamic_tools"), True, "agent: dynamic_tools: ", ()),
    (("agent", "batch_tool_hint"), True, "agent: batch_tool_hint: ", ()),
    (("agent", "shell_hint"), True, "agent: shell_hint: ", ()),
    (("agent", "output", "validator"), "v.rhai", "agent.output: validator: ", ()),
    ((*STAGE, "available_connectors"), ["c"], "stages.a: available_connectors: ", ()),
    ((*STAGE, "batch_tool_hint"), True, "stages.a: batch_tool_hint: ", ()),
    ((*STAGE, "shell_hint"), True, "stages.a: shell_hint: ", ()),
    *(((*STAGE, "hooks", hook), "h.rhai", f"stages.a.hooks: {hook}: ", ()) for hook in HOOKS),
    *(
        ((*owner, "security", "taint_tracking"), True, f"{place}: security: ", ())
        for owner, place in (((), "blueprint"), (STAGE, "stages.a"))
    ),
    *(
        (
            (*owner, "sandbox", key),
            value,
            f"{place}: sandbox: ",
            (((*owner, "sandbox", "kind"), "container"),),
        )
        for owner, place in (((), "blueprint"), (STAGE, "stages.a"))
        for key, value in (
            ("image", "i"),
            ("engine", "auto"),
            ("network", False),
            ("persist", True),
            ("mount", ["/a"]),
            ("on_unavailable", "error"),
        )
    ),
    (("sandbox", "kind"), "container", "blueprint: sandbox: ", ()),
    *(
        (("compaction", key), value, "blueprint: compaction: ", ())
        for key, value in (
            ("provider", "p"),
            ("model", "m"),
            ("system_prompt", "s"),
            ("max_summary_tokens", 5),
            ("temperature", 1),
        )
    ),
    *(
        (("transforms",), [{key: value}], "blueprint: transforms: ", ())
        for key, value in (
            ("from_blueprint", "a"),
            ("to_blueprint", "b"),
            (
                "mappings",
                [{"from_region": "a", "to_region": "b", "transform": "direct", "fields": ["x"]}],
            ),
        )
    ),
    ((*EDGE, "transform"), "summarize", "stages.a.transitions.b: transform compact: ", ()),
    (
        (*EDGE, "transform_config", "compact"),
        ["r"],
        "stages.a.transitions.b.transform_config: compact: ",
        (CUSTOM,),
    ),
    ((*REGION, "kind"), "compacting", "context.regions.r: kind compacting: ", ()),
    ((*REGION, "kind"), "compact_history", "context.regions.r: kind compact_history: ", ()),
    ((*REGION, "strategy"), "compact", "context.regions.r: strategy compact: ", ()),
    ((*REGION, "seed"), {"command": "ls"}, "context.regions.r: seed by command: ", ()),
    ((*REGION, "seed"), {"command": ["ls", "-l"]}, "context.regions.r: seed by command: ", ()),
    ((*REGION, "seed"), {"rhai": "s.rhai"}, "context.regions.r: seed by rhai: ", ()),
    ((*REGION, "seed"), {"tool": "ls"}, "context.regions.r: seed by tools: ", ()),
    (
        (*REGION, "seed"),
        {"tools": ["ls", {"name": "ls"}], "refresh": "each_stage"},
        "context.regions.r: seed by tools: ",
        (),
    ),
]


def case_id(case: object) -> str:
    parts: list[object] = [*case] if isinstance(case, tuple) else []
    return ".".join(part for part in parts if isinstance(part, str))


@pytest.mark.parametrize(("path", "value", "read", "wanted", "more"), SETS, ids=case_id)
def test_a_key_sets_what_it_names(
    path: Keys, value: object, read: Read, wanted: object, more: tuple[Any, ...]
) -> None:
    blueprint = parse(changed(path, value, *more))
    found = read(blueprint)
    assert found == wanted


@pytest.mark.parametrize(("path", "value", "line", "more"), UNBUILT, ids=case_id)
def test_a_key_that_is_not_built_warns_and_refuses_to_spawn(
    path: Keys, value: object, line: str, more: tuple[Any, ...]
) -> None:
    blueprint = parse(changed(path, value, *more))
    (unbuilt,) = (entry for entry in blueprint.unbuilt if entry.startswith(line))
    assert len(unbuilt) > len(line), "the remedy is missing"
    assert any(unbuilt in warning for warning in lint(blueprint))
    with pytest.raises(SpawnError) as caught:
        check_spawnable(blueprint)
    assert unbuilt in str(caught.value)


def wrong_for(value: object) -> list[object]:
    if isinstance(value, bool):
        return ["true", 1]
    if isinstance(value, int | float):
        return ["7", True, -1, 10**30, [1]]
    if isinstance(value, str):
        return [7, True, ["x"], {"x": 1}]
    return [7, True, [7]] if isinstance(value, list) else [7, True, [{}]]


ALL_KEYS = [(path, value, more) for path, value, _, _, more in SETS] + [
    (path, value, more) for path, value, _, more in UNBUILT
]


@pytest.mark.parametrize(("path", "value", "more"), ALL_KEYS, ids=case_id)
def test_a_value_of_the_wrong_type_is_told_with_its_place(
    path: Keys, value: object, more: tuple[Any, ...]
) -> None:
    place = ".".join(path)
    for wrong in wrong_for(value):
        if path == (*REGION, "seed") and wrong == {"x": 1}:
            continue
        document = changed(path, wrong, *more)
        assert any(fault.startswith(place) for fault in faults(document)), wrong


@pytest.mark.parametrize("key", POINT_VALUES)
def test_every_key_of_a_point_is_read(key: str) -> None:
    value: Any = POINT_VALUES[key]
    field = {"choices": "options", "followups": "directives"}.get(key, key)
    (point,) = parse(changed(POINT, [{key: value}])).stages[0].points
    expected = tuple(cast("list[object]", value)) if isinstance(value, list) else value
    assert getattr(point, field) == expected


@pytest.mark.parametrize(
    ("point", "what"),
    [
        ({"style": "multiple_choice"}, "multiple_choice of nothing"),
        ({"document_region": "nowhere"}, "no region 'nowhere'"),
        ({"options": [str(n) for n in range(101)]}, "101 choices, 100 are allowed"),
    ],
)
def test_a_point_that_cannot_be_answered_is_a_fault(point: dict[str, object], what: str) -> None:
    (fault,) = faults(changed(POINT, [point]))
    assert what in fault


@pytest.mark.parametrize("key", POINT_VALUES)
def test_a_wrong_value_in_an_array_of_tables_is_told_with_its_position(key: str) -> None:
    for wrong in wrong_for(POINT_VALUES[key]):
        found = faults(changed(POINT, [{}, {key: wrong}]))
        assert any(fault.startswith(f"stages.a.interaction_points[1].{key}") for fault in found)


@pytest.mark.parametrize(
    "path",
    sorted(
        {path[:end] for path, _, _ in ALL_KEYS for end in range(1, len(path))}
        - {("tool_permissions",), (*STAGE, "tool_permissions"), (*MODEL, "parameters")}
        - {("stages",), (*STAGE, "transitions"), ("context", "regions")}
        - {(*STAGE, "context", "regions")}
    ),
    ids=case_id,
)
def test_an_unknown_key_is_a_fault_in_every_table(path: Keys) -> None:
    found = faults(changed((*path, "nmae"), 1))
    assert any(line.startswith(f"{'.'.join(path)}.nmae: unknown key; ") for line in found)


def int_fields(kind: type[Node]) -> set[str]:
    fields = msgspec.structs.fields(kind)
    return {f.name for f in fields if f.type in (int, int | None)}


def test_every_number_of_every_struct_is_bounded() -> None:
    for kind in Node.__subclasses__():
        assert int_fields(kind) <= set(BOUNDS), kind
    assert "stuck_after_minutes" in int_fields(Edge)


def test_numbers_are_refused_one_past_their_bounds() -> None:
    low, high = BOUNDS["max_child_depth"]
    for value in (low, high):
        assert parse(changed(("agent", "max_child_depth"), value)).max_child_depth == value
    for value in (low - 1, high + 1):
        (fault,) = faults(changed(("agent", "max_child_depth"), value))
        assert fault.startswith("agent.max_child_depth: ") and f"{low} to {high}" in fault
