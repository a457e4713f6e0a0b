"""A turn's tool calls: refused, asked, run inside the step or released; then merged in call
order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from leviath.components.blueprint import Permission
from leviath.components.commands import CallTool
from leviath.components.context import AskedCall, Entry
from leviath.components.effects import Call, Effect, Effects, Turn
from leviath.components.events import CallUnknown, ToolEnded, ToolStarted
from leviath.components.identity import Launch
from leviath.components.marker import Marker
from leviath.components.output import Flags
from leviath.components.parts import WORLD_OWNER
from leviath.components.progress import Cost, Stage, Visits
from leviath.components.run_status import RunStatus
from leviath.components.status import Waiting
from leviath.components.text import Text, inline, tokens_of
from leviath.components.world_facts import Counters
from leviath.systems import agent_calls, people, prompts, regions
from leviath.systems.agent_calls import AGENT_TOOLS, FIND
from leviath.systems.builtin import run_in_step
from leviath.systems.moves import park, progressed, set_marker, touch, unpark
from leviath.systems.parking import find_agent, wait_for_children
from leviath.systems.repetition import nudge_repetition
from leviath.systems.reports import tokens_with
from leviath.systems.reserves import count_turn
from leviath.systems.stages import begin_turn, fail, is_running
from leviath.systems.views import offered_tool, view_of
from leviath.systems.words import quoted

if TYPE_CHECKING:
    from leviath.components.inputs import ToolFinished
    from leviath.systems.run import Run, Tick
    from leviath.systems.views import StageView

IN_STEP = "step"
"""Effect class of tools that the step itself carries out."""
WORKSPACE_LOST = "workspace lost"
"""Note on a call that found the run's working directory gone."""


# --- a reply ------------------------------------------------------------------------------------


def process_response(run: Run, tick: Tick) -> None:
    """Count the turn, keep what the model said, and see whether it asked for tools."""
    stage = run.get(Stage)
    turn = run.get(Turn)
    visits = run.get(Visits)
    if stage.asking:
        run.put(replace(visits, routings=visits.routings + 1))
        set_marker(run, tick, Marker.resolve_transition)
        return
    run.put(replace(visits, turns=visits.turns + 1, turn_calls=visits.turn_calls + 1))
    run.put(replace(stage, iteration=stage.iteration + 1))
    if run.world.purses.armed:
        count_turn(run)
    progressed(run, tick)
    calls = _with_own_ids(turn.calls, visits.turns + 1)
    run.put(replace(turn, calls=calls, counted=True))
    asked = tuple([AskedCall(call.call_id, call.tool, call.arguments) for call in calls])
    size = turn.text.size_bytes
    for call in calls:
        size += call.arguments.size_bytes
    if turn.text.size_bytes or asked:
        entry = Entry(turn.text, tokens_of(size), "assistant", asked)
        if not regions.append(run, regions.CONVERSATION, (entry,)):
            run.remove(Turn)
            fail(run, tick, "the conversation region is full and does not roll; make it larger")
            return
    set_marker(run, tick, Marker.ready_for_tools if asked else Marker.ready_for_transition)


def _with_own_ids(asked: tuple[Call, ...], number: int) -> tuple[Call, ...]:
    """Call ids as the model gave them, replaced where they are missing or used twice in the
    turn."""
    seen: set[str] = set()
    calls: list[Call] = []
    for index, call in enumerate(asked):
        call_id = call.call_id
        if not call_id or call_id in seen or len(call_id) > 128:
            call_id = f"call_{number}_{index}"
        seen.add(call_id)
        calls.append(call if call_id == call.call_id else replace(call, call_id=call_id))
    return tuple(calls)


# --- dispatch -----------------------------------------------------------------------------------


def dispatch_tools(run: Run, tick: Tick) -> None:
    """Settle what needs no release, ask a person where policy says so, release the rest."""
    turn = run.get(Turn)
    cost = run.get(Cost)
    run.put(replace(cost, tool_calls=cost.tool_calls + len(turn.calls)))
    stage = run.get(Stage)
    run.put(replace(stage, tool_calls=stage.tool_calls + len(turn.calls)))
    view = view_of(run)
    run.put(replace(turn, calls=tuple([_admit(run, tick, call, view) for call in turn.calls])))
    go_on(run, tick)


