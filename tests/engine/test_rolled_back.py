"""A store that lost steps is noticed by the files of its runs, and drives none of these."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import trio
from engine_worlds import Counting, Gate, in_trio, opened, priced, tool_call, until

from leviath.components.run_status import RunStatus
from leviath.engine.tools import tool

if TYPE_CHECKING:
    from pathlib import Path

AGENT = """
[agent]
name = "one"
[stages.main]
available_tools = ["look"]
[stages.main.model]
models = [{ provider = "scripted", model = "m" }]
"""


@tool(effect="pure")
def look() -> str:
    "Look."
    return "seen"


class Slow(Gate):
    """Answers with a tool call at once, and later only when it is let."""

    async def infer(self, request: Any, on_text: Any) -> Any:
        if not self.asked:
            self.open.set()
            reply = await super().infer(request, on_text)
            self.open = trio.Event()
            return reply
        return await super().infer(request, on_text)


def copied(home: Path, store: Path) -> None:
    """Keep the store as it is now, log and all."""
    store.mkdir()
    for name in ("world.db", "world.db-wal"):
        shutil.copy(home / name, store / name)


def put_back(store: Path, home: Path) -> None:
    """An older store: what is left when the rest of a log is cut off."""
    for file in home.glob("world.db*"):
        file.unlink()
    for file in store.iterdir():
        shutil.copy(file, home / file.name)


@in_trio
async def test_a_run_whose_files_are_newer_than_the_store_is_held(tmp_path: Path) -> None:
    home, store = tmp_path / "home", tmp_path / "store"
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "agent.leviath").write_text(AGENT)
    provider = Slow(priced("first", tool_call("look")), "done")
    async with opened(home, [provider], tools=[look]) as world:
        run = await world.spawn(tmp_path / "agent", task="x", workdir=tmp_path)
        await until(lambda: len(provider.asked) == 2)
        copied(home, store)
        provider.open.set()
        await run.wait()
    newer = (home / "runs" / run.run_id / "state.lev").read_bytes()
    put_back(store, home)

    second = Counting("again", loop=True)
    async with opened(home, [second], tools=[look]) as world:
        (found,) = world.report.rolled_back
        back = world.run(run.run_id)
        await until(lambda: back.status.status is RunStatus.PAUSED)
        assert "world.db ends at step" in back.status.why
        assert found.run_id == run.run_id
        assert found.files_step > found.step
        assert second.asked == []
        kept = home / "runs" / run.run_id / "state.lev.other-1"
        assert kept.read_bytes() == newer
        assert f"runs/{run.run_id}/meta.json.other-1" in world.report.set_aside

    async with opened(home, [second], tools=[look]) as world:
        assert world.report.rolled_back == ()
        again = world.run(run.run_id)
        assert again.status.status is RunStatus.PAUSED
        await again.resume()
        assert (await again.wait()).status == "complete"
    assert len(second.asked) == 1
