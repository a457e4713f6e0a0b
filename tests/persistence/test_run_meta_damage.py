"""Bad documents: each gets one error that names the key, the value and the remedy."""

from __future__ import annotations

import copy
import json
import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leviath.components.errors import DocumentError
from leviath.persistence import json_text
from leviath.persistence.run_meta import RunMeta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

GOLDEN = Path(__file__).parents[1] / "golden" / "run_meta"
FULL = (GOLDEN / "generation_b.json").read_bytes()
OLDEST = (GOLDEN / "oldest.json").read_bytes()
REQUIRED = list(json.loads(OLDEST))

Path_ = tuple[str | int, ...]


def fault_of(text: bytes | str) -> DocumentError:
    with pytest.raises(DocumentError) as caught:
        RunMeta.from_json(text)
    assert caught.value.__context__ is not caught.value
    assert "; " in caught.value.message, "the remedy stands after a semicolon"
    return caught.value


def read(text: bytes | str) -> RunMeta | DocumentError:
    try:
        return RunMeta.from_json(text)
    except DocumentError as error:
        return error


def replaced(place: Path_, value: object) -> str:
    body = json.loads(FULL)
    at = body
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = value
    return json.dumps(body)


def leaves(value: Any, place: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Yield every value of a document, the nested ones too, with the place where it stands."""
    if place:
        yield place, value
    steps: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        steps = cast("dict[str, Any]", value).items()
    elif isinstance(value, list):
        steps = enumerate(cast("list[object]", value))
    for step, item in steps:
        yield from leaves(item, (*place, step))


def named(place: Path_) -> str:
    head, *rest = place
    return str(head) + "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in rest)


WRONG: tuple[object, ...] = ({"a": []}, [[1]], True, 1.5, "word", -1)
PLACES = [place for place, _ in leaves(json.loads(FULL))]
# msgspec reads these as one value and tells only that an element is at fault.
UNNAMED_INSIDE = ("metadata", "children", "modified_files", "broken_scripts")


def field_of(place: Path_) -> str:
    for index, step in enumerate(place):
        if step in UNNAMED_INSIDE:
            return named(place[: index + 1])
    return named(place)


@pytest.mark.parametrize("place", PLACES, ids=named)
@pytest.mark.parametrize("wrong", WRONG, ids=json.dumps)
def test_a_value_of_the_wrong_type_is_named_or_fits(place: Path_, wrong: object) -> None:
    outcome = read(replaced(place, wrong))
    if isinstance(outcome, DocumentError):
        # An object may be at fault for a key inside it.
        assert outcome.field.startswith(field_of(place))
        assert f"`{outcome.field}` is" in str(outcome)
        assert json_text.REMEDY in str(outcome)
    else:
        body: Any = json.loads(outcome.to_json())
        for step in place:
            body = body[step]
        assert body == wrong or isinstance(body, dict), "a value that loads is kept"


def test_nothing_odd_loads_where_a_plain_type_is_due() -> None:
    loads = {
        (named(place), json.dumps(wrong))
        for place in PLACES
        for wrong in WRONG
        if isinstance(read(replaced(place, wrong)), RunMeta)
    }
    dollars = {"cost_usd", "cost_priced_usd"}
    assert {place for place, wrong in loads if wrong == "1.5"} == dollars
    assert {place for place, wrong in loads if wrong == "true"} == {
        "cost_is_exact",
        "yolo",
        "final_output.truncated",
        *(
            f"flags.{name}"
            for name in ("empty_output", "no_output_tools", "workspace_lost", "produced_output")
        ),
    }
    times = {"started_at", "updated_at", "last_progress_at", "active.since"}
    assert {place for place, wrong in loads if wrong == "-1"} == {
        *dollars,
        *times,
        "final_output.submitted_at",
    }
    assert {place for place, wrong in loads if wrong == "[[1]]"} == set()
    assert {place for place, wrong in loads if wrong.startswith("{")} == {
        "flags",
        "active",
        "output_request",
    }


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_key_is_named(key: str) -> None:
    body = json.loads(FULL)
    del body[key]
    error = fault_of(json.dumps(body))
    assert error.field == key
    assert f"`{key}` is missing" in str(error)


@pytest.mark.parametrize("key", [key for key in json.loads(FULL) if key not in REQUIRED])
def test_every_other_key_may_be_missing(key: str) -> None:
    body = json.loads(FULL)
    del body[key]
    assert RunMeta.from_json(json.dumps(body)).run_id == body["run_id"]


@pytest.mark.parametrize(
    ("place", "missing"),
    [
        (("read_paths",), "declared"),
        (("final_output",), "stage"),
        (("final_output", "artifacts", 0), "mime_type"),
        (("waiting_on",), "reason"),
        (("waiting_on",), "outstanding"),
    ],
)
def test_a_missing_key_inside_is_named(place: Path_, missing: str) -> None:
    body = json.loads(FULL)
    at = body
    for step in place:
        at = at[step]
    value = copy.copy(at)
    del value[missing]
    error = fault_of(replaced(place, value))
    assert error.field in (named(place), f"{named(place)}.{missing}")
    assert missing in str(error)


@pytest.mark.parametrize(
    ("key", "text", "loads"),
    [
        ("prompt_tokens", "0", True),
        ("prompt_tokens", str(2**63), True),
        ("prompt_tokens", str(2**64 - 1), True),
        ("prompt_tokens", str(2**64), False),
        ("prompt_tokens", "9" * 5000, False),
        ("prompt_tokens", "-1", False),
        ("prompt_tokens", "3.0", False),
        ("prompt_tokens", "null", False),
        ("pid", str(2**32 - 1), True),
        ("pid", str(2**32), False),
        ("started_at", str(-(2**63)), True),
        ("started_at", str(2**63), False),
        ("cost_usd", "3", True),
        ("cost_usd", "NaN", False),
        ("cost_usd", "Infinity", False),
        ("cost_usd", "-Infinity", False),
        ("cost_usd", "1e999", False),
        ("cost_priced_usd", "null", False),
    ],
)
def test_numbers_keep_to_their_range(key: str, text: str, loads: bool) -> None:
    body = json.loads(FULL)
    body[key] = "@"
    document = json.dumps(body).replace('"@"', text)
    if loads:
        assert json.loads(RunMeta.from_json(document).to_json())[key] == json.loads(text)
    else:
        error = fault_of(document)
        malformed = text in ("NaN", "Infinity", "-Infinity")
        assert error.field == ("$" if malformed else key)
        assert malformed or text[:60] in str(error)


def test_an_unknown_status_is_told_apart_by_its_word() -> None:
    error = fault_of(replaced(("status",), "dreaming"))
    assert error.field == "status"
    assert error.fields["status_word"] == "dreaming"
    assert "status_word" not in fault_of(replaced(("status",), 3)).fields
    assert "status_word" not in fault_of(replaced(("task",), 3)).fields


def test_a_secret_of_the_wrong_type_is_not_shown() -> None:
    error = fault_of(replaced(("callback_secret",), ["hunter2"]))
    assert error.field == "callback_secret"
    seen: BaseException | None = error
    while seen is not None:
        assert "hunter2" not in repr(seen)
        assert "hunter2" not in str(seen)
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    assert "hunter2" not in repr(error.fields)


def test_a_document_cut_anywhere_is_refused() -> None:
    for length in range(len(FULL)):
        assert fault_of(FULL[:length]).field == "$"


def test_a_document_whose_tail_is_nul_is_refused() -> None:
    for length in range(0, len(FULL), 7):
        assert fault_of(FULL[:length].ljust(len(FULL), b"\0")).field == "$"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\0" * 4096, "NUL bytes"),
        (b"\xef\xbb\xbf" + FULL, "byte order mark"),
        (FULL.decode().encode("utf-16"), "byte order mark"),
        (FULL.replace("\u00e9".encode(), b"\xe9"), "not UTF-8"),
        (OLDEST.replace(b"{", b'{"odd": "\xff", ', 1), "not UTF-8"),
        (FULL + b"}", "damaged"),
        (FULL + FULL, "damaged"),
        (b"run_id: scout", "damaged"),
        (b"[" * 100_000, "nests deeper"),
        (OLDEST.replace(b"{", b'{"odd": ' + b"[" * 129 + b"]" * 129 + b",", 1), "nests deeper"),
        (b"[]", "expected an object"),
        (b"null", "expected an object"),
        (b'"meta"', "expected an object"),
        (b"17", "expected an object"),
    ],
)
def test_what_is_no_document_is_told_what_it_is(text: bytes, reason: str) -> None:
    error = fault_of(text)
    assert error.field == "$"
    assert reason in str(error)
    assert len(str(error)) < 300


@pytest.mark.parametrize(
    "value", ["9" * 5000, "1e999", "[" * 5000 + "]" * 5000, '"\\x"', "[1,]", "{1:2}", "01"]
)
def test_odd_json_inside_a_free_value_is_refused_or_kept(value: str) -> None:
    body = json.loads(FULL)
    body["output_request"]["schema"] = "@"
    outcome = read(json.dumps(body).replace('"@"', value))
    assert isinstance(outcome, DocumentError) or read(outcome.to_json()) == outcome
    body["unknown"] = "@"
    body["output_request"]["schema"] = True
    outcome = read(json.dumps(body).replace('"@"', value))
    assert isinstance(outcome, DocumentError) or read(outcome.to_json()) == outcome


def test_brackets_inside_texts_do_not_nest() -> None:
    task = json.dumps('[{"' * 500 + "\\")
    document = OLDEST.replace(b'"task": "t"', b'"odd": 1, "task": ' + task.encode())
    assert RunMeta.from_json(document).task.startswith("[{")


def test_a_string_that_never_ends_is_refused_in_linear_time() -> None:
    assert fault_of(b'{"task": "' + b'\\"[' * 200_000).field == "$"


def test_a_huge_document_is_refused_unread() -> None:
    huge = b" " * (json_text.DOCUMENT_BYTES_MAX + 1)
    assert "more than" in str(fault_of(huge))


@given(st.binary(max_size=64))
def test_no_bytes_raise_anything_else(noise: bytes) -> None:
    with pytest.raises(DocumentError):
        RunMeta.from_json(noise)


@given(st.integers(0, len(FULL) - 1), st.integers(0, 255))
def test_one_wrong_byte_loads_or_is_refused(at: int, byte: int) -> None:
    text = FULL[:at] + bytes([byte]) + FULL[at + 1 :]
    outcome = read(text)
    assert isinstance(outcome, DocumentError) or read(outcome.to_json()) == outcome


def test_a_number_that_json_lacks_is_not_written() -> None:
    meta = RunMeta.from_json(FULL)
    for key in ("cost_usd", "cost_priced_usd"):
        for number in (float("nan"), float("inf")):
            odd = msgspec.structs.replace(meta, **{key: number})
            with pytest.raises(DocumentError) as caught:
                odd.to_json()
            assert caught.value.field == key


def test_errors_survive_pickling() -> None:
    error = fault_of(replaced(("status",), "dreaming"))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.field, again.fields) == (str(error), error.field, error.fields)


def _missing(path: Path) -> None:
    assert not path.exists()


def _folder(path: Path) -> None:
    path.mkdir()


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _damaged(path: Path) -> None:
    path.write_bytes(FULL[:100])


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(json_text.DOCUMENT_BYTES_MAX + 1)


@pytest.mark.parametrize("prepare", [_missing, _folder, _pipe, _loop, _damaged, _huge])
def test_a_path_without_a_document_is_named(
    tmp_path: Path, prepare: Callable[[Path], None]
) -> None:
    path = tmp_path / "meta.json"
    prepare(path)
    with pytest.raises(DocumentError) as caught:
        RunMeta.load(path)
    assert str(path) in str(caught.value)
    assert caught.value.fields["path"] == str(path)


def test_a_missing_file_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(DocumentError) as caught:
        RunMeta.load(tmp_path / "meta.json")
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    with pytest.raises(DocumentError, match="cannot be read"):
        RunMeta.load("meta\0.json")
