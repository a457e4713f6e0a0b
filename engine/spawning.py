"""The border of a spawn: everything is checked before anything exists."""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from leviath.components.address import URL_REF, shown_url
from leviath.components.blueprint import Blueprint, canonical_bytes
from leviath.components.clean import clean_text, cut_utf8
from leviath.components.errors import ConfigError, SpawnError
from leviath.components.identity import Launch
from leviath.components.inputs import Configured, Spawn
from leviath.components.run_id import check_run_id
from leviath.components.secret import Secret
from leviath.components.text import text_digest
from leviath.engine.blueprints import (
    MANIFEST_NAME,
    LoadedBlueprint,
    check_spawnable,
    load_blueprint,
    validate_blueprint,
)
from leviath.engine.budgets import check_prices
from leviath.engine.limits import (
    AGENTS_KEPT_MAX,
    KEY_BYTES_MAX,
    METADATA_BYTES_MAX,
    REGION_INPUT_BYTES_MAX,
    TASK_BYTES_MAX,
)
from leviath.engine.offering import IN_STEP_TOOLS
from leviath.engine.redaction import NOTHING_KNOWN, Redactor
from leviath.engine.spawn_request import SpawnRequest
from leviath.persistence.run_meta_parts import OutputSpec
from leviath.persistence.run_row import TASK_HEAD_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leviath.engine.offering import Offering
    from leviath.engine.outside import Outside
    from leviath.engine.spawn_request import Agent
    from leviath.systems.world import World

    Make = Callable[[int, Outside, World, int], Spawn]

_IN_STEP: Final = tuple(spec.name for spec in IN_STEP_TOOLS)


class Checked(msgspec.Struct, frozen=True):
    """A blueprint that this world can run, with its byte form."""

    blueprint: Blueprint
    agent_path: str
    digest: bytes
    body: bytes
    no_output_tools: bool


class Agents:
    """Blueprints that were read and checked: once each, until the file changes.

    Used by several threads: whoever comes second does the same work again, and no harm is done.
    """

    def __init__(self, offering: Offering) -> None:
        self._offering = offering
        self._built: OrderedDict[int, tuple[object, Checked]] = OrderedDict()
        self._read: OrderedDict[tuple[str, int, int, int], Checked] = OrderedDict()

    def known(self, agent: Agent) -> Checked | None:
        """The checked blueprint when nothing has to be read or checked."""
        if isinstance(agent, Blueprint | LoadedBlueprint):
            found = self._built.get(id(agent))
            return None if found is None or found[0] is not agent else found[1]
        stamp = _stamp(agent)
        return None if stamp is None else self._read.get(stamp)

    def check(self, agent: Agent) -> Checked:
        """Read and check. Raises BlueprintError or SpawnError."""
        known = self.known(agent)
        if known is not None:
            return known
        stamp = None if isinstance(agent, Blueprint | LoadedBlueprint) else _stamp(agent)
        blueprint, agent_path = _blueprint(agent)
        check_spawnable(blueprint)
        _check_tools(blueprint, self._offering)
        body = canonical_bytes(blueprint)
        modifying = {name for name, tool in self._offering.tools.items() if tool.modifies}
        writes = any(
            tool in modifying or tool == "submit_output"
            for stage in blueprint.stages
            for tool in (*stage.available_tools, *stage.required_tools)
        )
        checked = Checked(blueprint, agent_path, text_digest(body), body, not writes)
        if isinstance(agent, Blueprint | LoadedBlueprint):
            self._built[id(agent)] = (agent, checked)
            _bound(self._built)
        elif stamp is not None:
            self._read[stamp] = checked
            _bound(self._read)
        return checked

    def check_allowed(self, names: Sequence[str]) -> None:
        """Raises SpawnError for a tool that this world does not have."""
        known = {*self._offering.tools, *_IN_STEP}
        for name in names:
            if name not in known:
                raise SpawnError(
                    f"allow names a tool {name!r} that this world does not have; "
                    f"it has {', '.join(sorted(known))}"
                )


def _bound(cache: OrderedDict[Any, Any]) -> None:
    while len(cache) > AGENTS_KEPT_MAX:
        cache.popitem(last=False)


