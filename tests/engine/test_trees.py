"""Trees of runs in whole worlds: on disk, over restarts, with blueprints that must be found."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import trio
from engine_worlds import in_trio, opened, until
from msgspec.structs import replace
from tree_worlds import (
    BOSS,
    READER,
    Answers,
    agent_folder,
    answers,
    calls,
    expected,
    splitter,
    stages,
    task_of,
    text,
)

from leviath.components.errors import RunConflict
from leviath.components.run_status import RunStatus
from leviath.engine.world import open_world

if TYPE_CHECKING:
    from pathlib import Path

    from leviath.engine.ports import InferenceReply, InferenceRequest
    from leviath.engine.run_handle import RunHandle
    from leviath.engine.world import OpenWorld


@in_trio
async def test_a_fan_out_from_a_json_list_ends_in_files_that_tell_the_tree(
    tmp_path: Path,
) -> None:
    provider = answers()
    async with opened(tmp_path / "home", [provider]) as world:
        run = await world.spawn(splitter(), task="all", workdir=tmp_path)
        row = await run.wait()
        assert row.status == "complete" and run.result() == expected()
        workers = run.children()
        assert len(workers) == 10 and run.parent is None
        assert [worker.parent.run_id for worker in workers] == [run.run_id] * 10
        total = run.total()
        assert (total.runs, total.nano_usd, total.is_exact) == (11, 13_000, True)
    folder = tmp_path / "home" / "runs" / run.run_id
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["children"] == [worker.run_id for worker in workers]
    child = json.loads((folder.parent / workers[0].run_id / "meta.json").read_text())
    assert (child["parent_run_id"], child["depth"]) == (run.run_id, 1)
    context = json.loads((folder / "context.json").read_text())
    shown = json.dumps(context)
    assert "result of task 9" in shown, "what is referred to is shown"
    assert len(provider.asked) == 13


async def evict(world: OpenWorld) -> None:
    """Write a cut, after which ended runs are out of memory."""
    host = world._host
    assert host.cutting is not None
    host.cutting.hasten()
    host.wake()
    before = len(list(host.world.owners()))
    await until(lambda: len(list(host.world.owners())) < before)


@in_trio
async def test_ended_workers_leave_memory_and_a_reload_still_has_their_results(
    tmp_path: Path,
) -> None:
    gate = trio.Event()
    provider = answers(4)
    quick = provider.by_stage["work"]

    async def slow(request: InferenceRequest, on_text: Any) -> InferenceReply:
        if request.stage == "work" and task_of(request) == "task 3":
            await gate.wait()
        return await Answers.infer(provider, request, on_text)

    provider.infer = slow  # type: ignore[method-assign]
    async with opened(tmp_path / "home", [provider]) as world:
        run = await world.spawn(splitter(), workdir=tmp_path)
        await until(lambda: len(provider.asked) == 4)
        await evict(world)
        assert len(world.runs()) == 2, "the parent and the worker that is at work"
        assert len(run.children()) == 4 and run.total().runs == 5
        inside = world._host.world
        before = inside.trees.snapshot()["below"]
    assert provider.by_stage["work"] is quick
    gate.set()
    async with opened(tmp_path / "home", [provider]) as world:
        inside = world._host.world
        after = inside.trees.snapshot()["below"]
        run = world.run(run.run_id)
        row = await run.wait()
        assert row.status == "complete" and run.result() == expected(4)
        # The one that was cut off is asked again, and its first attempt has no price.
        assert [n for n, _ in before.items()] == [n for n, _ in after.items()]
        total = run.total()
        assert (total.runs, total.unpriced, total.nano_usd) == (5, 1, None)
        assert await world.check() == []
        await evict(world)
        assert run.total() == total, "the same from the index as from memory"
        assert [child.parent.run_id for child in run.children()] == [run.run_id] * 4


@in_trio
async def test_workers_that_start_after_a_restart_have_the_blueprint_that_was_found_before(
    tmp_path: Path,
) -> None:
    """No run in memory has it then: the parent has another one, and its first worker has left."""
    asking = stages(
        '[stages.split]\nmode = "fan_out"\nworker_agent = "reader"\nmax_workers = 1\n'
        "[stages.split.transitions]\n",
        "asking",
    )
    gate = trio.Event()
    provider = Answers(
        split=lambda request: text('["one", "two"]'),
        main=lambda request: text(f"read {task_of(request)}"),
    )

    async def slow(request: InferenceRequest, on_text: Any) -> InferenceReply:
        if request.stage == "main":
            await gate.wait()
        return await Answers.infer(provider, request, on_text)

    provider.infer = slow  # type: ignore[method-assign]
    async with opened(tmp_path / "home", [provider], agents=[READER]) as world:
        run = await world.spawn(asking, workdir=tmp_path)
        await until(run.children)
        await run.pause()
        (first,) = run.children()
        await first.cancel()
        reader = world._opened.reader
        assert reader is not None
        # Its aborted call was charged, and that is in the index.
        await until(lambda: not reader.rows("select run from owing"))
        await evict(world)
        assert [one.run_id for one in world.runs()] == [run.run_id]
    gate.set()
    async with opened(tmp_path / "home", [provider]) as world:
        run = world.run(run.run_id)
        await run.resume()
        assert (await run.wait()).status == "complete"
        assert [child.row().status for child in run.children()] == ["cancelled", "complete"]


@in_trio
async def test_a_run_brought_back_into_memory_counts_once(tmp_path: Path) -> None:
    provider = answers(3)
    async with opened(tmp_path / "home", [provider]) as world:
        run = await world.spawn(splitter(), workdir=tmp_path)
        await run.wait()
        await evict(world)
        total = run.total()
        for child in run.children():
            with pytest.raises(RunConflict):
                await child.resume()
            with pytest.raises(RunConflict):
                await run.pause()
        assert run.total() == total and total.runs == 4
        assert await world.check() == []


@in_trio
async def test_cancel_and_pause_reach_the_whole_tree(tmp_path: Path) -> None:
    provider = answers(5)

    async def never(request: InferenceRequest, on_text: Any) -> InferenceReply:
        if request.stage == "work":
            await trio.sleep_forever()
        return await Answers.infer(provider, request, on_text)

    provider.infer = never  # type: ignore[method-assign]

    def all_are(runs: list[RunHandle], status: RunStatus) -> bool:
        return {run.status.status for run in runs} == {status}

    async with opened(tmp_path / "home", [provider]) as world:
        run = await world.spawn(splitter(), workdir=tmp_path)
        await until(lambda: len(run.children()) == 5)
        runs = [run, *run.children()]
        await run.pause(actor="ann", why="lunch")
        await until(lambda: all_are(runs, RunStatus.PAUSED))
        with pytest.raises(RunConflict, match=run.run_id):
            await runs[1].resume()
        await run.resume()
        await until(lambda: all_are(runs[1:], RunStatus.RUNNING))
        await run.cancel()
        await until(lambda: all_are(runs, RunStatus.CANCELLED))
        for one in runs:
            assert (await one.wait()).status == "cancelled"


@in_trio
async def test_a_tree_that_was_being_cancelled_is_cancelled_on_by_the_next_host(
    tmp_path: Path,
) -> None:
    """Also by one that does not drive: nothing of it has to be sent."""
    provider = answers(9)

    async def never(request: InferenceRequest, on_text: Any) -> InferenceReply:
        if request.stage == "work":
            await trio.sleep_forever()
        return await Answers.infer(provider, request, on_text)

    provider.infer = never  # type: ignore[method-assign]
    async with opened(tmp_path / "home", [provider]) as world:
        run = await world.spawn(splitter(), workdir=tmp_path)
        await until(lambda: len(run.children()) == 9)

    def slowly(policy: Any) -> Any:
        return replace(policy, tree_moves_max=1)

    async with opened(tmp_path / "home", [provider], drive=False, policy=slowly) as world:
        await world.run(run.run_id).cancel()
    async with opened(tmp_path / "home", [provider], drive=False) as world:
        run = world.run(run.run_id)
        for child in run.children():
            assert (await child.wait()).status == "cancelled"


# --- finding blueprints -------------------------------------------------------------------------


def spawning(agent: str) -> Answers:
    """A boss that starts one agent and waits; the agent answers at once."""

    def main(request: InferenceRequest) -> InferenceReply:
        if request.agent != "boss":
            return text(f"{request.agent} says hello")
        if any(message.role == "tool" for message in request.messages):
            return text("done")
        return calls(("spawn_agent", {"agent": agent, "task": "hello", "wait": True}))

    return Answers(main=main)


def told(provider: Answers) -> str:
    """What the tool answered."""
    return next(m.text for m in provider.asked[-1].messages if m.role == "tool")


@in_trio
async def test_agents_are_found_by_name_in_the_world_the_home_and_beside_the_asking_one(
    tmp_path: Path,
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    boss = agent_folder(tmp_path / "shelf", "boss")
    manifest = boss / "agent.leviath"
    manifest.write_text(
        manifest.read_text().replace(
            "[stages.main]\n", '[stages.main]\navailable_tools = ["spawn_agent"]\n', 1
        )
    )
    agent_folder(tmp_path / "shelf", "neighbour")
    agent_folder(tmp_path / "home" / "agents", "installed")
    for name, agents in (
        ("reader", [READER]),
        ("installed", []),
        ("neighbour", []),
        (str(tmp_path / "shelf" / "neighbour"), []),
        ("../neighbour", []),
    ):
        provider = spawning(name)
        async with opened(tmp_path / "home", [provider], agents=agents) as world:
            run = await world.spawn(boss, workdir=work)
            await run.wait()
        plain = name.rpartition("/")[2]
        assert f"{plain} says hello" in told(provider), told(provider)


@in_trio
async def test_a_blueprint_that_is_missing_invalid_or_its_own_writing_is_refused(
    tmp_path: Path,
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    own = agent_folder(work / "agents", "mine")
    (tmp_path / "link").symlink_to(own)
    (work / "out").symlink_to(agent_folder(tmp_path / "elsewhere", "real"))
    broken = agent_folder(tmp_path / "home" / "agents", "broken")
    (broken / "agent.leviath").write_text("[agent]\nnmae = 1\n[stages.a.edges]\n")
    cases = {
        "nobody": "no agent called 'nobody' is installed; there are: broken",
        str(own): "you could have written it",
        str(tmp_path / "link"): "you could have written it",
        str(work / "out"): "you could have written it",
        "broken": "fault",
        str(tmp_path / "none" / "such"): "there is no such file",
        "..": "is no name",
        "../relative": "is a relative path",
    }
    for name, why in cases.items():
        provider = spawning(name)
        async with opened(tmp_path / "home", [provider]) as world:
            run = await world.spawn(BOSS, workdir=work)
            assert (await run.wait()).status == "complete"
            assert run.children() == []
        assert told(provider).startswith("[error] ") and why in told(provider), told(provider)


@in_trio
async def test_a_query_finds_an_agent_by_words_of_its_description(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    agent_folder(tmp_path / "home" / "agents", "a-writer", "Writes reports")
    agent_folder(tmp_path / "home" / "agents", "b-reader", "Reads papers with care")
    asking = stages(
        '[stages.split]\nmode = "fan_out"\nworker_query = "READS PAPERS"\n'
        "[stages.split.transitions]\n",
        "asking",
    )
    provider = Answers(
        split=lambda request: text('```json\n["one", {"id": "b", "task": "two"}]\n```'),
        main=lambda request: text(f"{request.agent}: {task_of(request)}"),
    )
    async with opened(tmp_path / "home", [provider]) as world:
        run = await world.spawn(asking, workdir=work)
        assert (await run.wait()).status == "complete"
        assert {child.row().agent_name for child in run.children()} == {"b-reader"}


@in_trio
async def test_a_world_in_memory_has_trees_too(tmp_path: Path) -> None:
    provider = spawning("reader")
    async with open_world(
        durability="memory", providers=[provider], agents=[READER], grace_ms=0
    ) as world:
        run = await world.spawn(BOSS, workdir=tmp_path)
        await run.wait()
        (child,) = run.children()
        assert child.parent is not None and child.parent.run_id == run.run_id
        assert run.total().runs == 2 and child.total().runs == 1
    assert "reader says hello" in told(provider)


@in_trio
async def test_all_workers_of_a_fan_out_that_fail_make_a_run_that_failed(tmp_path: Path) -> None:
    from leviath.components.errors import ProviderError

    provider = answers(3)

    def refuse(request: InferenceRequest) -> InferenceReply:
        raise ProviderError("exit 127", kind="bad_request")

    provider.by_stage["work"] = refuse
    async with opened(tmp_path / "home", [provider]) as world:
        run = await world.spawn(splitter(), workdir=tmp_path)
        row = await run.wait()
    assert row.status == "error"
    assert row.error == "3 of 3 workers failed; the first: 1: error: exit 127"
