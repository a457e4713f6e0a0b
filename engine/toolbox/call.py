"""One tool call and its result: what a tool is told, and what it may say back."""

from __future__ import annotations

from hashlib import sha256
from typing import Final, Literal

from msgspec import Struct

from leviath.components.errors import ToolError
from leviath.engine.redaction import NOTHING_KNOWN, Redactor

EffectClass = Literal["pure", "idempotent", "once"]
"""What may follow a crash. ``pure`` and ``idempotent`` tools are released again under the same
key; a ``once`` tool is not: a person decides whether its call happened."""

_FILE_NAME_CHARS: Final = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
)
_FILE_NAME_CHARS_MAX: Final = 128


class ToolCall(Struct, frozen=True, kw_only=True):
    """What a tool may know of its call. A parameter annotated with this type receives it."""

    run_id: str
    call_id: str
    """Unique within the turn; ``idempotency_key`` is unique in the home."""
    tool: str
    attempt: int
    """Counts releases of this call from 1."""
    idempotency_key: str
    """The same for each attempt of the call, unique among all calls of the home."""
    deadline_ms: int
    """The time budget of this attempt, from its release."""
    workdir: str
    """Absolute path of the folder that the run works in."""
    spill_dir: str
    """A folder directly inside the run's, for spill files and staging; made 0700 on demand."""
    redactor: Redactor = NOTHING_KNOWN
    """Hides known secret values in what the call keeps outside of its result's text."""


class ToolResult(Struct, frozen=True, kw_only=True):
    """What a tool call gave. ``text`` is what the model reads."""

    text: str
    is_error: bool = False
    spill: str | None = None
    """Path, relative to the run's folder, of the file with the whole when ``text`` is a part."""
    modified: tuple[str, ...] = ()
    """Paths relative to the workdir that the call wrote."""


class MayHaveHappened(ToolError):
    """Raised on a second release by a tool that cannot tell whether the first one took effect."""

    code = "may_have_happened"


def file_stem(name: str) -> str:
    """``name`` when it is fit to name a file, else its SHA-256: never a path, never hidden."""
    fit = 0 < len(name) <= _FILE_NAME_CHARS_MAX and not name.startswith((".", "-"))
    if fit and _FILE_NAME_CHARS.issuperset(name):
        return name
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