def _admit(run: Run, tick: Tick, call: Call, view: StageView) -> Call:
    tool = view.tools.get(call.tool)
    if tool is None:
        names = ", ".join(view.tools) or "none"
        what = f"tool {quoted(call.tool)} is not offered in this stage; offered: {names}"
        return _refused(run, tick, call, what)
    if call.fault:
        return _refused(run, tick, call, f"the arguments of {call.tool} are {call.fault}")
    permission = view.permissions[call.tool]
    word = people.word_on(run, call, permission)
    if word == "deny":
        if tool.modifies:
            stage = run.get(Stage)
            run.put(replace(stage, blocked=stage.blocked + 1))
        whose = "this agent's permissions" if permission is Permission.deny else "its profile"
        return _refused(run, tick, call, f"tool {call.tool} is denied by {whose}")
    if call.tool in people.KINDS:
        call = people.pose(run, tick, call)
        if call.result is None:
            return call
        return _settled(run, tick, call, call.result, is_error=False, note="no answer")
    if tool.effect_class == IN_STEP and call.tool not in AGENT_TOOLS:
        result, is_error = run_in_step(run, tick, call)
        return _settled(run, tick, call, result, is_error=is_error)
    call = replace(call, effect_class=tool.effect_class)
    if word == "ask":
        people.ask_about(run, tick, call, prompts.APPROVAL)
        return replace(call, state="asked")
    return call


def _carry_out_agent_calls(run: Run, tick: Tick) -> bool:
    """Calls that start, ask or tell other runs: as far as the step itself can take them. True when
    there are any."""
    found = False
    for call in run.get(Turn).calls:
        if call.effect_class == IN_STEP and call.state == "open":
            finish(run, tick, agent_calls.admit(run, tick, call))
            found = True
    return found


def finish(run: Run, tick: Tick, call: Call) -> None:
    """Put back a call that another system took further, and say so if it is done."""
    if call.state == "done":
        assert call.result is not None
        call = _settled(run, tick, call, call.result, is_error=call.is_error, note=call.note)
    put_call(run, call)


def _refused(run: Run, tick: Tick, call: Call, message: str) -> Call:
    return _settled(run, tick, call, inline(f"[error] {message}"), is_error=True)


def _settled(
    run: Run, tick: Tick, call: Call, result: Text, *, is_error: bool, note: str = ""
) -> Call:
    tick.events.append(
        ToolEnded(
            tick.next_event, run.run_id, tick.now.wall_ms, call.call_id, call.tool, is_error, note
        )
    )
    return replace(call, state="done", result=result, is_error=is_error, note=note)


def go_on(run: Run, tick: Tick) -> None:
    """Bring the turn as far as it goes: ask, release, wait, or merge the results.

    While any call waits for a decision, none is released: calls of a turn may build on each other.
    """
    turn = run.get(Turn)
    states = {call.state for call in turn.calls}
    if people.wait(run, tick, states):
        return
    if "open" in states and _carry_out_agent_calls(run, tick):
        turn = run.get(Turn)
        states = {call.state for call in turn.calls}
    if "open" in states:
        lacking = lacking_tools(run)
        if lacking:
            park(run, tick, missing_tools(lacking))
            return
        _release(run, tick, turn)
        if run.status is RunStatus.WAITING_INPUT:
            unpark(run, tick, Marker.awaiting_tools, why="decided")
        else:
            set_marker(run, tick, Marker.awaiting_tools)
        return
    if "waiting" in states:
        wait_for_children(run, tick)
        return
    if run.status is RunStatus.WAITING_INPUT:
        unpark(run, tick, Marker.awaiting_tools, why="decided")
    collect(run, tick)


def lacking_tools(run: Run) -> tuple[str, ...]:
    """Tools of calls that are to be sent and that this host does not have."""
    if not run.world.get(WORLD_OWNER, Counters).driven:
        return ()
    offered = view_of(run).tools
    strange = [
        call for call in run.get(Turn).calls if call.state == "open" and call.tool not in offered
    ]
    if not strange:
        return ()
    live = {effect.number for effect in run.get(Effects).items if effect.live}
    names = {
        call.tool: None
        for call in strange
        if not (call.effect and call.effect in live) and offered_tool(run, call.tool) is None
    }
    return tuple(names)


def missing_tools(names: tuple[str, ...]) -> Waiting:
    """What a run waits for whose tools the host did not open.

    The peer's readers know a closed set of blockers, so it is the one of providers.
    """
    text = ", ".join(names)
    return Waiting("needs_setup", "provider_missing", f"open the world with the tools: {text}")


