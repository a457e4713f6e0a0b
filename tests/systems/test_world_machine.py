"""Any inputs in any order: after every step the world is sound, and in the end no run is stuck."""

from __future__ import annotations

from hypothesis import Phase, settings
from world_machine import Worlds

Worlds.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    phases=[Phase.reuse, Phase.generate, Phase.shrink],
)
TestWorlds = Worlds.TestCase
