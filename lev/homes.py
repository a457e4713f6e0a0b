"""Which home a command means, and which run of it. Imports nothing that is slow."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from leviath.components.errors import ConfigError, RunNotFound
from leviath.components.run_id import check_run_id
from leviath.lev.text import one_line
from leviath.persistence.home import resolve_home
from leviath.persistence.listing import Listing

if TYPE_CHECKING:
    from pathlib import Path

_HEAD: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
_SHOWN_MAX: Final = 5


def home_of(given: str | None) -> Path:
    """The home of ``--home``, of the environment, or the default one. Raises ConfigError."""
    return resolve_home(given, os.environ)


def run_in(home: Path, given: str) -> str:
    """The id of the one run of ``home`` that ``given`` names or starts.

    Raises ConfigError for what cannot start a run id, RunNotFound when none or more than one fits.
    """
    if _HEAD.fullmatch(given) is None:
        check_run_id(given)
        raise ConfigError(f"run id {one_line(given)[:64]!r} cannot be one")
    listing = Listing.open(home)
    if listing is None:
        raise RunNotFound(f"{home} holds no world, so no run is called {given!r}; see --home")
    with listing:
        return _pick(listing, home, given)


def _pick(listing: Listing, home: Path, given: str) -> str:
    if listing.run(given) is not None:
        return given
    found = listing.starting_with(given, limit=_SHOWN_MAX + 1)
    if not found:
        raise RunNotFound(
            f"no run of {home} is called {given!r}; list them with `lev ps --all`", run_id=given
        )
    if len(found) > 1:
        names = ", ".join(found[:_SHOWN_MAX]) + (" and more" if len(found) > _SHOWN_MAX else "")
        raise RunNotFound(f"{given!r} fits more than one run: {names}; write more of it")
    return found[0]
