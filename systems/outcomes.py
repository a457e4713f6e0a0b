"""How a child ended, as its parent hears of it: a fact of the child's own components.

An ended child leaves memory. What its parent may still ask about is kept packed, some 50 bytes
each, so that a parent of a thousand ended workers stays small.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

import msgspec

from leviath.components.context import Context
from leviath.components.family import Outcome, Worker
from leviath.components.identity import Identity, Launch
from leviath.components.output import Output
from leviath.components.run_status import RunStatus
from leviath.components.status import Status
from leviath.components.text import EMPTY, Text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leviath.components.blueprint import Blueprint

ERROR_CHARS_MAX = 500
"""What a parent hears of a child's error; the child's own record has all of it."""
_CONVERSATION = "conversation"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, bool, str, Text, str]).decode
_WORDS = tuple(status.wire() for status in RunStatus)


def outcome_of(parts: Mapping[type[Any], Any], blueprint: Blueprint | None) -> Outcome:
    """The outcome of a run with these components.

    It succeeded when it is complete and handed something back: its final output, else, unless a
    stage owed one, what its model said last.
    """
    status: Status = parts[Status]
    worker: Worker | None = parts.get(Worker)
    identity: Identity = parts[Identity]
    output: Output | None = parts.get(Output)
    result = EMPTY
    error = ""
    if output is not None:
        result = output.content
    elif not _owes_output(parts, blueprint):
        result = _last_words(parts.get(Context))
    if status.status is RunStatus.ERROR:
        error = (status.error or "")[:ERROR_CHARS_MAX]
    elif status.status is RunStatus.CANCELLED:
        error = status.why[:ERROR_CHARS_MAX]
    succeeded = status.status is RunStatus.COMPLETE
    if succeeded and result.is_empty and output is None:
        # A run that said nothing at all handed nothing back.
        succeeded = False
        error = "it ended without a result"
    return Outcome(
        identity.ordinal,
        identity.run_id,
        status.status.wire(),
        succeeded,
        "" if worker is None else worker.item,
        result,
        error,
    )


def _owes_output(parts: Mapping[type[Any], Any], blueprint: Blueprint | None) -> bool:
    worker: Worker | None = parts.get(Worker)
    if blueprint is None:
        return False
    entry = blueprint.entry if worker is None or worker.entry < 0 else worker.entry
    return blueprint.stages[entry].require_output


def _last_words(context: Context | None) -> Text:
    region = None if context is None else context.region(_CONVERSATION)
    for entry in reversed(() if region is None else region.entries):
        if entry.kind == "assistant" and not entry.text.is_empty:
            return entry.text
    return EMPTY


def blueprint_of(parts: Mapping[type[Any], Any], shelf: Mapping[bytes, Blueprint]) -> Any:
    """The blueprint of a run with these components, or None."""
    launch: Launch | None = parts.get(Launch)
    return None if launch is None else shelf.get(launch.blueprint)


class Departed:
    """Outcomes of the ended children of one run that have left memory, packed, by ordinal."""

    __slots__ = ("_data", "_ends", "_ordinals", "names")

    def __init__(self) -> None:
        self._ordinals = array("q")
        self._ends = array("Q")
        """Offset and length of each row in ``_data``, as one number."""
        self._data = bytearray()
        self.names: dict[str, int] = {}
        """Run id to ordinal."""

    def __len__(self) -> int:
        return len(self._ordinals)

    def __contains__(self, ordinal: int) -> bool:
        at = bisect_left(self._ordinals, ordinal)
        return at < len(self._ordinals) and self._ordinals[at] == ordinal

    def add(self, outcome: Outcome) -> None:
        """Keep one more; an ordinal that is there already is left as it is."""
        if outcome.ordinal in self:
            return
        row = _encode(
            (
                _WORDS.index(outcome.status),
                outcome.succeeded,
                outcome.item,
                outcome.result,
                outcome.error,
            )
        )
        at = bisect_left(self._ordinals, outcome.ordinal)
        self._ordinals.insert(at, outcome.ordinal)
        self._ends.insert(at, len(self._data) << 24 | len(row))
        self._data += row
        self.names[outcome.run_id] = outcome.ordinal

    def drop(self, ordinal: int) -> None:
        """Forget one that is hosted again or was dropped from the home."""
        at = bisect_left(self._ordinals, ordinal)
        if at < len(self._ordinals) and self._ordinals[at] == ordinal:
            del self._ordinals[at]
            del self._ends[at]
            self.names = {name: n for name, n in self.names.items() if n != ordinal}

    def get(self, ordinal: int) -> Outcome | None:
        """The outcome of that child; None when it is not here."""
        at = bisect_left(self._ordinals, ordinal)
        if at >= len(self._ordinals) or self._ordinals[at] != ordinal:
            return None
        return self._row(at)

    def _row(self, at: int) -> Outcome:
        place = self._ends[at]
        offset, length = place >> 24, place & 0xFFFFFF
        word, succeeded, item, result, error = _decode(
            memoryview(self._data)[offset : offset + length]
        )
        ordinal = self._ordinals[at]
        return Outcome(ordinal, "", _WORDS[word], succeeded, item, result, error)

    def name_of(self, ordinal: int) -> str:
        """The run id of that child."""
        return next((name for name, n in self.names.items() if n == ordinal), "")

    def since(self, ordinal: int) -> list[Outcome]:
        """All with that ordinal or a higher one, ascending."""
        first = bisect_left(self._ordinals, ordinal)
        return [self._row(at) for at in range(first, len(self._ordinals))]
