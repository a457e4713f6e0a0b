"""The rules of a blueprint: defaults, edges, faults, warnings, spawning."""

from __future__ import annotations

import msgspec
import pytest

from leviath.components.blueprint import (
    AUTO_REGIONS,
    DEFAULT_MODEL,
    Blueprint,
    Condition,
    ModelSpec,
    Nudge,
    RegionKind,
    RegionSpec,
    Routing,
    SeedSpec,
    StageMode,
    StageSpec,
    Transform,
)
from leviath.components.errors import BlueprintError, SpawnError
from leviath.engine.blueprints import (
    check_spawnable,
    lint,
    parse_blueprint,
    validate_blueprint,
)

END = "\n[stages.end.transitions]\n"


def parse(text: str) -> Blueprint:
    return parse_blueprint(text, where="test")


def faults(text: str) -> tuple[str, ...]:
    with pytest.raises(BlueprintError) as caught:
        parse(text)
    return caught.value.faults


def only_fault(text: str) -> str:
    (fault,) = faults(text)
    return fault


# --- defaults ------------------------------------------------------------------------------------


def test_an_empty_manifest_is_one_stage_with_the_usual_regions() -> None:
    blueprint = parse("")
    assert blueprint == validate_blueprint(Blueprint())
    assert [stage.name for stage in blueprint.stages] == ["main"]
    assert blueprint.stages[0].model == ModelSpec(models=(DEFAULT_MODEL,))
    assert blueprint.region("system") == RegionSpec(
        name="system", kind=RegionKind.pinned, max_tokens=8000
    )
    assert blueprint.region("conversation").max_items == 10
    assert blueprint.nudge == Nudge()
    assert blueprint.repetition is None


def test_the_automatic_regions_stand_last_in_a_fixed_order_and_can_be_declared() -> None:
    blueprint = parse("[context.regions]\nfinal_output = { max_tokens = 9 }\nb = {}\na = {}")
    names = [region.name for region in blueprint.regions]
    assert names == [
        *("final_output", "b", "a"),
        *(name for name in AUTO_REGIONS if name != "final_output"),
    ]
    assert blueprint.region("final_output").max_tokens == 9
    assert blueprint.region("conversation").capacity_tokens(10**6) == 10_000
    assert blueprint.region("tool_results").capacity_tokens(10**6) == 5000


def test_the_region_for_instructions_fits_the_widest_prompt_up_to_a_quarter_of_the_window() -> None:
    text = f'[stages.a]\nsystem_prompt = "{"é" * 101}"\n[stages.b]\nsystem_prompt = "short"'
    blueprint = parse(text)
    region = blueprint.region("stage_instructions")
    assert region.capacity_tokens(100_000) == 51
    assert region.capacity_tokens(100) == 25
    shorter = msgspec.structs.replace(blueprint, stages=(StageSpec(name="a", system_prompt="abc"),))
    assert validate_blueprint(shorter).region("stage_instructions").max_tokens == 1


def test_a_region_called_task_holds_the_task_unless_it_says_otherwise() -> None:
    text = "[context.regions]\ntask = {}\nb = { seed = 'ticket' }\nc = { seed = 'input' }"
    blueprint = parse(text)
    assert blueprint.region("task").seed == SeedSpec(kind="task_input")
    assert blueprint.region("b").seed == SeedSpec(kind="input", key="ticket")
    assert blueprint.region("c").seed == SeedSpec(kind="input")
    other = parse("[context.regions]\ntask = { seed = { literal = 'x' } }")
    assert other.region("task").seed == SeedSpec(kind="literal", text="x")


@pytest.mark.parametrize(
    ("seed", "wanted"),
    [
        ("{ files = ['a', 'b'] }", SeedSpec(kind="files", patterns=("a", "b"))),
        ("{ files = 'a' }", SeedSpec(kind="files", patterns=("a",))),
        ("{ glob = ['*.py'] }", SeedSpec(kind="glob", patterns=("*.py",))),
        ("{ caller = 'k' }", SeedSpec(kind="caller", key="k")),
        ("{ command = ['ls', '-l'] }", SeedSpec(kind="command", text='["ls","-l"]')),
        ("{ rhai = 's.rhai' }", SeedSpec(kind="rhai", text="s.rhai")),
        ("{ tool = { name = 'ls' } }", SeedSpec(kind="tools", text='{"name":"ls"}')),
    ],
)
def test_a_seed_is_one_of_the_known_kinds(seed: str, wanted: SeedSpec) -> None:
    assert parse(f"[context.regions.r]\nseed = {seed}").region("r").seed == wanted


