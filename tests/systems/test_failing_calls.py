"""Model calls that fail: backoff, failover, breakers, set-up, slots, stalls; and money."""

from __future__ import annotations

from typing import Any

import pytest
from hand_agents import ALL, ONE, TALK, TOOLS, TWO_MODELS, agent, asked, stage, texts, wanted, word

from leviath.components.commands import Abort, Infer
from leviath.components.effects import Effects
from leviath.components.error_kind import ErrorKind
from leviath.components.events import CallFailed
from leviath.components.inputs import Cancel, InferenceFinished, Pause, Resume
from leviath.components.money import Rates
from leviath.components.parts import WORLD_OWNER
from leviath.components.progress import Cost, Ledgers, Resolution
from leviath.components.text import inline
from leviath.components.world_facts import Breakers, Policy, Priced, Prices
from leviath.simulation.hand import Hand

TWO = agent("[stages.main]\n", models=TWO_MODELS)


def two(**policy: Any) -> tuple[Hand, int]:
    hand = Hand(providers=("scripted", "spare"), policy=Policy(**policy))
    return hand, hand.spawn(TWO)


def retry_in(hand: Hand) -> int | None:
    (failed,) = [e for e in hand.results[-1].events if isinstance(e, CallFailed)]
    return failed.retry_in_ms


# --- backoff ------------------------------------------------------------------------------------


def test_a_blip_is_tried_again_after_a_doubling_jittered_wait_in_the_same_call() -> None:
    hand = Hand(policy=Policy(breaker_failures=0))
    run = hand.spawn(TALK)
    first = asked(hand)
    for attempt, (low, high) in enumerate([(500, 1_000), (1_000, 2_000), (2_000, 4_000)], 1):
        hand.fail("server")
        wait = retry_in(hand)
        assert wait is not None and low <= wait <= high
        assert not hand.sleep(wait - 1).commands
        hand.sleep(1)
        again = asked(hand)
        assert (again.effect, again.ordinal, again.attempt) == (first.effect, 1, attempt + 1)
    hand.fail("server", "out of order")
    assert word(hand, run) == "error" and hand.status(run).error == "out of order"


def test_a_provider_without_room_is_given_longer() -> None:
    for kind in ("rate_limited", "overloaded"):
        hand = Hand(policy=Policy(breaker_failures=0))
        hand.spawn(TALK)
        spans: list[int] = []
        for _ in range(3):
            hand.fail(kind)
            spans.append(retry_in(hand) or 0)
            hand.sleep(spans[-1])
        assert 7_500 <= spans[0] <= 15_000 < spans[1] <= 30_000 <= spans[2] <= 60_000


def test_a_provider_that_says_when_is_believed_up_to_a_limit() -> None:
    hand = Hand()
    hand.spawn(TALK)
    hand.fail("rate_limited", retry_after_ms=2_345)
    assert retry_in(hand) == 2_345
    hand.sleep(2_345)
    hand.fail("rate_limited", retry_after_ms=10**9)
    assert retry_in(hand) == hand.world.policy.capacity_max_ms


def test_all_waits_of_one_call_together_are_bounded() -> None:
    hand = Hand(policy=Policy(backoff_total_ms=100_000, attempts_max=50))
    run = hand.spawn(TALK)
    hand.fail("rate_limited", retry_after_ms=60_000)
    hand.sleep(60_000)
    hand.fail("rate_limited", retry_after_ms=60_000)
    assert retry_in(hand) is None and word(hand, run) == "error"


def test_all_attempts_of_one_call_together_are_bounded() -> None:
    hand = Hand()
    run = hand.spawn(
        agent(
            "[stages.main]\n[stages.main.model]\nrequest_timeout_secs = 90\n"
            'models = [{ provider = "scripted", model = "m" }]\n'
        )
    )
    assert asked(hand).timeout_ms == 90_000
    hand.sleep(50_000)
    hand.fail("server", retry_after_ms=30_000)
    hand.sleep(30_000)
    assert asked(hand).timeout_ms == 10_000
    hand.fail("server", retry_after_ms=30_000)
    assert word(hand, run) == "error", "the next attempt would begin after the end"


