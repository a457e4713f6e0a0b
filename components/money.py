"""Money, in whole nano-dollars (one thousand-millionth of a US dollar).

There is no float and one rounding: an amount is rounded half up, once a ledger row. Sums of
amounts are exact, so that a total is the same in whatever order its rows are added.
"""

from __future__ import annotations

import re
from typing import Final

from leviath.components.base import Part

NANO_PER_USD: Final = 1_000_000_000
TOKENS_PER_PRICE: Final = 1_000_000
"""Prices are for a million tokens, as providers print them."""
_DECIMALS: Final = 9
_USD: Final = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,9}))?", re.ASCII)


class Rates(Part, frozen=True):
    """Prices of one model in nano-dollars per million tokens, none negative.

    All four zero means known to be free. A model whose price is unknown has no Rates at all.
    """

    prompt: int
    """Prompt tokens that no cache was involved in."""
    completion: int
    cached: int
    """Prompt tokens read from a cache."""
    cache_write: int
    """Prompt tokens written to a cache."""


FREE: Final = Rates(0, 0, 0, 0)


def amount(
    rates: Rates, prompt: int, completion: int, cached: int = 0, cache_write: int = 0
) -> int:
    """Return what those disjoint counts of tokens cost, in nano-dollars, rounded half up."""
    assert min(prompt, completion, cached, cache_write) >= 0, "token counts are not negative"
    exact = (
        prompt * rates.prompt
        + completion * rates.completion
        + cached * rates.cached
        + cache_write * rates.cache_write
    )
    return (exact + TOKENS_PER_PRICE // 2) // TOKENS_PER_PRICE


def amount_at_most(rates: Rates, prompt: int, completion: int) -> int:
    """Return an upper bound for a call with so many prompt tokens, cached in whatever way.

    For reserving before a call and beside a call whose outcome was lost.
    """
    dearest = max(rates.prompt, rates.cached, rates.cache_write)
    return amount(Rates(dearest, rates.completion, 0, 0), prompt, completion)


def parse_usd(text: str) -> int:
    """Return the nano-dollars of a decimal number of dollars, exactly.

    Takes digits with at most nine decimals, such as ``3.00``. Raises ValueError for all else: a
    sign, an exponent, a comma or a tenth decimal is a slip, not a price.
    """
    match = _USD.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text[:40]!r} is not an amount of dollars: write digits with at most nine decimals, "
            'such as "3.00"'
        )
    dollars, decimals = match.groups(default="")
    return int(dollars) * NANO_PER_USD + int(decimals.ljust(_DECIMALS, "0"))


def usd_text(nano_usd: int) -> str:
    """Return nano-dollars as dollars, exactly, without trailing zeros: what parse_usd takes."""
    sign = "-" if nano_usd < 0 else ""
    dollars, nano = divmod(abs(nano_usd), NANO_PER_USD)
    decimals = f"{nano:0{_DECIMALS}d}".rstrip("0")
    return f"{sign}{dollars}.{decimals}" if decimals else f"{sign}{dollars}"