@pytest.mark.parametrize(
    ("seed", "what"),
    [
        ("{}", "needs exactly one of"),
        ("{ files = ['a'], literal = 'b' }", "has files and literal"),
        ("{ files = [] }", "names nothing"),
        ("{ literal = 'x', refresh = 'each_stage' }", "belongs to seeds by tool"),
        ("''", "is empty"),
        ("{ command = 7 }", "a text or an array of texts"),
        ("{ tool = 7 }", "a name, a table or an array"),
    ],
)
def test_a_seed_that_says_nothing_or_two_things_is_a_fault(seed: str, what: str) -> None:
    fault = only_fault(f"[context.regions.r]\nseed = {seed}")
    assert fault.startswith("context.regions.r.seed") and what in fault


def test_routing_is_to_the_conversation_without_a_table_and_to_tool_results_with_one() -> None:
    assert parse("[stages.a]").stages[0].routing == Routing(default_region="conversation")
    routed = parse("[stages.a.tool_routing]").stages[0].routing
    assert routed == Routing(default_region="tool_results")


def test_a_stage_takes_from_the_agent_what_its_nudge_leaves_out() -> None:
    text = "[agent.nudge]\nmax = 7\ntext = 'on'\n[stages.a.nudge]\nenabled = false\n[stages.b]"
    first, second = parse(text).stages
    assert first.nudge == Nudge(enabled=False, max=7, text="on")
    assert second.nudge is None


def test_mode_output_owes_an_output_and_no_iterations_means_the_hosts_default() -> None:
    (stage,) = parse("[stages.a]\nmode = 'output'\nmax_iterations = 0").stages
    assert stage.mode is StageMode.output and stage.require_output
    assert stage.max_iterations is None


def test_open_tables_become_json_text_with_sorted_keys() -> None:
    text = '[agent.output]\nschema = \'{"b": null, "a": [true, 1.5, "é"]}\''
    output = parse(text).output
    assert output is not None
    assert output.schema_json == '{"a":[true,1.5,"é"],"b":null}'


# --- edges ---------------------------------------------------------------------------------------


def test_edges_keep_the_order_of_the_file_in_both_forms() -> None:
    text = "[stages.a.transitions]\nz = {}\nb = {}\n[stages.b]\n[stages.z]\n"
    assert [edge.to for edge in parse(text).stages[0].edges] == ["z", "b"]
    text = (
        "[[stages.a.edges]]\nto = 'z'\n[[stages.a.edges]]\nto = 'b'\n"
        "[[stages.a.edges]]\nto = 'z'\ncondition = 'error'\n[stages.b]\n[stages.z]\n"
    )
    edges = parse(text).stages[0].edges
    assert [(edge.to, edge.condition) for edge in edges] == [
        ("z", Condition.always),
        ("b", Condition.always),
        ("z", Condition.error),
    ]


def test_no_table_leads_on_and_an_empty_one_ends() -> None:
    first, second = parse(f"[stages.a]\n{END}").stages
    assert not first.edges_declared
    assert second.edges_declared and second.edges == ()
    assert parse("[stages.a]\nedges = []").stages[0].edges_declared


def test_summarize_is_another_word_for_compact() -> None:
    text = f"[stages.a.transitions.end]\ntransform = 'summarize'\n{END}"
    assert parse(text).stages[0].edges[0].transform is Transform.compact


def test_the_entry_stage_is_where_runs_start_wherever_it_stands() -> None:
    assert parse("[agent]\nentry_stage = 'b'\n[stages.a]\n[stages.b]").entry == 1
    fault = only_fault("[agent]\nentry_stage = 'triag'\n[stages.triage]")
    assert fault == "agent.entry_stage: there is no stage 'triag'; did you mean 'triage'?"


def test_stage_names_may_hold_hyphens() -> None:
    assert parse("[stages.fix-it]").stage("fix-it").name == "fix-it"


