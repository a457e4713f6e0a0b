"""The other documents of a run's folder: ``stages.json`` and ``context.json``, generation B."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import ClassVar

import msgspec

from leviath.components.errors import DocumentError
from leviath.persistence import json_text
from leviath.persistence.document import (
    Count,
    Document,
    DocumentTypes,
    UnixSeconds,
    Variant,
    decode_document,
    decode_list,
    encode_document,
    encode_list,
)
from leviath.persistence.run_meta_parts import ActiveClock


class StageStatus(str, Enum):  # noqa: UP042 - as RunStatus; str() of a StrEnum would differ
    """What became of one stage of a run. The value is the word of the file."""

    PENDING = "pending"
    ACTIVE = "active"
    WAITING_INPUT = "waiting_input"
    COMPLETE = "complete"
    ERROR = "error"
    SKIPPED = "skipped"


def _span_secs(clock: ActiveClock | None, start: int | None, end: int | None, now: int) -> int:
    if clock is not None:
        return clock.total_secs(now)
    return 0 if start is None else max(0, (now if end is None else end) - start)


class Visit(Document, frozen=True, kw_only=True):
    """One stay in a stage, from entry to leaving; what it cost as in RunMeta."""

    SKIPPED_EMPTY: ClassVar[tuple[str, ...]] = ("id",)
    DOLLARS: ClassVar[tuple[str, ...]] = ("cost_usd", "cost_priced_usd")
    NESTED: ClassVar[DocumentTypes] = {"active": ActiveClock}

    id: str = ""
    entered_at: UnixSeconds
    left_at: UnixSeconds | None = None
    prompt_tokens: Count
    completion_tokens: Count
    cached_tokens: Count
    cache_write_tokens: Count
    cost_usd: float | None = None
    unpriced_calls: Count
    cost_is_exact: bool
    cost_priced_usd: float
    active: ActiveClock | None = None

    def active_runtime_secs(self, now: int) -> int:
        """Seconds worked in this visit at ``now``; without a clock, from entry to leaving."""
        return _span_secs(self.active, self.entered_at, self.left_at, now)


class StageRecord(Document, frozen=True, kw_only=True):
    """One stage of a run's blueprint and what happened in it, all visits together."""

    DOLLARS: ClassVar[tuple[str, ...]] = ("cost_usd", "cost_priced_usd")
    NESTED: ClassVar[DocumentTypes] = {"active": ActiveClock}
    NESTED_LISTS: ClassVar[DocumentTypes] = {"visits": Visit}

    name: str
    index: Count
    status: StageStatus
    entered: bool = False
    """Sticky: whether the run was ever in it."""
    started_at: UnixSeconds | None = None
    ended_at: UnixSeconds | None = None
    prompt_tokens: Count
    completion_tokens: Count
    cached_tokens: Count = 0
    cache_write_tokens: Count = 0
    region_tokens: dict[str, Count] = msgspec.field(default_factory=dict[str, Count])
    """The most tokens each region held."""
    first_call_prompt_tokens: Count | None = None
    runaway_warned: bool = False
    cost_usd: float | None = None
    unpriced_calls: Count = 0
    cost_is_exact: bool = False
    cost_priced_usd: float = 0.0
    visits: tuple[Visit, ...] = ()
    """Capped by the writer; ``visit_count`` and the totals go on."""
    visit_count: Count = 0
    output_cap_raised: bool = False
    active: ActiveClock | None = None

    def active_runtime_secs(self, now: int) -> int:
        """Seconds worked in this stage at ``now``; without a clock, from start to end or 0."""
        return _span_secs(self.active, self.started_at, self.ended_at, now)


def stages_from_json(text: bytes | str) -> tuple[StageRecord, ...]:
    """The records of a ``stages.json``. Raises DocumentError as ``RunMeta.from_json`` does."""
    try:
        return decode_list(StageRecord, text)
    except DocumentError as error:
        raise json_text.named(error, "stages document") from error.__cause__


def stages_to_json(stages: Iterable[StageRecord]) -> bytes:
    """The text of ``stages.json``: a pretty array in the blueprint's order."""
    return encode_list(stages)


