"""Torture: crash images, failing calls and random histories, counted against the invariants.

Whoever asks gets cases one by one, with what each of them broke; nothing here prints, and nothing
is raised for a breach. A scenario's processes, threads and files are real; its disk is the one that
records and fails, its clock is moved by hand.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Literal

import trio
from msgspec import Struct, field

from leviath.components.errors import ConfigError, DiskFull, LevError, StorageError
from leviath.simulation.acts import acts_of, told
from leviath.simulation.checkers import NAMES, Breach, Breached
from leviath.simulation.disk import CallKind, Fault, Recording, RecordingDisk, RecordingFileSystem
from leviath.simulation.histories import play, search
from leviath.simulation.images import Images, finish
from leviath.simulation.model_host import Plants
from leviath.simulation.scenario import Book, write_folder
from leviath.simulation.telling import Disk, Said, tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leviath.simulation.scenario import Scenario
    from leviath.simulation.torture_cast import Cast

CALLS: Final[tuple[CallKind, ...]] = ("create", "write", "sync", "truncate", "rename", "delete")
Failing = Literal["enospc", "eio"]
FAILURES: Final[tuple[Failing, ...]] = ("enospc", "eio")
Plant = Literal["", "sync", "journal", "file", "outcome"]
PLANTS: Final[tuple[Plant, ...]] = ("sync", "journal", "file", "outcome")
"""Faults to see torture find: a sync skipped, a journal row dropped, a run file that is there
before its step, an outcome applied twice."""
_PLANTED_SYNC: Final = 14
"""Which sync of a scenario is skipped or late: past the making of the home."""
_IN_HISTORIES: Final = {
    "": Plants(),
    "sync": Plants(lost_commit=4),
    "journal": Plants(lost_row=4),
    "file": Plants(early_file=1),
    "outcome": Plants(twice=2),
}
_IN_IMAGES: Final = {
    "sync": (Fault("sync", _PLANTED_SYNC, "skip", 2),),
    "file": (Fault("sync", _PLANTED_SYNC, "late", 8),),
}
_vfs_numbers = itertools.count()


class Case(Struct, frozen=True):
    """One crash, failing call or history, and what it broke."""

    phase: str
    """images, enospc, eio or histories."""
    name: str
    breach: Breach | None = None
    repeat: tuple[str, ...] = ()
    """Arguments of ``lev torture`` that repeat it, behind those that name the scenario."""
    note: tuple[str, ...] = ()
    """Of a failing history: the acts that are left after shrinking."""


class Phase(Struct):
    """A row of the table."""

    name: str
    cases: int = 0
    breaches: dict[str, int] = field(default_factory=lambda: dict.fromkeys(NAMES, 0))

    def count(self, case: Case) -> None:
        """Take in a case."""
        self.cases += 1
        if case.breach is not None:
            self.breaches[case.breach.invariant] += 1


class FaultAt(Struct, frozen=True):
    """The nth call of a kind fails."""

    kind: CallKind
    nth: int
    failure: Failing

    def __str__(self) -> str:
        return f"{self.kind}:{self.nth}:{self.failure}"


class Told(Struct, frozen=True):
    """A scenario that was played on a sound disk, with what was recorded and said."""

    recording: Recording
    said: Said
    book: Book


@contextmanager
def _disk(home: Path, *faults: Fault) -> Generator[tuple[Recording, Disk]]:
    home.mkdir(mode=0o700, parents=True)
    recording = Recording(home, syncs=False)
    vfs = RecordingDisk(f"leviath-torture-{next(_vfs_numbers)}", recording)
    files = RecordingFileSystem(recording)
    recording.arm(*faults)
    try:
        yield recording, Disk("full", vfs.name, files, lambda: recording.position)
    finally:
        recording.arm()
        vfs.unregister()


class Torture:
    """A scenario to be tortured, in a temporary folder that goes with ``close``."""

    def __init__(self, scenario: Scenario, *, plant: Plant = "") -> None:
        self.scenario = scenario
        self.plant = plant
        self._scratch = TemporaryDirectory(prefix="leviath-torture-")
        self._place = Path(self._scratch.name).resolve()
        self._told: Told | None = None
        self.continued: int = 0
        """Crash images that were driven to their end."""

    def close(self) -> None:
        """Remove everything that was made."""
        self._scratch.cleanup()

    def told(self) -> Told:
        """The scenario as it goes without a crash. Raises LevError when it does not."""
        if self._told is None:
            write_folder(self.scenario.work, self._place / "told" / "work")
            home = self._place / "told" / "home"
            with _disk(home, *_IN_IMAGES.get(self.plant, ())) as (recording, disk):
                book = Book(
                    self._place / "told" / "work", home / "runs", lambda: recording.position
                )
                said = Said()
                trio.run(tell, self.scenario, home, book, said, disk)
            said.read_back(home)
            self._told = Told(recording, said, book)
        return self._told

    # --- crashes --------------------------------------------------------------------------------

    def images(self) -> Iterator[Case]:
        """A case for every crash image of every write and sync. Raises LevError, see ``told``."""
        told = self.told()
        log = told.recording.log
        checked = Images(self.scenario, told.said, told.book, log, self._place / "image")
        for number, image in enumerate(told.recording.crash_images()):
            breach: Breach | None = None
            try:
                checked.check(number, image, drop_row=self.plant == "journal")
            except Breached as error:
                breach = error.breach
            name = f"crash after operation {image.position} of {len(log)}, image {number}"
            yield Case("images", name, breach, ("--only", "images"))
            self.continued = checked.continued

    # --- failing calls --------------------------------------------------------------------------

    def faults(self, *, most: int | None) -> list[FaultAt]:
        """Calls that shall fail: all of the scenario's, or about ``most`` of each kind, spread."""
        chosen: list[FaultAt] = []
        for kind in CALLS:
            count = self.told().recording.calls[kind]
            stride = 1 if most is None else max(1, -(-count // most))
            for nth in range(1, count + 1, stride):
                chosen += [FaultAt(kind, nth, failure) for failure in FAILURES]
        return chosen

    def fault(self, at: FaultAt) -> Case:
        """Play the scenario while one call fails, then go on where it stopped on a sound disk."""
        breach: Breach | None = None
        try:
            self._play_over(at)
        except Breached as error:
            breach = error.breach
        return Case(at.failure, f"{at.kind} {at.nth}", breach, ("--fault", str(at)))

    def _play_over(self, at: FaultAt) -> None:
        told = self.told()
        place = self._place / "fault"
        shutil.rmtree(place, ignore_errors=True)
        home = place / "home"
        write_folder(self.scenario.work, place / "work")
        said = Said()
        with _disk(home, Fault(at.kind, at.nth, at.failure)) as (recording, disk):
            book = Book(place / "work", home / "runs", lambda: recording.position)
            try:
                trio.run(tell, self.scenario, home, book, said, disk)
            except (DiskFull, StorageError) as error:
                if at.failure == "eio" and isinstance(error, DiskFull):
                    raise Breached(
                        "rules", f"an I/O error is taken for a full disk: {error}"
                    ) from None
            except LevError as error:
                raise Breached("rules", f"a failing {at.kind} ends in {error!r}") from error
            end = recording.position
        heard = {number for _, number in said.heard}
        made = book.made_by(end)
        finish(self.scenario, home, book.place, book.states[-1][1], told.said, made)
        after = Said()
        after.read_back(home)
        known = after.steps[-1][0] if after.steps else 0
        if heard and max(heard) > known:
            raise Breached("steps", f"event {max(heard)} was heard, and {known} is the newest")


def failing_call(text: str) -> FaultAt:
    """The call that ``KIND:N:FAILURE`` names, as in ``write:17:eio``. Raises ConfigError."""
    kind, _, rest = text.partition(":")
    number, _, failure = rest.partition(":")
    kinds: dict[str, CallKind] = {name: name for name in CALLS}
    failures: dict[str, Failing] = {name: name for name in FAILURES}
    if kind not in kinds or failure not in failures or not (number.isascii() and number.isdigit()):
        raise ConfigError(
            f"{text!r} names no failing call; write KIND:N:FAILURE, such as write:17:eio, with "
            f"{', '.join(CALLS)} and {' or '.join(FAILURES)}"
        )
    return FaultAt(kinds[kind], int(number), failures[failure])


def history(
    cast: Cast, seed: int, *, plant: Plant = "", places: Sequence[int] | None = None
) -> Case:
    """A case for the random history of a seed, shrunk when it breaks an invariant.

    With ``places`` only those of its acts are played, and nothing is shrunk.
    """
    acts = acts_of(seed)
    plants = _IN_HISTORIES[plant]
    if places is not None:
        breach = play(cast, seed, [acts[place] for place in places], plants).breach
        return Case("histories", f"seed {seed}", breach)
    _, failure = search(cast, seed, plants)
    if failure is None:
        return Case("histories", f"seed {seed}")
    kept = failure.places
    repeat = ("--seed", str(seed), "--acts", ",".join(map(str, kept)))
    lines = tuple(f"{place}: {told(acts[place])}" for place in kept)
    return Case("histories", f"seed {seed}", failure.breach, repeat, lines)
