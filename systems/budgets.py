"""Whether a model call may be made: what is left of the budgets of its run, its tree and the world.

A call is made only when the most that it may take fits into what is left of each, calls under way
counted. One that does not fit is refused: its stage ends in error, and an error edge may lead to
something cheaper. When that is refused as well, before anything was called, the run ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from leviath.components.budget import Allowance, FleetSpent, Hold, Limits, Reserved, TreeSpent
from leviath.components.context import Context
from leviath.components.effects import Effects, Inbox
from leviath.components.events import CallRefused
from leviath.components.identity import Launch
from leviath.components.money import amount_at_most, usd_text
from leviath.components.parts import WORLD_OWNER
from leviath.components.progress import Cost, Outcome, Stage, Visits
from leviath.components.run_status import RunStatus
from leviath.components.text import tokens_of
from leviath.components.world_facts import Offer, Prices
from leviath.systems.moves import end
from leviath.systems.reserves import Sums, held_of, own_spent, put_hold, root_of
from leviath.systems.stages import candidates_of, fail
from leviath.systems.views import view_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leviath.components.inputs import Resume
    from leviath.components.money import Rates
    from leviath.systems.run import Run, Tick
    from leviath.systems.world import World

ROUTING_OUTPUT_TOKENS: Final = 256
"""Longest answer to the question which edge to take."""
_CALL_TOKENS: Final = 512
"""Of a request, beside its texts: roles, names, a question."""
_TOOL_TOKENS: Final = 256
"""Of one tool's name, description and schema."""


class Refusal(msgspec.Struct, frozen=True):
    """Why a call is not made."""

    cause: str
    """As the run store's ``CAUSES`` name it."""
    message: str


class Need(msgspec.Struct, frozen=True):
    """The most that one call may take."""

    provider: str
    model: str
    prompt: int
    output: int
    nano_usd: int | None
    """None: its price is not known."""
    turns: int

    @property
    def tokens(self) -> int:
        return self.prompt + self.output


class Account(msgspec.Struct, frozen=True):
    """One budget that a run's calls draw from."""

    name: str
    cause: str
    limits: Limits
    spent: Sums
    held: Sums
    over_ms: int | None
    """World time at which it is over."""
    remedy: str

    def lacks(self, need: Need) -> Refusal | None:
        """Why what is left does not cover a call; None when it does."""
        limits, spent, held = self.limits, self.spent, self.held
        call = f"{need.prompt:,} prompt and {need.output:,} reply tokens of {need.model}"
        if limits.nano_usd is not None:
            if need.nano_usd is None:
                return Refusal(
                    "not_retryable",
                    f"the price of {need.model} at {need.provider} is not known, and {self.name} "
                    f"is in dollars: open the world with a price for "
                    f'"{need.provider}/{need.model}", then resume the run',
                )
            if spent.nano_usd + held.nano_usd + need.nano_usd > limits.nano_usd:
                return Refusal(
                    self.cause,
                    f"{self.name} of ${usd_text(limits.nano_usd)} does not cover the next call: "
                    f"${usd_text(spent.nano_usd)} is spent, ${usd_text(held.nano_usd)} set aside "
                    f"for calls under way, and this one may cost ${usd_text(need.nano_usd)} "
                    f"({call}); {self.remedy}",
                )
        if limits.tokens is not None and spent.tokens + held.tokens + need.tokens > limits.tokens:
            return Refusal(
                self.cause,
                f"{self.name} of {limits.tokens:,} tokens does not cover the next call: "
                f"{spent.tokens:,} are spent, {held.tokens:,} set aside for calls under way, and "
                f"this one may take {need.tokens:,} ({call}); {self.remedy}",
            )
        if limits.turns is not None and spent.turns + held.turns + need.turns > limits.turns:
            cause = "step_cap" if self.cause == "own_budget" else self.cause
            return Refusal(
                cause,
                f"{self.name} of {limits.turns:,} turn{'s' * (limits.turns > 1)} is spent: "
                f"{spent.turns:,} are taken, {held.turns:,} under way; {self.remedy}",
            )
        return None

    def is_over(self, world_ms: int) -> Refusal | None:
        """Why there is no time left; None when there is."""
        if self.over_ms is None or world_ms < self.over_ms:
            return None
        wall_ms = self.limits.wall_ms or 0
        return Refusal(
            "time_budget", f"{self.name} of {wall_ms / 1_000:,g} s is over; {self.remedy}"
        )


