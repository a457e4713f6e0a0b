"""What users of such systems reported about restarts: ghosts, double work, lost totals, lost words.

Each test is one promise, kept through the public API on a real home. Most crashes are a copy of
the home at one moment, which is what a killed host leaves; one is a killed process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import reports.fleet as fleet
import trio
from crashed_homes import crashed
from engine_worlds import Counting, Gate, in_trio, one, opened, pass_time, priced, tool_call, until
from lev_commands import SRC, Place

from leviath.components.errors import SpawnError
from leviath.components.events import StageEntered
from leviath.components.run_status import RunStatus
from leviath.engine.blueprints import parse_blueprint
from leviath.engine.clock import ManualClock
from leviath.engine.limits import HEARTBEAT_INTERVAL_MS
from leviath.engine.tools import ToolCall, tool
from leviath.persistence.run_meta import RunMeta
from leviath.providers.scripted import Reply

if TYPE_CHECKING:
    from leviath.engine.run_handle import RunHandle

SUBMIT = tool_call("submit_output", content="the answer")


def meta_of(home: Path, run: RunHandle) -> RunMeta:
    """The run's document as any program reads it."""
    return RunMeta.load(home / "runs" / run.run_id / "meta.json")


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    return Place(tmp_path, capsys)


# --- after a crash, nothing is a ghost ----------------------------------------------------------


def killed_fleet(place: Place) -> None:
    """Fifty runs in mixed states, whose host was killed."""
    process = subprocess.Popen(
        [sys.executable, fleet.__file__, str(place.home), str(place.path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(SRC), *sys.path])},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    finally:
        process.kill()
        process.communicate()


def test_after_a_crash_every_run_is_driven_or_over_and_none_is_a_ghost(place: Place) -> None:
    killed_fleet(place)
    listed = place.lev("ps", "--all", "--json", "--limit", "100").document()
    runs = listed["runs"] + listed["finished"] + listed["not_running"]
    assert len(runs) == fleet.RUNS
    assert listed["health"]["agents"]["active"] == 0
    for run in listed["runs"]:
        assert run["interrupted"] is (run["status"] in ("starting", "running"))

    async def drive() -> None:
        async with opened(place.home, fleet.providers(thinks=False), tools=[fleet.send]) as world:
            await until(lambda: all(settled(run) for run in world.runs()))
            await until(lambda: world._host.is_settled)
            live = {run.run_id for run in world.runs() if not run.status.status.is_ended}
            rows = world.listing(limit=100)
            assert {row.run_id for row in rows if row.ended_ms is None} == live
            for run in world.runs():
                status = run.status.status
                if status is RunStatus.PAUSED:
                    await run.resume()
                elif status is RunStatus.WAITING_INPUT:
                    was_sent = run.row().agent_name == "sends"
                    await run.decide("call-1", "done" if was_sent else "allow")
            for row in rows:
                await world.run(row.run_id).wait()
            assert not [row for row in world.listing(limit=100) if row.ended_ms is None]

    def settled(run: RunHandle) -> bool:
        return run.status.status not in (RunStatus.STARTING, RunStatus.RUNNING)

    trio.run(drive)
    ended = place.lev("ps", "--all", "--json", "--limit", "100").document()
    words = [run["status"] for part in ("finished", "not_running") for run in ended[part]]
    expected = {"complete": 36, "error": 7, "cancelled": 7}
    assert {word: words.count(word) for word in set(words)} == expected


# --- nothing is done twice ----------------------------------------------------------------------


@in_trio
async def test_finished_calls_come_from_the_journal_and_the_unfinished_one_keeps_its_key(
    tmp_path: Path,
) -> None:
    calls: list[tuple[str, str, int]] = []
    begun = trio.Event()
    hangs = True

    @tool(effect="idempotent")
    async def book(call: ToolCall, what: str) -> str:
        "Book."
        calls.append((what, call.idempotency_key, call.attempt))
        if what == "third" and hangs:
            begun.set()
            await trio.sleep_forever()
        return f"booked {what}"

    asked = [tool_call("book", what=what) for what in ("first", "second", "third")]
    provider = Counting(priced("", *asked), priced("done"))
    home = tmp_path / "home"
    async with opened(home, [provider], tools=[book]) as world:
        run = await world.spawn(one("book"), task="x", workdir=tmp_path)
        await begun.wait()
        await until(lambda: world._host.is_settled)
        copy = crashed(home, tmp_path / "crashed")
    hangs = False
    async with opened(copy, [provider], tools=[book]) as world:
        assert (await world.run(run.run_id).wait()).status == "complete"
    assert sorted(what for what, _, _ in calls) == ["first", "second", "third", "third"]
    (key, first), (again, second) = [call[1:] for call in calls if call[0] == "third"]
    assert key == again
    assert (first, second) == (1, 2)
    said = [message.text for message in provider.asked[-1].messages if message.role == "tool"]
    assert said == ["booked first", "booked second", "booked third"]


