"""Text that rules put into state: the same on every version of Python.

``repr`` and ``str.lower`` follow the Unicode tables of the interpreter, which differ between
releases; what a model or a blueprint wrote is therefore quoted and compared by the rules below.
"""

from __future__ import annotations

from typing import Final

from leviath.components.clean import cut_utf8

QUOTED_BYTES_MAX: Final = 128
_LOWER: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def quoted(text: str) -> str:
    """``text`` between quotes for a message, cut at a length that a reader can take in."""
    cut = cut_utf8(text, QUOTED_BYTES_MAX)
    return f"'{cut}'" if cut is text or len(cut) == len(text) else f"'{cut}...'"


def ascii_lower(text: str) -> str:
    """``text`` with the 26 letters of ASCII in lower case and all else as it is."""
    return text.translate(_LOWER)
