"""A world without a home still has somewhere for its tools' drafts and long results."""

from __future__ import annotations

from pathlib import Path

import trio

import leviath
from leviath.engine.blueprints import parse_blueprint

AGENT = parse_blueprint(
    """
    [tool_permissions]
    shell = "allow"
    [stages.main]
    available_tools = ["write_file", "shell"]
    model = { provider = "scripted", model = "m" }
    """,
    where="agent",
)


def test_tools_that_write_work_without_a_home(tmp_path: Path) -> None:
    provider = leviath.Scripted.of(
        leviath.tool_call("write_file", path="a.txt", content="a"),
        leviath.tool_call("shell", command="cat a.txt a.txt > b.txt"),
        "Done.",
    )

    async def main() -> None:
        async with leviath.open_world(durability="memory", providers=[provider]) as world:
            run = await world.spawn(AGENT, workdir=tmp_path)
            assert (await run.wait(30)).status == "complete"

    trio.run(main)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt"]
    assert (tmp_path / "b.txt").read_text() == "aa"
