"""A broken invariant stops its run and says so; the host and the other runs go on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from engine_worlds import Gate, heard, in_trio, one, opened
from msgspec.structs import replace

from leviath.components.events import StatusChanged
from leviath.components.identity import Tree
from leviath.components.progress import Cost
from leviath.components.run_status import RunStatus

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


@in_trio
async def test_a_breach_pauses_that_run_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate("done")
    async with opened(tmp_path / "home", [gate]) as world:
        events = world.events()
        broken = await world.spawn(one(), workdir=tmp_path, run_id="broken")
        sound = await world.spawn(one(), workdir=tmp_path, run_id="sound")
        live, n = world._host.world, world._host.world.by_run_id["broken"]
        live.put(n, replace(live.get(n, Cost), unpriced=-1))
        with caplog.at_level(logging.ERROR, "leviath.engine"):
            assert await world.check() == [("broken", "no total is negative")]
        while (event := await heard(events, StatusChanged)).status != "paused":
            pass
        assert (event.run_id, event.actor) == ("broken", "engine")
        assert event.why == "invariant broken: no total is negative"
        assert "run broken breaks an invariant: no total is negative" in caplog.text
        gate.open.set()
        assert (await sound.wait()).status == "complete"
        assert broken.status.status is RunStatus.PAUSED
        # For the look at everything while closing.
        live.put(n, replace(live.get(n, Cost), unpriced=0))


@in_trio
async def test_without_checks_nothing_is_looked_at_after_a_step(tmp_path: Path) -> None:
    gate = Gate("done")
    async with opened(tmp_path / "home", [gate], checks=False) as world:
        run = await world.spawn(one(), workdir=tmp_path, run_id="broken")
        live, n = world._host.world, world._host.world.by_run_id["broken"]
        live.put(n, replace(live.get(n, Tree), depth=2))
        gate.open.set()
        assert (await run.wait()).status == "complete"
