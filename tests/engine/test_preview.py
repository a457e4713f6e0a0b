"""Previews: what a step made before it is durable, and what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from leviath.components.errors import StorageError
from leviath.components.events import Confirmed, Ended, Spawned, Withdrawn, WorldEvent
from leviath.engine.blueprints import parse_blueprint
from leviath.engine.limits import EVENT_QUEUE_MAX
from leviath.engine.preview import Previewed, Previews
from leviath.engine.world import open_world
from leviath.providers.scripted import Scripted

if TYPE_CHECKING:
    from pathlib import Path

AGENT = """
[agent]
name = "one"
[stages.main]
[stages.main.model]
models = [{ provider = "scripted", model = "m" }]
"""


def spawned(number: int) -> WorldEvent:
    return Spawned(number, "one-1-000000000001", 5, "one", "main")


def test_previewed_events_carry_no_number_and_are_confirmed_by_their_step(tmp_path: Path) -> None:
    async def main() -> None:
        home = tmp_path / "home"
        async with open_world(home, providers=[Scripted.of("done")]) as world:
            preview = world.preview()
            run = await world.spawn(parse_blueprint(AGENT, where="t"), workdir=tmp_path)
            await run.wait()
            heard: list[Previewed] = []
            async for item in preview:
                heard.append(item)
                if isinstance(item, Confirmed) and any(isinstance(e, Ended) for e in heard):
                    break
        events = [item for item in heard if not isinstance(item, Confirmed | Withdrawn)]
        assert {event.number for event in events} == {0}
        assert {event.run_id for event in events} <= {"", run.run_id}
        assert not any(isinstance(item, Withdrawn) for item in heard)

    trio.run(main)


def test_what_was_not_durable_when_the_host_ends_is_withdrawn() -> None:
    async def main() -> None:
        previews = Previews()
        preview = previews.add()
        previews.step([spawned(1)])
        previews.confirm(1)
        previews.step([spawned(2)])
        previews.close(1, 2)
        heard = [item async for item in preview]
        assert heard == [spawned(0), Confirmed(1), spawned(0), Withdrawn(1)]

    trio.run(main)


def test_nothing_is_withdrawn_from_a_host_that_ended_in_order() -> None:
    async def main() -> None:
        previews = Previews()
        preview = previews.add()
        previews.step([spawned(1)])
        previews.confirm(1)
        previews.close(1, 1)
        assert [item async for item in preview] == [spawned(0), Confirmed(1)]

    trio.run(main)


def test_a_preview_that_runs_over_says_so_and_costs_nothing_more() -> None:
    async def main() -> None:
        previews = Previews()
        preview = previews.add()
        previews.step(spawned(n) for n in range(1, EVENT_QUEUE_MAX + 2))
        previews.step([spawned(9)])
        for _ in range(EVENT_QUEUE_MAX + 1):
            await preview.__anext__()
        with pytest.raises(StorageError, match="too slowly"):
            await preview.__anext__()

    trio.run(main)
