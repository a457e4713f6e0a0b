"""A turn's tool calls: what is refused, asked, run inside the step, released, merged."""

from __future__ import annotations

from typing import Any

import pytest
from hand_agents import ALL, LOOK, ONE, TOOLS, agent, texts, wanted, word

from leviath.components.commands import Abort, CallTool, Infer
from leviath.components.context import AskedCall, Context
from leviath.components.effects import Turn
from leviath.components.inputs import Decide, ToolFinished
from leviath.components.output import Flags, Output
from leviath.components.progress import Cost, Stage
from leviath.components.text import inline
from leviath.components.world_facts import Offer
from leviath.simulation.hand import Hand


def started(body: str = "", **more: Any) -> tuple[Hand, int]:
    hand = Hand(tools=TOOLS)
    blueprint = agent(f"[stages.main]\navailable_tools = {ALL}\n{body}") if body else ONE
    return hand, hand.spawn(blueprint, **more)


def results(hand: Hand, run: int) -> dict[str, str]:
    region = hand.world.get(run, Context).region("conversation")
    assert region is not None
    return {e.call_id: e.text.body for e in region.entries if e.kind == "tool_result"}


def test_a_tool_that_the_stage_does_not_offer_is_refused_by_name() -> None:
    hand, run = started()
    hand.reply("", ("a", "rm\U0001fae8", "{}"))
    assert not wanted(hand, CallTool)
    assert results(hand, run)["a"] == (
        "[error] tool 'rm\U0001fae8' is not offered in this stage; offered: "
        "look, find, edit, send, submit_output, context_write"
    )


def test_a_run_waits_for_a_tool_that_the_host_does_not_have() -> None:
    hand = Hand(tools=(LOOK,))
    run = hand.spawn(ONE)
    assert word(hand, run) == "waiting_input provider_missing"
    waiting = hand.status(run).waiting
    assert waiting is not None and "the tools: " in waiting.remedy and "send" in waiting.remedy
    assert not wanted(hand, Infer), "nothing is paid for meanwhile"
    hand.restart(offer=Offer(("scripted",), TOOLS))
    assert wanted(hand, Infer)


@pytest.mark.parametrize("tool", ["look", "edit", "send"])
def test_a_call_in_flight_waits_for_its_tool_and_is_not_used_up(tool: str) -> None:
    hand, run = started()
    hand.reply("", ("a", tool, "{}"))
    lacking = tuple(offered for offered in TOOLS if offered.name != tool)
    hand.restart(offer=Offer(("scripted",), lacking))
    if tool == "send":
        assert word(hand, run) == "waiting_input tool_approval"
        hand.post(Decide(run, "a", "again"))
    assert word(hand, run) == "waiting_input provider_missing"
    assert not wanted(hand, CallTool)
    hand.restart(offer=Offer(("scripted",), TOOLS))
    assert [call.attempt for call in wanted(hand, CallTool)] == [2], "the verdict was kept"


def test_arguments_that_are_no_json_object_are_refused_and_the_model_goes_on() -> None:
    hand, run = started()
    call = AskedCall("a", "look", inline("{oops"), fault="not JSON: line 1")
    hand.post(hand.inferred(calls=(call,)))
    assert results(hand, run) == {"a": "[error] the arguments of look are not JSON: line 1"}
    assert wanted(hand, Infer)


def test_a_denied_call_is_refused_and_counts_as_blocked() -> None:
    hand, run = started('[tool_permissions]\nedit = "deny"\n')
    hand.reply("", ("a", "edit", "{}"))
    assert "denied" in results(hand, run)["a"]
    assert hand.world.get(run, Stage).blocked == 1


ASK = '[tool_permissions]\nedit = "ask"\n'


