"""Worlds in an asyncio program: real loops, nothing blocked, asyncio's cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
import trio

import leviath
from leviath.engine.blueprints import parse_blueprint
from leviath.engine.ports import InferenceReply, InferenceRequest

AGENT = parse_blueprint(
    """
    [stages.main]
    available_tools = ["look", "submit_output"]
    model = { provider = "scripted", model = "m" }
    """,
    where="agent",
)


def take_over(home: Path) -> None:
    """Be another host that claims the home. From a process, because locks are a process's."""
    program = (
        "import sqlite3, sys; database = sqlite3.connect(sys.argv[1]); "
        "database.execute('update world set epoch = epoch + 1'); database.commit()"
    )
    subprocess.run([sys.executable, "-c", program, home / "world.db"], check=True)


def replies() -> leviath.Scripted:
    """Look once, hand in a result, end."""
    return leviath.Scripted.of(
        leviath.tool_call("look"), leviath.tool_call("submit_output", content="seen"), "Done."
    )


@leviath.tool(effect="pure")
def look() -> str:
    """Look."""
    return "nothing"


def never() -> Callable[..., object]:
    """A tool that waits on the asyncio loop until it is cancelled, and tells of that."""

    class Never:
        def __init__(self) -> None:
            self.started = asyncio.Event()
            self.cancelled = asyncio.Event()

        async def look(self) -> str:
            self.started.set()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self.cancelled.set()
            return ""

    return Never().look


def run(main: Callable[[], Coroutine[object, object, None]]) -> None:
    """Run under asyncio, and see that nothing is left behind for the next test."""
    asyncio.run(main())
    gc.collect()
    with pytest.raises(RuntimeError):
        trio.lowlevel.current_trio_token()


def test_a_run_goes_from_start_to_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with leviath.aio.open_world(
            tmp_path / "home", providers=[replies()], tools=[look]
        ) as world:
            assert world.home == tmp_path / "home"
            assert world.storage_stalled is None
            one = await world.spawn(AGENT, key="one", workdir=tmp_path)
            heard = [type(event).__name__ async for event in one.events()]
            assert (heard[0], heard[-1]) == ("Spawned", "Ended")
            row = await one.wait(10)
            assert (row.status, one.result(), len(one.ledger())) == ("complete", "seen", 3)
            again = await world.spawn(AGENT, key="one", workdir=tmp_path)
            assert again.run_id == one.run_id == world.run(one.run_id).run_id
            assert [row.run_id for row in world.listing()] == [one.run_id]

    run(main)


def test_the_loop_keeps_ticking_and_so_does_the_world(tmp_path: Path) -> None:
    """A hundred runs and a heartbeat share the thread; neither waits for the other to end."""

    async def main() -> None:
        beats = 0
        thread = threading.get_ident()
        threads: set[int] = set()

        async def beat() -> None:
            nonlocal beats
            while True:
                await asyncio.sleep(0)
                beats += 1

        @leviath.tool(effect="pure", name="look")
        async def look_on_the_loop() -> int:
            """Look."""
            threads.add(threading.get_ident())
            before = beats
            while beats < before + 3:  # noqa: ASYNC110 - a beat is what it waits for
                await asyncio.sleep(0)
            return beats

        heart = asyncio.create_task(beat())
        async with leviath.aio.open_world(
            durability="memory", providers=[replies()], tools=[look_on_the_loop]
        ) as world:
            runs = await asyncio.gather(*(world.spawn(AGENT, workdir=tmp_path) for _ in range(100)))
            rows = await asyncio.gather(*(one.wait(30) for one in runs))
        heart.cancel()
        assert {row.status for row in rows} == {"complete"}
        assert threads == {thread}
        assert beats > 20

    run(main)


def test_a_timeout_is_one_of_asyncios_and_leaves_the_run_alone(tmp_path: Path) -> None:
    async def main() -> None:
        tool = never()
        async with leviath.aio.open_world(
            durability="memory", providers=[replies()], tools=[tool]
        ) as world:
            one = await world.spawn(AGENT, workdir=tmp_path)
            with pytest.raises(TimeoutError):
                await one.wait(0.01)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await one.wait()
            assert not one.status.status.is_ended
            await one.cancel(why="enough")
            assert (await one.wait(10)).status == "cancelled"

    run(main)


def test_cancelling_a_run_cancels_its_tool_on_the_loop(tmp_path: Path) -> None:
    async def main() -> None:
        tool = never()
        owner = tool.__self__  # type: ignore[attr-defined]
        async with leviath.aio.open_world(
            durability="memory", providers=[replies()], tools=[tool]
        ) as world:
            one = await world.spawn(AGENT, workdir=tmp_path)
            await asyncio.wait_for(owner.started.wait(), 10)
            await one.cancel()
            await asyncio.wait_for(owner.cancelled.wait(), 10)

    run(main)