@pytest.mark.parametrize(
    "kind", ["bad_request", "other", "workspace_lost", "script_exhausted", "aborted", "unheard_of"]
)
def test_what_a_second_call_cannot_mend_is_not_tried_again(kind: str) -> None:
    hand, run = two()
    hand.spawn(TALK)
    only = wanted(hand, Infer)[1]
    hand.fail(kind, infer=only)
    assert word(hand, only.run) == "error"
    assert word(hand, run) == "running"


def test_the_slot_is_given_back_during_a_backoff() -> None:
    hand = Hand(policy=Policy(slots_default=1))
    hand.spawn(TALK)
    other = hand.spawn(TALK)
    assert asked(hand).run == 1
    hand.fail("server")
    assert asked(hand).run == other


def test_a_call_past_its_deadline_is_aborted_and_its_failure_ends_the_stage() -> None:
    hand = Hand()
    run = hand.spawn(TALK)
    hand.sleep(900_000)
    (abort,) = wanted(hand, Abort)
    assert (abort.run, abort.effect) == (run, 1)
    hand.fail("aborted", "out of time")
    assert word(hand, run) == "error" and hand.status(run).error == "out of time"


def test_a_reply_that_lands_after_the_deadline_is_used() -> None:
    hand = Hand()
    run = hand.spawn(TALK)
    hand.sleep(900_000)
    hand.reply("just in time")
    assert word(hand, run) == "complete"


def test_the_machine_sleeping_moves_no_deadline() -> None:
    hand = Hand()
    run = hand.spawn(TALK)
    hand.wall_ms += 8 * 3_600_000
    assert not hand.post().commands
    hand.reply("good morning")
    assert word(hand, run) == "complete"


# --- failover -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["server", "rate_limited", "transport", "timeout"])
def test_a_call_whose_attempts_are_spent_goes_to_the_next_model_with_its_ordinal(kind: str) -> None:
    hand, run = two(attempts_max=2, breaker_failures=0)
    hand.fail(kind, retry_after_ms=1)
    hand.sleep(1)
    hand.fail(kind)
    infer = asked(hand)
    assert (infer.provider, infer.attempt, infer.ordinal, infer.effect) == ("spare", 1, 1, 2)
    hand.reply("done")
    assert word(hand, run) == "complete"


def test_a_failover_lasts_until_the_stage_is_left() -> None:
    hand = Hand(providers=("scripted", "spare"), tools=TOOLS)
    run = hand.spawn(agent(f"[stages.a]\navailable_tools = {ALL}\n[stages.b]\n", models=TWO_MODELS))
    hand.fail("context_length")
    hand.reply("", ("a", "look", "{}"))
    hand.tool()
    assert (asked(hand).provider, asked(hand).ordinal) == ("spare", 2)
    hand.reply("done")
    assert stage(hand, run) == "b" and asked(hand).provider == "scripted"


def test_a_bad_request_is_not_paid_for_twice() -> None:
    hand, run = two()
    hand.fail("bad_request")
    assert word(hand, run) == "error"


def test_ordinals_count_the_calls_of_a_kind_and_retries_keep_theirs() -> None:
    hand = Hand(tools=TOOLS)
    run = hand.spawn(
        agent(
            f"[stages.a]\navailable_tools = {ALL}\n[[stages.a.edges]]\nto = 'b'\n"
            "condition = 'error'\n[[stages.a.edges]]\nto = 'b'\n"
            "[stages.b]\n[stages.b.transitions]\n"
        )
    )
    hand.reply("", ("a", "look", "{}"))
    hand.tool()
    hand.fail("server", retry_after_ms=5)
    hand.sleep(5)
    assert (asked(hand).ordinal, asked(hand).attempt) == (2, 2)
    hand.fail("bad_request")
    assert stage(hand, run) == "b" and asked(hand).ordinal == 3


