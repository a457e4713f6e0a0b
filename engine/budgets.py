"""Budgets as a caller writes them, held to their ranges before anything is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from leviath.components.budget import Limits
from leviath.components.errors import ConfigError, LevError, SpawnError
from leviath.components.money import parse_usd
from leviath.engine import arguments
from leviath.systems.stages import models_of

if TYPE_CHECKING:
    from leviath.components.blueprint import Blueprint
    from leviath.components.inputs import Configured
    from leviath.engine.spawn_request import SpawnRequest


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What may be spent: dollars, tokens, model turns, time; at least one of them. Frozen.

    ``usd`` is text such as ``"0.50"``, because a binary float cannot hold 0.1, or whole dollars.
    ``tokens`` are those of prompts and replies together, cached ones too. ``wall_ms`` counts from
    the start, in milliseconds that a host had the home. Raises ConfigError for what is no budget.
    """

    usd: str | int | None = None
    tokens: int | None = None
    turns: int | None = None
    wall_ms: int | None = None

    def __post_init__(self) -> None:
        """Refuse what limits nothing, or what no record could hold."""
        _nano(self.usd)
        most = {"tokens": arguments.NUMBER_MAX, "turns": arguments.NUMBER_MAX}
        most["wall_ms"] = arguments.SPAN_MS_MAX
        given = {"tokens": self.tokens, "turns": self.turns, "wall_ms": self.wall_ms}
        for name, value in given.items():
            if value is not None:
                arguments.number(f"budget: {name}", value, 1, most[name])
        if self.usd is None and not any(value is not None for value in given.values()):
            raise ConfigError(
                "a budget without a limit limits nothing; give usd, tokens, turns or wall_ms, or "
                "leave the budget out"
            )

    @property
    def nano_usd(self) -> int | None:
        """``usd`` in whole nano-dollars; None without a limit."""
        return _nano(self.usd)

    def limits(self) -> Limits:
        """The budget as a world records it."""
        return Limits(self.nano_usd, self.tokens, self.turns, self.wall_ms)


def _nano(usd: object) -> int | None:
    if usd is None:
        return None
    if isinstance(usd, int) and not isinstance(usd, bool):
        usd = str(usd)
    if not isinstance(usd, str):
        raise ConfigError(
            f'budget: usd must be text such as "0.50", not {arguments.shown(usd)}; a float is not '
            "exact"
        )
    try:
        nano = parse_usd(usd)
    except ValueError as problem:
        raise ConfigError(f"budget: usd {problem}") from None
    if not nano:
        raise ConfigError(
            f"budget: usd {usd!r} allows no call; give more than nothing, or leave usd out"
        )
    return nano


def limits_of(
    name: str, value: object, *, error: type[LevError] = ConfigError, has_time: bool = True
) -> Limits | None:
    """The limits of a Budget, or None for None. Raises ``error`` naming the argument."""
    if value is None:
        return None
    if not isinstance(value, Budget):
        raise error(
            f"{name} must be a Budget, not {arguments.shown(value)}; "
            'pass leviath.Budget(usd="0.50")'
        )
    if value.wall_ms is not None and not has_time:
        raise error(
            f"{name} has wall_ms {value.wall_ms:,}, and a fleet neither starts nor ends; give the "
            "time to runs or trees"
        )
    return value.limits()


def check_prices(request: SpawnRequest, blueprint: Blueprint, told: Configured) -> None:
    """Raises SpawnError for a run under a budget in dollars with a model whose price is unknown.

    Nothing could be set aside for its calls. ``told`` is what the driving host was opened with.
    """
    fleet = None if told.policy is None else told.policy.fleet_budget
    budgets = {"budget": request.budget, "tree_budget": request.tree_budget, "fleet_budget": fleet}
    in_usd = [name for name, one in budgets.items() if one is not None and one.nano_usd is not None]
    if not in_usd:
        return
    known = {(row.provider, row.model) for row in (told.prices.rows if told.prices else ())}
    offered = None if told.offer is None else told.offer.providers
    for stage in blueprint.stages:
        for provider, model in models_of(request.model, stage, offered):
            if (provider, model) not in known:
                raise SpawnError(
                    f"{in_usd[0]} is in dollars, and the price of {provider}/{model} is not known, "
                    f"which stage {stage.name} may call; give it where the world is opened "
                    "(prices=, lev: --prices), or limit tokens"
                )
