"""Run one command and leave no process behind, whatever becomes of the host.

A script of its own, started once per command as ``python -I -S supervisor.py``; standard library
only, so that it starts fast. It is the parent of the command, so it can find and kill what the
command started:

* Standard input brings one JSON line (``Order``) and then stays open for as long as the host
  lives. When it closes, because the host wants the command gone or has died of anything,
  everything is killed. A change of parent counts as well: a child that the host forked may still
  hold the pipe.
* On Linux it is a subreaper: what a descendant leaves behind, a new session included, becomes its
  child. It is done when it has no child left. Elsewhere it knows the process group alone.
* When the command exits by itself, what it left running is killed too.

Standard output carries one JSON line with the process group, at once, and one with the report at
the end, followed by the bytes of head and tail. Output beyond ``inline_bytes_max`` goes to the
spill file; what stays in memory is bounded.
"""

from __future__ import annotations

import errno
import json
import os
import re
import select
import signal
import sys
from contextlib import suppress
from typing import Any, Final, NoReturn, TypedDict

CHUNK_BYTES: Final = 64 * 1024
PARENT_CHECK_MS: Final = 400
"""How soon a change of parent is seen; with both waits below less than 2 s."""
TERM_WAITS_MS: Final = (1, 2, 4, 8, 16, *(25 for _ in range(18)))
"""Waits for what was asked to end, together about 0.5 s."""
KILL_WAITS_MS: Final = (1, 2, 4, 8, 16, *(25 for _ in range(36)))
"""Waits for what was killed, together about 0.9 s; longer only for those stuck in the kernel."""

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
MARK_NAME: Final = "LEVIATH_CALL"
"""A variable of the command's environment that tells its processes from all others."""
HIDDEN: Final = b"[secret]"
"""Stands for a secret value in the output."""


class Order(TypedDict):
    """What the host wants run."""

    argv: list[str]
    """First an absolute path."""
    host_pid: int
    inline_bytes_max: int
    side_bytes_max: int
    """Head and tail are at most this long when the output is longer than ``inline_bytes_max``."""
    spill_bytes_max: int
    spill: str
    """Absolute path of the spill file; made when it is needed."""
    secrets: list[str]
    """Values that neither the report nor the spill file may hold, none of them empty."""


class Report(TypedDict):
    """How it ended. ``head_bytes`` and ``tail_bytes`` say how much follows."""

    why: str
    """exited, stopped (by the host) or flooded (more output than the spill file takes)."""
    status: int | None
    """Exit code, or minus the signal that ended it; None when it could not be waited for."""
    size_bytes: int
    kept_bytes: int
    """What the spill file holds; 0 without one."""
    trouble: str
    """Name of the errno that stopped the spill file, else empty."""
    ended: bool
    """Processes were left running by a command that exited, and were ended."""
    survivors: bool
    """Some process could not be killed."""
    head_bytes: int
    tail_bytes: int


class Veil:
    """Hides values in a stream of bytes, also those that arrive in pieces.

    What it lets through is the same however the stream is cut.
    """

    def __init__(self, values: list[str]) -> None:
        self._values = sorted({value.encode() for value in values}, key=len, reverse=True)
        self._reach = len(self._values[0]) if self._values else 0
        self._held = b""

    def add(self, data: bytes) -> bytes:
        """What can be let through now. The rest is held: it may be the start of a value."""
        if not self._values:
            return data
        data = self._held + data
        # From before here, every value that could start has come whole.
        sure = max(0, len(data) - self._reach + 1)
        return self._pass(data, sure)

    def rest(self) -> bytes:
        """What was held, at the end of the stream."""
        return self._pass(self._held, len(self._held))

    def _pass(self, data: bytes, sure: int) -> bytes:
        passed: list[bytes] = []
        at = 0
        found = [value for value in self._values if value in data]
        if found:
            for match in re.finditer(b"|".join(map(re.escape, found)), data):
                if match.start() >= sure:
                    break
                passed += (data[at : match.start()], HIDDEN)
                at = match.end()
        end = max(at, sure)
        passed.append(data[at:end])
        self._held = data[end:]
        return b"".join(passed)


