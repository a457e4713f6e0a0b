"""Entering stages, and the top of a turn: caps and stuck edges are looked at before a call is
wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from leviath.components.blueprint import Condition
from leviath.components.effects import Timers
from leviath.components.events import StageEntered
from leviath.components.family import Rounds, Worker
from leviath.components.identity import Launch
from leviath.components.marker import Marker
from leviath.components.output import Flags
from leviath.components.parts import WORLD_OWNER
from leviath.components.progress import Ledgers, Outcome, Resolution, Stage, Visits
from leviath.components.run_status import RunStatus
from leviath.components.status import Status
from leviath.components.text import inline
from leviath.components.world_facts import Offer
from leviath.systems import regions
from leviath.systems.moves import move, progressed, set_marker, set_totals
from leviath.systems.views import view_of

if TYPE_CHECKING:
    from leviath.components.blueprint import Edge, StageSpec
    from leviath.systems.run import Run, Tick
    from leviath.systems.world import World

_MINUTE_MS = 60_000


def candidates_of(world: World, launch: Launch, stage: StageSpec) -> tuple[tuple[str, str], ...]:
    """(provider, model) in order of preference."""
    offer = world.find(WORLD_OWNER, Offer)
    return models_of(launch.model_override, stage, None if offer is None else offer.providers)


def models_of(
    override: str | None, stage: StageSpec, providers: tuple[str, ...] | None
) -> tuple[tuple[str, str], ...]:
    """(provider, model) in order of preference: the launch override alone, else the stage's list
    as far as its providers are offered, else the whole list, so that a missing one can be named."""
    if override:
        provider, slash, model = override.partition("/")
        if slash:
            return ((provider, model),)
        return ((stage.model.models[0].provider, override),)
    wanted = tuple((ref.provider, ref.model) for ref in stage.model.models)
    if providers is None:
        return wanted
    offered = tuple(pair for pair in wanted if pair[0] in providers)
    return offered or wanted


def refresh_candidates(run: Run) -> bool:
    """Choose the models of the present stage again, from the first. Whether its provider is
    offered."""
    candidates = candidates_of(run.world, run.get(Launch), run.stage_spec)
    resolution = run.get(Resolution)
    if resolution.candidates != candidates or resolution.choice:
        run.put(replace(resolution, candidates=candidates, choice=0))
    offer = run.world.find(WORLD_OWNER, Offer)
    return offer is None or candidates[0][0] in offer.providers


def has_started(run: Run) -> bool:
    """Whether the run ever entered a stage."""
    stage = run.find(Stage)
    return stage is not None and bool(stage.name)


def entry_of(run: Run) -> int:
    """Index of the stage that the run begins in."""
    worker = run.find(Worker)
    return run.blueprint.entry if worker is None or worker.entry < 0 else worker.entry


def enter_first(run: Run, tick: Tick) -> None:
    """Leave ``starting``: enter the entry stage."""
    entry = entry_of(run)
    run.put(Stage(entry, ""))
    if run.status is not RunStatus.RUNNING:
        move(run, tick, RunStatus.RUNNING, Marker.ready_to_infer)
    enter(run, tick, entry)


def enter(run: Run, tick: Tick, index: int) -> None:
    """Enter a stage: counters afresh, its models, its instructions, its clock; then its first
    turn."""
    blueprint = run.blueprint
    spec = blueprint.stages[index]
    previous = run.get(Stage)
    visits = run.get(Visits)
    counts = visits.counts
    visit = counts[index] + 1
    run.put(replace(visits, counts=(*counts[:index], visit, *counts[index + 1 :])))
    run.put(
        Stage(
            index,
            spec.name,
            entered_ms=tick.now.world_ms,
            region_marks=_gate_marks(run, spec),
        )
    )
    resolution = run.get(Resolution)
    candidates = candidates_of(run.world, run.get(Launch), spec)
    entry_model = resolution.entry_model or "/".join(candidates[0])
    run.put(Resolution(entry_model, candidates))
    _enter_totals(run, tick, previous, index)
    arm(run, tick.now.world_ms)
    tick.events.append(
        StageEntered(tick.next_event, run.run_id, tick.now.wall_ms, spec.name, previous.name, visit)
    )
    progressed(run, tick)
    words = spec.instructions
    prompt = (regions.entry_of(inline(words)),) if words else ()
    if not regions.replace_all(run, regions.INSTRUCTIONS, prompt):
        fail(
            run,
            tick,
            f"the instructions of stage {spec.name} do not fit their region; shorten them",
        )
        return
    if spec.fan_out is not None and visit > 1:
        _frame_split(run, spec.name)
    begin_turn(run, tick)


def _frame_split(run: Run, stage: str) -> None:
    """Tell a stage that splits again what its earlier rounds covered."""
    rounds = run.find(Rounds) or Rounds()
    for row in rounds.items:
        if row.stage == stage:
            names = ", ".join(row.ids)
            more = f" and {row.total - len(row.ids)} more" if row.total > len(row.ids) else ""
            text = f"This is round {row.rounds + 1}. The last one covered {names}{more}."
            regions.note(run, text + " Split what is left, not what was done.")


def _gate_marks(run: Run, spec: StageSpec) -> tuple[tuple[str, bytes], ...]:
    names = {
        edge.gate.require_region_updated: None
        for edge in spec.edges
        if edge.gate is not None and edge.gate.require_region_updated
    }
    return tuple((name, regions.region_mark(run, name)) for name in names)


def _enter_totals(run: Run, tick: Tick, previous: Stage, index: int) -> None:
    rows = run.get(Ledgers).stages
    wall = tick.now.wall_ms
    if previous.name and previous.index != index:
        left = rows[previous.index]
        if left.entered:
            set_totals(run, previous.index, replace(left, ended_ms=wall))
            rows = run.get(Ledgers).stages
    row = rows[index]
    started = wall if row.started_ms is None else row.started_ms
    set_totals(
        run,
        index,
        replace(row, entered=True, started_ms=started, ended_ms=None, visits=row.visits + 1),
    )


def arm(run: Run, since_ms: int) -> None:
    """Set the timer of a stage with a stuck edge that counts minutes, ``since_ms`` of world
    time."""
    minutes = [
        edge.stuck_after_minutes
        for edge in run.stage_spec.edges
        if edge.condition is Condition.stuck and edge.stuck_after_minutes
    ]
    if minutes:
        run.put(Timers(None, since_ms + min(minutes) * _MINUTE_MS))
    else:
        run.remove(Timers)


def iteration_cap(run: Run) -> int:
    """Turns that one visit of the current stage may take."""
    return view_of(run).spec.max_iterations or run.world.policy.iterations_default


def begin_turn(run: Run, tick: Tick) -> None:
    """The top of a turn. Leaves the run ready for a model call, or on its way out of the stage."""
    stage = run.get(Stage)
    if stage.iteration >= iteration_cap(run):
        flags = run.get(Flags)
        run.put(replace(flags, max_iterations_hit=flags.max_iterations_hit + 1))
        leave(run, tick, Outcome("max_iterations", f"after {stage.iteration} turns"))
        return
    reason = "" if stage.stuck_fired else stuck_edge(run, tick)[1]
    if reason:
        run.put(replace(stage, stuck_fired=True))
        regions.note(run, f"[stuck] {reason}", region="stuck_report")
        leave(run, tick, Outcome("stuck", reason))
        return
    set_marker(run, tick, Marker.ready_to_infer)


def leave(run: Run, tick: Tick, outcome: Outcome | None) -> None:
    """Send the run to the resolution of its transition, with how the stage ended."""
    stage = run.get(Stage)
    if outcome is not None or stage.outcome is not None or stage.asking:
        run.put(replace(stage, outcome=outcome, asking=()))
    set_marker(run, tick, Marker.resolve_transition)


def fail(run: Run, tick: Tick, message: str, cause: str = "") -> None:
    """End the stage in error; the run ends in error only if no edge takes it.

    A paused run keeps the verdict until it is resumed: pausing is a person's word.
    """
    outcome = Outcome("errored", message, cause)
    if run.status is RunStatus.PAUSED:
        run.put(replace(run.get(Stage), outcome=outcome, asking=()))
        return
    if run.status is RunStatus.WAITING_INPUT:
        move(run, tick, RunStatus.RUNNING, Marker.ready_to_infer, why="stage failed")
    leave(run, tick, outcome)


def has_budget(run: Run, edge: Edge) -> bool:
    """Whether the target may be entered once more: its first entry plus ``max_revisits``."""
    blueprint = run.blueprint
    index = blueprint.stage_index(edge.to)
    limit = blueprint.stages[index].max_revisits
    return limit is None or run.get(Visits).counts[index] <= limit


def stuck_edge(run: Run, tick: Tick) -> tuple[Edge | None, str]:
    """The first stuck edge with budget left whose threshold is reached, and which one it is.

    Same-file edits are looked at first, then turns, tool calls, minutes (leviath-engine 3c).
    """
    view = view_of(run)
    for edge in view.spec.edges if view.can_get_stuck else ():
        if edge.condition is Condition.stuck and has_budget(run, edge):
            reason = _stuck_reason(run.get(Stage), edge, tick.now.world_ms)
            if reason:
                return edge, reason
    return None, ""


def _stuck_reason(stage: Stage, edge: Edge, world_ms: int) -> str:
    limit = edge.stuck_after_same_file_edits
    for path, count in stage.edits:
        if limit and count >= limit:
            return f"{path} was edited {count} times in this stage"
    if edge.stuck_after_iterations and stage.iteration >= edge.stuck_after_iterations:
        return f"{stage.iteration} turns in this stage"
    if edge.stuck_after_tool_calls and stage.tool_calls >= edge.stuck_after_tool_calls:
        return f"{stage.tool_calls} tool calls in this stage"
    minutes = edge.stuck_after_minutes
    if minutes and world_ms - stage.entered_ms >= minutes * _MINUTE_MS:
        return f"{minutes} minutes in this stage"
    return ""


def is_running(run: Run) -> bool:
    """Whether the run may be moved on: neither ended, paused nor parked."""
    return run.get(Status).status is RunStatus.RUNNING
