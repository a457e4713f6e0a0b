"""Money is exact: one rounding a row, and no way from text to a wrong price."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leviath.components.errors import ConfigError
from leviath.engine.pricing import (
    FREE,
    PriceTable,
    Rates,
    amount,
    amount_at_most,
    parse_usd,
    usd_text,
)

TOKENS = st.integers(0, 10**9)
PRICES = st.integers(0, 10**15)
RATES = st.builds(Rates, PRICES, PRICES, PRICES, PRICES)


@given(RATES, TOKENS, TOKENS, TOKENS, TOKENS)
def test_an_amount_is_the_exact_sum_rounded_half_up_once(
    rates: Rates, prompt: int, completion: int, cached: int, cache_write: int
) -> None:
    exact = Fraction(
        prompt * rates.prompt
        + completion * rates.completion
        + cached * rates.cached
        + cache_write * rates.cache_write,
        1_000_000,
    )
    rounded = amount(rates, prompt, completion, cached, cache_write)
    assert Fraction(-1, 2) < rounded - exact <= Fraction(1, 2)


@given(RATES, TOKENS, TOKENS, st.data())
def test_the_upper_bound_holds_however_the_prompt_was_cached(
    rates: Rates, prompt: int, completion: int, data: st.DataObject
) -> None:
    cached = data.draw(st.integers(0, prompt))
    written = data.draw(st.integers(0, prompt - cached))
    least = amount(rates, prompt - cached - written, completion, cached, written)
    assert least <= amount_at_most(rates, prompt, completion)


@given(st.integers(0, 10**18 - 1))
def test_dollars_as_text_come_back(nano: int) -> None:
    assert parse_usd(usd_text(nano)) == nano
    assert Decimal(usd_text(-nano)) == -Decimal(nano) / 10**9


@given(st.decimals(0, 10**6, allow_nan=False, places=9))
def test_a_decimal_is_read_exactly(value: Decimal) -> None:
    nano = (value * 10**9).quantize(Decimal(1), ROUND_HALF_UP)
    assert parse_usd(f"{value:f}") == int(nano)


def test_a_known_row() -> None:
    rates = Rates(parse_usd("3.00"), parse_usd("15.00"), parse_usd("0.30"), parse_usd("3.75"))
    # 1,000 x 3.00 + 200 x 15.00 + 10,000 x 0.30 + 0, for a million each: 0.009 dollars
    assert usd_text(amount(rates, 1_000, 200, 10_000, 0)) == "0.009"
    assert amount(Rates(1, 0, 0, 0), 499_999, 0) == 0
    assert amount(Rates(1, 0, 0, 0), 500_000, 0) == 1
    assert amount(FREE, 10, 10, 10, 10) == 0


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "1e3", "1,5", "NaN", ".5", "1.", "0.0000000001", " 1", "1\n", "٣"]
)
def test_what_is_no_price_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(ValueError, match="digits with at most nine decimals"):
        parse_usd(text)


def test_a_table_is_read_and_becomes_what_the_world_records() -> None:
    table = PriceTable.parse(
        {
            "b/model/with/slashes": {"prompt": "3.00", "completion": 15, "cached": "0.3"},
            "a/local": "free",
        }
    )
    dollar = 10**9
    assert table.rates("b", "model/with/slashes") == Rates(
        3 * dollar, 15 * dollar, 3 * dollar // 10, 3 * dollar
    )
    assert table.rates("a", "local") == FREE
    assert table.rates("a", "other") is None
    assert [row.provider for row in table.component().rows] == ["a", "b"]
    assert PriceTable.of_component(table.component()) == table


def test_a_newer_table_replaces_rows() -> None:
    old = PriceTable({("a", "m"): FREE, ("a", "n"): FREE})
    new = PriceTable({("a", "m"): Rates(1, 2, 3, 4)})
    merged = old.merged(new)
    assert merged.rates("a", "m") == Rates(1, 2, 3, 4)
    assert merged.rates("a", "n") == FREE
    assert len(merged) == 2
    assert repr(merged) == "PriceTable(a/m, a/n)"


def test_a_bad_table_lists_all_its_faults() -> None:
    with pytest.raises(ConfigError) as caught:
        PriceTable.parse(
            {
                "nameless": "free",
                "a/m": {"prompt": 0.1, "completion": "dear", "cashed": "1"},
                "a/n": {"completion": True},
                "a/o": 3,
            }
        )
    assert caught.value.fields["faults"] == [
        'prices."nameless": name it "provider/model"',
        'prices."a/m".cashed: no such price; there are prompt, completion, cached, cache_write',
        'prices."a/m".prompt: write the price as text, such as "3.00" (a float is not exact)',
        (
            "prices.\"a/m\".completion: 'dear' is not an amount of dollars: "
            'write digits with at most nine decimals, such as "3.00"'
        ),
        'prices."a/n".prompt: is missing; a price of nothing is written "0"',
        'prices."a/n".completion: write the price as text, such as "3.00" (a float is not exact)',
        'prices."a/o": give a table of prices, or "free"',
    ]
