"""Leaving a stage: nudges, what the stage still owes, gates, and which edge is taken.

Edges are tried in their order, so that the same run takes the same edge everywhere. Every edge is
held to its target's revisit budget. The rules are those of leviath-engine section 4.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from leviath.components.blueprint import Condition, Transform
from leviath.components.context import Context
from leviath.components.effects import Turn
from leviath.components.family import Worker
from leviath.components.marker import Marker
from leviath.components.output import Flags, Output
from leviath.components.progress import Outcome, Stage, Visits
from leviath.components.run_status import RunStatus
from leviath.systems import regions
from leviath.systems.moves import end, set_marker
from leviath.systems.parking import wait_for_all_children
from leviath.systems.people import pass_points
from leviath.systems.stages import (
    begin_turn,
    enter,
    fail,
    has_budget,
    iteration_cap,
    leave,
    stuck_edge,
)
from leviath.systems.views import view_of
from leviath.systems.words import ascii_lower

if TYPE_CHECKING:
    from leviath.components.blueprint import Edge, FanOutSpec, Gate
    from leviath.systems.run import Run, Tick

_DONE = "DONE"
SPLIT_WANTED = (
    "This stage splits its work: call fan_out with the items, or reply with nothing but a JSON "
    "list of them."
)
# Classes are spelled out: ``\w`` and ``splitlines`` follow the interpreter's Unicode tables.
_WORDS = re.compile("[^A-Za-z0-9_-]+")
_LINES = re.compile("[\r\n]+")
_BLANKS = re.compile("[ \t]+")


# --- a reply without tool calls -----------------------------------------------------------------


def after_text(run: Run, tick: Tick) -> None:
    """A reply without a tool call ends the stage, unless the stage has tools and used none: then
    the model is nudged a few times."""
    run.remove(Turn)
    stage = run.get(Stage)
    spec = run.stage_spec
    nudge = spec.nudge or run.blueprint.nudge
    idle = stage.tool_calls == 0 and bool(spec.available_tools or spec.required_tools)
    if nudge.enabled and idle and stage.nudges < nudge.max:
        run.put(replace(stage, nudges=stage.nudges + 1))
        regions.note(run, nudge.text)
        begin_turn(run, tick)
        return
    leave(run, tick, None)


# --- what the stage owes ------------------------------------------------------------------------


def _owes(run: Run, tick: Tick) -> bool:
    """Send the run back when a required region is empty or the output was not submitted."""
    stage = run.get(Stage)
    spec = run.stage_spec
    empty = [
        region
        for region in run.blueprint.visible_regions(spec)
        if region.required and regions.is_empty(run, region.name)
    ]
    limit = spec.max_revisits if spec.max_revisits is not None else run.world.policy.reentries_max
    if empty:
        if stage.required_reentries < limit:
            run.put(replace(stage, required_reentries=stage.required_reentries + 1))
            for region in empty:
                text = region.required_message or f"Region {region.name} must not stay empty."
                regions.note(run, text)
            begin_turn(run, tick)
            return True
        flags = run.get(Flags)
        names = dict.fromkeys((*flags.required_abandoned, *(region.name for region in empty)))
        run.put(replace(flags, required_abandoned=tuple(names)))
    if spec.require_output and not stage.submitted:
        stage = run.get(Stage)
        if stage.output_reentries < run.world.policy.reentries_max:
            run.put(replace(stage, output_reentries=stage.output_reentries + 1))
            regions.note(run, "This stage must hand in its result: call submit_output.")
            begin_turn(run, tick)
            return True
        flags = run.get(Flags)
        run.put(replace(flags, output_forced=flags.output_forced + 1))
    return _owes_any_split(run, tick)


def _owes_any_split(run: Run, tick: Tick) -> bool:
    """What becomes of a fan-out stage that ends without a split; False for every other stage."""
    owed = None if run.get(Stage).split else run.stage_spec.fan_out
    return owed is not None and _owes_split(run, tick, owed)


def _owes_split(run: Run, tick: Tick, fan_out: FanOutSpec) -> bool:
    """Send the run back for its split; when it was asked often enough, it goes on without."""
    stage = run.get(Stage)
    if stage.split_reentries < fan_out.max_attempts and stage.iteration < iteration_cap(run):
        run.put(replace(stage, split_reentries=stage.split_reentries + 1))
        regions.note(run, SPLIT_WANTED)
        begin_turn(run, tick)
        return True
    flags = run.get(Flags)
    run.put(replace(flags, splits_degraded=flags.splits_degraded + 1))
    regions.note(run, "[limit] the work was not split; it goes on in one piece")
    if fan_out.merge_stage:
        enter(run, tick, run.blueprint.stage_index(fan_out.merge_stage))
        return True
    return False


def _drop_filled(run: Run) -> None:
    """A required region that was given up and filled later is no longer abandoned."""
    flags = run.get(Flags)
    kept = tuple(name for name in flags.required_abandoned if regions.is_empty(run, name))
    if kept != flags.required_abandoned:
        run.put(replace(flags, required_abandoned=kept))


# --- resolving ----------------------------------------------------------------------------------


def resolve(run: Run, tick: Tick) -> None:
    """Decide where a run goes that is done with its stage."""
    stage = run.get(Stage)
    if stage.asking and run.find(Turn) is not None:
        _chosen(run, tick)
        return
    _drop_filled(run)
    outcome = stage.outcome
    if _must_wait(run, outcome):
        wait_for_all_children(run, tick)
        return
    if outcome is None:
        # What was owed was looked at before the first point was asked.
        if (stage.points_done or not _owes(run, tick)) and _may_leave(run, tick):
            _resolve_normal(run, tick)
    elif outcome.kind == "errored":
        _resolve_error(run, tick, outcome)
    elif outcome.kind == "stuck":
        edge = stuck_edge(run, tick)[0]
        if edge is None:
            run.put(replace(stage, outcome=None))
            begin_turn(run, tick)
        else:
            _take(run, tick, edge)
    elif _may_leave(run, tick):
        regions.note(run, f"[limit] the stage reached its turn limit {outcome.message}")
        edge = _first(run, Condition.max_iterations)
        if edge is not None:
            _take(run, tick, edge)
        elif not _owes_any_split(run, tick):
            _resolve_normal(run, tick)


def _may_leave(run: Run, tick: Tick) -> bool:
    """Whether the points of the stage are passed. If not, a person is asked, or the stage fails."""
    said = pass_points(run, tick)
    if said not in ("passed", "asked"):
        fail(run, tick, said)
    return said == "passed"


def _must_wait(run: Run, outcome: Outcome | None) -> bool:
    """Whether the stage may not end before the run's children do. One that failed may."""
    if outcome is not None and outcome.kind == "errored":
        return False
    return run.stage_spec.requires_children and run.n in run.world.trees.live


