"""Reference documents leave nothing out: every key, event, error and limit is in them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, cast

import leviath
from leviath.components import errors
from leviath.components.events import Event
from leviath.engine import limits

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
