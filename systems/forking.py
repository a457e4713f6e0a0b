"""Forks: a new run that begins where another one was after a step, and owes nothing to it.

What the other run had outside is not the fork's: its model calls are made anew, its answers go to
it alone. What it had spent is told beside the fork's own costs and is no part of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from leviath.components.budget import Allowance, Reserved, TreeSpent
from leviath.components.context import Context, Region
from leviath.components.effects import Effects, Timers, Turn
from leviath.components.errors import WorldError
from leviath.components.events import Spawned
from leviath.components.family import FanOut, Joins, Rounds, Split, TreeUse, Worker
from leviath.components.identity import Forked, Identity, Imported, Launch, Tree
from leviath.components.marker import Marker
from leviath.components.outbox import Outbox
from leviath.components.parts import DECODERS, WORLD_OWNER
from leviath.components.people import Prompts
from leviath.components.progress import (
    Clock,
    Cost,
    Ledgers,
    Resolution,
    Stage,
    StageTotals,
    Visits,
)
from leviath.components.run_status import RunStatus
from leviath.components.status import Position, Status
from leviath.components.text import inline
from leviath.components.world_facts import Counters
from leviath.systems import regions, stages
from leviath.systems.joins import interrupt
from leviath.systems.moves import clock_runs, move, progressed, touch
from leviath.systems.opening import rest_run, settle_run
from leviath.systems.prompts import POINT
from leviath.systems.reserves import began_anew
from leviath.systems.run import Ack, Run
from leviath.systems.spawning import mint, window_tokens

if TYPE_CHECKING:
    from leviath.components.base import Component
    from leviath.components.blueprint import StageSpec
    from leviath.components.inputs import Fork
    from leviath.systems.caches import Caches
    from leviath.systems.run import Tick
    from leviath.systems.world import World

_Parts = dict[type["Component"], "Component"]
_NOT_TAKEN = (Imported, Outbox, Position, Reserved, TreeSpent, TreeUse, Worker)
"""What is about the other run's place in its world."""
_WAITS_FOR_OTHERS = (Marker.waiting_for_children, Marker.fan_out_waiting)


def take_fork(world: World, tick: Tick, caches: Caches, fork: Fork) -> None:
    """Create the fork, or answer with the run that has its key already."""
    known = world.by_key.get(fork.key) if fork.key else None
    if known is not None:
        tick.acks.append(Ack(fork.ticket, known, world.run_id(known)))
        return
    parts: _Parts = {}
    for name, body in fork.parts:
        component: Component = DECODERS[name].decode(body)
        parts[type(component)] = component
    refused = _refusal(world, fork, parts)
    if refused:
        tick.acks.append(Ack(fork.ticket, 0, fork.source_run_id, "run_conflict", refused))
        return
    counters = world.get(WORLD_OWNER, Counters)
    ordinal = counters.ordinal + 1
    run_id = fork.run_id or mint(world, fork.agent_name, ordinal, tick.now.wall_ms)
    position, launch = parts.get(Position), parts[Launch]
    assert isinstance(launch, Launch)
    _begin_anew(world, tick, fork, parts, run_id, ordinal)
    if not _instructions_fit(world, fork, parts):
        refused = "the instructions of its stage do not fit their region; shorten them"
        tick.acks.append(Ack(fork.ticket, 0, fork.source_run_id, "spawn", refused))
        return
    world.put(WORLD_OWNER, replace(counters, ordinal=ordinal))
    world.admit(ordinal, parts.values())
    run = Run(world, ordinal)
    if launch.blueprint != fork.blueprint:
        _instruct(run)
    _stand(run, tick, caches, position.marker if isinstance(position, Position) else None)
    tick.acks.append(Ack(fork.ticket, ordinal, run_id))


def _refusal(world: World, fork: Fork, parts: _Parts) -> str:
    """Why there can be no such fork; "" when there can."""
    status, stage = parts.get(Status), parts.get(Stage)
    if not isinstance(status, Status) or Effects not in parts or Launch not in parts:
        return f"{fork.source_run_id} has no state at step {fork.step}; name another step"
    if status.status.is_ended:
        return f"{fork.source_run_id} had ended by step {fork.step}; fork it at an earlier one"
    if fork.run_id and fork.run_id in world.by_run_id:
        return f"a run called {fork.run_id} exists already; leave the id out to have one made"
    prompts = parts.get(Prompts)
    if isinstance(prompts, Prompts) and prompts.held:
        return (
            f"{fork.source_run_id} had an answer that it had not used yet at step {fork.step}, and "
            "answers are not the fork's; fork it at an earlier step, or at a later one"
        )
    if isinstance(stage, Stage) and stage.name:
        specs = world.blueprints[fork.blueprint].stages
        names = [spec.name for spec in specs]
        if stage.name in names and not _has_point(specs[names.index(stage.name)], stage, prompts):
            return (
                f"{fork.source_run_id} was asking a point of its blueprint at step {fork.step}, "
                "and the new blueprint has another one or none there; fork it at an earlier step"
            )
        if stage.name not in names:
            return (
                f"{fork.source_run_id} was in stage {stage.name!r} at step {fork.step}, and the "
                f"blueprint has none of that name; it has {', '.join(names)}"
            )
    return ""


