"""Power cuts while a run asks and is answered: no answer is lost, and none is used twice."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import trio
from engine_worlds import opened, until
from recording_disks import disk

import leviath
from leviath import events
from leviath.simulation.disk import RecordingDisk
from leviath.simulation.disk_log import crash_images, materialise

if TYPE_CHECKING:
    from pathlib import Path

AGENT = leviath.parse_blueprint(
    """
    [agent]
    name = "asker"
    [stages.main]
    available_tools = ["ask_user_text", "submit_output"]
    model = { provider = "scripted", model = "any" }
    """,
    where="asker",
)


def script() -> leviath.Scripted:
    return leviath.Scripted.of(
        leviath.tool_call("ask_user_text", question="Which?"),
        leviath.tool_call("submit_output", content="took it"),
        "Done.",
    )


async def until_asked(world: leviath.OpenWorld) -> None:
    async for event in world.events(after=0):
        if isinstance(event, events.QuestionAsked):
            return


async def finish(home: Path, workdir: Path, *, is_answered: bool) -> None:
    """Open a home as the power left it, answer if it still asks, and see it end as it should."""
    async with opened(home, [script()]) as world:
        run = await world.spawn(AGENT, task="x", workdir=workdir, key="one")
        await until_asked(world)
        questions = world.questions()
        if is_answered:
            assert questions == [], "an acknowledged answer was lost"
        for question in questions:
            assert question.id == f"{run.run_id}.q1"
            await run.answer(question.id, text="blue")
        await run.wait()
        assert run.result() == "took it"
        answers = [
            event
            async for event in run.events()
            if isinstance(event, events.QuestionAnswered | events.QuestionAsked)
        ]
        assert [type(event).__name__ for event in answers] == ["QuestionAsked", "QuestionAnswered"]


def test_an_answer_is_neither_lost_nor_used_twice_whatever_the_moment_of_the_cut(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    acknowledged: list[int] = []

    async def play(vfs: RecordingDisk) -> None:
        async with opened(home, [script()], durability="full", vfs=vfs.name, seed=7) as world:
            run = await world.spawn(AGENT, task="x", workdir=tmp_path, key="one")
            await until_asked(world)
            (question,) = world.questions()
            await run.answer(question.id, text="blue")
            acknowledged.append(vfs.recording.position)
            await run.wait()
            await until(lambda: world._host.is_settled)

    with disk(home) as vfs:
        trio.run(play, vfs)
        log = list(vfs.recording.log)
    images = list(crash_images(log))
    assert len(images) > 20
    before = sum(image.position < acknowledged[0] for image in images)
    assert 0 < before < len(images)
    for number, image in enumerate(images[:: max(1, len(images) // 60)]):
        copy = tmp_path / f"image{number}"
        materialise(image, copy)

        async def main(copy: Path = copy, at: int = image.position) -> None:
            with trio.fail_after(30):
                await finish(copy, tmp_path, is_answered=at >= acknowledged[0])

        trio.run(main)
        shutil.rmtree(copy)
