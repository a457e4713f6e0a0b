"""Homes that were lost, damaged or moved: what an opening makes of what is left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio
from engine_worlds import Counting, Gate, in_trio, opened, priced, tool_call, until

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


def agent(home: Path) -> str:
    """A blueprint on the disk: what comes back from documents alone needs one."""
    folder = home.parent / "agent"
    folder.mkdir(exist_ok=True)
    (folder / "agent.leviath").write_text(AGENT)
    return str(folder)


def lose_store(home: Path) -> None:
    """Delete ``world.db`` and its log."""
    for file in home.glob("world.db*"):
        file.unlink()


class Stuck(Gate):
    """Answers with a tool call first, and then not at all."""

    async def infer(self, request: Any, on_text: Any) -> Any:
        if not self.asked:
            self.open.set()
            reply = await super().infer(request, on_text)
            self.open = trio.Event()
            return reply
        return await super().infer(request, on_text)


@in_trio
async def test_a_busy_run_of_a_home_closed_in_order_survives_the_loss_of_the_store(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    stuck = Stuck(priced("first", tool_call("look")), "never")
    async with opened(home, [stuck], tools=[look]) as world:
        run = await world.spawn(agent(home), task="the task", workdir=tmp_path, key="k")
        await until(lambda: len(stuck.asked) == 2)
    folder = home / "runs" / run.run_id
    assert {"state.lev", "context.json", "meta.json"} <= {file.name for file in folder.iterdir()}
    lose_store(home)
    provider = Counting("done", loop=True)
    async with opened(home, [provider], tools=[look]) as world:
        again = world.run(run.run_id)
        ended = await again.wait()
        assert (ended.status, ended.error) == ("complete", None)
        assert again.row().key == "k"
    asked = "".join(message.text for message in provider.asked[0].messages)
    assert "the task" in asked
    assert "seen" in asked
