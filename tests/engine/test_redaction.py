"""What counts as a secret value, and that no way of cutting a text lets one through."""

from __future__ import annotations

import json
import os
import re
import tempfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leviath.components.secret import Secret
from leviath.engine.gathering import gather
from leviath.engine.limits import SECRETS_LEARNED_MAX, SEED_FILE_BYTES_MAX
from leviath.engine.redaction import HIDDEN, NOTHING_KNOWN, Redactor, credentials
from leviath.engine.toolbox.supervisor import HIDDEN as HIDDEN_BYTES
from leviath.engine.toolbox.supervisor import Order, Output, Veil

if TYPE_CHECKING:
    from pathlib import Path

VALUE = "sk-0123456789"


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("", ""),
        (VALUE, HIDDEN),
        (f"a{VALUE}b{VALUE}", f"a{HIDDEN}b{HIDDEN}"),
        (f"{VALUE}-longer", HIDDEN),
        (VALUE[:-1], VALUE[:-1]),
        (VALUE.upper(), VALUE.upper()),
        ("short", "short"),
    ],
)
def test_known_values_are_hidden_the_longest_first(text: str, hidden: str) -> None:
    redactor = Redactor([VALUE, Secret(f"{VALUE}-longer"), "short", "", "  \n"])
    assert redactor.redact(text) == hidden
    assert redactor.knows(text) == (text != hidden)


def test_a_text_without_a_value_is_the_same_object() -> None:
    text = "The quick brown fox"
    assert Redactor([VALUE]).redact(text) is text
    assert NOTHING_KNOWN.redact(text) is text


@pytest.mark.parametrize(
    "value", ['qu"ote\\back', "two\nlines\tof it", "grün-und-süß", "🔑 of gold"]
)
def test_the_json_forms_of_a_value_are_hidden(value: str) -> None:
    redactor = Redactor([f"{value}\n"])
    for ascii_only in (False, True):
        shown = redactor.redact(json.dumps({"a": f"x{value}y"}, ensure_ascii=ascii_only))
        assert json.loads(shown) == {"a": f"x{HIDDEN}y"}


def test_a_redactor_shows_nothing_of_what_it_knows() -> None:
    redactor = Redactor([VALUE])
    assert VALUE not in f"{redactor!r} {redactor}"
    try:
        raise ValueError(VALUE)
    except ValueError as error:
        trace = redactor.traceback(error)
    assert trace.endswith(f"ValueError: {HIDDEN}")


def test_the_mark_itself_is_no_secret() -> None:
    assert Redactor([HIDDEN]).forms == ()


def test_of_learned_values_the_newest_are_kept() -> None:
    redactor = Redactor([VALUE])
    values = [f"callback-{i:04}" for i in range(SECRETS_LEARNED_MAX + 1)]
    for value in (*values[:-1], values[0], VALUE, values[-1]):
        redactor.learn(value)
    assert redactor.knows(VALUE)
    assert [value for value in values if not redactor.knows(value)] == [values[1]]


def test_the_head_of_a_longer_text_ends_before_a_value_could() -> None:
    redactor = Redactor([VALUE])
    whole = f"abc {VALUE} {'x' * 50}"
    for cut in range(len(whole)):
        shown = redactor.head(whole[:cut])
        assert not any(VALUE[:n] in shown for n in range(2, len(VALUE)))
    assert NOTHING_KNOWN.head(whole) == whole


@pytest.mark.parametrize(
    ("name", "value", "is_secret"),
    [
        ("API_KEY", "0123456789ab", True),
        ("apiKey", "0123456789ab", True),
        ("GITHUB_TOKEN", "0123456789ab", True),
        ("Client_Secret", "0123456789ab", True),
        ("DB_PASSWORD", "0123456789ab", True),
        ("AWS_CREDENTIALS", "0123456789ab", True),
        ("CREDENTIAL", "0123456789ab", True),
        ("API_KEY", "/0123456789/ab", True),
        ("API_KEY", "0123456789a ", False),
        ("API_KEY", os.path.abspath(__file__), False),
        ("KEY_ID", "0123456789ab", False),
        ("PATH", "0123456789ab", False),
    ],
)
def test_the_name_of_a_variable_says_that_it_is_a_credential(
    name: str, value: str, is_secret: bool
) -> None:
    assert credentials({name: value}) == ([value] if is_secret else [])


# --- streams --------------------------------------------------------------------------------------

VALUES = st.lists(st.text("ab\N{GREEK SMALL LETTER BETA}", min_size=1, max_size=5), max_size=4)
PIECES = st.lists(st.text("abx\N{GREEK SMALL LETTER BETA}", max_size=6), max_size=6)


def hidden_whole(values: list[str], data: bytes) -> bytes:
    known = sorted({value.encode() for value in values}, key=len, reverse=True)
    return re.sub(b"|".join(map(re.escape, known)), HIDDEN_BYTES, data) if known else data


@given(values=VALUES, pieces=PIECES)
def test_a_stream_is_hidden_like_the_whole_however_it_is_cut(
    values: list[str], pieces: list[str]
) -> None:
    whole = "".join(pieces).encode()
    wanted = hidden_whole(values, whole)
    cuts = [[piece.encode() for piece in pieces], [bytes([byte]) for byte in whole]]
    cuts += [[whole[:at], whole[at:]] for at in range(len(whole) + 1)]
    for cut in cuts:
        veil = Veil(values)
        assert b"".join([*map(veil.add, cut), veil.rest()]) == wanted


@given(pieces=st.lists(st.sampled_from(["ab", "secr", "et-1", "secret-1", "-"]), max_size=12))
def test_head_tail_and_spill_file_hold_no_value(pieces: list[str]) -> None:
    whole = hidden_whole(["secret-1"], "".join(pieces).encode())
    with tempfile.TemporaryDirectory() as folder:
        order: Order = {
            "argv": [],
            "host_pid": 0,
            "inline_bytes_max": 20,
            "side_bytes_max": 7,
            "spill_bytes_max": 60,
            "spill": os.path.join(folder, "log"),
            "secrets": ["secret-1"],
        }
        output = Output(order)
        for piece in pieces:
            output.add(piece.encode())
        output.close()
        assert output.size_bytes == len(whole)
        if len(whole) <= 20:
            assert bytes(output.head) == whole
            return
        assert (bytes(output.head), bytes(output.tail)) == (whole[:7], whole[-7:])
        with open(order["spill"], "rb") as file:
            assert file.read() == whole[:60]


def test_a_seed_file_that_is_cut_keeps_no_part_of_a_value(tmp_path: Path) -> None:
    for ahead in range(1, len(VALUE) + 2):
        text = "." * (SEED_FILE_BYTES_MAX - ahead) + VALUE + "." * 100
        (tmp_path / "seed").write_text(text)
        ((_, (found,)),) = gather(str(tmp_path), (("r", "files", ("seed",)),), Redactor([VALUE]))
        assert "sk" not in found
        assert f"[cut at {SEED_FILE_BYTES_MAX} bytes]" in found
