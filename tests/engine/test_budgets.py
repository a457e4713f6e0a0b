"""Budgets over real homes: refused at the border, kept over crashes, raised by a resume."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from engine_worlds import Counting, Gate, in_trio, one, opened, pass_time, priced, three
from msgspec.structs import replace

import leviath
from leviath.components.money import amount_at_most, parse_usd
from leviath.engine.clock import ManualClock
from leviath.engine.pricing import PriceTable
from leviath.persistence.store import Store
from leviath.providers.scripted import tool_call

if TYPE_CHECKING:
    from pathlib import Path

PRICES = {"scripted/m": {"prompt": "1", "completion": "2"}}
RATES = PriceTable.parse(PRICES).rates("scripted", "m")
assert RATES is not None
BOUND = amount_at_most(RATES, 512, 8_192)
"""What a call of an agent without texts and tools may cost: one mille of a dollar per 1,000 prompt
tokens, two for replies."""


def usd(nano: int) -> str:
    """An amount as a Budget takes it."""
    text = f"{nano // 10**9}.{nano % 10**9:09d}"
    assert parse_usd(text) == nano
    return text


def world_of(home: Path, *providers: Any, **more: Any) -> Any:
    return opened(home, providers, **({"prices": PRICES} | more))


def outcomes(home: Path) -> list[str]:
    """What the run store calls the ending of each run."""
    with Store.open(home / "world.db") as store:
        return [str(run.outcome) for run in store.runs()]


# --- the border ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "a budget without a limit limits nothing; give usd, tokens, turns or wall_ms"),
        (
            {"usd": 0.5},
            'budget: usd must be text such as "0.50", not 0.5 (float)',
        ),
        ({"usd": True}, 'budget: usd must be text such as "0.50", not True'),
        ({"usd": b"1"}, 'budget: usd must be text such as "0.50"'),
        ({"usd": "0"}, "budget: usd '0' allows no call; give more than nothing"),
        ({"usd": 0}, "budget: usd '0' allows no call"),
        ({"usd": -1}, "budget: usd '-1' is not an amount of dollars"),
        ({"usd": "1,5"}, "budget: usd '1,5' is not an amount of dollars: write digits"),
        ({"usd": "0.0000000001"}, "budget: usd '0.0000000001' is not an amount of dollars"),
        ({"usd": "9" * 10}, "is not an amount of dollars"),
        ({"usd": "nan"}, "budget: usd 'nan' is not an amount of dollars"),
        ({"tokens": 0}, "budget: tokens 0 (int) must be between 1 and"),
        ({"tokens": 1.5}, "budget: tokens must be a whole number, not 1.5 (float)"),
        ({"turns": True}, "budget: turns must be a whole number, not True"),
        ({"turns": 2**63}, "budget: turns 9223372036854775808 (int) must be between 1 and"),
        ({"wall_ms": -1}, "budget: wall_ms -1 (int) must be between 1 and"),
        ({"wall_ms": "90s"}, "budget: wall_ms must be a whole number, not '90s'"),
    ],
)
def test_what_is_no_budget_is_refused_by_name_and_value(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(leviath.ConfigError) as caught:
        leviath.Budget(**given)
    assert message in str(caught.value)


def test_dollars_may_be_text_or_whole() -> None:
    assert leviath.Budget(usd=3).nano_usd == leviath.Budget(usd="3.00").nano_usd == 3 * 10**9
    assert leviath.Budget(turns=1).nano_usd is None
    assert leviath.Budget(usd="999999999", tokens=2**63 - 1).limits().tokens == 2**63 - 1


@in_trio
async def test_what_is_no_budget_starts_nothing(tmp_path: Path) -> None:
    async with world_of(tmp_path / "home", Counting("x")) as world:
        for name in ("budget", "tree_budget"):
            odd: Any = {name: "0.50"}
            with pytest.raises(leviath.SpawnError, match=rf"{name} must be a Budget, not '0.50'"):
                await world.spawn(one(), workdir=tmp_path, **odd)
        assert world.listing() == []
        run = await world.spawn(one(), workdir=tmp_path)
        given: Any = {"budget": 5}
        with pytest.raises(leviath.ConfigError, match="budget must be a Budget, not 5"):
            await run.resume(**given)


@in_trio
async def test_a_fleet_has_no_time_and_a_policy_sets_no_fleet_budget(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with pytest.raises(leviath.ConfigError, match="fleet_budget has wall_ms 5,000, and a fleet"):
        async with world_of(home, fleet_budget=leviath.Budget(wall_ms=5_000)):
            pass
    with pytest.raises(leviath.ConfigError, match="fleet_budget must be a Budget"):
        async with world_of(home, fleet_budget=7):
            pass
    limits = leviath.Budget(tokens=5).limits()

    def sets_it(policy: leviath.Policy) -> leviath.Policy:
        return replace(policy, fleet_budget=limits)

    with pytest.raises(leviath.ConfigError, match=r"pass fleet_budget=Budget\(\.\.\.\)"):
        async with world_of(home, policy=sets_it):
            pass
    assert not home.exists()


@in_trio
async def test_dollars_without_a_price_are_refused_before_anything_exists(tmp_path: Path) -> None:
    home, some = tmp_path / "home", leviath.Budget(usd="1")
    model = Counting("x", loop=True)
    async with world_of(home, model, prices=None) as world:
        for name in ("budget", "tree_budget"):
            given: Any = {name: some}
            with pytest.raises(leviath.SpawnError) as caught:
                await world.spawn(three(), workdir=tmp_path, **given)
            assert str(caught.value) == (
                f"{name} is in dollars, and the price of scripted/m is not known, which stage plan "
                "may call; give it where the world is opened (prices=, lev: --prices), or limit "
                "tokens"
            )
        assert world.listing() == [] and not list((home / "runs").glob("*"))
        await (
            await world.spawn(one(), workdir=tmp_path, budget=leviath.Budget(tokens=99_999))
        ).wait()
    async with world_of(home, model, prices=None, fleet_budget=some) as world:
        with pytest.raises(leviath.SpawnError, match="fleet_budget is in dollars"):
            await world.spawn(one(), workdir=tmp_path)
    async with world_of(home, model) as world:
        with pytest.raises(leviath.SpawnError, match="the price of scripted/other is not known"):
            await world.spawn(one(), workdir=tmp_path, model="scripted/other", budget=some)
    # A host that calls no model need not know what they cost.
    async with world_of(home, prices=None, drive=False) as world:
        run = await world.spawn(one(), workdir=tmp_path, budget=some)
    async with world_of(home, model) as world:
        assert (await world.run(run.run_id).wait()).status == "complete"


# --- ending and going on ------------------------------------------------------------------------


@in_trio
async def test_a_run_that_spent_its_budget_goes_on_with_a_larger_one_only(tmp_path: Path) -> None:
    home = tmp_path / "home"
    look = tool_call("read_file", path="nothing")
    model = Counting(priced("", look, cost=1_000), "done")
    agent = one("read_file")
    async with world_of(home, model) as world:
        run = await world.spawn(agent, workdir=tmp_path, budget=leviath.Budget(turns=1, usd="1"))
        row = await run.wait()
        assert (row.status, len(model.asked)) == ("error", 1)
        assert row.error == (
            "the run's budget of 1 turn is spent: 1 are taken, 0 under way; resume the run with a "
            "larger one"
        )
        for more in (None, leviath.Budget(usd="5"), leviath.Budget(turns=1)):
            with pytest.raises(leviath.RunConflict) as caught:
                await run.resume(budget=more)
            assert str(caught.value) == f"{run.run_id} cannot go on: {row.error}"
        assert len(model.asked) == 1
        await run.resume(budget=leviath.Budget(turns=2))
        assert (await run.wait()).status == "complete"
        assert len(model.asked) == 2
        with pytest.raises(leviath.RunConflict, match="ended in error or cancelled"):
            await run.resume(budget=leviath.Budget(turns=3))


@in_trio
async def test_each_budget_ends_a_run_under_its_own_name(tmp_path: Path) -> None:
    home, clock = tmp_path / "home", ManualClock()
    few = leviath.Budget(tokens=10)
    async with world_of(home, Counting("x"), clock=clock) as world:
        for given in (
            {"budget": few},
            {"tree_budget": few},
            {"budget": leviath.Budget(usd="0.01")},
        ):
            many: Any = given
            run = await world.spawn(one(), workdir=tmp_path, **many)
            assert (await run.wait()).status == "error"
    async with world_of(home, Counting("x"), clock=clock, fleet_budget=few) as world:
        run = await world.spawn(one(), workdir=tmp_path)
        assert "the fleet budget of 10 tokens" in str((await run.wait()).error)
    gate = Gate("late")
    async with world_of(home, gate, clock=clock) as world:
        run = await world.spawn(one(), workdir=tmp_path, budget=leviath.Budget(wall_ms=5_000))
        await gate.waiting.wait()
        await pass_time(clock, 5_000)
        assert "the run's budget of 5 s is over" in str((await run.wait()).error)
    own, shared, timed = "cost_budget_exceeded", "budget_ceiling_reached", "time_budget_exceeded"
    assert sorted(outcomes(home)) == sorted([own, shared, own, shared, timed])


@in_trio
async def test_the_fleet_budget_is_a_sum_over_hosts(tmp_path: Path) -> None:
    home, model = tmp_path / "home", Counting(priced("x", cost=600_000_000), loop=True)
    for _ in range(2):
        async with world_of(home, model, fleet_budget=leviath.Budget(usd="1.25")) as world:
            run = await world.spawn(one(), workdir=tmp_path)
            assert (await run.wait()).status == "complete"
    async with world_of(home, model, fleet_budget=leviath.Budget(usd="1.21")) as world:
        run = await world.spawn(one(), workdir=tmp_path)
        assert (await run.wait()).status == "error" and len(model.asked) == 2
        with pytest.raises(leviath.RunConflict, match="open the world with a larger one"):
            await run.resume()
    async with world_of(home, model, fleet_budget=leviath.Budget(usd=3)) as world:
        run = world.run(run.run_id)
        await run.resume()
        assert (await run.wait()).status == "complete"


# --- what is left -------------------------------------------------------------------------------


@in_trio
async def test_what_is_left_of_a_budget_is_told_while_a_call_is_under_way_and_after(
    tmp_path: Path,
) -> None:
    home, clock, gate = tmp_path / "home", ManualClock(), Gate(priced("late", cost=7))
    budget = leviath.Budget(usd="1", turns=3, wall_ms=60_000)
    fleet = leviath.Budget(tokens=90_000)
    async with world_of(home, gate, clock=clock, fleet_budget=fleet) as world:
        run = await world.spawn(one(), workdir=tmp_path, budget=budget, tree_budget=budget)
        await gate.waiting.wait()
        await pass_time(clock, 2_000)
        told = run.spendings()
        assert list(told) == ["budget", "tree_budget"]
        for one_of_them in told.values():
            assert one_of_them.limits == budget.limits()
            assert one_of_them.spent == type(one_of_them.spent)()
            assert (one_of_them.held.nano_usd, one_of_them.held.turns) == (BOUND, 1)
            assert one_of_them.passed_ms == 2_000
        whole = world.fleet_spending()
        assert whole is not None and whole.limits == fleet.limits()
        assert whole.held.tokens == told["budget"].held.tokens > 0
        gate.open.set()
        row = await run.wait()
        told, whole = run.spendings(), world.fleet_spending()
        for one_of_them in told.values():
            assert one_of_them.held == type(one_of_them.held)()
            assert (one_of_them.spent.nano_usd, one_of_them.spent.turns) == (7, 1)
            assert one_of_them.passed_ms is None, "the world's time goes on, the run's does not"
        tokens = row.prompt_tokens + row.completion_tokens
        assert whole is not None and whole.spent.tokens == tokens
        await run.forget()
        with pytest.raises(leviath.RunNotFound):
            run.spendings()
    async with world_of(home, gate, clock=clock) as world:
        assert world.fleet_spending() is None
        run = await world.spawn(one(), workdir=tmp_path)
        assert run.spendings() == {}


# --- crashes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("calls", [1, 2, 3])
@in_trio
async def test_a_call_whose_settlement_a_crash_took_counts_with_its_bound(
    tmp_path: Path, calls: int
) -> None:
    """Whatever the lost calls really cost, up to what was set aside for each, the run is made to
    stop before another could take it past its budget."""
    limit = calls * BOUND + BOUND - 1
    home, asked, run_id = tmp_path / "0", 0, ""
    for crash in range(calls):
        gate = Gate("never")
        async with world_of(home, gate) as world:
            if not crash:
                budget = leviath.Budget(usd=usd(limit))
                run_id = (await world.spawn(one(), workdir=tmp_path, budget=budget)).run_id
            await gate.waiting.wait()
            asked += len(gate.asked)
            # As a crash leaves it: the call went out, and nobody will hear of it.
            killed = tmp_path / str(crash + 1)
            shutil.copytree(home, killed)
        home = killed
    last = Counting(priced("x", cost=BOUND))
    async with world_of(home, last) as world:
        row = await world.run(run_id).wait()
        ledger = world.run(run_id).ledger()
    assert last.asked == [] and asked == calls
    assert [call.certainty for call in ledger] == ["interrupted"] * calls
    assert row.status == "error" and row.cost_priced_nano == 0
    assert f"${usd(calls * BOUND).rstrip('0')} is spent" in str(row.error)
    assert calls * BOUND <= limit < (calls + 1) * BOUND
    assert outcomes(home) == ["cost_budget_exceeded"]


@in_trio
async def test_what_a_lost_call_left_is_enough_for_another(tmp_path: Path) -> None:
    gate = Gate("never")
    home, killed = tmp_path / "home", tmp_path / "killed"
    async with world_of(home, gate) as world:
        budget = leviath.Budget(usd=usd(2 * BOUND))
        run = await world.spawn(one(), workdir=tmp_path, budget=budget)
        await gate.waiting.wait()
        shutil.copytree(home, killed)
    again = Counting(priced("x", cost=BOUND))
    async with world_of(killed, again) as world:
        row = await world.run(run.run_id).wait()
        total = world.run(run.run_id).ledger()
    assert (row.status, len(again.asked), row.cost_priced_nano) == ("complete", 1, BOUND)
    assert [call.certainty for call in total] == ["interrupted", "provider"]


@in_trio
async def test_a_tree_and_a_fleet_remember_what_a_crash_lost(tmp_path: Path) -> None:
    for name in ("tree_budget", "fleet_budget"):
        home, killed = tmp_path / name, tmp_path / f"{name}-killed"
        budget, gate = leviath.Budget(usd=usd(2 * BOUND - 1)), Gate("never")
        fleet = {"fleet_budget": budget} if name == "fleet_budget" else {}
        tree: Any = {"tree_budget": budget} if name == "tree_budget" else {}
        async with world_of(home, gate, **fleet) as world:
            run = await world.spawn(one(), workdir=tmp_path, **tree)
            await gate.waiting.wait()
            shutil.copytree(home, killed)
        last = Counting("x")
        async with world_of(killed, last, **fleet) as world:
            assert (await world.run(run.run_id).wait()).status == "error"
        assert last.asked == []
        assert outcomes(killed) == ["budget_ceiling_reached"]
