"""A saved world in a test: whether it still does the same, what its runs came to, and what a fork
of one comes to instead."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from leviath.components.errors import ConfigError, RunNotFound
from leviath.components.output import Output
from leviath.components.progress import Cost, Stage, Visits
from leviath.components.status import Status
from leviath.persistence.history import History
from leviath.persistence.saved import open_saved
from leviath.simulation.replay import ReplayReport, replay

if TYPE_CHECKING:
    from leviath.components.base import Component
    from leviath.persistence.rows import RunRow
    from leviath.persistence.saved import Saved


class RunOutcome(Struct, frozen=True):
    """What a run came to: equal for two runs that came to the same."""

    status: str
    """A word of ``RunStatus.wire()``."""
    error: str | None
    stage: str
    """The stage it ended in, or is in."""
    output: str | None
    """Its final output, whole."""
    tool_calls: int
    tokens: int
    cost_nano_usd: int
    """Of the calls whose cost is known."""
    unpriced_calls: int


class Handle(Protocol):
    """A run of an open world: a ``leviath.RunHandle``, or one of ``leviath.blocking``."""

    def row(self) -> RunRow:
        """Its listing row."""
        ...

    def result(self) -> str | None:
        """Its final output."""
        ...


def outcome_of(run: Handle) -> RunOutcome:
    """What a run of an open world came to, as of now."""
    row = run.row()
    tokens = row.prompt_tokens + row.completion_tokens + row.cached_tokens + row.cache_write_tokens
    return RunOutcome(
        row.status,
        row.error,
        row.stage,
        run.result(),
        row.tool_calls,
        tokens,
        row.cost_priced_nano,
        row.unpriced_calls,
    )


class SavedWorld:
    """A home, or a folder made by ``lev export``. Nothing is kept open, and nothing is written."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: str = os.fspath(path)
        with open_saved(self.path) as saved:
            self.run_ids: tuple[str, ...] = tuple(name for name, _ in saved.runs_starting(""))
            """Ids of its runs, oldest first."""
            self.last_step: int = saved.last
            """Number of its newest step."""

    def replay(self) -> ReplayReport:
        """Run it again; see ``leviath.testing.replay``."""
        return replay(self.path)

    def expect_same(self) -> None:
        """Raise ReplayDivergence at the first step that does not come out as recorded."""
        self.replay().expect_same()

    def outcome(self, run_id: str | None = None, *, at: int | None = None) -> RunOutcome:
        """What a run had come to by step ``at``, the newest by default; the only run by default.

        Raises RunNotFound, and ConfigError for a step that is not kept, or when no run is named and
        there are several.
        """
        if run_id is None:
            if len(self.run_ids) != 1:
                names = ", ".join(self.run_ids)
                raise ConfigError(f"{self.path} has {len(self.run_ids)} runs; name one: {names}")
            run_id = self.run_ids[0]
        with open_saved(self.path) as saved:
            history = History(saved)
            _, owner = history.find(run_id)
            parts = history.at(saved.last if at is None else at).owners.get(owner)
            if parts is None:
                raise RunNotFound(f"{run_id} was not there at step {at} of {self.path}")
            return _outcome(parts, saved)

    def turn(self, run_id: str, turn: int) -> int:
        """The first step after which that run has made ``turn`` turns, over all stages: where to
        fork it. Raises RunNotFound, ConfigError when it made fewer."""
        with open_saved(self.path) as saved:
            history = History(saved)
            _, owner = history.find(run_id)
            for cause in history.why(run_id):
                visits = history.at(cause.step).owners.get(owner, {}).get(Visits)
                if isinstance(visits, Visits) and visits.turns >= turn:
                    return cause.step
        raise ConfigError(f"{run_id} of {self.path} made fewer than {turn} turns")


def _outcome(parts: dict[type[Component], Component], saved: Saved) -> RunOutcome:
    status, stage = parts[Status], parts.get(Stage)
    cost, output = parts.get(Cost) or Cost(), parts.get(Output)
    assert isinstance(status, Status)
    assert isinstance(cost, Cost)
    text = None
    if isinstance(output, Output):
        content = output.content
        text = content.body
        if content.digest:
            text = (saved.entry(content.digest) or b"").decode()
    return RunOutcome(
        status.status.wire(),
        status.error,
        stage.name if isinstance(stage, Stage) else "",
        text,
        cost.tool_calls,
        cost.prompt + cost.completion + cost.cached + cost.cache_write,
        cost.priced_nano,
        cost.unpriced,
    )
