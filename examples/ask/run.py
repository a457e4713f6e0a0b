"""A run asks a person, its host goes away while it waits, and the answer finds it all the same.

    python examples/ask/run.py [--keep FOLDER]

Three hosts open one home: the first asks, the second, which drives nothing, takes the answer, and
the third goes on with it.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import trio

import leviath
from leviath import events

HERE = Path(__file__).resolve().parent


def show(question: leviath.Question) -> None:
    """What a screen would show of a question."""
    print(f"asks ({question.kind}): {question.text} {' / '.join(question.choices)}".rstrip())
    if question.document is not None:
        print(f"  {question.document}")


async def until_asked(run: leviath.RunHandle, *, after: int = 0) -> None:
    """Wait until the run asks something that it did not ask before."""
    async for event in run.events(after=after):
        if isinstance(event, events.QuestionAsked):
            return


async def write_letter(home: Path) -> None:
    """Ask, restart, answer, go on."""
    replies = HERE / "replies.toml"
    async with leviath.open_world(home, providers=[leviath.Scripted(replies)]) as world:
        run = await world.spawn(HERE / "agents" / "letter-writer", task="Thank Ada", workdir=home)
        await until_asked(run)
        (first,) = world.questions()
        show(first)
    print("the host is gone")
    async with leviath.open_world(home, drive=False) as world:
        (question,) = world.questions()
        print(f"still the same question: {question == first}")
        await world.run(question.run_id).answer(question.id, choice=1, actor="ada")
    async with leviath.open_world(home, providers=[leviath.Scripted(replies)]) as world:
        run = world.run(first.run_id)
        async for event in world.events(after=0):
            if isinstance(event, events.QuestionAsked) and event.kind == "point":
                break
        (question,) = world.questions()
        show(question)
        await run.answer(question.id, approved=True, actor="ada")
        row = await run.wait()
        print(f"{row.status}: {run.result()}")


def main() -> None:
    """Keep the home in a folder of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", metavar="FOLDER", type=Path)
    folder: Path | None = parser.parse_args().keep
    with tempfile.TemporaryDirectory() as made:
        home = folder or Path(made) / "home"
        home.mkdir(parents=True, exist_ok=True)
        trio.run(write_letter, home)


if __name__ == "__main__":
    main()