@pytest.mark.parametrize("unattended", [False, True])
@in_trio
async def test_a_line_is_appended_once_whatever_the_moment_of_the_crash(
    tmp_path: Path, unattended: bool
) -> None:
    """Around a call that must not be repeated: a crash before it, in it, and after it."""
    lines: list[str] = []
    home = tmp_path / "home"
    copies: dict[str, tuple[Path, int]] = {}

    def crash(when: str) -> None:
        copies[when] = (crashed(home, tmp_path / when), len(lines))

    @tool(effect="once")
    def append() -> str:
        "Append."
        crash("before")
        lines.append("line")
        crash("after")
        return "appended"

    gate = Gate(priced("", tool_call("append")), priced("done"))
    async with opened(home, [gate], tools=[append]) as world:
        run = await world.spawn(one("append"), task="x", yolo=unattended, workdir=tmp_path)
        await gate.waiting.wait()
        await until(lambda: world._host.is_settled)
        crash("asked")
        gate.open.set()
        await run.wait()
        crash("ended")

    @tool(effect="once", name="append")
    def append_again() -> str:
        "Append."
        lines.append("line")
        return "appended"

    for when, (copy, written) in copies.items():
        lines[:] = ["line"] * written
        provider = Counting(priced("", tool_call("append")), priced("done"))
        async with opened(copy, [provider], tools=[append_again]) as world:
            found = world.run(run.run_id)
            in_doubt = when in ("before", "after")
            if in_doubt and not unattended:
                await until(lambda found=found: found.status.waiting)  # type: ignore[misc]
                assert len(lines) == written
                await found.decide("call-1", "done" if written else "again")
            assert (await found.wait()).status == "complete"
            if in_doubt and unattended:
                told = [m.text for m in provider.asked[-1].messages if m.role == "tool"]
                assert told[0].startswith("[may have happened]")
                assert len(lines) == written
            else:
                assert len(lines) == 1


# --- totals, limits and words outlive the process -------------------------------------------------


