"""What is found while opening: run folders held against ``world.db``, which is the truth.

Nothing is read that need not be. A file that has its row's length and was not touched since the
last host was alive is taken as it is (decision 010); only the others are read. Folders that the
store does not know are imported or listed; nothing in a folder that cannot be read is touched.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct, field

from leviath.components.errors import Damaged, DocumentError, StorageError
from leviath.engine.file_thread import READ_BYTES_MAX, file_digest
from leviath.engine.run_folders import (
    ImportedRun,
    LoadBlueprint,
    Unreadable,
    blueprint_at,
    read_run_folder,
)
from leviath.persistence.files import REAL, opened_folder, read_file_confined, storage_errors
from leviath.persistence.run_meta import RunMeta
from leviath.persistence.state_file import decode_state

if TYPE_CHECKING:
    from leviath.persistence.files import FileSystem
    from leviath.persistence.reader import Reader

META: Final = "meta.json"
STATE: Final = "state.lev"
_PAGE_RUNS: Final = 512
_SLICE_RUNS: Final = 64
"""Folders between two yields: about a millisecond of stat calls."""
_ASIDE_MAX: Final = 1_000
_STORE_FILES: Final = ("world.db-wal", "world.db-shm", "world.db-journal", "world.db")
"""In the order of moving away: a log must never meet a database that is not its own."""


class Quarantined(Struct, frozen=True):
    """A run of this home that is not hosted, and why."""

    run_id: str
    reason: str


class Rebuilt(Struct, frozen=True):
    """A run that came back from its files, and what these do not tell."""

    run_id: str
    lost: tuple[str, ...]


class RolledBack(Struct, frozen=True):
    """A run whose files are newer than world.db: the store lost steps that had been durable."""

    run_id: str
    step: int
    """The newest step of world.db, from which the run goes on once it is resumed."""
    files_step: int
    """The step of its state.lev, which was set aside."""


class OpenReport(Struct, frozen=True, kw_only=True):
    """What opening a home found and did, by run id or by path below the home."""

    rewritten: tuple[str, ...] = ()
    """Runs whose files were missing, torn or older than world.db, and are written again."""
    imported: tuple[str, ...] = ()
    """Runs whose folders this home did not know."""
    set_aside: tuple[str, ...] = ()
    """Files of others, or of a store that was lost, under the names that they have now."""
    unreadable: tuple[Unreadable, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()
    rebuilt: tuple[Rebuilt, ...] = ()
    """Runs that came back after the loss of world.db, with what each of them lost."""
    rolled_back: tuple[RolledBack, ...] = ()
    """Runs held paused, because world.db lost steps that their files know."""


class Findings(Struct):
    """What ``reconcile`` found; whole once its iterator is used up."""

    rewritten: list[int] = field(default_factory=list[int])
    """Ordinals to project again; ended ones are not resident in the world."""
    rewritten_ids: list[str] = field(default_factory=list[str])
    imports: list[ImportedRun] = field(default_factory=list[ImportedRun])
    """Parents before children."""
    set_aside: list[str] = field(default_factory=list[str])
    unreadable: list[Unreadable] = field(default_factory=list[Unreadable])
    quarantined: list[Quarantined] = field(default_factory=list[Quarantined])
    rolled_back: dict[int, RolledBack] = field(default_factory=dict[int, RolledBack])
    """By ordinal."""
    forgotten: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """(ordinal, run id) of runs that were dropped, whose folders are there, whole or in part."""
    let_go: list[int] = field(default_factory=list[int])
    """Ordinals of dropped runs whose folders are not there any more."""
    rebuilding: bool = False

    def report(self) -> OpenReport:
        """The public form."""
        rebuilt = (Rebuilt(run.run_id, run.lost) for run in self.imports if self.rebuilding)
        return OpenReport(
            rewritten=tuple(self.rewritten_ids),
            imported=tuple(run.run_id for run in self.imports),
            set_aside=tuple(self.set_aside),
            unreadable=tuple(self.unreadable),
            quarantined=tuple(self.quarantined),
            rebuilt=tuple(rebuilt),
            rolled_back=tuple(self.rolled_back.values()),
        )


def set_aside_database(home: Path, *, fs: FileSystem = REAL) -> tuple[str, ...]:
    """Move a damaged world.db with its log out of the way; their new names, below ``home``.

    To be called with the home's lock held and no connection open. Raises StorageError.
    """
    number = 1
    while any((home / _lost(name, number)).exists() for name in _STORE_FILES):
        number += 1
    moved: list[str] = []
    with opened_folder(home, fs) as folder, storage_errors(str(home)):
        for name in _STORE_FILES:
            if os.path.lexists(home / name):
                fs.replace(folder, name, _lost(name, number))
                moved.append(_lost(name, number))
        fs.sync(folder)
    return tuple(moved)


def _lost(name: str, number: int) -> str:
    return f"{name}.lost-{number}"


def reconcile(
    home: Path,
    database: Reader,
    *,
    world_ms: int,
    quarantined: Mapping[int, str] | None = None,
    rebuilding: bool = False,
    load: LoadBlueprint = blueprint_at,
    fs: FileSystem = REAL,
    hosted: Names | None = None,
) -> Iterator[Findings]:
    """Hold the folders below ``home/runs`` against the store; yields between slices.

    To be called by the host that has claimed ``database`` and loaded the world, before anything is
    driven or mirrored. ``world_ms`` is the world's time; ``quarantined`` says which runs the load
    skipped; ``rebuilding`` that the store was lost and every run comes back from its files;
    ``hosted`` how the world calls the runs that were loaded. Files of others are renamed here,
    everything else is left to who takes the findings.

    Raises StorageError when ``runs`` itself cannot be read, and Damaged for an index that calls a
    run otherwise than its state does: the first commit of that run would be refused.
    """
    findings = Findings(rebuilding=rebuilding)
    runs = home / "runs"
    folders: dict[str, bool] = {}
    yield from _list_folders(runs, folders, findings)
    known = _Known(runs, database, quarantined or {}, findings, fs, hosted)
    yield from known.check(folders)
    for ordinal, run_id in database.forgotten():
        # A folder of a run that is known, by now under the same id, was taken out before.
        if folders.get(run_id):
            findings.forgotten.append((ordinal, run_id))
            del folders[run_id]
        else:
            findings.let_go.append(ordinal)
    for count, (name, is_folder) in enumerate(sorted(folders.items())):
        if not is_folder:
            reason = "it is a symbolic link, which is not followed; move the folder itself here"
            findings.unreadable.append(Unreadable(name, reason))
        else:
            found = read_run_folder(
                runs, name, world_ms=world_ms, rebuilding=rebuilding, load=load, fs=fs
            )
            if isinstance(found, Unreadable):
                findings.unreadable.append(found)
            else:
                findings.imports.append(found)
        if count % _SLICE_RUNS == 0:
            yield findings
    findings.imports.sort(key=lambda run: run.order)
    yield findings


def _list_folders(runs: Path, folders: dict[str, bool], findings: Findings) -> Iterator[Findings]:
    """Names below ``runs``: True for folders, False for links; other files are none of ours."""
    try:
        entries = os.scandir(runs)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"{runs}: cannot be listed ({error.strerror})") from error
    with entries:
        for count, entry in enumerate(entries):
            if entry.is_symlink():
                folders[entry.name] = False
            elif entry.is_dir(follow_symlinks=False):
                folders[entry.name] = True
            if count % (_SLICE_RUNS * 16) == 0:
                yield findings


class Names(Protocol):
    """How a loaded world calls its runs: run ids and keys by ordinal and the other way round."""

    @property
    def by_run_id(self) -> Mapping[str, int]:
        """Ordinals by run id."""
        ...

    @property
    def by_key(self) -> Mapping[str, int]:
        """Ordinals by the key of the spawn."""
        ...


class _Row(Struct, frozen=True):
    """What the store says of a run and of its meta.json."""

    ordinal: int
    run_id: str
    key: str | None
    is_ended: bool
    step: int | None
    length: int | None
    before: bytes | None
    after: bytes | None


class _Known:
    """The check of runs that the store knows."""

    def __init__(
        self,
        runs: Path,
        database: Reader,
        quarantined: Mapping[int, str],
        findings: Findings,
        fs: FileSystem,
        hosted: Names | None,
    ) -> None:
        self._hosted = hosted
        self._runs = runs
        self._db = database
        self._quarantined = quarantined
        self._findings = findings
        self._fs = fs
        self._doubtful_step = _first_doubtful_step(database)
        world = database.world()
        self._step = 0 if world is None else world.step
        life = database.liveness_read()
        self._alive_ms = 0 if life is None else life.wall_ms

    def check(self, folders: dict[str, bool]) -> Iterator[Findings]:
        """Look at every known run; take its folder out of ``folders``."""
        page = self._page(0)
        while page:
            for count, row in enumerate(page):
                self._check_names(row)
                is_folder = folders.pop(row.run_id, None)
                reason = self._quarantined.get(row.ordinal)
                if reason is not None:
                    self._findings.quarantined.append(Quarantined(row.run_id, reason))
                elif is_folder is False:
                    why = "its folder is a symbolic link, which is not followed; remove the link"
                    self._findings.unreadable.append(Unreadable(row.run_id, why))
                elif self._is_stale(row, is_missing=is_folder is None):
                    self._findings.rewritten.append(row.ordinal)
                    self._findings.rewritten_ids.append(row.run_id)
                    self._hold_what_is_ahead(row)
                if count % _SLICE_RUNS == 0:
                    yield self._findings
            page = self._page(page[-1].ordinal)

    def _check_names(self, row: _Row) -> None:
        """Pairs with the uniqueness of both names in the index, which later commits meet."""
        if self._hosted is None:
            return
        keyed = row.ordinal if row.key is None else self._hosted.by_key.get(row.key, row.ordinal)
        if row.ordinal != keyed or row.ordinal != self._hosted.by_run_id.get(
            row.run_id, row.ordinal
        ):
            raise Damaged(
                f"world.db: its index has run {row.run_id[:128]!r} as number {row.ordinal}, and "
                "its state does not; restore the home from a copy"
            )

    def _page(self, after: int) -> list[_Row]:
        rows = self._db.rows(
            "select r.ordinal, r.run_id, r.key, r.ended_ms is not null, m.step, m.length, m.before,"
            " m.after from run r left join mirror m on m.run = r.ordinal and m.file = 'meta.json'"
            " where r.ordinal > ? order by r.ordinal limit ?",
            (after, _PAGE_RUNS),
        )
        return [_Row(n, run_id, key, bool(ended), *rest) for n, run_id, key, ended, *rest in rows]

    def _is_stale(self, row: _Row, *, is_missing: bool) -> bool:
        """Whether the run's files are to be written again; sets aside what others wrote."""
        in_doubt = row.step is None or row.step >= self._doubtful_step
        if is_missing:
            # The folder of an ended run that was whole was deleted by somebody, and stays deleted.
            return in_doubt or not row.is_ended
        try:
            found = os.lstat(f"{self._runs}/{row.run_id}/{META}")
        except OSError:
            return True
        if row.after is None or not stat.S_ISREG(found.st_mode):
            return True
        untouched = found.st_mtime_ns // 1_000_000 <= self._alive_ms
        if found.st_size == row.length and untouched and not in_doubt:
            return False
        if row.length is not None and row.length < 0:
            self._differs(row)
            return True
        return self._differs(row) or (in_doubt and self._others_differ(row))

    def _hold_what_is_ahead(self, row: _Row) -> None:
        """Files leave after their step is durable: newer ones say that the store lost steps."""
        data = self._read(row, STATE)
        if data is None:
            return
        try:
            state = decode_state(data)
        except StorageError:
            return  # torn, or of somebody else: it tells no step
        if state.run_id == row.run_id and state.step > self._step:
            self._set_aside(row, STATE)
            found = RolledBack(row.run_id, self._step, state.step)
            self._findings.rolled_back[row.ordinal] = found

    def _differs(self, row: _Row) -> bool:
        data = self._read(row, META)
        digest = None if data is None else file_digest(data)
        if data is None or digest == row.before:
            return digest != row.after
        if digest == row.after:
            return False
        if _is_document(data):
            self._set_aside(row, META)
        return True

    def _others_differ(self, row: _Row) -> bool:
        for other in self._db.mirror_rows(row.ordinal):
            if other.file != META:
                data = self._read(row, other.file)
                if data is None or file_digest(data) != other.after:
                    return True
        return False

    def _read(self, row: _Row, name: str) -> bytes | None:
        folder = self._runs / row.run_id
        try:
            return read_file_confined(folder, name, bytes_max=READ_BYTES_MAX, fs=self._fs)
        except StorageError:
            return None

    def _set_aside(self, row: _Row, file: str) -> None:
        folder = self._runs / row.run_id
        for number in range(1, _ASIDE_MAX):
            name = f"{file}.other-{number}"
            if not os.path.lexists(folder / name):
                with opened_folder(folder, self._fs) as fd, storage_errors(str(folder)):
                    self._fs.replace(fd, file, name)
                self._findings.set_aside.append(f"runs/{row.run_id}/{name}")
                return


def _is_document(data: bytes) -> bool:
    """Whether somebody wrote that: a run document, or one with the word of a newer leviath."""
    try:
        RunMeta.from_json(data)
    except DocumentError as error:
        return "status_word" in error.fields
    return True


def _first_doubtful_step(database: Reader) -> int:
    """The first step of the hosts since the last one that closed in order.

    A host that did leaves every file as its row says. What older hosts left was checked then.
    """
    openings = database.openings()
    epoch = 1 + max((opening.epoch for opening in openings if opening.clean), default=0)
    world = database.world()
    low, high = 1, 1 if world is None else world.step + 1
    while low < high:
        middle = (low + high) // 2
        rows = database.rows(
            "select epoch from journal where step >= ? order by step limit 1", (middle,)
        )
        if not rows or rows[0][0] >= epoch:
            high = middle
        else:
            low = middle + 1
    return low
