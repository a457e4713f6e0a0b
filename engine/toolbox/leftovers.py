"""What a command left running when its supervisor cannot end it: stopped, or killed by the command.

Looks at /proc, so on Linux only. A process that also clears its environment after it killed the
supervisor is not found.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from leviath.engine.toolbox import supervisor


def kill_leftovers(root: int | None, mark: str) -> bool:
    """Kill what descends from ``root`` or has ``mark`` in its environment, ``root`` excepted.

    Call it until it returns False: nothing was left. A process may fork while it is looked for.
    """
    below = [] if root is None else supervisor.descendants(root)
    left = {pid for pid in below if not _is_over(pid)} | set(_marked(mark))
    left.discard(root or 0)
    for pid in left:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return bool(left)


def _is_over(pid: int) -> bool:
    """Whether it only waits to be reaped, which a stopped parent does not do."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except (OSError, IndexError):
        return True


def _marked(mark: str) -> list[int]:
    wanted = f"{supervisor.MARK_NAME}={mark}".encode()
    found: list[int] = []
    try:
        names = os.listdir("/proc")
    except OSError:
        return found
    for name in filter(str.isdigit, names):
        with suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
            if wanted in file.read().split(b"\0"):
                found.append(int(name))
    return found
