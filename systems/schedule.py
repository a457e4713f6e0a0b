"""The one ordered list of systems, and the inputs that feed them.

A transient marker names the system that takes runs out of it. Systems know nothing of each other: a
run goes from one to the next by its marker alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from leviath.components.marker import TRANSIENT, Marker
from leviath.systems.tools import dispatch_tools, process_response
from leviath.systems.transitions import after_text, resolve

if TYPE_CHECKING:
    from leviath.systems.run import Run, Tick

RULES: Final = 2
"""Version of the rules: raised whenever the same inputs may give other changes."""

Schedule: TypeAlias = "Mapping[Marker, Callable[[Run, Tick], None]]"

PER_RUN: Final[MappingProxyType[Marker, Callable[[Run, Tick], None]]] = MappingProxyType(
    {
        Marker.process_response: process_response,
        Marker.ready_for_tools: dispatch_tools,
        Marker.ready_for_transition: after_text,
        Marker.resolve_transition: resolve,
    }
)
"""Systems over one run, in the order in which a round visits them."""

assert tuple(PER_RUN) == TRANSIENT
