"""shell: run a command in the workdir, with everything it starts gone afterwards.

A shell is not confined to the workdir: it may do what the user of the host may do. It does not see
the host's environment, which may hold keys, but ENVIRONMENT_NAMES of it.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Final, Self

import msgspec
import trio
from msgspec import Struct

from leviath.components.clean import clean_text
from leviath.components.errors import ToolError
from leviath.engine.limits import (
    TOOL_GROUP_KILL_MS,
    TOOL_RESULT_INLINE_BYTES_MAX,
    TOOL_SPILL_BYTES_MAX,
)
from leviath.engine.redaction import HIDDEN
from leviath.engine.toolbox import supervisor
from leviath.engine.toolbox.call import ToolCall, ToolResult
from leviath.engine.toolbox.confine import tool_error
from leviath.engine.toolbox.leftovers import kill_leftovers
from leviath.engine.toolbox.spill import (
    NOTE_BYTES_MAX,
    SIDE_BYTES_MAX,
    cut_note,
    inline_text,
    make_private_dir,
    spill_name,
    spill_path,
)
from leviath.engine.tools import tool

ENVIRONMENT_NAMES: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TERM", "TMPDIR")
"""What a command sees of the host's environment: where things are and how text is written."""
COMMAND_BYTES_MAX: Final = 100_000
"""Linux takes 128 KiB in one argument."""
_INLINE_BYTES_MAX: Final = TOOL_RESULT_INLINE_BYTES_MAX - NOTE_BYTES_MAX
_SUPERVISOR: Final = os.path.abspath(supervisor.__file__)

assert (
    supervisor.PARENT_CHECK_MS + sum(supervisor.TERM_WAITS_MS) + sum(supervisor.KILL_WAITS_MS)
    < TOOL_GROUP_KILL_MS
)
assert HIDDEN.encode() == supervisor.HIDDEN


class Finished(Struct, frozen=True):
    """How a supervised command ended, and what is left of its output in memory."""

    report: supervisor.Report
    head: bytes
    tail: bytes
    late: bool
    """The deadline passed; it was killed."""


@tool(effect="once")
async def shell(
    call: ToolCall,
    command: Annotated[str, "A command line for /bin/sh; it may span several lines."],
    timeout_ms: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None, "Kill it after this many milliseconds."
    ] = None,
) -> ToolResult:
    """Run a command in the working folder; gives its output and exit code.

    Nothing it starts in the background outlives it. There is no standard input.
    """
    if "\0" in command or len(clean_text(command).encode()) > COMMAND_BYTES_MAX:
        raise ToolError(f"the command must have no NUL and at most {COMMAND_BYTES_MAX} bytes")
    budget_ms = call.deadline_ms if timeout_ms is None else min(timeout_ms, call.deadline_ms)
    argv = ["/bin/sh", "-c", clean_text(command)]
    finished = await run_supervised(argv, call, budget_ms)
    return _result(finished, call, budget_ms)


async def run_supervised(argv: Sequence[str], call: ToolCall, deadline_ms: int) -> Finished:
    """Run ``argv`` (first an absolute path) in the call's workdir under a supervisor.

    Returns when the command and all that it started are gone; so does a cancelled call, with the
    command killed where it stood. Raises ToolError when it cannot be started or its supervisor was
    killed.
    """
    await trio.to_thread.run_sync(make_private_dir, call.spill_dir)
    async with await _Supervised.start(argv, call) as supervised:
        with trio.move_on_after(deadline_ms / 1000):
            await supervised.report_arrives()
        late = not supervised.is_done
        if late:
            await supervised.stop()
        return supervised.finished(late=late)


