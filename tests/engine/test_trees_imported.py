"""Trees that come in as run folders: links that are missing, circular, or older than their ends."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import trio
from engine_worlds import in_trio, opened, until
from tree_worlds import Answers, answers, splitter

from leviath.components.identity import Tree

if TYPE_CHECKING:
    from pathlib import Path


def forget_store(home: Path) -> None:
    """As if the database of a home were lost: its run folders are all there is."""
    for path in home.glob("world.db*"):
        path.unlink()


async def grown(home: Path, workdir: Path) -> list[str]:
    """A tree of one root and three workers, all ended; ids, the root first."""
    async with opened(home, [answers(3)]) as world:
        run = await world.spawn(splitter(), task="all", workdir=workdir)
        await run.wait()
        return [run.run_id, *(child.run_id for child in run.children())]


@in_trio
async def test_a_tree_comes_back_from_its_folders(tmp_path: Path) -> None:
    home = tmp_path / "home"
    ids = await grown(home, tmp_path)
    forget_store(home)
    async with opened(home, [answers(3)]) as world:
        run = world.run(ids[0])
        assert {child.run_id for child in run.children()} == {*ids[1:]}
        assert run.total().runs == 4 and run.total().priced_nano == 6_000
        assert await world.check() == []


@in_trio
async def test_runs_that_name_each_other_as_parents_come_in_as_no_circle(tmp_path: Path) -> None:
    home = tmp_path / "home"
    ids = await grown(home, tmp_path)
    forget_store(home)
    for child, parent in zip(ids, (*ids[1:], ids[0]), strict=True):
        folder = home / "runs" / child
        (folder / "state.lev").unlink()
        meta = json.loads((folder / "meta.json").read_text())
        (folder / "meta.json").write_text(json.dumps(meta | {"parent_run_id": parent}))
    async with opened(home, [answers(3)]) as world:
        inside = world._host.world
        parents = {n: inside.get(n, Tree).parent for n in inside.owners()}
        assert all(parent < n for n, parent in parents.items()), parents
        for run_id in ids:
            assert world.run(run_id).total().runs <= 4
        assert await world.check() == []


@in_trio
async def test_a_child_that_outlives_its_parent_keeps_its_depth_and_goes_on(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    provider = answers(2)

    async def never(request: object, on_text: object) -> object:
        if request.stage == "work":  # type: ignore[attr-defined]
            await trio.sleep_forever()
        return await Answers.infer(provider, request, None)  # type: ignore[arg-type]

    provider.infer = never  # type: ignore[method-assign, assignment]
    async with opened(home, [provider]) as world:
        run = await world.spawn(splitter(), task="all", workdir=tmp_path)
        await until(lambda: len(run.children()) == 2)
        children = run.children()
    forget_store(home)
    shutil.rmtree(home / "runs" / run.run_id)
    async with opened(home, [answers(2)]) as world:
        for orphan in children:
            child = world.run(orphan.run_id)
            assert (await child.wait()).status == "complete"
            assert child.parent is None, "it is not in this home"
            tree = json.loads((home / "runs" / child.run_id / "meta.json").read_text())
            assert (tree["depth"], tree["parent_run_id"]) == (1, run.run_id)
        assert await world.check() == []


@in_trio
async def test_a_fan_out_whose_store_is_lost_tells_its_model_and_goes_on(tmp_path: Path) -> None:
    home = tmp_path / "home"
    provider = answers(2)

    async def never(request: object, on_text: object) -> object:
        if request.stage == "work":  # type: ignore[attr-defined]
            await trio.sleep_forever()
        return await Answers.infer(provider, request, None)  # type: ignore[arg-type]

    provider.infer = never  # type: ignore[method-assign, assignment]
    async with opened(home, [provider]) as world:
        run = await world.spawn(splitter(), task="all", workdir=tmp_path)
        await until(lambda: len(run.children()) == 2)
    forget_store(home)
    again = answers(2)
    async with opened(home, [again]) as world:
        row = await world.run(run.run_id).wait()
        assert row.status == "complete"
        assert await world.check() == []
    first = next(request for request in again.asked if request.run_id == run.run_id)
    assert "interrupted: the run was moved" in first.messages[-1].text
