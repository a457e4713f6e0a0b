"""stages.json and context.json: what is written, read back, and refused."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies_run_meta import (
    active_clocks,
    counts,
    json_values,
    seconds,
    texts,
    unknown_keys,
    usd,
)

from leviath.components.errors import DocumentError
from leviath.persistence.run_documents import (
    TEXT,
    ContextEntry,
    ContextRegion,
    ContextSnapshot,
    EntryKind,
    StageRecord,
    StageStatus,
    ToolCallRecord,
    Visit,
    load_stages,
    stages_from_json,
    stages_to_json,
)
from leviath.persistence.run_meta_parts import ActiveClock

GOLDEN = Path(__file__).parents[1] / "golden" / "run_meta"
STAGES = (GOLDEN / "stages.json").read_bytes()
CONTEXT = (GOLDEN / "context.json").read_bytes()
OLD_STAGE = {
    "name": "s",
    "index": 0,
    "status": "active",
    "prompt_tokens": 1,
    "completion_tokens": 2,
}

visits = st.builds(
    Visit,
    id=texts,
    entered_at=seconds,
    left_at=st.none() | seconds,
    prompt_tokens=counts,
    completion_tokens=counts,
    cached_tokens=counts,
    cache_write_tokens=counts,
    cost_usd=st.none() | usd,
    unpriced_calls=counts,
    cost_is_exact=st.booleans(),
    cost_priced_usd=usd,
    active=st.none() | active_clocks,
    unknown=unknown_keys,
)
stages = st.builds(
    StageRecord,
    name=texts,
    index=counts,
    status=st.sampled_from(StageStatus),
    entered=st.booleans(),
    started_at=st.none() | seconds,
    ended_at=st.none() | seconds,
    prompt_tokens=counts,
    completion_tokens=counts,
    cached_tokens=counts,
    region_tokens=st.dictionaries(texts, st.integers(0, 2**63 - 1), max_size=2),
    first_call_prompt_tokens=st.none() | counts,
    cost_usd=st.none() | usd,
    cost_priced_usd=usd,
    visits=st.lists(visits, max_size=2).map(tuple),
    active=st.none() | active_clocks,
    unknown=unknown_keys,
)
kinds = st.one_of(
    st.builds(
        EntryKind, type=st.sampled_from(["Text", "UserMessage", "Later"]), unknown=unknown_keys
    ),
    st.builds(
        EntryKind,
        type=st.just("AssistantTurn"),
        tool_calls=st.lists(
            st.builds(
                ToolCallRecord,
                id=texts,
                name=texts,
                arguments=json_values,
                thought_signature=st.none() | texts,
                unknown=unknown_keys,
            ),
            max_size=2,
        ).map(tuple),
    ),
    st.builds(
        EntryKind,
        type=st.just("ToolResult"),
        tool_call_id=texts,
        tool_name=texts,
        is_error=st.booleans(),
    ),
)
entries = st.builds(
    ContextEntry,
    content=texts | st.lists(json_values, max_size=2).map(tuple),
    tokens=counts,
    kind=kinds,
    metadata=json_values,
    key=st.none() | texts,
    taint=st.sampled_from(["Public", "Internal", "Private"]),
    unknown=unknown_keys,
)
contexts = st.builds(
    ContextSnapshot,
    stage_name=texts,
    total_tokens=counts,
    max_tokens=counts,
    regions=st.lists(
        st.builds(
            ContextRegion,
            name=texts,
            kind=st.sampled_from(["pinned", "compact_history", "custom"]),
            current_tokens=counts,
            max_tokens=counts,
            entries=st.lists(entries, max_size=2).map(tuple),
            description=st.none() | texts,
            unknown=unknown_keys,
        ),
        max_size=2,
    ).map(tuple),
    unknown=unknown_keys,
)


def test_stages_come_back_byte_for_byte(tmp_path: Path) -> None:
    assert stages_to_json(stages_from_json(STAGES)) == STAGES
    (tmp_path / "stages.json").write_bytes(STAGES)
    assert load_stages(tmp_path / "stages.json") == stages_from_json(STAGES.decode())
    assert stages_to_json(()) == b"[]"
    assert stages_from_json("[]") == ()


def test_a_context_comes_back_byte_for_byte(tmp_path: Path) -> None:
    context = ContextSnapshot.from_json(CONTEXT)
    assert json.loads(context.to_json()) == json.loads(CONTEXT)
    assert context.to_json() == CONTEXT
    (tmp_path / "context.json").write_bytes(CONTEXT)
    assert ContextSnapshot.load(tmp_path / "context.json") == context


@given(st.lists(stages, max_size=2).map(tuple))
def test_every_stage_comes_back_equal(records: tuple[StageRecord, ...]) -> None:
    assert stages_from_json(stages_to_json(records)) == records


@given(contexts)
def test_every_context_comes_back_equal(context: ContextSnapshot) -> None:
    text = context.to_json()
    assert ContextSnapshot.from_json(text) == context
    assert ContextSnapshot.from_json(msgspec.json.format(text, indent=3)) == context


def test_an_old_stage_gets_defaults() -> None:
    (stage,) = stages_from_json(json.dumps([OLD_STAGE]))
    assert stage.status is StageStatus.ACTIVE
    assert (stage.cost_usd, stage.cost_is_exact, stage.active, stage.visits) == (
        None,
        False,
        None,
        (),
    )
    assert stages_from_json(stages_to_json([stage])) == (stage,)


def test_an_old_context_gets_defaults_and_new_spellings() -> None:
    context = ContextSnapshot.from_json(
        json.dumps(
            {
                "stage_name": "s",
                "total_tokens": 1,
                "max_tokens": 2,
                "regions": [
                    {"name": name, "kind": kind, "current_tokens": 1, "max_tokens": 1}
                    | ({"entries": [{"content": "x", "tokens": 1}]} if name == "a" else {})
                    for name, kind in (("a", "sliding"), ("b", "history"), ("c", "spiral"))
                ],
            }
        )
    )
    assert [r.kind for r in context.regions] == ["sliding_window", "compact_history", "spiral"]
    (entry,) = context.regions[0].entries
    assert (entry.kind, entry.taint, entry.key) == (TEXT, "Internal", None)
    assert ContextSnapshot.from_json(context.to_json()) == context


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (b"", "$"),
        (b"{}", "$"),
        (STAGES[:-3], "$"),
        (STAGES.replace(b'"complete"', b'"napping"'), "[0].status"),
        (STAGES.replace(b'"index": 0', b'"index": -1'), "[0].index"),
        (STAGES.replace(b'"left_at": 1790000100', b'"left_at": "x"'), "[0].visits[0].left_at"),
        (STAGES.replace(b'"name": "plan",', b""), "[0].name"),
        (STAGES.replace(b'"notes": 812', b'"notes": null'), "[0].region_tokens"),
        (b"[7]", "[0]"),
    ],
)
def test_bad_stages_are_named(text: bytes, field: str) -> None:
    with pytest.raises(DocumentError) as caught:
        stages_from_json(text)
    assert caught.value.field == field
    assert str(caught.value).startswith("stages document: ")


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        (b'"pinned"', b"7", "regions[0].kind"),
        (b'"tokens":3', b'"tokens":-3', "regions[1].entries[0].tokens"),
        (b'"is_error":true', b'"is_error":1', "regions[1].entries[2].kind.is_error"),
        (b'"id":"c2",', b"", "regions[1].entries[1].kind.tool_calls[1].id"),
        (b',"is_error":true', b"", "regions[1].entries[2].kind"),
        (b'"content":""', b'"content":5', "regions[1].entries[1].content"),
        (b'"total_tokens":70,', b"", "total_tokens"),
    ],
)
def test_bad_contexts_are_named(old: bytes, new: bytes, field: str) -> None:
    assert old in CONTEXT
    with pytest.raises(DocumentError) as caught:
        ContextSnapshot.from_json(CONTEXT.replace(old, new))
    assert caught.value.field == field
    assert str(caught.value).startswith("context document: ")


def test_a_path_without_a_document_is_named(tmp_path: Path) -> None:
    for load in (load_stages, ContextSnapshot.load):
        with pytest.raises(DocumentError, match="nowhere") as caught:
            load(tmp_path / "nowhere")
        assert caught.value.fields["errno"] is not None


def test_an_amount_that_json_lacks_is_not_written() -> None:
    (stage,) = stages_from_json(STAGES)
    with pytest.raises(DocumentError) as caught:
        stages_to_json([msgspec.structs.replace(stage, cost_priced_usd=float("nan"))])
    assert caught.value.field == "cost_priced_usd"


def test_working_time_of_a_stage_and_of_a_visit() -> None:
    (stage,) = stages_from_json(STAGES)
    assert stage.active_runtime_secs(0) == stage.visits[0].active_runtime_secs(0) == 80
    old = msgspec.structs.replace(stage, active=None)
    assert old.active_runtime_secs(2**40) == 100
    assert msgspec.structs.replace(old, ended_at=None).active_runtime_secs(1_790_000_007) == 7
    assert msgspec.structs.replace(old, started_at=None).active_runtime_secs(2**40) == 0
    visit = msgspec.structs.replace(stage.visits[0], active=None, left_at=None)
    assert visit.active_runtime_secs(1_790_000_009) == 9
    running = msgspec.structs.replace(visit, active=ActiveClock(banked_secs=5, since=10))
    assert running.active_runtime_secs(13) == 8
