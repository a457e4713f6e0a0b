"""``lev replay``: run a saved world again, and say where it comes out otherwise."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from leviath.lev.text import many_lines, note, plural, show
from leviath.persistence.history import facts
from leviath.simulation.replay import accept
from leviath.simulation.replay import replay as replay_world

if TYPE_CHECKING:
    import argparse

    from leviath.simulation.replay import Difference, ReplayReport

_VALUE_MAX = 2_000
"""Characters of a value that a person is shown; ``--json`` has all of it."""


def replay(arguments: argparse.Namespace) -> int:
    """0 when all is the same or was accepted, 1 at a difference."""
    if arguments.accept:
        report = accept(arguments.path)
    else:
        report = replay_world(arguments.path, upto=arguments.upto)
    accepted = arguments.accept and not report.same
    if arguments.json:
        print(json.dumps(_document(report, accepted=accepted), ensure_ascii=False, indent=2))
    else:
        show(_lines(report))
    if accepted:
        note(f"{report.path}: what rules {report.rules_now} do with it is expected from now on")
    return 0 if report.same or accepted else 1


def _document(report: ReplayReport, *, accepted: bool) -> dict[str, object]:
    first = report.first
    return {
        "path": report.path,
        "world_id": report.world_id,
        "same": report.same,
        "accepted": accepted,
        "first_step": report.base + 1,
        "last_step": report.last,
        "digest": report.digest,
        "rules": report.rules_now,
        "first_difference": None if first is None else _difference(first),
    }


def _difference(first: Difference) -> dict[str, object]:
    return {
        "step": first.step,
        "world_ms": first.world_ms,
        "run_id": first.run_id or None,
        "component": first.component,
        "old": facts(first.old),
        "new": facts(first.new),
        "rules_recorded": first.rules_recorded,
        "rules_now": first.rules_now,
    }


def _lines(report: ReplayReport) -> list[str]:
    first = report.first
    if first is None:
        return [f"same: {plural(report.steps, 'step')}, digest {report.digest}"]
    where = first.run_id or "the world itself"
    what = "rules changed" if first.rules_changed else "differs"
    lines = [f"{what}: step {first.step} at {first.world_ms:,} ms, {where}, {first.component}"]
    if first.rules_changed:
        recorded = first.rules_recorded or "unknown"
        lines.append(f"  rules: {recorded} when it was recorded, {first.rules_now} now")
    for name, value in (("old", first.old), ("new", first.new)):
        lines.append(f"  {name}: {value_text(value)}")
    return lines


def value_text(value: object) -> str:
    """A component on one line, cut where a person stops reading."""
    text = "-" if value is None else json.dumps(facts(value), ensure_ascii=False)
    return many_lines(text if len(text) <= _VALUE_MAX else text[:_VALUE_MAX] + "…")
