"""What a model call costs: the table of prices that a host is configured with.

Prices are written as people and providers write them, dollars for a million tokens, and as text,
because a binary float cannot hold 0.1. The table enters the world as a recorded input; the
arithmetic is in ``leviath.components.money``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from leviath.components.errors import ConfigError
from leviath.components.money import FREE, Rates, amount, amount_at_most, parse_usd, usd_text
from leviath.components.world_facts import Priced, Prices

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "FREE",
    "PriceTable",
    "Rates",
    "amount",
    "amount_at_most",
    "parse_usd",
    "usd_text",
]

_KEYS = ("prompt", "completion", "cached", "cache_write")


class PriceTable:
    """The prices that are known, by provider and model. Immutable.

    A model that is not in the table has no price, which is not a price of zero: its calls count as
    unpriced. One that costs nothing is in the table with zero rates.
    """

    __slots__ = ("_rates",)

    def __init__(self, rates: Mapping[tuple[str, str], Rates] | None = None) -> None:
        self._rates = dict(sorted((rates or {}).items()))

    @classmethod
    def parse(cls, table: Mapping[str, object], *, place: str = "prices") -> PriceTable:
        """Return the table of a configuration section.

        Keys are ``provider/model``. A value is the word ``free``, or a table of dollars per million
        tokens: ``prompt`` and ``completion``, and ``cached`` and ``cache_write`` where they differ
        from ``prompt``. Raises ConfigError listing every fault with its place.
        """
        rates: dict[tuple[str, str], Rates] = {}
        faults: list[str] = []
        for key, value in table.items():
            where = f'{place}."{key}"'
            provider, slash, model = key.partition("/")
            if not (provider and slash and model):
                faults.append(f'{where}: name it "provider/model"')
            elif value == "free":
                rates[provider, model] = FREE
            elif isinstance(value, dict):
                row = cast("dict[object, object]", value)
                rates[provider, model] = _rates(row, where, faults)
            else:
                faults.append(f'{where}: give a table of prices, or "free"')
        if faults:
            raise ConfigError("prices cannot be read:\n  " + "\n  ".join(faults), faults=faults)
        return cls(rates)

    @classmethod
    def of_component(cls, prices: Prices) -> PriceTable:
        """Return the table that a world has recorded."""
        return cls({(row.provider, row.model): row.rates for row in prices.rows})

    def component(self) -> Prices:
        """Return the table as the world records it, in the order of names."""
        return Prices(
            rows=tuple(
                Priced(provider=provider, model=model, rates=rates)
                for (provider, model), rates in self._rates.items()
            )
        )

    def rates(self, provider: str, model: str) -> Rates | None:
        """Return the rates of that model; None when its price is unknown."""
        return self._rates.get((provider, model))

    def merged(self, newer: PriceTable) -> PriceTable:
        """Return this table with the rows of another in place of its own."""
        return PriceTable(self._rates | newer._rates)

    def __len__(self) -> int:
        return len(self._rates)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PriceTable) and self._rates == other._rates

    __hash__ = None  # type: ignore[assignment]  # compared by value in tests; never a key

    def __repr__(self) -> str:
        names = ", ".join("/".join(key) for key in self._rates)
        return f"PriceTable({names})"


def _rates(value: dict[object, object], where: str, faults: list[str]) -> Rates:
    """Return the rates of one row; with an entry added to faults they mean nothing."""
    unknown = sorted(str(key) for key in value if key not in _KEYS)
    faults += [f"{where}.{key}: no such price; there are {', '.join(_KEYS)}" for key in unknown]
    found: dict[str, int] = {}
    for key in _KEYS:
        if key in value:
            found[key] = _price(value[key], f"{where}.{key}", faults)
        elif key in ("prompt", "completion"):
            faults.append(f'{where}.{key}: is missing; a price of nothing is written "0"')
    prompt = found.get("prompt", 0)
    return Rates(
        prompt,
        found.get("completion", 0),
        found.get("cached", prompt),
        found.get("cache_write", prompt),
    )


def _price(value: object, where: str, faults: list[str]) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        faults.append(f'{where}: write the price as text, such as "3.00" (a float is not exact)')
        return 0
    try:
        return parse_usd(value)
    except ValueError as problem:
        faults.append(f"{where}: {problem}")
        return 0
