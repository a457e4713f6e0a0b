"""Documents of a run, of generation A or B, turned into the components of a run of this world.

What a document says and no component can express is kept in ``Imported.document`` and written back
by ``persistence.projection`` for as long as the facts behind it have not changed.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from leviath.components.base import Component
from leviath.components.clean import clean_text
from leviath.components.context import Context
from leviath.components.effects import Effect, Effects, Inbox
from leviath.components.errors import DocumentError
from leviath.components.identity import Identity, Imported, Launch, Tree
from leviath.components.marker import Marker
from leviath.components.money import NANO_PER_USD
from leviath.components.output import Flags, Output, Title
from leviath.components.progress import (
    Clock,
    Cost,
    Ledgers,
    Resolution,
    Stage,
    StageTotals,
    Visits,
)
from leviath.components.run_id import check_run_id
from leviath.components.run_status import RunStatus
from leviath.components.status import Position, Status, Waiting
from leviath.components.text import Text, inline
from leviath.persistence.document import encode_document
from leviath.persistence.importing_context import context_of
from leviath.persistence.run_documents import stages_from_json
from leviath.persistence.run_meta import RunMeta
from leviath.persistence.run_meta_parts import ActiveClock, FinalOutputDescriptor, WaitReason

if TYPE_CHECKING:
    from leviath.components.blueprint import Blueprint
    from leviath.persistence.run_documents import ContextSnapshot, StageRecord

Parts = dict[type[Component], Component]
Intern = Callable[[str], Text]

_COUNT_MAX: Final = 2**53
"""A document may hold more; what is counted on from here must still fit a column."""
_SECONDS_MAX: Final = 2**53
_NANO_MAX: Final = 2**60
_USD_MAX: Final = 1_000_000_000
"""More than any run costs, and less than what fits a column."""
assert _USD_MAX * NANO_PER_USD <= _NANO_MAX
_GATHER_MS: Final = 60_000
_WORKING_WAITS: Final = ("fan_out_workers", "children")
_AT_REST: Final = MappingProxyType(
    {
        RunStatus.STARTING: Marker.preparing,
        RunStatus.RUNNING: Marker.ready_to_infer,
        RunStatus.COMPLETE_INTERACTIVE: Marker.awaiting_message,
    }
)
_WAITS: Final = MappingProxyType(
    {"fan_out_workers": Marker.fan_out_waiting, "children": Marker.waiting_for_children}
)


def nano_of(usd: float) -> int:
    """Nano-dollars of an amount in a document, rounded to the nearest; never negative."""
    return min(max(0, round(Fraction(usd) * NANO_PER_USD)), _NANO_MAX)


def normalised(meta: RunMeta) -> RunMeta:
    """The document as this version would have written it; one of ours is returned unchanged.

    A cost that is null without an unpriced call is unknown, so one call counts as unpriced; a text
    of an error stands with status error only, a reason to wait with a status that waits; the clock
    is settled at the last write, and runs on from there exactly while the run works.
    """
    waits = meta.status in (RunStatus.WAITING_INPUT, RunStatus.PAUSED)
    unpriced = meta.unpriced_calls
    if meta.cost_usd is None and not unpriced:
        unpriced = 1
    total = None if unpriced else meta.cost_usd
    return replace(
        meta,
        error=meta.error if meta.status is RunStatus.ERROR else None,
        waiting_on=meta.waiting_on if waits else None,
        unpriced_calls=unpriced,
        cost_usd=total,
        cost_priced_usd=meta.cost_priced_usd if total is None else total,
        cost_is_exact=meta.cost_is_exact and not unpriced,
        active=_settled(meta),
    )


def _settled(meta: RunMeta) -> ActiveClock | None:
    clock = meta.active
    if clock is None:
        return None
    banked = min(clock.total_secs(meta.updated_at), 2**64 - 1)
    since = meta.updated_at if _clock_runs(meta.status, meta.waiting_on) else None
    return replace(clock, banked_secs=banked, since=since)


def _clock_runs(status: RunStatus, waiting: WaitReason | None) -> bool:
    if status is RunStatus.WAITING_INPUT:
        return waiting is not None and waiting.reason in _WORKING_WAITS
    return status in (RunStatus.STARTING, RunStatus.RUNNING)


def meta_parts(meta: RunMeta, *, intern: Intern = inline) -> Parts:
    """The facts of a normalised document alone: no blueprint, no context, the clock standing."""
    priced = nano_of(meta.cost_priced_usd)
    parts: Parts = {
        Identity: Identity(
            meta.run_id, 0, clean_text(meta.agent_name), clean_text(meta.agent_path)
        ),
        Launch: _launch(meta, intern),
        Tree: Tree(
            parent_run_id=meta.parent_run_id,
            depth=_count(meta.depth),
            max_child_depth=_count(meta.max_child_depth),
            listed_children=tuple(map(clean_text, meta.children)),
        ),
        Status: _status(meta),
        Clock: _clock(meta),
        Cost: Cost(
            prompt=_count(meta.prompt_tokens),
            completion=_count(meta.completion_tokens),
            cached=_count(meta.cached_tokens),
            cache_write=_count(meta.cache_write_tokens),
            tool_calls=_count(meta.tool_calls),
            priced_nano=priced,
            unpriced=_count(meta.unpriced_calls),
            # One call stands for all that made the total inexact, so that it never becomes exact.
            computed=0 if meta.cost_is_exact else 1,
        ),
        Resolution: Resolution(None if meta.model is None else clean_text(meta.model)),
        Flags: _flags(meta),
    }
    if meta.current_stage:
        stage = clean_text(meta.current_stage)
        parts[Stage] = Stage(_count(meta.stage_index), stage, _count(meta.iteration))
    if meta.final_output is not None:
        parts[Output] = _output(meta.final_output)
    if meta.title is not None or meta.title_error is not None:
        parts[Title] = Title(_clean(meta.title), _clean(meta.title_error))
    return parts


def parts_from_documents(
    meta: RunMeta,
    stages: tuple[StageRecord, ...],
    context: ContextSnapshot | None,
    final_output: bytes | None,
    *,
    document: bytes,
    blueprint: Blueprint,
    blueprint_digest: bytes,
    intern: Intern = inline,
    world_ms: int = 0,
    secret_ref: str | None = None,
) -> list[Component]:
    """All components of the run that those documents tell of, for an Import input.

    ``document`` is the meta.json as found, ``final_output`` the bytes of the answer or None,
    ``intern`` makes a Text of a text. The run's stage is found by name. If the blueprint has no
    such stage, a run that has not ended comes back paused at the entry stage, and its status says
    why. A run that was starting has its preparation outstanding, in epoch 0: settle it.

    Raises ConfigError for a run id that is none.
    """
    check_run_id(meta.run_id)
    meta = normalised(meta)
    parts = meta_parts(meta, intern=intern)
    launch = parts[Launch]
    assert isinstance(launch, Launch)
    parts[Launch] = replace(
        launch,
        blueprint=blueprint_digest,
        num_stages=launch.num_stages if meta.status.is_ended else len(blueprint.stages),
        callback_secret_ref=secret_ref,
    )
    _place_stage(parts, meta, blueprint)
    _place_output(parts, meta, final_output, intern)
    parts[Ledgers], parts[Visits] = _totals(meta, stages, blueprint, parts)
    parts[Resolution] = Resolution(_clean(meta.model), _candidates(meta, blueprint, parts))
    parts[Context] = context_of(blueprint, context, intern)
    parts[Effects] = _effects(meta, parts, world_ms)
    parts[Inbox] = Inbox()
    parts[Imported] = Imported(document, nano_of(meta.cost_priced_usd))
    marker = _marker(parts)
    if marker is not None:
        parts[Position] = Position(marker, 0)
    return list(parts.values())


def find_stage(blueprint: Blueprint, name: str, index: int) -> int | None:
    """The stage's place by its name; by index for a document that names none; else None."""
    if not name:
        return index if index < len(blueprint.stages) else None
    try:
        return blueprint.stage_index(name)
    except KeyError:
        return None


