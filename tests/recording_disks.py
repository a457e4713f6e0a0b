"""Homes on disks that write down what is done to them, and fail as they are told."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING

from leviath.simulation.disk import Recording, RecordingDisk

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

_numbers = itertools.count()


@contextmanager
def disk(home: Path) -> Generator[RecordingDisk]:
    """A disk below ``home``, which is made; its faults end with the block."""
    home.mkdir(mode=0o700, exist_ok=True)
    vfs = RecordingDisk(f"recording-disk-{next(_numbers)}", Recording(home))
    try:
        yield vfs
    finally:
        vfs.recording.arm()
        vfs.unregister()
