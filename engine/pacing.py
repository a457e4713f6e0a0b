"""How many inputs the next step takes: so many that it holds the host's loop for a set time.

The size decides only which inputs share a step, and that is recorded; see decision 025.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

from leviath.engine.limits import STEP_HOLD_MS, STEP_INPUTS_MAX, STEP_INPUTS_MIN

_TELLING: int = 8
"""A step of fewer inputs says little about how long one takes."""


@contextmanager
def uncollected() -> Generator[None]:
    """No garbage collection within: a step makes thousands of objects that live until it ends, and
    none of them is part of a cycle. What a host set for its process is as it was afterwards."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Pacer:
    """Learns from the steps that were taken."""

    def __init__(self) -> None:
        self.inputs_max: int = STEP_INPUTS_MAX
        """Inputs of the next step at most."""

    def took(self, inputs: int, took_ns: int) -> None:
        """A step of so many inputs took so long."""
        if inputs < _TELLING:
            return
        fits = STEP_HOLD_MS * 1_000_000 * inputs // max(took_ns, 1)
        # Half way there each time: one slow step is no rule.
        paced = (self.inputs_max + fits) // 2
        self.inputs_max = max(STEP_INPUTS_MIN, min(STEP_INPUTS_MAX, paced))
