from __future__ import annotations

import pickle

import msgspec
import pytest

from leviath.components.errors import ConfigError
from leviath.components.run_status import RunStatus

WORDS = {
    "starting": "Starting",
    "running": "Running",
    "waiting_input": "WaitingInput",
    "complete": "Complete",
    "complete_interactive": "CompleteInteractive",
    "paused": "Paused",
    "error": "Error",
    "cancelled": "Cancelled",
}


def test_there_are_eight_words_in_their_order() -> None:
    assert [status.wire() for status in RunStatus] == list(WORDS)


@pytest.mark.parametrize(("wire", "display"), WORDS.items())
def test_wire_is_for_programs_and_str_for_people(wire: str, display: str) -> None:
    status = RunStatus(wire)
    assert status.wire() == wire
    assert str(status) == f"{status}" == f"{status:s}" == display


@pytest.mark.parametrize("status", RunStatus)
def test_json_carries_the_wire_word(status: RunStatus) -> None:
    encoded = msgspec.json.encode(status)
    assert encoded == f'"{status.wire()}"'.encode()
    assert msgspec.json.decode(encoded, type=RunStatus) is status
    assert pickle.loads(pickle.dumps(status)) is status


def test_ended_means_complete_error_or_cancelled() -> None:
    assert {s.wire() for s in RunStatus if s.is_ended} == {"complete", "error", "cancelled"}


@pytest.mark.parametrize(
    "word", ["waiting_input", "waitinginput", "Waiting-Input", "WaitingInput", " WAITING_INPUT "]
)
def test_parse_takes_the_forms_of_a_filter(word: str) -> None:
    assert RunStatus.parse(word) is RunStatus.WAITING_INPUT


@pytest.mark.parametrize("status", RunStatus)
def test_parse_takes_both_spellings_of_every_word(status: RunStatus) -> None:
    assert RunStatus.parse(status.wire()) is RunStatus.parse(str(status)) is status


@pytest.mark.parametrize(
    "word", ["", "done", "waiting", "run ning", "paused\n", "cancelled\x00", "loc\u212aed"]
)
def test_parse_names_the_word_and_the_eight_that_exist(word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RunStatus.parse(word)
    assert repr(word) in str(caught.value)
    assert all(wire in str(caught.value) for wire in WORDS)
