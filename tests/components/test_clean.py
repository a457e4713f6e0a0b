from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leviath.components.clean import clean_text, cut_utf8

ANY_TEXT = st.text(st.characters(codec=None, categories=None))
"""Every code point, lone surrogates and NUL included."""


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        ("", ""),
        ("plain\n\ttext", "plain\n\ttext"),
        ("a\0b", "a\ufffdb"),
        ("caf\u00e9 \U0001f600", "caf\u00e9 \U0001f600"),
        ("half \ud83d", "half \ufffd"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\u00e9\0", "\u00e9\ufffd"),
    ],
)
def test_each_unfit_character_becomes_one_replacement(raw: str, kept: str) -> None:
    assert clean_text(raw) == kept


@given(ANY_TEXT)
def test_clean_text_can_be_encoded_and_is_stable(text: str) -> None:
    cleaned = clean_text(text)
    assert cleaned.encode().decode() == cleaned
    assert "\0" not in cleaned
    assert len(cleaned) == len(text)
    assert clean_text(cleaned) is cleaned
    assert all(new in (old, "\ufffd") for old, new in zip(text, cleaned, strict=True))


@given(ANY_TEXT, st.integers(min_value=0, max_value=40))
def test_a_cut_is_the_longest_head_that_fits(text: str, bytes_max: int) -> None:
    whole = clean_text(text)
    head = cut_utf8(whole, bytes_max)
    assert whole.startswith(head)
    assert len(head.encode()) <= bytes_max
    if head != whole:
        assert len(whole[: len(head) + 1].encode()) > bytes_max


@pytest.mark.parametrize(
    ("bytes_max", "head"), [(0, ""), (1, ""), (2, "\u00e9"), (5, "\u00e9"), (6, "\u00e9\U0001f600")]
)
def test_a_character_is_kept_whole_or_not_at_all(bytes_max: int, head: str) -> None:
    assert cut_utf8("\u00e9\U0001f600", bytes_max) == head
