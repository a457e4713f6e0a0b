"""What is counted while a simulation goes on: events, ledger rows, and the times between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from leviath.components import events
from leviath.components.run_status import RunStatus
from leviath.simulation.report import CostRow, Report, Sample, SlotRow, WaitRow, quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from leviath.components.events import WorldEvent
    from leviath.systems.run import LedgerFact

STATUSES: Final = tuple(status.value for status in RunStatus)
SlotKey = tuple[str, str]


def _counts() -> dict[Any, int]:
    return {}


class SlotMeter(Struct):
    """The slots of one (provider, model)."""

    cap: int
    in_use: int = 0
    since_ms: int = 0
    """When ``in_use`` changed last."""
    busy_ms: int = 0
    """Slot milliseconds until then."""
    peak: int = 0
    calls: int = 0
    waits: dict[int, int] = field(default_factory=_counts)
    """How many calls waited for a slot so many milliseconds."""

    def change(self, now_ms: int, by: int) -> None:
        """So many more calls are outside from now on."""
        self.busy_ms += self.in_use * (now_ms - self.since_ms)
        self.since_ms = now_ms
        self.in_use += by
        self.peak = max(self.peak, self.in_use)


class Money(Struct):
    """The ledger of one (provider, model)."""

    calls: int = 0
    prompt: int = 0
    completion: int = 0
    cached: int = 0
    cache_write: int = 0
    priced_nano: int = 0
    unpriced: int = 0
    interrupted: int = 0


class Measures:
    """Everything a report is made of."""

    def __init__(self, sample_ms: int, budget_nano: int | None) -> None:
        self.statuses: dict[str, int] = dict.fromkeys(STATUSES, 0)
        self.spawned: int = 0
        self.steps = 0
        self.turns: int = 0
        self.crashes: int = 0
        self.errors: dict[str, int] = {}
        self.given_up: int = 0
        self.tool_calls: dict[str, int] = {}
        self.tool_errors: dict[str, int] = {}
        self.parked: dict[str, int] = {}
        self.answered: int = 0
        self.answer_waits: dict[int, int] = {}
        self.slots: dict[SlotKey, SlotMeter] = {}
        self.money: dict[SlotKey, Money] = {}
        self.spent_nano: int = 0
        self.budget_nano = budget_nano
        self.budget_spent_ms: int | None = None
        self.refused_runs: set[str] = set()
        self._now_ms = 0
        self.samples: list[Sample] = []
        self.next_sample_ms: int = 0
        self._sample_ms = sample_ms
        self._bucket: dict[int, int] = {}
        """Waits for a slot since the last sample."""
        self._handlers: dict[type, Callable[[Any], None]] = {
            events.Spawned: self._spawned,
            events.StatusChanged: self._moved,
            events.TurnFinished: self._turn,
            events.CallFailed: self._failed,
            events.CallRefused: self._refused,
            events.ToolEnded: self._tool,
        }

    # --- what happened --------------------------------------------------------------------------

    def take(self, now_ms: int, told: Iterable[WorldEvent], facts: Iterable[LedgerFact]) -> None:
        """Count the events and ledger rows of one step."""
        handlers = self._handlers
        self._now_ms = now_ms
        for event in told:
            handler = handlers.get(type(event))
            if handler is not None:
                handler(event)
        for fact in facts:
            self._charge(fact)

    def _spawned(self, event: events.Spawned) -> None:
        self.spawned += 1
        self.statuses["starting"] += 1

    def _moved(self, event: events.StatusChanged) -> None:
        self.statuses[event.previous] -= 1
        self.statuses[event.status] += 1
        if event.status == "waiting_input" and event.waiting_on:
            self.parked[event.waiting_on] = self.parked.get(event.waiting_on, 0) + 1

    def _turn(self, event: events.TurnFinished) -> None:
        self.turns += 1

    def _failed(self, event: events.CallFailed) -> None:
        self.errors[event.kind] = self.errors.get(event.kind, 0) + 1
        self.given_up += event.retry_in_ms is None

    def _refused(self, event: events.CallRefused) -> None:
        self.refused_runs.add(event.run_id)
        if self.budget_spent_ms is None:
            self.budget_spent_ms = self._now_ms

    def _tool(self, event: events.ToolEnded) -> None:
        self.tool_calls[event.tool] = self.tool_calls.get(event.tool, 0) + 1
        if event.is_error:
            self.tool_errors[event.tool] = self.tool_errors.get(event.tool, 0) + 1

    def _charge(self, fact: LedgerFact) -> None:
        key = (fact.provider, fact.model)
        money = self.money.get(key)
        if money is None:
            money = self.money[key] = Money()
        money.calls += 1
        money.prompt += fact.prompt
        money.completion += fact.completion
        money.cached += fact.cached
        money.cache_write += fact.cache_write
        if fact.nano_usd is None:
            money.unpriced += 1
            money.interrupted += fact.certainty == "interrupted"
            return
        money.priced_nano += fact.nano_usd
        self.spent_nano += fact.nano_usd

    def call_begins(self, now_ms: int, key: SlotKey, cap: int, waited_ms: int) -> None:
        """A run got a slot after so long."""
        meter = self.slots.get(key)
        if meter is None:
            meter = self.slots[key] = SlotMeter(cap)
        meter.calls += 1
        meter.waits[waited_ms] = meter.waits.get(waited_ms, 0) + 1
        self._bucket[waited_ms] = self._bucket.get(waited_ms, 0) + 1
        meter.change(now_ms, 1)

    def answered_after(self, waited_ms: int) -> None:
        """A person decided about a call."""
        self.answered += 1
        self.answer_waits[waited_ms] = self.answer_waits.get(waited_ms, 0) + 1

    def calls_lost(self, now_ms: int) -> None:
        """The host died: no call is outside any more."""
        self.crashes += 1
        for meter in self.slots.values():
            meter.change(now_ms, -meter.in_use)

    # --- what it looks like ---------------------------------------------------------------------

    def sample(self, at_ms: int, waiting: int) -> None:
        """Add a row to the history; so many runs stand ready for a slot."""
        self.samples.append(
            Sample(
                at_ms=at_ms,
                statuses=dict(self.statuses),
                slots_in_use=sum(meter.in_use for meter in self.slots.values()),
                waiting_for_slot=waiting,
                wait_p99_ms=quantile(self._bucket, 990),
                turns=self.turns,
                errors=sum(self.errors.values()),
                spent_nano_usd=self.spent_nano,
            )
        )
        self._bucket = {}
        self.next_sample_ms += self._sample_ms

    def report(
        self, title: str, seed: int, ended_ms: int, unfinished: dict[str, int], digest: str
    ) -> Report:
        """All of it, for people and programs."""
        slots: list[SlotRow] = []
        for (provider, model), meter in sorted(self.slots.items()):
            meter.change(ended_ms, 0)
            share = meter.busy_ms * 1_000 // max(1, ended_ms * meter.cap)
            waits = WaitRow.of(meter.waits)
            slots.append(SlotRow(provider, model, meter.cap, share, meter.peak, meter.calls, waits))
        costs = [
            CostRow(
                provider,
                model,
                money.calls,
                money.prompt,
                money.completion,
                money.cached,
                money.cache_write,
                money.priced_nano,
                money.unpriced,
                money.interrupted,
            )
            for (provider, model), money in sorted(self.money.items())
        ]
        return Report(
            title=title,
            seed=seed,
            ended_ms=ended_ms,
            runs=self.spawned,
            steps=self.steps,
            turns=self.turns,
            crashes=self.crashes,
            statuses=dict(self.statuses),
            unfinished=dict(sorted(unfinished.items())),
            slots=tuple(slots),
            costs=tuple(costs),
            spent_nano_usd=self.spent_nano,
            budget_nano_usd=self.budget_nano,
            budget_spent_ms=self.budget_spent_ms,
            budget_runs=len(self.refused_runs),
            errors=dict(sorted(self.errors.items())),
            given_up=self.given_up,
            tool_calls=dict(sorted(self.tool_calls.items())),
            tool_errors=dict(sorted(self.tool_errors.items())),
            parked=dict(sorted(self.parked.items())),
            answers=WaitRow.of(self.answer_waits),
            samples=tuple(self.samples),
            digest=digest,
        )
