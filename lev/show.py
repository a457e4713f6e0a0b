"""``lev show``: everything about one run, and what settles what it waits for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from leviath.components.effects import Turn
from leviath.components.identity import Identity, Launch
from leviath.components.output import Flags, Output
from leviath.components.people import Prompts
from leviath.components.progress import Clock, Cost, Ledgers
from leviath.components.status import Status
from leviath.engine.clock import RealClock
from leviath.lev.below import below_table, below_text
from leviath.lev.budgets import budget_option, budget_pairs
from leviath.lev.drift import drift
from leviath.lev.homes import home_of, run_in
from leviath.lev.people import short
from leviath.lev.progress import cost_text, waiting_text
from leviath.lev.run_document import run_document
from leviath.lev.run_parts import RunParts, read_run
from leviath.lev.text import (
    age,
    clip,
    home_option,
    one_line,
    plural,
    shell_word,
    span,
    table,
)
from leviath.lev.text import (
    show as print_lines,
)
from leviath.persistence.home import hosting_state
from leviath.persistence.listing import Listing

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from leviath.components.effects import Call
    from leviath.components.people import Prompt
    from leviath.components.progress import StageTotals
    from leviath.persistence.home import HostingState

_TEXT_SHOWN: Final = 300
"""Characters of a task or of a call's arguments; both may have megabytes."""
_LABEL_WIDTH: Final = 10
_DRIVEN: Final = ("starting", "running")


def show(arguments: argparse.Namespace) -> int:
    """Print one run."""
    home = home_of(arguments.home)
    run_id = run_in(home, arguments.run)
    hosting = hosting_state(home)
    parts = read_run(home, run_id)
    if arguments.json:
        print(json.dumps(run_document(parts, hosting), ensure_ascii=False, indent=2))
        return 0
    option = home_option(arguments.home)
    now_ms = RealClock().wall_ms()
    lines = _fields(parts, home, hosting, now_ms)
    lines += _stages(parts)
    lines += _calls(parts)
    lines += below_table(parts.below)
    lines += _questions(parts)
    lines += _advice(parts, hosting, option)
    print_lines(lines)
    return 0


def _fields(parts: RunParts, home: Path, hosting: HostingState, now_ms: int) -> list[str]:
    row = parts.row
    pairs: list[tuple[str, str]] = [("run", row.run_id)]
    if row.title:
        pairs.append(("title", row.title))
    pairs.append(("status", _status(parts)))
    pairs.append(("hosted", _hosted(parts, home, hosting)))
    pairs += _launch(parts)
    pairs.append(("stage", _stage(parts)))
    pairs += _times(parts, now_ms)
    pairs.append(("cost", _cost(parts)))
    pairs += budget_pairs(parts)
    if parts.below.total.runs:
        pairs.append(("below", below_text(row, parts.below)))
    sent = f"{row.prompt_tokens:,} prompt, {row.completion_tokens:,} output"
    cached = f"{row.cached_tokens:,} cache read, {row.cache_write_tokens:,} cache write"
    pairs.append(("tokens", f"{sent}, {cached}"))
    pairs.append(
        ("calls", f"{plural(len(parts.ledger), 'model call')}, {row.tool_calls:,} of tools")
    )
    pairs.append(("output", _output(parts)))
    pairs += _flags(parts)
    return [f"{name:<{_LABEL_WIDTH}}{one_line(value)}" for name, value in pairs]


def _status(parts: RunParts) -> str:
    row, status = parts.row, parts.find(Status)
    if status is None:
        return row.status
    text = status.status.wire()
    if status.waiting is not None:
        text += f": {waiting_text(status.waiting)}"
    if status.error:
        text += f": {status.error}"
    why = f", {status.why}" if status.why else ""
    return f"{text} (by {status.actor}{why})"


def _hosted(parts: RunParts, home: Path, hosting: HostingState) -> str:
    if parts.fault:
        return f"no: quarantined, {parts.fault}"
    if parts.row.ended_ms is not None:
        return "no: it has ended"
    listing = Listing.open(home)
    if listing is not None:
        with listing:
            why = listing.quarantined().get(parts.row.run_id)
            if why is not None:
                return f"no: quarantined, {why}"
    if hosting == "hosted":
        return "yes"
    if hosting == "unknown":
        return "unknown: the lock of the home cannot be looked at"
    return "no: interrupted" if parts.row.status in _DRIVEN else "no"


