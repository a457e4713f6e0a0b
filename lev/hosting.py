"""``lev host``: drive every unfinished run of a home."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from leviath.engine.callbacks import HttpCallbacks
from leviath.engine.world import open_world
from leviath.lev.adapters import providers_of, tools_of
from leviath.lev.budgets import fleet_budget_of, prices_of
from leviath.lev.driving import Watch, drive, is_moving, status_of
from leviath.lev.homes import home_of
from leviath.lev.progress import Teller, tell_report, waiting_text
from leviath.lev.text import home_option, note, plural, show, table

if TYPE_CHECKING:
    import argparse

    from leviath.engine.world import OpenWorld

WAITING_SHOWN_MAX = 20


def host(arguments: argparse.Namespace) -> int:
    """0 when nothing is left that can move without a person, or after an ordered stop with
    ``--forever``; 1 when it was interrupted before."""
    home = home_of(arguments.home)
    providers, tools = providers_of(arguments), tools_of(arguments)
    callbacks = HttpCallbacks(allow_private=arguments.allow_private_callbacks)
    prices, fleet_budget = prices_of(arguments), fleet_budget_of(arguments)

    async def work() -> int:
        async with open_world(
            home,
            providers=providers,
            tools=tools,
            callbacks=callbacks,
            prices=prices,
            fleet_budget=fleet_budget,
        ) as world:
            tell_report(world.report)
            await _drive(world, arguments)
        return 0

    code = drive(work)
    if code is None:
        option = home_option(arguments.home)
        note(f"closed; the runs stay as they are: `lev host{option}` drives them on")
        return 0 if arguments.forever else 1
    return code


async def _drive(world: OpenWorld, arguments: argparse.Namespace) -> None:
    watch = Watch(world, Teller(quiet=arguments.quiet))
    async with trio.open_nursery() as nursery:
        await nursery.start(watch.follow)
        nursery.start_soon(watch.look_after_storage)
        # The first step takes what this host offers: runs that waited for it go on.
        for _ in range(2):
            await trio.lowlevel.checkpoint()
        runs = world.runs()
        moving = sum(1 for run in runs if is_moving(run))
        note(f"hosting {world.home}: {plural(moving, 'run')} to drive")
        while any(is_moving(run) for run in runs):
            await watch.until_at_rest(runs)
            # Runs may have come in meanwhile.
            runs = world.runs()
        if arguments.forever:
            note("nothing is left to drive; hosting on until interrupted")
            await trio.sleep_forever()
        nursery.cancel_scope.cancel()
    show(_summary(world, home_option(arguments.home)))


def _summary(world: OpenWorld, option: str) -> list[str]:
    """What is left, and what each of it waits for."""
    rows: list[list[str]] = []
    setup = False
    for run in world.runs():
        status = status_of(run)
        if status is None or status.status.is_ended:
            continue
        word = status.status.wire()
        if word == "waiting_input":
            setup = setup or bool(status.waiting and status.waiting.blocker == "provider_missing")
            rows.append([run.run_id, f"waits for {waiting_text(status.waiting)}"])
        elif word == "paused":
            rows.append([run.run_id, f"paused by {status.actor}{_why(status.why)}"])
        else:
            rows.append([run.run_id, word])
    rows += [[run.run_id, f"quarantined: {run.reason}"] for run in world.report.quarantined]
    if not rows:
        return ["nothing is left to drive"]
    lines = [f"{plural(len(rows), 'run')} left, none of which goes on without somebody:"]
    lines += table(rows[:WAITING_SHOWN_MAX])
    if len(rows) > WAITING_SHOWN_MAX:
        lines.append(f"+{len(rows) - WAITING_SHOWN_MAX} more: lev ps{option}")
    if setup:
        lines.append(
            f"give what is missing: lev host{option} with --script FILE, --providers MODULE:ATTR "
            "or --tools MODULE:ATTR"
        )
    lines.append(f"what settles one: lev show{option} RUN")
    return lines


def _why(why: str) -> str:
    return f": {why}" if why else ""
