"""What a callback address hides is kept for who sends it, and is in nothing that others read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from callback_receiver import AGENT, SECRET, Kept, ended, settled
from engine_worlds import Counting, in_trio, opened

from leviath import CallbackRefused, HttpCallbacks, ManualClock, SpawnError
from leviath.lev import cli

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leviath.engine.callbacks import CallbackAnswer

HIDDEN = "s3cret-of-the-query"
URL = f"https://receiver.test/hook?key={HIDDEN}"
SHOWN = "https://receiver.test/hook?<hidden>"


def rows_with(home: Path, words: str) -> set[str]:
    """Tables of the store in which the words stand."""
    db = apsw.Connection(str(home / "world.db"), flags=apsw.SQLITE_OPEN_READONLY)
    found: set[str] = set()
    for (table,) in list(db.execute("select name from sqlite_master where type = 'table'")):
        for row in db.execute(f"select * from {table}"):
            if any(
                words.encode() in (value.encode() if isinstance(value, str) else value)
                for value in row
                if isinstance(value, str | bytes)
            ):
                found.add(str(table))
    db.close()
    return found


def files_with(folder: Path, words: str) -> set[str]:
    """Names of the files in which the words stand."""
    return {
        path.name
        for path in folder.rglob("*")
        if path.is_file() and words.encode() in path.read_bytes()
    }


@pytest.mark.parametrize("signed", [True, False])
def test_the_query_is_in_nothing_that_others_read(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    *,
    signed: bool,
) -> None:
    home, kept = tmp_path / "home", Kept(503)
    clock = ManualClock()

    async def told() -> str:
        async with opened(home, [Counting("x")], callbacks=kept, clock=clock) as world:
            more = {} if signed else {"callback_secret": None}
            run = await ended(world, URL, workdir=tmp_path, **more)
            assert await settled(run, clock) == "delivered"
            assert HIDDEN not in str(run.deliveries())
            return run.run_id

    run_id = in_trio_of(told)
    assert [request.target for request in kept.sent] == [URL, URL]
    assert rows_with(home, HIDDEN) == {"secret"}
    assert files_with(home / "runs", HIDDEN) == {"meta.json"}
    meta = json.loads((home / "runs" / run_id / "meta.json").read_text())
    assert meta["callback_url"] == URL
    capsys.readouterr()
    for command in (
        ["show", run_id, "--json"],
        ["show", run_id],
        ["at", "2", run_id],
        ["at", "2", "--json"],
        ["why", run_id, "--json"],
        ["diff", "1", "4"],
        ["export", "all", str(tmp_path / "export")],
    ):
        assert cli.run([*command, "--home", str(home)]) == 0, command
        told_of = capsys.readouterr()
        assert HIDDEN not in told_of.out + told_of.err, command
        if command == ["show", run_id, "--json"]:
            assert json.loads(told_of.out)["callback_url"] == SHOWN
    assert files_with(tmp_path / "export", HIDDEN) == set()
    assert "world.jsonl" in files_with(tmp_path / "export", "receiver.test/hook?")
    assert "callback to" in caplog.text
    assert HIDDEN not in caplog.text


def in_trio_of(main: Any) -> Any:
    """What an async function returns."""
    found: list[Any] = []

    async def keep() -> None:
        found.append(await main())

    in_trio(keep)()
    return found[0]


@pytest.mark.parametrize("loss", ["none", "store", "state", "meta"])
@in_trio
async def test_the_next_host_knows_the_whole_address(tmp_path: Path, loss: str) -> None:
    """Also one that has to rebuild the world from its folders."""
    home, kept, clock = tmp_path / "home", Kept(503, 503), ManualClock()
    async with opened(home, [Counting("x")], callbacks=kept, clock=clock) as world:
        run = await ended(world, URL, workdir=tmp_path)
    if loss != "none":
        for path in home.glob("world.db*"):
            path.unlink()
    if loss == "state":
        (home / "runs" / run.run_id / "state.lev").unlink()
    if loss == "meta":
        (home / "runs" / run.run_id / "meta.json").unlink()
    async with opened(home, [Counting("x")], callbacks=kept, clock=clock) as world:
        run = world.run(run.run_id)
        if loss in ("none", "store"):
            assert await settled(run, clock) == "delivered"
            assert {request.target for request in kept.sent} == {URL}
        if loss == "meta":
            (back,) = world.report.rebuilt
            assert any("callback address" in what for what in back.lost)
    assert rows_with(home, HIDDEN) == (set() if loss == "meta" else {"secret"})
    if loss == "meta":
        assert not files_with(home / "runs", HIDDEN)
    else:
        assert files_with(home / "runs", HIDDEN) == {"meta.json"}


@in_trio
async def test_a_second_run_may_have_the_same_address_and_quote_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "home", [Counting("x")], callbacks=Kept()) as world:
        for _ in range(2):
            run = await world.spawn(AGENT, task=f"see {URL}", workdir=tmp_path, callback_url=URL)
            await run.wait()
            assert run.row().task_head == f"see {URL}", "what a task says is its own affair"


@in_trio
async def test_an_address_that_cannot_be_found_again_is_not_sent_to_in_part(
    tmp_path: Path,
) -> None:
    home, kept, clock = tmp_path / "home", Kept(503), ManualClock()
    async with opened(home, [Counting("x")], callbacks=kept, clock=clock) as world:
        run = await ended(world, URL, workdir=tmp_path)
    db = apsw.Connection(str(home / "world.db"))
    db.execute("delete from secret where ref glob 'url-*'")
    db.close()
    async with opened(home, [Counting("x")], callbacks=kept, clock=clock) as world:
        run = world.run(run.run_id)
        assert await settled(run, clock) == "failed"
        assert "the query of its address is lost" in run.deliveries()[-1].answer
    assert {request.target for request in kept.sent} == {URL}


class Quoting(Kept):
    """Fails and says where it wanted to go."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> CallbackAnswer:
        raise OSError(f"no route to {url}")


@in_trio
async def test_an_error_that_quotes_the_address_does_not_tell_it(tmp_path: Path) -> None:
    clock = ManualClock()
    home = tmp_path / "home"
    async with opened(home, [Counting("x")], callbacks=Quoting(), clock=clock) as world:
        run = await ended(world, URL, workdir=tmp_path)
        await settled(run, clock)
        assert run.deliveries()[-1].answer == f"no route to {SHOWN}"


@in_trio
async def test_refusals_do_not_tell_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "home", [Counting("x")], callbacks=HttpCallbacks()) as world:
        for url in (
            f"https://10.0.0.1/x?{HIDDEN}",
            f"https://me:{HIDDEN}@receiver.test/",
            f"gopher://receiver.test/?{HIDDEN}",
            f"https://receiver.test:99999/?{HIDDEN}",
        ):
            with pytest.raises((CallbackRefused, SpawnError)) as refused:
                await world.spawn(AGENT, task="t", workdir=tmp_path, callback_url=url)
            assert HIDDEN not in str(refused.value)
        with pytest.raises(SpawnError, match="known secret"):
            await world.spawn(
                AGENT,
                task="t",
                workdir=tmp_path,
                callback_url="https://receiver.test/a%20secret/" + SECRET.replace(" ", "-"),
                callback_secret=SECRET.replace(" ", "-"),
            )
    shutil.rmtree(tmp_path / "home")
