"""``lev gc``: retention of ended runs, by age and by count.

A run that has not ended is never touched, nor is a folder that no run is known for: unreadable is
not ended. A run leaves ``world.db`` first and durably, which also says that its folder has to go;
interrupted in between, the next opening of the home finishes that.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from leviath.components.errors import ConfigError, LevError, RunNotFound
from leviath.engine.clock import RealClock
from leviath.engine.world import open_world
from leviath.lev.control import asked_of
from leviath.lev.homes import home_of
from leviath.lev.text import age, note, plural, show, table
from leviath.persistence.listing import EndedRun, Listing

if TYPE_CHECKING:
    import argparse


def gc(arguments: argparse.Namespace) -> int:
    """0 when everything that was to go has gone; 1 when something had to stay."""
    runs_go = arguments.older_than is not None or arguments.keep is not None
    if not runs_go and arguments.history is None:
        raise ConfigError("say what may go: --older-than SPAN, --keep N, --history STEPS")
    home = home_of(arguments.home)
    now_ms = RealClock().wall_ms()
    listing = Listing.open(home)
    if listing is None:
        raise RunNotFound(f"{home} holds no world; see --home")
    with listing:
        going: list[EndedRun] = []
        if runs_go:
            going = due(listing.ended(), now_ms, arguments.older_than, arguments.keep)
    if arguments.dry_run or not (going or arguments.history is not None):
        rows = [[run.run_id, run.status, f"ended {age(run.ended_ms, now_ms)} ago"] for run in going]
        show(
            [*table(rows), f"{plural(len(going), 'run')} would go"]
            if going
            else ["nothing to remove"]
        )
        return 0
    gone: list[str] = []

    async def work() -> int:
        async with open_world(home, drive=False, history=arguments.history) as world:
            for run in going:
                try:
                    await world.run(run.run_id).forget()
                except LevError as error:
                    note(f"{run.run_id} stays: {error}")
                else:
                    gone.append(run.run_id)
        return 0

    code = asked_of(home, work)
    for run_id in gone:
        if os.path.lexists(home / "runs" / run_id):
            note(f"the folder of {run_id} stays for now; the next host of the home removes it")
    print(f"removed {plural(len(gone), 'run')}")
    return 1 if code is None or len(gone) < len(going) else 0


def due(
    ended: list[EndedRun], now_ms: int, older_than_s: int | None, keep: int | None
) -> list[EndedRun]:
    """Which of the ended runs (newest ending first) may go: old enough, not among those to keep."""
    rest = ended[keep:] if keep else ended
    if older_than_s is None:
        return rest
    return [run for run in rest if run.ended_ms <= now_ms - older_than_s * 1_000]
