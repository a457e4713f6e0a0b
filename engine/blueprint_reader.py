"""Strict reading of a TOML document: every key known, every fault collected with its place.

A ``Table`` wraps one TOML table. Each typed getter marks its key as known and returns the default
when the value is missing or wrong, so that one pass finds all faults; ``done`` reports the keys
that nobody asked for.
"""

from __future__ import annotations

import difflib
import math
import re
from enum import StrEnum
from typing import Any, Final, TypeGuard, TypeVar

import msgspec

from leviath.components.errors import BlueprintError
from leviath.engine import limits

_COUNT: Final = (0, limits.BLUEPRINT_COUNT_MAX)
_SOME: Final = (1, limits.BLUEPRINT_COUNT_MAX)
_TOKENS: Final = (1, limits.BLUEPRINT_TOKENS_MAX)

BOUNDS: Final[dict[str, tuple[int, int]]] = {
    "compact_at_permille": (1, 1000),
    "budget_permille": (1, 1000),
    "compact_count": _SOME,
    "entry": _COUNT,
    "max": _COUNT,
    "max_attempts": _COUNT,
    "max_child_depth": (0, limits.BLUEPRINT_CHILD_DEPTH_MAX),
    "max_entries": _COUNT,
    "max_file_tokens": _TOKENS,
    "max_items": _SOME,
    "max_iterations": _SOME,
    "max_output_tokens": _TOKENS,
    "max_readonly_streak": _SOME,
    "max_repeat_calls": _SOME,
    "max_result_tokens": _TOKENS,
    "max_revisits": _COUNT,
    "max_summary_tokens": _TOKENS,
    "max_tokens": _TOKENS,
    "max_workers": _COUNT,
    "min_tokens": (0, limits.BLUEPRINT_TOKENS_MAX),
    "overflow": _COUNT,
    "quorum": _COUNT,
    "request_timeout_ms": (1000, limits.BLUEPRINT_REQUEST_TIMEOUT_MS_MAX),
    "request_timeout_secs": (1, limits.BLUEPRINT_REQUEST_TIMEOUT_MS_MAX // 1000),
    "stuck_after_iterations": _COUNT,
    "stuck_after_minutes": (0, limits.BLUEPRINT_STUCK_MINUTES_MAX),
    "stuck_after_same_file_edits": _COUNT,
    "stuck_after_tool_calls": _COUNT,
    "temperature_milli": (0, 2000),
    "threshold_tokens": _TOKENS,
}
"""Least and greatest value of each number, by the name it has in TOML or in a struct."""

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", re.ASCII)
"""Names of stages and regions: words that a model can repeat and a file name can hold."""
TOOL_NAME: Final = re.compile(r"[!-~]{1,128}")
_SHARE: Final = re.compile(r"([0-9]{1,3})(?:\.([0-9]))?%", re.ASCII)
_WORDS_SHOWN_MAX: Final = 20
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)

Choice = TypeVar("Choice", bound=StrEnum)
Word = TypeVar("Word", bound=str)


