"""Budgets: what is set aside before a call, what is settled after it, and how a run is stopped."""

from __future__ import annotations

from typing import Any

import pytest
from budget_hands import (
    CALL_NANO,
    CALL_TOKENS,
    PRICES,
    SHORT,
    held,
    outcome,
    priced,
    refused,
    talk_on,
)
from hand_agents import (
    MODEL,
    ONE,
    TALK,
    TWO_MODELS,
    agent,
    asked,
    stage,
    texts,
    wanted,
    word,
)
from msgspec.structs import replace
from tree_hands import infer_of, says

from leviath.components.budget import Allowance, FleetSpent, Hold, Limits, Reserved, TreeSpent
from leviath.components.commands import Infer
from leviath.components.effects import Effects
from leviath.components.inputs import Cancel, Configured, Pause, Resume
from leviath.components.parts import WORLD_OWNER
from leviath.components.progress import Cost, Stage, Visits
from leviath.components.world_facts import Prices
from leviath.simulation.hand import Hand
from leviath.systems.control import put_down
from leviath.systems.invariants import broken
from leviath.systems.run import Run, Tick

# --- the run's own ------------------------------------------------------------------------------


def test_a_call_that_fits_exactly_is_made_and_one_token_less_is_refused() -> None:
    for tokens, expected in ((CALL_TOKENS, "running"), (CALL_TOKENS - 1, "error")):
        hand = priced()
        run = hand.spawn(TALK, budget=Limits(tokens=tokens))
        assert word(hand, run) == expected
        assert len(wanted(hand, Infer)) == (expected == "running")


def test_money_is_held_to_the_nano_dollar() -> None:
    for nano, expected in ((CALL_NANO, "running"), (CALL_NANO - 1, "error")):
        hand = priced()
        run = hand.spawn(TALK, budget=Limits(nano_usd=nano))
        assert word(hand, run) == expected
    assert refused(hand) == ["own_budget"]
    assert outcome(hand, run) == "cost_budget_exceeded"
    assert hand.status(run).error == (
        "the run's budget of $0.000000711 does not cover the next call: $0 is spent, $0 set aside "
        "for calls under way, and this one may cost $0.000000712 (512 prompt and 100 reply tokens "
        "of m); resume the run with a larger one"
    )


def test_the_reply_is_settled_with_what_it_used_and_the_rest_is_free_again() -> None:
    hand = priced()
    run = hand.spawn(ONE, budget=Limits(tokens=20_000, nano_usd=20_000))
    (hold,) = held(hand, run)
    assert (hold.effect, hold.attempt, hold.turns) == (1, 1, 1)
    assert hold.nano_usd == (hold.tokens - 100) + 200
    hand.reply("", ("c", "look", "{}"), prompt=70, completion=30, cost_nano_usd=None)
    assert held(hand, run) == ()
    assert hand.world.get(run, Reserved).lost_nano == 0
    hand.tool("seen")
    cost = hand.world.get(run, Cost)
    assert (cost.prompt, cost.completion, cost.priced_nano) == (70, 30, 130)
    assert held(hand, run)[0].effect == 3


def test_a_spent_budget_ends_the_run_and_the_next_call_is_never_made() -> None:
    hand = priced()
    run = hand.spawn(ONE, budget=Limits(tokens=5_000))
    talk_on(hand, prompt=3_000)
    assert word(hand, run) == "error"
    assert wanted(hand, Infer) == []
    assert "3,000 are spent, 0 set aside" in (hand.status(run).error or "")


def test_the_call_is_made_with_the_reply_that_was_set_aside() -> None:
    limits = Limits(tokens=100_000)
    own = agent(
        "[stages.main]\n[stages.main.model]\nprovider = 'scripted'\nmodel = 'm'\n"
        "[stages.main.model.parameters]\nmax_output_tokens = 7\n"
    )
    for blueprint, budget, longest, tokens in (
        (TALK, limits, 100, CALL_TOKENS),
        (own, limits, 100, 512 + 7),
        (TALK, None, 0, 0),
    ):
        hand = priced()
        run = hand.spawn(blueprint, budget=budget)
        assert asked(hand).output_tokens_max == longest
        assert sum(hold.tokens for hold in held(hand, run)) == tokens


