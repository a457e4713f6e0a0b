"""``lev pause``, ``resume``, ``cancel`` and ``decide``, on a home that nobody hosts.

The home is opened without driving anything: the request becomes durable, and the next host acts on
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leviath.components.effects import Turn
from leviath.components.errors import Locked, RunConflict
from leviath.engine.world import open_world
from leviath.lev.budgets import budget_of, tree_budget_of
from leviath.lev.driving import drive
from leviath.lev.homes import home_of, run_in
from leviath.lev.run_parts import RunParts, read_run
from leviath.lev.text import home_option, note, one_line
from leviath.persistence.listing import ENDED

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from leviath.engine.run_handle import RunHandle

OPERATOR = "operator"
"""Who asked, as the run's record names it."""


def pause(arguments: argparse.Namespace) -> int:
    """Hold a run until it is resumed."""
    return ask_run(
        arguments, "paused", lambda run: run.pause(why=arguments.why, actor=OPERATOR), lasting=True
    )


def resume(arguments: argparse.Namespace) -> int:
    """Let a run go on."""
    own, tree = budget_of(arguments), tree_budget_of(arguments)
    return ask_run(
        arguments,
        "resumed",
        lambda run: run.resume(actor=OPERATOR, budget=own, tree_budget=tree),
    )


def cancel(arguments: argparse.Namespace) -> int:
    """End a run."""
    return ask_run(
        arguments,
        "cancelled",
        lambda run: run.cancel(why=arguments.why, actor=OPERATOR),
        lasting=True,
    )


def decide(arguments: argparse.Namespace) -> int:
    """Settle a call that waits for a person."""
    home = home_of(arguments.home)
    run_id = run_in(home, arguments.run)
    call = _call(read_run(home, run_id), arguments.call)
    verdict: str = arguments.verdict
    return ask_run(
        arguments,
        f"decided: {verdict}",
        lambda run: run.decide(call, verdict, actor=OPERATOR),
        lasting=verdict == "stop",
    )


def _call(parts: RunParts, given: str) -> str:
    """The id of the waiting call that ``given`` is, as it is or as ``lev show`` prints it."""
    turn = parts.find(Turn)
    waiting = () if turn is None else turn.calls
    ids = [call.call_id for call in waiting if call.state in ("asked", "unknown")]
    for call_id in ids:
        if given in (call_id, one_line(call_id)):
            return call_id
    run_id = parts.row.run_id
    if not ids:
        raise RunConflict(f"{run_id} has no call that waits for a decision", run_id=run_id)
    names = ", ".join(one_line(call_id) for call_id in ids)
    raise RunConflict(
        f"{run_id} has no call {one_line(given)!r} that waits for a decision; these wait: {names}"
    )


def ask_run(
    arguments: argparse.Namespace,
    done: str,
    ask: Callable[[RunHandle], Awaitable[None]],
    *,
    lasting: bool = False,
) -> int:
    """Carry out one request. ``lasting``: no host is needed for it to be complete."""
    home = home_of(arguments.home)
    run_id = run_in(home, arguments.run)
    _check(home, run_id, arguments.command)

    async def work() -> int:
        async with open_world(home, drive=False) as world:
            await ask(world.run(run_id))
        return 0

    code = asked_of(home, work)
    if code is None:
        return 1
    print(done)
    if not lasting:
        note(f"`lev host{home_option(arguments.home)}` drives it on")
    return code


def _check(home: Path, run_id: str, command: str) -> None:
    """Refuse what no host could do, before the home is opened."""
    row = read_run(home, run_id).row
    over = row.status in ENDED
    if over and (command != "resume" or row.status == "complete"):
        if command == "cancel" and row.status == "cancelled":
            return
        raise RunConflict(f"{run_id} has ended ({row.status}); there is nothing to {command}")


def asked_of(home: Path, work: Callable[[], Awaitable[int]]) -> int | None:
    """``drive(work)``, with an error that says what to do when the home has a host."""
    try:
        return drive(work)
    except Locked as error:
        pid = error.fields.get("pid") or 0
        who = f"process {pid} hosts {home}" if pid > 0 else f"a host has {home}"
        raise Locked(
            f"{who}; ask that process, or stop it and repeat this (its runs stay as they are)",
            home=str(home),
        ) from error
