"""Worlds for blocking code: a thread drives them, any thread may ask."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import pytest
import trio

import leviath
from leviath.engine.blueprints import parse_blueprint

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


@leviath.tool(effect="pure", name="look")
async def stare() -> str:
    """Look and never stop."""
    await trio.sleep_forever()
    return ""


def test_a_run_goes_from_start_to_end(tmp_path: Path) -> None:
    with leviath.blocking.open_world(
        tmp_path / "home", providers=[replies()], tools=[look]
    ) as world:
        assert world.home == tmp_path / "home"
        assert world.storage_stalled is None
        run = world.spawn(AGENT, key="one", workdir=tmp_path)
        heard = [type(event).__name__ for event in run.events(timeout_s=10)]
        assert (heard[0], heard[-1]) == ("Spawned", "Ended")
        row = run.wait(10)
        assert (row.status, run.result(), len(run.ledger())) == ("complete", "seen", 3)
        assert world.spawn(AGENT, key="one", workdir=tmp_path).run_id == run.run_id
        assert world.run(run.run_id).row().run_id == run.run_id
        assert [row.run_id for row in world.listing()] == [run.run_id]
    assert "leviath-world" not in {thread.name for thread in threading.enumerate()}


def test_many_threads_share_a_world(tmp_path: Path) -> None:
    with (
        leviath.blocking.open_world(
            durability="memory", providers=[replies()], tools=[look]
        ) as world,
        ThreadPoolExecutor(8) as pool,
    ):

        def one(number: int) -> str | None:
            run = world.spawn(AGENT, key=str(number), workdir=tmp_path)
            run.wait(30)
            return run.result()

        assert list(pool.map(one, range(24))) == ["seen"] * 24


def test_a_timeout_leaves_the_run_alone_and_a_reader_where_it_was(tmp_path: Path) -> None:
    with leviath.blocking.open_world(
        durability="memory", providers=[replies()], tools=[stare]
    ) as world:
        run = world.spawn(AGENT, workdir=tmp_path)
        with pytest.raises(TimeoutError):
            run.wait(0.01)
        stream = run.events(timeout_s=0.05)
        numbers: list[int] = []
        with pytest.raises(TimeoutError):
            numbers += [event.number for event in iter(lambda: next(stream), None)]
        assert not run.status.status.is_ended
        run.cancel()
        rest = list(stream)
        assert type(rest[-1]).__name__ == "Ended"
        assert run.wait(10).status == "cancelled"


def test_closing_wakes_who_waits_in_another_thread(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with leviath.blocking.open_world(tmp_path / "home", tools=[look]) as world:
            run = world.spawn(AGENT, workdir=tmp_path)
            waiting = pool.submit(lambda: list(run.events()) and run.wait())
        with pytest.raises(leviath.StorageError, match="closed"):
            waiting.result(10)
        with pytest.raises(leviath.StorageError, match="closed"):
            run.row()
        with pytest.raises(leviath.StorageError, match="closed"):
            run.wait()


def test_errors_come_as_they_are(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with leviath.blocking.open_world(home, providers=[replies()]) as world:
        with pytest.raises(leviath.RunNotFound):
            world.run("nobody")
        with pytest.raises(leviath.SpawnError, match="look"):
            world.spawn(AGENT, workdir=tmp_path)
        with pytest.raises(leviath.Locked), leviath.blocking.open_world(home):
            pass
    with pytest.raises(ZeroDivisionError), leviath.blocking.open_world(home):
        _ = 1 / 0


def test_a_host_that_fails_is_an_error_of_the_block(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with (  # noqa: PT012 - both the call and the block raise
        pytest.raises(leviath.StorageError),
        leviath.blocking.open_world(home, providers=[replies()], tools=[look]) as world,
    ):
        take_over(home)
        with pytest.raises(leviath.StorageError):
            world.spawn(AGENT, workdir=tmp_path)


def test_ctrl_c_cancels_the_call_and_closes_the_world(tmp_path: Path) -> None:
    home = tmp_path / "home"

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        with (  # noqa: PT012 - the signal has to find the block in a call
            pytest.raises(KeyboardInterrupt),
            leviath.blocking.open_world(home, tools=[look]) as world,
        ):
            run = world.spawn(AGENT, key="one", workdir=tmp_path)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            run.wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    with leviath.blocking.open_world(home, providers=[replies()], tools=[look]) as world:
        assert world.spawn(AGENT, key="one", workdir=tmp_path).wait(10).status == "complete"


def test_calls_that_meet_a_closing_world_come_to_an_end(tmp_path: Path) -> None:
    for _ in range(20):
        with ThreadPoolExecutor(3) as pool:
            with leviath.blocking.open_world(durability="memory", tools=[look]) as world:
                run = world.spawn(AGENT, workdir=tmp_path)

                def ask(run: leviath.blocking.Run = run) -> None:
                    while True:
                        run.row()
                        run.pause()

                asking = [pool.submit(ask) for _ in range(3)]
            for future in asking:
                assert isinstance(future.exception(10), leviath.StorageError)
