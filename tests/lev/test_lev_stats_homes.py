"""The store of a world over everything that happens to a home: lost, imported, tidied, restarted.

It has the summaries of exactly the runs that the home lists as ended, and to the token.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from engine_worlds import Counting, in_trio, one, opened, priced

from leviath.components.error_kind import ErrorKind
from leviath.components.inputs import Cancel
from leviath.persistence.database import open_database
from leviath.persistence.rows import Batch
from leviath.persistence.run_meta import RunMeta
from leviath.persistence.store import Store
from leviath.persistence.store_endings import LateCostRow
from leviath.persistence.store_rows import RunSummary
from leviath.providers.scripted import Failure, tool_call
from leviath.simulation.hand import Hand
from leviath.systems.run import EndingFact, LateCostFact

if TYPE_CHECKING:
    from lev_commands import Place

SUBMIT = tool_call("submit_output", content="the result")
NOTE = tool_call("no_such_tool")
FAILED = Failure(kind=ErrorKind.BAD_REQUEST, message="no")


def by_name(home: Path) -> dict[str, RunSummary | None]:
    """The summary of each run, by the id that people use; what differs between homes is left
    out."""
    with (
        open_database(home / "world.db", level="process", read_only=True) as database,
        Store.open(home / "world.db") as store,
    ):
        return {row.run_id: store.run_summary(row.ordinal) for row in database.run_rows()}


def facts(summary: RunSummary | None) -> tuple[Any, ...] | None:
    """What must outlive the store that it was kept in."""
    if summary is None:
        return None
    return (
        *(summary.outcome, summary.success, summary.steps, summary.tokens, summary.duration_ms),
        *(summary.finished_at, summary.cost_nano_usd, summary.unpriced),
    )


def agree(home: Path) -> None:
    """The store has a summary of each run whose document says that it has ended, with its
    tokens."""
    for run_id, summary in by_name(home).items():
        meta = RunMeta.load(home / "runs" / run_id / "meta.json")
        assert (summary is not None) == meta.status.is_ended, run_id
        if summary is not None:
            tokens = meta.prompt_tokens + meta.completion_tokens
            assert summary.tokens == tokens + meta.cached_tokens + meta.cache_write_tokens
            assert summary.unpriced == meta.unpriced_calls


async def one_more(home: Path, *replies: Any, tools: tuple[str, ...] = ()) -> str:
    """One run in the home, to its end; its id."""
    async with opened(home, [Counting(*replies)]) as world:
        run = await world.spawn(one(*tools), task="t", workdir=home.parent)
        await run.wait()
        return str(run.run_id)


async def three(home: Path) -> None:
    """One run that worked, one that found nothing, one that failed."""
    await one_more(home, priced("", SUBMIT), priced("bye"), tools=("submit_output",))
    await one_more(home, priced("bye"))
    await one_more(home, FAILED)


def lose_store(home: Path) -> None:
    for file in home.glob("world.db*"):
        file.unlink()


@in_trio
async def test_a_store_that_was_lost_comes_back_from_the_run_folders(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await three(home)
    before = by_name(home)
    words = sorted(summary.outcome for summary in before.values() if summary is not None)
    assert words == ["escalated_terminal", "finished", "success"]
    agree(home)
    lose_store(home)
    async with opened(home, []):
        pass
    after = by_name(home)
    assert {name: facts(row) for name, row in after.items()} == {
        name: facts(row) for name, row in before.items()
    }
    agree(home)


@in_trio
async def test_a_run_that_came_back_ends_with_all_that_it_ever_cost(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await one_more(home, priced("x"))
    failed = await one_more(home, priced("", NOTE), FAILED)
    lose_store(home)
    async with opened(home, [Counting(priced("y"), loop=True)]) as world:
        back = world.run(failed)
        await back.resume()
        await back.wait()
    agree(home)
    with Store.open(home / "world.db") as store:
        summaries = [row for _, row in store.summaries()]
        assert [row.outcome for row in summaries] == ["finished", "finished"]
        assert [row.outcome for row in store.superseded(back.ordinal)] == ["escalated_terminal"]


def test_runs_of_another_home_come_with_the_time_of_their_ending(place: Place) -> None:
    agent = place.agent()
    for number, status in enumerate(("complete", "running")):
        meta = RunMeta.new(
            f"far-{number}", "small", str(agent), "Look.", None, str(place.path), 1,
            now=1_700_000_000,
        )  # fmt: skip
        text = meta.to_json().decode().replace('"starting"', f'"{status}"')
        place.write(f"other/runs/far-{number}/meta.json", text)
    assert place.lev("import", str(place.path / "other")).code == 0
    summaries = by_name(place.home)
    assert summaries["far-1"] is None
    found = summaries["far-0"]
    assert found is not None
    assert found.finished_at.startswith("2023-11-14T")
    assert place.lev("stats", "--json").document()["all"]["runs"] == 1
    assert place.lev("stats", "--since", "1w", "--json").document()["all"]["runs"] == 0


def test_what_gc_removes_leaves_the_store_too(place: Place) -> None:
    assert place.spawn("--count", "3").code == 0
    assert place.lev("stats", "--json").document()["all"]["runs"] == 3
    assert place.lev("gc", "--keep", "1").code == 0
    assert place.lev("stats", "--json").document()["all"]["runs"] == 1
    agree(place.home)
    with Store.open(place.home / "world.db") as store:
        assert len(store.runs()) == 1
        assert [len(store.steps(info.run_id)) for info in store.runs()] == [2]


@pytest.mark.parametrize("cost", [None, 7_000])
def test_what_comes_back_after_the_ending_is_in_the_summary(cost: int | None) -> None:
    hand = Hand()
    run = hand.spawn(one())
    hand.post(Cancel(run))
    ended = [fact for result in hand.results for fact in result.endings]
    assert [type(fact) for fact in ended] == [EndingFact]
    result = hand.reply("too late", prompt=40, completion=2, cost_nano_usd=cost)
    assert result.endings == (
        LateCostFact(run, 42, 0 if cost is None else cost, int(cost is None)),
    )


@in_trio
async def test_a_late_charge_reaches_the_file_and_supersedes_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with opened(home, [Counting(priced("x"))]) as world:
        run = await world.spawn(one(), task="t", workdir=tmp_path)
        await run.wait()
    with open_database(home / "world.db", level="process") as database:
        database.claim(1, "2")
        database.commit(Batch(endings=[LateCostRow(run.ordinal, 777, 5, 1)]))
    with Store.open(home / "world.db") as store:
        summary = store.run_summary(run.ordinal)
        assert summary is not None
        assert (summary.outcome, summary.tokens) == ("finished", 777)
        assert (summary.cost_nano_usd, summary.unpriced) == (5, 1)
        assert store.superseded(run.ordinal) == []
