"""A researcher splits a question among readers, and writes a report of what they found.

    python examples/research/run.py [--keep FOLDER]

One of the four readers fails: the report is written from the others, and says so.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

import trio

import leviath
from leviath import events

HERE = Path(__file__).resolve().parent
QUESTION = "How was the harvest of 2023?"


def dollars(total: leviath.Totals) -> str:
    """What a tree cost; the unknown is said, not left out."""
    if total.nano_usd is None:
        return f"${total.priced_nano / 1e9:.6f} and {total.unpriced} calls without a price"
    return f"${total.nano_usd / 1e9:.6f}"


async def research(home: Path, work: Path) -> None:
    """Ask the question, tell the tree as it grows, and print what came of it."""
    script = leviath.Scripted(HERE / "replies.toml")
    async with leviath.open_world(home, providers=[script]) as world:
        # Its readers are found by name beside it, outside of the folder that it works in.
        run = await world.spawn(HERE / "agents" / "researcher", task=QUESTION, workdir=work)
        async for event in run.events():
            match event:
                case events.StageEntered():
                    print(f"stage {event.stage}")
                case events.ChildSpawned():
                    print(f"  reader for {event.item}")
                case events.ChildrenJoined():
                    print(f"  {event.succeeded} of {event.total} readers found something")
                case events.Ended():
                    print(event.status)
                case _:
                    pass
        print(run.result())
        for child in run.children():
            row, total = child.row(), child.total()
            print(f"  {row.status:9} {dollars(total)}")
        print(f"  together  {dollars(run.total())}")


def main() -> None:
    """Work in a copy of the sources."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", metavar="FOLDER", type=Path)
    folder: Path | None = parser.parse_args().keep
    with tempfile.TemporaryDirectory() as scratch:
        place = folder or Path(scratch)
        shutil.copytree(HERE / "work", place / "work")
        trio.run(research, place / "home", place / "work")


if __name__ == "__main__":
    main()
