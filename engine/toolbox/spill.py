"""Large results: the head and the tail go to the model, the whole goes to a file beside the run.

The inline part names the file, how much was left out and how much the file holds, so that nobody
takes a part for the whole. A result that cannot be kept is cut all the same, and says so.
"""

from __future__ import annotations

import errno
import os
from codecs import getincrementaldecoder
from contextlib import suppress
from typing import Final, Self

import msgspec

from leviath.components.clean import clean_text, cut_utf8
from leviath.engine.limits import TOOL_RESULT_INLINE_BYTES_MAX, TOOL_SPILL_BYTES_MAX
from leviath.engine.toolbox.call import ToolCall, ToolResult, file_stem

NOTE_BYTES_MAX: Final = 512
"""Room kept for the note between head and tail."""
SIDE_BYTES_MAX: Final = (TOOL_RESULT_INLINE_BYTES_MAX - NOTE_BYTES_MAX) // 2
"""What of a large result stays inline at each side of the note."""


def exceeds_inline(result: ToolResult) -> bool:
    """Whether the text of ``result`` is longer than what goes to a model."""
    size_chars = len(result.text)
    if size_chars * 4 <= TOOL_RESULT_INLINE_BYTES_MAX:
        return False
    return len(result.text.encode()) > TOOL_RESULT_INLINE_BYTES_MAX


def apply_result_limits(result: ToolResult, call: ToolCall) -> ToolResult:
    """``result`` itself when it is short enough, else its head and tail, with the whole in a file.

    Of a long one, neither file nor text has a secret value that the call's redactor knows.
    ``result.text`` is clean (``clean_text``). Writes at most TOOL_SPILL_BYTES_MAX bytes to disk, so
    call it in a worker thread when ``exceeds_inline``. A disk that refuses raises nothing: the text
    says so.
    """
    if not exceeds_inline(result):
        return result
    # Before the cut, which might go through a value.
    text = call.redactor.redact(result.text)
    if text is not result.text:
        return apply_result_limits(msgspec.structs.replace(result, text=text), call)
    data = text.encode()
    kept = min(len(data), TOOL_SPILL_BYTES_MAX)
    spill, trouble = result.spill, ""
    if spill is None:  # else the tool has kept more than this text already
        try:
            with open_spill(call) as file:
                file.write(memoryview(data)[:kept])
            spill = spill_path(call)
        except OSError as error:
            trouble = errno.errorcode.get(error.errno or 0, "EIO")
    note = cut_note(len(data), kept, spill, trouble)
    head, tail = data[:SIDE_BYTES_MAX], data[-SIDE_BYTES_MAX:]
    return msgspec.structs.replace(result, text=inline_text(head, note, tail), spill=spill)


def spill_path(call: ToolCall) -> str:
    """Path of the call's spill file relative to the run's folder."""
    return f"{os.path.basename(call.spill_dir.rstrip('/'))}/{spill_name(call)}"


def spill_name(call: ToolCall) -> str:
    """Name of the call's spill file in its spill folder."""
    return f"{file_stem(call.call_id)}.log"


def make_private_dir(path: str) -> None:
    """Make the folder ``path``, 0700, and what is missing above it. Raises OSError.

    A run's own folder may not be there yet: its first file is written behind its first steps.
    """
    with suppress(FileExistsError):
        try:
            os.mkdir(path, mode=0o700)
        except FileNotFoundError:
            make_private_dir(os.path.dirname(path))
            os.mkdir(path, mode=0o700)


def open_spill(call: ToolCall) -> SpillFile:
    """Open the call's spill file, empty: a later attempt replaces what an earlier one left."""
    make_private_dir(call.spill_dir)
    return SpillFile(os.path.join(call.spill_dir, spill_name(call)))


class SpillFile:
    """A new file, 0600, that is never reached through a symlink."""

    def __init__(self, path: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)

    def write(self, data: memoryview) -> None:
        """Write all of ``data``. Raises OSError."""
        while data:
            data = data[os.write(self._fd, data) :]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def cut_note(size_bytes: int, kept_bytes: int, spill: str | None, trouble: str = "") -> str:
    """The line that stands for what is left out. ``trouble`` is why there is no spill file."""
    left_out = size_bytes - 2 * SIDE_BYTES_MAX
    if spill is None:
        where = f"the whole could not be kept ({trouble})"
    elif kept_bytes < size_bytes:
        where = f"the first {kept_bytes} of {size_bytes} bytes are in {spill}"
    else:
        where = f"all {size_bytes} bytes are in {spill}"
    return f"\n[... {left_out} bytes left out; {where} ...]\n"


def inline_text(head: bytes, note: str, tail: bytes) -> str:
    """Head, note and tail as one clean text of at most TOOL_RESULT_INLINE_BYTES_MAX less some room.

    Code points that the cuts went through are dropped; what is no UTF-8, and NUL, becomes U+FFFD.
    """
    decoder = getincrementaldecoder("utf-8")(errors="replace")
    # Not final: the decoder keeps an unfinished code point at the end to itself.
    start = cut_utf8(clean_text(decoder.decode(head)), SIDE_BYTES_MAX)
    # A code point has at most three bytes after its first.
    whole = next((i for i, byte in enumerate(tail[:3]) if byte & 0xC0 != 0x80), 3)
    # U+FFFD is longer than what it stands for: cut again.
    end = clean_text(tail[whole:].decode(errors="replace")).encode()[-SIDE_BYTES_MAX:]
    return start + note + end.decode(errors="ignore")
