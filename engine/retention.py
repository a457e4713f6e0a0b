"""Letting go of old steps while a world is hosted, in slices between its commits."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from leviath.components.errors import DiskFull, StorageError
from leviath.engine.limits import HISTORY_FOLD_STEPS
from leviath.persistence.retention import fold_history

if TYPE_CHECKING:
    from leviath.engine.host import Host

_log = logging.getLogger("leviath.engine")


async def fold_to(host: Host, steps: int, *, closing: bool = False) -> int:
    """Fold what is older than the newest ``steps`` durable steps, as far as a cut holds it.

    Stops when the host ends, unless it is called by who closes it. Returns the step that history
    begins after; 0 in memory. Raises Damaged, Locked, DiskFull, StorageError. Cancelled: what was
    folded stays so.
    """
    base = -1
    if host.chain is None or host.writer is None:
        return 0
    database = host.chain.db
    while closing or not host.feed.closed:
        upto = host.durable_step - steps
        work = partial(fold_history, database, upto, steps_max=HISTORY_FOLD_STEPS)
        now = await host.writer.call(work)
        if now == base:
            break
        base = now
    return base


async def keep_folding(host: Host, steps: int) -> None:
    """Hold history to about ``steps`` steps until the host ends; a full disk puts it off."""
    looked = -1
    while not host.feed.closed:
        if host.durable_step >= looked + HISTORY_FOLD_STEPS or looked < 0:
            looked = host.durable_step
            try:
                await fold_to(host, steps)
            except DiskFull as error:
                _log.warning("old steps stay for now: %s", error)
            except StorageError as error:
                _log.error("old steps stay: %s", error)
                return
        if not host.feed.closed:
            await host.feed.progressed()
