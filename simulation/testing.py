"""What tests of a host need, as ``leviath.testing``: a world and a clock moved by hand, and replay.

``leviath.Scripted`` plays the model. ``open_world(..., durability="memory")`` needs no disk.
"""

from leviath.engine.clock import ManualClock
from leviath.simulation.hand import Hand
from leviath.simulation.replay import Difference, ReplayReport, accept, replay
from leviath.simulation.saved_runs import RunOutcome, SavedWorld, outcome_of

__all__ = [
    "Difference",
    "Hand",
    "ManualClock",
    "ReplayReport",
    "RunOutcome",
    "SavedWorld",
    "accept",
    "outcome_of",
    "replay",
]
