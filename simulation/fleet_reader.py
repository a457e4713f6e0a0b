"""Reading a scenario from TOML: closed, and with all faults in one error."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from msgspec.structs import replace

from leviath.components.errors import BlueprintError, ConfigError
from leviath.components.world_facts import Policy, Prices
from leviath.engine.blueprints import load_blueprint, parse_blueprint
from leviath.engine.pricing import PriceTable
from leviath.simulation.chances import PERMILLE, Spread
from leviath.simulation.fleet_scenario import (
    BUNDLED,
    AgentModel,
    Arrival,
    Crash,
    Limit,
    Outage,
    People,
    ProviderModel,
    Scenario,
    ToolModel,
    bundled_names,
)
from leviath.simulation.fleet_table import ERROR_KINDS, Fields, shown

if TYPE_CHECKING:
    import os

    from leviath.components.blueprint import Blueprint

FILE_BYTES_MAX: Final = 1 << 20
"""A scenario is written by hand."""
RUNS_MAX: Final = 10_000_000
"""Runs of one scenario: beyond it no machine has the memory."""
SAMPLES_MAX: Final = 10_000
"""Rows of the history: beyond it nobody sees more."""
TURNS_MAX: Final = 100_000
_EFFECTS: Final = ("pure", "idempotent", "once")
_POSITIVE: Final = (
    *("slots_default", "attempts_max", "iterations_default", "rounds_max"),
    "budget_output_tokens",
)
_NOT_NUMBERS: Final = ("slots", "fleet_budget")


def load_scenario(
    path: str | os.PathLike[str], changes: Mapping[str, object] | None = None
) -> Scenario:
    """See ``Scenario.load``."""
    place = str(path)
    return read_scenario(
        changed(load_table(path), changes or {}, place), place=place, folder=Path(path).parent
    )


def load_table(path: str | os.PathLike[str]) -> dict[str, object]:
    """The TOML of a file. Raises ConfigError."""
    place = str(path)
    try:
        with open(path, "rb") as file:
            body = file.read(FILE_BYTES_MAX + 1)
    except OSError as problem:
        raise ConfigError(
            f"scenario {place} cannot be read ({problem.strerror}); give the path of a TOML file, "
            f"or one of {', '.join(bundled_names())}",
            path=place,
        ) from problem
    if len(body) > FILE_BYTES_MAX:
        raise ConfigError(f"scenario {place} is longer than {FILE_BYTES_MAX:,} bytes", path=place)
    try:
        return tomllib.loads(body.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise ConfigError(f"scenario {place} is not TOML: {problem}", path=place) from problem


def bundled_path(name: str) -> Path:
    """The file of a scenario that comes with leviath. Raises ConfigError."""
    if name not in bundled_names():
        known = ", ".join(bundled_names())
        raise ConfigError(f"no scenario called {shown(name)} comes with leviath; there are {known}")
    return BUNDLED / f"{name}.toml"


def load_bundled(name: str, changes: Mapping[str, object] | None = None) -> Scenario:
    """See ``Scenario.bundled``."""
    return load_scenario(bundled_path(name), changes)


def changed(
    table: Mapping[str, object], changes: Mapping[str, object], place: str
) -> dict[str, object]:
    """The table with some values replaced; keys are dotted (``arrivals.0.count``), quoted where a
    name has a dot. Raises ConfigError for a key that leads through something else."""
    result = cast("dict[str, object]", _copy(dict(table)))
    for key, value in changes.items():
        _change(result, key, value, place)
    return result


def _copy(value: object) -> object:
    if isinstance(value, dict):
        return {key: _copy(inner) for key, inner in cast("dict[str, object]", value).items()}
    if isinstance(value, list):
        return [_copy(inner) for inner in cast("list[object]", value)]
    return value


def split_key(key: str) -> list[str]:
    """The names of a dotted key. Raises ConfigError for one that is none."""
    parts: list[str] = []
    rest = key
    while rest:
        if rest.startswith('"') and '"' in rest[1:]:
            part, _, rest = rest[1:].partition('"')
            sound = not rest or rest.startswith(".")
        else:
            part, dot, rest = rest.partition(".")
            rest = dot + rest
            sound = bool(part) and not part.startswith('"')
        if not sound or rest == ".":
            break
        parts.append(part)
        if not rest:
            return parts
        rest = rest[1:]
    raise ConfigError(f"{key!r} is no dotted key; write it as in policy.slots_default")


def _change(table: dict[str, object], key: str, value: object, place: str) -> None:
    at: object = table
    *way, last = split_key(key)
    for name in way:
        if isinstance(at, list) and name.isascii() and name.isdigit():
            rows = cast("list[object]", at)
            at = rows[int(name)] if int(name) < len(rows) else None
        elif isinstance(at, dict):
            at = cast("dict[str, object]", at).setdefault(name, {})
        else:
            at = None
    if not isinstance(at, dict):
        raise ConfigError(
            f"{place} has no table for {key!r}; name a key of it, and an item of a list by its "
            "number from 0: arrivals.0.count"
        )
    cast("dict[str, object]", at)[last] = value


def read_scenario(table: Mapping[str, object], *, place: str, folder: Path) -> Scenario:
    """The scenario of a table; manifests are looked for below ``folder``. Raises ConfigError."""
    faults: list[str] = []
    scenario = _scenario(Fields(table, "", faults), folder)
    if not faults:
        faults += _contradictions(scenario)
    if faults:
        listed = "\n  ".join(faults)
        raise ConfigError(f"{place} has faults:\n  {listed}", faults=tuple(faults))
    return scenario


def _scenario(top: Fields, folder: Path) -> Scenario:
    tools = tuple(_tool(name, fields) for name, fields in top.named("tools"))
    scenario = Scenario(
        title=top.text("title"),
        seed=top.count("seed", 1, 0, (1 << 63) - 1),
        duration_ms=top.span_ms("duration", None, 1),
        sample_ms=top.span_ms("sample", 0),
        commit_ms=top.span_ms("commit", 3),
        budget_nano_usd=top.usd("budget_usd"),
        policy=_policy(top),
        prices=_prices(top),
        providers=tuple(_provider(name, fields) for name, fields in top.named("providers")),
        tools=tools,
        agents=tuple(_agent(name, fields, folder) for name, fields in top.named("agents")),
        arrivals=tuple(_arrival(fields) for fields in top.tables("arrivals")),
        people=_people(top.table("people")),
        crashes=tuple(_crash(fields) for fields in top.tables("crashes")),
    )
    top.done()
    return scenario


def _policy(top: Fields) -> Policy:
    fields = top.table("policy")
    values: dict[str, int] = {}
    if fields is not None:
        for name in Policy.__struct_fields__:
            if name not in _NOT_NUMBERS and fields.has(name):
                values[name] = fields.count(name, None, 1 if name in _POSITIVE else 0)
        fields.done()
    slots: list[tuple[str, str, int]] = []
    table = top.table("slots")
    for name in [] if table is None else table.keys():
        assert table is not None
        provider, slash, model = name.partition("/")
        count = table.count(name, None, 1, 1_000_000)
        if not (provider and slash and model):
            table.fault(name, 'name it "provider/model"')
        slots.append((provider, model, count))
    return replace(Policy(), slots=tuple(slots), **values)


def _prices(top: Fields) -> Prices:
    table = top.table("prices")
    if table is None:
        return Prices()
    rows = {name: table.raw(name) for name in table.keys()}  # noqa: SIM118 - a method of ours
    try:
        return PriceTable.parse(rows).component()
    except ConfigError as error:
        faults = error.fields.get("faults", ())
        top.faults.extend(cast("list[str]", faults))
        return Prices()


def _provider(name: str, fields: Fields) -> ProviderModel:
    limit = fields.table("limit")
    provider = ProviderModel(
        name=name,
        latency_ms=fields.spread("latency", None, spans=True),
        token_us=fields.count("token_us", 0, 0, 10_000_000),
        cached_permille=fields.count("cached_permille", 0, 0, PERMILLE),
        errors_permille=fields.weights("errors_permille", ERROR_KINDS),
        error_latency_ms=fields.spread("error_latency", Spread.always(300), spans=True),
        retry_after_ms=(
            fields.spread("retry_after", None, spans=True) if fields.has("retry_after") else None
        ),
        limit=None if limit is None else _limit(limit),
        outages=tuple(_outage(outage) for outage in fields.tables("outages")),
    )
    total = sum(permille for _, permille in provider.errors_permille)
    if total > PERMILLE:
        fields.fault("errors_permille", f"{total:,} of {PERMILLE:,} calls cannot fail; lower them")
    fields.done()
    return provider


def _limit(fields: Fields) -> Limit:
    limit = Limit(
        window_ms=fields.span_ms("window", None, 1),
        calls=fields.count("calls", None, 1) if fields.has("calls") else None,
        tokens=fields.count("tokens", None, 1) if fields.has("tokens") else None,
    )
    if limit.calls is None and limit.tokens is None:
        fields.fault("calls", "is missing; give calls or tokens, or both")
    fields.done()
    return limit


def _outage(fields: Fields) -> Outage:
    outage = Outage(
        at_ms=fields.span_ms("at", None),
        for_ms=fields.span_ms("for", None, 1),
        kind=fields.word("error", "transport", ERROR_KINDS),
        permille=fields.count("permille", PERMILLE, 1, PERMILLE),
    )
    fields.done()
    return outage


def _tool(name: str, fields: Fields) -> ToolModel:
    tool = ToolModel(
        name=name,
        effect=fields.word("effect", "pure", _EFFECTS),
        latency_ms=fields.spread("latency", Spread.always(0), spans=True),
        failures_permille=fields.count("failures_permille", 0, 0, PERMILLE),
        unknown_permille=fields.count("unknown_permille", 0, 0, PERMILLE),
        result_bytes=fields.spread("result_bytes", Spread.always(200), most=1 << 20),
        deadline_ms=fields.span_ms("deadline", 600_000, 1),
    )
    if tool.failures_permille + tool.unknown_permille > PERMILLE:
        fields.fault("unknown_permille", "with failures_permille it is over 1,000; lower one")
    fields.done()
    return tool


def _agent(name: str, fields: Fields, folder: Path) -> AgentModel:
    tools = fields.weights("tools")
    turns = fields.spread("turns", None, least=1, most=TURNS_MAX)
    agent = AgentModel(
        name=name,
        blueprint=_blueprint(name, fields, folder, tuple(tool for tool, _ in tools), turns),
        turns=turns,
        calls=fields.spread("calls", Spread.always(1), least=1, most=100),
        tools=tools,
        prompt_tokens=fields.spread("prompt_tokens", Spread.always(2_000)),
        growth_tokens=fields.spread("growth_tokens", Spread.always(500)),
        completion_tokens=fields.spread("completion_tokens", Spread.always(300)),
    )
    if tools and not sum(weight for _, weight in tools):
        fields.fault("tools", "every weight is 0; give one tool at least 1")
    if not tools and turns.most > 1:
        fields.fault("tools", "is missing; without a tool call a run ends with its first turn")
    fields.done()
    return agent


def _blueprint(
    name: str, fields: Fields, folder: Path, tools: tuple[str, ...], turns: Spread
) -> Blueprint:
    manifest = fields.text("manifest", "") if fields.has("manifest") else ""
    models = fields.models("models")
    asks = fields.names("asks")
    if manifest:
        if models or asks:
            fields.fault("manifest", "it names models and permissions itself; leave out the others")
        try:
            return load_blueprint(folder / manifest).blueprint
        except BlueprintError as error:
            fields.fault("manifest", error.message)
        return _plain(name, (("none", "none"),), (), (), 1)
    if not models:
        fields.fault("models", 'is missing; give a list such as ["acme/large"], or a manifest')
    for tool in asks:
        if tool not in tools:
            fields.fault("asks", f"{shown(tool)} is none of the agent's tools")
    sound = tuple(tool for tool in tools if Fields.is_name(tool))
    for tool in tools:
        if tool not in sound:
            fields.fault("tools", f"{shown(tool)} is no name of a tool")
    return _plain(name, models or (("none", "none"),), sound, asks, turns.most)


def _plain(
    name: str,
    models: tuple[tuple[str, str], ...],
    tools: tuple[str, ...],
    asks: tuple[str, ...],
    turns: int,
) -> Blueprint:
    """An agent of one stage that goes on until a reply has no tool call."""
    rows = ", ".join(
        f"{{ provider = {json.dumps(provider)}, model = {json.dumps(model)} }}"
        for provider, model in models
    )
    lines = [
        f"[agent]\nname = {json.dumps(name)}",
        f"[stages.work]\navailable_tools = {json.dumps(tools)}",
        f"max_iterations = {min(turns + 1, 1_000_000)}",
        f"[stages.work.model]\nmodels = [{rows}]",
        "[tool_permissions]",
        *(f'{tool} = "ask"' for tool in asks if tool in tools),
    ]
    return parse_blueprint("\n".join(lines), where=f"agents.{name}")


def _arrival(fields: Fields) -> Arrival:
    arrival = Arrival(
        agent=fields.text("agent"),
        count=fields.count("count", None, 1, RUNS_MAX),
        at_ms=fields.span_ms("at", 0),
        over_ms=fields.span_ms("over", 0),
        at_random=fields.flag("at_random"),
        every_ms=fields.span_ms("every", 0, 1) if fields.has("every") else 0,
    )
    if arrival.at_random and not arrival.over_ms:
        fields.fault("over", 'is missing; random times need a span, such as "1h"')
    fields.done()
    return arrival


def _people(fields: Fields | None) -> People:
    if fields is None:
        return People()
    people = People(
        answer_ms=fields.spread("answer", None, spans=True) if fields.has("answer") else None,
        deny_permille=fields.count("deny_permille", 0, 0, PERMILLE),
        again_permille=fields.count("again_permille", 0, 0, PERMILLE),
        fix_ms=fields.spread("fix", None, spans=True) if fields.has("fix") else None,
        hours=(fields.count("from_hour", 0, 0, 23), fields.count("to_hour", 24, 1, 24)),
    )
    if people.hours[0] >= people.hours[1]:
        fields.fault("to_hour", "is not after from_hour; people work within one day")
    fields.done()
    return people


def _crash(fields: Fields) -> Crash:
    crash = Crash(at_ms=fields.span_ms("at", None, 1), down_ms=fields.span_ms("down", 0))
    fields.done()
    return crash


def _unpriced(scenario: Scenario) -> list[str]:
    """A budget in dollars covers no call whose price is not known."""
    priced = {(row.provider, row.model) for row in scenario.prices.rows}
    stages = [stage for agent in scenario.agents for stage in agent.blueprint.stages]
    wanted = {(ref.provider, ref.model) for stage in stages for ref in stage.model.models}
    faults = [
        f'budget_usd: the price of {provider}/{model} is not known; add prices."{provider}/{model}"'
        for provider, model in sorted(wanted - priced)
    ]
    if not scenario.budget_nano_usd:
        faults.append("budget_usd: nothing covers no call; give more, or leave it out")
    return faults


def _contradictions(scenario: Scenario) -> list[str]:
    """Parts that do not fit each other: every one is sound by itself."""
    faults: list[str] = []
    if not scenario.agents:
        faults.append("agents: there is none; give at least one table [agents.NAME]")
    if not scenario.arrivals:
        faults.append("arrivals: there is none; give at least one table [[arrivals]]")
    providers = {provider.name for provider in scenario.providers}
    tools = {tool.name for tool in scenario.tools}
    agents = {agent.name for agent in scenario.agents}
    for agent in scenario.agents:
        faults.extend(
            f"agents.{agent.name}.tools: no table [tools.{name}] says how {name} behaves; add one"
            for name, _ in agent.tools
            if name not in tools
        )
        wanted = {ref.provider for stage in agent.blueprint.stages for ref in stage.model.models}
        faults.extend(
            f"agents.{agent.name}: no table [providers.{name}] says how {name} answers; add one"
            for name in sorted(wanted - providers)
        )
    if scenario.budget_nano_usd is not None:
        faults += _unpriced(scenario)
    runs = 0
    for at, arrival in enumerate(scenario.arrivals):
        if arrival.agent not in agents:
            known = ", ".join(sorted(agents))
            faults.append(f"arrivals[{at}].agent: no agent {arrival.agent!r}; there are {known}")
        times = 1
        if arrival.every_ms:
            times = max(0, scenario.duration_ms - arrival.at_ms) // arrival.every_ms + 1
        runs += arrival.count * times
    if runs > RUNS_MAX:
        faults.append(f"arrivals: {runs:,} runs are too many; {RUNS_MAX:,} are the most")
    if scenario.sample_ms and scenario.duration_ms // scenario.sample_ms > SAMPLES_MAX:
        faults.append(f"sample: gives more than {SAMPLES_MAX:,} rows; make it longer")
    ends = 0
    for at, crash in enumerate(scenario.crashes):
        if crash.at_ms <= ends:
            faults.append(f"crashes[{at}].at: the host is not up again then; give a later time")
        ends = crash.at_ms + crash.down_ms
    return faults
