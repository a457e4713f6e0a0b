"""What goes wrong around a host: its disk, its clocks, its providers, the folders of its runs."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from engine_worlds import (
    Counting,
    Gate,
    heard,
    in_trio,
    one,
    opened,
    pass_time,
    priced,
    three,
    tool_call,
    until,
)
from msgspec.structs import replace
from recording_disks import disk

from leviath.components.errors import BlueprintError, DiskFull, StorageError
from leviath.components.events import Ended, Spawned
from leviath.components.inputs import Slept
from leviath.components.run_status import RunStatus
from leviath.engine.clock import ManualClock
from leviath.engine.limits import INBOX_INPUTS_MAX
from leviath.engine.tools import ToolCall, tool
from leviath.simulation.disk import Fault

if TYPE_CHECKING:
    from pathlib import Path

    from leviath.components.world_facts import Policy


@tool(effect="pure")
def look() -> str:
    "Look."
    return "seen"


def turns(count: int) -> Counting:
    return Counting(*[priced("", tool_call("look"))] * count, priced("done"))


# --- disks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["write", "sync"])
@in_trio
async def test_a_full_disk_stalls_and_goes_on_when_there_is_room(tmp_path: Path, kind: Any) -> None:
    clock = ManualClock()
    home = tmp_path / "home"
    gate = Gate(priced("", tool_call("look")), priced("done"))
    with disk(home) as vfs:
        async with opened(
            home, [gate], tools=[look], durability="full", clock=clock, vfs=vfs.name
        ) as world:
            run = await world.spawn(one("look"), task="x", workdir=tmp_path)
            await gate.waiting.wait()
            vfs.recording.arm(Fault(kind, 1, "enospc", None))
            gate.open.set()
            await until(lambda: world.storage_stalled, clock)
            assert "no space left" in (world.storage_stalled or "")
            stream = run.events(after=3)
            with trio.move_on_after(0.02):
                await heard(stream, Ended)
            for _ in range(3):
                await pass_time(clock, 1_000)
                assert world.storage_stalled
            # The reply that was paid for waits; nothing new went out.
            assert len(gate.asked) == 1
            with trio.move_on_after(0.02) as scope:
                await world.spawn(one("look"), task="x", workdir=tmp_path)
            assert scope.cancelled_caught
            vfs.recording.arm()
            await until(lambda: world.storage_stalled is None, clock)
            assert (await run.wait()).status == "complete"
    async with opened(home, [gate], tools=[look]) as world:
        assert (await world.run(run.run_id).wait()).status == "complete"
        assert len(world.run(run.run_id).ledger()) == 2


@in_trio
async def test_a_full_disk_at_the_close_says_so_and_loses_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    gate = Gate(priced("", tool_call("look")), priced("done"))
    run_id = ""
    with disk(home) as vfs, pytest.raises(DiskFull):  # noqa: PT012 - the block is what raises
        async with opened(home, [gate], tools=[look], durability="full", vfs=vfs.name) as world:
            run = await world.spawn(one("look"), task="x", workdir=tmp_path)
            run_id = run.run_id
            await gate.waiting.wait()
            vfs.recording.arm(Fault("write", 1, "enospc", None))
    gate.open.set()
    async with opened(home, [gate], tools=[look]) as world:
        assert (await world.run(run_id).wait()).status == "complete"


@in_trio
async def test_a_full_disk_during_a_cut_stops_nothing(tmp_path: Path) -> None:
    clock = ManualClock()
    home = tmp_path / "home"
    provider = turns(5)
    agent = one("look", more="max_iterations = 9")
    with disk(home) as vfs:
        async with (
            opened(
                home, [provider], tools=[look], durability="full", clock=clock, vfs=vfs.name
            ) as world,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(until, lambda: False, clock)
            for nth in range(1, 13):
                vfs.recording.arm()
                world._host.cutting.hasten()
                vfs.recording.arm(Fault("write", nth, "enospc", 2))
                run = await world.spawn(agent, task="x" * 3_000, workdir=tmp_path)
                assert (await run.wait()).status == "complete"
                await until(lambda: world._host.is_settled)
            nursery.cancel_scope.cancel()
            assert world._host.fatal is None
    async with opened(home, [provider], tools=[look]) as world:
        assert [row.status for row in world.listing()] == ["complete"] * 12


@pytest.mark.parametrize("kind", ["write", "sync"])
@in_trio
async def test_an_io_error_ends_the_host_and_no_acknowledged_step_is_lost(
    tmp_path: Path, kind: Any
) -> None:
    for nth in range(1, 14, 3):
        home = tmp_path / f"home{nth}"
        numbers: list[int] = []
        run_id = ""
        with disk(home) as vfs:
            with pytest.raises(StorageError) as caught:  # noqa: PT012 - the block is what raises
                async with opened(
                    home, [turns(50)], tools=[look], durability="full", vfs=vfs.name
                ) as world:
                    agent = one("look", more="max_iterations = 60")
                    run = await world.spawn(agent, task="x", workdir=tmp_path)
                    run_id = run.run_id
                    vfs.recording.arm(Fault(kind, nth, "eio", None))
                    async for event in run.events():
                        numbers.append(event.number)  # noqa: PERF401 - the stream is broken off
                    await run.wait()
            assert caught.value.fields.get("io") is True
        async with opened(home, [turns(50)], tools=[look]) as world:
            run = world.run(run_id)
            again = [event.number async for event in run.events()]
            assert again[: len(numbers)] == numbers
            assert (await run.wait()).status == "complete"
            # 51 turns; the call that was in flight may have been made twice.
            assert 51 <= len(run.ledger()) <= 52


# --- the block ----------------------------------------------------------------------------------


@in_trio
async def test_a_cancelled_block_closes_in_order(tmp_path: Path) -> None:
    home = tmp_path / "home"
    run_ids: set[str] = set()
    for number in range(12):
        with trio.CancelScope() as scope:
            async with opened(home, [turns(10_000)], tools=[look]) as world:
                scope.deadline = trio.current_time() + 0.002 * number
                run = await world.spawn(
                    one("look", more="max_iterations = 100000"),
                    key=str(number),
                    workdir=tmp_path,
                )
                run_ids.add(run.run_id)
                await trio.sleep_forever()
        assert scope.cancelled_caught
    async with opened(home, [turns(10_000)], tools=[look]) as world:
        assert world._opened.clean
        assert run_ids <= {row.run_id for row in world.listing(limit=100)}
        for run in world.runs():
            assert run.status.status is RunStatus.RUNNING
            assert not [line for line in run.ledger() if line.certainty == "unknown"]
            await run.cancel()


@in_trio
async def test_a_block_that_raises_raises_just_that(tmp_path: Path) -> None:
    gate = Gate("done")
    run_id = ""
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what raises
        async with opened(tmp_path / "home", [gate]) as world:
            run = await world.spawn(one(), task="x", workdir=tmp_path)
            run_id = run.run_id
            await gate.waiting.wait()
            raise ZeroDivisionError
    async with opened(tmp_path / "home", [gate]) as world:
        assert world.run(run_id).status.status is RunStatus.RUNNING
        assert world._opened.clean


@in_trio
async def test_a_call_in_flight_at_the_close_is_no_outcome(tmp_path: Path) -> None:
    gate = Gate(priced("", tool_call("wait")), "done")
    gate.open.set()
    begun = trio.Event()
    calls: list[int] = []
    run_id = ""

    @tool(effect="idempotent")
    async def wait() -> str:
        "Wait."
        calls.append(1)
        begun.set()
        if len(calls) == 1:
            await trio.sleep_forever()
        return "waited"

    with trio.CancelScope() as scope:
        async with opened(tmp_path / "home", [gate], tools=[wait]) as world:
            run = await world.spawn(one("wait"), task="x", workdir=tmp_path)
            run_id = run.run_id
            await begun.wait()
            scope.cancel()
            await trio.lowlevel.checkpoint()
    async with opened(tmp_path / "home", [gate], tools=[wait]) as world:
        assert (await world.run(run_id).wait()).status == "complete"
    assert len(calls) == 2
    assert gate.asked[-1].messages[-1].text == "waited"


# --- clocks -------------------------------------------------------------------------------------


@in_trio
async def test_neither_a_moved_wall_clock_nor_a_sleeping_machine_times_anything_out(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    gate = Gate(priced("done"))
    hours_ms = 8 * 3_600_000
    async with opened(tmp_path / "home", [gate], clock=clock) as world:
        run = await world.spawn(one(), task="x", workdir=tmp_path)
        await gate.waiting.wait()
        for mono, wall in ((0, hours_ms), (hours_ms, hours_ms), (0, -2 * hours_ms)):
            clock.advance(mono, wall_ms=wall)
            for _ in range(3):
                await pass_time(clock, 1_000)
            assert run.status.status is RunStatus.RUNNING
        assert world._host.time.now_ms() < 60_000
        gate.open.set()
        row = await run.wait()
    assert row.status == "complete"
    assert len(gate.asked) == 1


@in_trio
async def test_a_model_call_that_hangs_is_given_up_in_world_time(tmp_path: Path) -> None:
    clock = ManualClock()
    gate = Gate("done")
    async with opened(tmp_path / "home", [gate], clock=clock, policy=short_calls) as world:
        run = await world.spawn(one(), task="x", workdir=tmp_path)
        await gate.waiting.wait()
        await pass_time(clock, 10_000)
        assert run.status.status is RunStatus.RUNNING
        await until(lambda: run._is_over, clock)
        row = await run.wait()
        assert row.status == "error"
        assert "given up" in (row.error or "")


def short_calls(policy: Policy) -> Policy:
    return replace(policy, call_total_ms=20_000, attempts_max=1)


# --- what a run needs ---------------------------------------------------------------------------


def waits_for_input(run: Any) -> bool:
    return run.status.status is RunStatus.WAITING_INPUT


@in_trio
async def test_a_run_waits_for_its_provider_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    home = tmp_path / "home"
    gate = Gate(priced("done"))
    async with opened(home, [gate]) as world:
        run = await world.spawn(one(), task="x", workdir=tmp_path)
        await gate.waiting.wait()
    for _ in range(2):
        async with opened(home, []) as world:
            run = world.run(run.run_id)
            await until(partial(waits_for_input, run))
            waiting = run.status.waiting
            assert waiting is not None
            assert (waiting.reason, waiting.blocker) == ("needs_setup", "provider_missing")
            other = await world.spawn(one(), task="x", workdir=tmp_path)
            await until(partial(waits_for_input, other))
    gate.open.set()
    async with opened(home, [gate]) as world:
        for each in world.runs():
            assert (await each.wait()).status == "complete"
        assert len(world.listing()) == 3


@in_trio
async def test_a_run_keeps_its_blueprint_when_the_file_is_edited_or_gone(tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    folder.mkdir()
    manifest = folder / "agent.leviath"
    text = """
