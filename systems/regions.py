"""Writing to regions of context: what is rolled out when one is full, and what is refused."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from leviath.components.blueprint import RegionKind, RegionSpec
from leviath.components.context import Context, Entry, Region
from leviath.components.text import Text, inline, tokens_of
from leviath.systems.views import all_regions, view_of

if TYPE_CHECKING:
    from leviath.components.blueprint import Blueprint
    from leviath.systems.run import Run

CONVERSATION = "conversation"
INSTRUCTIONS = "stage_instructions"
FINAL_OUTPUT = "final_output"
OPEN = "open"
DONE = "done"
"""Entry kinds of a checklist's items."""

_ROLLING = (
    RegionKind.temporary,
    RegionKind.clearable,
    RegionKind.sliding_window,
    RegionKind.compacting,
)
_KEPT = (RegionKind.pinned, RegionKind.compact_history, RegionKind.hashmap)
"""Never touched by a transform (leviath-engine section 4)."""


def spec_of(run: Run, name: str) -> RegionSpec | None:
    """The region's spec in the current stage, else in any."""
    return view_of(run).regions.get(name)


def empty_context(blueprint: Blueprint, window_tokens: int) -> Context:
    """All regions of a new run, sized for its entry model's window."""
    return Context(
        tuple(
            Region(spec.name, spec.capacity_tokens(window_tokens))
            for spec in all_regions(blueprint)
        )
    )


def entry_of(text: Text, kind: str = "text", **more: str) -> Entry:
    """An entry of that text, with its size as the engine estimates it."""
    return Entry(text, tokens_of(text.size_bytes), kind, **more)  # type: ignore[arg-type]


def append(run: Run, name: str, entries: tuple[Entry, ...], *, keep: int = 0) -> bool:
    """Append to a region; False when it is full and does not roll, or is not there.

    A full rolling region loses its oldest turn groups, never part of one, and never one of its
    ``keep`` newest entries. An entry larger than the whole region is admitted alone: what a tool
    or a person said is not lost in silence.
    """
    context = run.get(Context)
    index = context.index(name)
    if index < 0:
        return False
    region = context.regions[index]
    spec = spec_of(run, name)
    over = region.tokens - region.max_tokens
    for entry in entries:
        over += entry.tokens
    drop = 0
    if over > 0:
        if spec is not None and (spec.kind not in _ROLLING or spec.admission != "evict"):
            return False
        drop = _drop_for_tokens(region.entries, over)
    if spec is not None and spec.kind is RegionKind.sliding_window:
        drop = max(drop, _drop_for_items(region.entries, len(entries), spec))
    if drop:
        drop = min(drop, max(0, len(region.entries) - keep))
    run.world.splice(run.n, index, drop, entries)
    return True


def answer_calls(run: Run, results: tuple[Entry, ...]) -> None:
    """Put a turn's results behind the turn, which stays with them however full the region is."""
    region = run.get(Context).region(CONVERSATION)
    if region is None or not region.entries or not region.entries[-1].calls:
        # The conversation could not take the turn either.
        return
    append(run, CONVERSATION, results, keep=1)


def _drop_for_tokens(entries: tuple[Entry, ...], over: int) -> int:
    drop = freed = 0
    while drop < len(entries) and freed < over:
        end = group_end(entries, drop)
        freed += sum(entry.tokens for entry in entries[drop:end])
        drop = end
    return drop


def _drop_for_items(entries: tuple[Entry, ...], added: int, spec: RegionSpec) -> int:
    if len(entries) + added <= spec.max_items:
        return 0
    limit = {
        "per_item": spec.max_items,
        "bulk": spec.max_items + spec.overflow,
        "compact": spec.max_items + 2 * spec.compact_count,
    }[spec.strategy]
    if len(entries) + added <= limit:
        return 0
    drop = 0
    while drop < len(entries) and len(entries) - drop + added > spec.max_items:
        drop = group_end(entries, drop)
    return drop


def group_end(entries: tuple[Entry, ...], start: int) -> int:
    """Index behind the turn group that starts at ``start``: an assistant turn with its results."""
    end = start + 1
    if entries[start].kind == "assistant" and entries[start].calls:
        asked = {call.call_id for call in entries[start].calls}
        while end < len(entries) and entries[end].call_id in asked:
            end += 1
    return end


def replace_all(run: Run, name: str, entries: tuple[Entry, ...]) -> bool:
    """Make ``entries`` the region's whole content; False when there is no such region or no
    room."""
    context = run.get(Context)
    index = context.index(name)
    if index < 0:
        return False
    region = context.regions[index]
    if sum(entry.tokens for entry in entries) > region.max_tokens:
        return False
    if region.entries or entries:
        run.world.splice(run.n, index, len(region.entries), entries)
    return True


def upsert(run: Run, name: str, entry: Entry) -> bool:
    """Write a keyed entry to a hashmap or checklist region: an equal key is replaced, and counts as
    newest; a full region loses its oldest entries."""
    context = run.get(Context)
    index = context.index(name)
    if index < 0:
        return False
    region = context.regions[index]
    spec = spec_of(run, name)
    kept = [old for old in region.entries if old.key != entry.key]
    if spec is not None and spec.max_entries:
        while len(kept) + 1 > spec.max_entries:
            kept.pop(0)
    while kept and sum(old.tokens for old in kept) + entry.tokens > region.max_tokens:
        kept.pop(0)
    run.world.splice(run.n, index, len(region.entries), (*kept, entry))
    return True


def note(run: Run, text: str, *, region: str = "") -> None:
    """Tell the model something: a user entry in the conversation, or in ``region`` when it
    exists."""
    body = entry_of(inline(text), "user")
    if region and append(run, region, (body,)):
        return
    append(run, CONVERSATION, (body,))


def apply_transform(run: Run, clear: tuple[str, ...] | None) -> None:
    """Empty regions on the way to another stage: those named, or every stage-specific one."""
    context = run.get(Context)
    for region in context.regions:
        spec = spec_of(run, region.name)
        kept = region.name in (INSTRUCTIONS, FINAL_OUTPUT)
        if spec is not None and (spec.kind in _KEPT or spec.persistent):
            kept = True
        named = clear is not None and region.name in clear
        if region.entries and (named or (clear is None and not kept)):
            replace_all(run, region.name, ())


def is_empty(run: Run, name: str) -> bool:
    """Whether a region holds no text, or is not there."""
    region = run.get(Context).region(name)
    return region is None or not any(entry.text.size_bytes for entry in region.entries)


def newest(run: Run, name: str) -> Text | None:
    """The newest text of a region; None when it has none, or is not there."""
    region = run.get(Context).region(name)
    return None if region is None or not region.entries else region.entries[-1].text


def region_mark(run: Run, name: str) -> bytes:
    """Stands for the region's content: equal content, equal mark."""
    region = run.get(Context).region(name)
    mark = blake2b(digest_size=16)
    for entry in () if region is None else region.entries:
        mark.update(entry.text.digest or entry.text.body.encode())
        mark.update(b"\x00" + entry.key.encode() + b"\x01")
        for reference in entry.references:
            mark.update(reference.text.digest or reference.text.body.encode())
    return mark.digest()
