"""Runs of an open world: started, found, listened to, and found again after a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from engine_worlds import (
    Counting,
    Gate,
    heard,
    in_trio,
    one,
    opened,
    pass_time,
    priced,
    tool_call,
    until,
)

from leviath.components.error_kind import ErrorKind
from leviath.components.errors import (
    ConfigError,
    Locked,
    RunConflict,
    RunNotFound,
    SpawnError,
    StorageError,
    WorldError,
)
from leviath.components.events import Ended, MessageDelivered, Spawned, StatusChanged, TurnFinished
from leviath.components.run_status import RunStatus
from leviath.engine.clock import ManualClock
from leviath.engine.limits import CUT_INTERVAL_MS, METADATA_BYTES_MAX, TASK_BYTES_MAX
from leviath.engine.tools import tool
from leviath.engine.world import open_world
from leviath.providers.scripted import Failure

if TYPE_CHECKING:
    from pathlib import Path

    from leviath.components.events import WorldEvent

SUBMIT = tool_call("submit_output", content="the result")


@tool(effect="pure")
def count(text: str) -> int:
    "Count words."
    return len(text.split())


@pytest.mark.parametrize("durability", ["full", "process", "memory"])
@in_trio
async def test_a_run_goes_from_spawn_to_result(tmp_path: Path, durability: str) -> None:
    provider = Counting(
        priced("", tool_call("count", text="a b")), priced("", SUBMIT), priced("ok")
    )
    async with opened(tmp_path / "home", [provider], tools=[count], durability=durability) as world:
        run = await world.spawn(one("count", "submit_output"), task="go", workdir=tmp_path)
        row = await run.wait()
        assert (row.status, row.tool_calls, row.cost_priced_nano) == ("complete", 2, 3_000)
        assert run.result() == "the result"
        events = [event async for event in run.events()]
        assert isinstance(events[0], Spawned)
        assert isinstance(events[-1], Ended)
        # Number 1 says that the home was opened.
        assert [event.number for event in events] == list(range(2, len(events) + 2))
        ledger = [(line.kind, line.nano_usd, line.certainty) for line in run.ledger()]
        if durability != "memory":
            assert ledger == [("turn", 1_000, "provider")] * 3
    assert provider.asked[-1].agent == "one"


@in_trio
async def test_a_key_finds_its_run_across_restarts_and_after_it_left_memory(tmp_path: Path) -> None:
    clock = ManualClock()
    agent = one(name="keyed")
    ids: set[str] = set()
    for round_ in range(3):
        provider = Counting("done")
        async with opened(tmp_path / "home", [provider], clock=clock) as world:
            run = await world.spawn(agent, task=f"round {round_}", key="k", workdir=tmp_path)
            ids.add(run.run_id)
            await run.wait()
            again = await world.spawn(agent, task="other", key="k", workdir=tmp_path)
            assert again.run_id == run.run_id
            # A cut lets ended runs go.
            await until(lambda: not world.runs(), clock)
            again = await world.spawn(agent, task="other", key="k", workdir=tmp_path)
            assert again.run_id == run.run_id
            assert provider.asked == [] if round_ else [request.key for request in provider.asked]
            assert len(world.listing()) == 1
    assert len(ids) == 1


@in_trio
async def test_an_ended_run_is_found_again_with_all_it_left(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(
        tmp_path / "home", [Counting(priced("", SUBMIT), "bye")], clock=clock
    ) as world:
        run = await world.spawn(one("submit_output"), task="x", workdir=tmp_path)
        before = await run.wait()
        events = [event async for event in run.events()]
        await pass_time(clock, CUT_INTERVAL_MS)
        await world.spawn(one(), task="x", workdir=tmp_path)
        await until(lambda: run.ordinal not in {other.ordinal for other in world.runs()}, clock)
        found = world.run(run.run_id)
        assert found.ordinal == run.ordinal
        assert found.row().ended_ms == before.ended_ms
        assert (await found.wait()).status == "complete"
        assert found.result() == "the result"
        assert [event async for event in found.events()] == events
        # Nothing comes after the last one, and nobody waits for it.
        assert [event async for event in found.events(after=events[-1].number)] == []
        with pytest.raises(RunNotFound):
            _ = found.status
        with pytest.raises(RunConflict, match="has ended"):
            await found.cancel()
        with pytest.raises(RunConflict):
            await found.resume()
        await found.forget()
        with pytest.raises(RunNotFound, match="no run is called"):
            world.run(run.run_id)


@in_trio
async def test_a_run_that_ended_in_error_is_resumed_from_the_disk(tmp_path: Path) -> None:
    clock = ManualClock()
    home = tmp_path / "home"
    refused = Failure(kind=ErrorKind.BAD_REQUEST, message="no")
    async with opened(home, [Counting(refused)], clock=clock) as world:
        run = await world.spawn(one(), task="x", workdir=tmp_path)
        assert (await run.wait()).status == "error"
        await until(lambda: not world.runs(), clock)
    async with opened(home, [Counting("one", "two", "three")], clock=clock) as world:
        assert world.runs() == []
        run = world.run(run.run_id)
        old = [event async for event in run.events()]
        await run.resume()
        row = await run.wait()
        assert (row.status, row.error) == ("complete", None)
        # A stream from the start passes the first ending and ends with the last one.
        events = [event async for event in run.events()]
        assert events[: len(old)] == old
        assert [event.status for event in events if isinstance(event, Ended)] == [
            "error",
            "complete",
        ]


@in_trio
async def test_waiting_ends_though_other_runs_are_never_quiet(tmp_path: Path) -> None:
    busy = Counting(tool_call("count", text="x"), loop=True)
    more = one("count", more="max_iterations = 1000000")
    async with opened(tmp_path / "home", [busy], tools=[count]) as world:
        for _ in range(20):
            await world.spawn(more, task="x", workdir=tmp_path)
        for _ in range(5):
            run = await world.spawn(one("count", more="max_iterations = 2"), workdir=tmp_path)
            await run.wait()
            assert isinstance([event async for event in run.events()][-1], Ended)
        for other in world.runs():
            if not other.status.status.is_ended:
                await other.cancel()


@in_trio
async def test_all_events_are_numbered_without_a_gap_also_for_a_slow_subscriber(
    tmp_path: Path,
) -> None:
    provider = Counting(*[priced("", tool_call("count", text="x"))] * 20, "done")
    async with opened(tmp_path / "home", [provider], tools=[count]) as world:
        world._host.feed.queue_max = 3
        everything = world.events()
        runs = [await world.spawn(one("count"), task="x", workdir=tmp_path) for _ in range(5)]
        for run in runs:
            await run.wait()
        numbers: list[int] = []
        ended = 0
        async for event in everything:
            numbers.append(event.number)
            ended += isinstance(event, Ended)
            if ended == len(runs):
                break
        assert numbers == list(range(1, numbers[-1] + 1))
        assert len(numbers) > 5 * 60
        per_run = [event.number async for event in runs[2].events()]
        assert per_run == sorted(set(per_run))
        tail = [event.number async for event in runs[2].events(after=per_run[9])]
        assert tail == per_run[10:]


@in_trio
async def test_events_go_on_across_a_restart(tmp_path: Path) -> None:
    gate = Gate("done")
    home = tmp_path / "home"
    async with opened(home, [gate]) as world:
        run = await world.spawn(one(), task="x", workdir=tmp_path)
        await gate.waiting.wait()
        seen: list[WorldEvent] = [await heard(run.events(), Spawned)]
        with trio.move_on_after(0.01):
            async for event in run.events(after=seen[-1].number):
                seen.append(event)  # noqa: PERF401 - the stream is broken off
    async with opened(home, [Counting("done")]) as world:
        run = world.run(run.run_id)
        rest = [event async for event in run.events(after=seen[-1].number)]
    # The first number of each host says that it opened the home.
    assert [event.number for event in seen] == list(range(2, len(seen) + 2))
    after = seen[-1].number + 2
    assert [event.number for event in rest] == list(range(after, after + len(rest)))
    assert isinstance(rest[-1], Ended)


@in_trio
async def test_pause_keeps_the_reply_that_lands_and_resume_uses_it(tmp_path: Path) -> None:
    gate = Gate(priced("", tool_call("count", text="a")), "done")
    called: list[str] = []

    @tool(effect="pure", name="count")
    def counted(text: str) -> str:
        "Count."
        called.append(text)
        return "1"

    async with opened(tmp_path / "home", [gate], tools=[counted]) as world:
        run = await world.spawn(one("count"), task="x", workdir=tmp_path)
        await gate.waiting.wait()
        await run.pause(why="lunch", actor="ada")
        gate.open.set()
        await until(run.ledger)
        assert called == []
        status = run.status
        assert (status.status, status.actor, status.why) == (RunStatus.PAUSED, "ada", "lunch")
    for _ in range(3):
        async with opened(tmp_path / "home", [gate], tools=[counted]) as world:
            status = world.run(run.run_id).status
            assert (status.status, status.actor, status.why) == (RunStatus.PAUSED, "ada", "lunch")
            assert called == []
    async with opened(tmp_path / "home", [gate], tools=[counted]) as world:
        run = world.run(run.run_id)
        await run.resume()
        assert (await run.wait()).status == "complete"
    assert called == ["a"]
    assert len(gate.asked) == 2


@in_trio
async def test_a_message_is_delivered_once_before_the_next_request(tmp_path: Path) -> None:
    gate = Gate(priced("", tool_call("count", text="a")), "done")
    async with opened(tmp_path / "home", [gate], tools=[count]) as world:
        run = await world.spawn(one("count"), task="x", workdir=tmp_path)
        await gate.waiting.wait()
        await run.message("mind the \ud83d gap\x00", sender="ada")
        gate.open.set()
        await run.wait()
        delivered = [e async for e in run.events() if isinstance(e, MessageDelivered)]
        assert [event.sender for event in delivered] == ["ada"]
    texts = [[message.text for message in request.messages] for request in gate.asked]
    assert not any("gap" in text for text in texts[0])
    assert sum("gap" in text for text in texts[1]) == 1
    with pytest.raises(ConfigError, match="bytes"):
        await run.message("x" * (TASK_BYTES_MAX + 1))


@in_trio
async def test_cancel_ends_a_run_in_the_middle_of_a_call(tmp_path: Path) -> None:
    gate = Gate("done")
    async with opened(tmp_path / "home", [gate]) as world:
        run = await world.spawn(one(), task="x", workdir=tmp_path)
        await gate.waiting.wait()
        await run.cancel(why="enough", actor="ada")
        row = await run.wait()
        assert row.status == "cancelled"
        await run.cancel()
        for refused in (run.pause(), run.message("x"), run.decide("c", "again")):
            with pytest.raises(RunConflict):
                await refused


@in_trio
async def test_a_second_host_is_refused_by_any_path(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (tmp_path / "link").symlink_to(home)
    async with opened(home, []):
        for path in (home, tmp_path / "link", tmp_path / "." / "home"):
            with pytest.raises(Locked):
                async with opened(path, []):
                    raise AssertionError
    async with opened(tmp_path / "link", []):
        pass


@in_trio
async def test_closing_and_opening_changes_no_status(tmp_path: Path) -> None:
    @tool(name="ask", effect="pure")
    def ask() -> str:
        "Ask."
        return "x"

    head = ""
    permissions = one("ask", name="asks", head=head, more='tool_permissions = { ask = "ask" }')
    gate = Gate(tool_call("ask"), "done")
    gate.open.set()
    home = tmp_path / "home"
    async with opened(home, [gate], tools=[ask]) as world:
        parked = await world.spawn(permissions, task="x", workdir=tmp_path)
        await until(lambda: parked.status.status is RunStatus.WAITING_INPUT)
        gate.open = trio.Event()
        paused = await world.spawn(one(), task="x", workdir=tmp_path)
        await paused.pause()
        ended = await world.spawn(one(), task="x", workdir=tmp_path)
        await ended.cancel()
        running = await world.spawn(one(), task="x", workdir=tmp_path)
        before = {row.run_id: (row.status, row.ended_ms) for row in world.listing()}
    for drive in (False, True):
        async with opened(home, [gate], tools=[ask], drive=drive) as world:
            after = {row.run_id: (row.status, row.ended_ms) for row in world.listing()}
            assert after == before
            assert world.run(running.run_id).status.status is RunStatus.RUNNING
    async with opened(home, [gate], tools=[ask]) as world:
        gate.open.set()
        run = world.run(parked.run_id)
        await run.decide("call-1", "allow")
        assert (await run.wait()).status == "complete"
        assert (await world.run(running.run_id).wait()).status == "complete"
        statuses = [e.status async for e in run.events() if isinstance(e, StatusChanged)]
        assert statuses == ["running", "waiting_input", "running", "complete"]


@in_trio
async def test_what_is_too_large_or_wrong_leaves_nothing_behind(tmp_path: Path) -> None:
    agent = one()
    async with opened(tmp_path / "home", [Counting("x")]) as world:
        for more, match in (
            ({"task": "é" * (TASK_BYTES_MAX // 2 + 1)}, "task has"),
            ({"metadata": {"k": "v" * METADATA_BYTES_MAX}}, "metadata has"),
            ({"key": "k" * 513}, "key is longer"),
            ({"workdir": tmp_path / "none"}, "is no folder"),
            ({"workdir": "a\x00b"}, "NUL"),
            ({"regions": {"nowhere": "x"}}, "no region"),
            ({"run_id": ".."}, "run id"),
            ({"run_id": "a/b"}, "run id"),
            ({"run_id": "n\x00"}, "run id"),
            ({"run_id": "x" * 129}, "run id"),
            ({"run_id": "CON"}, "run id"),
        ):
            with pytest.raises((SpawnError, ConfigError), match=match):
                await world.spawn(agent, **({"workdir": tmp_path} | more))
        with pytest.raises(SpawnError, match="needs tools"):
            await world.spawn(one("missing"), workdir=tmp_path)
        assert world.listing() == []
        assert world._host.world.resident_count() == 0
        for bad in ("", "..", "a/b", "n\x00", "\ud83d", "x" * 300):
            with pytest.raises((RunNotFound, ConfigError)):
                world.run(bad)
        await world.spawn(agent, run_id="mine", workdir=tmp_path)
        with pytest.raises(SpawnError, match="exists already"):
            await world.spawn(agent, run_id="mine", workdir=tmp_path)
        assert len(world.listing()) == 1


@in_trio
async def test_waiting_no_longer_than_asked_does_nothing_to_the_run(tmp_path: Path) -> None:
    gate = Gate("done")
    async with opened(tmp_path / "home", [gate]) as world:
        run = await world.spawn(one(), task="x", workdir=tmp_path)
        with pytest.raises(trio.TooSlowError):
            await run.wait(0.01)
        gate.open.set()
        assert (await run.wait(30)).status == "complete"


@in_trio
async def test_a_cancelled_spawn_happened_or_did_not(tmp_path: Path) -> None:
    async with opened(tmp_path / "home", [Counting("done", "done")]) as world:
        for n in range(20):
            key = f"k{n}"
            with trio.CancelScope() as scope:
                scope.deadline = trio.current_time() + n * 0.0005
                await world.spawn(one(), key=key, workdir=tmp_path)
            run = await world.spawn(one(), key=key, workdir=tmp_path)
            await run.wait()
        keys = sorted(row.key or "" for row in world.listing(limit=100))
        assert keys == sorted(f"k{n}" for n in range(20))


@in_trio
async def test_another_thread_is_refused_clearly(tmp_path: Path) -> None:
    async with opened(tmp_path / "home", [Counting("done")]) as world:
        run = await world.spawn(one(), task="x", workdir=tmp_path)
        await run.wait()

        def elsewhere() -> None:
            for touch in (world.runs, world.events, run.events, lambda: world.run(run.run_id)):
                with pytest.raises(WorldError, match="thread"):
                    touch()

            async def main() -> None:
                for ask in (run.pause(), world.spawn(one(), workdir=tmp_path)):
                    with pytest.raises(WorldError, match="thread"):
                        await ask

            trio.run(main)

        await trio.to_thread.run_sync(elsewhere)


@in_trio
async def test_a_closed_world_says_so(tmp_path: Path) -> None:
    gate = Gate("done")
    async with opened(tmp_path / "home", [gate]) as world:
        run = await world.spawn(one(), task="x", workdir=tmp_path)
        await gate.waiting.wait()
        stream = run.events()
    with pytest.raises(StorageError, match="open it again"):
        await run.pause()
    with pytest.raises(StorageError, match="open it again"):
        await run.wait()
    assert not [event async for event in stream if isinstance(event, Ended)]


@in_trio
async def test_a_world_in_memory_leaves_no_file(tmp_path: Path) -> None:
    async with open_world(
        tmp_path / "home", providers=[Counting("done")], durability="memory"
    ) as world:
        run = await world.spawn(one(), task="x" * 5_000, workdir=tmp_path)
        row = await run.wait()
        assert row.status == "complete"
        assert world.listing() == []
        assert world.home is None
        turns = [event async for event in run.events() if isinstance(event, TurnFinished)]
        assert len(turns) == 1
    assert not any(tmp_path.iterdir())  # noqa: ASYNC240
