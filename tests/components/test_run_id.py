from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leviath.components.errors import ConfigError
from leviath.components.run_id import RUN_ID_BYTES_MAX, check_run_id, mint_run_id, run_name_stem
from leviath.engine import limits

ANY_TEXT = st.text(st.characters(codec=None, categories=None))
SECONDS = st.integers(min_value=-10, max_value=2**63 - 1)
BITS = st.integers(min_value=0, max_value=2**48 - 1)


@pytest.mark.parametrize(
    "run_id", ["a", "scout-1790000000-0a1b2c3d4e5f", "A_b.c-9", "-", "console", "com", "x" * 128]
)
def test_good_ids_pass_unchanged(run_id: str) -> None:
    assert check_run_id(run_id) is run_id


@pytest.mark.parametrize(
    ("run_id", "fault"),
    [
        ("", "is empty"),
        (".", "starts with a dot"),
        ("..", "starts with a dot"),
        (".hidden", "starts with a dot"),
        ("a.", "ends with a dot"),
        ("/x", "contains '/'"),
        ("a/b", "contains '/'"),
        ("a\\b", "contains '\\\\'"),
        ("a\0", "contains '\\x00'"),
        ("a b", "contains ' '"),
        ("a\n", "contains '\\n'"),
        ("C:x", "contains ':'"),
        ("caf\u00e9", "contains '\u00e9'"),
        ("\u0661", "contains '\u0661'"),
        ("\ud83d", "contains '\\ud83d'"),
        ("x" * 129, "129 characters"),
        ("x" * 2_000_000, "2000000 characters"),
        ("CON", "device name"),
        ("nul", "device name"),
        ("com1", "device name"),
        ("LPT9.txt", "device name"),
        ("aux.tar.gz", "device name"),
    ],
)
def test_bad_ids_are_refused_by_name_fault_and_remedy(run_id: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_run_id(run_id)
    message = str(caught.value)
    assert fault in message
    assert "use ASCII letters" in message
    assert len(message) < 400
    assert repr(run_id)[1:33] in message


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("scout", "scout"),
        ("R\u00e9sum\u00e9 writer", "R-sum--writer"),
        ("a.b_c", "a-b-c"),
        ("\u8abf\u67fb", "--"),
        ("..", "--"),
        ("", "agent"),
    ],
)
def test_a_stem_is_readable_ascii(name: str, stem: str) -> None:
    assert run_name_stem(name) == stem


def test_a_minted_id_is_stem_seconds_and_twelve_hex_digits() -> None:
    assert mint_run_id("scout", 1_790_000_000, 0x0A1B2C3D4E5F) == "scout-1790000000-0a1b2c3d4e5f"
    assert mint_run_id("scout", -5, 0) == "scout-0-000000000000"


@given(ANY_TEXT, SECONDS, BITS)
def test_whatever_the_agent_is_called_the_minted_id_is_valid(
    name: str, wall_s: int, bits48: int
) -> None:
    assert check_run_id(mint_run_id(name, wall_s, bits48))


def test_the_longest_name_still_fits() -> None:
    run_id = mint_run_id("n" * 10_000, 2**63 - 1, 2**48 - 1)
    assert len(check_run_id(run_id)) == RUN_ID_BYTES_MAX


@given(BITS, BITS)
def test_other_bits_in_the_same_second_are_another_id(one: int, other: int) -> None:
    assert (mint_run_id("n", 1, one) == mint_run_id("n", 1, other)) == (one == other)


def test_the_limit_is_the_one_of_the_engine() -> None:
    assert RUN_ID_BYTES_MAX == limits.RUN_ID_BYTES_MAX