def _release(run: Run, tick: Tick, turn: Turn) -> None:
    """Give every open call that has none an effect, and send it."""
    counters = run.world.get(WORLD_OWNER, Counters)
    if not counters.driven:
        return
    effects = run.get(Effects)
    calls: list[Call] = []
    added: list[Effect] = []
    counter, ordinal, epoch = effects.counter, effects.calls, counters.epoch
    resting = {effect.number for effect in effects.items if not effect.live}
    world_ms = tick.now.world_ms
    for call in turn.calls:
        if call.state != "open" or (call.effect and call.effect not in resting):
            calls.append(call)
            continue
        if call.effect:
            send_again(run, tick, call, next(e for e in effects.items if e.number == call.effect))
            calls.append(call)
            continue
        counter += 1
        ordinal += 1
        timeout_ms = deadline_ms(run, call.tool)
        effect = Effect(
            number=counter,
            kind="tool",
            ordinal=ordinal,
            epoch=epoch,
            due_ms=world_ms + timeout_ms,
            started_ms=world_ms,
        )
        added.append(effect)
        calls.append(replace(call, effect=counter))
        send(run, tick, calls[-1], effect, timeout_ms)
    if added:
        run.put(replace(turn, calls=tuple(calls)))
        items = (*run.get(Effects).items, *added)
        run.put(replace(effects, counter=counter, calls=ordinal, items=items))


def deadline_ms(run: Run, name: str) -> int:
    """How long one call of a tool may take."""
    tool = offered_tool(run, name)
    policy = run.world.policy
    if tool is None:
        return policy.tool_deadline_ms
    # Tools of the step itself have none: what they may look up outside is a matter of reading.
    return tool.deadline_ms or policy.gather_deadline_ms


def send(run: Run, tick: Tick, call: Call, effect: Effect, timeout_ms: int) -> None:
    """Issue one attempt at a call."""
    launch = run.get(Launch)
    if call.effect_class == FIND:
        tick.commands.append(find_agent(run, call, effect))
        return
    limit = view_of(run).route(call.tool).max_result_tokens
    inline_max = run.world.policy.result_inline_bytes_max
    tick.commands.append(
        CallTool(
            run.n,
            run.run_id,
            effect.number,
            effect.attempt,
            effect.epoch,
            call.call_id,
            call.tool,
            call.arguments,
            timeout_ms,
            launch.workdir,
            inline_max if limit is None else min(inline_max, limit * 4),
        )
    )
    tick.events.append(
        ToolStarted(
            tick.next_event,
            run.run_id,
            tick.now.wall_ms,
            call.call_id,
            call.tool,
            effect.attempt,
        )
    )


def send_again(run: Run, tick: Tick, call: Call, effect: Effect) -> None:
    """Issue the next attempt at a call, under the same idempotency key.

    A host that does not drive, or has no such tool, leaves it to the next one: the call rests,
    open, without being sent.
    """
    effects = run.get(Effects)
    driven = run.world.get(WORLD_OWNER, Counters).driven
    if not driven or offered_tool(run, call.tool) is None:
        resting = replace(effect, live=False, due_ms=0)
        items = tuple(resting if e.number == effect.number else e for e in effects.items)
        run.put(replace(effects, items=items))
        return
    fresh = replace(
        effect,
        attempt=effect.attempt + 1,
        live=True,
        aborting=False,
        epoch=run.world.get(WORLD_OWNER, Counters).epoch,
        due_ms=tick.now.world_ms + deadline_ms(run, call.tool),
    )
    items = tuple(fresh if e.number == effect.number else e for e in effects.items)
    run.put(replace(effects, items=items))
    send(run, tick, call, fresh, deadline_ms(run, call.tool))


# --- outcomes -----------------------------------------------------------------------------------


def take_tool(run: Run, tick: Tick, done: ToolFinished) -> None:
    """One tool call ended. An outcome of an older attempt is not applied."""
    effects = run.get(Effects)
    effect = effects.find(done.effect)
    if effect is None or effect.kind != "tool" or effect.attempt != done.attempt:
        return
    if not effect.live:
        # A person is being asked about it: whatever this is, it cannot be its outcome.
        return
    call = None if effect.superseded else call_of(run, effect)
    if call is None:
        run.put(replace(effects, items=effects.without(effect)))
        return
    if done.unknown:
        mark_unknown(run, tick, call, effect)
    else:
        run.put(replace(effects, items=effects.without(effect)))
        _count(run, call, done)
        lost = WORKSPACE_LOST if done.workspace_lost else ""
        settled = _settled(run, tick, call, done.result, is_error=done.is_error, note=lost)
        put_call(run, replace(settled, modified=done.modified) if done.modified else settled)
    if done.workspace_lost:
        run.put(replace(run.get(Flags), workspace_lost=True))
    touch(run, tick, urgent=done.unknown)
    if is_running(run):
        go_on(run, tick)