class Faults:
    """The faults of one blueprint, in the order in which they were found."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, place: str, what: str) -> None:
        """Note that ``what`` is wrong at ``place``; the same fault is noted once."""
        self._lines[f"{place}: {what}"] = None

    def suggest(self, word: str, known: tuple[str, ...]) -> str:
        """Return "did you mean X?" for a near miss, else the words there are.

        Comparing words is slow, and faults beyond those that are listed need no advice.
        """
        if len(self._lines) >= limits.BLUEPRINT_FAULTS_MAX:
            return "look it up"
        near = difflib.get_close_matches(word[:64], known, n=1)
        if near:
            return f"did you mean {near[0]!a}?"
        if not known:
            return "none is known here"
        more = ", ..." if len(known) > _WORDS_SHOWN_MAX else ""
        return f"known here: {', '.join(sorted(known)[:_WORDS_SHOWN_MAX])}{more}"

    def raise_any(self, where: str) -> None:
        """Raise one BlueprintError with all faults, or return if there are none."""
        if not self._lines:
            return
        total = len(self._lines)
        shown = list(self._lines)[: limits.BLUEPRINT_FAULTS_MAX]
        if total > len(shown):
            shown.append(f"$: and {total - len(shown)} more; mend these first")
        count = "1 fault" if total == 1 else f"{total} faults"
        listing = "".join(f"\n  {line}" for line in shown)
        raise BlueprintError(f"{where}: {count} in this blueprint{listing}", faults=tuple(shown))


def place_of(parent: str, key: str) -> str:
    """Return the place of ``key`` in ``parent``, quoted where a bare key would mislead."""
    shown = key if _BARE_KEY.fullmatch(key) else ascii(key[:64])
    return f"{parent}.{shown}" if parent else shown


def text_fault(value: str) -> str | None:
    """Return what makes ``value`` unfit to enter the world, or None."""
    if "\0" in value:
        return "holds a NUL character; remove it"
    if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        return "holds half of a surrogate pair; replace it by the whole character"
    return None


def parse_share(value: object) -> int | None:
    """Return "12.5%" as 125 thousandths, or None if ``value`` is no share from 0.1% to 100%."""
    match = _SHARE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    permille = int(match[1]) * 10 + int(match[2] or 0)
    return permille if 1 <= permille <= 1000 else None


class Table:
    """One TOML table being read. ``place`` is "" for the document itself."""

    def __init__(self, data: dict[str, Any], place: str, faults: Faults) -> None:
        self.data = data
        self.place = place
        self.faults = faults
        self._known: dict[str, None] = {}

    def at(self, key: str) -> str:
        """Return the place of ``key`` in this table."""
        return place_of(self.place, key)

    def fault(self, key: str, what: str) -> None:
        """Note that ``what`` is wrong with ``key``."""
        self.faults.add(self.at(key), what)

    def raw(self, key: str) -> Any:
        """Return the value of ``key`` unchecked, None if it is missing; the key counts as known."""
        self._known[key] = None
        return self.data.get(key)

    def done(self) -> None:
        """Note every key that nobody asked for."""
        known = tuple(self._known)
        for key in self.data:
            if key not in self._known:
                self.fault(key, f"unknown key; {self.faults.suggest(key, known)}")

    def _wrong(self, key: str, value: Any, wanted: str) -> None:
        self.fault(key, f"is {kind_of(value)}; write {wanted}")

    def text(self, key: str, default: str = "") -> str:
        """Return a text."""
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, str):
            self._wrong(key, value, "a text in quotes")
            return default
        if (fault := text_fault(value)) is not None:
            self.fault(key, fault)
            return default
        return value

    def needed(self, key: str, remedy: str) -> str:
        """Return a text that must be there; "" once the fault is noted."""
        value = self.text(key)
        if self.data.get(key, "") == "":
            self.fault(key, f"is missing; {remedy}")
        return value

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return a boolean."""
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self._wrong(key, value, "true or false")
            return default
        return value

    def whole(self, key: str, default: int, *, least: int | None = None) -> int:
        """Return a whole number within the bounds of ``key``."""
        value = self.maybe_whole(key, least=least)
        return default if value is None else value

    def maybe_whole(
        self, key: str, *, least: int | None = None, like: str | None = None
    ) -> int | None:
        """Return a whole number within the bounds of ``key``, or of ``like``; None if missing."""
        value = self.raw(key)
        if value is None:
            return None
        low, high = BOUNDS[like or key]
        low = low if least is None else least
        if isinstance(value, bool) or not isinstance(value, int):
            self._wrong(key, value, f"a whole number from {low} to {high}")
            return None
        if not low <= value <= high:
            shown = value if abs(value) < 10**20 else "this number"
            self.fault(key, f"{shown} is out of bounds; write a whole number from {low} to {high}")
            return None
        return value

    def thousandths(self, key: str) -> int | None:
        """Return a number as thousandths within the bounds of ``<key>_milli``, None if missing."""
        value = self.raw(key)
        if value is None:
            return None
        low, high = BOUNDS[f"{key}_milli"]
        wanted = f"a number from {low / 1000} to {high / 1000} with at most three decimals"
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._wrong(key, value, wanted)
            return None
        if not low <= value * 1000 <= high or abs(value * 1000 - round(value * 1000)) > 1e-6:
            self.fault(key, f"does not fit; write {wanted}")
            return None
        return round(value * 1000)

    def share(self, key: str) -> int | None:
        """Return a share such as "12.5%" in thousandths, None if it is missing."""
        value = self.raw(key)
        if value is None:
            return None
        permille = parse_share(value)
        if permille is None:
            self.fault(key, 'is not a share; write "30%", from "0.1%" to "100%"')
        return permille

    def choice(
        self,
        key: str,
        kind: type[Choice],
        default: Choice,
        *,
        also: dict[str, Choice] | None = None,
    ) -> Choice:
        """Return a member of ``kind``; ``also`` names further spellings."""
        words = {member.value: member for member in kind} | (also or {})
        return words[self.word(key, tuple(words), default.value)]

    def word(self, key: str, words: tuple[Word, ...], default: Word) -> Word:
        """Return one of ``words``."""
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, str):
            self._wrong(key, value, f"one of {', '.join(words)}")
            return default
        if value not in words:
            self.fault(key, f"{value[:64]!a} is not known; {self.faults.suggest(value, words)}")
            return default
        return words[words.index(value)]

    def texts(self, key: str, *, lone: bool = False) -> tuple[str, ...]:
        """Return an array of texts without duplicates; with ``lone`` a single text will do."""
        value = self.raw(key)
        if lone and isinstance(value, str):
            value = [value]
        if value is None:
            return ()
        if not is_array(value):
            self._wrong(key, value, "an array of texts")
            return ()
        found: dict[str, None] = {}
        for index, item in enumerate(value):
            place = f"{self.at(key)}[{index}]"
            if not isinstance(item, str) or not item:
                self.faults.add(place, f"is {kind_of(item)}; write a text in quotes")
            elif (fault := text_fault(item)) is not None:
                self.faults.add(place, fault)
            elif item in found:
                self.faults.add(place, f"{item[:64]!a} is listed twice; remove one")
            else:
                found[item] = None
        return tuple(found)

    def table(self, key: str) -> Table | None:
        """Return a table, None if it is missing."""
        value = self.raw(key)
        if value is None:
            return None
        if not is_table(value):
            self._wrong(key, value, f"a table, [{self.at(key)}]")
            return None
        return Table(value, self.at(key), self.faults)

    def tables(self, key: str) -> tuple[Table, ...]:
        """Return an array of tables."""
        value = self.raw(key)
        if value is None:
            return ()
        if not is_array(value):
            self._wrong(key, value, f"an array of tables, [[{self.at(key)}]]")
            return ()
        found: list[Table] = []
        for index, item in enumerate(value):
            place = f"{self.at(key)}[{index}]"
            if is_table(item):
                found.append(Table(item, place, self.faults))
            else:
                self.faults.add(place, f"is {kind_of(item)}; write a table")
        return tuple(found)

    def named_tables(self, key: str) -> tuple[tuple[str, Table], ...]:
        """Return the tables within the table ``key``, in the order of the file."""
        outer = self.table(key)
        if outer is None:
            return ()
        found = ((name, outer.table(name)) for name in outer.data)
        return tuple((name, table) for name, table in found if table is not None)

    def json(self, key: str) -> str:
        """Return a table, or a JSON text, as canonical JSON text; "" if it is missing."""
        value = self.raw(key)
        if isinstance(value, str) and value:
            try:
                value = msgspec.json.decode(value)
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                self.fault(key, "is a text that is not JSON; write a table or a JSON object")
                return ""
        if value is None or value == "":
            return ""
        if not is_table(value):
            self._wrong(key, value, "a table or a JSON object")
            return ""
        return canonical_json(value, self.at(key), self.faults)


