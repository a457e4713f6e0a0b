"""Homes with a history, for tests of replay, export and forks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine_worlds import Counting, opened, priced, three, tool_call

import leviath

if TYPE_CHECKING:
    from pathlib import Path

LOOK = tool_call("look", q="x")


@leviath.tool(effect="pure")
def look(q: str) -> str:
    """Look."""
    return q * 3


async def fill(home: Path, hosts: int = 2, runs: int = 3) -> list[str]:
    """Runs with tools and stages under several hosts; the ids of all of them."""
    ids: list[str] = []
    for _ in range(hosts):
        script = Counting(priced("", LOOK), priced("a"), priced("b"), priced("c"), loop=True)
        async with opened(home, [script], tools=[look]) as world:
            handles = [
                await world.spawn(three("look"), task="t" * 2_000, workdir=home)
                for _ in range(runs)
            ]
            for handle in handles:
                await handle.wait()
            ids += [handle.run_id for handle in handles]
    return ids
