"""A wrong argument is refused where it enters, and the refusal names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_worlds import Counting, in_trio, one, opened

from leviath.components.errors import ConfigError, RunNotFound, SpawnError
from leviath.components.world_facts import Policy


def _nothing(policy: Policy) -> None:
    """No policy at all."""


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