@in_trio
async def test_totals_go_on_over_a_restart_and_what_is_unknown_stays_unknown(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    look = tool_call("look")

    @tool(effect="pure", name="look")
    def looks() -> str:
        "Look."
        return "seen"

    turns = [priced("", look) for _ in range(9)]
    agent = one("look", more="max_iterations = 20")
    for name, replies, unpriced in (
        ("priced", [*turns, priced("done")], 0),
        ("unpriced", [Reply(calls=(look,)), *turns[1:], priced("done")], 1),
    ):
        paused = False
        async with opened(home, [Counting(*replies)], tools=[looks]) as world:
            run = await world.spawn(agent, task="x", key=name, workdir=tmp_path)
            async for _ in run.events():
                if not paused and run.row().iteration >= 5:
                    await run.pause()
                    paused = True
                    break
        before = meta_of(home, run)
        assert before.cost_priced_usd > 0
        async with opened(home, [Counting(*replies)], tools=[looks]) as world:
            run = world.run(run.run_id)
            await run.resume()
            row = await run.wait()
            assert len(run.ledger()) == 10
        after = meta_of(home, run)
        assert (row.status, after.tool_calls) == ("complete", 9)
        assert (before.cost_usd is None) == (after.cost_usd is None) == bool(unpriced)
        assert after.unpriced_calls == unpriced
        assert round(after.cost_priced_usd * 1e9) == (10 - unpriced) * 1_000
        if not unpriced:
            assert after.cost_usd == after.cost_priced_usd


REVISITS = """
[agent]
name = "circles"
[stages.work]
max_revisits = 2
[[stages.work.edges]]
to = "check"
[stages.check]
[[stages.check.edges]]
to = "work"
[[stages.check.edges]]
to = "report"
condition = "dead_end"
[stages.report]
"""


async def entered(run: RunHandle) -> list[str]:
    """The stages of an ended run, in order."""
    return [event.stage async for event in run.events() if isinstance(event, StageEntered)]


async def one_turn(run: RunHandle, gate: Gate) -> None:
    """Let one model call be answered and hold the next."""
    await gate.waiting.wait()
    turns = len(run.ledger())
    gate.open.set()
    gate.open = trio.Event()
    await until(lambda: len(run.ledger()) > turns)


@in_trio
async def test_caps_on_visits_do_not_start_again_with_the_host(tmp_path: Path) -> None:
    models = 'models = [{ provider = "scripted", model = "m" }]'
    tables = "".join(f"[stages.{name}.model]\n{models}\n" for name in ("work", "check", "report"))
    agent = parse_blueprint(REVISITS + tables, where="circles")
    hosts, stages = 0, list[str]()
    status = "running"
    while status == "running":
        gate = Gate(*[priced("on")] * 20)
        async with opened(tmp_path / "home", [gate]) as world:
            run = await world.spawn(agent, task="x", key="k", workdir=tmp_path)
            await one_turn(run, gate)
            status = run.row().status
            stages = await entered(run) if status != "running" else []
        hosts += 1
    assert status == "complete"
    assert stages.count("work") == 3
    assert hosts == 7
    assert stages[-1] == "report"


@pytest.mark.parametrize("yolo", [True, False])
@in_trio
async def test_an_unattended_run_stays_so_over_a_restart_and_no_other_becomes_one(
    tmp_path: Path, yolo: bool
) -> None:
    home = tmp_path / "home"
    gate = Gate(priced("done"))
    async with opened(home, [gate]) as world:
        with pytest.raises(SpawnError, match="names a profile that this world does not have"):
            await world.spawn(one(), task="x", yolo="careful", workdir=tmp_path)
        run = await world.spawn(one(), task="x", yolo=yolo, workdir=tmp_path)
        await gate.waiting.wait()
    gate.open.set()
    async with opened(home, [gate]) as world:
        await world.run(run.run_id).wait()
    meta = meta_of(home, run)
    assert (meta.yolo, meta.yolo_profile) == (yolo, None)


@in_trio
async def test_a_paused_run_that_needs_its_provider_says_so_after_every_restart(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    gate = Gate(priced("done"))
    async with opened(home, [gate]) as world:
        run = await world.spawn(one(), task="x", workdir=tmp_path)
        await gate.waiting.wait()
    async with opened(home, []) as world:
        run = world.run(run.run_id)
        await until(lambda: run.status.waiting)
        await run.pause(why="until it is back")
    for _ in range(3):
        clock = ManualClock()
        async with opened(home, [], clock=clock) as world:
            await pass_time(clock, 2 * HEARTBEAT_INTERVAL_MS)
        meta = meta_of(home, run)
        assert meta.status is RunStatus.PAUSED
        assert meta.waiting_on is not None
        assert meta.waiting_on.reason == "needs_setup"
    gate.open.set()
    async with opened(home, [gate]) as world:
        run = world.run(run.run_id)
        await run.resume()
        assert (await run.wait()).status == "complete"


@in_trio
async def test_an_answer_handed_in_before_a_crash_is_kept_and_not_overwritten(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    hangs = trio.Event()

    @tool(effect="pure")
    async def wait() -> str:
        "Wait."
        hangs.set()
        await trio.sleep_forever()
        return ""

    agent = one("wait", "submit_output")
    provider = Counting(priced("", SUBMIT), priced("", tool_call("wait")), priced("done"))
    async with opened(home, [provider], tools=[wait]) as world:
        run = await world.spawn(agent, task="x", workdir=tmp_path)
        await hangs.wait()
        await until(lambda: world._host.is_settled)
        copy = crashed(home, tmp_path / "crashed")

    for _ in range(2):
        clock = ManualClock()
        async with opened(copy, [provider], tools=[wait], clock=clock) as world:
            run = world.run(run.run_id)
            await pass_time(clock, 2 * HEARTBEAT_INTERVAL_MS)
            assert run.result() == "the answer"
        folder = copy / "runs" / run.run_id
        assert (folder / "final_output").read_text() == "the answer"
        assert RunMeta.load(folder / "meta.json").final_output is not None


@in_trio
async def test_a_run_that_was_forgotten_does_not_come_back(tmp_path: Path) -> None:
    home = tmp_path / "home"
    clock = ManualClock()
    gate = Gate(priced("done"))
    async with opened(home, [gate], clock=clock) as world:
        run = await world.spawn(one(), task="x", workdir=tmp_path)
        await gate.waiting.wait()
        with pytest.raises(Exception, match="has not ended"):
            await run.forget()
        gate.open.set()
        await run.wait()
        await pass_time(clock, 2_000)
        await run.forget()
        await pass_time(clock, 2 * HEARTBEAT_INTERVAL_MS)
    assert not (home / "runs" / run.run_id).exists()
    async with opened(home, [gate]) as world:
        assert world.listing() == []
        assert world.report.rewritten == ()
    assert not (home / "runs" / run.run_id).exists()
