"""``lev stats``: what the runs of a while cost, and how often they worked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, cast

from leviath.components.errors import RunNotFound
from leviath.components.money import usd_text
from leviath.engine.clock import RealClock
from leviath.lev.homes import home_of
from leviath.lev.text import plural, show, span, table
from leviath.persistence.store import Store
from leviath.persistence.store_rows import together

if TYPE_CHECKING:
    import argparse

    from leviath.persistence.store_queries import By
    from leviath.persistence.store_rows import Stats

_HEADS: Final = {"": "", "agent": "AGENT", "outcome": "OUTCOME", "model": "MODEL"}


def stats(arguments: argparse.Namespace) -> int:
    """0; also when no run ended in that time."""
    if arguments.plot is not None:
        from leviath.lev.stats_plot import check_plot_path

        check_plot_path(arguments.plot)
    home = home_of(arguments.home)
    path = home / "world.db"
    if not path.exists():
        raise RunNotFound(f"{home} holds no world; see --home")
    since_ms = None
    if arguments.since is not None:
        since_ms = RealClock().wall_ms() - arguments.since * 1_000
    by = cast("By", arguments.by or "")
    with Store.open(path) as store:
        found = store.stats(since_ms=since_ms, by=by)
    groups = found if by else []
    whole = together(found)
    if arguments.plot is not None:
        from leviath.lev.stats_plot import draw

        draw(arguments.plot, groups or [whole], by)
    if arguments.json:
        print(json.dumps(_document(whole, groups, by, since_ms), ensure_ascii=False, indent=2))
    else:
        show(_lines(whole, groups, by))
    return 0


def _document(whole: Stats, groups: list[Stats], by: By, since_ms: int | None) -> dict[str, object]:
    from msgspec.structs import asdict

    def row(stats: Stats) -> dict[str, object]:
        mean = stats.duration_ms // stats.timed if stats.timed else None
        return asdict(stats) | {
            "success_rate_ppm": stats.success_rate_ppm,
            "mean_duration_ms": mean,
        }

    return {
        "since_ms": since_ms,
        "by": by or None,
        "all": row(whole),
        "groups": [row(group) for group in groups],
    }


def cost_text(stats: Stats) -> str:
    """The known sum, and of how many runs it is not the whole."""
    known = f"${usd_text(stats.cost_nano_usd)}"
    if not stats.unpriced_runs:
        return known
    return f"{known} + unknown for {plural(stats.unpriced_runs, 'run')}"


def _lines(whole: Stats, groups: list[Stats], by: By) -> list[str]:
    if not whole.runs:
        return ["no run ended in that time"]
    head = [_HEADS[by] or "RUNS", "ENDED", "WORKED", "TURNS", "TOKENS", "MEAN", "COST"]
    rows = [head] + [_row(group) for group in groups]
    if not groups or len(groups) > 1:
        rows.append(_row(whole, name="all"))
    lines = table(rows, right=(1, 2, 3, 4, 5))
    if whole.unpriced:
        calls = plural(whole.unpriced, "call")
        lines.append(f"{calls} without a known cost: the sums are at least so much")
    return lines


def _row(stats: Stats, *, name: str = "") -> list[str]:
    tenths = stats.success_rate_ppm // 1_000
    return [
        name or stats.group or "-",
        f"{stats.runs:,}",
        f"{tenths // 10}.{tenths % 10} %",
        f"{stats.steps:,}",
        f"{stats.tokens:,}",
        "-" if not stats.timed else span(stats.duration_ms // stats.timed // 1_000),
        cost_text(stats),
    ]
