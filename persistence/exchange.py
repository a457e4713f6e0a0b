"""Rewriting a small file at a seventh of a rename's price, where the kernel can swap two names.

A rename over a file makes ext4 write the new bytes out at once. Here the new version is written
into a spare file beside the first and the two names are exchanged, atomically; the old version is
the next spare. Whoever opened the file before the exchange may still read its old bytes until the
spare is used again, so this is for files that are rewritten seconds apart (decision 010).
"""

from __future__ import annotations

import os
import stat

from leviath.persistence.files import REAL, FileSystem, check_name


def spare_name(name: str) -> str:
    """Where the spare version of ``name`` stands."""
    return f".{name}.spare"


def exchange_file(folder: int, name: str, data: bytes, fs: FileSystem = REAL) -> bool:
    """Make the existing file ``name`` hold exactly ``data``; nothing is synced.

    False when that cannot be done here: no such file, no such call, a spare that is none. Nothing
    has changed then. Raises OSError when the disk refuses the bytes; the file is as it was.
    """
    if not fs.can_exchange:
        return False
    spare = spare_name(check_name(name))
    try:
        fd = fs.open_rewrite(folder, spare)
    except OSError:
        return False
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            return False
        rest = memoryview(data)
        while rest:
            rest = rest[fs.write(fd, rest) :]
        if found.st_size > len(data):
            fs.truncate(fd, len(data))
    finally:
        fs.close(fd)
    try:
        fs.exchange(folder, spare, name)
    except OSError:
        return False
    return True
