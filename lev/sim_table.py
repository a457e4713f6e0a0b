"""A simulation's report as tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leviath.components.money import usd_text
from leviath.lev.text import plural, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leviath.simulation.report import Report, WaitRow

_ROWS_MAX: Final = 24
"""Rows of the history that are shown, evenly picked; --json has all."""
_CENT_NANO: Final = 10_000_000
UNPRICED: Final = "unpriced"


def wait_text(ms: int) -> str:
    """A time between two things: ``350ms``, ``2.5s``, ``3m20s``, ``4h05m``, ``2d03h``."""
    if ms < 1_000:
        return f"{ms}ms"
    tenths = (ms + 50) // 100
    if tenths < 600:
        return f"{tenths // 10}.{tenths % 10}s"
    seconds = (ms + 500) // 1_000
    for size, high, part, low in ((60, "m", 1, "s"), (3_600, "h", 60, "m")):
        if seconds < size * (60 if size == 60 else 24):
            return f"{seconds // size}{high}{seconds % size // part:02}{low}"
    return f"{seconds // 86_400}d{seconds % 86_400 // 3_600:02}h"


def cents(nano_usd: int) -> str:
    """Dollars with two decimals, rounded half up."""
    whole, part = divmod((nano_usd + _CENT_NANO // 2) // _CENT_NANO, 100)
    return f"{whole:,}.{part:02}"


def money_text(nano_usd: int, calls: int, unpriced: int) -> str:
    """What so many calls cost, of which some have no price: unknown is not zero."""
    if not unpriced:
        return cents(nano_usd)
    return UNPRICED if unpriced == calls else f"at least {cents(nano_usd)}"


def _spent(report: Report) -> tuple[str, bool]:
    """The sum of all calls, and whether no call has a price."""
    calls, unpriced = sum(row.calls for row in report.costs), unpriced_calls(report)
    return money_text(report.spent_nano_usd, calls, unpriced), 0 < calls == unpriced


def unpriced_calls(report: Report) -> int:
    """Calls whose cost is unknown."""
    return sum(row.unpriced for row in report.costs)


def report_lines(report: Report) -> list[str]:
    """The whole report."""
    lines = [
        report.title,
        f"seed {report.seed}, {wait_text(report.ended_ms)} simulated: "
        f"{plural(report.runs, 'run')}, {plural(report.turns, 'turn')}, "
        f"{plural(report.steps, 'step')}"
        + (f", {plural(report.crashes, 'crash', 'crashes')} of the host" if report.crashes else ""),
        "",
        *_history(report),
        "",
        *_slots(report),
        "",
        *_costs(report),
    ]
    for title, part in (
        ("failed model calls", _counts(report.errors)),
        ("tool calls", _tools(report)),
        ("runs were parked", _counts(report.parked)),
        ("not ended", _counts(report.unfinished)),
    ):
        if part:
            lines.append(f"{title}: {part}")
    if report.answers.count:
        lines.append(f"people answered {report.answers.count:,} times, {_waits(report.answers)}")
    if report.budget_nano_usd is not None:
        lines.append(_budget(report))
    if report.digest:
        lines.append(f"digest: {report.digest}")
    return lines


def _history(report: Report) -> list[str]:
    """Runs by status over time. Statuses that no run had are left out."""
    samples = report.samples
    if len(samples) > _ROWS_MAX:
        last = len(samples) - 1
        samples = tuple(samples[at * last // (_ROWS_MAX - 1)] for at in range(_ROWS_MAX))
    words = [
        word
        for word in report.statuses
        if any(sample.statuses[word] for sample in report.samples) or report.statuses[word]
    ]
    spent, is_unpriced = _spent(report)
    rows = [["time", *words, "in slots", "want one", "wait p99", "turns", "errors", "USD"]]
    rows += [
        [
            wait_text(sample.at_ms),
            *(f"{sample.statuses[word]:,}" for word in words),
            f"{sample.slots_in_use:,}",
            f"{sample.waiting_for_slot:,}",
            wait_text(sample.wait_p99_ms),
            f"{sample.turns:,}",
            f"{sample.errors:,}",
            UNPRICED if is_unpriced else cents(sample.spent_nano_usd),
        ]
        for sample in samples
    ]
    final = [f"{report.statuses[word]:,}" for word in words]
    errors = f"{sum(report.errors.values()):,}"
    rows.append(["end", *final, "", "", "", f"{report.turns:,}", errors, spent])
    return table(rows, right=range(len(rows[0])))


def _slots(report: Report) -> list[str]:
    head = ["model", "slots", "in use", "peak", "calls", "wait p50", "p90", "p99", "longest"]
    rows = [head]
    for row in report.slots:
        waits = row.waits
        rows.append(
            [
                f"{row.provider}/{row.model}",
                f"{row.cap:,}",
                f"{row.use_permille // 10}.{row.use_permille % 10} %",
                f"{row.peak:,}",
                f"{row.calls:,}",
                *map(wait_text, (waits.p50_ms, waits.p90_ms, waits.p99_ms, waits.max_ms)),
            ]
        )
    return table(rows, right=range(1, len(head)))


def _costs(report: Report) -> list[str]:
    head = ["cost", "calls", "prompt", "cached", "completion", "USD", "without a price"]
    rows = [head]
    rows += [
        [
            f"{row.provider}/{row.model}",
            f"{row.calls:,}",
            f"{row.prompt:,}",
            f"{row.cached:,}",
            f"{row.completion:,}",
            money_text(row.priced_nano_usd, row.calls, row.unpriced),
            f"{row.unpriced:,}",
        ]
        for row in report.costs
    ]
    return table(rows, right=range(1, len(head)))


def _counts(counts: Mapping[str, int]) -> str:
    shown = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count:,} {word}" for word, count in shown)


def _tools(report: Report) -> str:
    return ", ".join(
        f"{count:,} {tool} ({report.tool_errors.get(tool, 0):,} failed)"
        for tool, count in report.tool_calls.items()
    )


def _waits(waits: WaitRow) -> str:
    times = (waits.p50_ms, waits.p90_ms, waits.max_ms)
    return "after {} (p50), {} (p90), {} at most".format(*map(wait_text, times))


def _budget(report: Report) -> str:
    budget = usd_text(report.budget_nano_usd or 0)
    if report.budget_spent_ms is None:
        return f"the budget of ${budget} was enough"
    after = wait_text(report.budget_spent_ms)
    stopped = plural(report.budget_runs, "run")
    return f"the budget of ${budget} was spent after {after}: {stopped} stopped"


def grid_lines(played: Sequence[tuple[Mapping[str, object], Report]]) -> list[str]:
    """A sweep: one row a simulation, in the order of the grid."""
    keys = list(played[0][0])
    head = [
        *keys, "ended", "complete", "not ended", "turns", "wait p50", "p99", "longest", "in use",
        "errors", "USD",
    ]  # fmt: skip
    rows = [head]
    for changes, report in played:
        slots = max(report.slots, key=lambda row: row.calls, default=None)
        waits = [0, 0, 0] if slots is None else _three(slots.waits)
        use = 0 if slots is None else slots.use_permille
        rows.append(
            [
                *(str(changes[key]) for key in keys),
                wait_text(report.ended_ms),
                f"{report.statuses['complete']:,}",
                f"{sum(report.unfinished.values()):,}",
                f"{report.turns:,}",
                *map(wait_text, waits),
                f"{use // 10}.{use % 10} %",
                f"{sum(report.errors.values()):,}",
                _spent(report)[0],
            ]
        )
    return table(rows, right=range(len(head)))


def _three(waits: WaitRow) -> list[int]:
    return [waits.p50_ms, waits.p99_ms, waits.max_ms]
