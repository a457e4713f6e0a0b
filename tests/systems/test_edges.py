"""Leaving a stage: nudges, what it owes, gates, which edge is taken, and when the run is done."""

from __future__ import annotations

import pytest
from hand_agents import ALL, agent, asked, edges, stage, start, texts, wanted, word

from leviath.components.commands import CallTool, Infer
from leviath.components.identity import Launch
from leviath.components.inputs import Pause, Post, Resume
from leviath.components.output import Flags
from leviath.components.progress import Ledgers, Resolution, Stage, Visits
from leviath.components.text import inline
from leviath.simulation.hand import Hand
from leviath.systems.transitions import parse_choice

# --- which edge ---------------------------------------------------------------------------------


def test_without_edges_the_next_stage_follows_and_the_last_one_ends_the_run() -> None:
    hand, run = start("[stages.a]\n[stages.b]\n")
    hand.reply("done")
    assert stage(hand, run) == "b"
    hand.reply("done")
    assert word(hand, run) == "complete"


def test_an_empty_table_of_edges_ends_the_run() -> None:
    hand, run = start("[stages.a]\n[stages.a.transitions]\n[stages.b]\n")
    hand.reply("done")
    assert word(hand, run) == "complete"


@pytest.mark.parametrize("condition", ["always", "llm_choice"])
def test_a_single_choosable_edge_is_taken_without_asking(condition: str) -> None:
    hand, run = start(edges(f'to = "c"\ncondition = "{condition}"'))
    hand.reply("done")
    assert stage(hand, run) == "c" and asked(hand).purpose == "turn"


def test_an_error_edge_takes_a_stage_that_failed_and_says_why() -> None:
    hand, run = start(edges('to = "b"', 'to = "c"\ncondition = "error"'))
    hand.fail("bad_request", "too odd")
    assert stage(hand, run) == "c" and word(hand, run) == "running"
    assert texts(hand, run) == ["[error] too odd"]


def test_a_stage_that_failed_and_has_no_edge_for_it_ends_the_run_in_error() -> None:
    hand, run = start(edges('to = "b"'))
    hand.fail("bad_request", "too odd")
    assert word(hand, run) == "error" and hand.status(run).error == "too odd"


def test_a_dead_end_edge_stands_in_for_an_error_edge() -> None:
    hand, run = start(edges('to = "b"', 'to = "c"\ncondition = "dead_end"'))
    hand.fail("bad_request")
    assert stage(hand, run) == "c"


LOOP = """
[stages.a]
[[stages.a.edges]]
to = "b"
{}
[stages.b]
max_revisits = 1
[[stages.b.edges]]
to = "a"
[stages.c]
[stages.c.transitions]
"""


def test_a_stage_is_entered_once_and_max_revisits_more_then_the_dead_end_edge_leads_on() -> None:
    hand, run = start(LOOP.format('[[stages.a.edges]]\nto = "c"\ncondition = "dead_end"'))
    seen: list[str] = []
    while stage(hand, run) != "c":
        seen.append(stage(hand, run))
        hand.reply("go on")
    assert seen == ["a", "b", "a", "b", "a"]
    assert hand.world.get(run, Visits).counts == (3, 2, 1)


def test_a_dead_end_without_an_edge_is_an_error_that_says_what_to_do() -> None:
    hand, run = start(LOOP.format('[[stages.a.edges]]\nto = "c"\ncondition = "max_iterations"'))
    while word(hand, run) == "running":
        hand.reply("go on")
    assert word(hand, run) == "error" and "max_revisits" in (hand.status(run).error or "")


CAPPED = f"available_tools = {ALL}\nmax_iterations = 2\n"


def test_a_stage_that_used_up_its_turns_takes_its_max_iterations_edge() -> None:
    hand, run = start(edges('to = "b"', 'to = "c"\ncondition = "max_iterations"', rest=CAPPED))
    for _ in range(2):
        hand.reply("", ("a", "look", "{}"))
        hand.tool()
    assert stage(hand, run) == "c"
    assert texts(hand, run)[-1] == "[limit] the stage reached its turn limit after 2 turns"
    assert hand.world.get(run, Flags).max_iterations_hit == 1


