"""A scenario: what a simulated fleet is made of, and what the world does to it.

Built from TOML by ``fleet_reader`` (keys: docs/reference/scenarios.md) or in Python. Times are
milliseconds of the simulation, which begins at 0, a Monday's midnight (UTC).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from leviath.components.blueprint import Blueprint
from leviath.components.budget import Limits
from leviath.components.world_facts import Policy, Prices
from leviath.simulation.chances import Spread

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

START_MS: Final = 1_789_948_800_000
"""Unix milliseconds at the begin: Monday 2026-09-21, 00:00 UTC."""
BUNDLED: Final = Path(__file__).parent / "scenarios"
NOBODY: Final = Spread.always(0)


class Limit(Struct, frozen=True, kw_only=True):
    """What a provider takes within each window of time; it refuses the rest as rate limited."""

    window_ms: int
    calls: int | None = None
    tokens: int | None = None
    """Prompt and completion tokens together, counted when a call begins."""


class Outage(Struct, frozen=True, kw_only=True):
    """A span in which calls that begin fail."""

    at_ms: int
    for_ms: int
    kind: str = "transport"
    """ErrorKind."""
    permille: int = 1_000
    """How many of a thousand calls fail."""


class ProviderModel(Struct, frozen=True, kw_only=True):
    """How one provider answers."""

    name: str
    latency_ms: Spread
    """From the request to the first token."""
    token_us: int = 0
    """Microseconds for each completion token, on top."""
    cached_permille: int = 0
    """How much of a prompt is read from the provider's cache."""
    errors_permille: tuple[tuple[str, int], ...] = ()
    """(ErrorKind, how many of a thousand calls)."""
    error_latency_ms: Spread = Spread.always(300)
    retry_after_ms: Spread | None = None
    """Sent with rate_limited and overloaded errors; a limit sends the rest of its window."""
    limit: Limit | None = None
    outages: tuple[Outage, ...] = ()


class ToolModel(Struct, frozen=True, kw_only=True):
    """How one tool behaves."""

    name: str
    effect: str = "pure"
    """pure, idempotent or once."""
    latency_ms: Spread = Spread.always(0)
    failures_permille: int = 0
    unknown_permille: int = 0
    """How many of a thousand calls leave open whether they happened."""
    result_bytes: Spread = Spread.always(200)
    deadline_ms: int = 600_000


class AgentModel(Struct, frozen=True, kw_only=True):
    """What a kind of run does."""

    name: str
    blueprint: Blueprint
    turns: Spread
    """Turns with tool calls and the last one, which is plain text, together."""
    calls: Spread = Spread.always(1)
    """Tool calls of each turn but the last."""
    tools: tuple[tuple[str, int], ...] = ()
    """(tool, weight)."""
    prompt_tokens: Spread = Spread.always(2_000)
    """Of the first turn."""
    growth_tokens: Spread = Spread.always(500)
    """What each further turn adds to the prompt."""
    completion_tokens: Spread = Spread.always(300)

    @property
    def longest_prompt(self) -> int:
        """Tokens of the last prompt of the longest run."""
        return self.prompt_tokens.most + self.growth_tokens.most * max(0, self.turns.most - 1)


class Arrival(Struct, frozen=True, kw_only=True):
    """Runs of one agent that are started."""

    agent: str
    count: int
    at_ms: int = 0
    over_ms: int = 0
    """Over how long they spread; 0 for all at once."""
    at_random: bool = False
    """At random times within that span instead of evenly."""
    every_ms: int = 0
    """The whole comes again after so long; 0 for once."""


class People(Struct, frozen=True, kw_only=True):
    """Who decides about calls that ask, and sets things up again."""

    answer_ms: Spread | None = None
    """Until a call that waits for a decision has it; None for never."""
    deny_permille: int = 0
    again_permille: int = 0
    """Of calls that may have happened, how many are made again; the others are taken as done."""
    fix_ms: Spread | None = None
    """Until somebody resumes a run that waits for set-up; None for never."""
    hours: tuple[int, int] = (0, 24)
    """They work from hour to hour (UTC), every day; what comes due else waits for the morning."""


class Crash(Struct, frozen=True, kw_only=True):
    """The host is killed and comes back with what was durable."""

    at_ms: int
    down_ms: int = 0


class Scenario(Struct, frozen=True, kw_only=True):
    """Everything about a simulation but its seed."""

    title: str
    duration_ms: int
    """The simulation ends then, or when nothing is left to happen."""
    agents: tuple[AgentModel, ...]
    providers: tuple[ProviderModel, ...]
    arrivals: tuple[Arrival, ...]
    tools: tuple[ToolModel, ...] = ()
    people: People = People()
    crashes: tuple[Crash, ...] = ()
    policy: Policy = Policy()
    prices: Prices = Prices()
    seed: int = 1
    sample_ms: int = 0
    """Between two rows of the history; 0 for a twenty-fourth of the duration."""
    commit_ms: int = 3
    """From a step until it is durable, when its commands leave."""
    budget_nano_usd: int | None = None
    """What the fleet may spend: calls that it does not cover are refused, and their runs end."""

    def decides(self) -> Policy:
        """The policy that the world records: with the budget, and room for the longest calls."""
        if self.budget_nano_usd is None:
            return self.policy
        usual, own = Policy(), self.policy
        prompt, output = own.budget_prompt_tokens, own.budget_output_tokens
        if prompt == usual.budget_prompt_tokens:
            prompt = max(agent.longest_prompt for agent in self.agents)
        if output == usual.budget_output_tokens:
            output = max(1, *(agent.completion_tokens.most for agent in self.agents))
        return replace(
            own,
            budget_prompt_tokens=prompt,
            budget_output_tokens=output,
            fleet_budget=Limits(nano_usd=self.budget_nano_usd),
        )

    @staticmethod
    def load(path: str | os.PathLike[str], changes: Mapping[str, object] | None = None) -> Scenario:
        """The scenario of a TOML file. ``changes`` replaces values by their dotted key.

        Raises ConfigError listing every fault with its place and remedy.
        """
        from leviath.simulation.fleet_reader import load_scenario

        return load_scenario(path, changes)

    @staticmethod
    def parse(table: Mapping[str, object], *, place: str = "the scenario") -> Scenario:
        """The scenario of a table as TOML gives it. Raises ConfigError as ``load`` does."""
        from leviath.simulation.fleet_reader import read_scenario

        return read_scenario(table, place=place, folder=Path())

    @staticmethod
    def bundled(name: str, changes: Mapping[str, object] | None = None) -> Scenario:
        """A scenario that comes with leviath: see ``bundled_names``. Raises ConfigError."""
        from leviath.simulation.fleet_reader import load_bundled

        return load_bundled(name, changes)


def bundled_names() -> tuple[str, ...]:
    """Names of the scenarios that come with leviath."""
    return tuple(sorted(file.stem for file in BUNDLED.glob("*.toml")))