GATE = "stages.a.transitions.end.gate"
EDGE = "stages.a.transitions.end"


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ("[stages.a.transitions.b]", "stages.a.transitions.b", "there is no stage 'b'"),
        ("[[stages.a.edges]]", "stages.a.edges[0].to", "is missing"),
        ("[[stages.a.edges]]\nto = ''", "stages.a.edges[0].to", "is missing"),
        (f"[stages.a]\nedges = []\ntransitions = {{}}\n{END}", "stages.a.edges", "either"),
        (f"[{EDGE}]\ncondition = 'stuck'\n{END}", EDGE, "is never taken"),
        (f"[{EDGE}]\nstuck_after_minutes = 3\n{END}", EDGE, 'set condition = "stuck"'),
        (f"[{EDGE}]\nstuck_after_minutes = 0\n{END}", f"{EDGE}.stuck_after_minutes", "from 1 to"),
        ("[stages.a.transitions.a]\ncondition = 'error'", "stages.a.transitions.a", "max_revisits"),
        (f"[{GATE}]\nrequire_regions = ['x']\n{END}", f"{GATE}.require_regions", "no region 'x'"),
        (f"[{GATE}]\nrequire_region_updated = 'x'\n{END}", f"{GATE}.require_region_updated", "'x'"),
        (
            f"[{GATE}]\nrequire_no_open_items = 'conversation'\n{END}",
            f"{GATE}.require_no_open_items",
            "no checklist region 'conversation'",
        ),
        (
            f"[{GATE}]\nrequire_modifications = true\ntools = ['edit']\n{END}",
            f"{GATE}.tools",
            "no offered tool 'edit'",
        ),
        (f"[{GATE}]\nregion = 'conversation'\n{END}", f"{GATE}.region", "require_modifications"),
        (
            f"[{EDGE}]\ntransform_config = {{ clear = ['conversation'] }}\n{END}",
            f"{EDGE}.transform_config.clear",
            'set transform = "custom"',
        ),
        (
            (
                f"[{EDGE}]\ntransform = 'custom'\n"
                f"transform_config = {{ carry = ['system'], clear = ['system'] }}\n{END}"
            ),
            f"{EDGE}.transform_config.clear",
            "is in carry as well",
        ),
        (
            "[stages.a]\nmax_revisits = 1\n[stages.a.transitions.b]\n[stages.b.transitions.a]",
            "stages.a",
            "no path from this entry stage leads to an end",
        ),
        ("[stages.done]", "stages.done", "choose another name"),
        ("[stages.Fix]\n[stages.fix]", "stages.fix", "differs from 'Fix' at most in case"),
        ("[stages.'a b']", "stages.'a b'", "is no name for a stage"),
        ('[stages.""]', "stages.''", "is no name for a stage"),
        ('[stages."\\u0000"]', "stages.'\\x00'", "is no name for a stage"),
        (f"[stages.{'a' * 65}]", f"stages.'{'a' * 64}'", "1 to 64"),
        ("[stages.a]\navailable_tools = ['x', 'x']", "stages.a.available_tools[1]", "twice"),
        ("[stages.a]\navailable_tools = ['x y']", "stages.a.available_tools", "no tool name"),
        (
            "[stages.a]\nsystem_prompt = '\\u0000'".replace("'", '"'),
            "stages.a.system_prompt",
            "NUL",
        ),
        ("[context.regions.'a.b']", "context.regions.'a.b'", "is no name for a region"),
        ("[context.regions.r]\nkind = 'custom'", "context.regions.r.script", "is missing"),
        (
            "[context.regions.r]\nmax_tokens = 1\nmin_tokens = 2",
            "context.regions.r.min_tokens",
            "greater than max_tokens",
        ),
        (
            "[context.regions.r]\nkind = 'compact_history'\nsource_region = 'x'",
            "context.regions.r.source_region",
            "no compacting region 'x'",
        ),
        ("[context.regions.r]\nbudget = '0%'", "context.regions.r.budget", "is not a share"),
        ("[context.regions.r]\nbudget = '101%'", "context.regions.r.budget", "is not a share"),
        ("[context.file_tracking]", "context.file_tracking.region", "there is no region 'files'"),
        ("[stages.a.model]\nmodels = []", "stages.a.model.models", "is empty"),
        ("[stages.a.model]\nprovider = 'p'", "stages.a.model.model", "is missing"),
        (
            "[stages.a.model]\nprovider = 'p'\nmodels = [{ provider = 'p', model = 'm' }]",
            "stages.a.model.provider",
            "stands beside models",
        ),
        (
            "[stages.a.model.parameters]\ntop_p = nan",
            "stages.a.model.parameters",
            "holds inf or nan",
        ),
        (
            "[stages.a.model.parameters]\nwhen = 2026-01-01",
            "stages.a.model.parameters",
            "holds a date or time",
        ),
        (
            "[stages.a.model.parameters]\ntemperature = 0.1234",
            "stages.a.model.parameters.temperature",
            "at most three decimals",
        ),
        (
            "[stages.a.tool_routing.overrides]\nx = 'nowhere'",
            "stages.a.tool_routing.overrides.x",
            "there is no region 'nowhere'",
        ),
        ("[agent.output]\nschema = '{'", "agent.output.schema", "is not JSON"),
        ("[stages.a]\nmode = 'fan_out'", "stages.a.mode", "exactly one of"),
        ("[stages.a]\nmax_workers = 1", "stages.a.max_workers", 'mode = "fan_out"'),
        ('[stages.a]\navailable_tools = ["\\u0000"]', "stages.a.available_tools[0]", "NUL"),
        ("[agent]\nname = '\ud800'", "agent.name", "half of a surrogate pair"),
        ("[agent]\nmax_child_depth = 1.5", "agent.max_child_depth", "is a fraction"),
        (
            f"[stages.a.model.parameters]\nx = {'[' * 40}{']' * 40}",
            "stages.a.model.parameters",
            "nested deeper than 32",
        ),
        (
            "[stages.a.model]\nfallbacks = [{ model = 'm' }]\nprovider = 'p'\nmodel = 'm'",
            "stages.a.model.fallbacks[0].provider",
            "is missing",
        ),
        (
            "[stages.a.tool_routing.overrides]\nx = 7",
            "stages.a.tool_routing.overrides.x",
            "write a region or a table",
        ),
        (
            "[stages.a]\ninteraction_points = [{ options = ['x'], choices = ['x'] }]",
            "stages.a.interaction_points[0].choices",
            "another word for options",
        ),
        ("[agnet]", "agnet", "did you mean 'agent'?"),
    ],
)
def test_a_fault_is_told_once_with_its_place_and_remedy(text: str, place: str, what: str) -> None:
    fault = only_fault(text)
    assert fault.startswith(f"{place}: "), fault
    assert what in fault