def test_without_such_an_edge_the_normal_one_is_taken_and_its_gate_is_forced() -> None:
    gate = 'gate = { require_regions = ["notes"], max_attempts = 50 }'
    hand, run = start(
        edges(f'to = "b"\n{gate}', rest=CAPPED) + '[context.regions]\nnotes = { kind = "pinned" }\n'
    )
    for _ in range(2):
        hand.reply("", ("a", "look", "{}"))
        hand.tool()
    assert stage(hand, run) == "b"
    flags = hand.world.get(run, Flags)
    assert (flags.max_iterations_hit, flags.gates_forced) == (1, 1)


def test_a_stage_that_says_nothing_is_capped_by_the_host() -> None:
    hand, run = start(f"[stages.a]\navailable_tools = {ALL}\n")
    for _ in range(hand.world.policy.iterations_default):
        hand.reply("", ("a", "look", "{}"))
        hand.tool()
    assert word(hand, run) == "complete"


@pytest.mark.parametrize(
    ("threshold", "says"),
    [
        ("stuck_after_iterations = 2", "[stuck] 2 turns in this stage"),
        ("stuck_after_tool_calls = 4", "[stuck] 4 tool calls in this stage"),
        ("stuck_after_same_file_edits = 2", "[stuck] x.py was edited 2 times in this stage"),
    ],
)
def test_a_stuck_edge_is_taken_at_its_threshold(threshold: str, says: str) -> None:
    hand, run = start(
        edges(
            'to = "b"',
            f'to = "c"\ncondition = "stuck"\n{threshold}',
            rest=f"available_tools = {ALL}\n",
        )
    )
    for _ in range(2):
        assert stage(hand, run) == "a"
        hand.reply("", ("a", "edit", "{}"), ("b", "look", "{}"))
        hand.tool("ok", modified=("x.py",))
        hand.tool("ok")
    assert stage(hand, run) == "c" and says in texts(hand, run)


def test_a_stage_that_lasts_too_long_is_left_when_its_turn_is_over() -> None:
    hand, run = start(
        edges(
            'to = "b"',
            'to = "c"\ncondition = "stuck"\nstuck_after_minutes = 2',
            rest=f"available_tools = {ALL}\n",
        )
    )
    hand.sleep(120_000)
    assert stage(hand, run) == "a", "a call in flight is not thrown away"
    hand.reply("", ("a", "look", "{}"))
    hand.tool()
    assert stage(hand, run) == "c" and "[stuck] 2 minutes in this stage" in texts(hand, run)


def test_of_two_stuck_edges_the_one_whose_threshold_is_reached_is_taken() -> None:
    hand, run = start(
        edges(
            'to = "b"\ncondition = "stuck"\nstuck_after_iterations = 40',
            'to = "c"\ncondition = "stuck"\nstuck_after_tool_calls = 1',
            'to = "b"',
            rest=f"available_tools = {ALL}\n",
        )
    )
    hand.reply("", ("a", "look", "{}"))
    hand.tool()
    assert stage(hand, run) == "c"


def test_edges_are_tried_in_their_order_and_may_share_a_target() -> None:
    hand, run = start(
        edges(
            'to = "c"\ncondition = "error"',
            'to = "b"\ncondition = "error"',
            'to = "c"',
        )
    )
    hand.fail("bad_request")
    assert stage(hand, run) == "c"
    other, second = start(edges('to = "c"\ncondition = "error"', 'to = "c"'))
    other.reply("done")
    assert stage(other, second) == "c"


# --- the model chooses --------------------------------------------------------------------------

CHOICE = """
[stages.a]
require_output = {owes}
allow_complete = {complete}
[[stages.a.edges]]
to = "code-review"
hint = "when it builds"
[[stages.a.edges]]
to = "code"
[stages.code-review]
[stages.code-review.transitions]
[stages.code]
[stages.code.transitions]
"""


def choosing(complete: str = "false", owes: str = "false") -> tuple[Hand, int]:
    hand, run = start(CHOICE.format(complete=complete, owes=owes))
    while asked(hand).purpose == "turn":
        hand.reply("done")
    return hand, run


def test_the_model_is_asked_where_to_go_and_the_question_stays_out_of_the_context() -> None:
    hand, run = choosing("true")
    infer = asked(hand)
    assert infer.purpose == "routing" and infer.ordinal == 1 and infer.tools == ()
    assert "- code-review: when it builds\n- code\n- DONE: " in infer.question
    hand.reply("code-review")
    assert stage(hand, run) == "code-review"
    assert texts(hand, run) == ["done"]