def _launch(parts: RunParts) -> list[tuple[str, str]]:
    row, launch, identity = parts.row, parts.find(Launch), parts.find(Identity)
    pairs = [("agent", f"{row.agent_name} {row.agent_path}".rstrip())]
    if launch is not None and identity is not None:
        said = drift(identity.agent_path, launch.blueprint)
        if said:
            pairs.append(("blueprint", said))
    task = parts.text(launch.task) if launch is not None else row.task_head
    pairs.append(("task", clip(one_line(task), _TEXT_SHOWN) or "-"))
    pairs.append(("workdir", row.workdir))
    pairs.append(("model", row.model or "-"))
    if row.key:
        pairs.append(("key", row.key))
    if row.parent_run_id:
        pairs.append(("parent", row.parent_run_id))
    if row.yolo:
        profile = launch.yolo_profile if launch is not None else None
        pairs.append(("mode", f"unattended{f', profile {profile}' if profile else ''}"))
    if launch is not None and launch.allow:
        pairs.append(("allowed", ", ".join(launch.allow)))
    if launch is not None and launch.metadata:
        pairs.append(("labels", ", ".join(f"{name}={value}" for name, value in launch.metadata)))
    return pairs


def _stage(parts: RunParts) -> str:
    row = parts.row
    if not row.stage:
        return "none yet"
    where = f" {row.stage_index + 1}/{row.num_stages}" if row.num_stages > 1 else ""
    return f"{row.stage}{where}, turn {row.iteration}"


def _times(parts: RunParts, now_ms: int) -> list[tuple[str, str]]:
    row, clock = parts.row, parts.find(Clock)
    ago = f"{age(row.started_ms, now_ms)} ago"
    pairs = [("started", ago), ("moved", _ago(row.progress_ms, now_ms))]
    if clock is not None and clock.kept:
        open_span = " and counting" if clock.since_ms is not None else ""
        pairs.append(("worked", f"{span(clock.active_ms // 1_000)}{open_span}"))
    if row.ended_ms is not None:
        pairs.append(("ended", _ago(row.ended_ms, now_ms)))
    return pairs


def _ago(then_ms: int | None, now_ms: int) -> str:
    return "unknown" if then_ms is None else f"{age(then_ms, now_ms)} ago"


def _cost(parts: RunParts) -> str:
    cost, row = parts.find(Cost), parts.row
    upper = 0 if cost is None else cost.upper_nano
    bounded = 0 if cost is None else cost.bounded
    text = cost_text(row.cost_priced_nano, row.unpriced_calls, upper, bounded, parts.ledger)
    if row.cost_exact or not parts.ledger:
        return text
    computed = cost.computed if cost is not None else 0
    return f"{text} ({plural(computed, 'call')} computed from prices)" if computed else text


def _output(parts: RunParts) -> str:
    output = parts.find(Output)
    if output is None:
        return "none" + (" (nothing modified, either)" if parts.row.empty_output else "")
    form = f", {output.format}" if output.format else ""
    cut = ", cut" if output.truncated else ""
    return f"{output.size_bytes:,} bytes{form}{cut}, from stage {output.stage}"


def _flags(parts: RunParts) -> list[tuple[str, str]]:
    flags = parts.find(Flags)
    if flags is None:
        return []
    notes: list[str] = []
    if flags.modified_count:
        notes.append(f"{plural(flags.modified_count, 'change')} to files")
    for count, thing in (
        (flags.max_iterations_hit, "stage at its cap of turns"),
        (flags.gates_forced, "gate passed by force"),
        (flags.output_forced, "output asked for again"),
    ):
        if count:
            notes.append(f"{count} x {thing}")
    if flags.required_abandoned:
        notes.append(f"required regions left empty: {', '.join(flags.required_abandoned)}")
    if flags.workspace_lost:
        notes.append("its workdir is gone")
    return [("notes", "; ".join(notes))] if notes else []


# --- stages and calls ---------------------------------------------------------------------------


def _stages(parts: RunParts) -> list[str]:
    ledgers = parts.find(Ledgers)
    if ledgers is None or not ledgers.stages:
        return []
    head = ["STAGE", "STATUS", "VISITS", "PROMPT", "OUTPUT", "CACHE RD", "CACHE WR", "COST"]
    rows = [_stage_row(parts, at, stage) for at, stage in enumerate(ledgers.stages)]
    if len(rows) > 1:
        total = [sum(values) for values in zip(*map(_numbers, ledgers.stages), strict=True)]
        rows.append(["TOTAL", "", "", *(f"{count:,}" for count in total), ""])
    return ["", *table([head, *rows], right=range(2, len(head)))]


