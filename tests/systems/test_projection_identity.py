"""Project, reload, project: the same document after every step of any history.

Reloading is done both ways there are: reading ``meta.json`` itself, and importing the documents of
the run's folder into components, as a home that lost its database does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis.stateful import invariant
from msgspec.structs import replace
from world_machine import Worlds

from leviath.components.identity import Launch
from leviath.components.output import Output
from leviath.components.progress import Clock
from leviath.components.run_status import RunStatus
from leviath.components.status import Status
from leviath.persistence.importing import parts_from_documents
from leviath.persistence.projection import (
    body_only,
    project_context,
    project_meta,
    project_stages,
)
from leviath.persistence.run_meta import RunMeta
from leviath.systems.moves import clock_runs

if TYPE_CHECKING:
    from leviath.components.base import Component

DRIVEN = (RunStatus.STARTING, RunStatus.RUNNING)
Parts = dict[type["Component"], "Component"]


def without_moving(meta: RunMeta) -> RunMeta:
    """The document without what writing it, and driving its run again, may move."""
    meta = replace(meta, updated_at=0)
    return replace(meta, last_progress_at=None) if meta.status in DRIVEN else meta


def differing(again: RunMeta, meta: RunMeta) -> dict[str, tuple[object, object]]:
    """What came back otherwise, by key."""
    pairs = without_moving(again), without_moving(meta)
    return {
        name: (getattr(pairs[0], name), getattr(pairs[1], name))
        for name in meta.__struct_fields__
        if getattr(pairs[0], name) != getattr(pairs[1], name)
    }


class Projections(Worlds):
    """The world machine, with each run projected and reloaded after every step."""

    @invariant()
    def a_document_comes_back_as_it_was(self) -> None:
        world = self.hand.world
        now_s, world_ms = self.hand.wall_ms // 1_000, self.hand.world_ms
        for n in world.owners():
            parts: Parts = {type(part): part for part in world.parts_of(n)}
            meta = project_meta(parts, now_s=now_s, world_ms=world_ms)
            text = meta.to_json()
            read = RunMeta.from_json(text)
            assert read == meta
            assert read.to_json() == text
            launch = parts[Launch]
            assert isinstance(launch, Launch)
            output = parts.get(Output)
            body = output.content.body.encode() if isinstance(output, Output) else None
            made = parts_from_documents(
                read,
                project_stages(parts),
                project_context(parts, body_only),
                body,
                document=text,
                blueprint=world.blueprints[launch.blueprint],
                blueprint_digest=launch.blueprint,
                world_ms=world_ms,
            )
            back: Parts = {type(part): part for part in made}
            status, clock = back[Status], back[Clock]
            assert isinstance(status, Status)
            assert isinstance(clock, Clock)
            if clock_runs(status.status, status.waiting):
                # As the step that takes an Import input does.
                back[Clock] = replace(clock, since_ms=world_ms)
            # Written again at the same moment: a running clock counts on from its writing.
            again = project_meta(back, now_s=now_s, world_ms=world_ms)
            assert differing(again, meta) == {}


TestProjections = Projections.TestCase
TestProjections.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
