"""What a power cut left of a home, held against what had been said before it.

Every image is opened and looked at. Those that differ in what is durable, in what the outside had
done, or in the working folder are then driven to their end, which has to be the end of the run that
nothing happened to.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

import trio

from leviath.components.errors import LevError
from leviath.engine.clock import ManualClock
from leviath.engine.file_thread import file_digest
from leviath.engine.opening import open_home
from leviath.persistence.database import open_database
from leviath.simulation.checkers import Breached, check_caches, check_runs, check_totals
from leviath.simulation.disk_log import Exchange, Found, Link, Rename, Truncate, Write, materialise
from leviath.simulation.scenario import Book, Outside, write_folder
from leviath.simulation.telling import Disk, Said, tell

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from leviath.engine.opening import Opened
    from leviath.persistence.rows import MirrorRow
    from leviath.simulation.disk_log import CrashImage, Operation
    from leviath.simulation.scenario import Scenario

MIRRORED: Final = ("meta.json", "context.json", "stages.json", "final_output", "state.lev")
Key = tuple[bytes, frozenset[str], int]
"""Digest of the newest durable step, calls of `once` tools made by then, working folder."""


class Versions:
    """Every version that a run file had, in order, from the record of a disk."""

    def __init__(self, log: Sequence[Operation]) -> None:
        self._of: dict[str, list[bytes]] = {}
        names: dict[str, int] = {}
        data: dict[int, bytearray] = {}
        for operation in log:
            match operation:
                case Found(file, name, found):
                    names[name], data[file] = file, bytearray(found)
                case Link(file, name):
                    names[name], data[file] = file, bytearray()
                case Write(file, offset, written):
                    data[file][offset : offset + len(written)] = written
                case Truncate(file, length):
                    del data[file][length:]
                case Rename(old, new):
                    names[new] = names.pop(old)
                    self._note(new, data[names[new]])
                case Exchange(one, other):
                    names[one], names[other] = names[other], names[one]
                    self._note(other, data[names[other]])
                case _:
                    pass

    def _note(self, name: str, body: bytearray) -> None:
        if name.startswith("runs/"):
            self._of.setdefault(name, []).append(file_digest(bytes(body)))

    def is_newer(self, name: str, found: bytes, row: MirrorRow | None) -> bool:
        """Whether a file holds a version that its row does not vouch for yet."""
        digest = file_digest(found)
        known = self._of.get(name, [])
        if digest not in known or (row is not None and digest == row.after):
            return False
        if row is None:
            return True
        before = len(known) - 1 - known[::-1].index(row.before) if row.before in known else -1
        return known.index(digest) > before


class Images:
    """The crash images of one told scenario, below a folder of their own."""

    def __init__(
        self, scenario: Scenario, said: Said, book: Book, log: Sequence[Operation], place: Path
    ) -> None:
        self._scenario = scenario
        self._said = said
        self._book = book
        self._versions = Versions(log)
        self._place = place
        self._seen: set[Key] = set()
        self.continued: int = 0

    def check(self, number: int, image: CrashImage, *, drop_row: bool = False) -> None:
        """Look at one image, and drive it on if none was like it. Raises Breached.

        ``drop_row`` plants the loss of the newest row of its journal.
        """
        home = self._place / "home"
        shutil.rmtree(home, ignore_errors=True)
        materialise(image, home)
        if drop_row:
            _drop_newest_row(home)
        step, digest = trio.run(self._look, home, image)
        for at in dict.fromkeys(self._book.states_at(image.position)):
            key = (digest, self._book.made_by(image.position), at)
            if step and key not in self._seen:
                self._seen.add(key)
                self._go_on(home, image, self._book.states[at][1])
                shutil.rmtree(home)
                materialise(image, home)

    # --- looking --------------------------------------------------------------------------------

    async def _look(self, home: Path, image: CrashImage) -> tuple[int, bytes]:
        try:
            found = await open_home(home, durability="process", clock=ManualClock(), seed=None)
        except LevError as error:
            raise Breached("readable", f"the home does not open: {error}") from error
        try:
            self._check_files(found, image)
            self._check_promises(found, image)
            check_runs(found.world, list(found.world.owners()))
            check_caches(found.world, found.caches)
            self._check_ledger(found)
            return found.loaded.step, found.loaded.digest
        finally:
            found.release()

    def _check_promises(self, found: Opened, image: CrashImage) -> None:
        step, least = found.loaded.step, self._said.acknowledged(image.position)
        if step < least:
            raise Breached("steps", f"step {least} was acknowledged, and {step} is the newest")
        if step and found.loaded.digest != self._said.digests.get(step):
            raise Breached("steps", f"step {step} is not the one that was told")
        if found.loaded.quarantined:
            raise Breached("readable", f"quarantined: {found.loaded.quarantined}")
        for folder in found.findings.unreadable:
            raise Breached("readable", f"{folder.folder}: {folder.reason}")

    def _check_files(self, found: Opened, image: CrashImage) -> None:
        assert found.reader is not None
        for run_id, ordinal in found.world.by_run_id.items():
            rows = {row.file: row for row in found.reader.mirror_rows(ordinal)}
            for name in MIRRORED:
                path = f"runs/{run_id}/{name}"
                data = image.files.get(path)
                if data is not None and self._versions.is_newer(path, data, rows.get(name)):
                    raise Breached("files", f"{path} tells of a step after {found.loaded.step}")

    def _check_ledger(self, found: Opened) -> None:
        assert found.reader is not None
        world, step = found.world, found.loaded.step
        ledger = {n: found.reader.ledger(n) for n in world.owners()}
        for n, rows in ledger.items():
            told = [row for row in self._said.ledger.get(n, []) if row.step <= step]
            if rows != told:
                raise Breached("totals", f"run {n}: {len(rows)} calls, {len(told)} were told of")
        check_totals(world, list(world.owners()), ledger)

    # --- going on -------------------------------------------------------------------------------

    def _go_on(self, home: Path, image: CrashImage, outside: Outside) -> None:
        self.continued += 1
        happened = self._book.made_by(image.position)
        finish(self._scenario, home, self._book.place, outside, self._said, happened)


def finish(
    scenario: Scenario,
    home: Path,
    work: Path,
    outside: Outside,
    said: Said,
    happened: frozenset[str],
) -> None:
    """Drive a home to its end on a sound disk, and compare. Raises Breached."""
    shutil.rmtree(work, ignore_errors=True)
    write_folder(outside.work, work)
    write_folder(outside.spill, home / "runs")
    now = Said()
    try:
        trio.run(tell, scenario, home, Book(work), now, Disk(), happened)
    except LevError as error:
        raise Breached("readable", f"the home cannot be driven on: {error}") from error
    for run_id, ending in said.endings.items():
        ours = now.endings[run_id]
        if ours.status != ending.status:
            raise Breached(
                "stuck", f"{run_id} ends {ours.status} ({ours.error}) and not {ending.status}"
            )
        if ours != ending:
            raise Breached("totals", f"{run_id}: {ours}, without a crash {ending}")
    _check_written(home, said.endings)


def _check_written(home: Path, run_ids: Iterable[str]) -> None:
    """Every run's files are those of its rows, now that all is over."""
    with open_database(home / "world.db", level="process", read_only=True) as reader:
        for run_id in run_ids:
            row = reader.run_by_id(run_id)
            if row is None:
                raise Breached("readable", f"{run_id} is in no listing")
            for mirror in reader.mirror_rows(row.ordinal):
                file = home / "runs" / run_id / mirror.file
                if not file.is_file() or file_digest(file.read_bytes()) != mirror.after:
                    raise Breached("readable", f"{run_id}/{mirror.file} is not what its row says")


def _drop_newest_row(home: Path) -> None:
    """A planted fault: the store loses the newest row of its journal."""
    with open_database(home / "world.db", level="process") as database:
        if database.world() is not None:
            database.connection.execute(
                "delete from journal where step = (select max(step) from journal)"
            )


__all__ = ["Images", "Versions", "finish"]
