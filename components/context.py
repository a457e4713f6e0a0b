"""What the model sees: regions of entries."""

from __future__ import annotations

from leviath.components.base import Component, Part
from leviath.components.text import Text


class AskedCall(Part):
    """A tool call as an assistant turn carries it."""

    call_id: str
    tool: str
    arguments: Text
    fault: str = ""
    """Why the arguments are no JSON object; "" when they are."""
    fields: tuple[tuple[str, Text], ...] = ()
    """Text fields of the arguments, for tools that run inside the step."""


class Reference(Part):
    """A text that stands elsewhere, such as another run's result, and how much of it is shown."""

    label: str
    text: Text
    bytes_max: int
    """What of the text is shown; 0 for all of it."""

    @property
    def shown_bytes(self) -> int:
        """Size of what is shown, its label aside."""
        size = self.text.size_bytes
        return min(size, self.bytes_max) if self.bytes_max else size


class Entry(Part):
    """One piece of a region. Its text is by value or by digest, see ``Text``."""

    text: Text
    tokens: int
    kind: str = "text"
    """text, user, assistant or tool_result; open or done for the items of a checklist."""
    calls: tuple[AskedCall, ...] = ()
    """Of an assistant turn."""
    call_id: str = ""
    """Of a tool result: the call it answers."""
    tool: str = ""
    is_error: bool = False
    key: str = ""
    """Of hashmap and checklist regions."""
    references: tuple[Reference, ...] = ()
    """Shown after the text, each under its label."""


class Region(Part):
    """One region of one run."""

    name: str
    max_tokens: int
    tokens: int = 0
    """Sum over entries."""
    entries: tuple[Entry, ...] = ()


class Context(Component):
    """All regions of a run in the blueprint's order. Changed by splice, see ``World.splice``."""

    regions: tuple[Region, ...] = ()

    def index(self, name: str) -> int:
        """Position of a region, or -1."""
        for i, region in enumerate(self.regions):
            if region.name == name:
                return i
        return -1

    def region(self, name: str) -> Region | None:
        """The region of that name; None when there is none."""
        for region in self.regions:
            if region.name == name:
                return region
        return None
