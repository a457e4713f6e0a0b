"""Whatever a manifest holds, reading it ends in a blueprint or a BlueprintError."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tomllib
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leviath.components.blueprint import Blueprint, canonical_bytes, decode_blueprint, digest
from leviath.components.errors import BlueprintError
from leviath.engine import limits
from leviath.engine.blueprint_reader import is_array, is_table
from leviath.engine.blueprints import (
    lint,
    load_blueprint,
    parse_blueprint,
    validate_blueprint,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "blueprints" / "every-key.leviath"
TEXT = GOLDEN.read_text(encoding="utf-8")
DOCUMENT = tomllib.loads(TEXT)
GOLDEN_DIGEST = "7d9cd1f2cfc8412f6026436254532979"

EXTREMES: st.SearchStrategy[Any] = st.sampled_from(
    ["", "\x7f", "a\x00b", "e\u0301", "done", "-", "a" * 300, 10**400, -1, 0, True, [], {}, [[]]]
)
LEAVES: st.SearchStrategy[Any] = st.integers() | st.text(max_size=5) | st.floats(0, 9) | EXTREMES
VALUES: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)


def toml_value(value: object) -> str:
    """Write a value inline; JSON and TOML texts agree but for DEL."""
    if is_table(value):
        return "{" + ", ".join(f"{toml_value(k)} = {toml_value(v)}" for k, v in value.items()) + "}"
    if is_array(value):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)


def toml(document: dict[str, Any]) -> str:
    return "".join(f"{toml_value(key)} = {toml_value(value)}\n" for key, value in document.items())


def mutate(document: dict[str, Any], chooser: random.Random, value: object) -> None:
    """Replace, add or drop something somewhere in ``document``."""
    here: Any = document
    while True:
        keys: list[Any] = list(here) if is_table(here) else list(range(len(here)))
        key = chooser.choice(keys) if keys else "new"
        inner: Any = here[key] if keys else None
        if (is_table(inner) or is_array(inner)) and inner and chooser.random() < 0.9:
            here = inner
            continue
        act = chooser.random()
        if act < 0.2 and keys:
            del here[key]
        elif is_array(here):
            here.append(value)
        else:
            here["new" if act < 0.3 else key] = value
        return


def read(text: str) -> Blueprint | None:
    """Read ``text``; a refusal must list its faults."""
    try:
        return parse_blueprint(text, where="test")
    except BlueprintError as error:
        listed = error.faults
    assert listed
    assert all(": " in fault for fault in listed)
    return None


@given(values=st.lists(VALUES, max_size=3), chooser=st.randoms(use_true_random=False))
def test_a_mutated_document_is_read_or_refused(
    values: list[object], chooser: random.Random
) -> None:
    document = deepcopy(DOCUMENT)
    for value in values:
        mutate(document, chooser, value)
    blueprint = read(toml(document))
    if blueprint is not None:
        lint(blueprint)
        assert decode_blueprint(canonical_bytes(blueprint)) == blueprint
        assert validate_blueprint(blueprint) == blueprint


@given(
    cut=st.tuples(st.integers(0, len(TEXT)), st.integers(0, 40)),
    middle=st.text(max_size=5) | st.sampled_from(["[" * 5000, '"""', "2026-99-99", "9" * 5000]),
)
def test_damaged_text_is_read_or_refused(cut: tuple[int, int], middle: str) -> None:
    start, length = cut
    read(TEXT[:start] + middle + TEXT[start + length :])


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "[" * 100_000,
        "x = " + "{a=" * 50_000,
        "x = " + "9" * 10_000,
        "x = 2026-13-45",
        "agent = 1\nagent = 2",
        "[agent]\nname = '\\u0000'\n[agent]",
    ],
)
def test_text_that_no_parser_takes_is_refused(text: str) -> None:
    with pytest.raises(BlueprintError, match="is not TOML"):
        parse_blueprint(text, where="test")


@pytest.mark.parametrize("form", ["{}=1", "[{}]", "x = {{ {} = 1 }}"])
def test_a_key_of_endless_parts_is_refused_before_it_is_parsed(form: str) -> None:
    text = "\n" + form.format(" . ".join(["a", '"b"'] * 25_000))
    with pytest.raises(BlueprintError, match="line 2 joins more than 64 words by dots"):
        parse_blueprint(text, where="test")


def test_endless_documents_are_refused_with_a_bounded_list_and_in_bounded_time() -> None:
    keys = "".join(f"k{index} = 1\n" for index in range(20_000))
    stages = "".join(f"[stages.s{index}]\n" for index in range(10_000))
    edges = "[stages.a]\n" + '[[stages.a.edges]]\nto = "b"\n' * 7_000
    for text in (keys, stages, edges):
        assert len(text) <= limits.BLUEPRINT_BYTES_MAX
        with pytest.raises(BlueprintError) as caught:
            parse_blueprint(text, where="test")
        assert len(caught.value.faults) <= limits.BLUEPRINT_FAULTS_MAX + 1


def test_the_manifest_with_every_key_keeps_its_digest() -> None:
    blueprint = load_blueprint(GOLDEN).blueprint
    assert digest(blueprint).hex() == GOLDEN_DIGEST
    assert validate_blueprint(blueprint) == blueprint
    assert decode_blueprint(canonical_bytes(blueprint)) == blueprint


def test_the_inline_form_of_a_document_reads_the_same() -> None:
    assert digest(parse_blueprint(toml(DOCUMENT), where="test")).hex() == GOLDEN_DIGEST


def test_the_digest_is_the_same_in_processes_with_other_hash_seeds() -> None:
    code = (
        "import sys; from leviath.components.blueprint import digest;"
        "from leviath.engine.blueprints import load_blueprint;"
        "print(digest(load_blueprint(sys.argv[1]).blueprint).hex())"
    )
    for seed in ("0", "1"):
        found = subprocess.run(
            [sys.executable, "-c", code, str(GOLDEN)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout.strip() == GOLDEN_DIGEST
