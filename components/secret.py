"""A value that must not be printed."""

from __future__ import annotations

import hmac
from typing import NoReturn

_SHOWN = "Secret(***)"


class Secret:
    """Holds a secret text and gives it only to who asks by name.

    ``repr``, ``str`` and formatting show ``Secret(***)``; pickling is refused, and every encoder
    that was not told how to write one refuses too. Equality takes the same time wherever two
    secrets differ. Immutable.
    """

    __slots__ = ("_text",)

    _text: str

    def __init__(self, text: str) -> None:
        object.__setattr__(self, "_text", text)

    def reveal(self) -> str:
        """The secret itself: for signing, and for the private file that carries it."""
        return self._text

    def __repr__(self) -> str:
        return _SHOWN

    def __format__(self, spec: str) -> str:
        return format(_SHOWN, spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._bytes(), other._bytes())

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __bool__(self) -> bool:
        """Whether there is any text; an empty secret signs nothing."""
        return bool(self._text)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Secret is immutable: make a new one instead of setting {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a Secret is immutable: {name!r} cannot be deleted")

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not pickled: pass it by reference, or reveal() it on purpose")

    def _bytes(self) -> bytes:
        return self._text.encode(errors="surrogatepass")
