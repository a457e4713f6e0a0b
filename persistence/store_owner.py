"""Who drives a run of a stand-alone store: its name, whether it lives, how long it counts."""

from __future__ import annotations

import itertools
import os
from typing import Final

LEASE_MS: Final = 60_000
"""How long a driver counts without a write, where it cannot be seen whether it lives."""
_numbers = itertools.count(1)


def own_name() -> str:
    """A name for one handle of this process; no other handle anywhere has it.

    It says host, process and when that process began, so that another process on the host can see
    that it is gone, also when its number was given to a new one.
    """
    pid = os.getpid()
    return f"{os.uname().nodename}/{pid}/{_began(pid) or '?'}/{next(_numbers)}"


def is_gone(name: str) -> bool:
    """Whether that owner certainly lives no more: its process on this host has ended."""
    host, _, rest = name.partition("/")
    pid, _, rest = rest.partition("/")
    began = rest.partition("/")[0]
    if host != os.uname().nodename or not pid.isdecimal() or not os.path.isdir("/proc/self"):
        return False
    now = _began(int(pid))
    return now is None or began not in ("?", now)


def shown(name: str) -> str:
    """An owner as a message names it."""
    host, _, rest = name.partition("/")
    return f"process {rest.partition('/')[0]} on {host}"


def _began(pid: int) -> str | None:
    """When a process began, in ticks since the machine did; None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    # A zombie writes nothing any more.
    return None if fields[0] == b"Z" else fields[19].decode()
