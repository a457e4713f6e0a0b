"""Going on with what children handed back: joins of calls, fan-outs, stages that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from leviath.components.context import Context, Entry
from leviath.components.effects import Effects, Turn
from leviath.components.events import ChildrenJoined
from leviath.components.family import FanOut, Join, Joins, Outcome, Round, Rounds, Split, Worker
from leviath.components.inputs import AgentFound
from leviath.components.marker import Marker
from leviath.components.progress import Stage
from leviath.components.run_status import RunStatus
from leviath.components.text import inline
from leviath.systems import agent_calls, regions, reports, stages, tools
from leviath.systems.children import count_spawned, refusal, start_child
from leviath.systems.moves import touch, unpark
from leviath.systems.tree_index import WAITS

if TYPE_CHECKING:
    from leviath.components.effects import Call
    from leviath.systems.run import Run, Tick

IDS_TOLD_MAX = 12
"""Items of an earlier round that a stage is reminded of (leviath-engine section 6)."""


def take_found(run: Run, tick: Tick, found: AgentFound) -> None:
    """A blueprint was found, or not: start the agent or the fan-out that asked for it."""
    effects = run.get(Effects)
    effect = next((e for e in effects.items if e.number == found.effect), None)
    if effect is None or effect.attempt != found.attempt or not effect.live:
        return
    call = None if effect.superseded else tools.call_of(run, effect)
    run.put(replace(effects, items=tuple(e for e in effects.items if e is not effect)))
    if call is None:
        return
    tools.finish(run, tick, _start(run, tick, replace(call, effect=0), found))
    touch(run, tick)
    if stages.is_running(run):
        tools.go_on(run, tick)


def _start(run: Run, tick: Tick, call: Call, found: AgentFound) -> Call:
    if found.error:
        return agent_calls.failed(call, found.error)
    fields = dict(call.fields)
    if call.tool == agent_calls.FAN_OUT:
        items = sum(name.startswith(agent_calls.ITEM) for name, _ in call.fields)
        why = refusal(run, tick, items)
        if why:
            return agent_calls.failed(call, why)
        return agent_calls.begin_fan_out(run, tick, call, found)
    # Looked up meanwhile: others may have started since.
    why = refusal(run, tick, 1)
    if why:
        return agent_calls.failed(call, why)
    count_spawned(run, tick, 1)
    child = start_child(run, tick, found, fields["task"])
    if "wait" in fields and fields["wait"].body == "true":
        return agent_calls.wait(run, call, Join(call.call_id, (child.n,)))
    return agent_calls.done(call, f"started {child.run_id}")


def interrupt(run: Run, tick: Tick) -> None:
    """A run came in from its files: what it waited for is not known by the same numbers here."""
    if run.find(Joins) is None and run.find(FanOut) is None:
        return
    turn = run.find(Turn)
    for call in () if turn is None else turn.calls:
        if call.state == "waiting":
            text = "interrupted: the run was moved while it waited; check what its agents did"
            tools.finish(run, tick, agent_calls.failed(call, text))
    for kind in (Joins, Split, FanOut):
        run.remove(kind)


# --- children that end --------------------------------------------------------------------------


def hear(run: Run, tick: Tick, children: list[int]) -> None:
    """Count the workers that ended, for a fan-out under way."""
    fan_out = run.find(FanOut)
    if fan_out is None:
        return
    world = run.world
    ended = succeeded = 0
    for child in children:
        if child >= fan_out.first and world.find(child, Worker) is not None:
            outcome = world.trees.outcome(run.n, child)
            ended += 1
            succeeded += outcome is not None and outcome.succeeded
    if ended:
        run.put(
            replace(
                fan_out,
                ended=fan_out.ended + ended,
                succeeded=fan_out.succeeded + succeeded,
            )
        )


def start_workers(run: Run, tick: Tick, count: int) -> None:
    """Start up to so many workers of a fan-out, in the order of its items."""
    split, fan_out = run.get(Split), run.get(FanOut)
    found = AgentFound(
        run.n,
        0,
        0,
        split.blueprint,
        split.agent_name,
        split.agent_path,
        split.no_output_tools,
        split.read_paths_declared,
    )
    for item in split.items[fan_out.started : fan_out.started + count]:
        start_child(run, tick, found, item.task, worker=Worker(item.id, split.entry))
    # Starting may end a worker at once; nobody has counted it yet.
    started = min(fan_out.total, fan_out.started + count)
    run.put(replace(run.get(FanOut), started=started))
    if started == fan_out.total:
        _remember_round(run, split)
        run.put(replace(split, items=()))


def _remember_round(run: Run, split: Split) -> None:
    if not split.from_stage:
        return
    name = run.get(Stage).name
    rounds = run.find(Rounds) or Rounds()
    before = next((row.rounds for row in rounds.items if row.stage == name), 0)
    others = tuple(row for row in rounds.items if row.stage != name)
    ids = tuple(item.id for item in split.items[:IDS_TOLD_MAX])
    run.put(Rounds((*others, Round(name, before + 1, len(split.items), ids))))


def settle(run: Run, tick: Tick) -> None:
    """Look at everything that a parent waits for, and go on with what is decided."""
    status = run.status
    if status not in (RunStatus.WAITING_INPUT, RunStatus.RUNNING):
        return
    turn = run.find(Turn)
    if turn is None:
        if status is RunStatus.WAITING_INPUT and run.marker in WAITS:
            _let_leave(run, tick)
        return
    moved = _settle_joins(run, tick)
    if run.find(FanOut) is not None:
        _count_vanished(run)
        if _settle_fan_out(run, tick):
            return
        moved = moved or run.find(FanOut) is None
    if moved or run.marker in WAITS:
        tools.go_on(run, tick)


def _count_vanished(run: Run) -> None:
    """Workers that this host does not have, because they could not be read, have failed."""
    fan_out = run.get(FanOut)
    live = len(run.world.trees.live.get(run.n, ()))
    vanished = fan_out.started - fan_out.ended - live
    if vanished > 0:
        run.put(replace(fan_out, ended=fan_out.ended + vanished))


def _let_leave(run: Run, tick: Tick) -> None:
    """A stage that waited for all children of its run may end now. A run that was brought in from a
    document waits for nothing that is known here: it takes its next turn."""
    live = run.world.trees.live.get(run.n)
    spec = run.stage_spec
    if live and spec.requires_children:
        return
    if spec.requires_children:
        unpark(run, tick, Marker.resolve_transition, why="its children have ended")
    else:
        unpark(run, tick, Marker.ready_to_infer, why="its children have ended")
        stages.begin_turn(run, tick)


def _settle_joins(run: Run, tick: Tick) -> bool:
    joins = run.find(Joins)
    left: list[Join] = []
    for join in () if joins is None else joins.items:
        outcomes = [_outcome(run, n) for n in join.targets]
        ended = sum(map(reports.is_ended, outcomes))
        succeeded = sum(outcome.succeeded for outcome in outcomes)
        verdict = reports.decided(join.mode, join.quorum, len(outcomes), ended, succeeded)
        if not verdict:
            left.append(join)
            continue
        call = next(c for c in run.get(Turn).calls if c.call_id == join.call_id)
        tools.finish(run, tick, _joined(run, call, outcomes, is_error=verdict == "failed"))
        _announce(run, tick, join.mode, outcomes)
    if joins is None or len(left) == len(joins.items):
        return False
    if left:
        run.put(Joins(tuple(left)))
    else:
        run.remove(Joins)
    return True


def _outcome(run: Run, n: int) -> Outcome:
    trees = run.world.trees
    found = trees.outcome(run.n, n)
    if found is None:
        return Outcome(n, "", "", succeeded=False, error="it is not in this home any more")
    if not found.run_id and run.n in trees.departed:
        return replace(found, run_id=trees.departed[run.n].name_of(n))
    return found


def _joined(run: Run, call: Call, outcomes: list[Outcome], *, is_error: bool) -> Call:
    text = reports.summary("agents", outcomes)
    bytes_max = run.world.policy.child_result_bytes_max
    settled = agent_calls.failed(call, text) if is_error else agent_calls.done(call, text)
    return replace(settled, references=reports.references(outcomes, bytes_max))


def _announce(run: Run, tick: Tick, mode: str, outcomes: list[Outcome], unborn: int = 0) -> None:
    ended = [outcome for outcome in outcomes if reports.is_ended(outcome)]
    succeeded = sum(outcome.succeeded for outcome in ended)
    tick.events.append(
        ChildrenJoined(
            tick.next_event,
            run.run_id,
            tick.now.wall_ms,
            mode,
            len(outcomes) + unborn,
            succeeded,
            len(ended) - succeeded,
            len(outcomes) - len(ended) + unborn,
        )
    )


# --- a fan-out that is over ---------------------------------------------------------------------


def _settle_fan_out(run: Run, tick: Tick) -> bool:
    """End a fan-out that is decided. True when it moved the run itself."""
    split, fan_out = run.get(Split), run.get(FanOut)
    verdict = reports.decided(
        split.mode, split.quorum, fan_out.total, fan_out.ended, fan_out.succeeded
    )
    if not verdict:
        return False
    outcomes = run.world.trees.outcomes_since(run.n, fan_out.first) if fan_out.total else []
    gone = Outcome(0, "", "", succeeded=False, item="a worker", error="it cannot be read any more")
    outcomes += [gone] * (fan_out.started - len(outcomes))
    if split.items:
        _remember_round(run, split)
    # Workers that are still at work are not needed any more: without it, they are cancelled.
    run.remove(FanOut)
    run.remove(Split)
    _announce(run, tick, split.mode, outcomes, fan_out.total - fan_out.started)
    if split.from_stage:
        _end_stage(run, tick, split, outcomes, failed=verdict == "failed")
        return True
    call = next(c for c in run.get(Turn).calls if c.call_id == split.call_id)
    text = reports.summary("workers", outcomes)
    failed = verdict == "failed"
    settled = agent_calls.failed(call, text) if failed else agent_calls.done(call, text)
    bytes_max = run.world.policy.child_result_bytes_max
    settled = replace(settled, references=reports.references(outcomes, bytes_max))
    tools.finish(run, tick, settled)
    return False


def _end_stage(
    run: Run, tick: Tick, split: Split, outcomes: list[Outcome], *, failed: bool
) -> None:
    """The stage hands its workers' results over, and the run goes to the merge."""
    spec = run.stage_spec.fan_out
    assert spec is not None
    text = reports.summary("workers", outcomes)
    call = next(c for c in run.get(Turn).calls if c.call_id == split.call_id)
    result = agent_calls.failed(call, text) if failed else agent_calls.done(call, text)
    tools.finish(run, tick, result)
    name = spec.results_region or regions.CONVERSATION
    _back_to_work(run, tick)
    tools.close_turn(run)
    region = run.get(Context).region(name)
    budget = 4_000 if region is None else region.max_tokens * 4 * 9 // 10
    found = reports.references(outcomes, budget)
    head = inline(f"Results of the workers. {text}")
    entry = Entry(head, reports.tokens_with(head, found), "user", references=found)
    if not regions.append(run, name, (entry,)):
        regions.append(run, regions.CONVERSATION, (entry,))
    touch(run, tick)
    if failed:
        stages.fail(run, tick, reports.failure_text("workers", outcomes))
    elif spec.merge_stage:
        stages.enter(run, tick, run.blueprint.stage_index(spec.merge_stage))
    else:
        stages.leave(run, tick, None)


def _back_to_work(run: Run, tick: Tick) -> None:
    """Back to work."""
    if run.status is RunStatus.WAITING_INPUT:
        unpark(run, tick, Marker.awaiting_tools, why="its workers have ended")
