"""What a saved run came to, and where to fork it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from engine_worlds import Counting, in_trio, one, opened, priced

from leviath.components.errors import ConfigError, RunNotFound
from leviath.providers.scripted import tool_call
from leviath.simulation.saved_runs import SavedWorld, outcome_of

if TYPE_CHECKING:
    from pathlib import Path

LONG = "the result " * 300
SUBMIT = tool_call("submit_output", content=LONG)


@in_trio
async def test_an_outcome_is_told_alike_by_a_world_and_by_what_is_saved_of_it(
    tmp_path: Path,
) -> None:
    script = Counting(priced("", SUBMIT), priced("bye"))
    async with opened(tmp_path / "home", [script]) as world:
        run = await world.spawn(one("submit_output"), task="t", workdir=tmp_path)
        await run.wait()
        told = outcome_of(run)
    saved = SavedWorld(tmp_path / "home")
    saved.expect_same()
    assert saved.run_ids == (run.run_id,)
    assert saved.outcome() == saved.outcome(run.run_id) == told
    assert (told.status, told.output, told.error) == ("complete", LONG, None)
    steps = [saved.turn(run.run_id, turn) for turn in range(1, 3)]
    assert steps == sorted(set(steps))
    assert [saved.outcome(at=step).tokens for step in steps] == [12, 24]
    with pytest.raises(ConfigError, match="fewer than"):
        saved.turn(run.run_id, 99)
    with pytest.raises(RunNotFound):
        saved.outcome("nobody")


@in_trio
async def test_of_several_runs_one_is_to_be_named(tmp_path: Path) -> None:
    async with opened(tmp_path / "home", [Counting(priced("x"), loop=True)]) as world:
        ids = [(await world.spawn(one(), task="t", workdir=tmp_path)).run_id for _ in range(2)]
    saved = SavedWorld(tmp_path / "home")
    with pytest.raises(ConfigError, match="has 2 runs; name one"):
        saved.outcome()
    assert saved.run_ids == tuple(ids)
    with pytest.raises(RunNotFound, match="was not there at step 1"):
        saved.outcome(ids[0], at=1)