def _resolve_error(run: Run, tick: Tick, outcome: Outcome) -> None:
    edge = _first(run, Condition.error) or _first(run, Condition.dead_end)
    if edge is None:
        error, cause = outcome.message, outcome.cause
        end(run, tick, RunStatus.ERROR, error=error, why="stage failed", cause=cause)
        return
    regions.note(run, f"[error] {outcome.message}", region="error_report")
    _take(run, tick, edge)


def _resolve_normal(run: Run, tick: Tick) -> None:
    stage = run.get(Stage)
    blueprint = run.blueprint
    spec = run.stage_spec
    if not spec.edges_declared:
        if stage.index + 1 < len(blueprint.stages) and not _is_own_worker(run):
            enter(run, tick, stage.index + 1)
        else:
            _finish(run, tick)
        return
    declared = [edge for edge in spec.edges if edge.condition.choosable]
    if not declared:
        _finish(run, tick)
        return
    alive = [edge for edge in declared if has_budget(run, edge)]
    if not alive:
        _dead_end(run, tick)
    elif len(alive) == 1 and not spec.allow_complete:
        _take_gated(run, tick, alive[0])
    else:
        targets = tuple(dict.fromkeys(edge.to for edge in alive))
        run.put(replace(stage, asking=targets))
        set_marker(run, tick, Marker.ready_to_infer)


def _is_own_worker(run: Run) -> bool:
    """A fan-out's worker in a stage of its parent's blueprint: the stages behind it, in order, are
    the parent's."""
    worker = run.find(Worker)
    return worker is not None and worker.entry >= 0


def _dead_end(run: Run, tick: Tick) -> None:
    edge = _first(run, Condition.dead_end) or _first(run, Condition.error)
    if edge is not None:
        _take(run, tick, edge)
        return
    stage = run.get(Stage)
    message = (
        f"stage {stage.name} has no edge left within its revisit budget; raise max_revisits of a "
        "target or add a dead_end edge"
    )
    end(run, tick, RunStatus.ERROR, error=message, why="dead end", cause="step_cap")


def _finish(run: Run, tick: Tick) -> None:
    """The run is done, unless a stage that it was in owed an output that nobody submitted."""
    visits = run.get(Visits).counts
    owed = [
        spec.name
        for spec, count in zip(run.blueprint.stages, visits, strict=True)
        if spec.require_output and count
    ]
    if owed and run.find(Output) is None:
        message = f"stage {owed[0]} owes an output and none was submitted"
        outcome = run.get(Stage).outcome
        capped = outcome is not None and outcome.kind == "max_iterations"
        cause = "step_cap" if capped else ""
        end(run, tick, RunStatus.ERROR, error=message, why="owed output", cause=cause)
        return
    end(run, tick, RunStatus.COMPLETE)


def _first(run: Run, condition: Condition) -> Edge | None:
    """The first edge of that condition that has budget left."""
    for edge in run.stage_spec.edges:
        if edge.condition is condition and has_budget(run, edge):
            return edge
    return None


