"""Taking a run in: identity, first components, what must be read first, and the start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from leviath.components.base import Component
from leviath.components.commands import Gather
from leviath.components.context import Context, Entry
from leviath.components.effects import Effect, Effects, Inbox
from leviath.components.events import Spawned
from leviath.components.family import Worker
from leviath.components.identity import Identity, Launch, Tree
from leviath.components.marker import Marker
from leviath.components.output import Flags
from leviath.components.parts import WORLD_OWNER
from leviath.components.progress import (
    Clock,
    Cost,
    Ledgers,
    Outcome,
    Resolution,
    Stage,
    StageTotals,
    Visits,
)
from leviath.components.run_id import mint_run_id
from leviath.components.run_status import RunStatus
from leviath.components.status import Status
from leviath.components.text import Text, inline
from leviath.components.world_facts import Counters, Offer
from leviath.systems import regions, stages
from leviath.systems.draw import draw
from leviath.systems.moves import end, touch
from leviath.systems.reserves import allowance_of
from leviath.systems.run import Ack, Run
from leviath.systems.views import all_regions

if TYPE_CHECKING:
    from leviath.components.blueprint import Blueprint, RegionSpec
    from leviath.components.inputs import Gathered, Spawn
    from leviath.systems.run import Tick
    from leviath.systems.world import World

_BLANKS_MAX = 256
"""Blueprints whose blank parts are kept at hand."""
CONTEXT_TOKENS_ASSUMED = 200_000
_GATHERED_SEEDS = ("files", "glob")


def take_spawn(world: World, tick: Tick, spawn: Spawn) -> None:
    """Create a run, or answer with the run that has the key already."""
    known = world.by_key.get(spawn.key) if spawn.key else None
    if known is not None:
        tick.acks.append(Ack(spawn.ticket, known, world.run_id(known)))
        return
    counters = world.get(WORLD_OWNER, Counters)
    ordinal = counters.ordinal + 1
    run_id = spawn.run_id or mint(world, spawn.agent_name, ordinal, tick.now.wall_ms)
    if run_id in world.by_run_id:
        message = f"a run called {run_id} exists already; leave the id out to have one made"
        tick.acks.append(Ack(spawn.ticket, 0, run_id, "spawn", message))
        return
    admit_run(world, tick, spawn, run_id)
    tick.acks.append(Ack(spawn.ticket, ordinal, run_id))


def admit_run(
    world: World, tick: Tick, spawn: Spawn, run_id: str = "", worker: Worker | None = None
) -> Run:
    """Create a run and let it prepare itself. ``run_id`` is not taken; "" has one made."""
    counters = world.get(WORLD_OWNER, Counters)
    ordinal = counters.ordinal + 1
    run_id = run_id or mint(world, spawn.agent_name, ordinal, tick.now.wall_ms)
    world.put(WORLD_OWNER, replace(counters, ordinal=ordinal))
    blueprint = world.blueprints[spawn.launch.blueprint]
    entry = blueprint.entry if worker is None or worker.entry < 0 else worker.entry
    components = _first_components(world, tick, spawn, blueprint, ordinal, run_id, entry)
    if worker is not None:
        components.append(worker)
    allowance = allowance_of(spawn, tick.now.world_ms)
    if allowance is not None:
        components.append(allowance)
    world.admit(ordinal, components)
    run = Run(world, ordinal)
    tick.events.append(
        Spawned(
            tick.next_event,
            run_id,
            tick.now.wall_ms,
            spawn.agent_name,
            blueprint.stages[entry].name,
        )
    )
    touch(run, tick, urgent=True)
    _prepare(run, tick, blueprint)
    return run


def mint(world: World, agent_name: str, ordinal: int, wall_ms: int) -> str:
    """A fresh id. The bits come from the world's seed; the ordinal makes a clash impossible to
    repeat."""
    counter = ordinal << 16
    while True:
        bits = draw(world, agent_name, "run_id", counter) >> 16
        run_id = mint_run_id(agent_name, max(0, wall_ms // 1000), bits)
        if run_id not in world.by_run_id:
            return run_id
        counter += 1


def _first_components(
    world: World,
    tick: Tick,
    spawn: Spawn,
    blueprint: Blueprint,
    ordinal: int,
    run_id: str,
    entry: int,
) -> list[Component]:
    parent = world.find(spawn.parent, Tree) if spawn.parent else None
    candidates = stages.candidates_of(world, spawn.launch, blueprint.stages[entry])
    window = window_tokens(world, candidates)
    return [
        Identity(run_id, ordinal, spawn.agent_name, spawn.agent_path, spawn.key),
        spawn.launch,
        _place(world, spawn.parent, parent, blueprint, ordinal),
        Status(RunStatus.STARTING),
        Clock(since_ms=tick.now.world_ms),
        Resolution(None, candidates),
        *_blank(world, spawn.launch.blueprint, blueprint, window),
    ]


def _place(
    world: World, above: int, parent: Tree | None, blueprint: Blueprint, ordinal: int
) -> Tree:
    """Where a run stands. What it may allow itself never exceeds what its parent was allowed, and
    stays when the parent is gone."""
    if parent is None:
        return Tree(0, None, 0, blueprint.max_child_depth, ordinal)
    depth = parent.depth + 1
    cap = min(parent.max_child_depth, depth + blueprint.max_child_depth)
    return Tree(above, world.run_id(above), depth, cap, parent.root)


def _blank(world: World, digest: bytes, blueprint: Blueprint, window: int) -> tuple[Component, ...]:
    """What all new runs of a blueprint have alike. Immutable, so they share it until it changes."""
    blank = world.blanks.get((digest, window))
    if blank is None:
        if len(world.blanks) >= _BLANKS_MAX:
            world.blanks.clear()
        blank = world.blanks[digest, window] = (
            Cost(),
            Ledgers(tuple(StageTotals(stage.name) for stage in blueprint.stages)),
            Visits((0,) * len(blueprint.stages)),
            regions.empty_context(blueprint, window),
            Effects(),
            Inbox(),
            Flags(),
        )
    return blank


def window_tokens(world: World, candidates: tuple[tuple[str, str], ...]) -> int:
    """The context window of the first candidate, as far as the host knows it."""
    offer = world.find(WORLD_OWNER, Offer)
    for known in () if offer is None else offer.contexts:
        if candidates and (known.provider, known.model) == candidates[0]:
            return known.context_tokens
    return CONTEXT_TOKENS_ASSUMED


def _prepare(run: Run, tick: Tick, blueprint: Blueprint) -> None:
    """Ask for what must be read, or start at once when nothing is."""
    run.world.set_marker(run.n, Marker.preparing)
    if not _wanted(blueprint):
        start(run, tick, {})
        return
    effect = Effect(
        number=1,
        kind="gather",
        ordinal=1,
        epoch=run.world.get(WORLD_OWNER, Counters).epoch,
        due_ms=tick.now.world_ms + run.world.policy.gather_deadline_ms,
        started_ms=tick.now.world_ms,
    )
    run.put(Effects(counter=1, gathers=1, items=(effect,)))
    gather(run, tick, effect)


def _wanted(blueprint: Blueprint) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    return tuple(
        (spec.name, spec.seed.kind, spec.seed.patterns)
        for spec in all_regions(blueprint)
        if spec.seed is not None and spec.seed.kind in _GATHERED_SEEDS
    )


def gather(run: Run, tick: Tick, effect: Effect) -> None:
    """Issue one attempt at reading what the run needs."""
    tick.commands.append(
        Gather(
            run.n,
            run.run_id,
            effect.number,
            effect.attempt,
            run.get(Launch).workdir,
            _wanted(run.blueprint),
            run.world.policy.gather_deadline_ms,
        )
    )


def take_gathered(run: Run, tick: Tick, gathered: Gathered) -> None:
    """The reading is done: start, or end in error. A paused run starts on resume."""
    effects = run.get(Effects)
    effect = next((e for e in effects.items if e.number == gathered.effect), None)
    if effect is None or effect.kind != "gather" or effect.attempt != gathered.attempt:
        return
    run.put(replace(effects, items=tuple(e for e in effects.items if e is not effect)))
    status = run.status
    if status.is_ended or effect.superseded:
        return
    if gathered.workspace_lost:
        run.put(replace(run.get(Flags), workspace_lost=True))
    if gathered.error:
        if status is RunStatus.PAUSED:
            # Told on resume: pausing is a person's word.
            outcome = Outcome("errored", gathered.error)
            run.put(Stage(stages.entry_of(run), "", outcome=outcome))
        else:
            end(run, tick, RunStatus.ERROR, error=gathered.error, why="preparation failed")
        return
    seeds = dict(gathered.regions)
    if status is RunStatus.PAUSED:
        _fill(run, seeds)
        return
    start(run, tick, seeds)


def start(run: Run, tick: Tick, gathered: dict[str, tuple[Text, ...]]) -> None:
    """Fill the seeded regions and enter the entry stage."""
    _fill(run, gathered)
    stages.enter_first(run, tick)


def _fill(run: Run, gathered: dict[str, tuple[Text, ...]]) -> None:
    launch = run.get(Launch)
    given = dict(launch.region_inputs)
    for spec in all_regions(run.blueprint):
        entries = _seed_entries(spec, launch, given, gathered)
        if entries:
            context = run.get(Context)
            index = context.index(spec.name)
            run.world.splice(run.n, index, len(context.regions[index].entries), entries)
    if launch.task.size_bytes and not any(
        spec.seed is not None and spec.seed.kind == "task_input"
        for spec in all_regions(run.blueprint)
    ):
        # No region asks for the task: then it is the first thing that is said.
        index = run.get(Context).index(regions.CONVERSATION)
        run.world.splice(run.n, index, 0, (regions.entry_of(launch.task, "user"),))


def _seed_entries(
    spec: RegionSpec,
    launch: Launch,
    given: dict[str, Text],
    gathered: dict[str, tuple[Text, ...]],
) -> tuple[Entry, ...]:
    if spec.name in given:
        return (regions.entry_of(given[spec.name]),)
    seed = spec.seed
    if seed is None:
        return ()
    if seed.kind == "task_input":
        return (regions.entry_of(launch.task, "user"),)
    if seed.kind == "literal":
        return (regions.entry_of(inline(seed.text)),)
    if seed.kind in ("input", "caller"):
        text = given.get(seed.key or spec.name)
        return () if text is None else (regions.entry_of(text),)
    return tuple(regions.entry_of(text) for text in gathered.get(spec.name, ()))