def test_a_call_that_needs_approval_waits_and_releases_nothing_meanwhile() -> None:
    hand, run = started(ASK)
    hand.reply("", ("a", "look", "{}"), ("b", "edit", "{}"))
    assert word(hand, run) == "waiting_input tool_approval"
    assert not wanted(hand, CallTool)
    assert not hand.caches.in_use, "no slot is held while a person is awaited"


def test_an_allowed_call_is_released_and_covers_one_attempt() -> None:
    hand, run = started(ASK)
    hand.reply("", ("a", "edit", "{}"))
    (ack,) = hand.post(Decide(run, "a", "allow", 5, "ann")).acks
    assert ack.ticket == 5 and ack.code == ""
    assert word(hand, run) == "running"
    hand.tool("done")
    hand.reply("", ("b", "edit", "{}"))
    assert word(hand, run) == "waiting_input tool_approval"


def test_a_denied_question_tells_the_model_who_denied_it() -> None:
    hand, run = started(ASK)
    hand.reply("", ("a", "edit", "{}"))
    hand.post(Decide(run, "a", "deny", actor="ann"))
    assert results(hand, run)["a"] == "[error] ann denied this call of edit"
    assert wanted(hand, Infer)


@pytest.mark.parametrize("options", [{"yolo": True}, {"allow": ("edit",)}])
def test_an_unattended_run_or_one_with_the_callers_leave_is_not_asked(
    options: dict[str, Any],
) -> None:
    hand, run = started(ASK, **options)
    hand.reply("", ("a", "edit", "{}"))
    assert word(hand, run) == "running" and wanted(hand, CallTool)


def test_verdicts_that_do_not_fit_are_refused_and_change_nothing() -> None:
    hand, run = started(ASK)
    hand.reply("", ("a", "edit", "{}"))
    for call, verdict in (("a", "again"), ("a", "maybe"), ("b", "allow")):
        assert hand.post(Decide(run, call, verdict, 1)).acks[0].code == "run_conflict"
    assert word(hand, run) == "waiting_input tool_approval"


def test_stop_ends_the_run() -> None:
    hand, run = started(ASK)
    hand.reply("", ("a", "edit", "{}"))
    hand.post(Decide(run, "a", "stop", actor="ann"))
    assert word(hand, run) == "cancelled"


def test_submit_output_is_taken_inside_the_step() -> None:
    hand, run = started()
    fields = (("content", inline("the result")), ("format", inline("markdown")))
    call = AskedCall("a", "submit_output", inline("{}"), fields=fields)
    hand.post(hand.inferred(calls=(call,)))
    output = hand.world.get(run, Output)
    assert (output.content.body, output.format, output.stage) == ("the result", "markdown", "main")
    assert texts(hand, run, "final_output") == ["the result"]
    assert wanted(hand, Infer) and not wanted(hand, CallTool)


def test_submit_output_without_content_is_told_so() -> None:
    hand, run = started()
    hand.reply("", ("a", "submit_output", "{}"))
    assert "content" in results(hand, run)["a"] and hand.world.find(run, Output) is None


NOTES = """
[context.regions]
notes = { kind = "temporary", max_tokens = 10 }
map = { kind = "hashmap", max_entries = 2 }
list = { kind = "checklist" }
full = { kind = "pinned", max_tokens = 2 }
"""


def _write(hand: Hand, **fields: str) -> None:
    given = tuple((name, inline(text)) for name, text in fields.items())
    call = AskedCall("w", "context_write", inline("{}"), fields=given)
    hand.post(hand.inferred(calls=(call,)))


