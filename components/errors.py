"""The one tree of errors.

* LevError
    * ConfigError            a setting or argument of the caller is wrong
    * BlueprintError         an agent's blueprint has faults; lists all of them
    * SpawnError             a run was refused; nothing of it exists
    * RunNotFound            no run has that id
    * RunConflict            the run is in a state that does not allow the request
    * DocumentError          a run file or another document cannot be read as what it should be
    * StorageError           the store under a home failed
        * DiskFull           no space; nothing acknowledged was lost, the host retries
        * Locked             another host has the home
        * Damaged            bytes on disk are not what was written
        * NewerFormat        written by a newer leviath; nothing was touched
    * ProviderError          a model call failed
    * ToolError              a tool call failed; the model sees the message
    * ReplayDivergence       a replay differs from what was recorded
    * WorldError             the world's own rules were broken: a bug in leviath, not in the caller

Each class has a stable ``code`` for exit messages, HTTP bodies and records. A message names the
thing, the value and the remedy. Errors keep their fields and survive pickling.
"""

from __future__ import annotations

from typing import Any, ClassVar


class LevError(Exception):
    """Root of every error that leviath raises on purpose."""

    code: ClassVar[str] = "lev"

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.fields))


def _rebuild(kind: type[LevError], message: str, fields: dict[str, Any]) -> LevError:
    return kind(message, **fields)


class ConfigError(LevError):
    """The caller's setting or argument is wrong; fix it and call again."""

    code = "config"


class BlueprintError(LevError):
    """A blueprint has faults. ``faults`` lists all of them as ``place: what, and what to do``."""

    code = "blueprint"

    @property
    def faults(self) -> tuple[str, ...]:
        return tuple(self.fields.get("faults", ()))


class SpawnError(LevError):
    """A run was refused at the border; nothing of it exists."""

    code = "spawn"


class RunNotFound(LevError):
    """No run of this home has that id."""

    code = "run_not_found"


class RunConflict(LevError):
    """The run's state does not allow the request."""

    code = "run_conflict"


class DocumentError(LevError):
    """A document is not what it should be; ``field`` names the place (``$`` for the whole)."""

    code = "document"

    @property
    def field(self) -> str:
        return str(self.fields.get("field", "$"))


class StorageError(LevError):
    """The store under a home failed."""

    code = "storage"


class DiskFull(StorageError):
    """No space is left. Nothing acknowledged was lost; free space and the host goes on."""

    code = "disk_full"


class Locked(StorageError):
    """Another host has this home."""

    code = "locked"


class Damaged(StorageError):
    """Bytes on disk are not what was written there."""

    code = "damaged"


class NewerFormat(StorageError):
    """The home was written by a newer leviath; nothing was touched."""

    code = "newer_format"


class ProviderError(LevError):
    """A model call failed. ``kind`` is one of the words of ``ErrorKind``."""

    code = "provider"

    def __init__(
        self,
        message: str,
        *,
        kind: str = "other",
        retryable: bool = False,
        retry_after_ms: int | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(
            message, kind=kind, retryable=retryable, retry_after_ms=retry_after_ms, **fields
        )
        self.kind = kind
        self.retryable = retryable
        self.retry_after_ms = retry_after_ms


class ToolError(LevError):
    """Raised by a tool to tell the model, in the message, what went wrong."""

    code = "tool"


class ReplayDivergence(LevError):
    """A replay differs from what was recorded; the message names the first difference."""

    code = "replay_divergence"


class WorldError(LevError):
    """The world's own rules were broken: a defect of leviath."""

    code = "world"
