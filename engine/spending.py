"""No call to a provider that may cost money, where somebody said so: in tests, above all.

The word is an environment variable, so that it reaches the hosts that a test starts as processes,
too. A provider says that it costs nothing by an attribute ``paid`` that is False; of one that says
nothing it is not known, and unknown is not free.
"""

from __future__ import annotations

import os
from typing import Final

NO_SPENDING: Final = "LEVIATH_NO_SPENDING"
"""Set to anything but the empty text, it keeps calls from providers that may cost money."""
refused: Final[list[str]] = []
"""What was refused in this process, oldest first; whoever set the variable looks here."""


def is_forbidden() -> bool:
    """Whether calls that may cost money are kept from leaving."""
    return bool(os.environ.get(NO_SPENDING))


def may_cost(provider: object) -> bool:
    """Whether a call to that provider may cost money."""
    paid: object = getattr(provider, "paid", True)
    return paid is not False


def refusal(provider: str, run_id: str) -> str:
    """Note that a call was kept from leaving, and say so."""
    said = (
        f"run {run_id} asks provider {provider!r}, which may cost money, and {NO_SPENDING} is set; "
        "use leviath.Scripted or leviath.Recorded, or give a provider that costs nothing "
        "an attribute `paid = False`"
    )
    refused.append(said)
    return said
