"""Trees that many hands disturb at once come to an end, each of them, once they are let."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from engine_worlds import in_trio
from tree_storms import Storm

from leviath.engine.clock import ManualClock

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("seed", range(6))
@in_trio
async def test_every_root_ends_after_a_storm(tmp_path: Path, seed: int) -> None:
    storm = Storm(tmp_path, seed, ManualClock())
    async with storm.open() as world:
        await storm.rage(world, hands=4, acts=30)
        await storm.calm(world)
        assert await world.check() == []
        await world._host.until_durable(world._host.step)
        left = {row.status for row in world.listing(limit=1_000)}
        assert left <= {"complete", "error", "cancelled"}


@pytest.mark.parametrize("seed", range(3))
@in_trio
async def test_every_root_ends_under_the_next_host(tmp_path: Path, seed: int) -> None:
    clock = ManualClock()
    storm = Storm(tmp_path, 100 + seed, clock)
    for _ in range(3):
        async with storm.open() as world:
            await storm.rage(world, hands=3, acts=15)
    async with storm.open() as world:
        await storm.calm(world)
        assert await world.check() == []
