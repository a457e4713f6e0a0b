"""Every example agent does what the file beside it says, with the replies that lie there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio

import leviath
from leviath import events

AGENTS = Path(__file__).parents[2] / "examples" / "agents"
TASKS = {
    "summarise": "Summarise notes.txt",
    "ticket-fixer": "Ticket 7: a discount makes things dearer, see price.py",
}


@leviath.tool(effect="pure")
def word_count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


def line(event: events.WorldEvent) -> str | None:
    """What an expected file shows of an event."""
    match event:
        case events.StageEntered():
            return f"stage {event.stage}"
        case events.ToolEnded():
            return f"  {event.tool} {'failed' if event.is_error else 'done'}"
        case events.TurnFinished() if not event.tool_calls:
            return "  text"
        case events.Ended():
            return f"{event.status} after {event.turns} turns"
        case _:
            return None


def perform(agent: Path, work: Path) -> str:
    """Run an agent in a copy of its working folder; returns what its expected file should say."""
    lines: list[str | None] = []

    async def main() -> None:
        async with leviath.open_world(
            durability="memory",
            providers=[leviath.Scripted(agent / "replies.toml")],
            tools=[word_count],
        ) as world:
            run = await world.spawn(agent, task=TASKS[agent.name], workdir=work)
            lines.extend([line(event) async for event in run.events()])
            lines.append(f"result: {run.result()}")

    trio.run(main)
    return "".join(f"{text}\n" for text in lines if text is not None)


@pytest.mark.parametrize("name", sorted(path.name for path in AGENTS.iterdir()))
def test_an_example_agent_does_what_it_promises(name: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    shutil.copytree(AGENTS / name / "work", work)
    expected = (AGENTS / name / "expected.txt").read_text(encoding="utf-8")
    assert perform(AGENTS / name, work) == expected
