"""Budgets and prices on the command line, and what a run spent of its budgets."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any, Final, cast

from leviath.components.errors import ConfigError
from leviath.components.money import NANO_PER_USD, usd_text
from leviath.components.progress import Stage
from leviath.components.run_status import RunStatus
from leviath.engine.budget_reading import run_spendings
from leviath.engine.budgets import Budget
from leviath.engine.limits import BLUEPRINT_BYTES_MAX
from leviath.engine.pricing import PriceTable
from leviath.lev.text import span
from leviath.systems.reserves import Sums

if TYPE_CHECKING:
    import argparse

    from leviath.engine.budget_reading import Spending
    from leviath.lev.run_parts import RunParts


def budget_of(arguments: argparse.Namespace) -> Budget | None:
    """The run's own budget; None when no option names one. Raises ConfigError."""
    return _budget(
        usd=arguments.budget_usd,
        tokens=arguments.budget_tokens,
        turns=arguments.budget_turns,
        wall_ms=_ms(arguments.budget_time),
    )


def tree_budget_of(arguments: argparse.Namespace) -> Budget | None:
    """The budget of the run and all runs below it. Raises ConfigError."""
    return _budget(
        usd=arguments.tree_budget_usd,
        tokens=arguments.tree_budget_tokens,
        turns=arguments.tree_budget_turns,
        wall_ms=_ms(arguments.tree_budget_time),
    )


def _ms(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * 1_000


def _budget(**given: Any) -> Budget | None:
    return None if all(value is None for value in given.values()) else Budget(**given)


def fleet_budget_of(arguments: argparse.Namespace) -> Budget | None:
    """The budget of all runs of the home. Raises ConfigError."""
    return _budget(usd=arguments.fleet_budget_usd, tokens=arguments.fleet_budget_tokens)


def prices_of(arguments: argparse.Namespace) -> PriceTable | None:
    """The prices of ``--prices``. Raises ConfigError."""
    path: str | None = arguments.prices
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            data = file.read(BLUEPRINT_BYTES_MAX + 1)
        if len(data) > BLUEPRINT_BYTES_MAX:
            raise ConfigError(f"the prices {path} have over {BLUEPRINT_BYTES_MAX:,} bytes")
        document: dict[str, Any] = tomllib.loads(data.decode())
    except OSError as error:
        raise ConfigError(f"the prices {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the prices {path} are no TOML: {error}") from None
    tables = document.pop("prices", None)
    if document or not isinstance(tables, dict):
        odd = ", ".join(sorted(document)) or "no prices"
        raise ConfigError(f"the prices {path} have {odd}; write a table [prices], and no other")
    return PriceTable.parse(cast("dict[str, object]", tables))


# --- what was spent -----------------------------------------------------------------------------

_LABELS: Final = {"budget": "budget", "tree_budget": "of tree"}
_OPTIONS: Final = {"budget": "--budget-", "tree_budget": "--tree-budget-"}


def spendings(parts: RunParts) -> dict[str, Spending]:
    """The budgets of a run, and what became of them."""
    return run_spendings(parts.find, parts.world_ms, parts.tree_held)


def budget_pairs(parts: RunParts) -> list[tuple[str, str]]:
    """Lines of ``lev show``: each budget of the run, and what was spent of it."""
    return [(_LABELS[name], _text(one)) for name, one in spendings(parts).items()]


def _text(one: Spending) -> str:
    limits, spent, held = one.limits, one.spent, one.held
    words: list[str] = []
    aside: list[str] = []
    if limits.nano_usd is not None:
        words.append(f"${usd_text(spent.nano_usd)} of ${usd_text(limits.nano_usd)}")
        aside.append(f"${usd_text(held.nano_usd)}")
    for limit, used, more, name in (
        (limits.tokens, spent.tokens, held.tokens, "tokens"),
        (limits.turns, spent.turns, held.turns, "turns"),
    ):
        if limit is not None:
            words.append(f"{used:,} of {limit:,} {name}")
            aside.append(f"{more:,} {name}")
    if limits.wall_ms is not None:
        passed = "" if one.passed_ms is None else f"{span(one.passed_ms // 1_000)} of "
        words.append(f"{passed or 'less than '}{span(limits.wall_ms // 1_000)}")
    under_way = f", and {', '.join(aside)} set aside for calls under way" if held != Sums() else ""
    return f"spent {', '.join(words)}{under_way if aside else ''}"


def budget_document(parts: RunParts) -> dict[str, object]:
    """The same as JSON values; a run without such a budget has null there."""
    found = spendings(parts)
    return {name: None if name not in found else _document(found[name]) for name in sorted(_LABELS)}


def _document(one: Spending) -> dict[str, object]:
    limits, spent, held = one.limits, one.spent, one.held
    kinds: dict[str, object] = {}
    if limits.nano_usd is not None:
        nano = (limits.nano_usd, spent.nano_usd, held.nano_usd)
        kinds["usd"] = _amounts(*(value / NANO_PER_USD for value in nano))
    if limits.tokens is not None:
        kinds["tokens"] = _amounts(limits.tokens, spent.tokens, held.tokens)
    if limits.turns is not None:
        kinds["turns"] = _amounts(limits.turns, spent.turns, held.turns)
    if limits.wall_ms is not None:
        kinds["wall_ms"] = _amounts(limits.wall_ms, one.passed_ms, 0)
    return kinds


def _amounts(limit: float, spent: float | None, set_aside: float) -> dict[str, float | None]:
    return {"limit": limit, "spent": spent, "set_aside": set_aside}


def budget_option(parts: RunParts) -> str:
    """What a resume of the run needs beside its id, when a budget ended it: a larger one."""
    found = spendings(parts)
    if not found or parts.row.status != RunStatus.ERROR.wire():
        return ""
    stage = parts.find(Stage)
    cause = "" if stage is None or stage.outcome is None else stage.outcome.cause
    if cause not in _SPENT:
        return ""
    name, one = next(iter(found.items()))
    if cause == "shared_budget" and "tree_budget" in found:
        name, one = "tree_budget", found["tree_budget"]
    elif cause == "shared_budget":
        return ", once the budget that it shares is larger"
    limits, option = one.limits, _OPTIONS[name]
    if cause == "time_budget":
        return f" {option}time SPAN, longer than before"
    for word, value in (("usd USD", limits.nano_usd), ("tokens N", limits.tokens)):
        if value is not None and cause != "step_cap":
            return f" {option}{word}, larger than before"
    return f" {option}turns N, larger than before"


_SPENT: Final = frozenset({"own_budget", "shared_budget", "time_budget", "step_cap"})
"""Causes of an ending that a larger budget lets a run get over."""
