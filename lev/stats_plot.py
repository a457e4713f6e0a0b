"""The picture of ``lev stats --plot``: cost and success by group. Needs the extra ``plot``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from leviath.components.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leviath.persistence.store_queries import By
    from leviath.persistence.store_rows import Stats

_FORMATS: Final = (".png", ".svg")
_GROUPS_MAX: Final = 30
"""Bars that can still be told apart; the dearest groups are shown."""


def check_plot_path(path: str) -> None:
    """Raise ConfigError for a picture that cannot be drawn, before any work is done."""
    if os.path.splitext(path)[1].lower() not in _FORMATS:
        raise ConfigError(f"{path} is no picture; name a file that ends in .png or .svg")
    try:
        import matplotlib as mpl  # noqa: F401 - whether it is there
    except ImportError:
        raise ConfigError(
            "a plot needs matplotlib, which is not installed; pip install 'leviath[plot]'"
        ) from None


def draw(path: str, groups: Sequence[Stats], by: By) -> None:
    """Draw the groups, the dearest first. Raises ConfigError, StorageError."""
    check_plot_path(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    shown = list(reversed(groups[:_GROUPS_MAX]))
    names = [group.group or "all" for group in shown]
    places = range(len(shown))
    # No date and a fixed salt: the same numbers make the same file.
    with rc_context({"svg.hashsalt": "leviath", "svg.fonttype": "none"}):
        figure = Figure(figsize=(10, 1.5 + 0.35 * len(shown)), layout="constrained")
        cost, worked = figure.subplots(1, 2, sharey=True)
        cost.barh(places, [group.cost_nano_usd / 1e9 for group in shown], color="#4477aa")
        cost.set_yticks(places, names)
        cost.set_xlabel("known cost, dollars")
        for place, group in zip(places, shown, strict=True):
            if group.unpriced_runs:
                cost.text(0, place, f" + unknown for {group.unpriced_runs}", va="center")
        worked.barh(places, [group.success_rate_ppm / 1e4 for group in shown], color="#228833")
        worked.set_xlim(0, 100)
        worked.set_xlabel("worked, percent of the runs that ended")
        figure.suptitle(f"{sum(group.runs for group in groups):,} runs by {by or 'all'}")
        try:
            figure.savefig(path, metadata={"Date": None} if path.lower().endswith(".svg") else None)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise StorageError(f"{path} cannot be written: {reason}", path=path) from error
