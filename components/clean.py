"""Text made fit to keep: what UTF-8 cannot carry or readers stumble over is replaced at the border.

A lone surrogate is half a character (a JSON ``\\ud83d`` without its partner, an undecodable file
name); it cannot be encoded. NUL ends a string in C and in many a terminal. Both become U+FFFD, one
for one, so that positions stay what they were.
"""

from __future__ import annotations

import re
from typing import Final

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"

_UNFIT = re.compile("[\0\ud800-\udfff]")


def clean_text(text: str) -> str:
    """``text`` with each lone surrogate and each NUL replaced by U+FFFD; the same object if fit."""
    if text.isascii():
        return text.replace("\0", REPLACEMENT) if "\0" in text else text
    return _UNFIT.sub(REPLACEMENT, text) if _UNFIT.search(text) else text


def cut_utf8(text: str, bytes_max: int) -> str:
    """The longest head of ``text`` whose UTF-8 form has at most ``bytes_max`` bytes.

    Cuts between code points, never inside one. ``text`` is clean (see ``clean_text``) and
    ``bytes_max`` is not negative.
    """
    assert bytes_max >= 0, bytes_max
    if text.isascii():
        return text[:bytes_max]
    if len(text) * 4 <= bytes_max:
        return text
    # No code point is shorter than a byte, so more than bytes_max of them are never kept.
    return text[:bytes_max].encode()[:bytes_max].decode(errors="ignore")
