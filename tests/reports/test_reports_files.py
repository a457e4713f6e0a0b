"""What users reported about files and stores: one broken file must not cost a run, or the home."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import apsw
import pytest
import trio
from crashed_homes import crashed
from engine_worlds import Counting, Gate, in_trio, one, opened, priced, tool_call, until
from lev_commands import SRC, Place
from msgspec.structs import replace

from leviath.components.error_kind import ErrorKind
from leviath.components.errors import DiskFull, NewerFormat, RunConflict, StorageError
from leviath.components.run_status import RunStatus
from leviath.engine.clock import ManualClock
from leviath.engine.tools import tool
from leviath.persistence.run_meta import RunMeta
from leviath.providers.scripted import Failure
from leviath.simulation.disk import Fault, Recording, RecordingDisk

if TYPE_CHECKING:
    from leviath.components.world_facts import Policy

SUBMIT = tool_call("submit_output", content="the answer")
WRECKS = {
    "empty": b"",
    "NUL": bytes(700),
    "truncated": b'{"run_id": "x", "agent',
    "foreign": b"\x89PNG\r\n\x1a\n",
    "not UTF-8": b'{"run_id": "\xff"}',
}


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    return Place(tmp_path, capsys)


@tool(effect="pure")
def look() -> str:
    "Look."
    return "seen"


# --- unreadable is not ended ----------------------------------------------------------------------


@pytest.mark.parametrize("wreck", list(WRECKS.values()), ids=list(WRECKS))
def test_a_live_run_whose_record_is_damaged_is_neither_ended_nor_removed(
    place: Place, wreck: bytes
) -> None:
    async def start() -> str:
        gate = Gate(priced("done"))
        async with opened(place.home, [gate]) as world:
            run = await world.spawn(one(), task="x", workdir=place.path)
            await gate.waiting.wait()
            run_id: str = run.run_id
            return run_id

    run_id = trio.run(start)
    meta = place.home / "runs" / run_id / "meta.json"
    meta.write_bytes(wreck)
    listed = place.lev("ps", "--json").document()
    assert [(run["run_id"], run["status"]) for run in listed["runs"]] == [(run_id, "running")]
    assert place.lev("gc", "--keep", "0").out == "nothing to remove\n"
    assert place.lev("show", run_id).code == 0
    assert meta.read_bytes() == wreck

    async def finish() -> None:
        async with opened(place.home, [Counting(priced("done"))]) as world:
            assert world.report.rewritten == (run_id,)
            assert (await world.run(run_id).wait()).status == "complete"

    trio.run(finish)
    assert RunMeta.load(meta).status is RunStatus.COMPLETE


@in_trio
async def test_a_record_that_is_damaged_under_a_host_is_written_again(tmp_path: Path) -> None:
    home = tmp_path / "home"
    clock = ManualClock()
    gate = Gate(priced("done"))
    async with opened(home, [gate], clock=clock) as world:
        run = await world.spawn(one(), task="x", workdir=tmp_path)
        await gate.waiting.wait()
        meta = home / "runs" / run.run_id / "meta.json"
        await until(meta.exists, clock)
        meta.write_bytes(bytes(100))
        gate.open.set()
        await run.wait()
    assert RunMeta.load(meta).status is RunStatus.COMPLETE


def test_cancelling_keeps_an_ending_and_needs_no_folder(place: Place) -> None:
    place.write("none.toml", '[[turn]]\nerror = { kind = "bad_request", message = "no" }\n')
    failed = place.spawn(script="none.toml", task="It fails.")
    assert failed.code == 1
    (ended,) = place.ids()
    error = place.lev("show", ended, "--json").document()["error"]
    assert error
    assert place.lev("cancel", ended).code == 1
    shown = place.lev("show", ended, "--json").document()
    assert (shown["status"], shown["error"]) == ("error", error)

    place.lev("run", str(place.path / "agent"), "--task", "It waits for a provider.")
    waiting = next(run for run in place.ids() if run != ended)
    shutil.rmtree(place.home / "runs" / waiting)
    assert place.lev("cancel", waiting).code == 0
    assert RunMeta.load(place.home / "runs" / waiting / "meta.json").status is RunStatus.CANCELLED


# --- the store ------------------------------------------------------------------------------------


@pytest.mark.parametrize("wreck", ["garbage", "truncated", "missing"])
@in_trio
async def test_a_home_whose_database_is_lost_is_rebuilt_from_its_run_files(
    tmp_path: Path, wreck: str
) -> None:
    home = tmp_path / "home"
    clock = ManualClock()
    gate = Gate(priced("", tool_call("look")), priced("done"))
    agent = one("look", "submit_output")
    more: Any = {"tools": [look], "clock": clock, "policy": patient}
    async with opened(home, [gate, answering()], **more) as world:
        done = await world.spawn(agent, task="x", model="answers/m", workdir=tmp_path)
        await done.wait()
        going = await world.spawn(agent, task="y", workdir=tmp_path)
        await gate.waiting.wait()
        await until((home / "runs" / going.run_id / "state.lev").exists, clock)
    database = home / "world.db"
    match wreck:
        case "garbage":
            database.write_bytes(b"\x00garbage" * 4_096)
        case "truncated":
            database.write_bytes(database.read_bytes()[: 3 * 4_096 + 7])
        case _:
            database.unlink()
    gate.open.set()
    async with opened(home, [gate, answering()], tools=[look]) as world:
        report = world.report
        assert sorted(run.run_id for run in report.rebuilt) == sorted([done.run_id, going.run_id])
        assert bool(report.set_aside) == (wreck != "missing")
        assert world.run(done.run_id).row().status == "complete"
        assert world.run(done.run_id).result() == "the answer"
        assert (await world.run(going.run_id).wait()).status == "complete"
    if wreck != "missing":
        assert list(home.glob("world.db.lost-*"))


def patient(policy: Policy) -> Policy:
    """No call is given up, however far a test moves its clock."""
    return replace(policy, call_total_ms=1_000_000_000)


def answering() -> Counting:
    """A provider that hands in an answer."""
    provider = Counting(priced("", SUBMIT), priced("done"))
    provider.name = "answers"
    return provider


@in_trio
async def test_a_home_of_a_newer_leviath_is_refused_and_not_touched(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with opened(home, [Counting(priced("done"))]) as world:
        await (await world.spawn(one(), task="x", workdir=tmp_path)).wait()
    with apsw.Connection(str(home / "world.db")) as database:
        (version,) = database.execute("pragma user_version").fetchone() or (0,)
        database.execute("update world set format = format + 1")
        database.execute(f"pragma user_version = {version + 1}")
    database.close()
    before = files(home)
    for _ in range(2):
        with pytest.raises(NewerFormat, match="newer"):
            async with opened(home, []):
                raise AssertionError
    assert files(home) == before


@pytest.mark.parametrize("owner", [0, 1])
@in_trio
async def test_a_store_that_names_what_only_a_newer_leviath_knows_is_not_taken_for_damaged(
    tmp_path: Path, owner: int
) -> None:
    home = tmp_path / "home"
    gate = Gate(priced("done"))
    async with opened(home, [gate]) as world:
        run = await world.spawn(one(), task="x", workdir=tmp_path)
        await gate.waiting.wait()
    novel = "insert into state select owner, 'Novel', cut, crc, body from state where owner = ?"
    with apsw.Connection(str(home / "world.db")) as database:
        database.execute(novel + " and body is not null limit 1", (owner,))
    database.close()
    for _ in range(2):
        with pytest.raises(NewerFormat, match=r"'Novel'.*newer leviath"):
            async with opened(home, [gate]):
                raise AssertionError
    assert not list(home.glob("world.db.lost-*"))
    with apsw.Connection(str(home / "world.db")) as database:
        database.execute("delete from state where part = 'Novel'")
    database.close()
    gate.open.set()
    async with opened(home, [gate]) as world:
        assert (await world.run(run.run_id).wait()).status == "complete"


@in_trio
async def test_an_ended_run_that_was_resumed_and_has_damaged_state_stops_no_other(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    clock = ManualClock()
    refused = Failure(kind=ErrorKind.BAD_REQUEST, message="no")
    async with opened(home, [Counting(refused)], clock=clock) as world:
        run = await world.spawn(one(), task="x", workdir=tmp_path)
        assert (await run.wait()).status == "error"
        await until(lambda: not world.runs(), clock)
    quiet = Gate(priced("done"), name="quiet")
    async with opened(home, [Counting(priced("x"), priced("done")), quiet]) as world:
        other = await world.spawn(one(), task="x", model="quiet/m", workdir=tmp_path)
        run = world.run(run.run_id)
        await run.resume()
        assert (await run.wait()).status == "complete"
        await quiet.waiting.wait()
        await until(lambda: world._host.is_settled)
        copy = crashed(home, tmp_path / "crashed")
    with apsw.Connection(str(copy / "world.db")) as database:
        database.execute(
            "update state set body = x'c1', crc = ? where owner = 1 and part = 'Launch'",
            (zlib.crc32(b"\xc1"),),
        )
    database.close()
    quiet.open.set()
    async with opened(copy, [quiet]) as world:
        assert [found.run_id for found in world.report.quarantined] == [run.run_id]
        assert (await world.run(other.run_id).wait()).status == "complete"


def files(home: Path) -> dict[str, bytes]:
    """Every file of a home but its lock."""
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in home.rglob("*")
        if path.is_file() and path.name != "lock"
    }


async def start_some(home: Path, disk: RecordingDisk, workdir: Path) -> None:
    """Open a home on that disk and start runs; on a full one nobody is told that one began."""
    provider = Counting(priced("done"))
    async with opened(home, [provider], durability="full", vfs=disk.name) as world:
        with trio.move_on_after(0.05):
            await world.spawn(one(), task="x", key="k", workdir=workdir)
            for n in range(40):
                await world.spawn(one(), task=f"{n}" * 2_000, workdir=workdir)


@pytest.mark.parametrize("failure", ["enospc", "eio"])
@in_trio
async def test_a_disk_that_fails_at_the_start_makes_no_half_home(
    tmp_path: Path, failure: str
) -> None:
    """At each of the first calls; what was left can be opened as soon as the disk is well."""
    for nth in range(1, 12):
        home = tmp_path / f"{failure}-{nth}"
        home.mkdir(mode=0o700)
        recording = Recording(home)
        disk = RecordingDisk(f"start-{failure}-{nth}", recording)
        try:
            recording.arm(Fault("write", nth, failure, None))  # type: ignore[arg-type]
            with pytest.raises((DiskFull, StorageError)):
                await start_some(home, disk, tmp_path)
        finally:
            recording.arm()
            disk.unregister()
        async with opened(home, [Counting(priced("done"))]) as world:
            run = await world.spawn(one(), task="x", key="k", workdir=tmp_path)
            assert (await run.wait()).status == "complete"


# --- one commit is the truth ----------------------------------------------------------------------


@in_trio
async def test_files_that_are_not_of_one_moment_do_not_confuse_a_run(tmp_path: Path) -> None:
    """Its record of one step beside its context of another: the store wins."""
    home = tmp_path / "home"
    clock = ManualClock()
    gate = Gate(*[priced("", tool_call("look"))] * 3, priced("done"))
    agent = one("look")
    async with opened(home, [gate], tools=[look], clock=clock, policy=patient) as world:
        run = await world.spawn(agent, task="x", workdir=tmp_path)
        folder = home / "runs" / run.run_id
        await gate.waiting.wait()
        await until((folder / "state.lev").exists, clock)
        early = crashed(home, tmp_path / "early")
        for turn in (1, 2):
            await until(lambda turn=turn: len(gate.asked) == turn)  # type: ignore[misc]
            gate.open.set()
            gate.open = trio.Event()
            await until(lambda turn=turn: len(run.ledger()) == turn)  # type: ignore[misc]
        before = (folder / "state.lev").read_bytes()
        await until(lambda: (folder / "state.lev").read_bytes() != before, clock)
        await until(lambda: RunMeta.load(folder / "meta.json").iteration == 2, clock)
        late = crashed(home, tmp_path / "late")
    for name in ("meta.json", "context.json", "state.lev"):
        mixed = tmp_path / f"mixed-{name}"
        shutil.copytree(late, mixed)
        old, new = (place / "runs" / run.run_id / name for place in (early, mixed))
        assert old.read_bytes() != new.read_bytes()
        shutil.copy(old, new)
        provider = Counting(*[priced("", tool_call("look"))] * 3, priced("done"))
        async with opened(mixed, [provider], tools=[look]) as world:
            row = await world.run(run.run_id).wait()
            assert (row.status, row.tool_calls) == ("complete", 3)
        results = [m for m in provider.asked[-1].messages if m.role == "tool"]
        assert len(results) == 3


@in_trio
async def test_a_run_that_has_not_ended_cannot_be_removed(tmp_path: Path) -> None:
    gate = Gate(priced("done"))
    async with opened(tmp_path / "home", [gate]) as world:
        run = await world.spawn(one(), task="x", workdir=tmp_path)
        await gate.waiting.wait()
        for prepare in (run.pause, run.resume):
            await prepare()
            with pytest.raises(RunConflict, match="not ended"):
                await run.forget()
        gate.open.set()
        assert (await run.wait()).status == "complete"
        await run.forget()
        assert world.listing() == []


# --- what may not be written ----------------------------------------------------------------------

REFUSED = """
import os, sys, trio, leviath
from leviath.engine import spawning, file_thread  # whatever is imported later is not readable

async def main():
    async with leviath.open_world(durability="memory"):
        pass
    os.setegid(65534)
    os.seteuid(65534)
    try:
        async with leviath.open_world(sys.argv[1]):
            pass
    except leviath.LevError as error:
        print(type(error).__name__, error)

trio.run(main)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("refused", ["home", "lock", "world.db"])
def test_a_home_that_may_not_be_written_is_one_clear_error(refused: str) -> None:
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        home = Path(folder) / "home"

        async def make() -> None:
            async with opened(home, []):
                pass

        trio.run(make)
        for path in (home, *home.iterdir()):
            path.chmod(0o777 if path.is_dir() else 0o666)
        (home if refused == "home" else home / refused).chmod(0o444)
        before = (home / "world.db").read_bytes()
        done = subprocess.run(
            [sys.executable, "-c", REFUSED, str(home)],
            env=os.environ | {"PYTHONPATH": str(SRC)},
            capture_output=True,
            check=False,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert (home / "world.db").read_bytes() == before
        assert len(done.stdout.splitlines()) == 1
        assert str(home) in done.stdout
        assert "give this user the right to write" in done.stdout
