"""The regions of a run between ``context.json`` and the Context component, both ways."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

import msgspec

from leviath.components.blueprint import RegionKind
from leviath.components.clean import clean_text
from leviath.components.context import AskedCall, Context, Entry, Region
from leviath.components.text import Text
from leviath.persistence.references import whole_text
from leviath.persistence.run_documents import (
    TEXT,
    USER_MESSAGE,
    ContextEntry,
    ContextRegion,
    ContextSnapshot,
    EntryKind,
    ToolCallRecord,
)

if TYPE_CHECKING:
    from leviath.components.blueprint import Blueprint, RegionSpec

WINDOW_TOKENS_ASSUMED: Final = 200_000
_COUNT_MAX: Final = 2**53
_ITEM_STATES: Final = ("open", "done")
_STATE_KEY: Final = "state"
_KINDS: Final = MappingProxyType(
    {"UserMessage": "user", "AssistantTurn": "assistant", "ToolResult": "tool_result"}
)


def all_region_specs(blueprint: Blueprint) -> dict[str, RegionSpec]:
    """Every region that any stage may see, by name, in the order of a run's Context."""
    specs = {spec.name: spec for spec in blueprint.regions}
    for stage in blueprint.stages:
        for spec in stage.regions or ():
            specs.setdefault(spec.name, spec)
    return specs


def context_of(
    blueprint: Blueprint, snapshot: ContextSnapshot | None, intern: Callable[[str], Text]
) -> Context:
    """The blueprint's regions with the snapshot's entries, by name; other regions are dropped."""
    saved: dict[str, ContextRegion] = {}
    for found in () if snapshot is None else snapshot.regions:
        saved.setdefault(clean_text(found.name), found)
    regions: list[Region] = []
    for name, spec in all_region_specs(blueprint).items():
        region = saved.get(name)
        entries = () if region is None else tuple(_entry(e, intern) for e in region.entries)
        tokens = sum(entry.tokens for entry in entries)
        regions.append(Region(name, spec.capacity_tokens(WINDOW_TOKENS_ASSUMED), tokens, entries))
    return Context(tuple(regions))


def snapshot_of(
    context: Context, stage: str, blueprint: Blueprint | None, resolve: Callable[[Text], str]
) -> ContextSnapshot:
    """The document of a run's regions; ``resolve`` gives the whole of a Text."""
    specs = {} if blueprint is None else all_region_specs(blueprint)
    regions = tuple(_region(region, specs, resolve) for region in context.regions)
    return ContextSnapshot(
        stage_name=stage,
        total_tokens=sum(region.current_tokens for region in regions),
        max_tokens=sum(region.max_tokens for region in regions),
        regions=regions,
    )


def _region(
    region: Region, specs: dict[str, RegionSpec], resolve: Callable[[Text], str]
) -> ContextRegion:
    spec = specs.get(region.name)
    return ContextRegion(
        name=region.name,
        kind=(RegionKind.temporary if spec is None else spec.kind).value,
        current_tokens=region.tokens,
        max_tokens=region.max_tokens,
        entries=tuple(_record(entry, resolve) for entry in region.entries),
        description=None if spec is None else spec.description or None,
    )


def _entry(record: ContextEntry, intern: Callable[[str], Text]) -> Entry:
    kind = record.kind
    word = _KINDS.get(kind.type, "text")
    state = _item_state(record.metadata)
    return Entry(
        intern(clean_text(_content(record.content))),
        min(record.tokens, _COUNT_MAX),
        state if word == "text" and state else word,
        tuple(_asked(call, intern) for call in kind.tool_calls or ()),
        clean_text(kind.tool_call_id or ""),
        clean_text(kind.tool_name or ""),
        bool(kind.is_error),
        clean_text(record.key or ""),
    )


def _item_state(metadata: object) -> str:
    """Whether a checklist's item is open or done; "" for anything else."""
    if not isinstance(metadata, dict):
        return ""
    state = cast("dict[str, object]", metadata).get(_STATE_KEY)
    return state if isinstance(state, str) and state in _ITEM_STATES else ""


def _content(content: str | tuple[object, ...]) -> str:
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in content:
        text = cast("dict[str, object]", part).get("text") if isinstance(part, dict) else part
        texts.append(text if isinstance(text, str) else msgspec.json.encode(part).decode())
    return "\n".join(texts)


def _asked(call: ToolCallRecord, intern: Callable[[str], Text]) -> AskedCall:
    arguments = call.arguments
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return AskedCall(clean_text(call.id), clean_text(call.name), intern(clean_text(text)))


def _record(entry: Entry, resolve: Callable[[Text], str]) -> ContextEntry:
    return ContextEntry(
        content=whole_text(entry, resolve),
        tokens=entry.tokens,
        kind=_kind(entry, resolve),
        metadata={_STATE_KEY: entry.kind} if entry.kind in _ITEM_STATES else None,
        key=entry.key or None,
    )


def _kind(entry: Entry, resolve: Callable[[Text], str]) -> EntryKind:
    if entry.kind == "user":
        return USER_MESSAGE
    if entry.kind == "assistant":
        calls = tuple(
            ToolCallRecord(id=call.call_id, name=call.tool, arguments=resolve(call.arguments))
            for call in entry.calls
        )
        return EntryKind(type="AssistantTurn", tool_calls=calls)
    if entry.kind == "tool_result":
        return EntryKind(
            type="ToolResult",
            tool_call_id=entry.call_id,
            tool_name=entry.tool,
            is_error=entry.is_error,
        )
    return TEXT
