"""An agent corrects a report and sends it; then the same with a host that is killed in the middle.

    python examples/demo/run.py [--keep FOLDER]

Everything happens in a temporary folder, or in FOLDER, which then stays to be looked at.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import trio

import leviath
from leviath import events

HERE = Path(__file__).resolve().parent
TASK = "Correct report.txt and send it"
SLOW = "server-is-slow"
"""While the workdir has a file of that name, sending takes for ever."""


@leviath.tool(effect="pure")
async def count_words(call: leviath.ToolCall, path: str) -> int:
    """Count the words of a file of the working folder."""
    file = trio.Path(call.workdir) / path
    if call.attempt == 1 and await (file.parent / SLOW).exists():
        await trio.sleep_forever()  # still counting when the host is killed
    return len((await file.read_text()).split())


def open_world(home: Path) -> AbstractAsyncContextManager[leviath.OpenWorld]:
    """The world of both halves: a home, one scripted model, and one function of this program."""
    script = leviath.Scripted(HERE / "replies.toml")
    return leviath.open_world(home, providers=[script], tools=[count_words])


async def spawn(world: leviath.OpenWorld, name: str, work: Path) -> leviath.RunHandle:
    """Start the agent, or find it again: the same key gives the same run, also after a restart."""
    agent = HERE / "agents" / "proofreader"
    return await world.spawn(agent, task=TASK, workdir=work, key=name, run_id=name)


def tell(event: events.WorldEvent) -> None:
    """Print an event, if it is one that a reader of a demonstration wants to see."""
    match event:
        case events.StageEntered():
            say(f"stage {event.stage}")
        case events.TurnFinished():
            tokens = event.prompt + event.completion + event.cached
            say(f"  turn {event.turn}: {tokens} tokens, tool calls: {event.tool_calls}")
        case events.ToolStarted():
            again = f" again (attempt {event.attempt})" if event.attempt > 1 else ""
            say(f"    {event.tool} sent{again}")
        case events.ToolEnded():
            note = f", {event.note}" if event.note else ""
            say(f"    {event.tool} {'failed' if event.is_error else 'done'}{note}")
        case events.CallUnknown():
            say(f"    {event.tool} may have happened")
        case events.StatusChanged() if event.waiting_on:
            say(f"  waiting: {event.why}")
        case events.Ended():
            say(f"{event.status} after {event.turns} turns")


def say(line: str) -> None:
    """Print a line at once: in the second half another process waits for it."""
    print(" ", line, flush=True)


def workdir(folder: Path, name: str) -> Path:
    """A working folder of its own, with the report and the script that sends it."""
    work = folder / name
    shutil.copytree(HERE / "work", work)
    return work


# --- the first half -----------------------------------------------------------------------------


async def first_half(folder: Path, work: Path) -> leviath.RunRow:
    """One run from its start to its end."""
    async with open_world(folder / "home") as world:
        run = await spawn(world, "first", work)
        async for event in run.events():
            tell(event)
        row = await run.wait()
        say(f"result: {run.result()}")
        return row


# --- the second half ----------------------------------------------------------------------------


async def host(folder: Path, work: Path) -> None:
    """What the process that is to be killed does: host the second run and print its events."""
    async with open_world(folder / "home") as world:
        run = await spawn(world, "second", work)
        async for event in run.events():
            tell(event)


def kill_in_the_middle(folder: Path, work: Path) -> None:
    """Host in another process; kill it when one call is done, one under way and one sent."""
    (work / SLOW).touch()
    command = [sys.executable, __file__, "--host", str(folder), str(work)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        waited_for = {"write_file done", "count_words sent", "shell sent"}
        while waited_for and (line := child.stdout.readline()):
            print(line, end="", flush=True)
            waited_for.discard(line.strip())
        wait_until("the report is sent", (work / "outbox.log").exists)
        child.send_signal(signal.SIGKILL)
        say(f"-- host killed by signal {-child.wait()}, one call done and two in flight --")
    sender = int((work / "send.pid").read_text())
    wait_until("its tools are gone", lambda: not is_alive(sender))
    say("nothing that its tools had started is alive")
    (work / SLOW).unlink()


def wait_until(what: str, holds: Callable[[], bool]) -> None:
    """Wait for something outside of leviath, ten seconds at most."""
    for _ in range(1000):
        if holds():
            return
        time.sleep(0.01)
    sys.exit(f"waited in vain until {what}")


def is_alive(pid: int) -> bool:
    """Whether there is such a process, zombies aside."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return not Path("/proc/self").exists()
    return stat.rpartition(")")[2].split()[0] != "Z"


