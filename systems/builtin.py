"""The tools that run inside the step: they touch nothing but the run's own components."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from leviath.components.blueprint import RegionKind
from leviath.components.events import OutputSubmitted
from leviath.components.output import Output
from leviath.components.progress import Stage
from leviath.components.text import Text, inline
from leviath.systems import regions
from leviath.systems.moves import touch

if TYPE_CHECKING:
    from leviath.components.effects import Call
    from leviath.systems.run import Run, Tick


def run_in_step(run: Run, tick: Tick, call: Call) -> tuple[Text, bool]:
    """Carry out one call. Returns the result for the model and whether it is an error."""
    fields = dict(call.fields)
    if call.tool == "submit_output":
        return _submit_output(run, tick, fields)
    if call.tool == "context_write":
        return _context_write(run, fields)
    return inline(f"[error] tool {call.tool} cannot run here"), True


def _submit_output(run: Run, tick: Tick, fields: dict[str, Text]) -> tuple[Text, bool]:
    content = fields.get("content")
    if content is None:
        return inline("[error] submit_output needs a text field called content"), True
    stage = run.get(Stage)
    given = fields.get("format")
    shape = run.stage_spec.output or run.blueprint.output
    wanted = None if shape is None or not shape.format else shape.format
    truncated = "truncated" in fields
    run.put(
        Output(
            content,
            stage.name,
            tick.now.wall_ms,
            content.size_bytes,
            given.body if given is not None and given.body else wanted,
            truncated,
        )
    )
    run.put(replace(stage, submitted=True))
    regions.replace_all(run, regions.FINAL_OUTPUT, (regions.entry_of(content),))
    touch(run, tick, urgent=True)
    tick.events.append(
        OutputSubmitted(
            tick.next_event, run.run_id, tick.now.wall_ms, stage.name, content.size_bytes
        )
    )
    cut = " It was cut to the size limit of an output." if truncated else ""
    return inline(f"The output was taken.{cut} A later call replaces it."), False


def _context_write(run: Run, fields: dict[str, Text]) -> tuple[Text, bool]:
    name = fields.get("region")
    content = fields.get("content")
    if name is None or content is None:
        return inline("[error] context_write needs the text fields region and content"), True
    visible = {spec.name: spec for spec in run.blueprint.visible_regions(run.stage_spec)}
    spec = visible.get(name.body)
    if spec is None or name.body in (regions.INSTRUCTIONS, regions.CONVERSATION):
        names = ", ".join(
            n for n in visible if n not in (regions.INSTRUCTIONS, regions.CONVERSATION)
        )
        return inline(
            f"[error] no region {name.body!r} can be written; choose one of {names}"
        ), True
    entry = regions.entry_of(content)
    mode = fields.get("mode")
    if spec.kind in (RegionKind.hashmap, RegionKind.checklist):
        key = fields.get("key")
        if key is None or not key.body:
            return inline(f"[error] region {spec.name} needs a key"), True
        if spec.kind is RegionKind.checklist:
            state = fields.get("state")
            closed = state is not None and state.body == "done"
            entry = replace(entry, kind=regions.DONE if closed else regions.OPEN)
        written = regions.upsert(run, spec.name, replace(entry, key=key.body))
    elif mode is not None and mode.body == "replace":
        written = regions.replace_all(run, spec.name, (entry,))
    else:
        written = regions.append(run, spec.name, (entry,))
    if not written:
        return inline(f"[error] region {spec.name} is full; write less, or replace it"), True
    return inline(f"Written to {spec.name}."), False
