"""One table of a scenario file, read closed: every key is known, every fault keeps its place.

Getters return something usable for a value that is wrong, so that one pass finds all faults.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Final, cast

from leviath.components.error_kind import ErrorKind
from leviath.components.money import parse_usd
from leviath.simulation.chances import PERMILLE, Spread

SPAN_MS_MAX: Final = 10 * 366 * 86_400_000
"""Ten years: beyond it a plan is no plan."""
NUMBER_MAX: Final = 10**12
_UNITS: Final = {
    "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000,
}  # fmt: skip
_SPAN: Final = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,3}))?(ms|s|m|h|d|w)", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", re.ASCII)
_MODEL: Final = re.compile(r"[^/\s]{1,64}/[^\s]{1,128}", re.ASCII)
_QUANTILES: Final = {
    "min": 0, "p1": 10, "p5": 50, "p10": 100, "p25": 250, "p50": 500, "p75": 750, "p90": 900,
    "p95": 950, "p99": 990, "max": PERMILLE,
}  # fmt: skip
_ENGINES_OWN: Final = (
    ErrorKind.ABORTED, ErrorKind.PROVIDER_MISSING, ErrorKind.SCRIPT_EXHAUSTED,
    ErrorKind.WORKSPACE_LOST,
)  # fmt: skip
ERROR_KINDS: Final = tuple(kind.value for kind in ErrorKind if kind not in _ENGINES_OWN)
"""Kinds of errors that come from a provider."""


class Fields:
    """A table, or a value at its place when it should have been one."""

    def __init__(self, value: Mapping[str, object], place: str, faults: list[str]) -> None:
        self._value = value
        self.place = place
        self.faults = faults
        self._known: dict[str, None] = {}

    def at(self, key: str) -> str:
        """The place of one key."""
        shown = key if _NAME.fullmatch(key) else f'"{key}"'
        return f"{self.place}.{shown}" if self.place else shown

    def fault(self, key: str, what: str) -> None:
        """Keep a fault of one key."""
        self.faults.append(f"{self.at(key)}: {what}")

    def _take(self, key: str) -> object:
        self._known[key] = None
        return self._value.get(key)

    def has(self, key: str) -> bool:
        """Whether the key is there; it counts as known."""
        return self._take(key) is not None

    def keys(self) -> list[str]:
        """All keys, known or not, in the order of the file."""
        return list(self._value)

    def raw(self, key: str) -> object:
        """A value that somebody else reads."""
        return self._take(key)

    @staticmethod
    def is_name(text: str) -> bool:
        """Whether it can name an agent, a tool or a provider."""
        return _NAME.fullmatch(text) is not None

    def done(self) -> None:
        """Report the keys that nobody asked for."""
        for key in self._value:
            if key not in self._known:
                near = difflib.get_close_matches(key, self._known, 1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(self._known)}"
                self.fault(key, f"no such key; {hint}")

    # --- values ---------------------------------------------------------------------------------

    def text(self, key: str, default: str | None = None) -> str:
        """A text. Without a default it must be there."""
        value = self._take(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or not value:
            self.fault(key, "is missing; give a text" if value is None else "give a text")
            return default or "?"
        return value

    def word(self, key: str, default: str, words: tuple[str, ...]) -> str:
        """One of some words."""
        value = self._take(key)
        if value is None:
            return default
        if value not in words:
            self.fault(key, f"{shown(value)} is none of {', '.join(words)}")
            return default
        return str(value)

    def flag(self, key: str) -> bool:
        """A truth; false when it is not there."""
        value = self._take(key)
        if value is not None and not isinstance(value, bool):
            self.fault(key, f"{shown(value)} is neither true nor false")
        return value is True

    def count(self, key: str, default: int | None, least: int = 0, most: int = NUMBER_MAX) -> int:
        """A whole number. Without a default it must be there."""
        value = self._take(key)
        if value is None and default is not None:
            return default
        found = self._whole(key, value, least, most)
        return max(least, default or 0) if found is None else found

    def _whole(self, key: str, value: object, least: int, most: int) -> int | None:
        if value is None:
            self.fault(key, "is missing; give a whole number")
        elif not isinstance(value, int) or isinstance(value, bool):
            self.fault(key, f"{shown(value)} is no whole number")
        elif not least <= value <= most:
            self.fault(key, f"{value:,} is not between {least:,} and {most:,}")
        else:
            return value
        return None

    def span_ms(self, key: str, default: int | None, least: int = 0) -> int:
        """A span such as ``"90s"`` in milliseconds. Without a default it must be there."""
        value = self._take(key)
        if value is None and default is not None:
            return default
        found = self._span(key, value)
        if found is not None and found < least:
            self.fault(key, f"{shown(value)} is too short; give at least {least:,}ms")
            found = None
        return max(least, default or 0) if found is None else found

    def _span(self, key: str, value: object) -> int | None:
        if value is None:
            self.fault(key, 'is missing; give a span, such as "90s"')
            return None
        match = _SPAN.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            self.fault(
                key, f'{shown(value)} is no span; write a number and ms, s, m, h, d or w: "1.5h"'
            )
            return None
        whole, part, unit = match.groups(default="")
        span = (int(whole) * 1_000 + int(part.ljust(3, "0"))) * _UNITS[unit] // 1_000
        if span > SPAN_MS_MAX:
            self.fault(key, f"{shown(value)} is too long; ten years are the most")
            return None
        return span

    def spread(
        self,
        key: str,
        default: Spread | None,
        *,
        least: int = 0,
        most: int = NUMBER_MAX,
        spans: bool = False,
    ) -> Spread:
        """A number, a table of quantiles, or a mean; with ``spans``, texts such as ``"90s"``."""
        value = self._take(key)
        if value is None and default is not None:
            return default
        fallback = default or Spread.always(least)
        faults = len(self.faults)

        def number(inner: object, name: str) -> int:
            found = self._span(name, inner) if spans else self._whole(name, inner, least, most)
            return least if found is None else found

        if not isinstance(value, dict):
            return Spread.always(number(value, key))
        rows = cast("dict[str, object]", value)
        if "mean" in rows:
            if len(rows) > 1:
                self.fault(key, "a mean stands alone; it makes the spread exponential")
                return fallback
            if least:
                self.fault(key, f"a mean also gives 0, and at least {least:,} is needed")
            found = Spread((), number(rows["mean"], f"{key}.mean"))
        else:
            found = self._quantiles(key, rows, number)
        return fallback if len(self.faults) > faults else found

    def _quantiles(
        self, key: str, rows: dict[str, object], number: Callable[[object, str], int]
    ) -> Spread:
        for name in rows:
            if name not in _QUANTILES:
                self.fault(f"{key}.{name}", f"no such quantile; there are {', '.join(_QUANTILES)}")
        for name in ("min", "max"):
            if name not in rows:
                self.fault(key, f"{name} is missing; quantiles stand between min and max")
        points = [
            (share, number(rows[name], f"{key}.{name}"))
            for name, share in _QUANTILES.items()
            if name in rows
        ]
        for (_, low), (_, high) in pairwise(points):
            if high < low:
                self.fault(key, f"its values fall from {low:,} to {high:,}; quantiles rise")
                break
        return Spread(tuple(points))

    def usd(self, key: str) -> int | None:
        """An amount of dollars, written as text, in nano-dollars; None when it is not there."""
        value = self._take(key)
        if value is None:
            return None
        try:
            return parse_usd(value) if isinstance(value, str) else parse_usd(str(value))
        except ValueError as problem:
            self.fault(key, str(problem))
            return None

    # --- what is within -------------------------------------------------------------------------

    def weights(self, key: str, words: tuple[str, ...] = ()) -> tuple[tuple[str, int], ...]:
        """A table of whole numbers by name; of some words, when they are given."""
        table = self.table(key)
        if table is None:
            return ()
        found: list[tuple[str, int]] = []
        for name in table.keys():  # noqa: SIM118 - a method of ours
            if words and name not in words:
                table.count(name, 0)
                table.fault(name, f"no such name; there are {', '.join(words)}")
                continue
            found.append((name, table.count(name, None, 0, 1_000_000)))
        return tuple(found)

    def models(self, key: str) -> tuple[tuple[str, str], ...]:
        """A list of ``provider/model``."""
        found: list[tuple[str, str]] = []
        for name in self.names(key):
            if not _MODEL.fullmatch(name):
                self.fault(key, f'{shown(name)} is no model; write "provider/model"')
            else:
                provider, _, model = name.partition("/")
                found.append((provider, model))
        return tuple(found)

    def names(self, key: str) -> tuple[str, ...]:
        """A list of texts; empty when it is not there."""
        value = self._take(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(
            isinstance(item, str) for item in cast("list[object]", value)
        ):
            self.fault(key, 'give a list of texts, such as ["one"]')
            return ()
        return tuple(cast("list[str]", value))

    def table(self, key: str) -> Fields | None:
        """The table of that key; None when it is not there."""
        value = self._take(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.fault(key, "give a table")
            return None
        return Fields(cast("dict[str, object]", value), self.at(key), self.faults)

    def named(self, key: str) -> Iterator[tuple[str, Fields]]:
        """The tables below a table, by the names that the author chose."""
        table = self.table(key)
        for name in [] if table is None else table.keys():
            assert table is not None
            if not _NAME.fullmatch(name):
                table.fault(
                    name, "a name has letters, digits, - and _ only, and at most 64 of them"
                )
            inner = table.table(name)
            if inner is not None:
                yield name, inner

    def tables(self, key: str) -> Iterator[Fields]:
        """A list of tables."""
        value = self._take(key)
        if value is None:
            return
        if not isinstance(value, list):
            self.fault(key, f"give a list of tables: [[{key}]]")
            return
        for at, item in enumerate(cast("list[object]", value)):
            place = f"{self.at(key)}[{at}]"
            if isinstance(item, dict):
                yield Fields(cast("dict[str, object]", item), place, self.faults)
            else:
                self.faults.append(f"{place}: give a table")


def shown(value: object) -> str:
    """A wrong value, short enough for a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