# --- set-up -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "blocker"),
    [
        ("credits", "credits_exhausted"),
        ("auth", "auth_failed"),
        ("forbidden", "forbidden"),
        ("provider_missing", "provider_missing"),
    ],
)
def test_what_a_person_has_to_mend_parks_the_run_with_a_remedy(kind: str, blocker: str) -> None:
    hand = Hand()
    run = hand.spawn(TALK)
    hand.fail(kind, "the account is empty")
    assert word(hand, run) == f"waiting_input {blocker}"
    waiting = hand.status(run).waiting
    assert waiting is not None and "scripted" in waiting.remedy
    assert not hand.caches.in_use
    hand.post(Resume(run))
    hand.reply("done")
    assert word(hand, run) == "complete"


def test_a_network_that_is_down_parks_the_run_after_its_attempts() -> None:
    hand = Hand(policy=Policy(attempts_max=2, breaker_failures=0))
    run = hand.spawn(TALK)
    hand.fail("transport", retry_after_ms=1)
    hand.sleep(1)
    hand.fail("transport")
    assert word(hand, run) == "waiting_input providers_unavailable"


def test_a_run_whose_provider_is_not_here_waits_and_goes_on_when_it_is_back() -> None:
    hand = Hand(providers=())
    run = hand.spawn(TALK)
    assert word(hand, run) == "waiting_input provider_missing"
    hand.configure(providers=("other",))
    assert word(hand, run) == "waiting_input provider_missing"
    hand.configure(providers=("scripted",))
    assert asked(hand).run == run


def test_a_paused_run_whose_provider_came_back_goes_on_when_it_is_resumed() -> None:
    hand = Hand(providers=())
    run = hand.spawn(TALK)
    hand.post(Pause(run))
    hand.configure(providers=("scripted",))
    assert word(hand, run) == "paused provider_missing"
    hand.post(Resume(run))
    assert asked(hand).run == run


def test_a_provider_that_the_host_lost_is_passed_over_for_another_of_the_stage() -> None:
    hand = Hand(providers=("scripted", "spare"), policy=Policy(slots_default=1))
    hand.spawn(TWO)
    waits = hand.spawn(TWO)
    hand.configure(providers=("spare",))
    assert [(i.run, i.provider) for i in wanted(hand, Infer)][1:] == [(waits, "spare")]


# --- breakers -----------------------------------------------------------------------------------


def broken_provider(runs: int = 3) -> tuple[Hand, list[int]]:
    hand = Hand(policy=Policy(breaker_failures=2, attempts_max=9, stall_ms=10**9))
    ordinals = [hand.spawn(TALK) for _ in range(runs)]
    for _ in range(2):
        hand.fail("server", retry_after_ms=1)
    return hand, ordinals


def test_failures_in_a_row_open_the_breaker_and_nobody_calls_until_its_cooldown_is_over() -> None:
    hand, _ = broken_provider()
    hand.reply("the third was under way")
    assert hand.world.get(WORLD_OWNER, Breakers).rows == (), "a success closes it"
    hand, _ = broken_provider(2)
    hand.sleep(60_000)
    assert not wanted(hand, Infer)


def test_a_half_open_breaker_admits_one_probe_and_its_success_lets_all_go() -> None:
    hand, _ = broken_provider(2)
    hand.spawn(TALK)
    hand.sleep(hand.world.policy.breaker_cooldown_ms)
    assert len(wanted(hand, Infer)) == 1
    hand.reply("works")
    assert len(wanted(hand, Infer)) == 2


def test_a_probe_that_fails_opens_the_breaker_again() -> None:
    hand, _ = broken_provider(2)
    hand.sleep(hand.world.policy.breaker_cooldown_ms)
    hand.fail("server", retry_after_ms=1)
    assert not hand.sleep(hand.world.policy.breaker_cooldown_ms - 1).commands
    assert len(hand.sleep(1).commands) == 1


@pytest.mark.parametrize("how", ["cancel", "pause", "restart"])
def test_a_probe_that_is_given_up_leaves_no_breaker_stuck(how: str) -> None:
    hand, _ = broken_provider(2)
    hand.sleep(hand.world.policy.breaker_cooldown_ms)
    (probe,) = hand.take(Infer)
    if how == "restart":
        hand.restart()
        (probe,) = hand.take(Infer)
        assert probe.attempt > 1, "the probe is made again, and stays the only one"
    else:
        hand.post(Cancel(probe.run) if how == "cancel" else Pause(probe.run))
    hand.fail("aborted", infer=probe)
    assert len(wanted(hand, Infer)) == 1


