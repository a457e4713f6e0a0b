"""Known secret values, hidden in every text that would be kept.

What is looked for are values, not shapes: the ones that the host names, those of environment
variables whose name says that they are credentials, and the secrets of callbacks. Each is found as
it is and in its JSON-escaped forms. Other spellings (base64, percent-encoding, one value in two
texts, a part of a value) are not found; see ``docs/decisions/026``.
"""

from __future__ import annotations

import json
import os.path
import re
import sys
import traceback
from typing import TYPE_CHECKING, Final

from leviath.components.clean import clean_text
from leviath.components.secret import Secret
from leviath.engine.limits import (
    SECRET_CHARS_MIN,
    SECRET_ENV_CHARS_MIN,
    SECRETS_LEARNED_MAX,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HIDDEN: Final = "[secret]"
"""Stands for a value. No longer than the shortest value, so that no text grows."""
_CREDENTIAL: Final = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)\Z", re.IGNORECASE)

assert len(HIDDEN) <= SECRET_CHARS_MIN <= SECRET_ENV_CHARS_MIN


class Redactor:
    """Hides known values. Values are added in the host's thread; any thread may redact.

    Shows none of its values, however it is printed.
    """

    __slots__ = ("_configured", "_forms", "_learned", "shortest")

    def __init__(self, values: Iterable[str | Secret] = ()) -> None:
        """Values of less than SECRET_CHARS_MIN characters are not looked for: they are words."""
        self._configured = {value for given in values if (value := _value(given))}
        self._learned: dict[str, None] = {}
        self._forms: tuple[str, ...] = ()
        self.shortest: int = sys.maxsize
        """Texts of fewer characters hide nothing, and are not looked through."""
        self._arrange()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._forms)} forms>"

    @property
    def forms(self) -> tuple[str, ...]:
        """Everything that is looked for, the longest first; never log it."""
        return self._forms

    def learn(self, given: str | Secret) -> None:
        """Look for one more value from now on; of values learned, the newest are kept."""
        value = _value(given)
        if not value or value in self._configured:
            return
        known = value in self._learned
        self._learned.pop(value, None)
        self._learned[value] = None
        if known:
            return
        if len(self._learned) > SECRETS_LEARNED_MAX:
            del self._learned[next(iter(self._learned))]
        self._arrange()

    def _arrange(self) -> None:
        values = self._configured | self._learned.keys()
        forms = {form for value in values for form in _forms(value)}
        shortest = min(map(len, forms), default=sys.maxsize)
        # Lowered before the forms are there, raised after: a text too many is looked through.
        self.shortest = min(self.shortest, shortest)
        # One assignment: another thread sees the old ones or the new ones.
        self._forms = tuple(sorted(forms, key=lambda form: (-len(form), form)))
        self.shortest = shortest

    def redact(self, text: str) -> str:
        """``text`` with each known value replaced, the longest first; the same object if none."""
        if len(text) < self.shortest:
            return text
        # One search each is faster than one pattern of all, and nearly always finds nothing.
        found = None
        for form in self._forms:
            if form in text:
                found = [form] if found is None else [*found, form]
        if found is None:
            return text
        return re.sub("|".join(map(re.escape, found)), HIDDEN, text)

    def knows(self, text: str) -> bool:
        """Whether a known value is in ``text``."""
        return any(form in text for form in self._forms)

    def head(self, text: str) -> str:
        """Redacted, of a text that goes on elsewhere: without what may be the start of a value."""
        reach = len(self._forms[0]) - 1 if self._forms else 0
        return self.redact(text)[: -reach or None]

    def traceback(self, error: BaseException) -> str:
        """The traceback of an error, redacted: an error's message may quote anything."""
        return self.redact("".join(traceback.format_exception(error)).rstrip())


NOTHING_KNOWN: Final = Redactor()
"""Hides nothing."""


def credentials(environment: Mapping[str, str]) -> list[str]:
    """Values of the variables whose name ends like that of a credential.

    Short ones are switches or numbers, and the path of a file is not its content.
    """
    return [
        value
        for name, value in environment.items()
        if _CREDENTIAL.search(name)
        and len(value.strip()) >= SECRET_ENV_CHARS_MIN
        and not (os.path.isabs(value) and os.path.exists(value))
    ]


def _value(given: str | Secret) -> str:
    """The value to look for; "" when it is too short. What stands around it is often lost."""
    value = clean_text(given.reveal() if isinstance(given, Secret) else given).strip()
    # What looks like the mark itself would be hidden over and over.
    return value if len(value) >= SECRET_CHARS_MIN and HIDDEN not in value else ""


def _forms(value: str) -> tuple[str, ...]:
    escaped = (json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True))
    return (value, *escaped)
