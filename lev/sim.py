"""``lev sim``: play a fleet in virtual time, and say what came of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from leviath.components.errors import ConfigError
from leviath.lev.sim_bar import Bar
from leviath.lev.sim_table import grid_lines, report_lines
from leviath.lev.text import note, show
from leviath.simulation.fleet_scenario import Scenario, bundled_names

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping


def sim(arguments: argparse.Namespace) -> int:
    """0 when the simulation was played. Raises ConfigError for a scenario with faults."""
    if arguments.list:
        return _list()
    if arguments.scenario is None:
        raise ConfigError("lev sim needs a scenario: a TOML file, or a name that --list shows")
    changes = dict(_change(text) for text in arguments.set)
    grid = _grid(arguments.sweep)
    if arguments.plot is not None:
        _check_plot(arguments.plot, is_sweep=bool(grid))
    if grid:
        return _sweep(arguments, changes, grid)
    from leviath.simulation.fleet import simulate

    scenario = _scenario(arguments.scenario, changes)
    with Bar(scenario.duration_ms) as bar:
        report = simulate(
            scenario,
            seed=arguments.seed,
            digest=arguments.digest,
            check=arguments.check,
            on_progress=bar.at,
        )
    if arguments.plot is not None:
        from leviath.lev.sim_plot import plot

        plot(report, arguments.plot)
        note(f"wrote {arguments.plot}")
    if arguments.json:
        print(report.json())
    else:
        show(report_lines(report))
    return 0


def _list() -> int:
    for name in bundled_names():
        print(f"{name:20}{Scenario.bundled(name).title}")
    return 0


def _scenario(source: str, changes: Mapping[str, object]) -> Scenario:
    from leviath.simulation.sweep import scenario_path

    return Scenario.load(scenario_path(source), changes)


def _change(text: str) -> tuple[str, object]:
    from leviath.simulation.sweep import parse_sweep

    key, values = parse_sweep(text)
    if len(values) != 1:
        raise ConfigError(f"--set {text!r} has {len(values)} values; --sweep takes several")
    return key, values[0]


def _grid(given: list[str]) -> dict[str, list[object]]:
    from leviath.simulation.sweep import parse_sweep

    grid: dict[str, list[object]] = {}
    for text in given:
        key, values = parse_sweep(text)
        if key in grid:
            raise ConfigError(f"--sweep {key} is given twice; list all values in one")
        grid[key] = values
    return grid


def _sweep(
    arguments: argparse.Namespace,
    changes: Mapping[str, object],
    grid: Mapping[str, list[object]],
) -> int:
    from leviath.simulation.sweep import sweep

    with Bar(0) as bar:
        played = sweep(
            arguments.scenario,
            {**{key: [value] for key, value in changes.items()}, **grid},
            seed=arguments.seed,
            processes=arguments.processes,
            on_done=bar.done,
        )
    rows = [({key: cell[key] for key in grid}, report) for cell, report in played]
    if arguments.json:
        body = [{"changes": cell, "report": json.loads(report.json())} for cell, report in rows]
        print(json.dumps(body, ensure_ascii=False, indent=2))
    else:
        show(grid_lines(rows))
    return 0


def _check_plot(path: str, *, is_sweep: bool) -> None:
    """Say what is wrong with a plot before the simulation is played, not after."""
    if is_sweep:
        raise ConfigError("--plot draws one simulation; leave out --sweep, or use --json")
    from leviath.lev.stats_plot import check_plot_path

    check_plot_path(path)
