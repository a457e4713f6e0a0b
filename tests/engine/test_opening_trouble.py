"""Homes that were lost, damaged or moved: what an opening makes of what is left."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import apsw
import pytest
import trio
from engine_worlds import Counting, Gate, in_trio, opened, priced, tool_call, until

from leviath.components.errors import NewerFormat
from leviath.components.run_status import RunStatus
from leviath.engine.tools import tool
from leviath.systems.schedule import RULES

if TYPE_CHECKING:
    from pathlib import Path

AGENT = """
[agent]
name = "one"
[stages.main]
available_tools = ["look"]
[stages.main.model]
models = [{ provider = "scripted", model = "m" }]
"""


@tool(effect="pure")
def look() -> str:
    "Look."
    return "seen"


def agent(home: Path) -> str:
    """A blueprint on the disk: what comes back from documents alone needs one."""
    folder = home.parent / "agent"
    folder.mkdir(exist_ok=True)
    (folder / "agent.leviath").write_text(AGENT)
    return str(folder)


def lose_store(home: Path) -> None:
    """Delete ``world.db`` and its log."""
    for file in home.glob("world.db*"):
        file.unlink()


class Stuck(Gate):
    """Answers with a tool call first, and then not at all."""

    async def infer(self, request: Any, on_text: Any) -> Any:
        if not self.asked:
            self.open.set()
            reply = await super().infer(request, on_text)
            self.open = trio.Event()
            return reply
        return await super().infer(request, on_text)


@in_trio
async def test_a_busy_run_of_a_home_closed_in_order_survives_the_loss_of_the_store(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    stuck = Stuck(priced("first", tool_call("look")), "never")
    async with opened(home, [stuck], tools=[look]) as world:
        run = await world.spawn(agent(home), task="the task", workdir=tmp_path, key="k")
        await until(lambda: len(stuck.asked) == 2)
    folder = home / "runs" / run.run_id
    assert {"state.lev", "context.json", "meta.json"} <= {file.name for file in folder.iterdir()}
    lose_store(home)
    provider = Counting("done", loop=True)
    async with opened(home, [provider], tools=[look]) as world:
        again = world.run(run.run_id)
        ended = await again.wait()
        assert (ended.status, ended.error) == ("complete", None)
        assert again.row().key == "k"
    asked = "".join(message.text for message in provider.asked[0].messages)
    assert "the task" in asked
    assert "seen" in asked


def smash(home: Path, table: str) -> None:
    """Overwrite the first page of a table."""
    db = apsw.Connection(str(home / "world.db"))
    sql = "select rootpage from sqlite_schema where name = ?"
    row = db.execute(sql, (table,)).fetchone()
    assert row is not None
    root, size = int(row[0]), int(str(db.pragma("page_size")))
    db.close()
    with (home / "world.db").open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)


async def one_run(home: Path) -> str:
    """A home with one run that completed; its id."""
    async with opened(home, [Counting("done", loop=True)], tools=[look]) as world:
        run = await world.spawn(agent(home), task="x", workdir=home.parent, key="k")
        await run.wait()
        run_id: str = run.run_id
    return run_id


@pytest.mark.parametrize("table", ["run", "mirror", "liveness", "opening", "secret", "journal"])
@in_trio
async def test_a_table_that_is_found_damaged_late_is_replaced_from_the_files(
    tmp_path: Path, table: str
) -> None:
    home = tmp_path / "home"
    run_id = await one_run(home)
    smash(home, table)
    async with opened(home, [Counting("done", loop=True)], tools=[look]) as world:
        assert world.run(run_id).row().status == "complete"
        assert world.report.set_aside[0].startswith("world.db")
        assert [run.run_id for run in world.report.rebuilt] == [run_id]


@in_trio
async def test_rows_that_no_release_writes_count_as_damage(tmp_path: Path) -> None:
    home = tmp_path / "home"
    run_id = await one_run(home)
    with apsw.Connection(str(home / "world.db")) as db:
        db.execute("insert into opening (epoch, wall_ms, rules) values (2, 1, 1)")
    async with opened(home, [Counting("done", loop=True)], tools=[look]) as world:
        assert [run.run_id for run in world.report.rebuilt] == [run_id]


@pytest.mark.parametrize(
    "harm",
    [
        "update run set ordinal = 99 where ordinal = 1",
        "update run set ordinal = 99, run_id = 'x' where ordinal = 1",
    ],
)
@in_trio
async def test_an_index_that_a_later_commit_would_clash_with_counts_as_damage(
    tmp_path: Path, harm: str
) -> None:
    home = tmp_path / "home"
    stuck = Stuck(priced("first", tool_call("look")), "never")
    async with opened(home, [stuck], tools=[look]) as world:
        run = await world.spawn(agent(home), task="x", workdir=tmp_path, key="k")
        await until(lambda: len(stuck.asked) == 2)
    with apsw.Connection(str(home / "world.db")) as db:
        db.execute(harm)
    async with opened(home, [Counting("done", loop=True)], tools=[look]) as world:
        assert [found.run_id for found in world.report.rebuilt] == [run.run_id]
        assert (await world.run(run.run_id).wait()).status == "complete"


@in_trio
async def test_a_home_of_newer_rules_is_refused_and_left_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await one_run(home)
    with apsw.Connection(str(home / "world.db")) as db:
        db.execute("update opening set rules = ?", (str(RULES + 1),))
    for _ in range(2):
        with pytest.raises(NewerFormat, match=f"rules {RULES + 1}"):
            async with opened(home, [Counting("done", loop=True)], tools=[look]):
                pass
    with apsw.Connection(str(home / "world.db")) as db:
        assert db.execute("select count(*) from opening").fetchall() == [(1,)]
    assert not list(home.glob("*.lost-*"))


@in_trio
async def test_a_run_at_work_without_its_conversation_waits_for_somebody(tmp_path: Path) -> None:
    home = tmp_path / "home"
    stuck = Stuck(priced("first", tool_call("look")), "never")
    async with opened(home, [stuck], tools=[look]) as world:
        run = await world.spawn(agent(home), task="the task", workdir=tmp_path, key="k")
        await until(lambda: len(stuck.asked) == 2)
    for name in ("state.lev", "context.json", "stages.json"):
        (home / "runs" / run.run_id / name).unlink(missing_ok=True)
    lose_store(home)
    provider = Counting("done", loop=True)
    async with opened(home, [provider], tools=[look]) as world:
        status = world.run(run.run_id).status
        assert (status.status, provider.asked) == (RunStatus.PAUSED, [])
        lost = " ".join(world.report.rebuilt[0].lost)
        assert "the key" in lost
        assert "context.json" in lost


@in_trio
async def test_what_each_host_states_anew_may_be_damaged(tmp_path: Path) -> None:
    home = tmp_path / "home"
    run_id = await one_run(home)
    with apsw.Connection(str(home / "world.db")) as db:
        sql = "update state set body = ?, crc = ? where owner = 0 and part in ('Offer', 'Policy')"
        db.execute(sql, (b"\xc1", zlib.crc32(b"\xc1")))
        assert db.changes()
    async with opened(home, [Counting("done", loop=True)], tools=[look]) as world:
        assert world.report.set_aside == ()
        again = await world.spawn(agent(home), task="x", workdir=tmp_path)
        assert (await again.wait()).status == "complete"
        assert world.run(run_id).row().key == "k"


@in_trio
async def test_what_was_rebuilt_is_not_doubted_again(tmp_path: Path) -> None:
    home = tmp_path / "home"
    run_id = await one_run(home)
    folder = home / "runs" / run_id
    lose_store(home)
    written: list[dict[str, int]] = []
    for opening in range(3):
        async with opened(home, [Counting("done", loop=True)], tools=[look]) as world:
            assert [run.run_id for run in world.report.rebuilt] == [run_id] * (opening == 0)
            assert world.report.rewritten == ()
        written.append({file.name: file.stat().st_mtime_ns for file in folder.iterdir()})
    assert written[2] == written[0]
