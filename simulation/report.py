"""What came of a simulation: plain numbers, for a table, a plot or a program."""

from __future__ import annotations

import msgspec
from msgspec import Struct


def quantile(counts: dict[int, int], permille: int) -> int:
    """The least value that so many of a thousand do not exceed; 0 for none. By value: count."""
    left = -(-sum(counts.values()) * permille // 1_000)
    for value in sorted(counts):
        left -= counts[value]
        if left <= 0:
            return value
    return 0


class WaitRow(Struct, frozen=True):
    """How long something waited, in milliseconds."""

    count: int = 0
    mean_ms: int = 0
    p50_ms: int = 0
    p90_ms: int = 0
    p99_ms: int = 0
    max_ms: int = 0

    @classmethod
    def of(cls, counts: dict[int, int]) -> WaitRow:
        """From how often each wait was seen."""
        total = sum(counts.values())
        if not total:
            return cls()
        mean = sum(value * times for value, times in counts.items()) // total
        p50, p90, p99 = (quantile(counts, permille) for permille in (500, 900, 990))
        return cls(total, mean, p50, p90, p99, max(counts))


class SlotRow(Struct, frozen=True):
    """The slots of one (provider, model)."""

    provider: str
    model: str
    cap: int
    use_permille: int
    """Of all slots over all the time."""
    peak: int
    calls: int
    waits: WaitRow
    """Of calls for a slot."""


class CostRow(Struct, frozen=True):
    """The ledger of one (provider, model)."""

    provider: str
    model: str
    calls: int
    prompt: int
    completion: int
    cached: int
    cache_write: int
    priced_nano_usd: int
    unpriced: int
    """Calls without a price, interrupted ones included; they are not in the sum."""
    interrupted: int


class Sample(Struct, frozen=True, kw_only=True):
    """The fleet at one time."""

    at_ms: int
    statuses: dict[str, int]
    slots_in_use: int
    waiting_for_slot: int
    wait_p99_ms: int
    """Of the calls that got a slot since the sample before."""
    turns: int
    """So far, like the two below."""
    errors: int
    spent_nano_usd: int


class Report(Struct, frozen=True, kw_only=True):
    """Everything that a simulation says. Equal seeds give equal reports, on any machine."""

    title: str
    seed: int
    ended_ms: int
    runs: int
    steps: int
    turns: int
    crashes: int
    statuses: dict[str, int]
    """Runs by the status that they have at the end."""
    unfinished: dict[str, int]
    """Runs that have not ended, by what they wait for."""
    slots: tuple[SlotRow, ...]
    costs: tuple[CostRow, ...]
    spent_nano_usd: int
    """Of calls with a price."""
    budget_nano_usd: int | None
    budget_spent_ms: int | None
    """When it first did not cover a call; None for never, or without one."""
    budget_runs: int
    """Runs with a call that it did not cover: they ended, unless an edge took the error."""
    errors: dict[str, int]
    """Failed attempts at model calls, by kind."""
    given_up: int
    """Failed attempts after which the model was not tried again."""
    tool_calls: dict[str, int]
    tool_errors: dict[str, int]
    parked: dict[str, int]
    """How often a run was parked, by what it waited for."""
    answers: WaitRow
    """Decisions of people: from the question to the answer."""
    samples: tuple[Sample, ...]
    digest: str = ""
    """Of the chain of all steps, in hexadecimal; empty unless it was asked for."""

    def json(self) -> str:
        """The report as one JSON document, the same bytes for equal reports."""
        return msgspec.json.format(msgspec.json.encode(self, order="deterministic")).decode()

    @staticmethod
    def of_json(text: str | bytes) -> Report:
        """The report that ``json`` wrote. Raises msgspec.DecodeError for anything else."""
        return msgspec.json.decode(text, type=Report)
