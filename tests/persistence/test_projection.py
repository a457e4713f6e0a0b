"""What components say is what meta.json says; a document that comes in goes out as it was."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from strategies_run_meta import run_metas

from leviath.components.base import Component
from leviath.components.blueprint import Blueprint, RegionSpec, StageSpec, digest
from leviath.components.identity import Imported, Launch
from leviath.components.output import Flags, Output
from leviath.components.parts import DECODERS
from leviath.components.progress import Clock, Cost, Stage, StageTotals
from leviath.components.progress import Ledgers as LedgersPart
from leviath.components.run_status import RunStatus
from leviath.components.secret import Secret
from leviath.components.status import Status, Waiting
from leviath.components.text import Text, inline
from leviath.persistence.importing import normalised, parts_from_documents
from leviath.persistence.projection import project_meta, project_stages
from leviath.persistence.run_documents import StageStatus
from leviath.persistence.run_meta import RunMeta

Parts = dict[type[Component], Component]

STAGES = tuple(StageSpec(name=f"s{n}") for n in range(3))
BLUEPRINT = Blueprint(stages=STAGES, regions=(RegionSpec(name="conversation"),))
MINIMAL = b"""{"run_id":"old-1780000000-abcdefabcdef","agent_name":"old","agent_path":"/a/old",
 "task":"t","status":"running","current_stage":"s1","stage_index":1,"num_stages":3,"iteration":3,
 "prompt_tokens":10,"completion_tokens":2,"workdir":"/w","started_at":1780000000,
 "updated_at":1780000600}"""


def imported(document: bytes, final_output: bytes | None = b"answer", **more: Any) -> Parts:
    """The components of a document, as they are after the trip through an Import input."""
    found = parts_from_documents(
        RunMeta.from_json(document),
        (),
        None,
        final_output,
        document=document,
        blueprint=BLUEPRINT,
        blueprint_digest=digest(BLUEPRINT),
        **more,
    )
    parts: Parts = {}
    for part in found:
        body = msgspec.msgpack.encode(part)
        parts[type(part)] = DECODERS[type(part).__name__].decode(body)
    return parts


def projected(parts: Parts, now_s: int = 1_790_000_900, **more: Any) -> RunMeta:
    return project_meta(parts, now_s=now_s, world_ms=0, **more)


def fitting(meta: RunMeta, index: int) -> RunMeta:
    """The document as the blueprint of this file could have brought it forth."""
    if meta.status is RunStatus.STARTING:
        meta = replace(meta, current_stage="", stage_index=0, iteration=0)
    else:
        meta = replace(meta, current_stage=STAGES[index].name, stage_index=index)
    output = meta.final_output
    if output is not None:
        meta = replace(meta, final_output=replace(output, bytes=len(b"answer")))
    return replace(meta, run_id="run-1", num_stages=len(STAGES))


def went_in_and_out(meta: RunMeta) -> RunMeta:
    document = meta.to_json()
    parts = imported(document, None if meta.final_output is None else b"answer")
    return projected(parts, meta.updated_at, secret=meta.callback_secret)


def without_restart(meta: RunMeta) -> RunMeta:
    """Aside from the one thing that a restart decides: from when a clock runs on."""
    active = None if meta.active is None else replace(meta.active, since=None)
    return replace(meta, active=active)


@given(run_metas, st.integers(0, 2))
def test_a_document_comes_back_as_it_was(meta: RunMeta, index: int) -> None:
    meta = RunMeta.from_json(normalised(fitting(meta, index)).to_json())
    back = went_in_and_out(meta)
    assert without_restart(back) == without_restart(meta)
    assert RunMeta.from_json(back.to_json()) == back


@given(run_metas, st.integers(0, 2))
def test_any_document_is_normalised_once_and_stable_after_that(meta: RunMeta, index: int) -> None:
    once = went_in_and_out(fitting(meta, index))
    assert without_restart(went_in_and_out(once)) == without_restart(once)


def test_a_document_of_the_oldest_kind_is_never_read_as_free_or_exact() -> None:
    once = projected(imported(MINIMAL, None), 1_780_000_600)
    assert (once.cost_usd, once.unpriced_calls, once.cost_is_exact) == (None, 1, False)
    assert once.active is None
    assert once.yolo is False
    again = projected(imported(once.to_json(), None), 1_780_000_600)
    assert again == once


def test_figures_stand_until_the_fact_behind_them_moves() -> None:
    body = msgspec.json.decode(MINIMAL)
    body |= {"cost_usd": 0.1 + 0.2, "cost_priced_usd": 0.1 + 0.2, "cost_is_exact": False}
    body |= {"later": {"x": [1]}, "tool_calls": 7}
    parts = imported(msgspec.json.encode(body), None)
    assert projected(parts).cost_usd == 0.1 + 0.2
    cost = parts[Cost]
    assert isinstance(cost, Cost)
    parts[Cost] = replace(cost, priced_nano=cost.priced_nano + 5, tool_calls=8)
    moved = projected(parts)
    assert (moved.cost_usd, moved.cost_priced_usd) == (0.300000005, 0.300000005)
    assert (moved.tool_calls, moved.cost_is_exact) == (8, False)
    assert b'"later"' in moved.to_json()


def test_an_unpriced_call_after_the_import_makes_the_total_unknown() -> None:
    body = msgspec.json.decode(MINIMAL) | {"cost_usd": 0.5, "cost_priced_usd": 0.5}
    parts = imported(msgspec.json.encode(body), None)
    cost = parts[Cost]
    assert isinstance(cost, Cost)
    parts[Cost] = replace(cost, unpriced=1)
    assert (projected(parts).cost_usd, projected(parts).cost_priced_usd) == (None, 0.5)


def fresh(**changes: Component) -> Parts:
    parts = imported(MINIMAL, None)
    del parts[Imported]
    parts[Cost] = Cost()
    for part in changes.values():
        parts[type(part)] = part
    return parts


def test_the_clock_banks_whole_seconds_and_runs_on_from_the_write() -> None:
    meta = project_meta(
        fresh(clock=Clock(active_ms=1_500, since_ms=10_000)), now_s=77, world_ms=12_600
    )
    assert meta.active is not None
    assert (meta.active.banked_secs, meta.active.since) == (4, 77)
    stopped = project_meta(fresh(clock=Clock(active_ms=1_500)), now_s=77, world_ms=12_600)
    assert stopped.active is not None
    assert (stopped.active.banked_secs, stopped.active.since) == (1, None)
    assert projected(fresh(clock=Clock(kept=False, since_ms=1))).active is None


@pytest.mark.parametrize(
    ("nano", "usd"), [(412_500_000, 0.4125), (1, 1e-9), (0, 0.0), (2**53 + 1, 9007199.254740993)]
)
def test_money_is_the_nearest_float(nano: int, usd: float) -> None:
    meta = projected(fresh(cost=Cost(priced_nano=nano)))
    assert (meta.cost_usd, meta.cost_priced_usd, meta.cost_is_exact) == (usd, usd, True)


def test_a_reason_to_wait_shows_while_the_run_waits_or_is_paused() -> None:
    waiting = Waiting("needs_setup", "provider_missing", "add it")
    for status in (RunStatus.WAITING_INPUT, RunStatus.PAUSED):
        found = projected(fresh(status=Status(status, waiting=waiting))).waiting_on
        assert found is not None
        assert (found.blocker, found.remedy) == ("provider_missing", "add it")
    assert projected(fresh(status=Status(RunStatus.RUNNING, waiting=waiting))).waiting_on is None


def test_an_ended_run_without_anything_to_show_says_so() -> None:
    ended = fresh(status=Status(RunStatus.COMPLETE), flags=Flags())
    assert projected(ended).flags.empty_output is True
    ended[Output] = Output(inline("x"), "s1", 5_000, 1)
    meta = projected(ended)
    assert (meta.flags.empty_output, meta.flags.produced_output) == (False, True)
    assert meta.final_output is not None
    assert meta.final_output.submitted_at == 5


def test_children_are_those_listed_and_those_known() -> None:
    body = msgspec.json.decode(MINIMAL) | {"children": ["a", "b"]}
    parts = imported(msgspec.json.encode(body), None)
    assert projected(parts, children=("b", "c")).children == ("a", "b", "c")


def test_the_secret_is_in_the_private_text_only() -> None:
    meta = projected(fresh(), secret=Secret("canary"))
    assert b"canary" in meta.to_json()
    assert b"canary" not in meta.to_public_json()


def test_a_task_by_digest_is_written_whole() -> None:
    launch = fresh()[Launch]
    assert isinstance(launch, Launch)
    parts = fresh(launch=replace(launch, task=replace(inline(""), digest=b"d", size_bytes=4)))

    def resolve(text: Text) -> str:
        return "long" if text.digest else text.body

    assert projected(parts, resolve=resolve).task == "long"


def test_stages_tell_where_the_run_is() -> None:
    rows = (
        StageTotals("s0", entered=True, prompt=3, priced_nano=10**9, visits=1, started_ms=1_999),
        StageTotals("s1", entered=True, unpriced=1),
        StageTotals("s2"),
    )
    parts = fresh(ledgers=LedgersPart(rows), stage=Stage(1, "s1"))
    words = [record.status for record in project_stages(parts)]
    assert words == [StageStatus.COMPLETE, StageStatus.ACTIVE, StageStatus.PENDING]
    parts[Status] = Status(RunStatus.CANCELLED)
    words = [record.status for record in project_stages(parts)]
    assert words == [StageStatus.COMPLETE, StageStatus.ERROR, StageStatus.SKIPPED]
    first, second, _ = project_stages(parts)
    assert (first.cost_usd, first.cost_is_exact, first.started_at) == (1.0, True, 1)
    assert (second.cost_usd, second.cost_is_exact) == (None, False)
