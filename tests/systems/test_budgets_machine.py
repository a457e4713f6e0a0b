"""Random histories of calls, crashes and trees never let a budget be passed."""

from __future__ import annotations

from typing import Final

from hand_agents import ALL, TALK, TOOLS, agent
from hypothesis import event, given
from hypothesis import strategies as st
from msgspec.structs import replace
from tree_hands import AGENT_TOOLS, BOSS, call, found

from leviath.components.budget import Allowance, FleetSpent, Limits, Reserved, TreeSpent
from leviath.components.commands import CallTool, FindAgent, Infer
from leviath.components.context import AskedCall
from leviath.components.inputs import Cancel, Pause, Resume
from leviath.components.money import Rates
from leviath.components.parts import WORLD_OWNER
from leviath.components.progress import Cost, Visits
from leviath.components.world_facts import Policy, Priced, Prices, Seed
from leviath.engine.step import Stepper
from leviath.persistence.journal import ORIGIN, encode_step
from leviath.simulation.hand import Hand
from leviath.systems.budgets import accounts
from leviath.systems.caches import Caches
from leviath.systems.reserves import Sums, held_of, own_spent, root_of
from leviath.systems.run import Run
from leviath.systems.world import World

OUTPUT: Final = 100
PRICES = Prices((Priced("scripted", "m", Rates(3_000_000, 15_000_000, 300_000, 3_750_000)),))
LOOP = agent(
    f"""
[stages.work]
available_tools = {ALL}
[[stages.work.edges]]
to = "other"
[[stages.work.edges]]
to = "rescue"
[[stages.work.edges]]
to = "rescue"
condition = "error"
[stages.other]
[stages.rescue]
[[stages.rescue.edges]]
to = "work"
condition = "error"
"""
)
LIMITS = st.one_of(
    st.none(),
    st.builds(
        Limits,
        nano_usd=st.none() | st.integers(1, 60_000),
        tokens=st.none() | st.integers(1, 15_000),
        turns=st.none() | st.integers(1, 12),
        wall_ms=st.none() | st.integers(1, 300_000),
    ),
)
ACTS = st.tuples(st.integers(0, 11), st.integers(0, 1_000), st.integers(0, 1_000))


def fits(limits: Limits | None, spent: Sums, held: Sums) -> bool:
    """Whether nothing is passed, as the sum of what is spent and set aside."""
    if limits is None:
        return True
    return (
        spent.nano_usd + held.nano_usd <= (limits.nano_usd or 1 << 60)
        and spent.tokens + held.tokens <= (limits.tokens or 1 << 60)
        and spent.turns + held.turns <= (limits.turns or 1 << 60)
    )


class Truth:
    """Tokens that each run may have used by now, counted by who answers the calls."""

    def __init__(self) -> None:
        self.tokens: dict[int, int] = {}

    def used(self, n: int, tokens: int) -> None:
        self.tokens[n] = self.tokens.get(n, 0) + tokens


def check(hand: Hand, truth: Truth) -> None:
    """No budget is passed; sums are what their parts come to, counted here from the runs alone."""
    world = hand.world
    for command in hand.commands:
        if isinstance(command, Infer) and any(True for _ in accounts(Run(world, command.run))):
            holds = held_of(world.find(command.run, Reserved))
            assert holds.tokens, f"{command} goes out and nothing is set aside"
    fleet, trees = Sums(), dict[int, Sums]()
    settled, by_root = Sums(), dict[int, Sums]()
    for n in world.owners():
        row = world.row(n)
        reserved, root = world.find(n, Reserved), root_of(world.live_rows[n], n)
        held = held_of(reserved)
        spent = own_spent(world.find(n, Cost), world.find(n, Visits), reserved)
        allowance = row.get(Allowance)
        assert spent.tokens == truth.tokens.get(n, 0), n
        assert fits(allowance.own if isinstance(allowance, Allowance) else None, spent, held), n
        for total, one in (
            (fleet, held),
            (trees.setdefault(root, Sums()), held),
            (settled, spent),
            (by_root.setdefault(root, Sums()), spent),
        ):
            total.nano_usd += one.nano_usd
            total.tokens += one.tokens
            total.turns += one.turns
    for root, held in trees.items():
        shared = world.find(root, TreeSpent) or TreeSpent()
        above = world.find(root, Allowance)
        if above is not None and above.tree is not None:
            sums = Sums(shared.nano_usd, shared.tokens, shared.turns)
            assert sums == by_root[root]
            assert fits(above.tree, sums, held), root
    known = world.find(WORLD_OWNER, FleetSpent) or FleetSpent()
    if world.policy.fleet_budget is not None:
        sums = Sums(known.nano_usd, known.tokens, known.turns)
        assert sums == settled
        assert fits(world.policy.fleet_budget, sums, fleet)


