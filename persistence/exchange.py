"""Rewriting a small file at a seventh of a rename's price, where the kernel can swap two names.

A rename over a file makes ext4 write the new bytes out at once. Here the new version is written
into a spare file beside the first and the two names are exchanged, atomically; the old version is
the next spare. Whoever opened the file before the exchange may still read its old bytes until the
spare is used again, so this is for files that are rewritten seconds apart (decision 010).
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from functools import cache
from typing import TYPE_CHECKING, Final

from leviath.persistence.files import FILE_MODE, check_name

if TYPE_CHECKING:
    from collections.abc import Callable

_EXCHANGE: Final = 2
"""RENAME_EXCHANGE of ``linux/fs.h``."""


def spare_name(name: str) -> str:
    """Where the spare version of ``name`` stands."""
    return f".{name}.spare"


@cache
def _renameat2() -> Callable[[int, bytes, int, bytes, int], int] | None:
    """The C library's call; None where there is none."""
    if sys.platform != "linux":
        return None
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    call.restype = ctypes.c_int
    exchange: Callable[[int, bytes, int, bytes, int], int] = call
    return exchange


def exchange_file(folder: int, name: str, data: bytes) -> bool:
    """Make the existing file ``name`` hold exactly ``data``; nothing is synced.

    False when that cannot be done here: no such file, no such call, a spare that is none. Nothing
    has changed then. Raises OSError when the disk refuses the bytes; the file is as it was.
    """
    exchange = _renameat2()
    if exchange is None:
        return False
    spare = spare_name(check_name(name))
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(spare, flags, FILE_MODE, dir_fd=folder)
    except OSError:
        return False
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            return False
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        if found.st_size > len(data):
            os.ftruncate(fd, len(data))
    finally:
        os.close(fd)
    return exchange(folder, spare.encode(), folder, name.encode(), _EXCHANGE) == 0
