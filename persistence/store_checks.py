"""What may be written into a run store: refused before anything is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leviath.components.errors import ConfigError, RunNotFound
from leviath.persistence.store_rows import INT64_MAX

if TYPE_CHECKING:
    from leviath.persistence.store_rows import StepRecord

TEXT_BYTES_MAX: Final = 64 * 1024 * 1024
"""A goal or a step's text; a larger one belongs in a file that the text names."""


def unknown_run(run: object) -> RunNotFound:
    """The error for a run that is not there."""
    return RunNotFound(f"this store has no run {run!r}; list them with runs()", run=run)


def checked_text(name: str, value: object) -> str:
    """A text that a file can hold. Raises ConfigError naming it."""
    if value == "":
        return ""
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be text, not {type(value).__name__}; pass a str")
    if "\0" in value:
        raise ConfigError(f"{name} has a NUL character; take it out")
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:
        raise ConfigError(
            f"{name} has half of a surrogate pair, which is no text; clean it first"
        ) from None
    if size > TEXT_BYTES_MAX:
        raise ConfigError(f"{name} has {size:,} bytes; at most {TEXT_BYTES_MAX:,} are kept")
    return value


def _number(name: str, value: object, least: int) -> None:
    if type(value) is not int or not least <= value <= INT64_MAX:
        raise ConfigError(
            f"{name} is {value!r}; it is a whole number from {least} to {INT64_MAX} (2^63 - 1)"
        )


def check_record(record: StepRecord) -> None:
    """Refuse what could not be kept as it is, before anything is written."""
    _number("step", record.step, 1)
    _number("tokens", record.tokens, 0)
    if record.cost_nano_usd is not None:
        _number("cost_nano_usd", record.cost_nano_usd, 0)
    if type(record.is_retry) is not bool:
        raise ConfigError(f"is_retry is {record.is_retry!r}; it is True or False")
    checked_text("decision", record.decision)
    checked_text("result", record.result)
    checked_text("prompt", record.prompt)
    checked_text("tool_call", record.tool_call)
    checked_text("model", record.model)


def checked_sum(name: str, run: int, so_far: int, more: int) -> int:
    """A sum that an integer of 64 bits holds. Raises ConfigError."""
    total = so_far + more
    if total > INT64_MAX:
        raise ConfigError(
            f"{name} of run {run} would come to {total}, past {INT64_MAX} (2^63 - 1); nothing was "
            "kept of this step",
            run=run,
        )
    return total
