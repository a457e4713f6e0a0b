"""The eight words that say who may act on a run."""

from __future__ import annotations

from enum import Enum

from leviath.components.errors import ConfigError


class RunStatus(str, Enum):  # noqa: UP042 - str() is the display form here, which StrEnum promises not to be
    """Where a run stands. The value is the word of files and wire; ``str()`` is for people.

    Which words may follow which is a table of its own; this type only names them.
    """

    STARTING = "starting"
    """Accepted and being set up; no model call has been made."""
    RUNNING = "running"
    """Calling the model, calling tools, or moving between stages."""
    WAITING_INPUT = "waiting_input"
    """Parked on a person, on children or on set-up."""
    COMPLETE = "complete"
    """Finished; nothing more is accepted."""
    COMPLETE_INTERACTIVE = "complete_interactive"
    """All required stages are done, and more input is still accepted."""
    PAUSED = "paused"
    """Held by somebody; stays held over restarts."""
    ERROR = "error"
    """Ended by a failure, which the run's record describes."""
    CANCELLED = "cancelled"
    """Ended from outside. Nothing went wrong; somebody decided."""

    def wire(self) -> str:
        """The snake_case word of ``meta.json`` and of every answer that carries a run."""
        return self.value

    def __str__(self) -> str:
        """The PascalCase word for a person, such as ``WaitingInput``."""
        return _DISPLAY[self.value]

    @property
    def is_ended(self) -> bool:
        """Whether the run is over: complete, error or cancelled, and nothing else."""
        return self in _ENDED

    @classmethod
    def parse(cls, word: str) -> RunStatus:
        """The status that a person or a filter means by ``word``.

        Case, ``_``, ``-`` and surrounding blanks do not matter: ``waiting_input``,
        ``WaitingInput``, ``waitinginput`` and ``Waiting-Input`` are one word. Files are
        stricter: they hold wire words.

        Raises ConfigError for anything else.
        """
        found = _LENIENT.get(_folded(word)) if word.isascii() else None
        if found is None:
            known = ", ".join(status.value for status in cls)
            raise ConfigError(f"no run status is called {word!r}; use one of {known}", word=word)
        return found


def _folded(word: str) -> str:
    return word.strip(" ").replace("_", "").replace("-", "").lower()


_DISPLAY = {s.value: "".join(part.title() for part in s.value.split("_")) for s in RunStatus}
_LENIENT = {_folded(status.value): status for status in RunStatus}
_ENDED = (RunStatus.COMPLETE, RunStatus.ERROR, RunStatus.CANCELLED)