def answer(hand: Hand, truth: Truth, infer: Infer, kind: int, share: int, other: int) -> None:
    """One outcome of a call, with usage that is at most its bound."""
    hand.commands.remove(infer)
    reserved = hand.world.find(infer.run, Reserved)
    holds = [] if reserved is None else [h for h in reserved.holds if h.effect == infer.effect]
    output = 256 if infer.purpose == "routing" else OUTPUT
    most = holds[0].tokens - output if holds else 1_000
    prompt = most * share // 1_000
    usage = {"prompt": prompt // 2, "cached": prompt - prompt // 2}
    usage["completion"] = output * other // 1_000
    if kind == 0:
        words = {"error_kind": ("server", "rate_limited", "timeout", "bad_request")[other % 4]}
        given = usage if share % 3 == 0 else {}
        is_charged = share % 5 != 0
        if is_charged:
            nobody_bills = words["error_kind"] in ("rate_limited", "bad_request")
            lost = 0 if nobody_bills or not holds else holds[0].tokens
            truth.used(infer.run, sum(given.values()) or lost)
        hand.post(hand.inferred(infer, charged=is_charged, **given, **words))
        return
    truth.used(infer.run, sum(usage.values()))
    calls: tuple[AskedCall, ...] = ()
    if infer.purpose == "turn" and kind == 2:
        calls = (call("spawn_agent", agent=TALK.name, task="go"),)
    elif infer.purpose == "turn" and kind == 3:
        calls = (call("look"),)
    hand.post(hand.inferred(infer, calls=calls, cost_nano_usd=None, **usage))


def act(hand: Hand, truth: Truth, step: tuple[int, int, int], limits: Limits | None) -> None:
    kind, share, other = step
    runs = sorted(hand.world.owners())
    run = runs[share % len(runs)] if runs else 0
    infers = [c for c in hand.commands if isinstance(c, Infer)]
    if kind <= 3 and infers:
        answer(hand, truth, infers[share % len(infers)], kind, share, other)
    elif kind == 4:
        blueprint = (TALK, BOSS, LOOP)[share % 3]
        budget = limits if other % 2 else None
        hand.spawn(blueprint, budget=budget, tree_budget=limits if other % 3 else None)
    elif kind == 5:
        for n in hand.world.owners():
            truth.used(n, held_of(hand.world.find(n, Reserved)).tokens)
        hand.restart()
    elif kind == 6:
        hand.sleep(other * 100 + 1)
    elif kind == 7 and run:
        hand.post(Pause(run))
    elif kind == 8 and run:
        more = limits if other % 2 and hand.world.find(run, Allowance) is not None else None
        hand.post(Resume(run, 5, budget=more))
    elif kind == 9 and run:
        hand.post(Cancel(run))
    elif kind == 10 and any(isinstance(c, FindAgent) for c in hand.commands):
        found(hand, LOOP)
    elif kind == 11 and any(isinstance(c, CallTool) for c in hand.commands):
        hand.tool("ok")


def again(hand: Hand) -> bytes:
    """The digest of the same inputs taken by one world that was never loaded."""
    world = World()
    stepper = Stepper(world, Caches(world))
    world.blueprints.update(hand.world.blueprints)
    world.load(WORLD_OWNER, [hand.world.get(WORLD_OWNER, Seed)])
    digest, epoch = ORIGIN, 0
    for result in hand.results:
        made = stepper.step(result.inputs, result.now)
        if not made.is_empty:
            epoch = getattr(made.inputs[0], "epoch", epoch) if is_opening(made.inputs) else epoch
            digest = encode_step(
                digest,
                step=made.step,
                epoch=epoch,
                world_ms=made.now.world_ms,
                wall_ms=made.now.wall_ms,
                inputs=made.inputs,
                changes=made.changes,
                events=made.events,
            ).digest
    return digest


def is_opening(inputs: tuple[object, ...]) -> bool:
    return bool(inputs) and type(inputs[0]).__name__ == "HostOpened"


@given(
    fleet=LIMITS.map(lambda limits: limits and replace(limits, wall_ms=None)),
    limits=LIMITS,
    acts=st.lists(ACTS, min_size=1, max_size=60),
)
def test_no_history_passes_a_budget_and_a_replay_is_the_same(
    fleet: Limits | None, limits: Limits | None, acts: list[tuple[int, int, int]]
) -> None:
    policy = Policy(budget_output_tokens=OUTPUT, fleet_budget=fleet, breaker_failures=0)
    hand = Hand(policy=policy, prices=PRICES, tools=(*TOOLS, *AGENT_TOOLS))
    truth = Truth()
    for blueprint in (TALK, BOSS, LOOP):
        hand.spawn(blueprint, budget=limits, tree_budget=limits)
        check(hand, truth)
    for step in acts:
        act(hand, truth, step, limits)
        check(hand, truth)
    event("refused" if any("CallRefused" in str(r.events) for r in hand.results) else "all made")
    assert again(hand) == hand.digest
