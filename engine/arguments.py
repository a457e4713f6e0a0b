"""What a caller hands in is held to its type and range where it enters, before anything is done.

Each check returns the value or raises a ConfigError (or the error given) that names the argument,
the value and the remedy. Values of secrets are never shown.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, cast

from leviath.components.errors import ConfigError, LevError
from leviath.components.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Sequence

SPAN_MS_MAX: Final = 365 * 86_400_000
"""Nothing waits longer than a year."""
NUMBER_MAX: Final = 2**63 - 1
"""What a row of the store holds."""


def shown(value: object) -> str:
    """A value and its type for a message, shortened."""
    kind = type(value).__name__
    if value is None:
        return "None"
    try:
        return f"{reprlib.repr(value)} ({kind})"
    except Exception:  # noqa: BLE001 - a caller's __repr__ may raise anything
        return f"something of type {kind}"


def text(
    name: str,
    value: object,
    *,
    bytes_max: int | None = None,
    remedy: str = "pass a str",
    error: type[LevError] = ConfigError,
) -> str:
    """A text, at most ``bytes_max`` bytes as UTF-8."""
    if not isinstance(value, str):
        raise error(f"{name} must be text, not {shown(value)}; {remedy}")
    if bytes_max is not None:
        size = len(value.encode("utf-8", "replace"))
        if size > bytes_max:
            raise error(f"{name} has {size:,} bytes, {bytes_max:,} are allowed; shorten it")
    return value


def number(
    name: str, value: object, least: int, most: int, *, error: type[LevError] = ConfigError
) -> int:
    """A whole number from ``least`` to ``most``; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise error(f"{name} must be a whole number, not {shown(value)}; pass an int")
    if not least <= value <= most:
        raise error(f"{name} {shown(value)} must be between {least:,} and {most:,}")
    return value


def seconds(name: str, value: object) -> float | None:
    """Seconds to wait, 0 or more; None for no limit."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} must be seconds, not {shown(value)}; pass a number or None")
    if math.isnan(value) or value < 0:
        raise ConfigError(f"{name} {value} must be 0 or more seconds; None waits without a limit")
    return value


def flag(name: str, value: object, *, error: type[LevError] = ConfigError) -> bool:
    """True or False, and nothing that only counts as one of them."""
    if not isinstance(value, bool):
        raise error(f"{name} must be True or False, not {shown(value)}")
    return value


def items(
    name: str, value: object, what: str, *, error: type[LevError] = ConfigError
) -> tuple[object, ...]:
    """The items of an iterable that is no text and no mapping; ``what`` says of what."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise error(f"{name} must be a list of {what}, not {shown(value)}; write {name}=[...]")
    return tuple(cast("Iterable[object]", value))


def texts(name: str, value: object, *, error: type[LevError] = ConfigError) -> tuple[str, ...]:
    """Several texts; one str is not taken for its letters."""
    found = items(name, value, "texts", error=error)
    return tuple(text(f"each of {name}", item, error=error) for item in found)


def text_map(name: str, value: object, *, error: type[LevError] = ConfigError) -> dict[str, str]:
    """A mapping of text to text; None for an empty one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise error(f"{name} must map text to text, not {shown(value)}; pass a dict")
    given = cast("Mapping[object, object]", value)
    return {
        text(f"each key of {name}", key, error=error): text(f"{name}[{key!r}]", item, error=error)
        for key, item in given.items()
    }


def callback(name: str, value: object, remedy: str) -> None:
    """A function, or None."""
    if value is not None and not callable(value):
        raise ConfigError(f"{name} must be a function, not {shown(value)}; {remedy}")


def one_of(name: str, value: object, words: Sequence[str]) -> str:
    """One of these words."""
    if not isinstance(value, str) or value not in words:
        raise ConfigError(f"{name} {shown(value)} is unknown; use one of {', '.join(words)}")
    return value


def secret(name: str, value: object, *, error: type[LevError] = ConfigError) -> str | Secret:
    """A secret; the message names its type only."""
    if not isinstance(value, str | Secret):
        kind = type(value).__name__
        raise error(f"{name} must be a str or a Secret, not of type {kind}")
    return value


def secrets(name: str, value: object) -> tuple[str | Secret, ...]:
    """Several secrets; a message shows none of them."""
    if isinstance(value, str | bytes | Mapping | Secret) or not isinstance(value, Iterable):
        kind = type(value).__name__
        raise ConfigError(
            f"{name} must be a list of str or Secret, not one {kind}; write {name}=[...]"
        )
    given = cast("Iterable[object]", value)
    return tuple(secret(f"each of {name}", item) for item in given)