def test_context_write_appends_replaces_and_upserts() -> None:
    hand, run = started(NOTES)
    _write(hand, region="notes", content="one")
    _write(hand, region="notes", content="two")
    assert texts(hand, run, "notes") == ["one", "two"]
    _write(hand, region="notes", content="three", mode="replace")
    assert texts(hand, run, "notes") == ["three"]
    for key, content in (("a", "1"), ("b", "2"), ("a", "3"), ("c", "4")):
        _write(hand, region="map", key=key, content=content)
    assert texts(hand, run, "map") == ["3", "4"]
    _write(hand, region="list", key="x", content="to do")
    _write(hand, region="list", key="x", content="did", state="done")
    region = hand.world.get(run, Context).region("list")
    assert region is not None and [(e.text.body, e.kind) for e in region.entries] == [
        ("did", "done")
    ]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"region": "conversation", "content": "x"}, "choose one of"),
        ({"region": "none", "content": "x"}, "no region 'none'"),
        ({"region": "map", "content": "x"}, "needs a key"),
        ({"region": "full", "content": "x" * 40}, "is full"),
        ({"content": "x"}, "region and content"),
    ],
)
def test_context_write_says_what_is_wrong(fields: dict[str, str], says: str) -> None:
    hand, run = started(NOTES)
    _write(hand, **fields)
    assert says in results(hand, run)["w"]


def test_call_ids_that_are_missing_repeated_or_too_long_are_replaced() -> None:
    hand, run = started()
    hand.reply(
        "", ("a", "look", "1"), ("a", "look", "2"), ("", "look", "3"), ("x" * 129, "look", "4")
    )
    turn = hand.world.get(run, Turn)
    assert [call.call_id for call in turn.calls] == ["a", "call_1_1", "call_1_2", "call_1_3"]
    assert [c.arguments.body for c in wanted(hand, CallTool)] == ["1", "2", "3", "4"]


def test_results_are_merged_in_call_order_whatever_order_they_land_in() -> None:
    hand, run = started()
    hand.reply("", ("a", "look", "{}"), ("b", "find", "{}"), ("c", "nope", "{}"))
    first, second = hand.take(CallTool)
    hand.tool("B", call=second)
    assert not wanted(hand, Infer), "the model waits for the whole turn"
    hand.tool("A", call=first)
    assert list(results(hand, run)) == ["a", "b", "c"]
    assert results(hand, run)["a"] == "A" and results(hand, run)["b"] == "B"


def test_results_never_push_their_own_turn_out_of_the_conversation() -> None:
    hand = Hand(tools=TOOLS)
    small = agent(
        f"[stages.main]\navailable_tools = {ALL}\n[context.regions]\n"
        'conversation = { kind = "sliding_window", max_items = 2, max_tokens = 20 }\n'
    )
    run = hand.spawn(small)
    hand.reply("earlier", ("z", "look", "{}"))
    hand.tool("seen")
    hand.reply("now", ("a", "look", "{}"), ("b", "look", "{}"))
    hand.tool("x" * 200)
    hand.tool("y" * 200)
    assert texts(hand, run) == ["now", "x" * 200, "y" * 200]


def test_a_turn_that_a_conversation_cannot_take_fails_the_stage() -> None:
    hand = Hand(tools=TOOLS)
    run = hand.spawn(
        agent(
            "[stages.main]\n[context.regions]\n"
            'conversation = { kind = "sliding_window", max_tokens = 2, admission = "reject" }\n'
        )
    )
    hand.reply("far too long")
    assert word(hand, run) == "error" and "conversation" in (hand.status(run).error or "")


def test_routed_results_leave_a_pointer_in_the_conversation() -> None:
    hand = Hand(tools=TOOLS)
    run = hand.spawn(
        agent(
            f"[stages.main]\navailable_tools = {ALL}\n"
            "[stages.main.tool_routing.overrides]\n"
            'look = { region = "seen", max_result_tokens = 8 }\n'
            '[context.regions]\nseen = { kind = "temporary" }\n'
        )
    )
    hand.reply("", ("a", "look", "{}"))
    (call,) = wanted(hand, CallTool)
    assert call.result_bytes_max == 32
    hand.tool("content")
    assert texts(hand, run, "seen") == ["content"]
    assert results(hand, run)["a"] == "[the result is in region seen]"


