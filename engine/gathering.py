"""Reading what a run needs before it starts: the files that seed its regions, confined to its
workdir and cut to size."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from leviath.components.clean import clean_text, cut_utf8
from leviath.components.inputs import Gathered
from leviath.engine.limits import SEED_FILE_BYTES_MAX, SEED_FILES_MAX
from leviath.engine.redaction import NOTHING_KNOWN

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from leviath.components.commands import Gather
    from leviath.components.text import Text
    from leviath.engine.outside import Outside
    from leviath.engine.redaction import Redactor


def gather(
    workdir: str,
    seeds: tuple[tuple[str, str, tuple[str, ...]], ...],
    redactor: Redactor = NOTHING_KNOWN,
) -> list[tuple[str, list[str]]]:
    """Per region, the texts of its files, each headed by its path. Runs in a thread.

    A file outside the workdir, after symlinks, is left out and said so. Raises OSError for a named
    file that is not there and for a workdir that is gone.
    """
    root = Path(os.path.realpath(workdir, strict=True))
    found: list[tuple[str, list[str]]] = []
    for region, kind, patterns in seeds:
        texts: list[str] = []
        for path in _paths(root, kind, patterns):
            if len(texts) >= SEED_FILES_MAX:
                texts.append(f"[more than {SEED_FILES_MAX} files match; the rest was left out]")
                break
            texts.append(_read(root, path, redactor))
        found.append((region, texts))
    return found


def _paths(root: Path, kind: str, patterns: tuple[str, ...]) -> Iterator[Path]:
    for pattern in patterns:
        if kind == "glob":
            yield from sorted(path for path in root.glob(pattern) if path.is_file())
        else:
            yield root / pattern


def _read(root: Path, path: Path, redactor: Redactor) -> str:
    real = Path(os.path.realpath(path, strict=True))
    name = os.path.relpath(path, root)
    if not real.is_relative_to(root):
        return f"[{clean_text(name)} lies outside the working directory and was left out]"
    with real.open("rb") as file:
        data = file.read(SEED_FILE_BYTES_MAX + 1)
    text = clean_text(data.decode("utf-8", "replace"))
    if len(data) > SEED_FILE_BYTES_MAX:
        # The cut might go through a secret, of which a part would stay.
        text = cut_utf8(redactor.head(text), SEED_FILE_BYTES_MAX)
        text += f"\n[cut at {SEED_FILE_BYTES_MAX} bytes]"
    return f"## {clean_text(name)}\n{text}"


class GatherJob:
    """Reading what a run needs before its first stage."""

    __slots__ = ("command", "done", "key", "outside")

    def __init__(self, outside: Outside, command: Gather) -> None:
        self.outside: Outside = outside
        self.done: bool = False
        self.command: Gather = command
        self.key: Hashable = (command.run, command.effect)

    async def perform(self) -> None:
        """Read in a thread and post what was found."""
        command = self.command
        try:
            found = await trio.to_thread.run_sync(
                gather,
                command.workdir,
                command.seeds,
                self.outside.texts.redactor,
                abandon_on_cancel=True,
            )
        except trio.Cancelled:
            self.abandoned()
            raise
        except OSError as error:
            lost = not os.path.isdir(command.workdir)  # noqa: ASYNC240 - one stat, after a failure
            reason = error.strerror or type(error).__name__
            what = self.outside.texts.clean(f"{error.filename}: {reason}")
            self._post((), what, lost)
            return
        texts = self.outside.texts
        regions = tuple(
            (name, tuple(texts.intern(text) for text in bodies)) for name, bodies in found
        )
        self._post(regions, "", False)

    def abandoned(self) -> None:
        """Post that reading took too long or was broken off."""
        self._post((), f"reading its seeds took longer than {self.command.timeout_ms} ms", False)

    def _post(
        self,
        regions: tuple[tuple[str, tuple[Text, ...]], ...],
        error: str,
        lost: bool,  # noqa: FBT001 - private, and named where it is passed
    ) -> None:
        if self.done:
            return
        self.done = True
        command = self.command
        self.outside.post(
            Gathered(command.run, command.effect, command.attempt, regions, error, lost)
        )