class Output:
    """What the command wrote: all of it while it is short, then head, tail and a spill file.

    Secrets are hidden before anything is kept, cut or counted.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._spill_fd: int | None = None
        self._veil = Veil(order["secrets"])
        self.head: bytearray = bytearray()
        self.tail: bytearray = bytearray()
        self.size_bytes: int = 0
        self.kept_bytes: int = 0
        self.trouble: str = ""

    @property
    def flooded(self) -> bool:
        """Whether there was more than a spill file takes."""
        return self.size_bytes > self._order["spill_bytes_max"]

    def add(self, data: bytes) -> None:
        """Take ``data``. Never raises for the disk: what cannot be spilled is counted only."""
        self._take(self._veil.add(data))

    def _take(self, data: bytes) -> None:
        self.size_bytes += len(data)
        side = self._order["side_bytes_max"]
        if self._spill_fd is None and not self.trouble:
            self.head += data
            if len(self.head) <= self._order["inline_bytes_max"]:
                return
            self._open_spill()
            self._spill(bytes(self.head))
            self.tail = self.head[-side:]
            del self.head[side:]
            return
        self._spill(data)
        self.tail = (self.tail + data)[-side:]

    def close(self) -> None:
        """Take what was held back, and close the spill file."""
        self._take(self._veil.rest())
        if self._spill_fd is not None:
            os.close(self._spill_fd)

    def _open_spill(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._spill_fd = os.open(self._order["spill"], flags, 0o600)
        except OSError as error:
            self.trouble = errno.errorcode.get(error.errno or 0, "EIO")

    def _spill(self, data: bytes) -> None:
        left = memoryview(data)[: self._order["spill_bytes_max"] - self.kept_bytes]
        while left and self._spill_fd is not None and not self.trouble:
            try:
                written = os.write(self._spill_fd, left)
            except OSError as error:
                self.trouble = errno.errorcode.get(error.errno or 0, "EIO")
                return
            self.kept_bytes += written
            left = left[written:]


class Family:
    """The command and all that descends from it."""

    def __init__(self, argv: list[str], output_fd: int) -> None:
        self._reaps_all = _become_subreaper()
        self.status: int | None = None
        self.pid: int = os.fork()
        if self.pid == 0:
            _become(argv, output_fd)

    def left(self) -> bool:
        """Whether any process is left; takes note of those that ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return not self._reaps_all and self._group_exists()
            if pid == 0:
                return True
            if pid == self.pid:
                self.status = os.waitstatus_to_exitcode(status)

    def end(self, output: Output, output_fd: int) -> bool:
        """Ask all to end, then kill all. Returns whether some survive."""
        if not self.left():
            return False
        self._signal_all(signal.SIGTERM)
        self._signal_all(signal.SIGCONT)  # a stopped process takes no other signal
        for wait_ms in TERM_WAITS_MS:
            _wait_and_drain(wait_ms, output, output_fd)
            if not self.left():
                return False
        for wait_ms in KILL_WAITS_MS:
            # Again each time: a process may fork between the look at the list and its own end.
            self._signal_all(signal.SIGKILL)
            _wait_and_drain(wait_ms, output, output_fd)
            if not self.left():
                return False
        return True

    def _signal_all(self, number: int) -> None:
        if self.status is None or not self._reaps_all:
            # While the leader is not waited for, no other group can have its number.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
        for pid in descendants(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _group_exists(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True


def main() -> None:
    """Take the order from standard input, run it, report on standard output."""
    order = _read_order()
    if order is None:
        return
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # what the host blocks, the command need not
    signals_fd = _listen_for_signals()
    output_fd, write_fd = os.pipe()
    os.set_blocking(output_fd, False)
    family = Family(order["argv"], write_fd)
    os.close(write_fd)
    output = Output(order)
    _say({"group": family.pid})
    why = _watch(order, family, output, output_fd, signals_fd)
    ended = why == "exited" and family.left()
    survivors = family.end(output, output_fd)
    _drain(output, output_fd)
    output.close()
    report: Report = {
        "why": "flooded" if output.flooded and why != "stopped" else why,
        "status": family.status,
        "size_bytes": output.size_bytes,
        "kept_bytes": output.kept_bytes,
        "trouble": output.trouble,
        "ended": ended,
        "survivors": survivors,
        "head_bytes": len(output.head),
        "tail_bytes": len(output.tail),
    }
    _say(report, bytes(output.head + output.tail))


def _watch(order: Order, family: Family, output: Output, output_fd: int, signals_fd: int) -> str:
    """Collect output until the command exits, floods, or is to be stopped; says which."""
    poll = select.poll()
    for fd in (0, output_fd, signals_fd):
        poll.register(fd, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll(PARENT_CHECK_MS)}
        if 0 in ready or os.getppid() != order["host_pid"]:
            return "stopped"
        if output_fd in ready:
            if not _drain(output, output_fd):
                poll.unregister(output_fd)
            if output.flooded:
                return "flooded"
        if signals_fd in ready:
            if any(number != signal.SIGCHLD for number in os.read(signals_fd, CHUNK_BYTES)):
                return "stopped"
            family.left()
        if family.status is not None:
            return "exited"


def _drain(output: Output, output_fd: int, chunks_max: int = 16) -> bool:
    """Take what is there, no more than a few chunks; False when no one can write any more."""
    for _ in range(chunks_max):
        try:
            data = os.read(output_fd, CHUNK_BYTES)
        except BlockingIOError:
            return True
        if not data:
            return False
        output.add(data)
    return True


def _wait_and_drain(wait_ms: int, output: Output, output_fd: int) -> None:
    select.select([], [], [], wait_ms / 1000)
    _drain(output, output_fd)


def descendants(root: int) -> list[int]:
    """Everything below ``root`` now; empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    for name in names:
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The command's name, in parentheses, may hold anything; then come state, parent.
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue
        children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    pending = [root]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def _become_subreaper() -> bool:
    """Become the parent of all orphans below. False where the system has no such thing."""
    if sys.platform != "linux":
        return False
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
        # The command may stop its supervisor; the host's death starts it again.
        prctl(PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)
        return bool(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def _become(argv: list[str], output_fd: int) -> NoReturn:
    """In the new process: become ``argv`` in a session of its own. Does not return."""
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output_fd, 1)
        os.dup2(output_fd, 2)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by Python, and that is inherited
            signal.signal(number, signal.SIG_DFL)
        os.execv(argv[0], argv)  # noqa: S606 - what to run is the order itself
    except OSError as error:
        code = errno.errorcode.get(error.errno or 0, "EIO")
        os.write(2, f"cannot start {argv[0]}: {code}\n".encode())
    finally:
        os._exit(127)


def _listen_for_signals() -> int:
    """A descriptor that brings one byte for each signal, its number."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    os.set_blocking(write_fd, False)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _note_nothing)
    return read_fd


def _note_nothing(_number: int, _frame: object) -> None:
    """Handle a signal: the wake-up descriptor has its number already."""


def _read_order() -> Order | None:
    """The first line of standard input; None when the host is gone before it is whole."""
    line = bytearray()
    while not line.endswith(b"\n"):
        data = os.read(0, CHUNK_BYTES)
        if not data:
            return None
        line += data
    order: Order = json.loads(line)
    return order


def _say(document: Any, rest: bytes = b"") -> None:
    """Write one JSON line and ``rest`` to the host, who may be gone."""
    left = memoryview(json.dumps(document).encode() + b"\n" + rest)
    with suppress(BrokenPipeError):
        while left:
            left = left[os.write(1, left) :]


if __name__ == "__main__":
    main()
