"""A simulation's report as a picture. matplotlib is imported when asked for.

The same report gives the same SVG, byte for byte, with the same matplotlib.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leviath.components.errors import StorageError
from leviath.lev.sim_table import unpriced_calls
from leviath.lev.stats_plot import check_plot_path

if TYPE_CHECKING:
    from leviath.simulation.report import Report

_COLORS: Final = {
    "starting": "#b8c4d6",
    "running": "#2f6db5",
    "waiting_input": "#e0a526",
    "paused": "#8f8f8f",
    "complete": "#4c9a5a",
    "complete_interactive": "#8cc79a",
    "error": "#c0392b",
    "cancelled": "#6b4a7a",
}
_HOUR_MS: Final = 3_600_000
_MINUTE_MS: Final = 60_000
_DAY_MS: Final = 86_400_000


def plot(report: Report, path: str) -> None:
    """Draw runs by status, slots, waits and cost over time into a .png or .svg file.

    Raises ConfigError, StorageError.
    """
    check_plot_path(path)
    from matplotlib import rc_context  # pyright: ignore[reportUnknownVariableType] - its stubs
    from matplotlib.figure import Figure

    # Ids within an SVG come from this salt instead of a random one.
    with rc_context({"svg.hashsalt": "leviath", "font.size": 8}):
        figure: Any = Figure(figsize=(9, 9), layout="constrained")
        axes: Any = figure.subplots(4, 1, sharex=True)
        _draw(report, axes)
        figure.suptitle(f"{report.title} (seed {report.seed})")
        metadata = {"Date": None} if path.lower().endswith(".svg") else None
        try:
            figure.savefig(path, dpi=120, metadata=metadata)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise StorageError(f"{path} cannot be written: {reason}", path=path) from error


def _draw(report: Report, axes: Any) -> None:
    unit_ms, unit = _unit(report.ended_ms)
    samples = report.samples
    times = [sample.at_ms / unit_ms for sample in samples]
    by_status, slots, waits, cost = axes
    words = [word for word in report.statuses if any(sample.statuses[word] for sample in samples)]
    if words:
        layers = [[sample.statuses[word] for sample in samples] for word in words]
        by_status.stackplot(times, layers, labels=words, colors=[_COLORS[word] for word in words])
        by_status.legend(loc="upper left", ncols=len(words))
    by_status.set_ylabel("runs")
    slots.plot(times, [sample.slots_in_use for sample in samples], label="in a slot")
    slots.plot(times, [sample.waiting_for_slot for sample in samples], label="wants one")
    caps: dict[int, list[str]] = {}
    for row in report.slots:
        caps.setdefault(row.cap, []).append(f"{row.provider}/{row.model}")
    for cap, names in caps.items():
        slots.axhline(cap, linestyle=":", linewidth=0.8, color="#888888")
        slots.annotate(", ".join(names), (0, cap), fontsize=6, va="bottom")
    slots.legend(loc="upper right")
    slots.set_ylabel("calls")
    waits.plot(times, [sample.wait_p99_ms / 1_000 for sample in samples], color="#b5532f")
    waits.set_ylabel("wait for a slot\np99, seconds")
    cost.plot(times, [sample.spent_nano_usd / 10**9 for sample in samples], color="#4c9a5a")
    if report.budget_nano_usd is not None:
        cost.axhline(report.budget_nano_usd / 10**9, linestyle=":", color="#c0392b")
    cost.set_ylabel("USD, of calls with a price" if unpriced_calls(report) else "USD")
    cost.set_xlabel(unit)


def _unit(ended_ms: int) -> tuple[int, str]:
    if ended_ms > 3 * _DAY_MS:
        return _DAY_MS, "days"
    return (_HOUR_MS, "hours") if ended_ms > 3 * _HOUR_MS else (_MINUTE_MS, "minutes")