def test_a_cancelled_reader_loses_no_event(tmp_path: Path) -> None:
    async def main() -> None:
        async with leviath.aio.open_world(
            durability="memory", providers=[replies()], tools=[look]
        ) as world:
            everything = world.events()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(everything), 0.01)
            one = await world.spawn(AGENT, workdir=tmp_path)
            await one.wait(10)
            numbers: list[int] = []
            for _ in range(12):
                reading = asyncio.ensure_future(anext(everything))
                await asyncio.sleep(0)
                reading.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    numbers.append((await reading).number)
                event = await asyncio.wait_for(anext(everything), 10)
                numbers.append(event.number)
                if isinstance(event, leviath.events.Ended):
                    break
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            assert len(numbers) > 8
            everything.close()

    run(main)


def test_errors_come_as_they_are(tmp_path: Path) -> None:
    async def main() -> None:
        async with leviath.aio.open_world(tmp_path / "home", providers=[replies()]) as world:
            with pytest.raises(leviath.RunNotFound):
                world.run("nobody")
            with pytest.raises(leviath.SpawnError, match="look"):
                await world.spawn(AGENT, workdir=tmp_path)
            with pytest.raises(leviath.Locked):
                async with leviath.aio.open_world(tmp_path / "home"):
                    pass
        with pytest.raises(ZeroDivisionError):
            async with leviath.aio.open_world(tmp_path / "home"):
                _ = 1 / 0

    run(main)


def test_worlds_of_one_loop_share_a_guest(tmp_path: Path) -> None:
    async def one(home: Path) -> None:
        async with leviath.aio.open_world(home, providers=[replies()], tools=[look]) as world:
            handle = await world.spawn(AGENT, workdir=tmp_path)
            await handle.wait(30)

    async def main() -> None:
        for _ in range(2):
            await asyncio.gather(*(one(tmp_path / str(n)) for n in range(3)))
            await one(tmp_path / "0")

    run(main)


def test_a_cancelled_block_closes_its_world_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        opened = asyncio.Event()

        async def body() -> None:
            async with leviath.aio.open_world(
                tmp_path / "home", providers=[replies()], tools=[look]
            ) as world:
                await world.spawn(AGENT, key="one", workdir=tmp_path)
                opened.set()
                await asyncio.get_running_loop().create_future()

        task = asyncio.create_task(body())
        await asyncio.wait_for(opened.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with leviath.aio.open_world(
            tmp_path / "home", providers=[replies()], tools=[look]
        ) as world:
            one = await world.spawn(AGENT, key="one", workdir=tmp_path)
            assert (await one.wait(10)).status == "complete"

    run(main)


def test_a_host_that_fails_ends_the_block(tmp_path: Path) -> None:
    """Another host takes the home over: the block, which waits for nothing of ours, hears of it."""

    async def main() -> None:
        home = tmp_path / "home"
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        spawning: asyncio.Future[leviath.aio.Run] | None = None
        with pytest.raises(leviath.StorageError):  # noqa: PT012 - raised where the block ends
            async with leviath.aio.open_world(home, providers=[replies()], tools=[look]) as world:
                take_over(home)
                spawning = asyncio.ensure_future(world.spawn(AGENT, workdir=tmp_path))
                await waiting
        assert spawning is not None
        with pytest.raises(leviath.StorageError):
            await spawning
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    run(main)


def test_a_call_after_the_end_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with leviath.aio.open_world(durability="memory") as world:
            pass
        with pytest.raises(leviath.StorageError, match="closed"):
            await world.spawn(AGENT, workdir=tmp_path)

    run(main)


class OnTheLoop:
    """A provider whose client needs asyncio."""

    name = "scripted"

    async def infer(
        self, request: InferenceRequest, on_text: Callable[[str], None] | None
    ) -> InferenceReply:
        """Answer after a turn of the asyncio loop."""
        await asyncio.sleep(0)
        return InferenceReply(text="Done.")


def test_a_provider_may_live_on_the_asyncio_loop(tmp_path: Path) -> None:
    async def main() -> None:
        provider = leviath.aio.OnAsyncio(OnTheLoop())
        async with leviath.aio.open_world(
            durability="memory", providers=[provider], tools=[look]
        ) as world:
            one = await world.spawn(AGENT, workdir=tmp_path)
            assert (await one.wait(10)).status == "complete"

    run(main)