def _numbers(stage: StageTotals) -> tuple[int, int, int, int]:
    return stage.prompt, stage.completion, stage.cached, stage.cache_write


def _stage_row(parts: RunParts, at: int, stage: StageTotals) -> list[str]:
    row = parts.row
    status = "complete" if stage.ended_ms is not None else "entered" if stage.entered else "pending"
    if row.stage and at == row.stage_index and row.ended_ms is None:
        status = "waiting" if row.status == "waiting_input" else "active"
    elif row.stage and at == row.stage_index and row.status != "complete":
        status = row.status
    counts = [f"{count:,}" for count in _numbers(stage)]
    cost = cost_text(stage.priced_nano, stage.unpriced, 0, 0, ())
    return [stage.name, status, str(stage.visits), *counts, cost if stage.entered else "-"]


def _waiting_calls(parts: RunParts) -> list[Call]:
    turn = parts.find(Turn)
    calls = () if turn is None else turn.calls
    return [call for call in calls if call.state in ("asked", "unknown")]


def _calls(parts: RunParts) -> list[str]:
    rows = [
        [
            call.call_id,
            call.tool,
            "may have happened" if call.state == "unknown" else "asks",
            clip(one_line(parts.text(call.arguments)), _TEXT_SHOWN),
        ]
        for call in _waiting_calls(parts)
    ]
    return ["", *table([["CALL", "TOOL", "WHY", "ARGUMENTS"], *rows])] if rows else []


def _questions(parts: RunParts) -> list[str]:
    """The open questions that are no calls, with their choices and documents."""
    lines: list[str] = []
    for prompt in _own_questions(parts):
        asked = clip(one_line(parts.text(prompt.text)), _TEXT_SHOWN)
        lines += ["", f"{short(prompt)} ({prompt.kind}) {asked}".rstrip()]
        lines += [
            f"  {number}. {one_line(parts.text(choice))}"
            for number, choice in enumerate(prompt.choices, 1)
        ]
        if prompt.body is not None:
            lines.append(f"  {clip(one_line(parts.text(prompt.body)), _TEXT_SHOWN)}")
    return lines


def _own_questions(parts: RunParts) -> list[Prompt]:
    found = parts.find(Prompts)
    items = () if found is None else found.items
    return [prompt for prompt in items if prompt.kind not in ("approval", "unknown")]


_ANSWERS: Final = {
    "text": "--text TEXT",
    "choice": "--choice N",
    "confirm": "--yes or --no",
    "review": "--yes or --no, and --text TEXT",
    "edit": "--file FILE, or --yes",
    "point": "--yes, --no, --choice N or --text TEXT",
}


# --- what to do ---------------------------------------------------------------------------------


def _advice(parts: RunParts, hosting: HostingState, option: str) -> list[str]:
    row, status = parts.row, parts.find(Status)
    run_id = row.run_id
    lines: list[str] = []
    for call in _waiting_calls(parts):
        own = "--again, --done" if call.state == "unknown" else "--allow, --deny"
        lines.append(f"lev decide{option} {run_id} {shell_word(call.call_id)} with {own} or --stop")
    for prompt in _own_questions(parts):
        how = _ANSWERS.get(prompt.kind, "an answer")
        lines.append(f"lev respond{option} {run_id} {short(prompt)} with {how}")
    waiting = None if status is None else status.waiting
    if row.status == "waiting_input" and waiting is not None and waiting.reason == "needs_setup":
        if waiting.blocker == "provider_missing":
            lines.append(f"lev host{option} with --script FILE or --providers MODULE:ATTR")
        else:
            lines.append(f"lev resume{option} {run_id}, when that is done")
    if row.status in ("paused", "error", "cancelled"):
        lines.append(f"lev resume{option} {run_id}{budget_option(parts)}")
    if row.status in _DRIVEN and hosting == "not_hosted" and not parts.fault:
        lines.append(f"lev host{option} drives it on; lev cancel{option} {run_id} ends it")
    if parts.find(Output) is not None:
        lines.append(f"lev result{option} {run_id}")
    return ["", "How to go on:", *(f"  {line}" for line in lines)] if lines else []
