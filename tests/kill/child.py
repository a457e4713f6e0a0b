"""The process that is killed: hosts some runs until none of them can move, and tells what it hears.

What it was told durably it appends to files, one write a line, before it goes on. Run as a program
it forks a life for each line of its input, so that none has to import everything.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import trio

from leviath.components.run_status import RunStatus
from leviath.engine.blueprints import parse_blueprint
from leviath.engine.opening import Durability
from leviath.engine.tools import ToolCall, tool
from leviath.engine.world import OpenWorld, open_world
from leviath.providers.scripted import Reply, Scripted, Usage, tool_call

if TYPE_CHECKING:
    from leviath.engine.listening import EventStream
    from leviath.engine.tools import Tool

RUNS = 6
ROUNDS = 4
LATENCY_MS = 2

_STAGE = """
[stages.{name}]
available_tools = ["look", "put", "send", "send_slowly", "submit_output"]
{edge}
[stages.{name}.model]
models = [{{ provider = "scripted", model = "m" }}]
"""
_NEXT = '[[stages.{name}.edges]]\nto = "{to}"'
AGENT = parse_blueprint(
    '[agent]\nname = "killed"\n'
    + "".join(
        _STAGE.format(name=name, edge=_NEXT.format(name=name, to=to) if to else "")
        for name, to in (("plan", "work"), ("work", "report"), ("report", ""))
    ),
    where="killed",
)


def script() -> Scripted:
    """Three stages with tools of all classes, each reply with its own tokens and price."""
    replies = [(tool_call("look", what="a"), tool_call("put", what="b")), ()]
    for number in range(ROUNDS):
        what = str(number)
        replies.append((tool_call("send", what=what), tool_call("look", what=what)))
        replies.append((tool_call("put", what=what), tool_call("send_slowly", what=what)))
    replies += [(), (tool_call("submit_output", content="the result"),), ()]
    return Scripted.of(
        *(
            Reply(
                text=f"turn {number}",
                calls=calls,
                usage=Usage(prompt=100 + number, completion=number, cached=7),
                cost_nano_usd=1_000_000 + number,
                delay_ms=LATENCY_MS,
            )
            for number, calls in enumerate(replies)
        )
    )


def append(path: Path, line: bytes) -> None:
    """One write: a killed process leaves a whole line or none."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, line + b"\n")
    finally:
        os.close(fd)


async def while_others_go_on() -> None:
    """A few milliseconds in which the process may be killed."""
    for _ in range(100):
        await trio.lowlevel.checkpoint()


def tools(folder: Path) -> list[Tool]:
    """Tools of all three classes; each leaves a line with its key."""

    def note(call: ToolCall) -> None:
        append(folder / "effects", f"{call.tool} {call.idempotency_key} {call.call_id}".encode())

    @tool(effect="pure")
    def look(what: str, call: ToolCall) -> str:
        "Look."
        note(call)
        return what

    @tool(effect="idempotent")
    def put(what: str, call: ToolCall) -> str:
        "Put."
        note(call)
        return what

    @tool(effect="once")
    def send(what: str, call: ToolCall) -> str:
        "Send."
        note(call)
        return what

    @tool(effect="once")
    async def send_slowly(what: str, call: ToolCall) -> str:
        "Send slowly."
        await while_others_go_on()
        note(call)
        await while_others_go_on()
        return what

    return [look, put, send, send_slowly]


def cannot_move(world: OpenWorld) -> bool:
    """Every run has ended or waits for a person."""
    for run in world.runs():
        status = run.status.status
        if not status.is_ended and status is not RunStatus.WAITING_INPUT:
            return False
    return True


class Life(msgspec.Struct):
    """What one process shall do: host ``home`` until nothing can move, or be killed before."""

    home: str
    folder: str
    level: Durability
    life_s: float | None


def serve() -> None:
    """Fork a life for each line of the input; say how it ended: 0, or minus the signal."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    decode = msgspec.json.Decoder(Life).decode
    for line in sys.stdin:
        life = decode(line)
        pid = os.fork()
        if not pid:
            code = 1
            try:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
                trio.run(_main, Path(life.home), Path(life.folder), life.level)
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        if life.life_s is None:
            signal.sigwait([signal.SIGCHLD])
        elif signal.sigtimedwait([signal.SIGCHLD], life.life_s) is None:
            os.kill(pid, signal.SIGKILL)
            signal.sigwait([signal.SIGCHLD])
        status = os.waitpid(pid, 0)[1]
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


async def _main(home: Path, folder: Path, level: Durability) -> None:
    encode = msgspec.json.encode
    async with open_world(
        home,
        providers=[script()],
        tools=tools(folder),
        durability=level,
        builtins=False,
        grace_ms=0,
    ) as world:
        assert not world._opened.loaded.quarantined
        events = world.events()
        for number in range(RUNS):
            key = f"run-{number}"
            run = await world.spawn(AGENT, task="go", key=key, yolo=number % 2 == 1, workdir=folder)
            append(folder / "spawned", f"{key} {run.run_id}".encode())
        if await is_quiet(world, events):
            return
        async for event in events:
            append(folder / "heard", encode(event))
            if await is_quiet(world, events):
                return


async def is_quiet(world: OpenWorld, events: EventStream) -> bool:
    """Nothing can move any more, and all of it was heard."""
    if events._has_more or not cannot_move(world):
        return False
    await world._host.until_durable(world._host.step)
    return not events._has_more and cannot_move(world)


if __name__ == "__main__":
    serve()