def test_what_the_prompt_may_take_follows_the_context_the_tools_and_the_inbox() -> None:
    hand = priced()
    run = hand.spawn(agent("[stages.main]\n"), task="x" * 4_000, budget=Limits(tokens=100_000))
    assert held(hand, run)[0].tokens == 1_000 * 3 // 2 + CALL_TOKENS
    other = hand.spawn(ONE, budget=Limits(tokens=100_000))
    assert held(hand, other)[0].tokens == CALL_TOKENS + 6 * 256


def test_no_less_is_set_aside_for_a_prompt_than_the_policy_says() -> None:
    for least in (0, 512, 900):
        hand = priced(replace(SHORT, budget_prompt_tokens=least))
        (hold,) = held(hand, hand.spawn(TALK, budget=Limits(tokens=9_000)))
        assert hold.tokens == max(512, least) + 100


@pytest.mark.parametrize(
    ("limits", "cause", "result"),
    [
        (Limits(nano_usd=1), "own_budget", "cost_budget_exceeded"),
        (Limits(tokens=1), "own_budget", "cost_budget_exceeded"),
    ],
)
def test_an_error_edge_takes_a_refusal_once_and_what_it_leads_to_is_refused_as_well(
    limits: Limits, cause: str, result: str
) -> None:
    loop = agent(
        """
[stages.work]
[[stages.work.edges]]
to = "rescue"
condition = "error"
[stages.rescue]
[[stages.rescue.edges]]
to = "work"
condition = "error"
"""
    )
    hand = priced()
    run = hand.spawn(loop, budget=limits)
    assert (word(hand, run), stage(hand, run)) == ("error", "rescue")
    assert refused(hand) == [cause, cause]
    assert wanted(hand, Infer) == []
    assert outcome(hand, run) == result


def test_an_error_edge_to_something_cheaper_goes_on() -> None:
    cheaper = agent(
        """
[stages.work]
[[stages.work.edges]]
to = "rescue"
condition = "error"
[stages.rescue]
[stages.rescue.model]
models = [{ provider = "spare", model = "s" }]
"""
    )
    hand = priced(providers=("scripted", "spare"))
    run = hand.spawn(cheaper, budget=Limits(nano_usd=100))
    assert (word(hand, run), stage(hand, run)) == ("running", "rescue")
    assert "does not cover the next call" in " ".join(texts(hand, run))
    hand.reply("done", cost_nano_usd=5)
    assert word(hand, run) == "complete"


def test_turns_are_counted_over_all_stages_and_not_for_routing() -> None:
    graph = agent(
        """
[stages.ask]
[[stages.ask.edges]]
to = "left"
[[stages.ask.edges]]
to = "right"
[stages.left]
[stages.right]
"""
    )
    hand = priced()
    run = hand.spawn(graph, budget=Limits(turns=2))
    hand.reply("choose")
    assert held(hand, run)[0].turns == 0
    hand.reply("left")
    assert stage(hand, run) == "left" and held(hand, run)[0].turns == 1
    hand.reply("over")
    # "left" is followed by "right", whose turn would be the third.
    assert (word(hand, run), refused(hand)) == ("error", ["step_cap"])
    assert outcome(hand, run) == "step_cap_reached"
    assert "2 turns is spent" in (hand.status(run).error or "")


def test_a_routing_call_is_charged_and_can_be_refused() -> None:
    graph = agent(
        '[stages.ask]\n[[stages.ask.edges]]\nto = "left"\n[[stages.ask.edges]]\nto = "right"\n'
        "[stages.left]\n[stages.right]\n"
    )
    hand = priced()
    run = hand.spawn(graph, budget=Limits(tokens=1_000))
    hand.reply("choose", prompt=500, completion=100)
    assert hand.world.get(run, Stage).asking == ()
    assert (word(hand, run), refused(hand)) == ("error", ["own_budget"])


# --- attempts -----------------------------------------------------------------------------------


def test_every_attempt_is_set_aside_and_an_unknown_one_counts_with_its_bound() -> None:
    hand = priced(replace(SHORT, breaker_failures=0))
    run = hand.spawn(TALK, budget=Limits(tokens=2 * CALL_TOKENS))
    hand.fail("server", charged=True)
    assert held(hand, run) == ()
    assert hand.world.get(run, Reserved).lost_tokens == CALL_TOKENS
    hand.sleep(2_000)
    assert held(hand, run)[0].attempt == 2
    hand.fail("server", charged=True)
    hand.sleep(4_000)
    assert (word(hand, run), refused(hand)) == ("error", ["own_budget"])
    assert hand.world.get(run, Effects).items == ()
    assert hand.world.get(run, Visits).turn_calls == 1
    assert outcome(hand, run) == "cost_budget_exceeded"