def _has_point(spec: StageSpec, stage: Stage, prompts: Component | None) -> bool:
    """Whether a point that is being asked is one of this stage, at the same place."""
    items = prompts.items if isinstance(prompts, Prompts) else ()
    asked = [prompt.name for prompt in items if prompt.kind == POINT]
    points = [point.name for point in spec.points[stage.points_done :]]
    return not asked or points[:1] == asked[:1]


def _instructions_fit(world: World, fork: Fork, parts: _Parts) -> bool:
    """Whether what the blueprint tells the model of the run's stage fits where it is kept."""
    stage, context = parts.get(Stage), parts.get(Context)
    if not isinstance(stage, Stage) or not stage.name or not isinstance(context, Context):
        return True
    region = context.region(regions.INSTRUCTIONS)
    words = world.blueprints[fork.blueprint].stages[stage.index].instructions
    return region is None or regions.entry_of(inline(words)).tokens <= region.max_tokens


def _own_questions(parts: _Parts, run_id: str) -> None:
    """The fork asks what the other run asked, under ids of its own; what people allowed the other
    run, they allowed it alone."""
    known = parts.get(Prompts)
    if isinstance(known, Prompts):
        items = tuple(
            replace(prompt, id=f"{run_id}.{prompt.id.rpartition('.')[2]}", attempt=1)
            for prompt in known.items
        )
        parts[Prompts] = Prompts(known.counter, items)


def _begin_anew(
    world: World, tick: Tick, fork: Fork, parts: _Parts, run_id: str, ordinal: int
) -> None:
    """Make the other run's parts those of a run that nobody has paid for or waited for yet."""
    launch, status, clock = parts[Launch], parts[Status], parts[Clock]
    cost, before = parts[Cost], parts.get(Forked)
    assert isinstance(launch, Launch)
    assert isinstance(status, Status)
    assert isinstance(clock, Clock)
    assert isinstance(cost, Cost)
    for kind in _NOT_TAKEN:
        parts.pop(kind, None)
    tree = parts.get(Tree)
    cap = tree.max_child_depth - tree.depth if isinstance(tree, Tree) else 0
    parts[Tree] = Tree(0, None, 0, max(0, cap), ordinal)
    _own_questions(parts, run_id)
    parts[Identity] = Identity(run_id, ordinal, fork.agent_name, fork.agent_path, fork.key)
    parts[Launch] = replace(
        launch,
        workdir=fork.workdir,
        started_ms=tick.now.wall_ms,
        callback_url=None,
        callback_secret_ref=None,
        callback_url_ref=None,
    )
    runs = clock_runs(status.status, status.waiting)
    parts[Clock] = Clock(since_ms=tick.now.world_ms if runs else None)
    parts[Status] = replace(status, attempt=1, held_by=0)
    prefix = _sum(cost, before.prefix) if isinstance(before, Forked) else cost
    parts[Forked] = Forked(fork.source_world_id, fork.source_run_id, fork.step, prefix)
    parts[Cost] = Cost()
    allowance = parts.get(Allowance)
    if isinstance(allowance, Allowance):
        # As much again, from now on: what the other run spent is no part of it.
        parts[Allowance] = began_anew(allowance, tick.now.world_ms)
    ledgers = parts.get(Ledgers)
    if isinstance(ledgers, Ledgers):
        parts[Ledgers] = Ledgers(tuple(_unspent(row) for row in ledgers.stages))
    _shift(parts, tick.now.world_ms - fork.source_world_ms)
    if launch.blueprint != fork.blueprint:
        _change_blueprint(world, parts, fork.blueprint)


def _sum(one: Cost, other: Cost) -> Cost:
    return Cost(*(getattr(one, n) + getattr(other, n) for n in Cost.__struct_fields__))


def _unspent(row: StageTotals) -> StageTotals:
    return StageTotals(
        row.name,
        row.entered,
        started_ms=row.started_ms,
        ended_ms=row.ended_ms,
        visits=row.visits,
    )