def _stamp(agent: str | os.PathLike[str]) -> tuple[str, int, int, int] | None:
    """Names the manifest's present content; None when it cannot be looked at."""
    try:
        path = os.path.realpath(agent)
        if os.path.isdir(path):
            path = os.path.join(path, MANIFEST_NAME)
        stat = os.stat(path)
    except (OSError, ValueError):
        return None
    return path, stat.st_ino, stat.st_size, stat.st_mtime_ns


def prepare_spawn(
    request: SpawnRequest, agents: Agents, redactor: Redactor, told: Configured | None = None
) -> Make:
    """Check everything and read the blueprint; returns what makes the input.

    ``told`` is what the host was opened with, when it is this one that makes the run's calls.

    Texts lose the secret values that ``redactor`` knows. What cannot lose them and still work,
    such as a key, is refused. Quick when the agent is known; else it belongs in a thread. Raises
    BlueprintError, SpawnError or ConfigError naming the thing and the remedy.
    """
    checked = agents.check(request.agent)
    blueprint, agent_path, digest = checked.blueprint, checked.agent_path, checked.digest
    _check_sizes(request)
    workdir = folder_of(request.workdir)
    if request.run_id:
        check_run_id(request.run_id)
    _check_regions(request, blueprint)
    agents.check_allowed([redactor.redact(name) for name in request.allow])
    _check_secrets(request, checked, workdir, redactor)
    if told is not None:
        check_prices(request, blueprint, told)
    output = _output(request.output)

    def make(ticket: int, outside: Outside, world: World, wall_ms: int) -> Spawn:
        intern, clean, label = outside.texts.intern, outside.texts.clean, outside.texts.label
        # First of all: the task may quote it.
        ref = _keep_secret(request.callback_secret, outside, ticket, wall_ms)
        url, url_ref = _keep_url(request.callback_url, outside, ticket, wall_ms)
        world.blueprints.setdefault(digest, blueprint)
        outside.texts.keep(checked.body)
        task = intern(request.task)
        launch = Launch(
            task=task,
            task_head="" if task.body else cut_utf8(clean(request.task), TASK_HEAD_BYTES_MAX),
            workdir=workdir,
            blueprint=digest,
            started_ms=wall_ms,
            model_override=None if request.model is None else label(request.model),
            yolo=request.yolo,
            yolo_profile=request.yolo_profile,
            profile=request.profile,
            output_request=None if output is None else clean(output),
            metadata=tuple((clean(k), clean(v)) for k, v in request.metadata.items()),
            callback_url=url,
            callback_secret_ref=ref,
            callback_url_ref=url_ref,
            region_inputs=tuple((k, intern(v)) for k, v in request.regions.items()),
            allow=tuple(map(label, request.allow)),
            num_stages=len(blueprint.stages),
            no_output_tools=checked.no_output_tools,
            read_paths_declared=len(blueprint.read_paths) or None,
        )
        path = clean(agent_path)
        return Spawn(
            ticket,
            blueprint.name,
            path,
            launch,
            request.key,
            request.run_id,
            budget=request.budget,
            tree_budget=request.tree_budget,
        )

    return make


def _keep_secret(
    secret: str | Secret | None, outside: Outside, ticket: int, wall_ms: int
) -> str | None:
    if secret is None:
        return None
    value = clean_text(secret.reveal() if isinstance(secret, Secret) else secret)
    ref = f"callback-{wall_ms}-{ticket}"
    outside.keep_secret(ref, value)
    outside.texts.redactor.learn(value)
    return ref


def _keep_url(
    url: str | None, outside: Outside, ticket: int, wall_ms: int
) -> tuple[str | None, str | None]:
    """The address as everybody may see it, and the name of the whole one if that hides anything."""
    if url is None:
        return None, None
    whole = clean_text(url)
    shown = shown_url(whole)
    if shown == whole:
        return outside.texts.clean(whole), None
    ref = f"{URL_REF}{wall_ms}-{ticket}"
    outside.keep_secret(ref, whole)
    return outside.texts.clean(shown), ref


def _blueprint(agent: Agent) -> tuple[Blueprint, str]:
    if isinstance(agent, Blueprint):
        return validate_blueprint(agent), ""
    if isinstance(agent, LoadedBlueprint):
        return validate_blueprint(agent.blueprint), str(agent.path)
    loaded = load_blueprint(Path(agent))
    return loaded.blueprint, str(loaded.path)


