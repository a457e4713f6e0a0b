"""What ``lev`` reads of a home equals what its host has in memory and what a plain list says."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from lev_commands import ROW, Place
from msgspec.structs import replace

from leviath.components.context import Context
from leviath.components.parts import RUN_PARTS
from leviath.engine.world import open_world
from leviath.lev.run_parts import read_run
from leviath.persistence.database import open_database
from leviath.persistence.listing import ENDED, Listing
from leviath.persistence.rows import Batch, RunRow
from leviath.providers.scripted import Scripted

if TYPE_CHECKING:
    from leviath.engine.run_handle import RunHandle
    from leviath.engine.world import OpenWorld

WORDS = ("starting", "running", "waiting_input", "paused", "complete", "error", "cancelled")


@st.composite
def run_rows(draw: st.DrawFn) -> list[RunRow]:
    """Rows of a home in order of spawning; none was updated before it ended."""
    count = draw(st.integers(0, 25))
    found: list[RunRow] = []
    for ordinal in range(1, count + 1):
        status = draw(st.sampled_from(WORDS))
        updated = draw(st.integers(0, 50))
        ended = draw(st.integers(0, updated)) if status in ENDED else None
        found.append(
            replace(
                ROW,
                ordinal=ordinal,
                run_id=f"{draw(st.sampled_from(('ab', 'abc', 'b')))}-{ordinal}",
                status=status,
                updated_ms=updated,
                ended_ms=ended,
            )
        )
    return found


@settings(max_examples=40)
@given(run_rows(), st.integers(1, 30), st.integers(0, 50), st.none() | st.integers(0, 50))
def test_pages_are_those_of_a_plain_list(
    runs: list[RunRow], limit: int, since: int, after: int | None
) -> None:
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        with open_database(home / "world.db", level="process") as database:
            database.initialise("world", 1)
            database.claim(1, "1")
            database.commit(Batch(runs=runs))
        listing = Listing.open(home)
        assert listing is not None
        with listing:
            everything = listing.page(limit=limit, after=after)
            recent = listing.page(limit=limit, after=after, ended_since_ms=since)
            heads = {head: listing.starting_with(head, limit=30) for head in ("a", "abc", "b-1")}
            ended = [run.run_id for run in listing.ended()]
    below = [run for run in reversed(runs) if after is None or run.ordinal < after]
    assert [run.ordinal for run in everything] == [run.ordinal for run in below][:limit]
    wanted = [run.ordinal for run in below if run.ended_ms is None or run.ended_ms >= since]
    assert [run.ordinal for run in recent] == wanted[:limit]
    for head, ids in heads.items():
        assert ids == sorted(run.run_id for run in runs if run.run_id.startswith(head))
    newest_first = sorted(
        (run for run in runs if run.ended_ms is not None),
        key=lambda run: (run.ended_ms, run.ordinal),
        reverse=True,
    )
    assert ended == [run.run_id for run in newest_first]


async def same(place: Place, world: OpenWorld, run: RunHandle) -> None:
    """The run as it is read from the file is the run that the host has, component by component."""
    while not world._host.is_settled:
        await trio.lowlevel.checkpoint()
    parts = read_run(place.home, run.run_id)
    memory = world._host.world
    assert parts.fault == ""
    for kind in RUN_PARTS:
        assert parts.find(kind) == memory.find(run.ordinal, kind), kind
    now = run.row()
    told = {name: getattr(parts.row, name) for name in RunRow.__struct_fields__}
    expected = {name: getattr(now, name) for name in RunRow.__struct_fields__}
    assert told | {"updated_ms": 0} == expected | {"updated_ms": 0}


def test_a_run_read_from_outside_is_the_run_that_its_host_has(place: Place) -> None:
    async def drive() -> None:
        providers = [Scripted(place.path / "hangs.toml")]
        async with open_world(place.home, providers=providers, grace_ms=0) as world:
            run = await world.spawn(place.path / "agent", task="Look.", workdir=place.path)
            other = await world.spawn(place.path / "agent", task="Look.", workdir=place.path)
            await same(place, world, other)
            await other.pause(why="wait")
            await same(place, world, other)
            await other.cancel()
            await same(place, world, other)
            await same(place, world, run)
            run_id = run.run_id
            cancelled = other.run_id
        with open_database(place.home / "world.db", level="process", read_only=True) as reader:
            for name in (run_id, cancelled):
                listed = reader.run_by_id(name)
                assert listed is not None
                assert listed == read_run(place.home, name).row
        async with open_world(place.home, drive=False) as world:
            run = world.run(run_id)
            await same(place, world, run)
            await run.pause(why="later")
            await same(place, world, run)

    trio.run(drive)


def test_the_context_is_read_with_what_later_steps_spliced(place: Place) -> None:
    place.spawn()
    (run_id,) = place.ids()
    context = read_run(place.home, run_id).find(Context)
    assert context is not None
    assert sum(len(region.entries) for region in context.regions) > 2
