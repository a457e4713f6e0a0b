"""The border of a fork: the other run's state is read and everything is checked before anything
exists."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import trio
from msgspec import Struct

from leviath.components.blueprint import decode_blueprint
from leviath.components.errors import ConfigError, Damaged, DocumentError, SpawnError
from leviath.components.identity import Identity, Launch
from leviath.components.inputs import Fork
from leviath.components.parts import RUN_PARTS
from leviath.components.run_id import check_run_id
from leviath.engine import arguments
from leviath.engine.spawn_request import check_agent
from leviath.engine.spawning import check_key, folder_of
from leviath.persistence.exporting import digests_in
from leviath.persistence.history import History
from leviath.persistence.saved import open_saved

if TYPE_CHECKING:
    from collections.abc import Callable

    from leviath.components.blueprint import Blueprint
    from leviath.engine.outside import Outside
    from leviath.engine.redaction import Redactor
    from leviath.engine.spawn_request import Agent
    from leviath.engine.spawning import Agents
    from leviath.systems.world import World

    Make = Callable[[int, Outside, World], Fork]

_encode = msgspec.msgpack.encode


class ForkRequest(Struct, frozen=True):
    """What a caller asks for; see ``OpenWorld.fork``."""

    run_id: str
    at: int
    workdir: str | os.PathLike[str]
    source: str | os.PathLike[str] | None
    blueprint: Agent | None
    key: str
    new_run_id: str


class Origin(Struct, frozen=True):
    """The other run at the step, and the texts that its parts name."""

    world_id: str
    run_id: str
    world_ms: int
    identity: Identity
    launch: Launch
    parts: tuple[tuple[str, bytes], ...]
    bodies: tuple[bytes, ...]
    blueprint: bytes
    """Its blueprint's bytes."""


async def prepare_fork(
    request: ForkRequest, agents: Agents, redactor: Redactor, home: Path | None
) -> Make:
    """Check everything and read the other run's state in a thread; returns what makes the input.

    Raises what ``OpenWorld.fork`` raises. Cancelled: nothing was done.
    """
    run_id = arguments.text("run_id", request.run_id, remedy="pass the id of a run")
    at = arguments.number("at", request.at, 0, arguments.NUMBER_MAX)
    check_key(request.key)
    if arguments.text("new_run_id", request.new_run_id, remedy='pass a str; "" is none'):
        check_run_id(request.new_run_id)
    if request.source is None:
        raise ConfigError("a world in memory keeps no history to fork from; pass source=")
    workdir = folder_of(request.workdir)
    source = Path(request.source)
    given = None if request.blueprint is None else check_agent(request.blueprint)
    for what, text in (("workdir", workdir), ("key", request.key)):
        if redactor.knows(text):
            raise SpawnError(f"the {what} has the value of a known secret in it; use another")

    def look() -> Make:
        is_own = home is not None and source.resolve() == home.resolve()
        origin = origin_of(source, run_id, at, with_texts=not is_own)
        _refuse_secrets(origin, redactor)
        if given is None:
            blueprint, body = _blueprint_of(origin), origin.blueprint
            digest, name = origin.launch.blueprint, origin.identity.agent_name
            path = origin.identity.agent_path
        else:
            checked = agents.check(given)
            blueprint, body, digest = checked.blueprint, checked.body, checked.digest
            name, path = blueprint.name, checked.agent_path
            if redactor.knows(body.decode(errors="replace")):
                raise SpawnError("the blueprint has the value of a known secret in it")

        def make(ticket: int, outside: Outside, world: World) -> Fork:
            world.blueprints.setdefault(digest, blueprint)
            for text in (body, *origin.bodies):
                outside.texts.keep(text)
            return Fork(
                ticket,
                origin.parts,
                origin.world_id,
                origin.run_id,
                at,
                origin.world_ms,
                name,
                outside.texts.clean(path),
                workdir,
                digest,
                request.key,
                request.new_run_id,
            )

        return make

    return await trio.to_thread.run_sync(look, abandon_on_cancel=True)


def origin_of(source: Path, run: str, at: int, *, with_texts: bool = True) -> Origin:
    """The run as it was after that step. Reads files: call it in a thread.

    Raises RunNotFound, ConfigError, Damaged, StorageError; SpawnError when it was not there then.
    """
    with open_saved(source) as saved:
        history = History(saved)
        run_id, owner = history.find(run)
        state = history.at(at)
        row = state.owners.get(owner, {})
        identity, launch = row.get(Identity), row.get(Launch)
        if not isinstance(identity, Identity) or not isinstance(launch, Launch):
            raise SpawnError(
                f"{run_id} was not there after step {at}; `lev why` tells the steps that it has",
                run_id=run_id,
            )
        parts = tuple((kind.__name__, _encode(row[kind])) for kind in RUN_PARTS if kind in row)
        bodies: dict[bytes, bytes] = {}
        for _, part in parts if with_texts else ():
            for digest, is_text in digests_in(msgspec.msgpack.decode(part)):
                body = saved.entry(digest)
                if body is not None:
                    bodies[digest] = body
                elif is_text:
                    raise _missing(source, "text", digest)
        blueprint = saved.entry(launch.blueprint)
        if blueprint is None:
            raise _missing(source, "blueprint", launch.blueprint)
        return Origin(
            saved.world_id,
            run_id,
            state.world_ms,
            identity,
            launch,
            parts,
            tuple(bodies.values()),
            blueprint,
        )


def _missing(source: Path, what: str, digest: bytes) -> Damaged:
    return Damaged(
        f"{source}: the {what} {digest.hex()} is missing; take the saved world from a copy",
        digest=digest.hex(),
    )


def _blueprint_of(origin: Origin) -> Blueprint:
    try:
        return decode_blueprint(origin.blueprint)
    except DocumentError as error:
        raise Damaged(f"the blueprint of {origin.run_id} cannot be read: {error}") from None


def _refuse_secrets(origin: Origin, redactor: Redactor) -> None:
    """A text from elsewhere is kept under its digest, so it cannot be shown without a secret."""
    pieces = (*origin.bodies, *(body for _, body in origin.parts))
    if any(redactor.knows(piece.decode(errors="replace")) for piece in pieces):
        raise SpawnError(
            f"the state of {origin.run_id} has the value of a known secret in it; fork it in a "
            "world that does not know that secret"
        )
