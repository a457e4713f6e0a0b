"""Run ids: what may be one, and how one is made.

A run id names a directory, so it is held to what every file system takes: ASCII letters, digits,
``.``, ``_`` and ``-``, at most 128 bytes, no leading or trailing dot, no device name of Windows.
"""

from __future__ import annotations

import re
from typing import Final

from leviath.components.errors import ConfigError

RUN_ID_BYTES_MAX: Final = 128
"""A file name has 255 bytes at most; half of it leaves room for suffixes of temporary files."""

RANDOM_BITS: Final = 48

_WALL_S_MAX: Final = 2**63 - 1
_STEM_BYTES_MAX: Final = RUN_ID_BYTES_MAX - len(f"-{_WALL_S_MAX}-{0:012x}")

_ALLOWED: Final = re.compile(r"[A-Za-z0-9._-]+")
_NOT_FOR_STEM: Final = re.compile(r"[^A-Za-z0-9-]")
_DEVICES: Final = frozenset(
    ["con", "prn", "aux", "nul"] + [f"{port}{n}" for port in ("com", "lpt") for n in range(10)]
)


def check_run_id(text: str) -> str:
    """``text`` itself if it may be a run id.

    Raises ConfigError naming the text, its fault and the remedy.
    """
    fault = _fault(text)
    if fault is not None:
        shown = text if len(text) <= RUN_ID_BYTES_MAX else text[:32] + "..."
        raise ConfigError(
            f"run id {shown!r} {fault}; use ASCII letters, digits, '.', '_' and '-', "
            f"at most {RUN_ID_BYTES_MAX} of them",
            run_id=shown,
        )
    return text


def is_run_id(text: str) -> bool:
    """Whether ``text`` may be a run id."""
    return _fault(text) is None


def _fault(text: str) -> str | None:
    if not text:
        return "is empty"
    # Length comes first, so that nothing below walks through a megabyte. An id that passes the
    # alphabet is ASCII: its characters are its bytes.
    if len(text) > RUN_ID_BYTES_MAX:
        return f"is {len(text)} characters long"
    if _ALLOWED.fullmatch(text) is None:
        odd = next(c for c in text if _ALLOWED.fullmatch(c) is None)
        return f"contains {odd!r}"
    if text.startswith("."):
        return "starts with a dot"
    if text.endswith("."):
        return "ends with a dot"
    if text.split(".", 1)[0].lower() in _DEVICES:
        return "is a device name on Windows"
    return None


def run_name_stem(agent_name: str) -> str:
    """The readable head of a run id: each character outside ``[A-Za-z0-9-]`` becomes ``-``.

    Bounded, so that the whole id always fits; ``agent`` stands in for an empty name.
    """
    return _NOT_FOR_STEM.sub("-", agent_name[:_STEM_BYTES_MAX]) or "agent"


def mint_run_id(agent_name: str, wall_s: int, bits48: int) -> str:
    """``<stem>-<unix seconds>-<12 hex digits>``, always a valid run id.

    The caller brings ``bits48``, 48 random bits. A wall clock before 1970 counts as 0.
    """
    assert 0 <= bits48 < 1 << RANDOM_BITS, bits48
    assert wall_s <= _WALL_S_MAX, wall_s
    return f"{run_name_stem(agent_name)}-{max(0, wall_s)}-{bits48:012x}"
