"""Text for people: one line stays one line, and nothing in it talks to the terminal."""

from __future__ import annotations

import os
import re
import shutil
import sys
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_UNFIT: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
"""Control characters, marks that turn the direction of writing, and halves of characters."""
_BLANKS: Final = {"\n": " ", "\r": " ", "\t": " "}
_MINUTE_S: Final = 60
_HOUR_S: Final = 3_600
_DAY_S: Final = 86_400
_SPANS: Final = {"s": 1, "m": _MINUTE_S, "h": _HOUR_S, "d": _DAY_S, "w": 7 * _DAY_S}


def one_line(text: str) -> str:
    """``text`` on one line, with what a terminal would act on written out (``\\x1b``)."""
    if text.isascii() and text.isprintable():
        return text
    return _UNFIT.sub(lambda found: _BLANKS.get(found[0]) or _escape(found[0]), text)


def many_lines(text: str) -> str:
    """Like ``one_line``, but line ends and tabs stay."""
    return _UNFIT.sub(lambda found: found[0] if found[0] in "\n\t" else _escape(found[0]), text)


def _escape(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def cells(text: str) -> int:
    """How many columns ``text`` takes in a terminal."""
    if text.isascii():
        return len(text)
    import unicodedata

    width = 0
    for character in text:
        if unicodedata.combining(character) or character == "\u200d":
            continue
        width += 2 if unicodedata.east_asian_width(character) in "WF" else 1
    return width


def clip(text: str, columns: int) -> str:
    """``text`` in at most ``columns`` columns (at least 1), its cut marked by ``…``."""
    if cells(text) <= columns:
        return text
    kept: list[str] = []
    width = 0
    for character in text:
        width += cells(character)
        if width > columns - 1:
            break
        kept.append(character)
    return "".join(kept) + "…"


def columns_of(stream: TextIO | None) -> int | None:
    """Width of the terminal behind ``stream``; None when it is none, so that nothing is cut."""
    try:
        if stream is None or not stream.isatty():
            return None
    except ValueError:
        return None
    return max(20, shutil.get_terminal_size().columns)


def table(rows: Sequence[Sequence[str]], *, right: Iterable[int] = ()) -> list[str]:
    """Lines of aligned columns, two blanks between them. ``right`` columns are set to the right."""
    if not rows:
        return []
    shown = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(cells(row[at]) for row in shown) for at in range(len(shown[0]))]
    flush = frozenset(right)
    lines: list[str] = []
    for row in shown:
        padded: list[str] = []
        for at, cell in enumerate(row):
            blanks = " " * (widths[at] - cells(cell))
            padded.append(blanks + cell if at in flush else cell + blanks)
        lines.append("  ".join(padded).rstrip())
    return lines


def show(lines: Iterable[str], stream: TextIO | None = None) -> None:
    """Print lines, each cut to the terminal's width if there is a terminal."""
    out = stream or sys.stdout
    width = columns_of(out)
    for line in lines:
        print(line if width is None else clip(line, width), file=out)


def note(message: str) -> None:
    """Say something beside the output, on stderr."""
    print(one_line(message), file=sys.stderr)


def plural(count: int, thing: str, things: str = "") -> str:
    """``1 run``, ``2 runs``."""
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"


def age(then_ms: int | None, now_ms: int) -> str:
    """How long ago in its greatest unit (``5s``, ``3m``, ``2h``, ``9d``); ``-`` when unknown."""
    if then_ms is None:
        return "-"
    return span((now_ms - then_ms) // 1_000)


def span(seconds: int) -> str:
    """A length of time in its greatest whole unit, none below zero."""
    seconds = max(0, seconds)
    for unit, size in (("d", _DAY_S), ("h", _HOUR_S), ("m", _MINUTE_S)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def parse_span(text: str) -> int:
    """The seconds of ``90s``, ``15m``, ``12h``, ``30d`` or ``2w``. Raises ValueError."""
    number, unit = text[:-1], text[-1:]
    if unit not in _SPANS or not (number.isascii() and number.isdigit() and len(number) < 8):
        raise ValueError(f"{text!r} is no length of time; write a number and s, m, h, d or w")
    return int(number) * _SPANS[unit]


def shell_word(text: str) -> str:
    """``text`` as one word of a shell command line, for commands that people copy."""
    import shlex

    return shlex.quote(one_line(text))


def home_option(given: str | None) -> str:
    """What a command to copy needs to reach the same home: `` --home X``, or nothing."""
    return "" if given is None else f" --home {shell_word(os.fspath(given))}"