def _place_stage(parts: Parts, meta: RunMeta, blueprint: Blueprint) -> None:
    waits = meta.status in (RunStatus.STARTING, RunStatus.PAUSED)
    if not meta.current_stage and (waits or meta.status.is_ended):
        # It was not in its first stage yet, or never came there.
        return
    parts.pop(Stage, None)
    index = find_stage(blueprint, clean_text(meta.current_stage), meta.stage_index)
    if index is not None:
        name = blueprint.stages[index].name
        parts[Stage] = Stage(index, name, _count(meta.iteration))
    elif not meta.status.is_ended:
        entry = blueprint.stages[blueprint.entry].name
        parts[Stage] = Stage(blueprint.entry, entry)
        status = parts[Status]
        assert isinstance(status, Status)
        parts[Status] = Status(
            RunStatus.PAUSED,
            why=(
                f"its stage {clean_text(meta.current_stage)!r} is no longer in the blueprint at "
                f"{clean_text(meta.agent_path)}; resume it to go on at {entry!r}, or cancel it"
            ),
            paused_from=RunStatus.RUNNING,
        )


def _place_output(parts: Parts, meta: RunMeta, data: bytes | None, intern: Intern) -> None:
    """An answer is descriptor and bytes; without bytes there is none, without descriptor one is
    made of what is known."""
    output = parts.pop(Output, None)
    if data is None:
        return
    text = clean_text(data.decode("utf-8", "replace"))
    content = intern(text)
    if isinstance(output, Output):
        parts[Output] = replace(output, content=content, size_bytes=content.size_bytes)
    else:
        submitted_ms = _ms(meta.updated_at)
        stage = clean_text(meta.current_stage)
        parts[Output] = Output(content, stage, submitted_ms, content.size_bytes)


