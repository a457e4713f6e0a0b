"""A wrong argument is refused where it enters, and the refusal names it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from engine_worlds import Counting, in_trio, one, opened
from msgspec.structs import replace

import leviath
import leviath.aio
from leviath.components.errors import ConfigError, RunNotFound, SpawnError
from leviath.components.world_facts import Policy

if TYPE_CHECKING:
    from collections.abc import Callable


def _nothing(policy: Policy) -> None:
    """No policy at all."""


def _with_slots(slots: Any) -> Callable[[Policy], Policy]:
    """A policy with these slots of models."""

    def change(policy: Policy) -> Policy:
        return replace(policy, slots=slots)

    return change


SETTINGS: list[tuple[str, Any]] = [
    ("grace_ms", -1), ("secrets", "hunter2-hunter2"), ("tools", len), ("slots", "4"),
    ("seed", "x"), ("clock", 5), ("policy", 5), ("policy", _nothing), ("on_text", 5),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), SETTINGS)
@in_trio
async def test_a_setting_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name) as refused:
        async with opened(tmp_path / "home", [], **{name: value}):
            pass
    assert "hunter2" not in str(refused.value)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("slots", "said"),
    [
        (5, "slots"), ("acme", "slots"), ((("acme", "m"),), r"\(provider, model, calls\)"),
        (("acme", "m", 1), "each of policy: slots"), ((("acme", 5, 1),), "text"),
        (((" ", "m", 1),), "name the provider"), ((("a\0", "m", 1),), "name the provider"),
        ((("acme", "m", -1),), "acme/m"), ((("acme", "m", True),), "acme/m"),
        ((("acme", "m", 1.5),), "acme/m"), ((("acme", "m", 10**9),), "1,000,000"),
        ((("acme", "m", 1), ("acme", "m", 2)), "twice"),
    ],
)  # fmt: skip
@in_trio
async def test_slots_of_a_model_are_held_to_their_shape(
    tmp_path: Path, slots: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        async with opened(tmp_path / "home", [], policy=_with_slots(slots)):
            pass
    assert not (tmp_path / "home").exists()


@in_trio
async def test_slots_of_a_model_may_come_as_lists(tmp_path: Path) -> None:
    slots: Any = [["scripted", "m", 1], ("other", "m", 0)]
    async with opened(tmp_path / "home", [Counting("done")], policy=_with_slots(slots)) as world:
        run = await world.spawn(one(), task="x", workdir=tmp_path)
        assert (await run.wait()).status == "complete"


@in_trio
async def test_a_world_that_was_not_opened_says_how_to_open_it(tmp_path: Path) -> None:
    for open_one, call in (
        (leviath.open_world, "leviath.open_world"),
        (leviath.aio.open_world, "leviath.aio.open_world"),
    ):
        unopened: Any = open_one(tmp_path / "home")
        with pytest.raises(AttributeError, match="not open yet") as refused:
            await unopened.spawn(one())
        assert f"async with {call}(...) as world:" in str(refused.value)
    assert not (tmp_path / "home").exists()


@in_trio
async def test_a_spawn_or_a_request_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "home", [Counting("done")]) as world:
        for name, value in (
            ("task", 5), ("key", None), ("regions", ["a"]), ("metadata", 3), ("allow", "shell"),
            ("allow", ["nope"]), ("yolo", "wild"), ("model", "/"), ("callback_url", "ftp://x"),
        ):  # fmt: skip
            options: Any = {"workdir": tmp_path, name: value}
            with pytest.raises(SpawnError, match=name):
                await world.spawn(one(), **options)
        run = await world.spawn(one(), task="x", workdir=tmp_path)
        bad: Any = 5
        for call in (run.message(bad), run.message(""), run.decide("c", "no"), run.pause(why=bad),
                     run.message("x", region="nop"), run.wait(timeout_s=-1)):  # fmt: skip
            with pytest.raises(ConfigError):
                await call
        await run.wait()
        await run.forget()
        with pytest.raises(RunNotFound, match=run.run_id):
            await run.pause()
        for read in (run.row, run.result, run.ledger, run.deliveries):
            with pytest.raises(RunNotFound, match=run.run_id):
                read()
