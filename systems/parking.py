"""How a run rests until children end, and how a blueprint that it named is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leviath.components.blueprint import StageMode
from leviath.components.commands import FindAgent
from leviath.components.family import FanOut, Joins
from leviath.components.identity import Identity, Launch
from leviath.components.marker import Marker
from leviath.components.run_status import RunStatus
from leviath.components.status import Waiting
from leviath.systems.moves import move, still_waiting

if TYPE_CHECKING:
    from leviath.components.effects import Call, Effect
    from leviath.systems.run import Run, Tick


def wait_for_children(run: Run, tick: Tick) -> None:
    """Rest until children end. No slot is held; a child's end wakes the run in the same step."""
    fan_out = run.find(FanOut)
    if fan_out is not None:
        waiting = Waiting("fan_out_workers", outstanding=fan_out.total - fan_out.ended)
        _rest(run, tick, waiting, Marker.fan_out_waiting)
        return
    joins = run.find(Joins) or Joins()
    live = run.world.trees.live.get(run.n, {})
    targets = {n for join in joins.items for n in join.targets}
    _rest(run, tick, Waiting("children", outstanding=sum(n in live for n in targets)))


def wait_for_all_children(run: Run, tick: Tick) -> None:
    """Rest until no child is at work: the stage asks for that before it ends."""
    live = run.world.trees.live.get(run.n, {})
    _rest(run, tick, Waiting("children", outstanding=len(live)))


def _rest(
    run: Run, tick: Tick, waiting: Waiting, marker: Marker = Marker.waiting_for_children
) -> None:
    if run.status is RunStatus.WAITING_INPUT and run.marker is marker:
        still_waiting(run, tick, waiting.outstanding)
        return
    move(run, tick, RunStatus.WAITING_INPUT, marker, waiting=waiting)


def find_agent(run: Run, call: Call, effect: Effect) -> FindAgent:
    """The command that looks up the blueprint of a call, or of the stage that it is made in."""
    fields = dict(call.fields)
    spec = run.stage_spec
    ours = spec.fan_out if spec.mode is StageMode.fan_out else None
    wanted, is_query = "", False
    if ours is not None and call.tool == "fan_out":
        wanted, is_query = ours.worker_agent or ours.worker_query, not ours.worker_agent
    elif "agent" in fields:
        wanted = fields["agent"].body
    return FindAgent(
        run.n,
        run.run_id,
        effect.number,
        effect.attempt,
        wanted,
        is_query,
        run.get(Identity).agent_path,
        run.get(Launch).workdir,
        run.world.policy.gather_deadline_ms,
    )
