"""Cuts: consistent checkpoints, written in slices behind a commit while the world goes on."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from leviath.components.errors import DiskFull
from leviath.components.inputs import Spawn
from leviath.components.parts import RUN_PARTS
from leviath.engine.commits import Dirty, slices
from leviath.engine.limits import CUT_INTERVAL_MS
from leviath.systems.intake import owner_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from leviath.components.inputs import Input
    from leviath.engine.commits import Chain, CutParts
    from leviath.engine.mirroring import Mirror
    from leviath.engine.step import Stepper
    from leviath.engine.writer import Writer

_log = logging.getLogger("leviath.engine")


class Cutting:
    """When a cut is due, and how it is written. ``ended`` hears how one went."""

    def __init__(
        self,
        stepper: Stepper,
        inbox: Iterable[Input],
        chain: Chain,
        writer: Writer,
        mirror: Mirror | None,
        ended: Callable[[Exception | None], None],
        world_ms: int,
    ) -> None:
        self.dirty: Dirty = Dirty()
        self.allowed = True
        """False while a run is quarantined: its later changes are in the journal alone, and a cut
        would make its older state the valid one."""
        self.is_under_way: bool = False
        self._stepper = stepper
        self._world = stepper.world
        self._inbox = inbox
        self._chain = chain
        self._writer = writer
        self._mirror = mirror
        self._ended = ended
        self._last_ms = world_ms

    def take_due(self, now_ms: int) -> CutParts:
        """What a cut at this moment is to hold; empty when none is due. It is under way then."""
        if self.is_under_way or not self.allowed or not self.dirty.parts:
            return {}
        if not self.dirty.is_due and now_ms - self._last_ms < CUT_INTERVAL_MS:
            return {}
        self.is_under_way = True
        self._last_ms = now_ms
        return self.dirty.take()

    def hasten(self) -> None:
        """A cut is due at the next opportunity."""
        self._last_ms -= CUT_INTERVAL_MS

    def give_back(self, taken: CutParts) -> None:
        """The steps of a cut did not become durable."""
        self.is_under_way = False
        self.dirty.give_back(taken)

    def write(self, step: int, taken: CutParts) -> None:
        """Write what had changed by ``step``, which is durable."""
        chain, writer = self._chain, self._writer
        rest = slices(taken)
        over = [n for n in self._world.owners() if self._stepper.is_over(n)]

        def next_slice(value: object, error: Exception | None) -> None:
            if error is None and rest:
                rows = rest.pop(0)
                writer.submit(lambda: chain.write_slice(step, rows), next_slice)
            elif error is None:
                writer.submit(lambda: chain.finish(step), finished)
            else:
                finished(None, error)

        def finished(value: object, error: Exception | None) -> None:
            self.is_under_way = False
            if error is None:
                self._evict(over)
            else:
                self.dirty.give_back(taken)
            self._ended(error)

        next_slice(None, None)

    async def write_last(self, step: int) -> None:
        """Write everything that changed since the last cut.

        A full disk keeps nothing from being loaded: the journal has it all. Raises StorageError.
        """
        if not self.dirty.parts or not self.allowed:
            return
        try:
            for rows in slices(self.dirty.take()):
                await self._writer.call(partial(self._chain.write_slice, step, rows))
            await self._writer.call(partial(self._chain.finish, step))
        except DiskFull as error:
            _log.warning("the last cut was not written: %s", error)

    def _evict(self, over: list[int]) -> None:
        """Ended runs whose state the cut holds leave memory; ``world.db`` keeps them.

        A run that somebody is about to ask something of, or to find by its key, stays.
        """
        world = self._world
        wanted: set[int] = set()
        for item in self._inbox:
            wanted.add(owner_of(item))
            if isinstance(item, Spawn):
                wanted.add(world.by_key.get(item.key, 0))
                wanted.add(world.by_run_id.get(item.run_id, 0))
        for n in over:
            if (
                n in world
                and n not in wanted
                and self._stepper.is_over(n)
                and not self._is_dirty(n)
                and not self._has_files_to_write(n)
            ):
                world.evict(n)

    def _has_files_to_write(self, n: int) -> bool:
        # Projected from memory.
        return self._mirror is not None and self._mirror.is_behind(n)

    def _is_dirty(self, n: int) -> bool:
        return any((n, kind.__name__) in self.dirty.parts for kind in RUN_PARTS)