# --- taking an edge -----------------------------------------------------------------------------


def _take_gated(run: Run, tick: Tick, edge: Edge) -> None:
    stage = run.get(Stage)
    missing = "" if edge.gate is None else _gate_missing(run, edge.gate)
    if edge.gate is None or not missing:
        _take(run, tick, edge)
        return
    # A stage that is out of turns cannot do what the gate wants, however often it is asked.
    spent = stage.iteration >= iteration_cap(run)
    if spent or stage.gate_reentries >= edge.gate.max_attempts:
        flags = run.get(Flags)
        run.put(replace(flags, gates_forced=flags.gates_forced + 1))
        _take(run, tick, edge)
        return
    run.put(replace(stage, gate_reentries=stage.gate_reentries + 1, outcome=None, asking=()))
    regions.note(run, edge.gate.message or missing)
    begin_turn(run, tick)


def _gate_missing(run: Run, gate: Gate) -> str:
    """What the gate still wants, in its fixed order; "" when it is open."""
    stage = run.get(Stage)
    updated = gate.require_region_updated
    if updated:
        marks = dict(stage.region_marks)
        if marks.get(updated) == regions.region_mark(run, updated):
            return f"Region {updated} must be brought up to date before this stage can end."
    if gate.require_no_open_items:
        region = run.get(Context).region(gate.require_no_open_items)
        still = [] if region is None else [e.key for e in region.entries if e.kind == regions.OPEN]
        if still:
            return f"These items of {gate.require_no_open_items} are open: {', '.join(still[:20])}."
    for name in gate.require_regions:
        if regions.is_empty(run, name):
            return f"Region {name} must be filled before this stage can end."
    if gate.require_modifications and not _modified(run, gate):
        return "Nothing was changed yet: this stage must change something before it can end."
    return ""


def _modified(run: Run, gate: Gate) -> bool:
    """At least one success or one call that policy denied, content in the named region, or no tool
    that could modify anything."""
    stage = run.get(Stage)
    if stage.modifying or stage.blocked:
        return True
    if gate.region and not regions.is_empty(run, gate.region):
        return True
    tools = view_of(run).tools.values()
    return not any(tool.modifies or tool.name in gate.tools for tool in tools)


def _take(run: Run, tick: Tick, edge: Edge) -> None:
    """Transform the context and enter the target."""
    if edge.transform is Transform.clear:
        regions.apply_transform(run, None)
    elif edge.transform is Transform.custom:
        regions.apply_transform(run, edge.clear)
    enter(run, tick, run.blueprint.stage_index(edge.to))


# --- the model chooses --------------------------------------------------------------------------


def routing_question(run: Run) -> str:
    """What the model is asked when several edges are open. Not kept in the context."""
    stage = run.get(Stage)
    spec = run.stage_spec
    lines = [spec.transition_prompt or "This stage is over. Where should the work go next?"]
    for edge in spec.edges:
        if edge.condition.choosable and edge.to in stage.asking:
            target = run.blueprint.stage(edge.to)
            hint = edge.hint or target.description
            line = f"- {edge.to}: {hint}" if hint else f"- {edge.to}"
            if line not in lines:
                lines.append(line)
    if spec.allow_complete:
        lines.append(f"- {_DONE}: the work is complete")
    lines.append("Answer with one of these names and nothing else.")
    return "\n".join(lines)


def parse_choice(reply: str, names: tuple[str, ...], *, allow_done: bool) -> str | None:
    """The name that a reply means: a whole word of its first line, else of a short last line.

    Case does not matter; ``-`` and ``_`` belong to words. None when nothing matches.
    """
    known = {ascii_lower(name): name for name in names}
    if allow_done:
        known.setdefault(ascii_lower(_DONE), _DONE)
    lines = [line for line in _LINES.split(ascii_lower(reply)) if line.strip(" \t")]
    if not lines:
        return None
    last = lines[-1] if len(_BLANKS.split(lines[-1].strip(" \t"))) <= 3 else ""
    for line in (lines[0], last):
        for word in _WORDS.split(line):
            for form in (word, word.strip("-_")):
                if form in known:
                    return known[form]
    return None


def _chosen(run: Run, tick: Tick) -> None:
    stage = run.get(Stage)
    turn = run.get(Turn)
    run.remove(Turn)
    spec = run.stage_spec
    choice = parse_choice(turn.text.body, stage.asking, allow_done=spec.allow_complete)
    run.put(replace(stage, asking=()))
    if choice is None and spec.allow_complete:
        choice = _DONE
    if choice == _DONE and _DONE not in stage.asking:
        _finish(run, tick)
        return
    alive = [edge for edge in spec.edges if edge.condition.choosable and has_budget(run, edge)]
    for edge in alive:
        if choice is None or edge.to == choice:
            _take_gated(run, tick, edge)
            return
    _dead_end(run, tick)