@pytest.mark.parametrize("kind", ["rate_limited", "overloaded"])
def test_an_attempt_that_the_provider_turned_away_takes_nothing(kind: str) -> None:
    hand = priced(replace(SHORT, breaker_failures=0))
    run = hand.spawn(TALK, budget=Limits(tokens=CALL_TOKENS, nano_usd=CALL_NANO))
    for _ in range(3):
        hand.fail(kind, charged=True)
        hand.sleep(60_000)
        assert held(hand, run)[0].tokens == CALL_TOKENS
    assert hand.world.get(run, Cost).unpriced == 3


def test_what_an_attempt_is_known_to_have_used_counts_although_it_failed() -> None:
    hand = priced(replace(SHORT, breaker_failures=0))
    run = hand.spawn(TALK, budget=Limits(tokens=10_000))
    hand.fail("bad_response", charged=True, prompt=300, completion=40)
    reserved = hand.world.get(run, Reserved)
    assert (reserved.lost_tokens, hand.world.get(run, Cost).prompt) == (0, 300)


def test_an_attempt_that_was_never_sent_takes_nothing() -> None:
    hand = priced()
    run = hand.spawn(TALK, budget=Limits(tokens=CALL_TOKENS))
    hand.fail("transport", charged=False)
    hand.sleep(2_000)
    assert held(hand, run)[0].attempt == 2


def test_a_lost_call_counts_with_its_bound_and_the_next_attempt_is_set_aside_anew() -> None:
    for tokens, expected in ((2 * CALL_TOKENS, "running"), (2 * CALL_TOKENS - 1, "error")):
        hand = priced()
        run = hand.spawn(TALK, budget=Limits(tokens=tokens))
        hand.restart()
        assert word(hand, run) == expected
        reserved = hand.world.get(run, Reserved)
        assert (reserved.lost_tokens, reserved.lost_nano) == (CALL_TOKENS, CALL_NANO)
        assert hand.world.get(run, Cost).upper_nano == CALL_NANO
        assert [hold.attempt for hold in reserved.holds] == ([2] if expected == "running" else [])
    assert refused(hand) == ["own_budget"]


def test_a_failover_is_set_aside_at_the_price_of_the_next_model() -> None:
    hand = priced(replace(SHORT, attempts_max=1), providers=("scripted", "spare"))
    run = hand.spawn(agent("[stages.main]\n", models=TWO_MODELS), budget=Limits(nano_usd=2_000))
    assert held(hand, run)[0].nano_usd == CALL_NANO
    hand.fail("server", charged=True)
    assert held(hand, run)[0].nano_usd == 7


def test_a_refused_probe_leaves_the_provider_to_the_next_run() -> None:
    hand = priced(replace(SHORT, breaker_failures=1, breaker_cooldown_ms=5_000))
    poor = hand.spawn(TALK, budget=Limits(tokens=2 * CALL_TOKENS - 1))
    hand.fail("server", charged=True)
    hand.sleep(2_000)
    rich = hand.spawn(TALK)
    hand.sleep(30_000)
    assert word(hand, poor) == "error"
    assert asked(hand).run == rich


# --- prices -------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["budget", "tree_budget", "fleet"])
def test_an_unknown_price_is_refused_by_name_while_money_is_limited(where: str) -> None:
    limits = Limits(nano_usd=10**12)
    policy = replace(SHORT, fleet_budget=limits) if where == "fleet" else SHORT
    hand = Hand(policy=policy)
    more: dict[str, Any] = {} if where == "fleet" else {where: limits}
    run = hand.spawn(TALK, **more)
    assert (word(hand, run), refused(hand)) == ("error", ["not_retryable"])
    error = hand.status(run).error or ""
    assert error.startswith("the price of m at scripted is not known") and '"scripted/m"' in error
    hand.post(Configured(prices=PRICES), Resume(run))
    assert word(hand, run) == "running"


def test_an_unknown_price_is_no_matter_for_tokens() -> None:
    hand = Hand(policy=SHORT)
    assert word(hand, hand.spawn(TALK, budget=Limits(tokens=10_000))) == "running"