def canonical_json(value: object, place: str, faults: Faults) -> str:
    """Return ``value`` as JSON text with sorted keys, noting what JSON cannot hold."""
    if (what := _json_fault(value, 0)) is not None:
        faults.add(place, what)
        return ""
    return msgspec.json.encode(value, order="deterministic").decode()


def _json_fault(value: object, depth: int) -> str | None:
    if depth > limits.BLUEPRINT_JSON_DEPTH_MAX:
        return f"is nested deeper than {limits.BLUEPRINT_JSON_DEPTH_MAX} levels; flatten it"
    if isinstance(value, str):
        return text_fault(value)
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        fits = -(2**63) <= value < 2**63
        return None if fits else "holds a whole number of more than 64 bits; write it as text"
    if isinstance(value, float):
        return None if math.isfinite(value) else "holds inf or nan; write a finite number"
    if is_array(value):
        faults = (_json_fault(item, depth + 1) for item in value)
        return next((fault for fault in faults if fault is not None), None)
    if is_table(value):
        faults = (
            text_fault(str(key)) or _json_fault(item, depth + 1) for key, item in value.items()
        )
        return next((fault for fault in faults if fault is not None), None)
    if value is None:
        return None
    return f"holds {kind_of(value)}; write it as text"


def is_table(value: object) -> TypeGuard[dict[str, Any]]:
    """Return whether ``value`` is a TOML table; its keys are texts."""
    return isinstance(value, dict)


def is_array(value: object) -> TypeGuard[list[Any]]:
    """Return whether ``value`` is a TOML array."""
    return isinstance(value, list)


def kind_of(value: object) -> str:
    """Return the TOML kind of ``value`` in words."""
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int):
        return "a whole number"
    if isinstance(value, float):
        return "a fraction"
    if isinstance(value, str):
        return "a text" if value else "an empty text"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, dict):
        return "a table"
    return "a date or time"
