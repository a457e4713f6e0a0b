"""Named profiles: what unattended runs may do that are not trusted with everything."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final, cast

from leviath.components.errors import ConfigError
from leviath.components.people import Profile
from leviath.engine import arguments
from leviath.engine.limits import BLUEPRINT_BYTES_MAX

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
_KEYS: Final = ("allow", "deny", "otherwise", "attended")


def check_profiles(given: object) -> dict[str, Profile]:
    """Profiles by name. Raises ConfigError naming the profile, the value and the remedy."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"profiles must map names to leviath.Profile, not be {arguments.shown(given)}"
        )
    table = cast("Mapping[object, object]", given)
    return {_name(name): _checked(str(name), profile) for name, profile in table.items()}


def read_profiles(path: str | os.PathLike[str]) -> dict[str, Profile]:
    """The ``[profiles.<name>]`` tables of a TOML file. Raises ConfigError."""
    try:
        with open(path, "rb") as file:
            data = file.read(BLUEPRINT_BYTES_MAX + 1)
        if len(data) > BLUEPRINT_BYTES_MAX:
            raise ConfigError(f"{path} has over {BLUEPRINT_BYTES_MAX:,} bytes; shorten it")
        document: dict[str, Any] = tomllib.loads(data.decode())
    except OSError as error:
        raise ConfigError(f"the profiles {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the profiles {path} are no TOML: {error}") from None
    tables = document.pop("profiles", None)
    if document or not isinstance(tables, dict):
        odd = ", ".join(sorted(document)) or "no profiles"
        raise ConfigError(f"{path} has {odd}; it may have [profiles.NAME] tables only")
    found = cast("dict[str, object]", tables)
    return check_profiles({name: _of_table(name, table) for name, table in found.items()})


def _of_table(name: str, table: object) -> Profile:
    if not isinstance(table, dict):
        raise ConfigError(f"profile {name!r} must be a table, not {arguments.shown(table)}")
    values = cast("dict[str, Any]", table)
    odd = sorted(values.keys() - set(_KEYS))
    if odd:
        raise ConfigError(f"profile {name!r} has a key {odd[0]!r}; it may have {', '.join(_KEYS)}")
    return Profile(
        arguments.texts(f"allow of profile {name!r}", values.get("allow", ())),
        arguments.texts(f"deny of profile {name!r}", values.get("deny", ())),
        values.get("otherwise", "ask"),
        values.get("attended", True),
    )


def _name(name: object) -> str:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ConfigError(
            f"{arguments.shown(name)} is no name for a profile; use 1 to 64 of A-Z a-z 0-9 _ -"
        )
    return name


def _checked(name: str, profile: object) -> Profile:
    if not isinstance(profile, Profile):
        raise ConfigError(
            f"profile {name!r} must be a leviath.Profile, not {arguments.shown(profile)}"
        )
    whose = f"of profile {name!r}"
    allow = arguments.texts(f"allow {whose}", profile.allow)
    deny = arguments.texts(f"deny {whose}", profile.deny)
    arguments.one_of(f"otherwise {whose}", profile.otherwise, ("ask", "deny"))
    arguments.flag(f"attended {whose}", profile.attended)
    both = sorted(set(allow) & set(deny))
    if both:
        raise ConfigError(f"profile {name!r} allows and denies {both[0]!r}; keep one")
    if not profile.attended and profile.otherwise == "ask":
        raise ConfigError(
            f"profile {name!r} asks and nobody answers; set otherwise='deny' or attended=True"
        )
    return Profile(tuple(allow), tuple(deny), profile.otherwise, profile.attended)
