"""Documents of generation A and B become runs that this world can host, and nothing is made better
or worse than it was."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from leviath.components.base import Component
from leviath.components.blueprint import (
    Blueprint,
    ModelRef,
    ModelSpec,
    RegionKind,
    RegionSpec,
    StageSpec,
    digest,
)
from leviath.components.context import AskedCall, Context, Entry
from leviath.components.effects import Effects
from leviath.components.errors import ConfigError, DocumentError
from leviath.components.identity import Imported, Launch
from leviath.components.marker import Marker, pair_is_legal
from leviath.components.output import Output
from leviath.components.progress import Clock, Cost, Ledgers, Resolution, Stage, Visits
from leviath.components.run_status import RunStatus
from leviath.components.status import Position, Status
from leviath.components.text import inline
from leviath.persistence.importing import check_folder, nano_of, parts_from_documents
from leviath.persistence.importing_context import context_of, snapshot_of
from leviath.persistence.run_documents import ContextSnapshot, stages_from_json
from leviath.persistence.run_meta import RunMeta

Parts = dict[type[Component], Component]

BLUEPRINT = Blueprint(
    stages=(
        StageSpec(name="read"),
        StageSpec(name="write", model=ModelSpec(models=(ModelRef(provider="acme", model="m"),))),
    ),
    regions=(
        RegionSpec(name="conversation"),
        RegionSpec(name="todo", kind=RegionKind.checklist),
    ),
)
BASE = {
    "run_id": "old-1", "agent_name": "old", "agent_path": "/a/old", "task": "t",
    "status": "running", "current_stage": "write", "stage_index": 1, "num_stages": 2,
    "iteration": 3, "prompt_tokens": 10, "completion_tokens": 2, "workdir": "/w",
    "started_at": 1_780_000_000, "updated_at": 1_780_000_600,
}  # fmt: skip


def imported(final_output: bytes | None = None, stages: bytes = b"[]", **changes: Any) -> Parts:
    document = msgspec.json.encode(BASE | changes)
    found = parts_from_documents(
        RunMeta.from_json(document),
        stages_from_json(stages),
        None,
        final_output,
        document=document,
        blueprint=BLUEPRINT,
        blueprint_digest=digest(BLUEPRINT),
        world_ms=5_000,
    )
    return {type(part): part for part in found}


def status_of(parts: Parts) -> Status:
    status = parts[Status]
    assert isinstance(status, Status)
    return status


def marker_of(parts: Parts) -> Marker | None:
    position = parts.get(Position)
    assert position is None or isinstance(position, Position)
    return None if position is None else position.marker


@pytest.mark.parametrize(
    ("changes", "status", "marker"),
    [
        ({}, RunStatus.RUNNING, Marker.ready_to_infer),
        ({"status": "starting", "current_stage": ""}, RunStatus.STARTING, Marker.preparing),
        ({"status": "paused"}, RunStatus.PAUSED, Marker.ready_to_infer),
        ({"status": "paused", "current_stage": ""}, RunStatus.PAUSED, Marker.preparing),
        ({"status": "waiting_input"}, RunStatus.WAITING_INPUT, Marker.awaiting_person),
        (
            {
                "status": "waiting_input",
                "waiting_on": {"reason": "children", "outstanding": 2},
            },
            RunStatus.WAITING_INPUT,
            Marker.waiting_for_children,
        ),
        (
            {
                "status": "waiting_input",
                "waiting_on": {"reason": "fan_out_workers", "outstanding": 2},
            },
            RunStatus.WAITING_INPUT,
            Marker.fan_out_waiting,
        ),
        (
            {"status": "complete_interactive"},
            RunStatus.COMPLETE_INTERACTIVE,
            Marker.awaiting_message,
        ),
        ({"status": "complete"}, RunStatus.COMPLETE, None),
        ({"status": "error", "error": "broke"}, RunStatus.ERROR, None),
        ({"status": "cancelled"}, RunStatus.CANCELLED, None),
    ],
)
def test_each_status_comes_back_with_what_is_next(
    changes: dict[str, Any], status: RunStatus, marker: Marker | None
) -> None:
    parts = imported(**changes)
    found = status_of(parts)
    assert (found.status, marker_of(parts)) == (status, marker)
    assert pair_is_legal(status, marker)
    assert (found.error is not None) == (status is RunStatus.ERROR)
    assert (found.paused_from is not None) == (status is RunStatus.PAUSED)
    clock = parts[Clock]
    assert isinstance(clock, Clock)
    assert (clock.ended_ms == 1_780_000_600_000) == status.is_ended


def test_a_paused_run_that_needs_set_up_keeps_both() -> None:
    waiting = {"reason": "needs_setup", "blocker": "auth_failed", "remedy": "renew the key"}
    found = status_of(imported(status="paused", waiting_on=waiting))
    assert found.paused_from is RunStatus.WAITING_INPUT
    assert found.waiting is not None
    assert (found.waiting.blocker, found.waiting.remedy) == ("auth_failed", "renew the key")


def test_the_stage_is_found_by_name_whatever_its_index() -> None:
    assert imported(stage_index=0)[Stage] == Stage(1, "write", 3)
    assert imported(current_stage="", stage_index=0)[Stage] == Stage(0, "read", 3)


def test_a_run_whose_stage_is_gone_is_held_and_says_why() -> None:
    parts = imported(current_stage="proof")
    found = status_of(parts)
    assert (found.status, found.paused_from) == (RunStatus.PAUSED, RunStatus.RUNNING)
    assert "'proof' is no longer in the blueprint at /a/old" in found.why
    assert parts[Stage] == Stage(0, "read")
    assert marker_of(parts) is Marker.ready_to_infer


def test_an_ended_run_whose_stage_is_gone_stays_ended_and_cannot_go_on() -> None:
    parts = imported(current_stage="proof", status="cancelled")
    assert status_of(parts).status is RunStatus.CANCELLED
    assert Stage not in parts


def test_the_clock_is_settled_at_the_last_write() -> None:
    clock = imported(active={"banked_secs": 410, "since": 1_780_000_500})[Clock]
    assert clock == Clock(active_ms=510_000)
    assert imported()[Clock] == Clock(kept=False)


def test_money_opens_with_what_is_known() -> None:
    unknown = imported()[Cost]
    assert unknown == Cost(10, 2, unpriced=1, computed=1)
    exact = imported(cost_usd=0.25, cost_priced_usd=0.25, cost_is_exact=True)[Cost]
    assert exact == Cost(10, 2, priced_nano=250_000_000)
    computed = imported(cost_usd=0.25, cost_priced_usd=0.25)[Cost]
    assert isinstance(computed, Cost)
    assert (computed.is_exact, computed.unpriced) == (False, 0)
    partly = imported(unpriced_calls=2, cost_priced_usd=0.5, cost_is_exact=True)
    assert partly[Cost] == Cost(10, 2, priced_nano=500_000_000, unpriced=2, computed=1)
    kept = partly[Imported]
    assert isinstance(kept, Imported)
    assert kept.priced_nano == 500_000_000


@pytest.mark.parametrize(
    ("usd", "nano"), [(0.1 + 0.2, 300_000_000), (-3.0, 0), (1e300, 2**60), (5e-324, 0)]
)
def test_an_amount_is_rounded_once_and_kept_within_bounds(usd: float, nano: int) -> None:
    assert nano_of(usd) == nano


def test_numbers_that_no_column_holds_are_bounded() -> None:
    cost = imported(prompt_tokens=2**64 - 1)[Cost]
    assert isinstance(cost, Cost)
    assert cost.prompt == 2**53


def test_stage_totals_come_by_name_and_unknown_stages_are_dropped() -> None:
    record = {"index": 0, "status": "complete", "completion_tokens": 1}
    records = msgspec.json.encode(
        [
            record | {"name": "gone", "prompt_tokens": 9},
            record | {"name": "read", "prompt_tokens": 7, "started_at": 5, "visit_count": 4},
        ]
    )
    parts = imported(stages=records)
    ledgers, visits = parts[Ledgers], parts[Visits]
    assert isinstance(ledgers, Ledgers)
    read, write = ledgers.stages
    assert (read.prompt, read.entered, read.started_ms, read.unpriced) == (7, True, 5_000, 1)
    assert (write.name, write.entered, write.prompt) == ("write", True, 0)
    assert visits == Visits((4, 1), 3, 0, 3)


def test_an_answer_is_descriptor_and_bytes() -> None:
    descriptor = {"stage": "read", "submitted_at": 7, "bytes": 2, "format": "markdown"}
    assert Output not in imported()
    document = BASE | {"final_output": descriptor}
    parts = _with_document(document, b"hi")
    assert parts[Output] == Output(inline("hi"), "read", 7_000, 2, "markdown")
    assert Output not in _with_document(document, None)
    alone = _with_document(BASE, b"\xffhi")[Output]
    assert isinstance(alone, Output)
    assert (alone.content.body, alone.stage) == ("\N{REPLACEMENT CHARACTER}hi", "write")


def _with_document(body: dict[str, Any], data: bytes | None) -> Parts:
    document = msgspec.json.encode(body)
    found = parts_from_documents(
        RunMeta.from_json(document),
        (),
        None,
        data,
        document=document,
        blueprint=BLUEPRINT,
        blueprint_digest=b"d",
    )
    return {type(part): part for part in found}


def test_the_model_asked_for_is_asked_for_again_and_not_the_one_that_was_used() -> None:
    assert imported(model="x/y")[Resolution] == Resolution("x/y", (("acme", "m"),))
    asked = imported(model_override="other/n")
    assert asked[Resolution] == Resolution(None, (("other", "n"),))
    assert imported(model_override="n")[Resolution] == Resolution(None, (("acme", "n"),))
    launch = imported()[Launch]
    assert isinstance(launch, Launch)
    assert (launch.yolo, launch.yolo_profile, launch.model_override) == (False, None, None)


def test_a_run_that_was_starting_has_its_preparation_outstanding() -> None:
    effects = imported(status="starting", current_stage="")[Effects]
    assert isinstance(effects, Effects)
    (gather,) = effects.items
    assert (gather.kind, gather.live, gather.epoch, gather.due_ms) == ("gather", True, 0, 65_000)
    assert gather.number > BASE["updated_at"], "no earlier effect had this number"  # type: ignore[operator]


def test_ids_are_checked_at_the_sink() -> None:
    for bad in ("", "..", "a/b", "x" * 300, "CON", "a\0b", "аbc"):
        with pytest.raises(ConfigError):
            imported(run_id=bad)
    check_folder(RunMeta.from_json(msgspec.json.encode(BASE)), "old-1")
    with pytest.raises(DocumentError, match="'old-1' in the folder 'copy'"):
        check_folder(RunMeta.from_json(msgspec.json.encode(BASE)), "copy")


def test_regions_come_by_name_and_go_out_as_they_came() -> None:
    entries = (
        Entry(inline("hello"), 2, "user"),
        Entry(inline(""), 1, "assistant", (AskedCall("c1", "t", inline('{"a":1}')),)),
        Entry(inline("no"), 1, "tool_result", (), "c1", "t", is_error=True),
    )
    items = (Entry(inline("write it"), 3, "open", key="k"), Entry(inline("read it"), 3, "done"))
    empty = context_of(BLUEPRINT, None, inline)
    regions = (
        msgspec.structs.replace(empty.regions[0], entries=entries, tokens=4),
        msgspec.structs.replace(empty.regions[1], entries=items, tokens=6),
    )
    context = Context(regions)
    text = snapshot_of(context, "read", BLUEPRINT, lambda text: text.body).to_json()
    snapshot = ContextSnapshot.from_json(text)
    assert [region.kind for region in snapshot.regions] == ["temporary", "checklist"]
    assert snapshot.total_tokens == 10
    assert context_of(BLUEPRINT, snapshot, inline) == context
    renamed = msgspec.structs.replace(snapshot.regions[0], name="gone")
    dropped = msgspec.structs.replace(snapshot, regions=(renamed,))
    assert context_of(BLUEPRINT, dropped, inline) == empty


def test_what_a_newer_writer_put_into_an_entry_is_kept_as_text() -> None:
    region = {
        "name": "conversation", "kind": "sliding", "current_tokens": 1, "max_tokens": 9,
        "entries": [
            {"content": [{"text": "a"}, {"image": 1}], "tokens": 1, "metadata": {"state": 3}},
            {"content": "b", "tokens": 1, "kind": {
                "type": "AssistantTurn",
                "tool_calls": [{"id": "1", "name": "t", "arguments": {"x": 1}}],
            }},
        ],
    }  # fmt: skip
    body = {"stage_name": "s", "total_tokens": 1, "max_tokens": 9, "regions": [region]}
    snapshot = ContextSnapshot.from_json(msgspec.json.encode(body))
    first, second = context_of(BLUEPRINT, snapshot, inline).regions[0].entries
    assert (first.text.body, first.kind) == ('a\n{"image":1}', "text")
    assert second.calls[0].arguments.body == '{"x":1}'
