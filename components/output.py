"""What a run handed back, and why it may have handed back nothing useful."""

from __future__ import annotations

from leviath.components.base import Component
from leviath.components.text import Text


class Output(Component):
    """The final output; the newest submission stands."""

    content: Text
    stage: str
    submitted_ms: int
    """Unix milliseconds."""
    size_bytes: int
    """Of the content as kept, which is what was submitted unless ``truncated``."""
    format: str | None = None
    truncated: bool = False


class Flags(Component):
    """The facts behind ``RunMeta.flags``."""

    modified_files: tuple[str, ...] = ()
    """Distinct paths, first touch first, at most 200."""
    modified_count: int = 0
    """Successful modifying calls."""
    searches_run: int = 0
    searches_empty: int = 0
    max_iterations_hit: int = 0
    gates_forced: int = 0
    output_forced: int = 0
    splits_degraded: int = 0
    required_abandoned: tuple[str, ...] = ()
    workspace_lost: bool = False
    broken_scripts: tuple[str, ...] = ()
    imported_empty_output: bool | None = None
    imported_produced_output: bool = False


class Title(Component):
    """The run's short name, when something gave it one."""

    title: str | None = None
    error: str | None = None