def test_a_stage_name_with_a_dash_can_be_chosen_and_its_first_word_too() -> None:
    for reply, goes in (("**Code-Review**", "code-review"), ("to code.", "code")):
        hand, run = choosing()
        hand.reply(reply)
        assert stage(hand, run) == goes


def test_no_match_takes_the_first_edge_or_completes_where_that_is_allowed() -> None:
    hand, run = choosing()
    hand.reply("no idea")
    assert stage(hand, run) == "code-review"
    hand, run = choosing("true")
    hand.reply("no idea")
    assert word(hand, run) == "complete"


def test_done_does_not_get_around_an_owed_output() -> None:
    hand, run = choosing("true", "true")
    hand.reply("DONE")
    assert word(hand, run) == "error" and "owes an output" in (hand.status(run).error or "")


def test_a_routing_call_that_fails_for_good_is_a_failed_stage() -> None:
    hand, run = choosing()
    hand.fail("bad_request", "no routing")
    assert hand.status(run).error == "no routing"


def test_a_choice_that_lands_during_a_pause_is_used_on_resume() -> None:
    hand, run = choosing()
    hand.post(Pause(run))
    hand.reply("code")
    assert word(hand, run) == "paused" and stage(hand, run) == "a"
    hand.post(Resume(run))
    assert stage(hand, run) == "code"


@pytest.mark.parametrize(
    ("reply", "choice"),
    [
        ("b-c", "b-c"),
        ("I take b.", "b"),
        ("thinking...\nb", "b"),
        ("thinking...\nthe last line is long, so b does not count", None),
        ("-b-", "b"),
        ("\u0130b \u2028b", "b"),
        ("", None),
        ("done", None),
    ],
)
def test_a_choice_is_a_whole_word_of_the_first_line_or_of_a_short_last_one(
    reply: str, choice: str | None
) -> None:
    assert parse_choice(reply, ("a", "b", "b-c"), allow_done=False) == choice


# --- entering -----------------------------------------------------------------------------------


def test_transforms_empty_what_they_say_and_keep_pinned_regions() -> None:
    regions = """
[context.regions]
kept = { kind = "pinned", seed = { literal = "k" } }
gone = { kind = "temporary", seed = { literal = "g" } }
other = { kind = "temporary", seed = { literal = "o" } }
"""
    for transform, left in (
        ('transform = "direct"', [["k"], ["g"], ["o"]]),
        ('transform = "clear"', [["k"], [], []]),
        ('transform = "custom"\ntransform_config = { clear = ["gone"] }', [["k"], [], ["o"]]),
    ):
        hand, run = start(edges(f'to = "b"\n{transform}') + regions)
        hand.reply("done")
        assert stage(hand, run) == "b"
        assert [texts(hand, run, name) for name in ("kept", "gone", "other")] == left


def test_entering_a_stage_resets_its_counters_and_stamps_its_totals() -> None:
    hand, run = start(f"[stages.a]\navailable_tools = {ALL}\n[stages.b]\nsystem_prompt = 'B'\n")
    hand.reply("", ("a", "look", "{}"))
    hand.tool()
    hand.wall_ms += 5
    hand.reply("done")
    entered = hand.world.get(run, Stage)
    assert (entered.name, entered.iteration, entered.tool_calls) == ("b", 0, 0)
    assert texts(hand, run, "stage_instructions") == ["B"]
    left, now = hand.world.get(run, Ledgers).stages
    assert left.ended_ms == now.started_ms and now.ended_ms is None and now.entered


def test_a_model_override_is_used_by_every_stage() -> None:
    hand = Hand(providers=("scripted", "other"))
    run = hand.spawn(agent("[stages.a]\n[stages.b]\n"), model_override="other/big")
    assert (asked(hand).provider, asked(hand).model) == ("other", "big")
    hand.reply("done")
    assert asked(hand).provider == "other"
    assert hand.world.get(run, Resolution).entry_model == "other/big"
    assert hand.world.get(run, Launch).model_override == "other/big"


def test_a_message_to_a_named_region_goes_there() -> None:
    hand, run = start(edges('to = "b"') + '[context.regions]\nnotes = { kind = "pinned" }\n')
    hand.post(Post(run, inline("note this"), region="notes"))
    hand.reply("done")
    assert texts(hand, run, "notes") == ["note this"]
    assert not wanted(hand, CallTool) and wanted(hand, Infer)