def _shift(parts: _Parts, later_ms: int) -> None:
    """Bring spans that are under way to this world's clock, and let go of model calls: whatever
    comes of those is the other run's."""
    stage, timers, effects = parts.get(Stage), parts.get(Timers), parts[Effects]
    assert isinstance(effects, Effects)
    if isinstance(stage, Stage):
        parts[Stage] = replace(stage, entered_ms=stage.entered_ms + later_ms)
    if isinstance(timers, Timers):
        stuck_ms = None if timers.stuck_ms is None else timers.stuck_ms + later_ms
        parts[Timers] = Timers(None, stuck_ms)
    kept = tuple(
        replace(effect, epoch=0, started_ms=effect.started_ms + later_ms)
        for effect in effects.items
        if not effect.provider and not effect.superseded
    )
    parts[Effects] = replace(effects, items=kept)


def _change_blueprint(world: World, parts: _Parts, digest: bytes) -> None:
    """Fit what is kept by stage and by region to another blueprint, by their names."""
    blueprint = world.blueprints[digest]
    launch, stage, context = parts[Launch], parts.get(Stage), parts[Context]
    visits, ledgers = parts[Visits], parts[Ledgers]
    assert isinstance(launch, Launch)
    assert isinstance(context, Context)
    assert isinstance(visits, Visits)
    assert isinstance(ledgers, Ledgers)
    names = [spec.name for spec in blueprint.stages]
    parts[Launch] = launch = replace(launch, blueprint=digest, num_stages=len(names))
    counts = {row.name: n for row, n in zip(ledgers.stages, visits.counts, strict=True)}
    rows = {row.name: row for row in ledgers.stages}
    parts[Visits] = replace(visits, counts=tuple(counts.get(name, 0) for name in names))
    parts[Ledgers] = Ledgers(tuple(rows.get(name) or StageTotals(name) for name in names))
    index = blueprint.entry
    if isinstance(stage, Stage) and stage.name:
        index = names.index(stage.name)
        parts[Stage] = replace(stage, index=index, asking=())
    candidates = stages.candidates_of(world, launch, blueprint.stages[index])
    resolution = parts.get(Resolution)
    entry_model = resolution.entry_model if isinstance(resolution, Resolution) else None
    parts[Resolution] = Resolution(entry_model, candidates)
    empty = regions.empty_context(blueprint, window_tokens(world, candidates))
    parts[Context] = Context(tuple(_filled(region, context) for region in empty.regions))


def _instruct(run: Run) -> None:
    """Tell the model what the new blueprint tells it of the stage that the run is in."""
    stage = run.find(Stage)
    if stage is None or not stage.name:
        return
    words = run.stage_spec.instructions
    prompt = (regions.entry_of(inline(words)),) if words else ()
    if not regions.replace_all(run, regions.INSTRUCTIONS, prompt):
        raise WorldError(f"the instructions of stage {stage.name} do not fit their region")


def _filled(region: Region, context: Context) -> Region:
    known = context.region(region.name)
    if known is None:
        return region
    return replace(region, tokens=known.tokens, entries=known.entries)


def _stand(run: Run, tick: Tick, caches: Caches, marker: Marker | None) -> None:
    """Put the run where it goes on from."""
    if marker is None:
        raise WorldError(f"{run.run_id} has not ended and stands nowhere")
    model_calls = (Marker.awaiting_inference, Marker.awaiting_transition_choice, Marker.backoff)
    run.world.set_marker(run.n, Marker.ready_to_infer if marker in model_calls else marker)
    interrupt(run, tick)
    for kind in (Joins, Split, FanOut, Rounds):
        run.remove(kind)
    if run.status is RunStatus.PAUSED:
        rest_run(run, tick)
    elif run.marker in _WAITS_FOR_OTHERS:
        move(run, tick, RunStatus.RUNNING, Marker.ready_for_transition, why="forked")
    elif run.world.get(WORLD_OWNER, Counters).driven:
        settle_run(run, tick, caches)
    turn = run.find(Turn)
    made = [call for call in (() if turn is None else turn.calls) if call.state == "open"]
    # The other run's calls of this turn are made again, by the fork and on its account.
    run.put(Cost(tool_calls=sum(1 for call in made if call.effect)))
    progressed(run, tick)
    touch(run, tick, urgent=True)
    stage = run.find(Stage)
    tick.events.append(
        Spawned(
            tick.next_event,
            run.run_id,
            tick.now.wall_ms,
            run.get(Identity).agent_name,
            "" if stage is None else stage.name,
        )
    )