# --- what there is ------------------------------------------------------------------------------


def accounts(run: Run) -> Iterator[Account]:
    """The budgets that the run's calls draw from: its own, its tree's, the world's."""
    world, row = run.world, run.row
    allowance: Allowance | None = row.get(Allowance)
    reserved: Reserved | None = row.get(Reserved)
    if allowance is not None and allowance.own is not None:
        yield Account(
            "the run's budget",
            "own_budget",
            allowance.own,
            own_spent(row.get(Cost), row.get(Visits), reserved),
            held_of(reserved),
            _over_ms(allowance.own, allowance.own_since_ms),
            "resume the run with a larger one",
        )
    root = root_of(row, run.n)
    above = allowance if root == run.n else world.find(root, Allowance)
    if above is not None and above.tree is not None:
        spent = world.find(root, TreeSpent) or TreeSpent()
        name = world.run_id(root)
        yield Account(
            f"the budget of the tree of {name}",
            "shared_budget",
            above.tree,
            Sums(spent.nano_usd, spent.tokens, spent.turns),
            world.purses.trees.get(root) or Sums(),
            _over_ms(above.tree, above.tree_since_ms),
            f"resume {name} with a larger tree budget",
        )
    fleet = world.policy.fleet_budget
    if fleet is not None:
        known = world.find(WORLD_OWNER, FleetSpent) or FleetSpent()
        yield Account(
            "the fleet budget",
            "shared_budget",
            fleet,
            Sums(known.nano_usd, known.tokens, known.turns),
            world.purses.fleet,
            None,
            "open the world with a larger one, then resume the run",
        )


def _over_ms(limits: Limits, since_ms: int) -> int | None:
    return None if limits.wall_ms is None else since_ms + limits.wall_ms


def time_refusal(run: Run, world_ms: int) -> Refusal | None:
    """Why the run has no time left; None when it has."""
    for account in accounts(run):
        over = account.is_over(world_ms)
        if over is not None:
            return over
    return None


# --- what a call may take -----------------------------------------------------------------------


def rates_of(world: World, provider: str, model: str) -> Rates | None:
    """The recorded rates of a model; None when its price is not known."""
    prices = world.find(WORLD_OWNER, Prices)
    for row in () if prices is None else prices.rows:
        if row.provider == provider and row.model == model:
            return row.rates
    return None


def window_of(world: World, provider: str, model: str) -> int | None:
    """The context window of a model, as far as the host knows it."""
    offer = world.find(WORLD_OWNER, Offer)
    for known in () if offer is None else offer.contexts:
        if (known.provider, known.model) == (provider, model):
            return known.context_tokens
    return None


def need_of(run: Run, provider: str, model: str, *, is_routing: bool) -> Need:
    """An upper bound of the run's next call.

    The prompt is the engine's estimate of four bytes a token and half of it again, with something
    for each tool, and no less than the policy says; the reply is as long as the call may make it.
    """
    view = view_of(run)
    seen = {region.name for region in view.visible}
    tokens = sum(region.tokens for region in run.get(Context).regions if region.name in seen)
    inbox = run.find(Inbox)
    for message in () if inbox is None else inbox.messages:
        tokens += tokens_of(message.text.size_bytes)
    policy = run.world.policy
    prompt = tokens * 3 // 2 + _CALL_TOKENS
    if is_routing:
        output = ROUTING_OUTPUT_TOKENS
    else:
        prompt += _TOOL_TOKENS * len(view.tool_specs)
        output = view.spec.model.max_output_tokens or policy.budget_output_tokens
    prompt = max(prompt, policy.budget_prompt_tokens)
    window = window_of(run.world, provider, model)
    if window is not None:
        prompt, output = min(prompt, window), min(output, window)
    rates = rates_of(run.world, provider, model)
    nano = None if rates is None else amount_at_most(rates, prompt, output)
    return Need(provider, model, prompt, output, nano, 0 if is_routing else 1)


def refusal(run: Run, tick: Tick, need: Need) -> Refusal | None:
    """Why a call may not be made; None when every budget covers it."""
    for account in accounts(run):
        why = account.is_over(tick.now.world_ms) or account.lacks(need)
        if why is not None:
            return why
    return None


