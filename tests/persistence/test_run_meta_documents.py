"""What is written, what is read back, and what other writers' documents become."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from strategies_run_meta import run_metas

from leviath.components.run_status import RunStatus
from leviath.components.secret import Secret
from leviath.persistence.run_meta import RunMeta
from leviath.persistence.run_meta_parts import ActiveClock, RunFlags, WaitReason

GOLDEN = Path(__file__).parents[1] / "golden" / "run_meta"

KEYS = [field.name for field in msgspec.structs.fields(RunMeta) if field.name != "unknown"]
FIRST_B_KEYS = ["cost_usd", "unpriced_calls", "cost_is_exact", "cost_priced_usd", "active"]


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.json").read_bytes()


def written(meta: RunMeta) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(meta.to_json())
    return body


def test_a_full_document_comes_back_byte_for_byte() -> None:
    text = golden("generation_b")
    assert RunMeta.from_json(text).to_json() == text
    assert RunMeta.from_json(text.decode()) == RunMeta.from_json(text)


def test_the_43_keys_stand_in_their_order() -> None:
    assert list(json.loads(golden("generation_b"))) == KEYS
    assert len(KEYS) == 43


def test_the_text_has_two_spaces_no_final_newline_and_plain_unicode() -> None:
    text = RunMeta.from_json(golden("generation_b")).to_json().decode()
    assert text == json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    assert "\\u" not in text


def test_what_is_null_is_written_but_for_the_last_six_keys() -> None:
    meta = RunMeta.new("r", "a", "/a", "t", None, "/w", 2, now=9)
    assert list(written(meta)) == [key for key in KEYS if key not in RunMeta.SKIPPED_NULL]
    assert tuple(KEYS[37:]) == RunMeta.SKIPPED_NULL
    assert written(meta)["model"] is None
    assert "broken_scripts" not in written(meta)["flags"]


def test_generation_a_loads_and_is_normalised_once() -> None:
    body = json.loads(golden("generation_a"))
    meta = RunMeta.from_json(golden("generation_a"))
    assert (meta.cost_usd, meta.unpriced_calls, meta.cost_priced_usd) == (None, 0, 0.0)
    assert meta.cost_is_exact is False
    assert meta.active is None
    assert meta.flags.broken_scripts == ()
    again = written(meta)
    paths = body["final_output"].pop("artifacts")
    assert again["final_output"].pop("artifacts") == [
        {
            "name": path.rsplit("/", 1)[-1],
            "path": path,
            "mime_type": "application/octet-stream",
            "size": 0,
        }
        for path in paths
    ]
    assert {key: again[key] for key in body} == body
    assert [key for key in again if key not in body] == FIRST_B_KEYS
    assert RunMeta.from_json(meta.to_json()) == meta


def test_the_oldest_document_loads_with_defaults_that_never_escalate() -> None:
    meta = RunMeta.from_json(golden("oldest"))
    assert (meta.model, meta.error, meta.title, meta.waiting_on) == (None,) * 4
    assert (meta.cost_usd, meta.cost_is_exact, meta.cost_priced_usd) == (None, False, 0.0)
    assert (meta.unpriced_calls, meta.depth, meta.children) == (0, 0, ())
    assert (meta.yolo, meta.yolo_profile, meta.model_override) == (False, None, None)
    assert meta.flags == RunFlags()
    assert meta.last_progress_at is None
    assert meta.active_runtime_secs(0) == meta.active_runtime_secs(2**40) == 600
    assert RunMeta.from_json(meta.to_json()) == meta


def test_a_newer_document_keeps_its_keys_and_words_after_ours() -> None:
    body = json.loads(golden("newer"))
    meta = RunMeta.from_json(golden("newer"))
    assert meta.waiting_on is not None
    assert meta.waiting_on.reason == meta.waiting_on.label == "moon_phase"
    assert meta.waiting_on.needs_person
    assert [name for name, _ in meta.unknown] == ["stage_models", "zeta", "alpha"]
    assert written(meta) == body
    assert list(written(meta)) == [*KEYS, "stage_models", "zeta", "alpha"]
    assert list(written(meta)["flags"])[-1] == "storms"
    assert b"12345678901234567890123" in meta.to_json()
    assert RunMeta.from_json(meta.to_json()) == meta


def test_an_unknown_blocker_is_kept() -> None:
    body = json.loads(golden("oldest"))
    body["waiting_on"] = {"reason": "needs_setup", "blocker": "no_moon", "remedy": "wait"}
    meta = RunMeta.from_json(json.dumps(body))
    assert meta.waiting_on is not None
    assert meta.waiting_on == WaitReason.needs_setup("no_moon", "wait")
    assert meta.waiting_on.label == "needs no_moon"
    assert written(meta)["waiting_on"] == body["waiting_on"]


def test_keys_that_belong_to_another_reason_are_kept_unread() -> None:
    body = json.loads(golden("oldest"))
    body["waiting_on"] = {"outstanding": None, "reason": "taint_gate", "blocker": 7}
    meta = RunMeta.from_json(json.dumps(body))
    assert meta.waiting_on is not None
    assert meta.waiting_on.label == "taint gate"
    assert written(meta)["waiting_on"] == body["waiting_on"]


@settings(max_examples=150)
@given(run_metas)
def test_every_run_comes_back_equal_and_the_text_is_stable(meta: RunMeta) -> None:
    text = meta.to_json()
    again = RunMeta.from_json(text)
    assert again == meta
    assert again.to_json() == text
    keys = list(json.loads(text))
    own = [key for key in KEYS if key in keys]
    assert keys == own + [name for name, _ in meta.unknown]


@given(run_metas)
def test_a_compact_document_says_the_same(meta: RunMeta) -> None:
    assert RunMeta.from_json(msgspec.json.format(meta.to_json(), indent=-1)) == meta


def test_metadata_keeps_the_order_of_the_caller() -> None:
    body = json.loads(golden("oldest"))
    body["metadata"] = {"z": "1", "a": "2", "m": "3"}
    assert list(written(RunMeta.from_json(json.dumps(body)))["metadata"]) == ["z", "a", "m"]


def test_the_last_of_two_equal_keys_wins() -> None:
    text = golden("oldest").replace(b'"task": "t"', b'"task": "t", "task": "u"')
    assert RunMeta.from_json(text).task == "u"


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (r"half \ud83d", "half \ufffd"),
        (r"\ude00\ud83d", "\ufffd\ufffd"),
        (r"\uD83D\uDE00 whole", "\U0001f600 whole"),
        (r"\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        (r"a path \\ud83d of Windows", r"a path \ud83d of Windows"),
        (r"\\\ud83d", "\\\ufffd"),
    ],
)
def test_half_a_character_becomes_a_replacement(escaped: str, text: str) -> None:
    document = golden("oldest").replace(b'"task": "t"', f'"task": "{escaped}"'.encode())
    assert RunMeta.from_json(document).task == text
    odd = golden("oldest").replace(b"{", f'{{"odd": "{escaped}", '.encode(), 1)
    assert RunMeta.from_json(RunMeta.from_json(odd).to_json()).unknown


def test_half_a_character_in_a_str_is_replaced_too() -> None:
    document = golden("oldest").decode().replace('"task": "t"', '"task": "\ud83d"')
    assert RunMeta.from_json(document).task == "\ufffd"


def test_half_a_character_of_the_host_cannot_keep_a_run_from_being_written() -> None:
    meta = RunMeta.new("r", "a\ud83d", "/a", "t\0", None, "/w\udce9", 1, now=0)
    assert (meta.agent_name, meta.task, meta.workdir) == ("a\ufffd", "t\ufffd", "/w\ufffd")
    odd = msgspec.structs.replace(
        meta,
        error="\ud83d",
        metadata={"\ud83d": "x\ud83d"},
        children=("\ud83d",),
        callback_secret=Secret("\ud83d"),
        flags=RunFlags(modified_files=("\udce9",)),
    )
    again = RunMeta.from_json(odd.to_json())
    assert (again.error, again.metadata) == ("\ufffd", {"\ufffd": "x\ufffd"})
    assert again.status is RunStatus.STARTING
    assert again.callback_secret == Secret("\ufffd")
    assert again.flags.modified_files == ("\ufffd",)


def test_a_file_is_loaded_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_bytes(golden("generation_b"))
    meta = RunMeta.load(tmp_path / "meta.json")
    assert meta == RunMeta.load(str(tmp_path / "meta.json"))
    assert meta.active == ActiveClock(banked_secs=410, since=1790000600)
