"""What an entry shows: its text, and behind it what it refers to, each part cut to its share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leviath.components.clean import cut_utf8

if TYPE_CHECKING:
    from collections.abc import Callable

    from leviath.components.context import Entry
    from leviath.components.text import Text


def whole_text(entry: Entry, resolve: Callable[[Text], str]) -> str:
    """The entry as a model or a person reads it."""
    text = resolve(entry.text)
    if not entry.references:
        return text
    parts = [text]
    for reference in entry.references:
        body = resolve(reference.text)
        size = reference.text.size_bytes
        if reference.bytes_max and size > reference.bytes_max:
            left_out = size - reference.bytes_max
            body = f"{cut_utf8(body, reference.bytes_max)}\n[cut: {left_out} bytes left out]"
        parts.append(f"## {reference.label}\n{body}")
    return "\n\n".join(parts)