def reserve(
    run: Run, tick: Tick, effect: int, attempt: int, provider: str, model: str, *, is_routing: bool
) -> Refusal | None:
    """Set aside what an attempt may take, from every budget; else why it may not be made."""
    if not any(True for _ in accounts(run)):
        return None
    need = need_of(run, provider, model, is_routing=is_routing)
    why = refusal(run, tick, need)
    if why is None:
        put_hold(run, Hold(effect, attempt, need.nano_usd or 0, need.tokens, need.turns))
    return why


def refuse(run: Run, tick: Tick, why: Refusal) -> None:
    """The call is not made: the stage ends in error; the run, when nothing was called since the
    last refusal."""
    tick.events.append(
        CallRefused(tick.next_event, run.run_id, tick.now.wall_ms, why.cause, why.message)
    )
    effects = run.get(Effects)
    calls = [one for one in effects.items if one.kind in ("turn", "routing") and not one.live]
    if calls:
        run.put(replace(effects, items=tuple(one for one in effects.items if one not in calls)))
        visits = run.get(Visits)
        if calls[0].kind == "turn":
            run.put(replace(visits, turn_calls=visits.turn_calls + 1))
        else:
            run.put(replace(visits, routings=visits.routings + 1))
    reserved = run.find(Reserved) or Reserved()
    is_again = reserved.refused_at == effects.counter
    run.put(replace(reserved, refused_at=effects.counter))
    if is_again and run.status is RunStatus.RUNNING:
        outcome = Outcome("errored", why.message, why.cause)
        run.put(replace(run.get(Stage), outcome=outcome, asking=()))
        error, cause = why.message, why.cause
        end(run, tick, RunStatus.ERROR, error=error, why="budget spent", cause=cause)
    else:
        fail(run, tick, why.message, why.cause)


# --- raising ------------------------------------------------------------------------------------


def _merged(old: Limits | None, new: Limits | None) -> Limits | None:
    if old is None or new is None:
        return new or old
    return Limits(
        old.nano_usd if new.nano_usd is None else new.nano_usd,
        old.tokens if new.tokens is None else new.tokens,
        old.turns if new.turns is None else new.turns,
        old.wall_ms if new.wall_ms is None else new.wall_ms,
    )


def resume_with(run: Run, tick: Tick, ask: Resume) -> str:
    """Take over the budgets of a resume; "" when the run may go on with what it has.

    Else why not, and nothing is changed. A run that ended needs what its next call may take; one
    that is held may still have something to do that costs nothing.
    """
    allowance = run.find(Allowance)
    if ask.tree_budget is not None and root_of(run.row, run.n) != run.n:
        name = run.world.run_id(root_of(run.row, run.n))
        return f"{run.run_id} is not the root of its tree; raise the tree's budget at {name}"
    mark = run.world.mark()
    if ask.budget is not None or ask.tree_budget is not None:
        now, old = tick.now.world_ms, allowance or Allowance()
        cost, reserved = run.get(Cost), run.find(Reserved) or Reserved()
        run.put(
            Allowance(
                _merged(old.own, ask.budget),
                _merged(old.tree, ask.tree_budget),
                now if old.own is None else old.own_since_ms,
                now if old.tree is None else old.tree_since_ms,
            )
        )
        # What was lost before there was a budget counts with the bound that is known of it.
        lost = max(reserved.lost_nano, cost.upper_nano)
        run.put(replace(reserved, lost_nano=lost, refused_at=-1))
    why = _resume_refusal(run, tick)
    if why is not None:
        run.world.undo_to(mark)
        return f"{run.run_id} cannot go on: {why.message}"
    reserved = run.find(Reserved) or Reserved()
    if reserved.refused_at >= 0:
        run.put(replace(reserved, refused_at=-1))
    return ""


def _resume_refusal(run: Run, tick: Tick) -> Refusal | None:
    if not run.world.purses.armed:
        return None
    if not run.status.is_ended:
        return time_refusal(run, tick.now.world_ms)
    provider, model = candidates_of(run.world, run.get(Launch), run.stage_spec)[0]
    need = need_of(run, provider, model, is_routing=False)
    if need.nano_usd is None:
        # Who resumes a run need not know prices; who drives it has to.
        need = msgspec.structs.replace(need, nano_usd=1)
    return refusal(run, tick, need)
