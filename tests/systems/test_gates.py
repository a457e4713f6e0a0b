"""What a stage owes before it may be left: gates, nudges, required regions, the output."""

from __future__ import annotations

from hand_agents import ALL, edges, stage, start, texts, word

from leviath.components.context import AskedCall
from leviath.components.output import Flags
from leviath.components.text import inline
from leviath.simulation.hand import Hand

# --- gates --------------------------------------------------------------------------------------

REGIONS = """
[context.regions]
notes = { kind = "temporary" }
list = { kind = "checklist" }
"""


def gated(gate: str) -> tuple[Hand, int]:
    return start(
        edges(f'to = "b"\ngate = {{ {gate} }}', rest=f"available_tools = {ALL}\n") + REGIONS
    )


def write(hand: Hand, **fields: str) -> None:
    given = tuple((name, inline(text)) for name, text in fields.items())
    call = AskedCall("w", "context_write", inline("{}"), fields=given)
    hand.post(hand.inferred(calls=(call,)))


def test_a_gate_for_regions_holds_until_they_are_filled() -> None:
    hand, run = gated('require_regions = ["notes"], message = "fill them"')
    hand.reply("", ("a", "look", "{}"))
    hand.tool()
    hand.reply("done")
    assert stage(hand, run) == "a" and texts(hand, run)[-1] == "fill them"
    write(hand, region="notes", content="x")
    hand.reply("done")
    assert stage(hand, run) == "b"


def test_a_gate_for_an_updated_region_compares_with_what_the_stage_found() -> None:
    hand, run = gated('require_region_updated = "notes"')
    hand.reply("", ("a", "look", "{}"))
    hand.tool()
    hand.reply("done")
    assert stage(hand, run) == "a"
    write(hand, region="notes", content="new")
    hand.reply("done")
    assert stage(hand, run) == "b"


def test_a_gate_for_a_checklist_holds_while_items_are_open() -> None:
    hand, run = gated('require_no_open_items = "list"')
    write(hand, region="list", key="tests", content="write them")
    hand.reply("done")
    assert stage(hand, run) == "a" and "tests" in texts(hand, run)[-1]
    write(hand, region="list", key="tests", content="written", state="done")
    hand.reply("done")
    assert stage(hand, run) == "b"


def test_a_gate_for_modifications_opens_after_one() -> None:
    hand, run = gated("require_modifications = true")
    hand.reply("", ("a", "look", "{}"))
    hand.tool()
    hand.reply("done")
    assert stage(hand, run) == "a"
    hand.reply("", ("b", "edit", "{}"))
    hand.tool("ok", modified=("x.py",))
    hand.reply("done")
    assert stage(hand, run) == "b"


def test_a_gate_for_modifications_is_open_for_denied_attempts_and_where_nothing_modifies() -> None:
    gate = "gate = { require_modifications = true }"
    hand, run = start(
        edges(f'to = "b"\n{gate}', rest=f"available_tools = {ALL}\n")
        + '[tool_permissions]\nedit = "deny"\n'
    )
    hand.reply("", ("a", "edit", "{}"))
    hand.reply("done")
    assert stage(hand, run) == "b"
    other, second = start(edges(f'to = "b"\n{gate}', rest='available_tools = ["look"]\n'))
    other.reply("", ("a", "look", "{}"))
    other.tool()
    other.reply("done")
    assert stage(other, second) == "b"


def test_a_gate_is_forced_after_its_attempts_and_that_is_counted() -> None:
    hand, run = gated('require_regions = ["notes"], max_attempts = 2')
    hand.reply("", ("a", "look", "{}"))
    hand.tool()
    for _ in range(2):
        hand.reply("done")
        assert stage(hand, run) == "a"
    hand.reply("done")
    assert stage(hand, run) == "b" and hand.world.get(run, Flags).gates_forced == 1


def test_a_held_stage_keeps_its_context() -> None:
    hand, run = start(
        edges(
            'to = "b"\ntransform = "clear"\ngate = { require_regions = ["notes"] }',
        )
        + REGIONS
    )
    hand.reply("first")
    assert "first" in texts(hand, run)


# --- nudges, required regions, owed output ------------------------------------------------------


def test_a_reply_without_tools_in_a_stage_that_used_none_is_nudged_a_few_times() -> None:
    hand, run = start(
        f'[stages.a]\navailable_tools = {ALL}\nnudge = {{ max = 2, text = "use one" }}\n'
    )
    for count in (1, 2):
        hand.reply("hm")
        assert texts(hand, run).count("use one") == count
    hand.reply("hm")
    assert word(hand, run) == "complete"


def test_a_stage_that_used_a_tool_or_has_none_is_not_nudged() -> None:
    hand, run = start(f"[stages.a]\navailable_tools = {ALL}\n[stages.b]\n")
    hand.reply("", ("a", "look", "{}"))
    hand.tool()
    hand.reply("done")
    assert stage(hand, run) == "b"
    hand.reply("done")
    assert word(hand, run) == "complete"


REQUIRED = """
[stages.a]
[context.regions]
plan = { kind = "pinned", required = true, required_message = "plan first" }
"""


def test_a_required_region_sends_the_stage_back_then_is_given_up_and_reported() -> None:
    hand, run = start(REQUIRED)
    for _ in range(hand.world.policy.reentries_max):
        hand.reply("done")
        assert word(hand, run) == "running" and texts(hand, run)[-1] == "plan first"
    hand.reply("done")
    assert word(hand, run) == "complete"
    assert hand.world.get(run, Flags).required_abandoned == ("plan",)


OWES = f"""
[stages.a]
[stages.b]
mode = "output"
available_tools = {ALL}
nudge = {{ enabled = false }}
"""


def submit(hand: Hand) -> None:
    call = AskedCall("s", "submit_output", inline("{}"), fields=(("content", inline("it")),))
    hand.post(hand.inferred(calls=(call,)))


def test_an_output_stage_is_sent_back_until_it_hands_something_in() -> None:
    hand, run = start(OWES)
    hand.reply("done")
    hand.reply("done")
    assert texts(hand, run)[-1] == "This stage must hand in its result: call submit_output."
    submit(hand)
    hand.reply("done")
    assert word(hand, run) == "complete"


def test_a_run_that_owes_an_output_does_not_end_as_complete() -> None:
    hand, run = start(OWES)
    for _ in range(5):
        hand.reply("done")
    assert word(hand, run) == "error" and "owes an output" in (hand.status(run).error or "")
    assert hand.world.get(run, Flags).output_forced == 1