class _Supervised:
    """A running supervisor, its pipe, and what it has said so far."""

    def __init__(self, process: trio.Process, order: supervisor.Order, mark: str) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._mark = mark
        self._pipe = process.stdin
        self._said_stream = process.stdout
        self._order = json.dumps(order).encode() + b"\n"
        self._said = bytearray()
        self.is_done = False
        """The supervisor has closed its output: everything is over."""

    @classmethod
    async def start(cls, argv: Sequence[str], call: ToolCall) -> Self:
        """Start a supervisor. Raises ToolError."""
        mark = secrets.token_hex(16)
        try:
            # trio starts the process in a thread and cannot be cancelled between start and return.
            process = await trio.lowlevel.open_process(
                [sys.executable, "-I", "-S", _SUPERVISOR],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=call.workdir,
                env={**_environment(), supervisor.MARK_NAME: mark},
                start_new_session=True,
            )
        except OSError as error:
            raise tool_error("start a command in", call.workdir, error) from None
        return cls(process, _order(argv, call), mark)

    async def report_arrives(self) -> None:
        """Wait for the end. Cancelled, nothing that was said is lost."""
        with suppress(trio.BrokenResourceError):
            await self._pipe.send_all(self._order)
        await self._listen()

    async def _listen(self) -> None:
        while data := await self._said_stream.receive_some():
            self._said += data
        self.is_done = True

    async def stop(self) -> None:
        """Have everything killed and wait for that, cancelled or not."""
        with trio.CancelScope(shield=True):
            await self._pipe.aclose()
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGCONT)  # the command may have stopped it
            with trio.move_on_after(2 * TOOL_GROUP_KILL_MS / 1000):
                await self._listen()
                await self._process.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        if self._process.returncode != 0:
            # The supervisor was killed, or hangs: end what can still be reached without it.
            with trio.CancelScope(shield=True):
                # Below a living supervisor each of them is found; so it goes after them.
                await self._kill_leftovers()
                with suppress(ProcessLookupError):
                    self._process.kill()
                self._kill_group()
                await self._process.wait()
                await self._kill_leftovers()
        with trio.CancelScope(shield=True):
            await self._process.wait()
            await self._said_stream.aclose()

    async def _kill_leftovers(self) -> None:
        for wait_ms in supervisor.KILL_WAITS_MS:
            root = self._process.pid if self._process.poll() is None else None
            if not await trio.to_thread.run_sync(kill_leftovers, root, self._mark):
                return
            await trio.sleep(wait_ms / 1000)

    def _kill_group(self) -> None:
        line, found, rest = bytes(self._said).partition(b"\n")
        if found and not rest:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(json.loads(line)["group"], signal.SIGKILL)

    def finished(self, *, late: bool) -> Finished:
        """The report and what follows it. Raises ToolError when there is none."""
        _, _, rest = bytes(self._said).partition(b"\n")
        line, found, output = rest.partition(b"\n")
        if not found:
            raise ToolError(
                "the command was killed together with its supervisor; its output is lost"
            )
        report: supervisor.Report = json.loads(line)
        head = output[: report["head_bytes"]]
        return Finished(report, head, output[len(head) :], late)


def _order(argv: Sequence[str], call: ToolCall) -> supervisor.Order:
    return {
        "argv": list(argv),
        "host_pid": os.getpid(),
        "inline_bytes_max": _INLINE_BYTES_MAX,
        "side_bytes_max": SIDE_BYTES_MAX,
        "spill_bytes_max": TOOL_SPILL_BYTES_MAX,
        "spill": os.path.abspath(os.path.join(call.spill_dir, spill_name(call))),
        "secrets": list(call.redactor.forms),
    }


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in ENVIRONMENT_NAMES if name in os.environ}
    return {"PATH": os.defpath, **kept}


def _result(finished: Finished, call: ToolCall, budget_ms: int) -> ToolResult:
    report = finished.report
    spill = spill_path(call) if report["kept_bytes"] else None
    if report["size_bytes"] > _INLINE_BYTES_MAX:
        note = cut_note(report["size_bytes"], report["kept_bytes"], spill, report["trouble"])
        text = inline_text(finished.head, note, finished.tail)
    else:
        text = finished.head.decode(errors="replace")
    if text and not text.endswith("\n"):
        text += "\n"
    status = report["status"]
    if finished.late:
        end = f"killed with all its processes: the deadline of {budget_ms} ms passed"
    elif report["why"] == "flooded":
        end = f"killed with all its processes: it wrote more than {TOOL_SPILL_BYTES_MAX} bytes"
    elif report["why"] == "stopped" or status is None:
        end = "killed with all its processes"
    elif status < 0:
        end = f"killed by signal {-status}"
    else:
        end = f"exit code {status}"
    if report["ended"]:
        end += "; processes that it left running were ended"
    if report["survivors"]:
        end += "; some processes could not be killed"
    is_error = finished.late or report["why"] != "exited" or status != 0
    return ToolResult(text=clean_text(f"{text}[{end}]"), is_error=is_error, spill=spill)