def test_all_faults_come_in_one_error() -> None:
    text = (
        "[agent]\nname = 1\n[stages.a]\nmode = 'otput'\nmax_iterations = true\n"
        "[stages.a.transitions.b.gate]\nmax_attempts = -1\n[tool_permissions]\nx = 'alow'\n"
    )
    assert [line.partition(": ")[0] for line in faults(text)] == [
        "stages.a.mode",
        "stages.a.transitions.b.gate.max_attempts",
        "stages.a.max_iterations",
        "agent.name",
        "tool_permissions.x",
        "stages.a.transitions.b",
    ]
    with pytest.raises(BlueprintError, match=r"^test: 6 faults in this blueprint\n  stages\.a\."):
        parse(text)


def test_a_stage_is_held_to_its_own_layout() -> None:
    text = (
        "[context.regions.r]\n[stages.a.context.regions.own]\n"
        "[stages.a.tool_routing]\ndefault_region = '{}'\n"
    )
    assert parse(text.format("own")).stages[0].routing.default_region == "own"
    assert parse(text.format("tool_results"))
    assert "there is no region 'r'" in only_fault(text.format("r"))


# --- warnings and spawning -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (f"[stages.a.transitions.end]\n[stages.b]\n{END}", "stages.b: no edge leads here"),
        ("[stages.a]\nmode = 'interactive'", "stages.a.mode: interactive acts as autonomous"),
        ("[stages.a]\nrequired_tools = ['x']", "stages.a.required_tools: x is not in"),
        (
            f"[{GATE}]\nmax_attempts = 1\n[{EDGE}]\ncondition = 'error'\n{END}",
            f"{GATE}: edges on error are taken without asking a gate",
        ),
        (
            "[stages.a]\nedges = [{ to = 'end' }, { to = 'end' }]\n" + END,
            "stages.a.edges[1]: the model cannot tell it from",
        ),
        (
            "[stages.a]\nedges = [{ to = 'b', condition = 'error' }, "
            "{ to = 'end', condition = 'error' }]\n[stages.b]\n" + END,
            "stages.a.transitions.end: never taken, an earlier error edge always wins",
        ),
        ("[context.regions.r]\nmax_items = 3", "context.regions.r.max_items: has no effect"),
        ("[context.regions.r]\nrequired_message = 'x'", "context.regions.r.required_message: has"),
        (
            "[context.regions.r]\n[stages.a.context.regions.r]\nkind = 'pinned'",
            "stages.a.context.regions.r.kind: differs",
        ),
    ],
)
def test_what_has_no_effect_is_warned_about_and_runs(text: str, warning: str) -> None:
    blueprint = parse(text)
    assert any(line.startswith(warning) for line in lint(blueprint)), lint(blueprint)
    check_spawnable(blueprint)


@pytest.mark.parametrize(
    "text",
    [
        "[security]\ntaint_tracking = false",
        "[sandbox]\nkind = 'none'",
        "[stages.a]\nrequires_children = false\navailable_connectors = []",
        "[agent]\ndynamic_tools = false\nbatch_tool_hint = false",
        "[tool_permissions]\nshell = 'ask'",
        "[stages.a.hooks]",
    ],
)
def test_a_key_that_asks_for_nothing_does_not_stop_a_spawn(text: str) -> None:
    check_spawnable(parse(text))


def test_a_refused_spawn_names_each_key_its_place_and_the_remedy() -> None:
    blueprint = parse("[agent]\nname = 'x'\n[security]\n[stages.a.hooks]\non_error = 'e.rhai'")
    with pytest.raises(SpawnError) as caught:
        check_spawnable(blueprint)
    assert "agent 'x' was not spawned" in str(caught.value)
    assert "\n  blueprint: security: remove the section" in str(caught.value)
    assert "\n  stages.a.hooks: on_error: remove the hook" in str(caught.value)