[agent]
name = "filed"
[stages.main]
available_tools = ["look"]
[stages.main.model]
models = [{ provider = "scripted", model = "m" }]
"""
    manifest.write_text(text)
    home = tmp_path / "home"
    gate = Gate(priced("", tool_call("look")), priced("done"))
    ids: list[str] = []
    async with opened(home, [gate], tools=[look]) as world:
        for _ in range(2):
            run = await world.spawn(folder, task="x", workdir=tmp_path)
            ids.append(run.run_id)
        manifest.write_text(text.replace("look", "nothing-like-it"))
        with pytest.raises(Exception, match="nothing-like-it"):
            await world.spawn(folder, task="x", workdir=tmp_path)
    manifest.write_text("nonsense")
    gate.open.set()
    async with opened(home, [gate], tools=[look]) as world:
        assert (await world.run(ids[0]).wait()).status == "complete"
        with pytest.raises(BlueprintError):
            await world.spawn(folder, task="x", workdir=tmp_path)
    shutil.rmtree(folder)
    async with opened(home, [gate], tools=[look]) as world:
        assert (await world.run(ids[1]).wait()).status == "complete"
        with pytest.raises(BlueprintError):
            await world.spawn(folder, task="x", workdir=tmp_path)


@in_trio
async def test_a_run_whose_tool_is_gone_waits_for_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    gate = Gate(priced("", tool_call("look")), priced("done"))
    async with opened(home, [gate], tools=[look]) as world:
        run = await world.spawn(one("look"), task="x", workdir=tmp_path)
        await gate.waiting.wait()
    gate.open.set()
    async with opened(home, [gate]) as world:
        lacking = world.run(run.run_id)
        await until(lambda: "tools: look" in getattr(lacking.status.waiting, "remedy", ""))
    async with opened(home, [gate], tools=[look]) as world:
        assert (await world.run(run.run_id).wait()).status == "complete"
    assert not gate.asked[-1].messages[-1].is_error


@pytest.mark.parametrize("when", ["turn", "tool"])
@in_trio
async def test_a_run_whose_workdir_is_gone_fails_with_a_reason(tmp_path: Path, when: str) -> None:
    workdir = tmp_path / "work"
    workdir.mkdir()
    gate = Gate(priced("", tool_call("wait"), tool_call("look")), priced("done"))

    @tool(effect="pure")
    async def wait() -> str:
        "Wait."
        if when == "turn":
            workdir.rmdir()
        return "waited"

    tools = [wait, look]
    async with opened(tmp_path / "home", [gate], tools=tools) as world:
        run = await world.spawn(one("wait", "look"), task="x", workdir=workdir)
        await gate.waiting.wait()
        if when == "tool":
            workdir.rmdir()
        gate.open.set()
        row = await run.wait()
        assert row.status == "error"
        assert "is gone" in (row.error or "")
        assert str(workdir) in (row.error or "")
        workdir.mkdir()
        gate.asked.clear()
        await run.resume()
        await run.wait()
        assert gate.asked


@in_trio
async def test_a_crash_before_the_first_step_of_a_run_leaves_it_driven_again(
    tmp_path: Path,
) -> None:
    """A host that carries out requests only leaves runs that the next one starts within a step."""
    home = tmp_path / "home"
    async with opened(home, [], drive=False) as world:
        run = await world.spawn(three(), task="x", workdir=tmp_path)
        assert run.status.status in (RunStatus.STARTING, RunStatus.RUNNING)
    provider = Counting(*[priced("ok")] * 3)
    async with opened(home, [provider]) as world:
        run = world.run(run.run_id)
        stream = run.events()
        assert isinstance(await heard(stream, Spawned), Spawned)
        assert (await run.wait()).status == "complete"
    assert len(provider.asked) == 3


@pytest.mark.parametrize("unattended", [False, True])
@in_trio
async def test_closing_between_two_calls_leaves_none_that_may_have_happened(
    tmp_path: Path, unattended: bool
) -> None:
    """Busy runs, closed in order again and again: nobody is asked, and nothing was interrupted."""
    sent: list[str] = []

    @tool(effect="once")
    def send(call: ToolCall) -> str:
        "Send."
        sent.append(call.idempotency_key)
        return "sent"

    home = tmp_path / "home"
    agent = one("send", more="max_iterations = 60")
    turns_ = [priced("", tool_call("send"))] * 30
    ids: list[str] = []
    closings = 0
    while True:
        async with opened(
            home, [Counting(*turns_, priced("done"))], tools=[send], grace_ms=30_000
        ) as world:
            if not ids:
                for _ in range(8):
                    run = await world.spawn(agent, yolo=unattended, workdir=tmp_path)
                    ids.append(run.run_id)
            stream = world.events()
            left = [run for run in world.runs() if not run.status.status.is_ended]
            if not left:
                break
            assert {run.status.status for run in left} <= {RunStatus.STARTING, RunStatus.RUNNING}
            for _ in range(40):
                event = await anext(stream)
                if isinstance(event, Ended):
                    break
        closings += 1
        assert closings < 400
    assert closings > 3
    async with opened(home, []) as world:
        for run_id in ids:
            run = world.run(run_id)
            assert run.row().status == "complete"
            assert {line.certainty for line in run.ledger()} == {"provider"}
            assert len(run.ledger()) == 31
    assert len(sent) == len(set(sent)) == 8 * 30


@in_trio
async def test_who_asks_a_world_whose_inbox_is_full_waits_outside(tmp_path: Path) -> None:
    clock = ManualClock()
    home = tmp_path / "home"
    with disk(home) as vfs:
        async with opened(
            home, [Gate("done")], durability="full", clock=clock, vfs=vfs.name
        ) as world:
            run = await world.spawn(one(), workdir=tmp_path)
            vfs.recording.arm(Fault("write", 1, "enospc", None))
            host = world._host
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run.pause)
                await until(lambda: world.storage_stalled, clock)
                host.inbox.extend([Slept(1)] * INBOX_INPUTS_MAX)
                nursery.start_soon(partial(world.spawn, one(), workdir=tmp_path))
                await trio.testing.wait_all_tasks_blocked(0.05)
                assert len(host.inbox) == INBOX_INPUTS_MAX
                vfs.recording.arm()
                await until(lambda: world.storage_stalled is None, clock)
            assert len(world.listing()) == 2