def _totals(
    meta: RunMeta, records: tuple[StageRecord, ...], blueprint: Blueprint, parts: Parts
) -> tuple[Ledgers, Visits]:
    known = {clean_text(record.name): record for record in records}
    rows: list[StageTotals] = []
    for stage in blueprint.stages:
        record = known.get(stage.name)
        rows.append(StageTotals(stage.name) if record is None else _stage_totals(record))
    current = parts.get(Stage)
    if isinstance(current, Stage) and not rows[current.index].entered:
        row = rows[current.index]
        rows[current.index] = replace(row, entered=True, visits=max(1, row.visits))
    turns = _count(meta.iteration)
    return Ledgers(tuple(rows)), Visits(tuple(row.visits for row in rows), turns, 0, turns)


def _stage_totals(record: StageRecord) -> StageTotals:
    unpriced = record.unpriced_calls
    if (
        record.cost_usd is None
        and not unpriced
        and (record.prompt_tokens or record.cost_priced_usd)
    ):
        unpriced = 1
    entered = record.entered or bool(record.prompt_tokens or record.completion_tokens)
    return StageTotals(
        clean_text(record.name),
        entered,
        _count(record.prompt_tokens),
        _count(record.completion_tokens),
        _count(record.cached_tokens),
        _count(record.cache_write_tokens),
        nano_of(record.cost_priced_usd),
        _count(unpriced),
        # A stage that was never entered made no call that could be inexact.
        0 if record.cost_is_exact or not entered else 1,
        None if record.started_at is None else _ms(record.started_at),
        None if record.ended_at is None else _ms(record.ended_at),
        max(_count(record.visit_count), 1 if entered else 0),
    )


def _candidates(meta: RunMeta, blueprint: Blueprint, parts: Parts) -> tuple[tuple[str, str], ...]:
    stage = parts.get(Stage)
    spec = blueprint.stages[stage.index if isinstance(stage, Stage) else blueprint.entry]
    override = clean_text(meta.model_override or "")
    if not override:
        return tuple((ref.provider, ref.model) for ref in spec.model.models)
    provider, slash, model = override.partition("/")
    return ((provider, model) if slash else (spec.model.models[0].provider, override),)


def _effects(meta: RunMeta, parts: Parts, world_ms: int) -> Effects:
    """No effect number is used twice: they count on from the second of the last write."""
    counter = max(0, min(meta.updated_at, _SECONDS_MAX))
    calls = _count(meta.tool_calls)
    status = parts[Status]
    assert isinstance(status, Status)
    if RunStatus.STARTING not in (status.status, status.paused_from):
        return Effects(counter, calls)
    gather = Effect(
        number=counter + 1,
        kind="gather",
        ordinal=1,
        epoch=0,
        due_ms=world_ms + _GATHER_MS,
        started_ms=world_ms,
    )
    return Effects(counter + 1, calls, 1, (gather,))


def _marker(parts: Parts) -> Marker | None:
    status = parts[Status]
    assert isinstance(status, Status)
    resting = status.status
    if resting is RunStatus.PAUSED:
        resting = status.paused_from or RunStatus.RUNNING
    if resting is RunStatus.WAITING_INPUT:
        reason = "" if status.waiting is None else status.waiting.reason
        return _WAITS.get(reason, Marker.awaiting_person)
    return _AT_REST.get(resting)


# --- one component each ---------------------------------------------------------------------------


