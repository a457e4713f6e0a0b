"""The same key and the same id find the run again, whatever of the world is durable just then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from engine_worlds import Gate, in_trio, one, opened

from leviath.components.errors import SpawnError

if TYPE_CHECKING:
    from pathlib import Path


@in_trio
async def test_a_spawn_right_after_a_restart_finds_its_run(tmp_path: Path) -> None:
    """The steps that settle what the last host left are not durable yet at some of these turns."""
    more = {"workdir": tmp_path, "run_id": "mine"}
    async with opened(tmp_path / "home", [Gate("done")]) as world:
        await world.spawn(one(), key="k", **more)
    for turns in range(16):
        async with opened(tmp_path / "home", [Gate("done")]) as world:
            for _ in range(turns):
                await trio.lowlevel.checkpoint()
            assert (await world.spawn(one(), key="k", **more)).run_id == "mine"
            with pytest.raises(SpawnError, match="exists already"):
                await world.spawn(one(), key="other", **more)
