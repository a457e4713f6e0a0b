"""A host of fifty runs in every state, for a test that kills it. ``python fleet.py HOME WORKDIR``.

Says ``ready`` when each run has come to where it stays, then waits to be killed.
"""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING

import trio
from engine_worlds import Counting, Gate, one, opened, priced, tool_call, until

from leviath.components.error_kind import ErrorKind
from leviath.components.run_status import RunStatus
from leviath.engine.tools import tool
from leviath.providers.scripted import Failure

if TYPE_CHECKING:
    from leviath.engine.ports import Provider
    from leviath.engine.run_handle import RunHandle
    from leviath.engine.tools import Tool

RUNS = 50
STATES = ("thinking", "calling", "asking", "paused", "complete", "error", "cancelled")
AGENT = one(name="talks")
SENDS = one("send", name="sends")
ASKS = one("send", name="asks", more='tool_permissions = { send = "ask" }')


@tool(effect="once", name="send")
async def hang() -> str:
    "Send, and never hear of it."
    await trio.sleep_forever()
    return ""


@tool(effect="once")
def send() -> str:
    "Send."
    return "sent"


def providers(*, thinks: bool) -> list[Provider]:
    """By state, what answers its runs; the thinking ones and the paused ones hear nothing yet."""
    quiet = Gate(priced("done"), name="thinking")
    if not thinks:
        quiet.open.set()
    calls = Counting(priced("", tool_call("send")), priced("done"))
    calls.name = "calling"
    answers = Counting(priced("done"))
    answers.name = "complete"
    refuses = Counting(Failure(kind=ErrorKind.BAD_REQUEST, message="no"))
    refuses.name = "error"
    return [quiet, calls, answers, refuses]


AGENTS = {"asking": ASKS, "calling": SENDS}
SERVED = {"asking": "calling", "paused": "thinking", "cancelled": "thinking"}
REST = {
    "thinking": RunStatus.RUNNING,
    "calling": RunStatus.RUNNING,
    "asking": RunStatus.WAITING_INPUT,
    "paused": RunStatus.PAUSED,
}


def stays(run: RunHandle, state: str) -> bool:
    """Whether the run has come to where it stays."""
    row = run.row()
    if state not in REST:
        return row.status == state and row.ended_ms is not None
    return run.status.status is REST[state] and (state != "calling" or row.tool_calls == 1)


async def host(home: str, workdir: str) -> None:
    """Start the runs, say so, and stay."""
    tools: list[Tool] = [hang]
    async with opened(home, providers(thinks=True), tools=tools) as world:
        for number, state in zip(range(RUNS), itertools.cycle(STATES), strict=False):
            agent = AGENTS.get(state, AGENT)
            model = f"{SERVED.get(state, state)}/m"
            key = f"{state}-{number}"
            run = await world.spawn(agent, task="x", model=model, key=key, workdir=workdir)
            if state == "paused":
                await run.pause(why="later")
            if state == "cancelled":
                await run.cancel()
            await until(lambda run=run, state=state: stays(run, state))  # type: ignore[misc]
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(host, sys.argv[1], sys.argv[2])