def _check_tools(blueprint: Blueprint, offering: Offering) -> None:
    known = {*offering.tools, *_IN_STEP}
    missing = [
        f"stage {stage.name}: tool {tool!r}"
        for stage in blueprint.stages
        for tool in (*stage.available_tools, *stage.required_tools)
        if tool not in known
    ]
    if missing:
        needed, has = "; ".join(missing), ", ".join(sorted(known))
        raise SpawnError(
            f"{blueprint.name} needs tools that this world was not opened with: {needed}. "
            f"Pass them to open_world(tools=...), or to lev with --tools; it has {has}",
            missing=missing,
        )


def _check_sizes(request: SpawnRequest) -> None:
    task = len(request.task.encode("utf-8", "replace"))
    if task > TASK_BYTES_MAX:
        raise SpawnError(
            f"the task has {task:,} bytes, {TASK_BYTES_MAX:,} are allowed; "
            "put it in a file of the workdir"
        )
    size = sum(
        len(key.encode("utf-8", "replace")) + len(value.encode("utf-8", "replace"))
        for key, value in request.metadata.items()
    )
    if size > METADATA_BYTES_MAX:
        raise SpawnError(
            f"the metadata has {size:,} bytes, {METADATA_BYTES_MAX:,} are allowed; keep labels only"
        )
    check_key(request.key)


def check_key(key: str) -> None:
    """Raises SpawnError for a key that cannot be kept as it is."""
    if len(key.encode("utf-8", "replace")) > KEY_BYTES_MAX:
        raise SpawnError(f"the key is longer than {KEY_BYTES_MAX} bytes; use a digest of it")
    if clean_text(key) != key:
        raise SpawnError(f"the key {key!r} is not UTF-8 or has NUL; use a digest of it")


def _check_secrets(
    request: SpawnRequest, checked: Checked, workdir: str, redactor: Redactor
) -> None:
    """Refuse what has to be kept as it is and carries a secret. The message does not show it."""
    own = NOTHING_KNOWN if request.callback_secret is None else Redactor([request.callback_secret])
    kept = {
        "the key": request.key,
        "the run_id": request.run_id,
        "the workdir": workdir,
        # What it hides is kept as a secret itself.
        "the callback_url": shown_url(request.callback_url or ""),
        "the blueprint": checked.body.decode(errors="replace"),
    }
    for what, text in kept.items():
        if redactor.knows(text) or own.knows(text):
            raise SpawnError(
                f"{what} has the value of a known secret in it, and would be kept so; leave it out"
            )


def folder_of(path: str | os.PathLike[str]) -> str:
    """The real path of a workdir. Raises SpawnError for what is no folder."""
    text = os.fspath(path)
    if "\x00" in text:
        raise SpawnError(f"the workdir {text!r} contains NUL; name a folder")
    real = os.path.realpath(text)
    if not Path(real).is_dir():
        raise SpawnError(f"the workdir {text!r} is no folder; make it first", workdir=text)
    try:
        real.encode()
    except UnicodeEncodeError:
        raise SpawnError(f"the workdir {text!r} is not UTF-8; use another folder") from None
    return real


def region_names(blueprint: Blueprint) -> set[str]:
    """The regions of a blueprint and of its stages, those that every agent has included."""
    names = {region.name for region in blueprint.regions}
    for stage in blueprint.stages:
        names.update(region.name for region in stage.regions or ())
    return names


def _check_regions(request: SpawnRequest, blueprint: Blueprint) -> None:
    names = region_names(blueprint)
    keys = {
        region.seed.key
        for region in blueprint.regions
        if region.seed is not None and region.seed.kind in ("input", "caller")
    }
    for name, text in request.regions.items():
        if name not in names and name not in keys:
            known = ", ".join(sorted(names))
            raise SpawnError(f"{blueprint.name} has no region {name!r}; it has {known}")
        if len(text.encode("utf-8", "replace")) > REGION_INPUT_BYTES_MAX:
            raise SpawnError(
                f"the input of region {name!r} is over {REGION_INPUT_BYTES_MAX:,} bytes"
            )


def _output(given: dict[str, object] | None) -> str | None:
    if given is None:
        return None
    try:
        text = msgspec.json.encode(given).decode()
        msgspec.json.decode(text, type=OutputSpec)
    except (msgspec.MsgspecError, TypeError, UnicodeEncodeError) as error:
        raise ConfigError(f"the output request cannot be used: {error}") from None
    return text