def test_a_price_that_went_away_meanwhile_leaves_the_bound() -> None:
    hand = priced()
    run = hand.spawn(ONE, budget=Limits(nano_usd=10_000))
    hand.post(Configured(prices=Prices()))
    (hold,) = held(hand, run)
    hand.reply("", ("c", "look", "{}"), cost_nano_usd=None)
    reserved = hand.world.get(run, Reserved)
    assert (reserved.lost_nano, reserved.lost_tokens) == (hold.nano_usd, 0)


# --- resuming -----------------------------------------------------------------------------------


def test_a_run_whose_budget_is_spent_is_resumed_with_a_larger_one_only() -> None:
    world = priced()
    run = world.spawn(ONE, budget=Limits(tokens=5_000, turns=50))
    talk_on(world, prompt=3_000)
    world.post(Resume(run, 7))
    (ack,) = world.results[-1].acks
    assert ack.code == "run_conflict"
    assert "cannot go on: the run's budget of 5,000 tokens does not cover" in ack.message
    world.post(Resume(run, 7, budget=Limits(tokens=5_001)))
    assert world.results[-1].acks[0].code == "run_conflict"
    assert world.world.get(run, Allowance).own == Limits(tokens=5_000, turns=50)
    world.post(Resume(run, 7, budget=Limits(tokens=9_000)))
    assert world.results[-1].acks[0].code == "" and word(world, run) == "running"
    assert world.world.get(run, Allowance).own == Limits(tokens=9_000, turns=50)


def test_a_budget_can_be_given_to_a_run_that_had_none() -> None:
    world = priced()
    run = world.spawn(ONE)
    talk_on(world, prompt=3_000)
    world.post(Cancel(run))
    world.fail("aborted", charged=True)
    world.post(Resume(run, 7, budget=Limits(tokens=3_000)))
    assert "3,000 are spent" in world.results[-1].acks[0].message
    assert Allowance not in world.world.row(run)
    world.post(Resume(run, 7, budget=Limits(tokens=9_000)))
    assert word(world, run) == "running" and held(world, run)[0].tokens == 2_151


def test_a_paused_reply_keeps_its_turn_until_it_is_used() -> None:
    world = priced(replace(SHORT, fleet_budget=Limits(turns=2)))
    run = world.spawn(TALK, budget=Limits(turns=5))
    world.post(Pause(run))
    says(world, run)
    assert held(world, run) == (Hold(1, 1, 0, 0, 1),)
    other = world.spawn(TALK)
    assert word(world, world.spawn(TALK)) == "error", "one is under way, one waits to be used"
    world.post(Resume(run))
    assert (word(world, run), held(world, run)) == ("complete", ())
    assert world.world.get(WORLD_OWNER, FleetSpent).turns == 1
    says(world, other)


def test_a_reply_that_nobody_waits_for_gives_its_turn_back() -> None:
    world = priced(replace(SHORT, fleet_budget=Limits(turns=2)))
    run = world.spawn(TALK)
    world.post(Pause(run))
    says(world, run)
    world.post(Cancel(run))
    assert held(world, run) == () and world.world.purses.fleet.turns == 0


def test_a_run_that_is_put_down_in_mid_call_loses_its_bound() -> None:
    world = priced()
    run = world.spawn(TALK, budget=Limits(tokens=CALL_TOKENS))
    tick = Tick(world.world, world.results[-1].now, 0)
    put_down(Run(world.world, run), tick, "broken")
    reserved = world.world.get(run, Reserved)
    assert (reserved.holds, reserved.lost_tokens) == ((), CALL_TOKENS)


# --- what it costs those who have none ----------------------------------------------------------


def test_runs_without_a_budget_carry_nothing_of_it() -> None:
    world = priced()
    run = world.spawn(ONE)
    talk_on(world, prompt=5)
    world.spawn(TALK, budget=Limits(tokens=100_000))
    talk_on(world, prompt=5)
    assert {Allowance, Reserved, TreeSpent}.isdisjoint(world.world.row(run))
    assert world.world.find(WORLD_OWNER, FleetSpent) is None


def test_a_hold_without_its_call_is_found() -> None:
    world = priced(check=False)
    run = world.spawn(TALK, budget=Limits(tokens=100_000))
    assert broken(world.world, [run]) == []
    kept = world.world.get(run, Reserved)
    world.world.put(run, replace(kept, holds=(*kept.holds, Hold(77, 1, 5, 5, 0))))
    assert broken(world.world, [run]) == [(run, "what is set aside is for a call")]
    assert infer_of(world, run).run == run and MODEL