def test_an_open_breaker_sends_runs_to_their_next_model_also_out_of_a_backoff() -> None:
    hand, run = two(breaker_failures=1)
    hand.fail("server", retry_after_ms=1)
    hand.sleep(1)
    infer = asked(hand)
    assert (infer.run, infer.provider, infer.attempt, infer.ordinal) == (run, "spare", 1, 1)


def test_a_rate_limit_says_nothing_about_a_providers_health() -> None:
    hand = Hand(policy=Policy(breaker_failures=1))
    hand.spawn(TALK)
    hand.fail("rate_limited")
    assert not hand.world.find(WORLD_OWNER, Breakers)


def test_a_call_that_was_parked_on_has_all_of_its_time_when_its_run_is_resumed() -> None:
    """Its backoff ended while the breaker was open, and its time while a person was awaited."""
    hand = Hand(policy=Policy(breaker_failures=1, call_total_ms=600_000, stall_ms=60_000))
    run = hand.spawn(TALK)
    first = asked(hand)
    hand.fail("transport")
    hand.sleep(1_000)
    hand.sleep(60_000)
    assert word(hand, run) == "waiting_input providers_unavailable"
    hand.sleep(3_600_000)
    hand.post(Resume(run, 1))
    again = asked(hand)
    assert again.timeout_ms == first.timeout_ms
    assert (again.effect, again.attempt) == (first.effect + 1, 1)
    hand.reply("done")
    assert word(hand, run) == "complete"


def test_a_run_that_no_provider_serves_is_parked_after_a_while_and_resume_probes_at_once() -> None:
    hand = Hand(policy=Policy(breaker_failures=1, attempts_max=1, stall_ms=60_000))
    failed, run = hand.spawn(TALK), 0
    hand.fail("server")
    run = hand.spawn(TALK)
    assert word(hand, failed) == "error" and word(hand, run) == "running"
    hand.sleep(60_000)
    assert word(hand, run) == "waiting_input providers_unavailable"
    hand.post(Resume(run))
    assert asked(hand).run == run


# --- slots --------------------------------------------------------------------------------------


def test_slots_are_counted_by_provider_and_model() -> None:
    hand = Hand(providers=("scripted", "spare"), policy=Policy(slots=(("scripted", "m", 1),)))
    other = agent("[stages.main]\n", models='models = [{ provider = "spare", model = "m" }]')
    for blueprint in (TALK, TALK, other, other):
        hand.spawn(blueprint)
    assert [i.run for i in wanted(hand, Infer)] == [1, 3, 4]


def test_slots_go_to_the_root_with_the_fewest_calls_and_then_by_age() -> None:
    hand = Hand(policy=Policy(slots_default=2))
    big = hand.spawn(TALK)
    children = [hand.spawn(TALK, parent=big) for _ in range(4)]
    small = hand.spawn(TALK)
    assert [i.run for i in wanted(hand, Infer)] == [big, children[0]]
    second = wanted(hand, Infer)[1]
    hand.commands.remove(second)
    hand.reply("done", infer=second)
    assert [i.run for i in wanted(hand, Infer)] == [big, small], "not the second child"
    second = wanted(hand, Infer)[1]
    hand.commands.remove(second)
    hand.reply("done", infer=second)
    assert [i.run for i in wanted(hand, Infer)] == [big, children[1]]


def test_wider_slots_take_effect_at_once() -> None:
    hand = Hand(policy=Policy(slots_default=1))
    for _ in range(3):
        hand.spawn(TALK)
    hand.configure(policy=Policy(slots_default=3))
    assert len(wanted(hand, Infer)) == 3


def test_a_busy_queue_leaves_no_rubbish_behind() -> None:
    hand = Hand(policy=Policy(slots_default=2, iterations_default=10**6), check=False, tools=TOOLS)
    for _ in range(4):
        hand.spawn(ONE)
    for _ in range(500):
        hand.reply("", ("a", "nope", "{}"))
    assert len(hand.caches._ranks[("scripted", "m")]) <= 65


