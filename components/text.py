"""Texts by value or by digest.

A short text travels inside the record that names it. A long one is stored once in the entry table
under its digest, so that a constant 1 MB region costs one row however many turns see it.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from leviath.components.base import Part

DIGEST_BYTES: Final = 16
"""128 bits: a collision among 2^40 texts has a chance below 2^-48."""


class Text(Part):
    """A text. ``digest`` is empty exactly when ``body`` is the whole of it."""

    body: str = ""
    digest: bytes = b""
    size_bytes: int = 0

    @property
    def is_empty(self) -> bool:
        return self.size_bytes == 0


EMPTY: Final = Text()


def text_digest(data: bytes) -> bytes:
    """The key of a text's UTF-8 bytes in the entry table."""
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


def inline(body: str) -> Text:
    """A text that travels with its record. ``body`` must be free of lone surrogates."""
    return Text(body, b"", len(body) if body.isascii() else len(body.encode()))


def tokens_of(size_bytes: int) -> int:
    """The engine's estimate before a provider has counted: a quarter of the bytes, rounded up
    (leviath-engine section 10)."""
    return (size_bytes + 3) // 4
