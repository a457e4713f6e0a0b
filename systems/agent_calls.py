"""The tools with which a run starts other runs, waits for them, and speaks to them.

They run inside the step. Starting an agent first has its blueprint looked up outside, so its call
is released like any other; waiting leaves the call open until children end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from leviath.components.blueprint import StageMode
from leviath.components.effects import Turn
from leviath.components.family import FanOut, Item, Join, Joins, Outcome, Split
from leviath.components.identity import Identity, Launch
from leviath.components.inputs import AgentFound, Post
from leviath.components.money import usd_text
from leviath.components.parts import WORLD_OWNER
from leviath.components.progress import Stage
from leviath.components.run_status import RunStatus
from leviath.components.status import Status
from leviath.components.text import Text, inline
from leviath.components.world_facts import Counters
from leviath.systems import reports
from leviath.systems.children import count_spawned, refusal
from leviath.systems.moves import end
from leviath.systems.run import Run
from leviath.systems.words import quoted

if TYPE_CHECKING:
    from leviath.components.effects import Call
    from leviath.systems.run import Tick

SPAWN: Final = "spawn_agent"
FAN_OUT: Final = "fan_out"
AGENT_TOOLS: Final = frozenset(
    (
        SPAWN,
        "wait_for_agent",
        "wait_for_agents",
        "check_agent",
        "send_to_agent",
        "kill_agent",
        FAN_OUT,
    )
)
FIND: Final = "agent"
"""Effect class of a call whose release looks a blueprint up."""
ITEM: Final = "item:"
"""Head of the field names that carry the items of a fan-out; the id follows."""
MODES: Final = ("all", "fail_all", "first", "quorum")


def admit(run: Run, tick: Tick, call: Call) -> Call:
    """Carry a call out as far as the step can: done, waiting for children, or to be released."""
    fields = dict(call.fields)
    if call.tool == SPAWN:
        return _spawn(run, tick, call, fields)
    if call.tool == FAN_OUT:
        return _fan_out(run, tick, call, fields)
    if call.tool == "wait_for_agents":
        return _wait_for_agents(run, call, fields)
    found, why = _agent(run, fields)
    if found is None:
        return failed(call, why)
    if call.tool == "wait_for_agent":
        if run.world.trees.parent(found.ordinal) not in (0, run.n):
            return failed(call, f"{found.run_id} is a child of your child; wait for the child")
        return wait(run, call, Join(call.call_id, (found.ordinal,)))
    if call.tool == "check_agent":
        return _check(run, call, found)
    if reports.is_ended(found):
        return failed(call, f"{found.run_id} has ended ({found.status or 'gone'})")
    child = Run(run.world, found.ordinal)
    if call.tool == "send_to_agent":
        return _send(run, tick, call, child, fields)
    why = fields["why"].body if "why" in fields else ""
    end(child, tick, RunStatus.CANCELLED, actor=run.run_id, why=why or "killed by its parent")
    return done(call, f"{child.run_id} is cancelled, and so are the runs below it.")


def done(call: Call, text: str) -> Call:
    """The call with its result."""
    return replace(call, state="done", result=inline(text), is_error=False, fields=())


def failed(call: Call, text: str) -> Call:
    """The call, refused: an ordinary result that the model reads."""
    result = inline(f"[error] {text}")
    return replace(call, state="done", result=result, is_error=True, fields=())


# --- starting -----------------------------------------------------------------------------------


def _spawn(run: Run, tick: Tick, call: Call, fields: dict[str, Text]) -> Call:
    agent, task = fields.get("agent"), fields.get("task")
    if agent is None or task is None or not agent.body:
        return failed(call, "spawn_agent needs the text fields agent and task")
    why = refusal(run, tick, 1)
    if why:
        return failed(call, why)
    return replace(call, effect_class=FIND)


def _fan_out(run: Run, tick: Tick, call: Call, fields: dict[str, Text]) -> Call:
    spec = run.stage_spec
    ours = spec.fan_out if spec.mode is StageMode.fan_out else None
    turn = run.get(Turn)
    items = [name for name, _ in call.fields if name.startswith(ITEM)]
    if len(turn.calls) > 1:
        return failed(call, "fan_out must be the only call of its turn; call it alone")
    if ours is not None and "agent" in fields:
        return failed(call, "this stage knows its workers; leave agent out")
    if ours is None and not ("agent" in fields and fields["agent"].body):
        return failed(call, "fan_out needs agent, the agent that works on the items")
    mode, quorum = _join_of(fields)
    if ours is not None and "join" not in fields and "quorum" not in fields:
        mode, quorum = ours.join, ours.quorum
    fault = _join_fault(mode, quorum, len(items))
    most = None if ours is None else ours.max_items
    if most is not None and len(items) > most:
        fault = f"{len(items)} items are over the {most} that this stage allows; merge some"
    fault = fault or refusal(run, tick, len(items))
    if fault:
        return failed(call, fault)
    if ours is None or not ours.worker_stage:
        return replace(call, effect_class=FIND)
    launch = run.get(Launch)
    mine = AgentFound(
        run.n,
        0,
        0,
        launch.blueprint,
        run.blueprint.name,
        run.get(Identity).agent_path,
        launch.no_output_tools,
        launch.read_paths_declared,
    )
    return begin_fan_out(run, tick, call, mine, entry=run.blueprint.stage_index(ours.worker_stage))


def begin_fan_out(run: Run, tick: Tick, call: Call, found: AgentFound, *, entry: int = -1) -> Call:
    """Take a split: its workers start as soon as there is room. The call waits for them."""
    spec = run.stage_spec
    ours = spec.fan_out if spec.mode is StageMode.fan_out else None
    fields = dict(call.fields)
    mode, quorum = _join_of(fields)
    if ours is not None and "join" not in fields and "quorum" not in fields:
        mode, quorum = ours.join, ours.quorum
    items = tuple(
        Item(name[len(ITEM) :], task) for name, task in call.fields if name.startswith(ITEM)
    )
    at_once = 30 if ours is None else ours.max_workers
    if "max_workers" in fields:
        asked = int(fields["max_workers"].body)
        # A model may ask for fewer at once than the author allows, not for more.
        at_once = min(filter(None, (asked, at_once)), default=0)
    count_spawned(run, tick, len(items))
    run.put(
        Split(
            call.call_id,
            ours is not None,
            items,
            found.blueprint,
            found.agent_name,
            found.agent_path,
            entry,
            found.no_output_tools,
            found.read_paths_declared,
            mode,
            quorum,
            at_once,
        )
    )
    counters = run.world.get(WORLD_OWNER, Counters)
    run.put(FanOut(len(items), first=counters.ordinal + 1))
    if ours is not None:
        run.put(replace(run.get(Stage), split=True))
    return replace(call, state="waiting", fields=())


def _join_of(fields: dict[str, Text]) -> tuple[str, int]:
    quorum = int(fields["quorum"].body) if "quorum" in fields else 0
    mode = fields["join"].body if "join" in fields else ("quorum" if quorum else "all")
    return mode, quorum


def _join_fault(mode: str, quorum: int, total: int) -> str:
    if mode not in MODES:
        return f"join {quoted(mode)} is none of {', '.join(MODES)}"
    if mode == "quorum" and not 1 <= quorum <= max(1, total):
        return f"a quorum of {quorum} out of {total} cannot be; give quorum from 1 to {total}"
    return ""


# --- waiting ------------------------------------------------------------------------------------


def wait(run: Run, call: Call, join: Join) -> Call:
    """Leave the call open until the join is decided."""
    joins = run.find(Joins) or Joins()
    run.put(Joins((*joins.items, join)))
    return replace(call, state="waiting", fields=())


def _wait_for_agents(run: Run, call: Call, fields: dict[str, Text]) -> Call:
    trees = run.world.trees
    targets: dict[int, None] = {}
    for name in _lines(fields.get("agent_ids")):
        found, why = _agent(run, {"agent_id": inline(name)})
        if found is None:
            return failed(call, why)
        if trees.parent(found.ordinal) not in (0, run.n):
            return failed(call, f"{name} is a child of your child; wait for the child")
        targets[found.ordinal] = None
    if "agent_ids" not in fields:
        targets = dict.fromkeys(trees.live_children(run.n))
    if not targets:
        return done(call, "No agent of yours is at work.")
    mode, quorum = _join_of(fields)
    fault = _join_fault(mode, quorum, len(targets))
    if fault:
        return failed(call, fault)
    return wait(run, call, Join(call.call_id, tuple(targets), mode, quorum))


def _lines(text: Text | None) -> list[str]:
    return [] if text is None else [line for line in text.body.split("\n") if line]


# --- asking and telling -------------------------------------------------------------------------


def _agent(run: Run, fields: dict[str, Text]) -> tuple[Outcome | None, str]:
    """The run that a call names, if it stands below this one; else why not."""
    given = fields.get("agent_id")
    if given is None or not given.body:
        return None, "agent_id is missing: give the id that spawn_agent returned"
    trees = run.world.trees
    n = trees.child_by_id(run.n, given.body)
    departed = trees.departed.get(run.n)
    below = n and (trees.is_within(n, run.n) or (departed is not None and n in departed))
    if not below:
        names = ", ".join(run.world.run_id(child) for child in trees.live_children(run.n)[:20])
        return None, f"no agent of yours is called {quoted(given.body)}; at work: {names or 'none'}"
    above = trees.parent(n) or run.n
    found = trees.outcome(above, n)
    if found is None:
        return None, f"{quoted(given.body)} is not known any more"
    return replace(found, run_id=given.body), ""


def _check(run: Run, call: Call, found: Outcome) -> Call:
    lines = [f"{found.run_id}: {found.status}"]
    status = run.world.find(found.ordinal, Status)
    stage = run.world.find(found.ordinal, Stage)
    if status is not None and status.waiting is not None and not status.status.is_ended:
        lines.append(f"waits for: {status.waiting.reason.replace('_', ' ')}")
    if stage is not None:
        lines.append(f"stage {stage.name}, turn {stage.iteration}")
    if found.error:
        lines.append(f"error: {found.error}")
    if found.ordinal in run.world:
        total = run.world.trees.total(found.ordinal)
        cost = "unknown" if total.nano_usd is None else f"${usd_text(total.nano_usd)}"
        tokens = total.prompt + total.completion + total.cached + total.cache_write
        lines.append(f"cost with what runs below it: {cost}, {tokens} tokens, {total.runs} runs")
    checked = done(call, "\n".join(lines))
    if reports.is_ended(found) and not found.result.is_empty:
        bytes_max = run.world.policy.child_result_bytes_max
        return replace(checked, references=reports.references((found,), bytes_max))
    return checked


def _send(run: Run, tick: Tick, call: Call, child: Run, fields: dict[str, Text]) -> Call:
    # Here, because what takes messages also lets turns go on, which begins with these tools.
    from leviath.systems.control import take_post

    message = fields.get("message")
    if message is None or message.is_empty:
        return failed(call, "send_to_agent needs the text field message")
    take_post(child, tick, Post(child.n, message, 0, run.run_id))
    ack = tick.acks.pop()
    if ack.code:
        return failed(call, ack.message)
    return done(call, f"{child.run_id} reads it before its next turn.")
