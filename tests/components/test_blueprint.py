"""The blueprint structs: one byte form, small helpers, nothing that can change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leviath.components.blueprint import (
    Blueprint,
    Condition,
    Edge,
    Gate,
    ModelRef,
    ModelSpec,
    Node,
    Nudge,
    OutputShape,
    Permission,
    RegionKind,
    RegionSpec,
    Routing,
    SeedSpec,
    StageMode,
    StageSpec,
    ToolRoute,
    Transform,
    canonical_bytes,
    decode_blueprint,
    digest,
)
from leviath.components.errors import DocumentError

names = st.text("abcXYZ_-09", max_size=6)
texts = st.text(max_size=12).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text))
counts = st.integers(0, 10**9)
gates = st.builds(
    Gate,
    require_modifications=st.booleans(),
    require_regions=st.lists(names, max_size=2).map(tuple),
    message=texts,
    max_attempts=counts,
)
edges = st.builds(
    Edge,
    to=names,
    condition=st.sampled_from(Condition),
    transform=st.sampled_from(Transform),
    hint=texts,
    gate=st.none() | gates,
    stuck_after_minutes=counts,
)
regions = st.builds(
    RegionSpec,
    name=names,
    kind=st.sampled_from(RegionKind),
    budget_permille=st.none() | counts,
    seed=st.none() | st.builds(SeedSpec, kind=st.just("literal"), text=texts),
    admission=st.sampled_from(("evict", "reject")),
)
stages = st.builds(
    StageSpec,
    name=names,
    mode=st.sampled_from(StageMode),
    system_prompt=texts,
    max_iterations=st.none() | counts,
    nudge=st.none() | st.builds(Nudge, max=counts, text=texts),
    permissions=st.lists(st.tuples(names, st.sampled_from(Permission)), max_size=2).map(tuple),
    regions=st.none() | st.lists(regions, max_size=2).map(tuple),
    model=st.builds(
        ModelSpec,
        models=st.lists(st.builds(ModelRef, provider=names, model=texts), max_size=2).map(tuple),
        request_timeout_ms=st.sampled_from((900_000, 1_000)),
        temperature_milli=st.none() | counts,
    ),
    edges=st.lists(edges, max_size=3).map(tuple),
)
blueprints = st.builds(
    Blueprint,
    name=texts,
    entry=counts,
    output=st.none() | st.builds(OutputShape, schema_json=texts),
    regions=st.lists(regions, max_size=3).map(tuple),
    stages=st.lists(stages, max_size=3).map(tuple),
    unbuilt=st.lists(texts, max_size=2).map(tuple),
)


@settings(max_examples=100, deadline=None)
@given(blueprints)
def test_bytes_come_back_as_the_same_value_and_the_same_bytes(blueprint: Blueprint) -> None:
    data = canonical_bytes(blueprint)
    again = decode_blueprint(data)
    assert again == blueprint
    assert canonical_bytes(again) == data
    assert digest(again) == digest(blueprint)
    assert hash(again) == hash(blueprint)


def test_equal_values_have_equal_bytes_although_their_defaults_are_other_objects() -> None:
    built = ModelSpec(request_timeout_ms=int("900000"))
    named = Routing(default_region="CONVERSATION".lower())
    stage = StageSpec(name="a", model=built, routing=named, mode=StageMode("autonomous"))
    assert canonical_bytes(Blueprint(stages=(stage,))) == canonical_bytes(
        Blueprint(stages=(StageSpec(name="a"),))
    )


def test_the_bytes_and_digest_of_a_known_blueprint_never_change() -> None:
    edge = Edge(to="b", condition=Condition.error, gate=Gate(max_attempts=1))
    blueprint = Blueprint(name="golden", stages=(StageSpec(name="a", edges=(edge,)),))
    assert canonical_bytes(blueprint).hex() == (
        "82a46e616d65a6676f6c64656ea67374616765739182a565646765739183a9636f6e646974696f6ea565"
        "72726f72a46761746581ac6d61785f617474656d70747301a2746fa162a46e616d65a161"
    )
    assert digest(blueprint).hex() == "04dd8d7c2893a804c375a62819a4c814"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\xc1",
        canonical_bytes(Blueprint())[:-1],
        msgspec.msgpack.encode({"nmae": "a key that is not ours"}),
        msgspec.msgpack.encode({"entry": True}),
        msgspec.msgpack.encode({"regions": [{"name": "r", "volatility": "liquid"}]}),
        b"\xa4name",
        b"\x81\xa4name\xa1\xff",
    ],
)
def test_other_bytes_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(DocumentError, match="not a blueprint"):
        decode_blueprint(data)


def test_a_wrong_value_that_equals_its_default_is_not_hidden_by_the_byte_form() -> None:
    wrong: Any = 1
    blueprint = Blueprint(nudge=Nudge(enabled=wrong))
    with pytest.raises(DocumentError, match="bool"):
        decode_blueprint(canonical_bytes(blueprint))


def test_every_part_is_frozen_keyword_only_and_refuses_unknown_fields() -> None:
    parts: list[type[Node]] = [Node, *Node.__subclasses__()]
    assert len(parts) > 10
    for part in parts:
        config = part.__struct_config__
        assert config.frozen and config.forbid_unknown_fields and config.omit_defaults, part
        with pytest.raises(TypeError, match="positional"):
            cast("Callable[[str], Node]", part)("positional")


def test_stages_and_regions_are_found_by_name() -> None:
    blueprint = Blueprint(
        stages=(StageSpec(name="a"), StageSpec(name="b")), regions=(RegionSpec(name="r"),)
    )
    assert blueprint.stage_index("b") == 1
    assert blueprint.stage("a").name == "a"
    assert blueprint.region("r").name == "r"
    with pytest.raises(KeyError):
        blueprint.stage("c")
    with pytest.raises(KeyError):
        blueprint.region("c")


def test_a_stage_with_its_own_layout_still_sees_the_automatic_regions() -> None:
    shared = tuple(RegionSpec(name=name) for name in ("notes", "conversation", "tool_results"))
    own = (RegionSpec(name="draft"), RegionSpec(name="tool_results", max_tokens=1))
    blueprint = Blueprint(regions=shared)
    assert blueprint.visible_regions(StageSpec(name="a")) == shared
    seen = blueprint.visible_regions(StageSpec(name="a", regions=own))
    assert [region.name for region in seen] == ["draft", "tool_results", "conversation"]
    assert seen[1].max_tokens == 1


def test_the_stage_speaks_before_the_blueprint_about_a_tool() -> None:
    stage = StageSpec(name="a", permissions=(("shell", Permission.deny),))
    blueprint = Blueprint(permissions=(("edit", Permission.ask), ("shell", Permission.allow)))
    assert blueprint.permission(stage, "shell") is Permission.deny
    assert blueprint.permission(stage, "edit") is Permission.ask
    assert blueprint.permission(stage, "read") is None


def test_a_route_carries_the_limit_that_applies() -> None:
    routing = Routing(
        default_region="results",
        max_result_tokens=50,
        overrides=(
            ToolRoute(tool="grep", region="hits"),
            ToolRoute(tool="read", region="files", max_result_tokens=9),
        ),
    )
    assert routing.route("grep") == ToolRoute(tool="grep", region="hits", max_result_tokens=50)
    assert routing.route("read").max_result_tokens == 9
    assert routing.route("ls") == ToolRoute(tool="ls", region="results", max_result_tokens=50)


@pytest.mark.parametrize(
    ("region", "tokens"),
    [
        (RegionSpec(name="r"), 5000),
        (RegionSpec(name="r", max_tokens=70), 70),
        (RegionSpec(name="r", max_tokens=70, min_tokens=90), 90),
        (RegionSpec(name="r", budget_permille=125), 25_000),
        (RegionSpec(name="r", budget_permille=125, max_tokens=1000), 1000),
        (RegionSpec(name="r", budget_permille=1, min_tokens=300), 300),
    ],
)
def test_the_capacity_is_the_share_clipped_and_then_raised(region: RegionSpec, tokens: int) -> None:
    assert region.capacity_tokens(200_000) == tokens
