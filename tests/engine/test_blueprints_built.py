"""Blueprints built in Python: the same values, held to the same rules as a manifest."""

from __future__ import annotations

from typing import Any

import pytest

from leviath.components.blueprint import (
    Blueprint,
    Edge,
    Gate,
    ModelSpec,
    Permission,
    RegionSpec,
    StageMode,
    StageSpec,
    canonical_bytes,
)
from leviath.components.errors import BlueprintError
from leviath.engine.blueprints import parse_blueprint, validate_blueprint


def test_the_same_agent_built_in_python_has_the_same_bytes() -> None:
    text = (
        "[agent]\nname = 'two'\n[tool_permissions]\nb = 'ask'\na = 'deny'\n"
        "[stages.a.transitions.end]\n[stages.a.transitions.end.gate]\nmax_attempts = 1\n"
        "[stages.end]\nmode = 'output'"
    )
    built = Blueprint(
        name="two",
        permissions=(("b", Permission.ask), ("a", Permission.deny)),
        stages=(
            StageSpec(name="a", edges=(Edge(to="end", gate=Gate(max_attempts=1)),)),
            StageSpec(name="end", mode=StageMode.output),
        ),
    )
    assert canonical_bytes(validate_blueprint(built)) == canonical_bytes(
        parse_blueprint(text, where="test")
    )
    assert validate_blueprint(validate_blueprint(built)) == validate_blueprint(built)


NO_MODEL = ModelSpec(models=(), allow_user_default=False)


def wrong(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("blueprint", "place", "what"),
    [
        (Blueprint(entry=3), "agent.entry_stage", "no stage number 3"),
        (Blueprint(max_child_depth=-1), "max_child_depth", "-1 is out of bounds"),
        (Blueprint(max_child_depth=wrong(True)), "$", "max_child_depth"),
        (Blueprint(name=wrong(7)), "$", "name"),
        (Blueprint(stages=wrong(7)), "$", "stages"),
        (Blueprint(nudge=wrong(object())), "$", "structs name"),
        (Blueprint(name="\ud83d"), "$", "surrogates not allowed"),
        (Blueprint(description="a\0b"), "description", "NUL"),
        (Blueprint(description="x" * 600_000), "$", "move long texts"),
        (
            Blueprint(permissions=(("x", Permission.ask), ("x", Permission.deny))),
            "tool_permissions",
            "'x' is listed twice",
        ),
        (
            Blueprint(stages=(StageSpec(name="a", model=NO_MODEL),)),
            "stages.a.model",
            "names no model",
        ),
        (
            Blueprint(regions=tuple(RegionSpec(name=f"r{index}") for index in range(300))),
            "context.regions",
            "are more than 256",
        ),
        (Blueprint(read_paths=("a\0",)), "read_paths[0]", "NUL"),
        (
            Blueprint(stages=(StageSpec(name="a", max_iterations=0),)),
            "stages.a.max_iterations",
            "out of bounds",
        ),
        (
            Blueprint(stages=(StageSpec(name="a", edges=(Edge(to="b"),)),)),
            "stages.a.transitions.b",
            "there is no stage 'b'",
        ),
        (
            Blueprint(stages=(StageSpec(name="a"), StageSpec(name="a"))),
            "stages.a",
            "rename one",
        ),
        (Blueprint(regions=(RegionSpec(name="r"),) * 2), "context.regions.r", "declared twice"),
        (
            Blueprint(stages=(StageSpec(name="a", model=ModelSpec(temperature_milli=3000)),)),
            "stages.a.model.temperature_milli",
            "3000 is out of bounds",
        ),
    ],
)
def test_a_wrong_value_built_in_python_is_told_with_its_place(
    blueprint: Blueprint, place: str, what: str
) -> None:
    with pytest.raises(BlueprintError) as caught:
        validate_blueprint(blueprint)
    (fault,) = caught.value.faults
    assert fault.startswith(f"{place}: "), fault
    assert what in fault
