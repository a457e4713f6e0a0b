"""What users reported about liveness, limits and records: a run says what is true and no more."""

from __future__ import annotations

import itertools
import os
import sys
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from engine_worlds import (
    MODEL,
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
from hand_agents import TALK, TOOLS

from leviath.components.events import Ended
from leviath.components.inputs import Release
from leviath.components.run_status import RunStatus
from leviath.engine.blueprints import parse_blueprint
from leviath.engine.clock import ManualClock
from leviath.engine.limits import (
    HEARTBEAT_INTERVAL_MS,
    MODIFIED_FILES_MAX,
    SLEEP_GAP_MS,
    TOOL_GROUP_KILL_MS,
)
from leviath.engine.tools import ToolCall, ToolResult, tool
from leviath.persistence.run_documents import load_stages
from leviath.persistence.run_meta import RunMeta
from leviath.simulation.hand import Hand

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from leviath.components.blueprint import Blueprint
    from leviath.engine.run_handle import RunHandle

SUBMIT = tool_call("submit_output", content="the answer")
HOUR_MS = 3_600_000


def meta_of(home: Path, run: RunHandle) -> RunMeta:
    """The run's document as any program reads it."""
    return RunMeta.load(home / "runs" / run.run_id / "meta.json")


SLOW = parse_blueprint(
    f"""
[agent]
name = "slow"
[stages.main.model]
request_timeout_secs = 7200
{MODEL}
""",
    where="slow",
)
"""An agent whose model may take two hours."""


# --- liveness is not progress, and an ending is final ---------------------------------------------


@in_trio
async def test_a_slow_model_keeps_its_run_running_and_its_record_fresh(tmp_path: Path) -> None:
    """An hour without an answer: the record says that the host lives and that nothing moved."""
    home = tmp_path / "home"
    clock = ManualClock()
    gate = Gate(priced("done"))
    async with opened(home, [gate], clock=clock) as world:
        run = await world.spawn(SLOW, task="x", workdir=tmp_path)
        await gate.waiting.wait()
        began = clock.wall_ms()
        while world._host.time.now_ms() < HOUR_MS:
            # As far as time goes without looking like a machine that slept.
            clock.advance(SLEEP_GAP_MS - 1_000)
            await trio.testing.wait_all_tasks_blocked(0.0005)
        assert run.status.status is RunStatus.RUNNING
        newest = clock.wall_ms() // 1_000
        meta_path = home / "runs" / run.run_id / "meta.json"
        await until(
            lambda: (
                meta_path.exists()
                and newest - RunMeta.load(meta_path).updated_at <= HEARTBEAT_INTERVAL_MS // 1_000
            )
        )
        meta = meta_of(home, run)
        assert meta.status is RunStatus.RUNNING
        assert meta.last_progress_at == began // 1_000
        gate.open.set()
        assert (await run.wait()).status == "complete"
        assert len(gate.asked) == 1
        ended = run.row().ended_ms
        await pass_time(clock, HOUR_MS // 4)
        assert (run.row().status, run.row().ended_ms) == ("complete", ended)
    meta = meta_of(home, run)
    assert (meta.status, meta.updated_at) == (RunStatus.COMPLETE, (ended or 0) // 1_000)


@in_trio
async def test_who_hears_that_a_run_ended_finds_its_answer(tmp_path: Path) -> None:
    provider = Counting(priced("", SUBMIT), priced("done"))
    async with opened(tmp_path / "home", [provider]) as world:
        stream = world.events()
        run = await world.spawn(one("submit_output"), task="x", workdir=tmp_path)
        ended = await heard(stream, Ended)
        assert (ended.run_id, ended.status) == (run.run_id, "complete")
        assert run.result() == "the answer"
        assert run.row().has_output


@in_trio
async def test_hosts_that_mint_ids_in_one_second_mint_other_ones(tmp_path: Path) -> None:
    agent = one(name="größe-調査")
    ids: list[str] = []
    for number in range(3):
        home = tmp_path / str(number)
        async with opened(home, [Counting(priced("x"))], clock=ManualClock()) as world:
            for _ in range(5):
                run = await world.spawn(agent, task="x", workdir=tmp_path)
                await run.wait()
                ids.append(run.run_id)
        names = {
            meta.parent.name: RunMeta.load(meta).agent_name for meta in home.rglob("meta.json")
        }
        assert names == dict.fromkeys(ids[-5:], "größe-調査")
    assert len(set(ids)) == 15
    assert len({run_id.rpartition("-")[0] for run_id in ids}) == 1


# --- what the record counts -----------------------------------------------------------------------


def circles(visits: int) -> Blueprint:
    """Two stages that lead to each other so often, and a third that ends the run."""
    text = f"""
[agent]
name = "circles"
[stages.work]
max_revisits = {visits - 1}
[[stages.work.edges]]
to = "check"
[stages.check]
max_revisits = {visits - 1}
[[stages.check.edges]]
to = "work"
[[stages.check.edges]]
to = "report"
condition = "dead_end"
[stages.report]
"""
    for name in ("work", "check", "report"):
        text += f"[stages.{name}.model]\n{MODEL}\n"
    return parse_blueprint(text, where="circles")


@in_trio
async def test_visits_are_counted_beyond_what_any_list_holds(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with opened(home, [Counting(priced("on"), loop=True)]) as world:
        run = await world.spawn(circles(130), task="x", workdir=tmp_path)
        assert (await run.wait()).status == "complete"
        row = run.row()
    work, check, report = load_stages(home / "runs" / run.run_id / "stages.json")
    assert [stage.visit_count for stage in (work, check, report)] == [130, 130, 1]
    assert work.prompt_tokens + check.prompt_tokens + report.prompt_tokens == row.prompt_tokens
    assert row.prompt_tokens == 261 * 10


@in_trio
async def test_modifying_calls_are_counted_and_their_paths_listed_once_and_bounded(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    numbers = itertools.count()

    @tool(effect="pure", modifies=True)
    def touch() -> ToolResult:
        "Touch."
        paths = tuple(f"file-{next(numbers)}" for _ in range(90))
        return ToolResult(text="ok", modified=("always", *paths))

    calls = [tool_call("touch") for _ in range(4)]
    async with opened(home, [Counting(priced("", *calls), priced("done"))], tools=[touch]) as world:
        run = await world.spawn(one("touch"), task="x", workdir=tmp_path)
        await run.wait()
    flags = meta_of(home, run).flags
    assert flags.modified_file_count == 4
    assert len(flags.modified_files) == MODIFIED_FILES_MAX
    assert flags.modified_files.count("always") == 1


REQUIRED = f"""
[agent]
name = "plans"
[context.regions]
plan = {{ kind = "pinned", required = true }}
[stages.a]
available_tools = ["context_write"]
nudge = {{ enabled = false }}
[stages.b]
available_tools = ["context_write"]
nudge = {{ enabled = false }}
[stages.a.model]
{MODEL}
[stages.b.model]
{MODEL}
"""


@pytest.mark.parametrize("fills", [False, True])
@in_trio
async def test_a_required_region_that_is_filled_late_is_not_reported_as_given_up(
    tmp_path: Path, fills: bool
) -> None:
    home = tmp_path / "home"
    gives_up = [priced("done")] * 4
    write = tool_call("context_write", region="plan", content="the plan")
    then = [priced("", write), priced("done")] if fills else [priced("done")] * 4
    async with opened(home, [Counting(*gives_up, *then)]) as world:
        agent = parse_blueprint(REQUIRED, where="plans")
        run = await world.spawn(agent, task="x", workdir=tmp_path)
        row = await run.wait()
        assert (row.status, row.error) == ("complete", None)
    assert meta_of(home, run).flags.required_regions_abandoned == (() if fills else ("plan",))


@in_trio
async def test_only_a_run_that_could_have_left_something_is_said_to_have_left_nothing(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    edits = tool_call("shell", command="echo x > made")
    writes = tool_call("write_file", path="made", content="x")
    for name, tools, replies, empty in (
        ("talks", (), [priced("done")], False),
        ("answers", ("write_file", "submit_output"), [priced("", SUBMIT), priced("done")], False),
        ("writes", ("write_file",), [priced("", writes), priced("done")], False),
        ("edits by shell", ("write_file", "shell"), [priced("", edits), priced("done")], True),
    ):
        workdir = tmp_path / name
        workdir.mkdir()
        async with opened(home, [Counting(*replies)]) as world:
            run = await world.spawn(one(*tools), task="x", workdir=workdir, yolo=True)
            assert (await run.wait()).status == "complete"
        assert meta_of(home, run).flags.empty_output is empty, name


# --- what a run leaves behind outside -------------------------------------------------------------


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("ends", ["cancelled", "complete"])
@in_trio
async def test_no_process_of_a_run_outlives_it(tmp_path: Path, ends: str) -> None:
    """A grandchild in the background, when its run is cancelled and when its command just ends."""
    os.mkfifo(tmp_path / "ready")
    command = "sh -c 'sleep 300 & echo $$ $! > ready; wait'"
    if ends == "complete":
        command = "sleep 300 >/dev/null 2>&1 & echo $! > ready"
    provider = Counting(priced("", tool_call("shell", command=command)), priced("done"))
    async with opened(tmp_path / "home", [provider]) as world:
        run = await world.spawn(one("shell"), task="x", workdir=tmp_path, yolo=True)
        words = await trio.to_thread.run_sync((tmp_path / "ready").read_text)
        pids = [int(word) for word in words.split()]
        assert pids
        if ends == "cancelled":
            assert all(alive(pid) for pid in pids)
            await run.cancel()
        assert (await run.wait()).status == ends
        with trio.fail_after(TOOL_GROUP_KILL_MS / 1_000):
            await until(lambda: not any(alive(pid) for pid in pids))


# --- cost follows what is active ------------------------------------------------------------------


def calls_of(work: Callable[[], object]) -> int:
    """How many Python functions run while ``work`` does."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def test_a_turn_costs_the_same_after_a_thousand_other_runs_ended() -> None:
    """Counted in function calls, with the ended runs still in memory and with them gone."""

    def turn(hand: Hand) -> None:
        hand.reply("", ("c", "look", "{}"))
        hand.tool("seen")

    def cost(ended: int, *, kept: bool) -> int:
        hand = Hand(tools=TOOLS, check=False)
        for _ in range(ended):
            run = hand.spawn(TALK)
            hand.reply("done")
            if not kept:
                hand.post(Release(run))
        run = hand.spawn(one("look"))
        turn(hand)
        calls = calls_of(lambda: turn(hand))
        assert hand.status(run).status is RunStatus.RUNNING
        return calls

    alone = cost(0, kept=True)
    # The heaps of deadlines are thinned out now and then, whoever's turn it is.
    assert abs(cost(1_000, kept=True) - alone) <= 10
    assert abs(cost(1_000, kept=False) - alone) <= 10


# --- a key for each call --------------------------------------------------------------------------


@in_trio
async def test_every_call_has_a_key_of_its_own_that_no_other_run_or_call_has(
    tmp_path: Path,
) -> None:
    keys: list[str] = []

    @tool(effect="pure")
    def note(call: ToolCall) -> str:
        "Note."
        keys.append(call.idempotency_key)
        return ""

    calls = [tool_call("note") for _ in range(3)]
    provider = Counting(*[priced("", *calls)] * 2, priced("done"))
    async with opened(tmp_path / "home", [provider], tools=[note]) as world:
        for _ in range(3):
            run = await world.spawn(one("note"), task="x", workdir=tmp_path)
            await run.wait()
    assert len(keys) == len(set(keys)) == 18
