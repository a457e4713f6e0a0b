"""Telling a model that repeats itself so."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from msgspec.structs import replace

from leviath.components.progress import Stage
from leviath.systems import regions

if TYPE_CHECKING:
    from leviath.components.effects import Turn
    from leviath.systems.run import Run


def nudge_repetition(run: Run, turn: Turn) -> None:
    """Tell a model that repeats itself so, if its blueprint wants that."""
    limits = run.blueprint.repetition
    if limits is None:
        return
    stage = run.get(Stage)
    counts = dict(stage.repeats)
    worst: tuple[int, str] = (0, "")
    for call in turn.calls:
        body = call.arguments.digest or call.arguments.body.encode()
        mark = blake2b(call.tool.encode() + b"\x00" + body, digest_size=8).digest()
        # Taken out first, so that what is repeated counts as newest and stays.
        counts[mark] = counts.pop(mark, 0) + 1
        worst = max(worst, (counts[mark], call.tool))
    modified = any(call.modified for call in turn.calls)
    streak = 0 if modified else stage.readonly_streak + len(turn.calls)
    if worst[0] >= limits.max_repeat_calls:
        regions.note(run, f"You called {worst[1]} with the same arguments {worst[0]} times.")
        counts = {}
    elif streak >= limits.max_readonly_streak:
        regions.note(run, f"The last {streak} tool calls changed nothing. Act, or finish.")
        streak = 0
    run.put(replace(stage, repeats=tuple(counts.items())[-64:], readonly_streak=streak))
