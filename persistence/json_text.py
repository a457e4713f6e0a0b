"""JSON bytes on their way in: read within bounds, mended where half a character stands, or refused.

Nothing here knows what a document means; ``persistence/document.py`` does.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from leviath.components.errors import DocumentError

DOCUMENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""A run document is a few kilobytes, a few megabytes with a huge task; more is something else."""

NESTING_MAX: Final = 128
"""Deeper JSON is refused by the readers of other programs too."""

REMEDY: Final = "correct the document or restore it from a copy"

_T = TypeVar("_T")

# One JSON escape: a whole surrogate pair, half of one, or anything else after a backslash.
_ESCAPE: Final = re.compile(
    rb"\\(?:(?P<pair>u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
# A string, or what is left of one that does not end: it always matches, in linear time.
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))


def read_bounded(path: str | os.PathLike[str], bytes_max: int = DOCUMENT_BYTES_MAX) -> bytes:
    """The bytes of the regular file at ``path``.

    Raises DocumentError when it is missing, unreadable, not a regular file or over ``bytes_max``;
    ``fields["errno"]`` then tells a missing file from the rest.
    """
    # Without O_NONBLOCK, opening a named pipe would wait for a writer for ever.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        with open(os.open(path, flags), "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise DocumentError("it is not a regular file; name the document itself")
            check_size(status.st_size, bytes_max)
            return file.read()
    except (OSError, ValueError) as error:
        # ValueError: a path with NUL inside.
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise DocumentError(
            f"it cannot be read: {reason}; check the path and its permissions",
            errno=getattr(error, "errno", None),
        ) from error


def named(error: DocumentError, what: str) -> DocumentError:
    """The same error, saying which document it is about."""
    return DocumentError(f"{what}: {error.message}", **error.fields)


def check_size(size: int, bytes_max: int) -> None:
    """Raises DocumentError when ``size`` is more than ``bytes_max``."""
    if size > bytes_max:
        raise DocumentError(f"it has {size} bytes, more than {bytes_max}; {REMEDY}")


def as_bytes(text: bytes | str) -> bytes:
    """``text`` as UTF-8; lone surrogates of a str become U+FFFD, halves that fit are joined."""
    if isinstance(text, bytes):
        return text
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def mended(text: bytes) -> bytes:
    """``text`` with each escaped lone surrogate replaced by an escaped U+FFFD.

    Raises DocumentError for what cannot be JSON text at all, saying what it looks like.
    """
    if not text.strip(b" \t\r\n"):
        raise DocumentError(f"it is empty; {REMEDY}")
    if not text.strip(b"\0"):
        raise DocumentError(f"it is filled with NUL bytes, as after a crash; {REMEDY}")
    if text.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise DocumentError("it starts with a byte order mark; save it as UTF-8 without one")
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise DocumentError(f"it is not UTF-8 from byte {error.start} on; {REMEDY}") from error
    return _ESCAPE.sub(_mend, text) if b"\\ud" in text or b"\\uD" in text else text


def _mend(escape: re.Match[bytes]) -> bytes:
    return b"\\ufffd" if escape["half"] is not None else escape[0]


def check_nesting(text: bytes) -> None:
    """Raises DocumentError when brackets nest deeper than ``NESTING_MAX``."""
    if text.count(b"[") + text.count(b"{") <= NESTING_MAX:
        return
    depth = 0
    for character in _STRING.sub(b"", text).translate(None, _NO_BRACKETS):
        if character in b"[{":
            depth += 1
            if depth > NESTING_MAX:
                raise DocumentError(f"it nests deeper than {NESTING_MAX} levels; {REMEDY}")
        else:
            depth -= 1


def parse(decode: Callable[[bytes], _T], text: bytes) -> _T:
    """What ``decode``, a msgspec decoder's method, makes of ``text``.

    Raises DocumentError for damaged text; a value of the wrong type stays a ValidationError.
    """
    try:
        return decode(text)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, RecursionError) as error:
        reason = "it ends too early" if "truncated" in str(error) else f"it is damaged: {error}"
        raise DocumentError(f"{reason}; {REMEDY}") from error
