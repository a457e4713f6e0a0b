"""What a caller asks of a spawn, held to types and ranges before anything is read or made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias, cast
from urllib.parse import urlsplit

import msgspec

from leviath.components.address import shown_url
from leviath.components.blueprint import Blueprint
from leviath.components.budget import Limits
from leviath.components.errors import SpawnError
from leviath.components.people import Profile
from leviath.components.secret import Secret
from leviath.engine import arguments
from leviath.engine.blueprints import LoadedBlueprint
from leviath.engine.budgets import limits_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leviath.engine.budgets import Budget

Agent: TypeAlias = str | os.PathLike[str] | Blueprint | LoadedBlueprint
"""A blueprint's folder or file, or a blueprint, read or built."""


class SpawnRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller asks for."""

    agent: Agent
    task: str
    workdir: str | os.PathLike[str]
    key: str
    model: str | None
    yolo: bool
    yolo_profile: str | None
    profile: Profile | None
    regions: dict[str, str]
    metadata: dict[str, str]
    allow: tuple[str, ...]
    output: dict[str, object] | None
    callback_url: str | None
    callback_secret: str | Secret | None
    run_id: str
    budget: Limits | None
    tree_budget: Limits | None


def spawn_request(
    agent: Agent,
    *,
    task: str,
    workdir: str | os.PathLike[str],
    key: str,
    model: str | None,
    yolo: bool | str,
    profiles: Mapping[str, Profile],
    regions: Mapping[str, str] | None,
    metadata: Mapping[str, str] | None,
    allow: Sequence[str],
    output: Mapping[str, object] | None,
    callback_url: str | None,
    callback_secret: str | Secret | None,
    run_id: str,
    budget: Budget | None,
    tree_budget: Budget | None,
) -> SpawnRequest:
    """The request of these arguments. Raises SpawnError naming argument, value and remedy."""
    if callback_secret is not None:
        arguments.secret("callback_secret", callback_secret, error=SpawnError)
    unattended, name, profile = check_yolo(yolo, profiles)
    return SpawnRequest(
        agent=check_agent(agent),
        task=_text("task", task),
        workdir=_path("workdir", workdir, "name a folder"),
        key=_text("key", key, remedy='pass a str; "" is no key'),
        model=_model(model),
        yolo=unattended,
        yolo_profile=name,
        profile=profile,
        regions=arguments.text_map("regions", regions, error=SpawnError),
        metadata=arguments.text_map("metadata", metadata, error=SpawnError),
        allow=arguments.texts("allow", allow, error=SpawnError),
        output=_output(output),
        callback_url=_url(callback_url),
        callback_secret=callback_secret,
        run_id=_text("run_id", run_id, remedy='pass a str; "" lets leviath make one'),
        budget=limits_of("budget", budget, error=SpawnError),
        tree_budget=limits_of("tree_budget", tree_budget, error=SpawnError),
    )


def check_yolo(
    value: object, profiles: Mapping[str, Profile]
) -> tuple[bool, str | None, Profile | None]:
    """Whether a run is unattended, and under which profile. A name that nobody knows is refused:
    without its profile the run would be allowed more than was asked for."""
    if isinstance(value, str):
        if value not in profiles:
            known = ", ".join(sorted(profiles)) or "none"
            raise SpawnError(
                f"yolo {value!r} names a profile that this world does not have; it has {known}; "
                "open the world with profiles={...}, or use True for an unattended run without one"
            )
        return True, value, profiles[value]
    return arguments.flag("yolo", value, error=SpawnError), None, None


def _text(name: str, value: object, *, remedy: str = "pass a str") -> str:
    return arguments.text(name, value, remedy=remedy, error=SpawnError)


def _path(name: str, value: object, remedy: str) -> str | os.PathLike[str]:
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str):
        raise SpawnError(f"{name} must be a path, not {arguments.shown(value)}; {remedy}")
    if not path:
        raise SpawnError(f"{name} is an empty path; {remedy}")
    return path


def check_agents(values: object) -> list[Agent]:
    """``values`` when they are a list of what may be an agent. Raises ConfigError, SpawnError."""
    return [check_agent(value) for value in arguments.items("agents", values, "agents")]


def check_agent(value: object) -> Agent:
    """``value`` when it may name an agent, or be one. Raises SpawnError."""
    if isinstance(value, Blueprint | LoadedBlueprint):
        return value
    return _path("agent", value, "name a blueprint's folder or file, or pass a Blueprint")


def _model(value: object) -> str | None:
    if value is None:
        return None
    name = _text("model", value)
    provider, slash, model = name.partition("/")
    if not provider.strip() or (slash and not model.strip()):
        raise SpawnError(f"model {name!r} is incomplete; write provider/model, or a model alone")
    return name


def _output(value: object) -> dict[str, object] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise SpawnError(f"output must be a mapping, not {arguments.shown(value)}; pass a dict")
    return dict(cast("Mapping[str, object]", value))


def _url(value: object) -> str | None:
    if value is None:
        return None
    url = _text("callback_url", value)
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port  # raises for what is no port
    except ValueError:
        fits = False
    if not fits or any(char.isspace() for char in url):
        raise SpawnError(
            f"callback_url {arguments.shown(shown_url(url))} is no address; "
            "write http:// or https://, a host and a path"
        )
    return url