async def restart(folder: Path, work: Path) -> leviath.RunRow:
    """A new host: what it finds in the journal, what it sends again, and what somebody decides."""
    opened_ms = time.time_ns() // 1_000_000
    is_new = False
    async with open_world(folder / "home") as world:
        run = await spawn(world, "second", work)
        async for event in run.events():
            if event.wall_ms >= opened_ms and not is_new:
                is_new = True
                say("-- all this was taken from the journal; what follows is new --")
            tell(event)
            if isinstance(event, events.CallUnknown):
                await decide(run, event, work)
        row = await run.wait()
        say(f"result: {run.result()}")
        return row


async def decide(run: leviath.RunHandle, event: events.CallUnknown, work: Path) -> None:
    """Settle a call that may have happened: look whether it did, and say so."""
    sent = (work / "outbox.log").exists()
    verdict = "done" if sent else "again"
    say(f"    outbox.log {'has' if sent else 'lacks'} the report, so we decide: {verdict}")
    await run.decide(event.call_id, verdict, actor="demo")


# --- both ---------------------------------------------------------------------------------------


def show_records(folder: Path, name: str) -> None:
    """What is on disk about a run, as any program may read it: no world is open here."""
    records = folder / "home" / "runs" / name
    meta = leviath.RunMeta.load(records / "meta.json")
    say(f"meta.json: {meta.status}, stage {meta.current_stage}, tool calls: {meta.tool_calls}")
    counts = (meta.prompt_tokens, meta.completion_tokens, meta.cached_tokens)
    say("           {} prompt + {} completion + {} cached".format(*counts))
    say(f"           = {sum(counts)} tokens: a cached one is in no other count")
    say(f"           {meta.cost_usd:.6f} dollars, exact: {meta.cost_is_exact}")
    say(f"final_output: {(records / 'final_output').read_text()}")
    say(f"also there: {', '.join(sorted(file.name for file in records.glob('st*')))}")


def compare(folder: Path, first: leviath.RunRow, second: leviath.RunRow) -> None:
    """The run that lost its host against the one that did not."""
    tokens = ("prompt_tokens", "completion_tokens", "cached_tokens", "cache_write_tokens")
    for name in ("status", "tool_calls", *tokens, "cost_priced_nano"):
        ours, theirs = getattr(first, name), getattr(second, name)
        say(f"{name}: {theirs}, {'as in the first half' if ours == theirs else f'not {ours}'}")
        if ours != theirs:
            sys.exit("the second half differs from the first")
    for name in ("report.txt", "receipt.txt", "outbox.log"):
        texts = [(folder / work / name).read_text() for work in ("work-1", "work-2")]
        say(f"{name}: {'as in the first half' if texts[0] == texts[1] else 'differs'}")
        if texts[0] != texts[1]:
            sys.exit("the second half differs from the first")


def demo(folder: Path) -> None:
    """Both halves."""
    print("1. An agent of three stages corrects a report and sends it")
    work = workdir(folder, "work-1")
    first = trio.run(first_half, folder, work)
    print("\n2. What is on disk about it")
    show_records(folder, "first")
    print("\n3. The same again, and its host is killed in the middle of a turn")
    work = workdir(folder, "work-2")
    kill_in_the_middle(folder, work)
    print("\n4. Another host opens the home: first what the journal has, then what comes")
    second = trio.run(restart, folder, work)
    print("\n5. What a killed host has cost")
    compare(folder, first, second)
    show_records(folder, "second")


def main() -> None:
    """Read the arguments and run what they ask for."""
    parser = argparse.ArgumentParser(description="An agent works, its host is killed, it finishes.")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="work there, and leave it")
    parser.add_argument("--host", nargs=2, metavar=("FOLDER", "WORK"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.host:
        folder, work = map(Path, options.host)
        trio.run(host, folder, work)
    elif options.keep:
        options.keep.mkdir(parents=True)
        demo(options.keep.resolve())
    else:
        with tempfile.TemporaryDirectory(prefix="leviath-demo-") as place:
            demo(Path(place).resolve())


if __name__ == "__main__":
    main()
