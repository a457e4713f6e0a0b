"""How far a simulation is, as one line on a terminal; nothing where there is none."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, Self

from leviath.lev.text import columns_of

if TYPE_CHECKING:
    from types import TracebackType

_CELLS: Final = 30


class Bar:
    """Draws itself on stderr while it is open, and leaves an empty line behind."""

    def __init__(self, end_ms: int) -> None:
        self._end_ms = end_ms
        self._width = columns_of(sys.stderr)
        self._drawn = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def at(self, now_ms: int, turns: int) -> None:
        """So much virtual time has passed, with so many turns."""
        self._draw(now_ms * 1_000 // max(1, self._end_ms), f"{turns:,} turns")

    def done(self, count: int, of: int) -> None:
        """So many of so many simulations are done."""
        self._draw(count * 1_000 // of, f"{count:,} of {of:,} simulations")

    def _draw(self, permille: int, text: str) -> None:
        if self._width is None:
            return
        filled = min(_CELLS, permille * _CELLS // 1_000)
        line = f"[{'#' * filled}{'.' * (_CELLS - filled)}] {permille // 10:3} %  {text}"
        line = line[: self._width - 1]
        if line != self._drawn:
            self._drawn = line
            sys.stderr.write(f"\r{line}\x1b[K")
            sys.stderr.flush()
