"""What of a callback's address may be shown: a user name and a query may be what authorises."""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "<hidden>"
"""Stands for a part of an address; none that is sent anywhere can have it."""
URL_REF: Final = "url-"
"""How the names of whole addresses begin in the table of secrets; see Launch."""
_PARTS: Final = re.compile(r"([^/?#]*//)?([^/?#]*)([^?#]*)(.*)", re.DOTALL)


def shown_url(url: str) -> str:
    """``url`` without its user name, query and fragment, which are marked as hidden.

    Equal to ``url`` when nothing of it has to be hidden. Raises nothing, whatever ``url`` is.
    """
    found = _PARTS.fullmatch(url)
    assert found is not None, "every text has these parts"
    head, authority, path, rest = found.groups("")
    _, user, host = authority.rpartition("@")
    return f"{head}{HIDDEN if user else ''}{user}{host}{path}{rest[:1]}{HIDDEN if rest else ''}"
