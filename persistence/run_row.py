"""A run's row in the index that listings read: a projection of its components."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from leviath.components.base import Component
from leviath.components.clean import cut_utf8
from leviath.components.identity import Identity, Launch, Tree
from leviath.components.output import Flags, Output, Title
from leviath.components.progress import Clock, Cost, Resolution, Stage
from leviath.components.status import Status
from leviath.persistence.rows import RunRow

if TYPE_CHECKING:
    from collections.abc import Mapping

Parts = "Mapping[type[Component], Component]"
C = TypeVar("C", bound=Component)
TASK_HEAD_BYTES_MAX = 200
"""What a listing shows of a task."""


def part(parts: Mapping[type[Component], Component], kind: type[C]) -> C:
    """The component of that kind, which every run has."""
    return parts[kind]  # type: ignore[return-value]


def maybe(parts: Mapping[type[Component], Component], kind: type[C]) -> C | None:
    """The component of that kind, or None."""
    return parts.get(kind)  # type: ignore[return-value]


def empty_output(parts: Mapping[type[Component], Component]) -> bool:
    """Ended, could have modified or submitted something, and did neither (leviath-run-files 3)."""
    flags = part(parts, Flags)
    if not part(parts, Status).status.is_ended:
        return False
    return not (
        flags.modified_count
        or maybe(parts, Output) is not None
        or flags.imported_produced_output
        or part(parts, Launch).no_output_tools
    )


def run_row(parts: Mapping[type[Component], Component], wall_ms: int) -> RunRow:
    """The row as of ``wall_ms`` (Unix milliseconds)."""
    identity = part(parts, Identity)
    launch = part(parts, Launch)
    status = part(parts, Status)
    clock = part(parts, Clock)
    cost = part(parts, Cost)
    stage = maybe(parts, Stage)
    title = maybe(parts, Title)
    resolution = maybe(parts, Resolution)
    return RunRow(
        ordinal=identity.ordinal,
        run_id=identity.run_id,
        key=identity.key or None,
        status=status.status.value,
        waiting_on=None if status.waiting is None else status.waiting.reason,
        agent_name=identity.agent_name,
        agent_path=identity.agent_path,
        task_head=cut_utf8(launch.task.body or launch.task_head, TASK_HEAD_BYTES_MAX),
        model=None if resolution is None else resolution.entry_model,
        stage="" if stage is None else stage.name,
        stage_index=0 if stage is None else stage.index,
        num_stages=launch.num_stages,
        iteration=0 if stage is None else stage.iteration,
        tool_calls=cost.tool_calls,
        cost_priced_nano=cost.priced_nano,
        unpriced_calls=cost.unpriced,
        cost_exact=cost.is_exact,
        prompt_tokens=cost.prompt,
        completion_tokens=cost.completion,
        cached_tokens=cost.cached,
        cache_write_tokens=cost.cache_write,
        started_ms=launch.started_ms,
        updated_ms=wall_ms,
        progress_ms=clock.progress_ms,
        ended_ms=clock.ended_ms,
        parent_run_id=part(parts, Tree).parent_run_id,
        title=None if title is None else title.title,
        error=status.error,
        yolo=launch.yolo,
        has_output=maybe(parts, Output) is not None,
        empty_output=empty_output(parts),
        workdir=launch.workdir,
    )
