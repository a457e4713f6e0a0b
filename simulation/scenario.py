"""A scenario for torture: agents, a model that answers alike each time, tools, a working folder.

``Book`` is what the outside knows of it: which calls were made when, and what the working folder
held. A crash does not undo what a tool did, so every image of the disk is met by the folder as it
was then.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from leviath.components.errors import ConfigError
from leviath.engine.tools import Tool, ToolCall, as_tools, builtin_tools, tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from leviath.components.blueprint import Blueprint
    from leviath.engine.ports import Provider
    from leviath.engine.tools import ToolResult

WORK_FILES_MAX: Final = 256
"""Files of a scenario's working folder: each crash image gets all of them."""
WORK_BYTES_MAX: Final = 16 * 1024 * 1024
_DEMO: Final = Path(__file__).resolve().parent / "demo"
_SCRIPT_START: Final = b"#!"

Folder = dict[str, bytes]
"""Files of a working folder by relative name."""


class Scenario(Struct, frozen=True):
    """What is played, again and again."""

    name: str
    agent: Blueprint | str
    """A blueprint, or where it is."""
    task: str
    work: Folder
    providers: Callable[[], list[Provider]]
    """Fresh providers: what they answer may depend on nothing but the request."""
    tools: tuple[Tool, ...] = ()
    """All of them, leviath's own included."""
    runs: int = 1


@tool(effect="pure")
def count_words(call: ToolCall, path: str) -> int:
    """Count the words of a file of the working folder."""
    return len(Path(call.workdir, path).read_text(encoding="utf-8").split())


def demo(model: Callable[[str], Provider]) -> Scenario:
    """The demonstration: an agent of three stages corrects a report and sends it, once.

    ``model`` makes a provider of the path of a script, as ``leviath.Scripted`` does.
    """
    return Scenario(
        "demo",
        str(_DEMO / "agents" / "proofreader"),
        "Correct report.txt and send it",
        read_folder(_DEMO / "work"),
        lambda: [model(str(_DEMO / "replies.toml"))],
        (*builtin_tools(), count_words),
    )


def scenario_of(
    agent: str,
    *,
    task: str,
    work: str | os.PathLike[str] | None,
    providers: Callable[[], list[Provider]],
    tools: Iterable[Tool | Callable[..., object]] = (),
) -> Scenario:
    """A host's own scenario. Raises ConfigError for a working folder that is too large."""
    folder: Folder = {} if work is None else read_folder(Path(work))
    own = (*builtin_tools(), *as_tools(list(tools)))
    return Scenario(Path(agent).name or "agent", agent, task, folder, providers, own)


def read_folder(place: Path) -> Folder:
    """The files below a folder. Raises ConfigError when it is too large to be copied so often."""
    found: Folder = {}
    size = 0
    for inside, _, names in os.walk(place):
        for name in sorted(names):
            file = Path(inside, name)
            if not file.is_file() or file.is_symlink():
                continue
            found[str(file.relative_to(place))] = data = file.read_bytes()
            size += len(data)
            if len(found) > WORK_FILES_MAX or size > WORK_BYTES_MAX:
                raise ConfigError(
                    f"the working folder {place} has more than {WORK_FILES_MAX} files or "
                    f"{WORK_BYTES_MAX // 1024 // 1024} MiB; torture copies it for every crash: "
                    "name a smaller one"
                )
    return found


def write_folder(files: Mapping[str, bytes], place: Path) -> None:
    """Put these files below a folder, which is made. Scripts may be executed."""
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, data in files.items():
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        file.chmod(0o700 if data.startswith(_SCRIPT_START) else 0o600)


class Outside(Struct, frozen=True):
    """What tools had left behind at a moment."""

    work: Folder
    """The working folder."""
    spill: Folder
    """Drafts and long results of tools, by their names below ``runs``: tools write these
    themselves, and what they promise rests on them."""


class Book:
    """What happened outside, and when: positions are those of a disk's record. ``runs`` is where
    the home has its run folders."""

    def __init__(
        self, place: Path, runs: Path | None = None, position: Callable[[], int] | None = None
    ) -> None:
        self.place = place
        self._runs = runs
        self.busy: int = 0
        """Calls that are being made."""
        self.made: list[tuple[int, str]] = []
        """(position, idempotency key) of each call of a `once` tool."""
        self.states: list[tuple[int, Outside]] = []
        """(position, what tools had left) before and after each call of any tool."""
        self._position = position
        self._mutex = threading.Lock()
        self._note()

    def watched(self, tools: Iterable[Tool]) -> list[Tool]:
        """The same tools, with every call written down."""
        return [_Watched(given, self) for given in tools]

    def begin(self, tool_name: str, key: str, effect: str) -> None:
        """A call is being made."""
        with self._mutex:
            self.busy += 1
            self._note()
            if effect == "once":
                self.made.append((self._now(), key))

    def end(self) -> None:
        """It is over."""
        with self._mutex:
            self.busy -= 1
            self._note()

    def made_by(self, position: int) -> frozenset[str]:
        """Keys of the calls of `once` tools that were made when the disk was there."""
        return frozenset(key for at, key in self.made if at <= position)

    def states_at(self, position: int) -> tuple[int, int]:
        """Places in ``states`` of the first and the last folder that goes with a position.

        While a call is under way nothing tells how much of it was done: either end of it may be.
        """
        after = bisect_right(self.states, position, key=lambda row: row[0])
        last = max(0, after - 1)
        first = last
        while first and self.states[first - 1][0] == self.states[last][0]:
            first -= 1
        return first, last

    def _now(self) -> int:
        return 0 if self._position is None else self._position()

    def _note(self) -> None:
        if self._position is not None:
            self.states.append((self._now(), Outside(read_folder(self.place), self._spill())))

    def _spill(self) -> Folder:
        found: Folder = {}
        if self._runs is not None and self._runs.is_dir():
            for spill in self._runs.glob("*/spill"):
                below = spill.relative_to(self._runs)
                found |= {str(below / name): data for name, data in read_folder(spill).items()}
        return found


class _Watched(Tool):
    """A tool whose calls are written into a book."""

    __slots__ = ("_book", "_inner")

    def __init__(self, inner: Tool, book: Book) -> None:
        for slot in Tool.__slots__:
            setattr(self, slot, getattr(inner, slot))
        self._inner = inner
        self._book = book

    async def call(self, call: ToolCall, arguments: Mapping[str, object]) -> ToolResult:
        """See Tool."""
        self._book.begin(self.name, call.idempotency_key, self.effect)
        try:
            return await self._inner.call(call, arguments)
        finally:
            self._book.end()

    def call_sync(self, call: ToolCall, arguments: Mapping[str, object]) -> ToolResult:
        """See Tool."""
        self._book.begin(self.name, call.idempotency_key, self.effect)
        try:
            return self._inner.call_sync(call, arguments)
        finally:
            self._book.end()
