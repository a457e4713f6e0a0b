"""A home that is deleted, moved or replaced while it is hosted ends its host."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from engine_worlds import Counting, in_trio, opened

from leviath.components.errors import LevError, StorageError

if TYPE_CHECKING:
    from pathlib import Path

AGENT = """
[agent]
name = "one"
[stages.main.model]
models = [{ provider = "scripted", model = "m" }]
"""


def agent(folder: Path) -> str:
    """A blueprint on the disk."""
    (folder / "agent").mkdir()
    (folder / "agent" / "agent.leviath").write_text(AGENT)
    return str(folder / "agent")


def remove(home: Path) -> None:
    shutil.rmtree(home)


def move(home: Path) -> None:
    home.rename(home.with_name("elsewhere"))


def replace_store(home: Path) -> None:
    shutil.copy(home / "world.db", home / "copy.db")
    (home / "copy.db").replace(home / "world.db")


def replace_lock(home: Path) -> None:
    (home / "lock").unlink()
    (home / "lock").touch()


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        (remove, "lock is gone"),
        (move, "lock is gone"),
        (replace_store, "world.db was replaced"),
        (replace_lock, "lock was replaced"),
    ],
)
@in_trio
async def test_nothing_is_acknowledged_into_a_home_that_is_not_there(
    tmp_path: Path, harm: object, what: str
) -> None:
    home = tmp_path / "home"
    path = agent(tmp_path)
    assert callable(harm)

    async def use() -> None:
        async with opened(home, [Counting("done", loop=True)]) as world:
            first = await world.spawn(path, task="x", workdir=tmp_path)
            await first.wait()
            harm(home)
            with pytest.raises(LevError, match=what):
                await world.spawn(path, task="y", workdir=tmp_path)

    with pytest.raises(StorageError, match=what) as caught:
        await use()
    assert str(home) in str(caught.value)


@in_trio
async def test_an_idle_host_notices_too(tmp_path: Path) -> None:
    home = tmp_path / "home"

    async def idle() -> None:
        async with opened(home, [Counting("done")]) as world:
            move(home)
            async for _ in world.events():
                pass

    with pytest.raises(StorageError, match="move the home back"):
        await idle()
