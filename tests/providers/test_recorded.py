"""Recordings: what is found, what is a miss, what is kept, and what a cassette may not be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from provider_requests import ask, request

from leviath.components.errors import ConfigError, DiskFull, ProviderError
from leviath.engine.ports import CallRequest, ErrorKind, InferenceReply, Message, ToolSpec, Usage
from leviath.providers.recorded import Recorded
from leviath.providers.script import Failure, Reply, tool_call
from leviath.providers.scripted import Scripted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from leviath.engine.ports import InferenceRequest

TALK = (Message("system", "Be short.\nAlways."), Message("user", "Count the words of notes.txt"))


class Counted:
    """A provider that counts its calls: what would be paid."""

    name = "real"

    def __init__(self, *replies: InferenceReply | str) -> None:
        self.replies = list(replies)
        self.asked: list[InferenceRequest] = []

    async def infer(
        self, request: InferenceRequest, on_text: Callable[[str], None] | None
    ) -> InferenceReply:
        self.asked.append(request)
        reply = self.replies.pop(0) if self.replies else "more"
        return InferenceReply(text=reply) if isinstance(reply, str) else reply


FULL = InferenceReply(
    text="A résumé \N{BABY CHICK}",
    calls=(CallRequest("c1", "count", '{"text": "é"}'),),
    usage=Usage(1, 2, 3, 4),
    cost_nano_usd=5,
    stop_reason="tools",
)


def recording(cassette: Path, *replies: InferenceReply | str, **more: Any) -> Recorded:
    return Recorded(cassette, Counted(*replies), mode="new", **more)


def test_what_was_recorded_comes_back_whole_without_a_call(tmp_path: Path) -> None:
    cassette = tmp_path / "a.jsonl"
    first = recording(cassette, FULL)
    assert ask(first, request(messages=TALK)) == (FULL, [])
    assert cassette.stat().st_mode & 0o777 == 0o600
    again = Recorded(cassette, name="real")
    assert (again.name, again.paid, first.paid) == ("real", False, True)
    # Another run, another attempt, another time: the same question.
    same = request(messages=TALK, run_id="run-b", attempt=3, idempotency_key="k", timeout_ms=7)
    assert ask(again, same) == (FULL, [FULL.text])
    assert ask(recording(cassette), same)[0] == FULL


CHANGES: list[dict[str, Any]] = [
    {"messages": (*TALK[:1], Message("user", "Count the words of other.txt"))},
    {"messages": TALK[1:]},
    {"model": "large"},
    {"tools": (ToolSpec("count", "Counts.", "{}"),)},
    {"temperature_milli": 0},
    {"max_output_tokens": 9},
    {"parameters_json": '{"a":1}'},
    {"kind": "routing"},
]


@pytest.mark.parametrize("change", CHANGES, ids=",".join)
def test_whatever_decides_an_answer_makes_another_question(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    cassette = tmp_path / "a.jsonl"
    ask(recording(cassette, "x"), request(messages=TALK))
    recorded = Recorded(cassette, name="real")
    fields: dict[str, Any] = {"messages": TALK}
    with pytest.raises(ProviderError, match="no recording of what it asks") as missed:
        ask(recorded, request(**(fields | change)))
    assert (missed.value.kind, missed.value.retryable) == ("script_exhausted", False)
    assert recorded.misses == [str(missed.value)]


def test_a_miss_shows_the_nearest_recording_and_where_it_differs(tmp_path: Path) -> None:
    cassette = tmp_path / "a.jsonl"
    recorder = recording(cassette, "x", "y")
    ask(recorder, request(messages=(Message("user", "Something else entirely."),)))
    ask(recorder, request(messages=TALK))
    asked = (TALK[0], Message("user", "Count the lines of notes.txt"))
    with pytest.raises(ProviderError) as missed:
        ask(Recorded(cassette, name="real"), request(messages=asked, ordinal=4))
    said = str(missed.value)
    assert "run run-a asks for turn 4" in said
    assert "-user: Count the words of notes.txt\n+user: Count the lines of notes.txt" in said
    assert "Something else" not in said
    assert "mode='new'" in said


def test_a_question_that_is_asked_again_is_owed_its_next_recording(tmp_path: Path) -> None:
    cassette = tmp_path / "a.jsonl"
    recorder = recording(cassette, "one", "two")
    for ordinal in (1, 2):
        ask(recorder, request(ordinal, messages=TALK))
    recorded = Recorded(cassette, name="real")
    for run in ("a", "b"):
        # A retry asks the same call again.
        for ordinal, attempt, text in ((1, 1, "one"), (1, 2, "one"), (2, 1, "two"), (1, 3, "one")):
            asked = request(ordinal, attempt, run_id=run, messages=TALK)
            assert ask(recorded, asked)[0].text == text
    with pytest.raises(ProviderError, match="asked 2 times before"):
        ask(recorded, request(3, run_id="a", messages=TALK))


def test_mode_all_makes_every_call_once_and_drops_what_was_recorded(tmp_path: Path) -> None:
    cassette = tmp_path / "a.jsonl"
    recorder = recording(cassette, "old", "older", "kept")
    for ordinal in (1, 2):
        ask(recorder, request(ordinal, messages=TALK))
    ask(recorder, request(messages=TALK[:1]))
    real = Counted("new")
    renewed = Recorded(cassette, real, mode="all")
    for run in ("a", "b"):
        assert ask(renewed, request(run_id=run, messages=TALK))[0].text == "new"
    assert len(real.asked) == 1
    recorded = Recorded(cassette, name="real")
    assert ask(recorded, request(messages=TALK))[0].text == "new"
    assert ask(recorded, request(messages=TALK[:1]))[0].text == "kept"
    with pytest.raises(ProviderError):
        ask(recorded, request(2, messages=TALK))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl"]


def test_a_call_that_fails_is_not_kept(tmp_path: Path) -> None:
    cassette = tmp_path / "a.jsonl"
    failing = Scripted.of(Failure(kind=ErrorKind.BAD_REQUEST, message="down"), name="real")
    with pytest.raises(ProviderError, match="down"):
        ask(Recorded(cassette, failing, mode="new"), request(messages=TALK))
    assert not cassette.exists()


def test_texts_that_differ_from_run_to_run_are_replaced(tmp_path: Path) -> None:
    cassette = tmp_path / "a.jsonl"

    def asked(folder: str) -> InferenceRequest:
        call = CallRequest("c", "read", json.dumps({"path": f"{folder}/x"}))
        talk = (Message("user", f"See {folder}/deep/x"), Message("assistant", "", (call,)))
        return request(messages=(*talk, Message("tool", f"{folder}: no", call_id="c")))

    for folder in ("/tmp/one", "/tmp/two"):
        replace = {folder: "<work>", f"{folder}/deep": "<deep>"}
        recorded = recording(cassette, "ok", replace=replace)
        assert ask(recorded, asked(folder))[0].text == "ok"
    assert cassette.read_text().count("\n") == 2
    assert "/tmp/" not in cassette.read_text()


def test_secrets_are_in_no_cassette(tmp_path: Path) -> None:
    cassette = tmp_path / "a.jsonl"
    secret = "hunter2-hunter2"
    reply = InferenceReply(text=secret, calls=(CallRequest("c", "t", json.dumps(secret)),))
    recorder = recording(cassette, reply, secrets=[secret])
    ask(recorder, request(messages=(Message("user", f"key {secret}"),)))
    assert secret not in cassette.read_text()


@given(
    texts=st.lists(st.text(max_size=40), min_size=1, max_size=6, unique=True),
    data=st.data(),
)
def test_any_question_finds_its_own_answer(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], data: st.DataObject
) -> None:
    cassette = tmp_path_factory.mktemp("cassette") / "a.jsonl"
    recorder = recording(cassette, *(f"answer {n}" for n in range(len(texts))))
    for text in texts:
        ask(recorder, request(messages=(Message("user", text),)))
    recorded = Recorded(cassette, name="real")
    for n in data.draw(st.permutations(range(len(texts)))):
        asked = request(messages=(Message("user", texts[n]),), run_id=f"run-{n}")
        assert ask(recorded, asked)[0].text == f"answer {n}"


# --- what a cassette may not be -------------------------------------------------------------------


def made(tmp_path: Path) -> Path:
    cassette = tmp_path / "a.jsonl"
    ask(recording(cassette, "x"), request(messages=TALK))
    return cassette


def test_a_cassette_of_another_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    cassette = made(tmp_path)
    data = cassette.read_text().replace('{"leviath_cassette":1}', '{"leviath_cassette":2}')
    cassette.write_text(data)
    for provider in (None, Counted()):
        with pytest.raises(ConfigError, match="version 2, and this leviath reads version 1"):
            Recorded(cassette, provider, mode="new" if provider else "none", name="real")
    assert cassette.read_text() == data


DAMAGE: list[tuple[Callable[[str], str], str]] = [
    (lambda text: "", "no cassette"),
    (lambda text: "\0" * 99, "no cassette"),
    (lambda text: text[: len(text) // 2], "line 2, is no recording"),
    (lambda text: text.replace("words", "wards"), "line 2: the digest"),
    (lambda text: text + "[1]\n", "line 3, is no recording"),
    (lambda text: text + "[" * 5_000 + "\n", "line 3, is no recording"),
]


@pytest.mark.parametrize(("damage", "says"), DAMAGE)
def test_a_damaged_cassette_is_refused_by_its_line(
    tmp_path: Path, damage: Callable[[str], str], says: str
) -> None:
    cassette = made(tmp_path)
    cassette.write_text(damage(cassette.read_text()))
    before = cassette.read_bytes()
    for provider in (None, Counted()):
        with pytest.raises(ConfigError, match=says):
            Recorded(cassette, provider, mode="new" if provider else "none", name="real")
    assert cassette.read_bytes() == before


def test_a_cassette_that_is_missing_or_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no cassette"):
        Recorded(tmp_path / "none.jsonl", name="real")
    with pytest.raises(ConfigError, match="cannot be read"):
        Recorded(tmp_path, name="real")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"mode": "new"}, "records: pass the provider"),
        ({"mode": "some", "name": "x"}, "mode must be one of"),
        ({}, "name the one"),
    ],
)
def test_a_recorder_without_a_provider_is_refused(
    tmp_path: Path, arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        Recorded(made(tmp_path), **arguments)


def test_a_line_without_an_end_is_ended_before_the_next(tmp_path: Path) -> None:
    cassette = made(tmp_path)
    cassette.write_text(cassette.read_text().rstrip("\n"))
    ask(recording(cassette, "y"), request(messages=TALK[:1]))
    recorded = Recorded(cassette, name="real")
    assert ask(recorded, request(messages=TALK))[0].text == "x"
    assert ask(recorded, request(messages=TALK[:1]))[0].text == "y"


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    cassette = tmp_path / "full.jsonl"
    cassette.symlink_to("/dev/full")
    recorder = Recorded(tmp_path / "other.jsonl", Counted("x"), mode="new")
    recorder._path = str(cassette)  # a file that is there and takes nothing
    with pytest.raises(DiskFull, match="cannot be written"):
        ask(recorder, request(messages=TALK))


def test_replies_of_a_script_can_be_recorded(tmp_path: Path) -> None:
    cassette = tmp_path / "a.jsonl"
    script = Scripted.of(Reply(text="", calls=(tool_call("count", text="a"),)), name="real")
    ask(Recorded(cassette, script, mode="new"), request(messages=TALK))
    assert ask(Recorded(cassette, name="real"), request(messages=TALK))[0].calls[0].name == "count"
