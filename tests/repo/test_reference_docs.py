"""Reference documents leave nothing out: every key, event, error and limit is in them."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from fleet_scenarios import small

import leviath
from leviath.components import errors
from leviath.components.events import Event
from leviath.engine import limits
from leviath.engine.offering import IN_STEP_TOOLS
from leviath.engine.tools import builtin_tools
from leviath.simulation import Report, Scenario
from leviath.simulation.report import CostRow, Sample, SlotRow, WaitRow

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"


def mentioned(name: str) -> set[str]:
    """Every word in backticks of a reference document."""
    text = (REFERENCE / name).read_text(encoding="utf-8")
    return {
        word for quoted in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"\w+", quoted)
    }


def keys_of(value: object, *, skip: frozenset[str]) -> set[str]:
    """Every key of a TOML document, but for the names that its author chose."""
    found: set[str] = set()
    if isinstance(value, dict):
        for key, inner in cast("dict[str, Any]", value).items():
            if key in skip:
                # Names, with tables of keys below them or not.
                tables = cast("dict[str, Any]", inner).values() if isinstance(inner, dict) else ()
                for table in tables:
                    found |= keys_of(table, skip=skip)
                found.add(key)
            else:
                found |= {key} | keys_of(inner, skip=skip)
    elif isinstance(value, list):
        for inner in cast("list[object]", value):
            found |= keys_of(inner, skip=skip)
    return found


NAMED = frozenset(
    {"stages", "transitions", "regions", "tool_permissions", "max_result_tokens_per_tool"}
    | {"overrides", "parameters", "schema", "hooks", "mappings", "calls"}
)


def test_every_key_of_a_blueprint_is_explained() -> None:
    text = (ROOT / "tests" / "golden" / "blueprints" / "every-key.leviath").read_text("utf-8")
    keys = keys_of(tomllib.loads(text), skip=NAMED)
    assert len(keys) > 100
    missing = keys - mentioned("blueprints.md") - {"agent", "name"}
    assert not missing


def test_every_event_and_field_is_explained() -> None:
    kinds = Event.__subclasses__()
    words = {kind.__name__ for kind in kinds}
    words |= {field for kind in kinds for field in kind.__struct_fields__}
    assert len(kinds) > 10
    assert not words - mentioned("events.md")


def test_every_error_is_explained_with_its_code() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    own = [kind for kind in kinds if issubclass(kind, leviath.LevError)]
    text = (REFERENCE / "errors.md").read_text(encoding="utf-8")
    assert len(own) > 15
    for kind in own:
        assert re.search(rf"\| `{kind.__name__}` \|.*\| `{kind.code}` \|", text), kind


def test_every_limit_stands_with_its_value() -> None:
    text = (REFERENCE / "limits.md").read_text(encoding="utf-8")
    values = {
        name: value
        for name, value in vars(limits).items()
        if name.isupper() and isinstance(value, int) and name not in ("KIB", "MIB")
    }
    assert len(values) > 40
    shown = dict(re.findall(r"^\| `(\w+)` \| ([\d,]+) \|", text, re.MULTILINE))
    assert shown == {name: f"{value:,}" for name, value in values.items()}


def cells(document: str, heading: str) -> list[list[str]]:
    """The table rows of one section of a reference document, as their cells."""
    text = (REFERENCE / document).read_text(encoding="utf-8")
    section = re.split(r"^## ", text.split(f"\n## {heading}\n", 1)[1], flags=re.MULTILINE)[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line[:2] == "| "]
    return [[cell.strip() for cell in row] for row in rows]


def first_names(document: str, heading: str) -> set[str]:
    """The names in the first cells of a section's rows, without what follows a name."""
    return {
        re.sub(r"^await |\(.*", "", quoted)
        for row in cells(document, heading)
        for quoted in re.findall(r"`([^`]+)`", row[0])
    }


def public(kind: type) -> set[str]:
    """What an instance has for everybody, its own attributes aside."""
    return {name for name in vars(kind) if not name.startswith("_")}


def test_every_public_name_is_in_the_python_reference() -> None:
    assert not set(leviath.__all__) - mentioned("python.md")


def test_every_argument_stands_with_its_default() -> None:
    def defaults(function: Callable[..., object]) -> dict[str, object]:
        parameters = inspect.signature(function).parameters.values()
        return {each.name: each.default for each in parameters}

    shown = {row[0].strip("`"): row[2] for row in cells("python.md", "open_world")}
    real = defaults(leviath.open_world)
    assert set(shown) - {"argument"} == set(real)
    for name, default in real.items():
        text = shown[name].strip("`").replace(",", "").replace('"', "")
        assert text == str(default), name
    spawn = set(defaults(leviath.OpenWorld.spawn)) - {"self", "agent"}
    assert spawn <= first_names("python.md", "OpenWorld")


def test_every_method_and_field_is_in_the_python_reference() -> None:
    spawn = set(inspect.signature(leviath.OpenWorld.spawn).parameters)
    world = first_names("python.md", "OpenWorld") - spawn
    assert world == public(leviath.OpenWorld)
    assert first_names("python.md", "RunHandle") == public(leviath.RunHandle) | {
        "ordinal",
        "run_id",
    }
    assert first_names("python.md", "Hand") == public(leviath.testing.Hand)
    assert first_names("python.md", "ManualClock") == public(leviath.ManualClock)
    for kind in (leviath.RunRow, leviath.LedgerRow, leviath.Policy):
        assert first_names("python.md", kind.__name__) == set(kind.__struct_fields__)
    shown = {row[0].strip("`"): row[1].replace(",", "") for row in cells("python.md", "Policy")}
    for name in leviath.Policy.__struct_fields__:
        assert shown[name] == str(getattr(leviath.Policy(), name)), name


def test_every_built_in_tool_stands_with_its_arguments() -> None:
    lines = (REFERENCE / "tools.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("|").split(" | ") for line in lines if line.startswith("| `")]
    shown = {row[0].strip(" `"): row for row in rows}
    own = {tool.name: (tool.schema_json, tool.effect) for tool in builtin_tools()}
    in_step = {spec.name: (spec.schema_json, None) for spec in IN_STEP_TOOLS}
    assert set(shown) == {*own, *in_step}
    for name, (schema, effect) in (own | in_step).items():
        row = shown[name]
        fields = set(msgspec.json.decode(schema, type=dict[str, Any])["properties"])
        words = re.sub(r"\(.*?\)", "", row[1])
        assert set(re.findall(r"\w+", words)) == fields, name
        assert effect is None or row[2].strip(" `") == effect, name


def test_every_key_of_a_scenario_is_explained() -> None:
    """A key that nobody knows is answered with the keys that there are."""
    table = small()
    tables = [
        table,
        table["people"],
        *(inner for name in ("providers", "tools", "agents") for inner in table[name].values()),
        *table["arrivals"],
        *table["crashes"],
        table["providers"]["acme"]["limit"],
        *table["providers"]["acme"]["outages"],
    ]
    for inner in tables:
        inner["%"] = 1
    with pytest.raises(leviath.ConfigError) as caught:
        Scenario.parse(table)
    told = [fault for fault in caught.value.fields["faults"] if "%" in fault]
    assert len(told) == len(tables)
    keys = {key for fault in told for key in fault.split("there are ")[1].split(", ")}
    assert len(keys) > 50
    assert not keys - mentioned("scenarios.md")


def test_every_field_of_a_report_is_explained() -> None:
    kinds = (Report, Sample, SlotRow, CostRow, WaitRow)
    fields = {field for kind in kinds for field in kind.__struct_fields__}
    assert not fields - mentioned("scenarios.md") - {"provider", "model"}
