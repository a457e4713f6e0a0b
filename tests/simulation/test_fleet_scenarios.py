"""Scenario files: every key is known; one error tells every fault with its place and remedy."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, cast

import pytest
from fleet_scenarios import small
from hypothesis import given, settings
from hypothesis import strategies as st

from leviath.components.errors import ConfigError
from leviath.simulation import Scenario
from leviath.simulation.fleet_reader import changed, split_key
from leviath.simulation.fleet_scenario import bundled_names

FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"durations": "1d"}, "durations: no such key; did you mean duration?"),
    ({"duration": "0s"}, "duration: '0s' is too short"),
    ({"duration": 60}, "duration: 60 is no span; write a number and ms, s, m, h, d or w"),
    ({"duration": "11000w"}, "ten years are the most"),
    ({"title": ""}, "title: give a text"),
    ({"seed": -1}, "seed: -1 is not between 0 and"),
    ({"seed": 1.5}, "seed: 1.5 is no whole number"),
    ({"seed": True}, "seed: True is no whole number"),
    ({"sample": "1ms"}, "sample: gives more than 10,000 rows; make it longer"),
    ({"budget_usd": "-3"}, "budget_usd: '-3' is not an amount of dollars"),
    ({"budget_usd": "0"}, "budget_usd: nothing covers no call; give more, or leave it out"),
    ({"budget_usd": "9"}, "budget_usd: the price of spare/small is not known; add prices."),
    ({"policy": {"budget_output_tokens": 0}}, "policy.budget_output_tokens: 0 is not between 1"),
    ({"policy": {"fleet_budget": 5}}, "policy.fleet_budget: no such key"),
    ({"policy": {"slots_default": 0}}, "policy.slots_default: 0 is not between 1 and"),
    ({"policy": {"slot": 9}}, "policy.slot: no such key"),
    ({"policy": 3}, "policy: give a table"),
    ({"slots": {"acme": 9}}, 'slots.acme: name it "provider/model"'),
    ({"slots": {"acme/large": 0}}, 'slots."acme/large": 0 is not between 1'),
    ({"prices": {"acme/large": {"prompt": 3.0}}}, "write the price as text"),
    ({"prices": {"acme": "free"}}, 'prices."acme": name it "provider/model"'),
    ({"providers": {"acme": {}}}, "providers.acme.latency: is missing"),
    ({"providers": {"acme": {"latency": {"min": "1s"}}}}, "latency: max is missing"),
    (
        {"providers": {"acme": {"latency": {"min": "9s", "p50": "1s", "max": "10s"}}}},
        "providers.acme.latency: its values fall from 9,000 to 1,000; quantiles rise",
    ),
    (
        {"providers": {"acme": {"latency": {"min": "1s", "p42": "1s", "max": "1s"}}}},
        "latency.p42",
    ),
    ({"providers": {"acme": {"latency": {"mean": "1s", "max": "2s"}}}}, "a mean stands alone"),
    (
        {"providers": {"acme": {"latency": "1s", "errors_permille": {"server": 600, "auth": 500}}}},
        "providers.acme.errors_permille: 1,100 of 1,000 calls cannot fail",
    ),
    (
        {"providers": {"acme": {"latency": "1s", "errors_permille": {"aborted": 1}}}},
        "errors_permille.aborted: no such name; there are transport",
    ),
    (
        {"providers": {"acme": {"latency": "1s", "limit": {"window": "1m"}}}},
        "providers.acme.limit.calls: is missing; give calls or tokens, or both",
    ),
    (
        {"providers": {"acme": {"latency": "1s", "limit": {"window": "0s", "calls": 0}}}},
        "providers.acme.limit.window: '0s' is too short",
    ),
    (
        {"providers": {"acme": {"latency": "1s", "outages": [{"at": "1h"}]}}},
        "providers.acme.outages[0].for: is missing",
    ),
    (
        {
            "providers": {
                "acme": {"latency": "1s", "outages": [{"at": "1h", "for": "1h", "error": "x"}]}
            }
        },
        "outages[0].error: 'x' is none of transport, ",
    ),
    ({"providers": {"acme": {"latency": "1s"}}}, "add one"),
    ({"providers": {"a b": {"latency": "1s"}}}, 'providers."a b": a name has letters'),
    ({"tools": {"look": {"effect": "never"}}}, "tools.look.effect: 'never' is none of pure"),
    (
        {"tools": {"look": {"failures_permille": 600, "unknown_permille": 600}}},
        "tools.look.unknown_permille: with failures_permille it is over 1,000",
    ),
    ({"agents": {}}, "agents: there is none"),
    ({"agents": {"w": {"turns": 1}}}, "agents.w.models: is missing"),
    (
        {"agents": {"w": {"turns": 0, "models": ["acme/large"]}}},
        "agents.w.turns: 0 is not between 1",
    ),
    ({"agents": {"w": {"turns": 3, "models": ["acme/large"]}}}, "agents.w.tools: is missing"),
    ({"agents": {"w": {"turns": 1, "models": ["large"]}}}, "agents.w.models: 'large' is no model"),
    ({"agents": {"w": {"turns": 1, "models": "acme/large"}}}, "agents.w.models: give a list"),
    (
        {"agents": {"w": {"turns": 1, "models": ["acme/large"], "tools": {"look": 0}}}},
        "agents.w.tools: every weight is 0",
    ),
    (
        {"agents": {"w": {"turns": 1, "models": ["acme/large"], "asks": ["x"]}}},
        "agents.w.asks: 'x' is none of the agent's tools",
    ),
    (
        {"agents": {"worker": {"turns": 2, "models": ["acme/large"], "tools": {"dig": 1}}}},
        "agents.worker.tools: no table [tools.dig] says how dig behaves; add one",
    ),
    ({"agents": {"w": {"turns": 1, "manifest": "nowhere"}}}, "agents.w.manifest: "),
    ({"arrivals": []}, "arrivals: there is none"),
    ({"arrivals": {"agent": "worker"}}, "arrivals: give a list of tables: [[arrivals]]"),
    ({"arrivals": [{"agent": "nobody", "count": 1}]}, "arrivals[0].agent: no agent 'nobody'"),
    ({"arrivals": [{"agent": "worker", "count": 0}]}, "arrivals[0].count: 0 is not between 1"),
    (
        {"arrivals": [{"agent": "worker", "count": 1, "at_random": True}]},
        "arrivals[0].over: is missing; random times need a span",
    ),
    (
        {"arrivals": [{"agent": "worker", "count": 1_000_000, "every": "1s"}]},
        "runs are too many; 10,000,000 are the most",
    ),
    ({"people": {"from_hour": 9, "to_hour": 9}}, "people.to_hour: is not after from_hour"),
    ({"crashes": [{"at": "1h", "down": "1h"}, {"at": "90m"}]}, "crashes[1].at: the host is not up"),
    ({"crashes": [{"at": "0s"}]}, "crashes[0].at: '0s' is too short"),
]


@pytest.mark.parametrize(("change", "told"), FAULTS)
def test_a_fault_is_told_with_its_place_and_remedy(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Scenario.parse(small(**change), place="plan.toml")
    assert caught.value.message.startswith("plan.toml has faults:\n  ")
    assert told in caught.value.message


def test_all_faults_are_told_at_once() -> None:
    table = small(seed=-1, people={"hour": 1}, providers={"acme": {"latency": "soon", "x": 1}})
    with pytest.raises(ConfigError) as caught:
        Scenario.parse(table)
    places = [fault.split(": ")[0] for fault in caught.value.fields["faults"]]
    assert places == ["seed", "providers.acme.latency", "providers.acme.x", "people.hour"]


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=4,
)


def keys_of(value: object, way: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The way to everything within a table."""
    found = [way] if way else []
    if isinstance(value, dict):
        for key, inner in cast("dict[str, object]", value).items():
            found += keys_of(inner, (*way, str(key)))
    elif isinstance(value, list):
        for at, inner in enumerate(cast("list[object]", value)):
            found += keys_of(inner, (*way, str(at)))
    return found


