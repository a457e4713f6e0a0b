"""What a load takes from the journal is not lost to the next cut."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import trio

from leviath.engine.blueprints import parse_blueprint
from leviath.engine.world import open_world
from leviath.persistence.database import open_database

if TYPE_CHECKING:
    from pathlib import Path

AGENT = parse_blueprint(
    '[agent]\nname = "a"\n[stages.main]\n[stages.main.model]\n'
    'models = [{ provider = "nobody", model = "m" }]\n',
    where="a",
)


def parts(home: Path) -> set[str]:
    with open_database(home / "world.db", level="process", read_only=True) as reader:
        return {row.part for row in reader.owner_state(1)}


def test_a_cut_holds_what_was_only_in_the_journal(tmp_path: Path) -> None:
    killed = tmp_path / "killed"

    async def spawn() -> str:
        async with open_world(tmp_path / "home") as world:
            run = await world.spawn(AGENT)
            # As a crash leaves it: the journal alone has the run.
            shutil.copytree(tmp_path / "home", killed)
            return run.run_id

    async def pause(run_id: str) -> None:
        async with open_world(killed, drive=False) as world:
            await world.run(run_id).pause()

    async def status(run_id: str) -> str:
        async with open_world(killed, drive=False) as world:
            return world.run(run_id).status.status.wire()

    run_id = trio.run(spawn)
    trio.run(pause, run_id)
    assert {"Identity", "Launch", "Effects", "Cost", "Status"} <= parts(killed)
    assert trio.run(status, run_id) == "paused"