def call_of(run: Run, effect: Effect) -> Call | None:
    """The call of the turn under way that an effect carries out."""
    turn = run.find(Turn)
    for call in () if turn is None else turn.calls:
        if call.effect == effect.number:
            return call
    return None


def settle(run: Run, tick: Tick, call: Call, result: Text, *, is_error: bool, note: str) -> None:
    """Give a call its result by another way than its outcome."""
    put_call(run, _settled(run, tick, call, result, is_error=is_error, note=note))


def put_call(run: Run, call: Call) -> None:
    """Replace one call of the turn, by its id."""
    turn = run.get(Turn)
    calls = tuple([call if old.call_id == call.call_id else old for old in turn.calls])
    run.put(replace(turn, calls=calls))


def mark_unknown(run: Run, tick: Tick, call: Call, effect: Effect) -> None:
    """The call may have happened. A person decides; an unattended run tells the model instead."""
    tick.events.append(
        CallUnknown(tick.next_event, run.run_id, tick.now.wall_ms, call.call_id, call.tool)
    )
    effects = run.get(Effects)
    if run.get(Launch).answers_nobody:
        run.put(replace(effects, items=effects.without(effect)))
        message = (
            f"[may have happened] whether this call of {call.tool} took effect is not known. "
            "Check before doing it again."
        )
        note = "may have happened"
        put_call(run, _settled(run, tick, call, inline(message), is_error=True, note=note))
        return
    parked = replace(effect, live=False, aborting=False, due_ms=0)
    run.put(replace(effects, items=tuple(parked if e is effect else e for e in effects.items)))
    put_call(run, replace(call, state="unknown"))
    people.ask_about(run, tick, call, prompts.UNKNOWN)


def _count(run: Run, call: Call, done: ToolFinished) -> None:
    """What a finished call says about the run: searches, edits, modified files."""
    tool = offered_tool(run, call.tool)
    flags = was = run.get(Flags)
    if tool is not None and tool.searches:
        flags = replace(
            flags,
            searches_run=flags.searches_run + 1,
            searches_empty=flags.searches_empty + done.empty,
        )
    if done.modified and not done.is_error:
        known = flags.modified_files
        fresh = tuple(path for path in dict.fromkeys(done.modified) if path not in known)
        flags = replace(
            flags,
            modified_files=(known + fresh)[: run.world.policy.modified_files_max],
            modified_count=flags.modified_count + 1,
        )
        stage = run.get(Stage)
        edits = dict(stage.edits)
        for path in done.modified:
            edits[path] = edits.get(path, 0) + 1
        while len(edits) > run.world.policy.modified_files_max:
            # Whatever was edited least says least about a run that goes in circles.
            del edits[min(edits, key=edits.__getitem__)]
        run.put(replace(stage, modifying=stage.modifying + 1, edits=tuple(edits.items())))
    if flags is not was:
        run.put(flags)


def collect(run: Run, tick: Tick) -> None:
    """All calls of the turn are done: give the model their results in call order, and go on."""
    turn = close_turn(run)
    if any(call.note == WORKSPACE_LOST for call in turn.calls):
        fail(run, tick, f"the working directory {run.get(Launch).workdir} is gone")
        return
    nudge_repetition(run, turn)
    touch(run, tick)
    begin_turn(run, tick)


def close_turn(run: Run) -> Turn:
    """Put the results of a turn into the context, in call order."""
    turn = run.get(Turn)
    run.remove(Turn)
    regions.answer_calls(run, tuple([_route(run, call) for call in turn.calls]))
    return turn


def _route(run: Run, call: Call) -> Entry:
    """The call's result as the conversation keeps it; routed content leaves a pointer there."""
    view = view_of(run)
    result = call.result or inline("")
    references = call.references
    region = view.route(call.tool).region
    routing = view.spec.routing
    if not routing.persist and all(o.tool != call.tool for o in routing.overrides):
        region = "scratch"
    if region != regions.CONVERSATION and not call.is_error:
        tokens = tokens_with(result, references)
        entry = Entry(result, tokens, tool=call.tool, references=references)
        if regions.append(run, region, (entry,)):
            result, references = inline(f"[the result is in region {region}]"), ()
    return Entry(
        result,
        tokens_with(result, references),
        "tool_result",
        (),
        call.call_id,
        call.tool,
        call.is_error,
        references=references,
    )