WAYS = keys_of(small())


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(WAYS), JUNK)
def test_no_value_anywhere_does_more_than_be_refused(way: tuple[str, ...], junk: object) -> None:
    table: Any = small()
    at = table
    for name in way[:-1]:
        at = at[int(name) if isinstance(at, list) else name]
    at[int(way[-1]) if isinstance(at, list) else way[-1]] = junk
    try:
        Scenario.parse(table)
    except ConfigError as error:
        told = error.fields["faults"]
    else:
        told = ("none",)
    assert told


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Scenario.load(tmp_path / "none.toml")
    for body in (b"title = [", b"\xff\xfe", b"x = " + b"[" * 5_000):
        (tmp_path / "bad.toml").write_bytes(body)
        with pytest.raises(ConfigError, match="is not TOML"):
            Scenario.load(tmp_path / "bad.toml")
    (tmp_path / "bad.toml").write_bytes(b"# " * (1 << 20))
    with pytest.raises(ConfigError, match="longer than"):
        Scenario.load(tmp_path / "bad.toml")


def test_a_manifest_is_found_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "agent.leviath").write_text(
        '[agent]\nname = "own"\n[stages.main]\n[stages.main.model]\n'
        'models = [{ provider = "acme", model = "m" }]\n'
    )
    (tmp_path / "plan.toml").write_text(
        'title = "own"\nduration = "1h"\n[providers.acme]\nlatency = "1s"\n'
        '[agents.own]\nmanifest = "agent.leviath"\nturns = 1\n'
        '[[arrivals]]\nagent = "own"\ncount = 2\n'
    )
    scenario = Scenario.load(tmp_path / "plan.toml")
    assert scenario.agents[0].blueprint.name == "own"


def test_bundled_scenarios_are_sound_and_say_what_they_answer() -> None:
    assert set(bundled_names()) == {"pool-width", "provider-outage"}
    for name in bundled_names():
        assert Scenario.bundled(name).title
    with pytest.raises(ConfigError, match="there are pool-width, provider-outage"):
        Scenario.bundled("nothing")


def test_values_are_changed_by_dotted_key() -> None:
    table = tomllib.loads('a = 1\n[b]\nc = [{ d = 2 }]\n[b."x.y/z"]\ne = 3\n')
    result = changed(table, {"a": 5, "b.c.0.d": 6, 'b."x.y/z".e': 7, "new.key": 8}, "plan")
    assert result == {"a": 5, "b": {"c": [{"d": 6}], "x.y/z": {"e": 7}}, "new": {"key": 8}}
    assert table["a"] == 1
    assert table["b"]["c"] == [{"d": 2}]


@pytest.mark.parametrize("key", ["", ".", "a.", ".a", "a..b", '"a', '"a"b', '""x'])
def test_what_is_no_dotted_key_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="is no dotted key"):
        split_key(key)


@pytest.mark.parametrize("key", ["a.b", "b.c.7.d", "b.c.x.d", "b.c.0"])
def test_a_key_that_leads_nowhere_is_refused(key: str) -> None:
    table: dict[str, Any] = {"a": 1, "b": {"c": [{"d": 2}]}}
    with pytest.raises(ConfigError, match=re.escape(f"no table for {key!r}")):
        changed(table, {key: 1}, "plan")
