"""RunMeta, stages.json and context.json as one function each of a run's components.

A run that was imported keeps its document beside its components. Each figure of that document
stands for as long as the fact behind it is the one that the import made of it: so a document comes
back as it was, unknown keys, raw numbers and all, and a fact that moved on is written as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import replace

from leviath.components.base import Component
from leviath.components.context import Context
from leviath.components.errors import DocumentError
from leviath.components.identity import Identity, Imported, Launch, Tree
from leviath.components.money import NANO_PER_USD
from leviath.components.output import Flags, Output, Title
from leviath.components.progress import Clock, Cost, Ledgers, Resolution, Stage, StageTotals
from leviath.components.run_status import RunStatus
from leviath.components.status import Status
from leviath.components.text import Text
from leviath.persistence.document import Document, decode_document
from leviath.persistence.importing import meta_parts, normalised
from leviath.persistence.importing_context import snapshot_of
from leviath.persistence.run_documents import ContextSnapshot, StageRecord, StageStatus
from leviath.persistence.run_meta import RunMeta
from leviath.persistence.run_meta_parts import (
    ActiveClock,
    FinalOutputDescriptor,
    OutputSpec,
    ReadPathGrantCounts,
    RunFlags,
    WaitReason,
)
from leviath.persistence.run_row import empty_output, maybe, part

if TYPE_CHECKING:
    from leviath.components.blueprint import Blueprint
    from leviath.components.secret import Secret

Parts = Mapping[type[Component], Component]
Resolve = Callable[[Text], str]
D = TypeVar("D", bound=Document)

_WAITING: Final = (RunStatus.WAITING_INPUT, RunStatus.PAUSED)
_WORKERS: Final = ("fan_out_workers", "children")
_KEPT_DOCUMENTS: Final = 1_024
_STAGE_WORDS: Final = {
    RunStatus.STARTING: StageStatus.ACTIVE,
    RunStatus.RUNNING: StageStatus.ACTIVE,
    RunStatus.PAUSED: StageStatus.ACTIVE,
    RunStatus.WAITING_INPUT: StageStatus.WAITING_INPUT,
    RunStatus.COMPLETE: StageStatus.COMPLETE,
    RunStatus.COMPLETE_INTERACTIVE: StageStatus.COMPLETE,
    RunStatus.ERROR: StageStatus.ERROR,
    RunStatus.CANCELLED: StageStatus.ERROR,
}


def body_only(text: Text) -> str:
    """The resolver for texts that all travel with their records."""
    assert not text.digest, "a text by digest needs a resolver that can read it"
    return text.body


def project_meta(
    parts: Parts,
    *,
    now_s: int,
    world_ms: int,
    children: tuple[str, ...] = (),
    secret: Secret | None = None,
    url: str | None = None,
    resolve: Resolve = body_only,
) -> RunMeta:
    """The run as its meta.json tells it, written at ``now_s`` (Unix seconds).

    ``world_ms`` is the world time of that moment: the open span of the clock ends there.
    ``children`` are the run ids that name this run as their parent; ``secret`` is the value behind
    ``Launch.callback_secret_ref``, ``url`` the one behind ``Launch.callback_url_ref``; ``resolve``
    gives the whole of a Text.
    """
    meta = _project(parts, now_s, world_ms, children, secret, resolve)
    if url is not None:
        meta = replace(meta, callback_url=url)
    imported = maybe(parts, Imported)
    if imported is None or not imported.document:
        return meta
    known = _original(imported.document)
    return meta if known is None else _restored(meta, *known, has_stage=Stage in parts)


def _project(
    parts: Parts,
    now_s: int,
    world_ms: int,
    children: tuple[str, ...],
    secret: Secret | None,
    resolve: Resolve,
) -> RunMeta:
    identity = part(parts, Identity)
    launch = part(parts, Launch)
    tree = part(parts, Tree)
    status = part(parts, Status)
    clock = part(parts, Clock)
    cost = part(parts, Cost)
    stage = maybe(parts, Stage)
    title = maybe(parts, Title)
    resolution = maybe(parts, Resolution)
    declared = launch.read_paths_declared
    priced = cost.priced_nano / NANO_PER_USD  # a quotient of integers is rounded once, correctly
    return RunMeta(
        run_id=identity.run_id,
        agent_name=identity.agent_name,
        agent_path=identity.agent_path,
        task=resolve(launch.task),
        model=None if resolution is None else resolution.entry_model,
        status=status.status,
        current_stage="" if stage is None else stage.name,
        stage_index=0 if stage is None else stage.index,
        num_stages=launch.num_stages,
        iteration=0 if stage is None else stage.iteration,
        prompt_tokens=cost.prompt,
        completion_tokens=cost.completion,
        cached_tokens=cost.cached,
        cache_write_tokens=cost.cache_write,
        tool_calls=cost.tool_calls,
        cost_usd=None if cost.unpriced else priced,
        unpriced_calls=cost.unpriced,
        cost_is_exact=cost.is_exact,
        cost_priced_usd=priced,
        workdir=launch.workdir,
        started_at=launch.started_ms // 1_000,
        updated_at=now_s,
        last_progress_at=_seconds(clock.progress_ms),
        active=_active(clock, now_s, world_ms),
        error=status.error,
        title=None if title is None else title.title,
        title_error=None if title is None else title.error,
        metadata=dict(launch.metadata),
        callback_url=launch.callback_url,
        callback_secret=secret,
        parent_run_id=tree.parent_run_id,
        children=tuple(dict.fromkeys((*tree.listed_children, *children))),
        depth=tree.depth,
        max_child_depth=tree.max_child_depth,
        flags=_flags(parts),
        yolo=launch.yolo,
        yolo_profile=launch.yolo_profile,
        read_paths=None
        if declared is None
        else ReadPathGrantCounts(declared=declared, granted=launch.read_paths_granted),
        final_output=_descriptor(maybe(parts, Output)),
        waiting_on=_wait_reason(status),
        output_request=_output_request(launch.output_request),
        model_override=launch.model_override,
    )


def _seconds(ms: int | None) -> int | None:
    return None if ms is None else ms // 1_000


def _active(clock: Clock, now_s: int, world_ms: int) -> ActiveClock | None:
    """Whole seconds so far are banked, and a clock that runs does so from this very write on."""
    if not clock.kept:
        return None
    if clock.since_ms is None:
        return ActiveClock(banked_secs=clock.active_ms // 1_000)
    open_ms = max(0, world_ms - clock.since_ms)
    return ActiveClock(banked_secs=(clock.active_ms + open_ms) // 1_000, since=now_s)


def _flags(parts: Parts) -> RunFlags:
    flags = part(parts, Flags)
    return RunFlags(
        modified_files=flags.modified_files,
        modified_file_count=flags.modified_count,
        empty_output=empty_output(parts),
        no_output_tools=part(parts, Launch).no_output_tools,
        searches_run=flags.searches_run,
        searches_empty=flags.searches_empty,
        max_iterations_hit=flags.max_iterations_hit,
        gates_forced=flags.gates_forced,
        required_regions_abandoned=flags.required_abandoned,
        workspace_lost=flags.workspace_lost,
        produced_output=Output in parts or flags.imported_produced_output,
        output_forced=flags.output_forced,
        splits_degraded=flags.splits_degraded,
        broken_scripts=flags.broken_scripts,
    )


def _descriptor(output: Output | None) -> FinalOutputDescriptor | None:
    if output is None:
        return None
    return FinalOutputDescriptor(
        format=output.format,
        stage=output.stage,
        submitted_at=output.submitted_ms // 1_000,
        bytes=output.size_bytes,
        truncated=output.truncated,
    )


def _wait_reason(status: Status) -> WaitReason | None:
    waiting = status.waiting
    if waiting is None or status.status not in _WAITING:
        return None
    if waiting.reason in _WORKERS:
        return WaitReason(reason=waiting.reason, outstanding=waiting.outstanding)
    if waiting.reason == "needs_setup":
        return WaitReason.needs_setup(waiting.blocker, waiting.remedy)
    return WaitReason(reason=waiting.reason)


def _output_request(text: str | None) -> OutputSpec | None:
    if text is None:
        return None
    try:
        return decode_document(OutputSpec, text)
    except DocumentError:
        # Checked at spawn; a text that slipped through must not keep a run from being written.
        return OutputSpec(instructions=text)


# --- what an import said first --------------------------------------------------------------------


@lru_cache(maxsize=_KEPT_DOCUMENTS)
def _original(document: bytes) -> tuple[RunMeta, RunMeta] | None:
    """The normalised document, and what its facts alone project to."""
    try:
        original = normalised(RunMeta.from_json(document))
    except DocumentError:
        return None
    base = _project(meta_parts(original), original.updated_at, 0, (), None, body_only)
    return original, base


def _restored(meta: RunMeta, original: RunMeta, base: RunMeta, *, has_stage: bool) -> RunMeta:
    restored = _merged(meta, original, base)
    active = restored.active
    if active is not None and meta.active is not None:
        active = replace(active, since=meta.active.since)
    more: dict[str, object] = {"updated_at": meta.updated_at, "active": active}
    more["callback_secret"] = meta.callback_secret
    if not has_stage:
        # An ended run whose stage is not in its blueprint: nothing here can have moved it.
        more.update(
            current_stage=original.current_stage,
            stage_index=original.stage_index,
            iteration=original.iteration,
        )
    if meta.cost_usd is None or base.cost_priced_usd != meta.cost_priced_usd:
        # The total is never told from one figure and its parts from another.
        more["cost_usd"] = meta.cost_usd
    return replace(restored, **more)


def _merged(now: D, original: D, base: D) -> D:
    """``original`` where ``now`` still says what ``base`` said, else ``now``; unknown keys stay."""
    values: dict[str, Any] = {}
    for name in now.__struct_fields__:
        ours, before, then = getattr(now, name), getattr(base, name), getattr(original, name)
        if name == "unknown":
            values[name] = then
        elif (
            name in now.NESTED
            and isinstance(ours, Document)
            and isinstance(before, Document)
            and isinstance(then, Document)
            and name not in _WHOLE
        ):
            values[name] = _merged(ours, then, before)
        else:
            values[name] = then if ours == before else ours
    return type(now)(**values)


_WHOLE: Final = ("final_output", "waiting_on", "output_request", "read_paths")
"""Taken as one: their keys belong together."""


# --- the other documents --------------------------------------------------------------------------


def project_stages(parts: Parts) -> tuple[StageRecord, ...]:
    """One record a stage of the blueprint, as ``stages.json`` tells them."""
    ledgers = maybe(parts, Ledgers)
    if ledgers is None:
        return ()
    status = part(parts, Status).status
    stage = maybe(parts, Stage)
    current = -1 if stage is None else stage.index
    return tuple(
        _stage_record(index, row, _stage_word(row, status, is_current=index == current))
        for index, row in enumerate(ledgers.stages)
    )


def _stage_word(row: StageTotals, status: RunStatus, *, is_current: bool) -> StageStatus:
    if is_current:
        return _STAGE_WORDS[status]
    if row.entered:
        return StageStatus.COMPLETE
    return StageStatus.SKIPPED if status.is_ended else StageStatus.PENDING


def _stage_record(index: int, row: StageTotals, word: StageStatus) -> StageRecord:
    priced = row.priced_nano / NANO_PER_USD
    return StageRecord(
        name=row.name,
        index=index,
        status=word,
        entered=row.entered,
        started_at=_seconds(row.started_ms),
        ended_at=_seconds(row.ended_ms),
        prompt_tokens=row.prompt,
        completion_tokens=row.completion,
        cached_tokens=row.cached,
        cache_write_tokens=row.cache_write,
        cost_usd=None if row.unpriced else priced,
        unpriced_calls=row.unpriced,
        cost_is_exact=row.computed == 0 and row.unpriced == 0,
        cost_priced_usd=priced,
        visit_count=row.visits,
    )


def project_context(
    parts: Parts, resolve: Resolve = body_only, *, blueprint: Blueprint | None = None
) -> ContextSnapshot:
    """What the model would see next; ``blueprint`` says of which kind each region is."""
    stage = maybe(parts, Stage)
    context = maybe(parts, Context)
    name = "" if stage is None else stage.name
    return snapshot_of(Context() if context is None else context, name, blueprint, resolve)