def test_calls_edits_and_searches_are_counted_where_reports_look() -> None:
    hand, run = started()
    hand.reply("", ("a", "edit", "{}"), ("b", "find", "{}"), ("c", "edit", "{}"))
    hand.tool("ok", modified=("x.py",))
    hand.tool("", empty=True)
    hand.tool("failed", is_error=True, modified=("y.py",))
    flags, stage = hand.world.get(run, Flags), hand.world.get(run, Stage)
    assert (flags.modified_files, flags.modified_count) == (("x.py",), 1)
    assert (flags.searches_run, flags.searches_empty) == (1, 1)
    assert (stage.tool_calls, stage.modifying, stage.edits) == (3, 1, (("x.py", 1),))
    assert hand.world.get(run, Cost).tool_calls == 3


def test_what_a_stage_remembers_of_edits_and_repeats_is_bounded() -> None:
    hand, run = started("[repetition_detection]\nmax_repeat_calls = 1000\n")
    for n in range(30):
        hand.reply("", *((f"c{i}", "edit", str((n, i))) for i in range(10)))
        for i in range(10):
            hand.tool("ok", modified=(f"{n}-{i}", "often"))
    stage = hand.world.get(run, Stage)
    assert len(stage.edits) == hand.world.policy.modified_files_max
    assert dict(stage.edits)["often"] == 300
    assert len(stage.repeats) == 64


def test_a_model_that_repeats_itself_is_told_so() -> None:
    hand, run = started("[repetition_detection]\nmax_repeat_calls = 2\n")
    for _ in range(2):
        hand.reply("", ("a", "look", '{"p": 1}'))
        hand.tool("same")
    assert texts(hand, run)[-1] == "You called look with the same arguments 2 times."


def test_a_call_past_its_deadline_is_aborted_and_its_outcome_is_still_taken() -> None:
    hand, run = started()
    hand.reply("", ("a", "look", "{}"))
    hand.sleep(LOOK.deadline_ms)
    assert [(a.run, a.effect, a.attempt) for a in wanted(hand, Abort)] == [(run, 2, 1)]
    assert hand.sleep(LOOK.deadline_ms).commands == (), "it is aborted once"
    hand.tool("out of time", is_error=True)
    assert results(hand, run) == {"a": "out of time"} and wanted(hand, Infer)


def test_a_workdir_that_is_gone_fails_the_stage_with_a_reason() -> None:
    hand, run = started()
    hand.reply("", ("a", "look", "{}"))
    hand.tool("no such folder", is_error=True, workspace_lost=True)
    assert word(hand, run) == "error"
    assert hand.status(run).error == "the working directory /w is gone"
    assert hand.world.get(run, Flags).workspace_lost


def test_a_lost_workdir_fails_the_stage_that_met_it_and_not_the_one_that_reports_it() -> None:
    hand = Hand(tools=TOOLS)
    run = hand.spawn(
        agent(
            f"[stages.a]\navailable_tools = {ALL}\n"
            '[[stages.a.edges]]\nto = "b"\ncondition = "error"\n[[stages.a.edges]]\nto = "b"\n'
            f"[stages.b]\navailable_tools = {ALL}\n[stages.b.transitions]\n"
        )
    )
    hand.reply("", ("a", "look", "{}"))
    hand.tool("no such folder", is_error=True, workspace_lost=True)
    hand.reply("", ("b", "send", "{}"))
    hand.tool("sent")
    hand.reply("done")
    assert word(hand, run) == "complete" and hand.world.get(run, Flags).workspace_lost


def test_an_outcome_of_another_attempt_or_of_no_call_is_not_applied() -> None:
    hand, run = started()
    hand.reply("", ("a", "look", "{}"))
    hand.post(ToolFinished(run, 2, 7, 1, inline("x")), ToolFinished(run, 99, 1, 1, inline("x")))
    assert results(hand, run) == {}
    hand.tool("right")
    assert results(hand, run) == {"a": "right"}
