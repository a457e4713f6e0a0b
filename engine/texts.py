"""The border for texts: cleaned and redacted, interned when long, resolved for who sends them.

A long text is kept under its digest: in the step's batch until that is durable, in ``world.db``
after, and in a bounded cache in between so that a prompt does not read the disk.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from leviath.components.clean import clean_text, cut_utf8
from leviath.components.errors import Damaged
from leviath.components.text import Text, text_digest
from leviath.engine.limits import (
    LABEL_BYTES_MAX,
    TEXT_CACHE_BYTES_MAX,
    TEXT_INLINE_BYTES_MAX,
)
from leviath.engine.redaction import NOTHING_KNOWN

if TYPE_CHECKING:
    from collections.abc import Callable

    from leviath.engine.redaction import Redactor


class Texts:
    """Interns and resolves. ``read`` fetches a body by digest from what is durable.

    Used by the host's thread; ``resolve`` and ``clean`` may be called from others.
    """

    def __init__(self, read: Callable[[bytes], bytes | None]) -> None:
        self._read = read
        self._cache: OrderedDict[bytes, bytes] = OrderedDict()
        self._cached_bytes = 0
        self._pending: dict[bytes, bytes] = {}
        self._fresh: list[tuple[bytes, bytes]] = []
        self.fresh_bytes: int = 0
        """Size of what the next batch must make durable."""
        self.redactor: Redactor = NOTHING_KNOWN
        """Knows the values that no text may carry past this border."""

    def clean(self, text: str) -> str:
        """``text`` made fit to be kept: encodable, and without known secret values."""
        if len(text) < self.redactor.shortest and text.isascii() and "\0" not in text:
            return text
        return self.redactor.redact(clean_text(text))

    def label(self, text: str) -> str:
        """A short text made fit to be recorded: who, why, which."""
        return cut_utf8(self.clean(text), LABEL_BYTES_MAX)

    def intern(self, text: str, *, inline_bytes_max: int = TEXT_INLINE_BYTES_MAX) -> Text:
        """A Text of the cleaned ``text``. Its body is durable with the next batch."""
        text = self.clean(text)
        if len(text) <= inline_bytes_max:
            if text.isascii():
                return Text(text, b"", len(text))
            data = text.encode()
            if len(data) <= inline_bytes_max:
                return Text(text, b"", len(data))
        else:
            data = text.encode()
        return Text("", self.keep(data), len(data))

    def keep(self, data: bytes) -> bytes:
        """Store a body and return its digest."""
        digest = text_digest(data)
        if digest not in self._pending and digest not in self._cache:
            self._pending[digest] = data
            self._fresh.append((digest, data))
            self.fresh_bytes += len(data)
        return digest

    def take_fresh(self) -> list[tuple[bytes, bytes]]:
        """The bodies that the batch being closed must make durable."""
        fresh, self._fresh = self._fresh, []
        self.fresh_bytes = 0
        return fresh

    def durable(self, entries: list[tuple[bytes, bytes]]) -> None:
        """Those bodies are on disk: they may leave memory."""
        for digest, data in entries:
            self._pending.pop(digest, None)
            self._remember(digest, data)

    def _remember(self, digest: bytes, data: bytes) -> None:
        if digest in self._cache:
            return
        self._cache[digest] = data
        self._cached_bytes += len(data)
        while self._cached_bytes > TEXT_CACHE_BYTES_MAX and len(self._cache) > 1:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= len(dropped)

    def body(self, digest: bytes) -> bytes:
        """The stored bytes. Raises Damaged when the store has lost them."""
        data = self._pending.get(digest) or self._cache.get(digest)
        if data is None:
            data = self._read(digest)
            if data is None:
                raise Damaged(
                    f"the store has lost the text {digest.hex()}; restore the home from a copy",
                    digest=digest.hex(),
                )
            self._remember(digest, data)
        return data

    def resolve(self, text: Text) -> str:
        """The whole text."""
        if not text.digest:
            return text.body
        return self.body(text.digest).decode()
