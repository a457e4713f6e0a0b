"""Trees as ``lev`` shows them: who works for whom, and what the whole cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from engine_worlds import opened
from tree_worlds import Stops, answers, splitter

from leviath.lev.ps import nested
from leviath.persistence.listing import ListedRun

if TYPE_CHECKING:
    from pathlib import Path

    from lev_commands import Place


def grow(home: Path, workdir: Path) -> str:
    """A fan-out of three in a home; returns the id of its root."""

    async def main() -> str:
        async with opened(home, [answers(3)]) as world:
            run = await world.spawn(splitter(), task="all", workdir=workdir)
            await run.wait()
            return str(run.run_id)

    return trio.run(main)


def test_show_tells_the_tree_and_what_it_cost(place: Place, tmp_path: Path) -> None:
    root = grow(place.home, tmp_path)
    shown = place.lev("show", root).out
    assert "below     3 runs (3 complete); with this one 0.000006\n" in shown
    lines = shown.partition("BELOW")[2].splitlines()[1:4]
    assert [line.split()[1:] for line in lines] == [["complete", "work", "0.000001"]] * 3
    body = place.lev("show", "--json", root).document()
    assert body["subtree"]["runs"] == 4 and body["subtree"]["cost_usd"] == 6e-06
    assert body["subtree"]["cost_is_exact"] is True
    assert [line.split()[0] for line in lines] == body["children"]
    child = place.lev("show", "--json", body["children"][0]).document()
    assert (child["parent_run_id"], child["subtree"]["runs"]) == (root, 1)


def test_ps_puts_children_below_their_parent(place: Place, tmp_path: Path) -> None:
    root = grow(place.home, tmp_path)
    lines = place.lev("ps", "--all").out.splitlines()[1:5]
    assert lines[0].startswith(root)
    assert [line[:2] == "  " for line in lines[1:]] == [True] * 3
    body = place.lev("ps", "--all", "--json").document()
    parents = [entry["parent_run_id"] for entry in body["finished"]]
    assert sorted(parents, key=str) == [None, root, root, root] or parents.count(root) == 3


def listed(run_id: str, parent: str | None) -> ListedRun:
    values = dict.fromkeys(ListedRun._fields)
    return ListedRun(**values | {"run_id": run_id, "parent_run_id": parent})  # type: ignore[arg-type]


def test_documents_that_name_each_other_as_parents_are_listed_once_each() -> None:
    runs = [listed("a", "b"), listed("b", "a"), listed("c", "c"), listed("d", "gone")]
    found = nested(runs)
    assert sorted(run.run_id for _, run in found) == ["a", "b", "c", "d"]


def test_a_grandchild_stands_below_its_parent() -> None:
    runs = [listed("leaf", "middle"), listed("other", None), listed("middle", "top")]
    runs.append(listed("top", None))
    assert [(depth, run.run_id) for depth, run in nested(runs)] == [
        (0, "other"),
        (0, "top"),
        (1, "middle"),
        (2, "leaf"),
    ]


def test_gc_leaves_what_a_run_at_work_may_still_ask_about(place: Place, tmp_path: Path) -> None:
    async def main() -> list[str]:
        # The split and the first worker; the second one is at work.
        stops = Stops(2, 2)
        async with opened(place.home, [stops]) as world:
            run = await world.spawn(splitter("max_workers = 1"), workdir=tmp_path)
            await stops.stopped.wait()
            return [run.run_id, *(child.run_id for child in run.children())]

    ids = trio.run(main)
    assert len(ids) == 3
    answer = place.lev("gc", "--older-than", "0s")
    assert answer.out == "nothing to remove\n"
