"""One scenario many times, with some of its values changed: a grid, played by several processes."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Final

from leviath.components.errors import ConfigError
from leviath.simulation.fleet import simulate
from leviath.simulation.fleet_reader import bundled_path, changed, load_table, read_scenario
from leviath.simulation.fleet_scenario import bundled_names
from leviath.simulation.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable

CELLS_MAX: Final = 10_000
"""Simulations of one sweep: beyond it a grid is a typing error."""
Changes = dict[str, object]
Cell = tuple[dict[str, object], str, str, int | None]
"""(table, place, folder, seed): plain values, since they go to another process."""


def sweep(
    source: str | os.PathLike[str],
    grid: Mapping[str, Sequence[object]],
    *,
    seed: int | None = None,
    processes: int | None = None,
    on_done: Callable[[int, int], None] | None = None,
) -> list[tuple[Changes, Report]]:
    """Play a scenario once for each combination of values.

    ``source`` is a file or the name of a bundled scenario, ``grid`` gives values by dotted key; the
    last key changes fastest. Returns (changes, report) in the order of the grid, however many
    ``processes`` play it (default: one a processor). ``on_done`` is called with how many of how
    many are done. All combinations are read before the first is played: ConfigError names the
    faulty one. When the caller is interrupted, nothing is kept of those under way.
    """
    cells = _cells(source, grid, seed)
    workers = max(1, min(processes or os.cpu_count() or 1, len(cells)))
    if workers == 1:
        reports: list[Report] = []
        for _, cell in cells:
            reports.append(Report.of_json(_play(cell)))
            if on_done is not None:
                on_done(len(reports), len(cells))
    else:
        reports = _play_all([cell for _, cell in cells], workers, on_done)
    return [(changes, report) for (changes, _), report in zip(cells, reports, strict=True)]


def scenario_path(source: str | os.PathLike[str]) -> Path:
    """The file of that path, or of the bundled scenario of that name."""
    path = Path(source)
    if str(source) in bundled_names() and not path.exists():
        return bundled_path(str(source))
    return path


def _cells(
    source: str | os.PathLike[str], grid: Mapping[str, Sequence[object]], seed: int | None
) -> list[tuple[Changes, Cell]]:
    path = scenario_path(source)
    count = 1
    for key, values in grid.items():
        if not values:
            raise ConfigError(f"sweep {key!r} has no values; write key=value,value")
        count *= len(values)
    if count > CELLS_MAX:
        raise ConfigError(f"a sweep of {count:,} simulations is too large; {CELLS_MAX:,} at most")
    table = load_table(path)
    cells: list[tuple[Changes, Cell]] = []
    for values in itertools.product(*grid.values()):
        changes = dict(zip(grid, values, strict=True))
        shown = ", ".join(f"{key}={value}" for key, value in changes.items())
        place = f"{path} with {shown}" if changes else str(path)
        cell = changed(table, changes, place)
        read_scenario(cell, place=place, folder=path.parent)
        cells.append((changes, (cell, place, str(path.parent), seed)))
    return cells


def _play(cell: Cell) -> bytes:
    table, place, folder, seed = cell
    scenario = read_scenario(table, place=place, folder=Path(folder))
    return simulate(scenario, seed=seed).json().encode()


def _play_all(
    cells: list[Cell], workers: int, on_done: Callable[[int, int], None] | None
) -> list[Report]:
    # A child of fork would have this process's threads and locks as they stood.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures: list[Future[bytes]] = [pool.submit(_play, cell) for cell in cells]
        try:
            for done, _ in enumerate(as_completed(futures), start=1):
                if on_done is not None:
                    on_done(done, len(cells))
            return [Report.of_json(future.result()) for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def parse_sweep(text: str) -> tuple[str, list[object]]:
    """The key and the values of ``key=a,b,c``. A value is read as TOML, else taken as a text.

    Raises ConfigError for anything else.
    """
    key, equals, rest = text.partition("=")
    words = [word.strip() for word in rest.split(",")]
    if not key or not equals or not all(words):
        raise ConfigError(f"{text!r} is no sweep; write key=value,value")
    return key, [_value(word) for word in words]


def _value(word: str) -> object:
    try:
        return tomllib.loads(f"value = {word}")["value"]
    except tomllib.TOMLDecodeError:
        return word
