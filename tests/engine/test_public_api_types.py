"""What type checkers see of the public names; ``make check`` runs mypy and pyright over this file.

Nothing here has to run. ``assert_type`` fails a checker, not a test.
"""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import leviath
from leviath.engine.listening import EventStream


@leviath.tool
def bare(text: str) -> int:
    """Count."""
    return len(text)


@leviath.tool(effect="pure", deadline_ms=1_000)
async def slow(text: str, *, times: int = 1) -> str:
    """Repeat."""
    return text * times


def test_a_tool_is_still_the_function() -> None:
    assert_type(bare("a"), int)
    assert_type(bare.schema_json, str)
    assert bare("abc") == 3


async def under_trio(home: Path) -> None:
    """A host on trio."""
    async with leviath.open_world(
        home, providers=[leviath.Scripted.of("Done.")], tools=[bare, slow]
    ) as world:
        assert_type(world, leviath.OpenWorld)
        run = await world.spawn("agent", task="work", workdir=home)
        assert_type(run, leviath.RunHandle)
        assert_type(run.events(), EventStream)
        assert_type(await run.wait(1.5), leviath.RunRow)
        assert_type(run.result(), str | None)
        assert_type(run.ledger(), list[leviath.LedgerRow])
        assert_type(world.listing(limit=1), list[leviath.RunRow])
        async for event in run.events():
            if isinstance(event, leviath.events.TurnFinished):
                assert_type(event.nano_usd, int | None)


async def under_asyncio(home: Path) -> None:
    """The same on asyncio: the same arguments, other handles."""
    async with leviath.aio.open_world(home, durability="process", tools=[bare]) as world:
        assert_type(world, leviath.aio.World)
        run = await world.spawn("agent", task="work", workdir=home, key="one")
        assert_type(run, leviath.aio.Run)
        assert_type(await run.wait(1.5), leviath.RunRow)
        await run.decide("call-1", "done", actor="host")
        async for event in run.events(after=3):
            assert_type(event.number, int)


def in_blocking_code(home: Path) -> None:
    """The same without await."""
    with leviath.blocking.open_world(home, slots=4) as world:
        assert_type(world, leviath.blocking.World)
        run = world.spawn("agent", task="work")
        assert_type(run, leviath.blocking.Run)
        assert_type(run.wait(), leviath.RunRow)
        for event in run.events(timeout_s=1):
            assert_type(event.run_id, str)


def of_run_files(path: Path) -> None:
    """A program that only reads."""
    meta = leviath.RunMeta.load(path)
    assert_type(meta.status, leviath.RunStatus)
    assert_type(meta.cost_usd, float | None)
    assert_type(meta.status.wire(), str)
    assert_type(leviath.__version__, str)
    assert_type(leviath.load_blueprint(path).blueprint, leviath.Blueprint)


async def what_checkers_refuse(world: leviath.aio.World) -> None:
    """Arguments are checked through the asyncio face as they are in the trio one."""
    await world.spawn("agent", tasks="work")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    bare(1)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