# --- money --------------------------------------------------------------------------------------


def prices(**rates: int) -> Prices:
    return Prices((Priced("scripted", "m", Rates(rates["prompt"], rates["completion"], 0, 0)),))


def test_a_providers_own_figure_stands_and_rates_stand_in_for_it() -> None:
    hand = Hand(prices=prices(prompt=3_000_000, completion=15_000_000), tools=TOOLS)
    run = hand.spawn(ONE)
    hand.reply("", ("a", "nope", "{}"), cost_nano_usd=7)
    hand.reply("", ("a", "nope", "{}"), cost_nano_usd=None, prompt=10, completion=2)
    cost = hand.world.get(run, Cost)
    assert (cost.priced_nano, cost.computed, cost.unpriced) == (7 + 30 + 30, 1, 0)
    assert [f.certainty for r in hand.results for f in r.facts] == ["provider", "computed"]


def test_a_call_without_a_price_is_unpriced_and_not_free() -> None:
    hand = Hand(tools=TOOLS)
    run = hand.spawn(ONE)
    hand.reply("", ("a", "nope", "{}"), cost_nano_usd=None)
    cost = hand.world.get(run, Cost)
    assert (cost.priced_nano, cost.unpriced, cost.prompt) == (0, 1, 10)
    assert hand.world.get(run, Ledgers).stages[0].unpriced == 1


def test_totals_are_a_fold_of_the_ledger_also_over_a_restart() -> None:
    hand = Hand(tools=TOOLS)
    run = hand.spawn(ONE)
    for n in range(10):
        if n == 5:
            hand.restart()
        hand.reply("", ("a", "nope", "{}"))
    facts = [fact for result in hand.results for fact in result.facts]
    cost = hand.world.get(run, Cost)
    assert cost.priced_nano == sum(fact.nano_usd or 0 for fact in facts) == 10_000
    assert cost.prompt == sum(fact.prompt for fact in facts)
    assert cost.unpriced == sum(fact.nano_usd is None for fact in facts) == 1


def test_failed_attempts_that_were_sent_are_charged() -> None:
    hand = Hand()
    run = hand.spawn(TALK)
    hand.fail("server", charged=True, prompt=4, cost_nano_usd=9)
    assert hand.world.get(run, Cost).priced_nano == 9


def test_an_outcome_of_an_older_attempt_is_charged_and_not_applied() -> None:
    hand = Hand()
    run = hand.spawn(TALK)
    old = asked(hand)
    hand.fail("server", retry_after_ms=1)
    hand.sleep(1)
    late = InferenceFinished(run, old.effect, old.attempt, 1, inline("late"), cost_nano_usd=5)
    hand.post(late)
    assert word(hand, run) == "running" and hand.world.get(run, Cost).priced_nano == 5
    assert len(hand.world.get(run, Effects).items) == 1


def test_a_figure_that_arrives_for_an_interrupted_attempt_replaces_it() -> None:
    hand = Hand()
    run = hand.spawn(TALK)
    lost = asked(hand)
    hand.restart()
    assert hand.world.get(run, Cost).unpriced == 1
    hand.post(InferenceFinished(run, lost.effect, lost.attempt, 1, cost_nano_usd=5))
    cost = hand.world.get(run, Cost)
    assert (cost.unpriced, cost.priced_nano) == (0, 5)


def test_a_call_of_a_cancelled_run_is_charged_when_it_comes_back() -> None:
    hand = Hand()
    run = hand.spawn(TALK)
    hand.post(Cancel(run))
    assert hand.caches.in_use, "the provider still works on it"
    hand.reply("too late")
    assert word(hand, run) == "cancelled" and hand.world.get(run, Cost).priced_nano == 1_000
    assert not hand.caches.in_use and texts(hand, run) == []


def test_every_kind_of_error_is_handled_by_its_row() -> None:
    for kind in ErrorKind:
        hand, run = two(attempts_max=1)
        hand.fail(kind.value)
        assert word(hand, run).split()[0] in ("error", "waiting_input", "running")
        assert hand.world.get(run, Resolution).choice in (0, 1)
