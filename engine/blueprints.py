"""Blueprints as they enter: from ``agent.leviath`` files, from TOML text, or built in Python.

Every way in ends in the same finished value: defaults filled, the automatic regions added, all
checks passed. One ``BlueprintError`` lists all faults with their places. A blueprint may be sound
and still ask for what this version does not do: ``lint`` says so, ``check_spawnable`` refuses it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any, Final

import msgspec

from leviath.components.blueprint import (
    DIGEST_BYTES,
    Blueprint,
    FileTracking,
    Nudge,
    RegionKind,
    RegionSpec,
    Repetition,
    StageMode,
    StageSpec,
    canonical_bytes,
    decode_blueprint,
)
from leviath.components.errors import BlueprintError, DocumentError, SpawnError
from leviath.engine import limits
from leviath.engine.blueprint_checks import check_graph, check_values, lint_graph
from leviath.engine.blueprint_reader import Faults, Table
from leviath.engine.blueprint_regions import read_regions
from leviath.engine.blueprint_stages import read_nudge, read_output, read_permissions, read_stage
from leviath.engine.blueprint_unbuilt import Unbuilt, found_in, read_sandbox, read_security

MANIFEST_NAME: Final = "agent.leviath"
_BYTES_PER_TOKEN: Final = 4
# Words joined by dots, as in a key; prose does not reach the number that is refused.
_DOTTED: Final = re.compile(
    rf"""(?:[\w"'-]++[ \t]*+\.[ \t]*+){{{limits.BLUEPRINT_KEY_PARTS_MAX}}}""", re.ASCII
)
_DEFAULT_STAGES: Final = (StageSpec(name="main"),)
_DEFAULT_REGIONS: Final = (
    RegionSpec(name="system", kind=RegionKind.pinned, max_tokens=8000),
    RegionSpec(
        name="conversation", kind=RegionKind.sliding_window, max_items=10, max_tokens=10_000
    ),
)
_AUTO: Final = (
    RegionSpec(
        name="conversation", kind=RegionKind.sliding_window, max_items=50, max_tokens=10_000
    ),
    RegionSpec(name="tool_results", kind=RegionKind.temporary, max_tokens=5000),
    RegionSpec(name="final_output", kind=RegionKind.pinned, max_tokens=2000),
    # Its max_tokens are those of the widest prompt; a quarter of the window is the ceiling.
    RegionSpec(name="stage_instructions", kind=RegionKind.pinned, budget_permille=250),
)


class LoadedBlueprint(msgspec.Struct, frozen=True, kw_only=True):
    """A blueprint with where it came from."""

    blueprint: Blueprint
    # The folder that holds the manifest, absolute, symlinks resolved.
    path: Path
    # Of the file's bytes: tells an edited file from the one that was loaded.
    source_digest: bytes


def load_blueprint(path: str | Path) -> LoadedBlueprint:
    """Read the manifest at ``path``, a file or a folder that holds ``agent.leviath``.

    Raises BlueprintError if it cannot be read or has faults.
    """
    file = Path(path)
    # os.path, unlike Path.is_dir, answers False for what cannot be looked at.
    if os.path.isdir(file):
        file = file / MANIFEST_NAME
    data = _read(file)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refusal(file, f"byte {error.start} is not UTF-8; save the file as UTF-8") from error
    return LoadedBlueprint(
        blueprint=parse_blueprint(text, where=str(path)),
        path=Path(os.path.realpath(file)).parent,
        source_digest=hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest(),
    )


def parse_blueprint(text: str, *, where: str) -> Blueprint:
    """Return the blueprint that the TOML ``text`` describes.

    ``where`` names the text in messages. Raises BlueprintError with every fault.
    """
    faults = Faults()
    unbuilt = Unbuilt()
    blueprint = _document(Table(_toml(text, where), "", faults), unbuilt)
    blueprint = msgspec.structs.replace(blueprint, unbuilt=tuple(unbuilt.lines))
    return _finished(blueprint, faults, where)


def validate_blueprint(blueprint: Blueprint) -> Blueprint:
    """Return ``blueprint``, as built in Python, finished: defaults and automatic regions filled in.

    A finished blueprint comes back equal. Raises BlueprintError with every fault.
    """
    where = f"blueprint {blueprint.name!a}"
    faults = Faults()
    try:
        # The byte form goes through the typed decoder, which refuses what type checkers would.
        data = canonical_bytes(blueprint)
        if len(data) > 2 * limits.BLUEPRINT_BYTES_MAX:
            faults.add("$", f"takes {len(data)} bytes; move long texts to files that seeds name")
        blueprint = decode_blueprint(data)
    except (DocumentError, TypeError, UnicodeEncodeError, OverflowError) as error:
        faults.add("$", f"{error}; build the blueprint of the types that its structs name")
        faults.raise_any(where)
    check_values(blueprint, "", faults)
    return _finished(blueprint, faults, where)


def lint(blueprint: Blueprint) -> tuple[str, ...]:
    """Return warnings about a finished blueprint: keys not acted on yet, parts without effect."""
    notes = (f"{line} (not built yet: spawning refuses it)" for line in blueprint.unbuilt)
    return (*notes, *lint_graph(blueprint))


def check_spawnable(blueprint: Blueprint) -> None:
    """Raise SpawnError if this version does not act on every key that ``blueprint`` uses."""
    if blueprint.unbuilt:
        listing = "".join(f"\n  {line}" for line in blueprint.unbuilt)
        raise SpawnError(
            f"agent {blueprint.name!a} was not spawned: this version of leviath does not act on "
            f"what its blueprint asks for{listing}",
            unbuilt=blueprint.unbuilt,
        )


def _refusal(path: Path, what: str) -> BlueprintError:
    return BlueprintError(f"{path}: {what}", faults=(f"$: {what}",))


def _read(path: Path) -> bytes:
    # O_NONBLOCK: a fifo in the place of a manifest must not hang the caller.
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        what = f"there is no such file; give a manifest or a folder that holds {MANIFEST_NAME}"
        raise _refusal(path, what) from error
    except (OSError, ValueError) as error:
        loop = isinstance(error, OSError) and error.errno == errno.ELOOP
        reason = "its symlinks form a loop" if loop else _reason(error)
        raise _refusal(path, f"cannot be opened: {reason}") from error
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise _refusal(path, "is not a regular file; give the path of a manifest")
        with open(handle, "rb", closefd=False) as file:
            # None when there is nothing to read yet, as in some files of /proc.
            data = file.read(limits.BLUEPRINT_BYTES_MAX + 1) or b""
    except OSError as error:
        raise _refusal(path, f"cannot be read: {_reason(error)}") from error
    finally:
        os.close(handle)
    if len(data) > limits.BLUEPRINT_BYTES_MAX:
        raise _refusal(path, _too_long())
    return data


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "the path holds a NUL character"


def _too_long() -> str:
    most = limits.BLUEPRINT_BYTES_MAX // limits.KIB
    return f"is longer than {most} KiB; move long texts to files that seeds name"


def _toml(text: str, where: str) -> dict[str, Any]:
    def refuse(what: str) -> BlueprintError:
        return BlueprintError(f"{where}: {what}", faults=(f"$: {what}",))

    if len(text) > limits.BLUEPRINT_BYTES_MAX:
        raise refuse(_too_long())
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise refuse(f"line {line} holds a NUL character; remove it")
    if (dotted := _DOTTED.search(text)) is not None:
        line = text.count("\n", 0, dotted.start()) + 1
        most = limits.BLUEPRINT_KEY_PARTS_MAX
        raise refuse(f"line {line} joins more than {most} words by dots; use shorter keys")
    if text.startswith("\ufeff"):
        raise refuse("starts with a byte order mark; save the file without one")
    try:
        return tomllib.loads(text)
    except ValueError as error:
        # tomllib.TOMLDecodeError, or a number or date that the interpreter cannot hold.
        raise refuse(f"is not TOML: {error}") from error
    except RecursionError as error:
        raise refuse("is not TOML that can be read: nested too deeply; flatten it") from error


def _document(document: Table, unbuilt: Unbuilt) -> Blueprint:
    agent = document.table("agent") or Table({}, "agent", document.faults)
    nudge = read_nudge(agent, None) or Nudge()
    context = document.table("context")
    stages = tuple(
        read_stage(name, table, nudge, unbuilt) for name, table in document.named_tables("stages")
    )
    blueprint = Blueprint(
        name=agent.text("name") or "unnamed",
        version=agent.text("version") or "0.1.0",
        description=agent.text("description"),
        entry=_entry(agent, stages),
        max_child_depth=agent.whole("max_child_depth", 3),
        nudge=nudge,
        output=read_output(agent),
        regions=read_regions(context),
        stages=stages,
        permissions=read_permissions(document, "tool_permissions"),
        file_tracking=_file_tracking(context),
        repetition=_repetition(document.table("repetition_detection")),
        read_paths=_read_paths(document.table("read_paths")),
    )
    for key in ("dynamic_tools", "batch_tool_hint", "shell_hint"):
        unbuilt.if_any(agent, key, agent.flag(key))
    if context is not None:
        context.done()
    agent.done()
    _safe_commands(document.table("safe_commands"))
    _read_unbuilt(document, unbuilt)
    document.done()
    return blueprint


def _entry(agent: Table, stages: tuple[StageSpec, ...]) -> int:
    name = agent.text("entry_stage")
    names = tuple(stage.name for stage in stages or _DEFAULT_STAGES)
    if not name:
        return 0
    if name not in names:
        advice = agent.faults.suggest(name, names)
        agent.fault("entry_stage", f"there is no stage {name[:64]!a}; {advice}")
        return 0
    return names.index(name)


def _file_tracking(context: Table | None) -> FileTracking | None:
    table = context.table("file_tracking") if context is not None else None
    if table is None:
        return None
    tracking = FileTracking(
        region=table.text("region") or "files",
        track_reads=table.flag("track_reads", default=True),
        track_writes=table.flag("track_writes", default=True),
        max_file_tokens=table.maybe_whole("max_file_tokens"),
    )
    table.done()
    return tracking


def _repetition(table: Table | None) -> Repetition | None:
    if table is None:
        return None
    enabled = table.flag("enabled", default=True)
    repetition = Repetition(
        max_repeat_calls=table.whole("max_repeat_calls", 3),
        max_readonly_streak=table.whole("max_readonly_streak", 10),
    )
    table.done()
    return repetition if enabled else None


def _read_paths(table: Table | None) -> tuple[str, ...]:
    if table is None:
        return ()
    paths = table.texts("allow")
    table.done()
    return paths


def _safe_commands(table: Table | None) -> None:
    # Inert until a user grants them, and there is no such grant: read for faults alone.
    if table is not None:
        table.texts("tools")
        table.texts("shell")
        table.done()


def _read_unbuilt(document: Table, unbuilt: Unbuilt) -> None:
    read_security(document, unbuilt)
    read_sandbox(document, unbuilt)
    compaction = document.table("compaction")
    if compaction is not None:
        compaction.text("provider")
        compaction.text("model")
        compaction.text("system_prompt")
        compaction.maybe_whole("max_summary_tokens")
        compaction.thousandths("temperature")
        compaction.done()
        # The section's presence alone opts in.
        unbuilt.if_any(document, "compaction", True)
    transforms = document.tables("transforms")
    for transform in transforms:
        transform.text("from_blueprint")
        transform.text("to_blueprint")
        for mapping in transform.tables("mappings"):
            mapping.text("from_region")
            mapping.text("to_region")
            mapping.text("transform")
            mapping.texts("fields")
            mapping.done()
        transform.done()
    unbuilt.if_any(document, "transforms", transforms)


def _finished(blueprint: Blueprint, faults: Faults, where: str) -> Blueprint:
    stages = tuple(_finished_stage(stage) for stage in blueprint.stages or _DEFAULT_STAGES)
    finished = msgspec.structs.replace(
        blueprint,
        stages=stages,
        regions=_with_auto_regions(blueprint.regions or _DEFAULT_REGIONS, stages),
        permissions=tuple(sorted(blueprint.permissions)),
    )
    lines = dict.fromkeys((*finished.unbuilt, *found_in(finished)))
    finished = msgspec.structs.replace(finished, unbuilt=tuple(lines))
    check_graph(finished, faults)
    faults.raise_any(where)
    return finished


def _finished_stage(stage: StageSpec) -> StageSpec:
    return msgspec.structs.replace(
        stage,
        permissions=tuple(sorted(stage.permissions)),
        require_output=stage.require_output or stage.mode is StageMode.output,
        edges_declared=stage.edges_declared or bool(stage.edges),
    )


def _with_auto_regions(
    regions: tuple[RegionSpec, ...], stages: tuple[StageSpec, ...]
) -> tuple[RegionSpec, ...]:
    # Regions that the author declared stay as they are. The one sized by the prompts follows them.
    widest = max((len(stage.instructions.encode()) for stage in stages), default=0)
    tokens = max(1, -(-widest // _BYTES_PER_TOKEN))
    *fixed, instructions = _AUTO
    auto = (*fixed, msgspec.structs.replace(instructions, max_tokens=tokens))
    kept = tuple(
        region
        for region in regions
        if msgspec.structs.replace(region, max_tokens=None) != instructions
    )
    declared = {region.name for region in kept}
    return (*kept, *(region for region in auto if region.name not in declared))
