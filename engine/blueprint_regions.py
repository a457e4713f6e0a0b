"""Reading ``[context.regions.<name>]`` tables into region specs."""

from __future__ import annotations

from typing import Final

from leviath.components.blueprint import RegionKind, RegionSpec, SeedKind, SeedSpec
from leviath.engine.blueprint_reader import Table, canonical_json, is_array, is_table, kind_of

# The region of this name holds the task unless it says otherwise.
TASK_REGION: Final = "task"
_SEED_KEYS: Final = ("files", "glob", "literal", "caller", "command", "rhai", "tool", "tools")


def read_regions(context: Table | None) -> tuple[RegionSpec, ...]:
    """Return the regions of a ``context`` table, in the order of the file."""
    if context is None:
        return ()
    return tuple(_region(name, table) for name, table in context.named_tables("regions"))


def _region(name: str, table: Table) -> RegionSpec:
    region = RegionSpec(
        name=name,
        kind=table.choice("kind", RegionKind, RegionKind.temporary),
        budget_permille=table.share("budget"),
        max_tokens=table.maybe_whole("max_tokens"),
        min_tokens=table.whole("min_tokens", 0),
        seed=_seed(name, table),
        required=table.flag("required"),
        required_message=table.text("required_message"),
        summarizable=table.flag("summarizable", default=True),
        admission=table.word("admission", ("evict", "reject"), "evict"),
        volatility=table.word("volatility", ("stable", "grows", "rewritten"), "rewritten"),
        description=table.text("description"),
        describe_in_prompt=table.flag("describe_in_prompt"),
        max_items=table.whole("max_items", 10),
        strategy=table.word("strategy", ("per_item", "bulk", "compact"), "per_item"),
        overflow=table.whole("overflow", 10),
        compact_count=table.whole("compact_count", 10),
        compact_at_permille=table.share("compact_at") or 800,
        threshold_tokens=table.maybe_whole("threshold_tokens"),
        source_region=table.text("source_region"),
        max_entries=table.whole("max_entries", 0, least=1),
        script=table.text("script"),
        persistent=table.flag("persistent"),
    )
    table.done()
    return region


def _seed(region: str, table: Table) -> SeedSpec | None:
    value = table.raw("seed")
    if value is None:
        return SeedSpec(kind="task_input") if region == TASK_REGION else None
    if isinstance(value, dict):
        inner = table.table("seed")
        assert inner is not None
        return _seed_table(inner)
    word = table.text("seed")
    if isinstance(value, str) and not value:
        table.fault("seed", 'is empty; write "task_input", "input", a key or a table')
    if not word:
        return None
    if word == "task_input":
        return SeedSpec(kind="task_input")
    return SeedSpec(kind="input", key="" if word == "input" else word)


def _seed_table(table: Table) -> SeedSpec | None:
    given = [key for key in _SEED_KEYS if key in table.data]
    seeds: dict[str, SeedSpec] = {
        "files": SeedSpec(kind="files", patterns=table.texts("files", lone=True)),
        "glob": SeedSpec(kind="glob", patterns=table.texts("glob", lone=True)),
        "literal": SeedSpec(kind="literal", text=table.text("literal")),
        "caller": SeedSpec(kind="caller", key=table.text("caller")),
        "command": _seed_words(table, "command", "command"),
        "rhai": SeedSpec(kind="rhai", text=table.text("rhai")),
        "tool": _seed_words(table, "tool", "tools"),
        "tools": _seed_words(table, "tools", "tools"),
    }
    table.word("refresh", ("once", "each_stage"), "once")
    table.done()
    if len(given) != 1:
        found = " and ".join(given) if given else "none"
        one_of = ", ".join(_SEED_KEYS)
        table.faults.add(table.place, f"needs exactly one of {one_of}, has {found}")
        return None
    if "refresh" in table.data and given[0] not in ("tool", "tools"):
        table.fault("refresh", "belongs to seeds by tool; remove it")
    seed = seeds[given[0]]
    if table.data[given[0]] in ("", [], {}) and given[0] not in ("literal", "caller"):
        table.fault(given[0], "names nothing; write what the region is filled from")
    return seed


def _seed_words(table: Table, key: str, kind: SeedKind) -> SeedSpec:
    # A command is a text or words; a tool is a name, a table, or an array of these.
    value = table.raw(key)
    if value is None:
        return SeedSpec(kind=kind)
    if key == "command" and isinstance(value, list):
        return SeedSpec(kind=kind, text=canonical_json(list(table.texts(key)), "", table.faults))
    if isinstance(value, str):
        return SeedSpec(kind=kind, text=table.text(key))
    if key != "command" and (is_table(value) or is_array(value)):
        return SeedSpec(kind=kind, text=canonical_json(value, table.at(key), table.faults))
    wanted = "a text or an array of texts" if key == "command" else "a name, a table or an array"
    table.fault(key, f"is {kind_of(value)}; write {wanted}")
    return SeedSpec(kind=kind)
