"""Finding the blueprint of an agent that another agent names.

By name: among the agents that the host was opened with, then the folder ``agents`` of the home,
then the folder that holds the asking agent's own. By path: anywhere outside of the working
directory, because an agent must not run what it could have written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio
from msgspec import Struct

from leviath.components.errors import LevError, SpawnError
from leviath.components.inputs import AgentFound
from leviath.engine.blueprints import MANIFEST_NAME
from leviath.engine.limits import AGENTS_SEARCHED_MAX, ERROR_TEXT_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from leviath.components.commands import FindAgent
    from leviath.engine.outside import Outside
    from leviath.engine.spawn_request import Agent
    from leviath.engine.spawning import Agents, Checked

_SEPARATORS: Final = tuple(filter(None, (os.sep, os.altsep)))


class AgentFinder(Struct):
    """Where the agents of one host are. ``find`` reads files: call it in a thread."""

    agents: Agents
    home: Path | None
    """The folder of the home; None for a world in memory."""
    offered: Sequence[Agent] = ()
    """What the host was opened with."""

    def find(self, command: FindAgent) -> Checked:
        """The checked blueprint. Raises SpawnError or BlueprintError."""
        if not command.wanted.strip():
            raise SpawnError("the agent has no name; give the name of one that is installed")
        if command.is_query:
            return self._query(command)
        if any(separator in command.wanted for separator in _SEPARATORS):
            return self._at_path(command)
        return self._named(command)

    def _named(self, command: FindAgent) -> Checked:
        wanted = command.wanted
        if wanted in (".", ".."):
            raise SpawnError(f"agent {wanted!r} is no name; give one that is installed")
        for agent in self.offered:
            checked = self.agents.check(agent)
            if wanted == checked.blueprint.name:
                return checked
        for folder in self._folders(command):
            place = folder / wanted
            if (place / MANIFEST_NAME).is_file():
                return self._checked(place, command)
        names = ", ".join(sorted({name for name, _ in self._installed(command)})[:20])
        raise SpawnError(f"no agent called {wanted!r} is installed; there are: {names or 'none'}")

    def _at_path(self, command: FindAgent) -> Checked:
        place = Path(command.wanted)
        if not place.is_absolute() and not command.agent_path:
            raise SpawnError(f"agent {command.wanted!r} is a relative path; give a whole one")
        return self._checked(Path(command.agent_path) / place, command)

    def _query(self, command: FindAgent) -> Checked:
        words, why = command.wanted.lower(), ""
        for name, agent in sorted(self._installed(command), key=lambda item: item[0]):
            try:
                checked = self._checked(agent, command)
            except LevError as error:
                why = f"; {error}"
                continue
            blueprint = checked.blueprint
            if words in name.lower() or words in blueprint.description.lower():
                return checked
        what = f"no installed agent's name or description has {command.wanted!r} in it"
        raise SpawnError(what + why)

    def _folders(self, command: FindAgent) -> Iterator[Path]:
        if self.home is not None:
            yield self.home / "agents"
        if command.agent_path:
            yield Path(command.agent_path).parent

    def _installed(self, command: FindAgent) -> Iterator[tuple[str, Agent]]:
        for agent in self.offered:
            yield self.agents.check(agent).blueprint.name, agent
        for folder in self._folders(command):
            try:
                names = sorted(os.listdir(folder))[:AGENTS_SEARCHED_MAX]
            except OSError:
                continue
            for name in names:
                if (folder / name / MANIFEST_NAME).is_file():
                    yield name, folder / name

    def _checked(self, agent: Agent, command: FindAgent) -> Checked:
        if isinstance(agent, str | os.PathLike):
            _refuse_own_writing(os.fspath(agent), command.workdir)
        return self.agents.check(agent)


def _refuse_own_writing(path: str, workdir: str) -> None:
    """Raise SpawnError for a blueprint, or a link to one, that lies where the asking agent writes.

    Looked at as it is written and as it really is: a link out of the workdir is the agent's own.
    """
    root = os.path.realpath(workdir)
    file = os.path.join(path, MANIFEST_NAME) if os.path.isdir(path) else path
    for place in (os.path.abspath(path), os.path.realpath(path), os.path.realpath(file)):
        if place == root or place.startswith(root.rstrip(os.sep) + os.sep):
            raise SpawnError(
                f"agent {path!r} lies in the working directory, where you could have written it; "
                "use one that is installed"
            )


class AgentJob:
    """One look-up of a blueprint."""

    __slots__ = ("command", "done", "key", "outside")

    def __init__(self, outside: Outside, command: FindAgent) -> None:
        self.outside: Outside = outside
        self.command: FindAgent = command
        self.done: bool = False
        self.key: Hashable = (command.run, command.effect)

    async def perform(self) -> None:
        """Look in a thread and post what was found."""
        finder = self.outside.finder
        assert finder is not None, "set by who opened the world"
        try:
            checked = await trio.to_thread.run_sync(
                finder.find, self.command, abandon_on_cancel=True
            )
        except trio.Cancelled:
            self.abandoned()
            raise
        except LevError as error:
            self._post(error=str(error))
        except OSError as error:
            self._post(error=f"{error.filename}: {error.strerror or type(error).__name__}")
        else:
            self._found(checked)

    def _found(self, checked: Checked) -> None:
        texts = self.outside.texts
        if texts.redactor.knows(checked.body.decode(errors="replace")):
            self._post(error="the blueprint has the value of a known secret in it")
            return
        self.outside.blueprints.setdefault(checked.digest, checked.blueprint)
        texts.keep(checked.body)
        command = self.command
        if not self.done:
            self.done = True
            self.outside.post(
                AgentFound(
                    command.run,
                    command.effect,
                    command.attempt,
                    checked.digest,
                    checked.blueprint.name,
                    texts.clean(checked.agent_path),
                    checked.no_output_tools,
                    len(checked.blueprint.read_paths) or None,
                )
            )

    def abandoned(self) -> None:
        """Post that looking took too long or was broken off."""
        self._post(error=f"looking the agent up took longer than {self.command.timeout_ms} ms")

    def _post(self, *, error: str) -> None:
        if self.done:
            return
        self.done = True
        command = self.command
        text = self.outside.texts.clean(error)[:ERROR_TEXT_BYTES_MAX]
        self.outside.post(AgentFound(command.run, command.effect, command.attempt, error=text))