def load_stages(path: str | os.PathLike[str]) -> tuple[StageRecord, ...]:
    """``stages_from_json`` of the file at ``path``; a file that is missing is a DocumentError."""
    try:
        return stages_from_json(json_text.read_bounded(path))
    except DocumentError as error:
        raise json_text.named(error, os.fspath(path)) from error.__cause__


class ToolCallRecord(Document, frozen=True, kw_only=True):
    """A call that the model asked for in one of its turns."""

    SKIPPED_NULL: ClassVar[tuple[str, ...]] = ("thought_signature",)

    id: str
    name: str
    arguments: object
    """JSON, or the text that was meant to be JSON."""
    thought_signature: str | None = None


class EntryKind(Variant, frozen=True, kw_only=True):
    """Whose words an entry holds: Text, UserMessage, AssistantTurn or ToolResult."""

    TAG: ClassVar[str] = "type"
    COMPANIONS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "AssistantTurn": ("tool_calls",),
        "ToolResult": ("tool_call_id", "tool_name", "is_error"),
    }
    SKIPPED_NULL: ClassVar[tuple[str, ...]] = (
        "tool_calls",
        "tool_call_id",
        "tool_name",
        "is_error",
    )
    NESTED_LISTS: ClassVar[DocumentTypes] = {"tool_calls": ToolCallRecord}

    type: str
    tool_calls: tuple[ToolCallRecord, ...] | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None
    is_error: bool | None = None


TEXT = EntryKind(type="Text")
USER_MESSAGE = EntryKind(type="UserMessage")


class ContextEntry(Document, frozen=True, kw_only=True):
    """One text in a region, with its size in tokens."""

    SKIPPED_NULL: ClassVar[tuple[str, ...]] = ("metadata", "key")
    NESTED: ClassVar[DocumentTypes] = {"kind": EntryKind}

    content: str | tuple[object, ...]
    """A text, or the parts of a newer writer as plain JSON values."""
    tokens: Count
    kind: EntryKind = TEXT
    metadata: object = None
    key: str | None = None
    taint: str = "Internal"
    """``Public``, ``Internal`` or ``Private``."""


_OLD_REGION_KINDS = {"sliding": "sliding_window", "history": "compact_history"}


class ContextRegion(Document, frozen=True, kw_only=True):
    """One region of a run's context window."""

    SKIPPED_NULL: ClassVar[tuple[str, ...]] = ("description",)
    SKIPPED_EMPTY: ClassVar[tuple[str, ...]] = ("entries",)
    NESTED_LISTS: ClassVar[DocumentTypes] = {"entries": ContextEntry}

    name: str
    kind: str
    """``pinned``, ``temporary``, ``clearable``, ``sliding_window``, ``compacting``,
    ``compact_history``, ``hashmap``, ``checklist`` or ``custom``; old spellings become these."""
    current_tokens: Count
    max_tokens: Count
    entries: tuple[ContextEntry, ...] = ()
    description: str | None = None

    def __post_init__(self) -> None:
        if self.kind in _OLD_REGION_KINDS:
            msgspec.structs.force_setattr(self, "kind", _OLD_REGION_KINDS[self.kind])


class ContextSnapshot(Document, frozen=True, kw_only=True):
    """What the model of a run would see next, region by region."""

    NESTED_LISTS: ClassVar[DocumentTypes] = {"regions": ContextRegion}

    stage_name: str
    total_tokens: Count
    max_tokens: Count
    regions: tuple[ContextRegion, ...]

    @classmethod
    def from_json(cls, text: bytes | str) -> ContextSnapshot:
        """The context that ``text`` tells of. Raises DocumentError as RunMeta does."""
        try:
            return decode_document(cls, text)
        except DocumentError as error:
            raise json_text.named(error, "context document") from error.__cause__

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ContextSnapshot:
        """``from_json`` of the file at ``path``; a file that is missing is a DocumentError."""
        try:
            return cls.from_json(json_text.read_bounded(path))
        except DocumentError as error:
            raise json_text.named(error, os.fspath(path)) from error.__cause__

    def to_json(self) -> bytes:
        """The text of ``context.json``: compact, since it is large and no person edits it."""
        return encode_document(self, indent=0)