def _launch(meta: RunMeta, intern: Intern) -> Launch:
    request = meta.output_request
    counts = meta.read_paths
    return Launch(
        task=intern(clean_text(meta.task)),
        workdir=clean_text(meta.workdir),
        blueprint=b"",
        started_ms=_ms(meta.started_at),
        model_override=_clean(meta.model_override),
        yolo=meta.yolo,
        yolo_profile=_clean(meta.yolo_profile),
        output_request=None if request is None else encode_document(request, indent=0).decode(),
        metadata=tuple((clean_text(k), clean_text(v)) for k, v in meta.metadata.items()),
        callback_url=_clean(meta.callback_url),
        num_stages=_count(meta.num_stages),
        no_output_tools=meta.flags.no_output_tools,
        read_paths_declared=None if counts is None else _count(counts.declared),
        read_paths_granted=0 if counts is None else _count(counts.granted),
    )


def _status(meta: RunMeta) -> Status:
    status = meta.status
    waiting = None if meta.waiting_on is None else _waiting(meta.waiting_on)
    if status is RunStatus.WAITING_INPUT:
        # A reason is owed; older documents had no key for it, and only a person can know.
        return Status(status, why="imported", waiting=waiting or Waiting("user_prompt"))
    if status is RunStatus.PAUSED:
        back = RunStatus.RUNNING if meta.current_stage else RunStatus.STARTING
        back = back if waiting is None else RunStatus.WAITING_INPUT
        return Status(status, why="imported", waiting=waiting, paused_from=back)
    error = clean_text(meta.error or "") if status is RunStatus.ERROR else None
    return Status(status, error, why="imported")


def _waiting(reason: WaitReason) -> Waiting:
    return Waiting(
        clean_text(reason.reason),
        clean_text(reason.blocker or ""),
        clean_text(reason.remedy or ""),
        _count(reason.outstanding or 0),
    )


def _clock(meta: RunMeta) -> Clock:
    active = meta.active
    progress = meta.last_progress_at
    return Clock(
        progress_ms=None if progress is None else _ms(progress),
        active_ms=0 if active is None else _ms(min(active.banked_secs, _SECONDS_MAX)),
        ended_ms=_ms(meta.updated_at) if meta.status.is_ended else None,
        kept=active is not None,
    )


def _flags(meta: RunMeta) -> Flags:
    flags = meta.flags
    return Flags(
        tuple(map(clean_text, flags.modified_files)),
        _count(flags.modified_file_count),
        _count(flags.searches_run),
        _count(flags.searches_empty),
        _count(flags.max_iterations_hit),
        _count(flags.gates_forced),
        _count(flags.output_forced),
        _count(flags.splits_degraded),
        tuple(map(clean_text, flags.required_regions_abandoned)),
        flags.workspace_lost,
        tuple(map(clean_text, flags.broken_scripts)),
        imported_produced_output=flags.produced_output,
    )


def _output(descriptor: FinalOutputDescriptor) -> Output:
    return Output(
        Text(),
        clean_text(descriptor.stage),
        _ms(descriptor.submitted_at),
        _count(descriptor.bytes),
        _clean(descriptor.format),
        descriptor.truncated,
    )


def _clean(text: str | None) -> str | None:
    return None if text is None else clean_text(text)


def _count(number: int) -> int:
    return min(number, _COUNT_MAX)


def _ms(seconds: int) -> int:
    return max(-_SECONDS_MAX, min(seconds, _SECONDS_MAX)) * 1_000


def check_amounts(document: RunMeta | StageRecord) -> None:
    """Refuse a cost that nothing can have cost: what is counted on from here would be wrong.

    Raises DocumentError, whose ``field`` is the key.
    """
    for name in document.DOLLARS:
        usd: float | None = getattr(document, name)
        if usd is not None and not 0 <= usd <= _USD_MAX:
            raise DocumentError(
                f"`{name}` is {usd!r}: a cost is from 0 to {_USD_MAX:,} dollars; correct the "
                "document, or restore it from a copy",
                field=name,
            )


def checked_stages(text: bytes) -> tuple[StageRecord, ...]:
    """The records of a ``stages.json`` that may come in. Raises DocumentError."""
    records = stages_from_json(text)
    for index, record in enumerate(records):
        try:
            check_amounts(record)
        except DocumentError as error:
            raise DocumentError(
                f"stage {index}: {error.message}", field=f"[{index}].{error.field}"
            ) from error
    return records


def check_folder(meta: RunMeta, folder: str) -> None:
    """Refuse a document whose run id is not its folder's name. Raises DocumentError."""
    if meta.run_id != folder:
        raise DocumentError(
            f"`run_id` is {meta.run_id[:128]!r} in the folder {folder!r}; rename the folder or "
            "correct the document",
            field="run_id",
        )
