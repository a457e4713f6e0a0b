"""The thread that writes run files: only the newest version of each, in the order of arrival.

What stands on the disk is known at every moment as one digest a file, so that the mirror row of the
next version can name the version that it replaces. A version that was not begun is taken back when
a newer one is prepared; one that is being written is waited for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from leviath.components.errors import LevError
from leviath.components.run_id import check_run_id
from leviath.persistence.exchange import exchange_file, spare_name
from leviath.persistence.files import (
    FOLDER_MODE,
    REAL,
    append_lines,
    make_run_folder,
    opened_folder,
    read_file_confined,
    storage_errors,
    write_file_atomic,
)

if TYPE_CHECKING:
    from pathlib import Path

    from leviath.persistence.files import FileSystem

SYNC_ALL: Final = getattr(os, "sync", None) if sys.platform == "linux" else None
"""Where it waits for the disk: on Linux."""
_log = logging.getLogger("leviath.engine")

DIGEST_BYTES: Final = 16
MISSING: Final = b""
"""Stands for a file that is not there."""
BACKLOG_BYTES_MAX: Final = 64 * 1024 * 1024
"""What waits for a slow disk; beyond it commits wait too, and what failed is left to reconcile."""
READ_BYTES_MAX: Final = 1024 * 1024 * 1024

TOGETHER_MIN: Final = 256
"""Files that wait: from here on ended runs are made to last together, not each by itself. Ten
thousand runs that end at once would take minutes of waiting for the disk."""
TOGETHER_MAX: Final = 4_096
"""Files after which they are, however many more wait."""

Key = tuple[int, str]
"""(ordinal, file name relative to the run's folder)."""


class FileJob(Struct):
    """One version of one file, or lines to append to one."""

    run: int
    run_id: str
    name: str
    data: bytes
    digest: bytes = b""
    append: bool = False
    sync: bool = False
    is_calm: bool = False
    """The version before was written seconds ago: no reader is still at the one before that."""
    is_over: bool = False
    """The run has ended: a folder that is gone was deleted, and stays so."""
    drops_spare: bool = False
    """No calm version follows: the spare file that those exchange places with is removed."""

    @property
    def key(self) -> Key:
        return self.run, self.name


class Removal(Struct):
    """The folder of a run that world.db has forgotten."""

    run: int
    run_id: str

    @property
    def key(self) -> Key:
        return self.run, ""


class _State(Struct):
    """What is known of one run's files."""

    disk: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Digest of each mirrored file as it stands on the disk."""
    made: bool = False
    """The folder was there once."""


def file_digest(data: bytes) -> bytes:
    """What mirror rows keep of a file."""
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


class FileThread:
    """Writes below ``runs``; one lock guards everything that is shared."""

    def __init__(self, runs: Path, fs: FileSystem, *, backlog_bytes_max: int) -> None:
        self._runs = runs
        self._fs = fs
        self._backlog_bytes_max = backlog_bytes_max
        self._changed = threading.Condition()
        self._jobs: dict[Key, FileJob | Removal] = {}
        self._failed: dict[Key, FileJob] = {}
        self._bytes = 0
        self._begun: frozenset[Key] = frozenset()
        """What is being written now: files of one run."""
        self._states: dict[int, _State] = {}
        self._finished: set[int] = set()
        """Runs that have ended and of which some file was written."""
        self._lagging: set[int] = set()
        """Runs of which a version was given up: the disk is not what their rows say."""
        self._appended: set[Key] = set()
        self._problems: dict[str, str] = {}
        self._thread: threading.Thread | None = None
        self._closing = False
        self._removed: set[int] = set()
        """Forgotten runs whose folders are gone, also after a power cut."""
        self._unsynced = 0
        """Files of ended runs that were written and do not yet last through a power cut."""
        self._more_follow = False
        """The rest of a crowd comes with the next commit: it is made to last together."""

    # --- called while preparing -------------------------------------------------------------------

    def knows(self, run: int) -> bool:
        """Whether the run's files were introduced."""
        return run in self._states

    def introduce(self, run: int, disk: dict[str, bytes], *, made: bool) -> None:
        """Say what stands on the disk for a run that this thread has not heard of."""
        with self._changed:
            self._states[run] = _State(disk, made)

    def take_back(self, key: Key, digest: bytes) -> bytes | None:
        """Make room for a version with that digest: the digest that stands on the disk now.

        None when there is nothing to do: the disk has that version, or it is about to.
        """
        with self._changed:
            while key in self._begun:
                self._changed.wait()
            waiting = self._jobs.get(key)
            if isinstance(waiting, FileJob):
                if waiting.digest == digest:
                    return None
                self._drop(key)
            failed = self._failed.pop(key, None)
            if failed is not None:
                self._bytes -= len(failed.data)
            before = self._states[key[0]].disk.get(key[1], MISSING)
            return None if before == digest else before

    def wait_for_room(self) -> None:
        """Return when the backlog is within its bounds, or cannot shrink because writes fail.

        Also drops what is known of runs that have ended and whose files are all written.
        """
        with self._changed:
            if self._finished:
                self._prune()
            while self._bytes > self._backlog_bytes_max and self._jobs and not self._closing:
                self._changed.wait()

    def note(self, run_id: str, error: Exception) -> None:
        """A run's files cannot be made; said once in the log."""
        with self._changed:
            self._say(run_id, error)

    # --- called by the host -----------------------------------------------------------------------

    def put(
        self, jobs: list[FileJob], removals: list[Removal], *, more_follow: bool = False
    ) -> None:
        """Hand in what became durable, and what failed before once more. Returns at once.

        ``more_follow``: this is a part of a crowd, whose next part comes with the next call.
        """
        with self._changed:
            self._more_follow = more_follow
            for removal in removals:
                self._forget(removal.run)
                self._jobs[removal.key] = removal
            failed = list(self._failed.values())
            self._failed.clear()
            self._bytes -= sum(len(job.data) for job in failed)
            for job in (*failed, *jobs):
                self._add(job)
            if self._jobs and self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="leviath-files", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def removed(self) -> list[int]:
        """Ordinals of forgotten runs whose folders are gone for good."""
        with self._changed:
            return sorted(self._removed)

    def let_go(self, runs: list[int]) -> None:
        """It is durable that the folders of these runs are gone."""
        with self._changed:
            self._removed.difference_update(runs)

    @property
    def is_idle(self) -> bool:
        """Nothing waits to be written, and nothing is being written."""
        with self._changed:
            return not (self._jobs or self._begun)

    def problems(self) -> dict[str, str]:
        """By run id, why its files are not up to date."""
        with self._changed:
            return dict(self._problems)

    def close(self) -> None:
        """Wait until everything is written, what failed before included; then end."""
        self.put([], [])
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    # --- under the lock ---------------------------------------------------------------------------

    def _prune(self) -> None:
        owed = {key[0] for key in (*self._jobs, *self._failed)} | self._lagging
        owed.update(key[0] for key in self._begun)
        done = self._finished - owed
        self._finished &= owed
        for run in done:
            self._states.pop(run, None)
        self._appended = {key for key in self._appended if key[0] not in done}

    def _add(self, job: FileJob) -> None:
        if job.run not in self._states:
            # Its run was removed meanwhile.
            return
        old = self._jobs.get(job.key)
        if isinstance(old, FileJob):
            if job.append:
                job.data = old.data + job.data
            self._drop(job.key)
        self._jobs[job.key] = job
        self._bytes += len(job.data)

    def _drop(self, key: Key) -> None:
        job = self._jobs.pop(key)
        if isinstance(job, FileJob):
            self._bytes -= len(job.data)

    def _forget(self, run: int) -> None:
        for key in [key for key in self._jobs if key[0] == run]:
            self._drop(key)
        for key in [key for key in self._failed if key[0] == run]:
            self._bytes -= len(self._failed.pop(key).data)
        self._states.pop(run, None)
        self._finished.discard(run)
        self._lagging.discard(run)
        self._appended = {key for key in self._appended if key[0] != run}

    # --- the thread -------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (self._jobs or self._closing or self._crowd_is_over):
                    self._changed.wait()
                if not (self._jobs or self._unsynced):
                    return
                batch = self._next_batch()
                self._begun = frozenset(job.key for job in batch)
                state = self._states.get(batch[0].run) if batch else None
                can = bool(batch) and self._fs is REAL and SYNC_ALL is not None
                together = can and (len(self._jobs) >= TOGETHER_MIN or self._more_follow)
            if together:
                self._put_off(batch)
            errors = self._carry_out(batch, state)
            self._sync_together(have_more=together)
            with self._changed:
                self._begun = frozenset()
                for job, error in zip(batch, errors, strict=True):
                    if isinstance(job, FileJob):
                        self._bytes -= len(job.data)
                        self._note(job, error)
                    elif error is not None:
                        self._say(job.run_id, error)
                self._changed.notify_all()

    @property
    def _crowd_is_over(self) -> bool:
        return bool(self._unsynced) and not self._more_follow

    def _put_off(self, batch: list[FileJob | Removal]) -> None:
        for job in batch:
            if isinstance(job, FileJob) and job.sync:
                job.sync = False
                self._unsynced += 1

    def _sync_together(self, *, have_more: bool) -> None:
        """Make all that was put off last, once the crowd is over or has grown too large."""
        is_time = not have_more or self._unsynced >= TOGETHER_MAX
        if self._unsynced and is_time and SYNC_ALL is not None:
            self._unsynced = 0
            SYNC_ALL()

    def _next_batch(self) -> list[FileJob | Removal]:
        """The oldest job with those behind it that are about the same run: its folder is opened
        once for all of them."""
        batch: list[FileJob | Removal] = []
        for job in self._jobs.values():
            if batch and (job.run != batch[0].run or isinstance(job, Removal)):
                break
            batch.append(job)
            if isinstance(job, Removal):
                break
        for job in batch:
            del self._jobs[job.key]
        return batch

    def _note(self, job: FileJob, error: Exception | None) -> None:
        if error is None:
            if job.is_over:
                self._finished.add(job.run)
            if self._problems and not any(key[0] == job.run for key in self._failed):
                self._problems.pop(job.run_id, None)
            return
        self._say(job.run_id, error)
        newer = self._jobs.get(job.key)
        if job.run not in self._states:
            return
        if self._bytes + len(job.data) > self._backlog_bytes_max:
            self._lagging.add(job.run)
            return
        if newer is None:
            self._failed[job.key] = job
            self._bytes += len(job.data)
        elif isinstance(newer, FileJob) and newer.append:
            newer.data = job.data + newer.data
            self._bytes += len(job.data)

    def _say(self, run_id: str, error: Exception) -> None:
        if run_id not in self._problems:
            _log.error("run %s: its files cannot be written: %s", run_id, error)
        self._problems[run_id] = str(error)

    def _carry_out(
        self, batch: list[FileJob | Removal], state: _State | None
    ) -> list[Exception | None]:
        """What became of each job of one run."""
        jobs = [job for job in batch if isinstance(job, FileJob)]
        try:
            for job in batch:
                if isinstance(job, Removal):
                    self._remove(job)
            if jobs and state is not None:
                return self._write_some(jobs, state)
        except (OSError, LevError) as error:
            for job in jobs:
                self._look(job, state)
            return [error] * len(batch)
        return [None] * len(batch)

    def _look(self, job: FileJob, state: _State | None) -> None:
        """After a failure the old version stands, as a rule; after a failed sync of the folder the
        new one."""
        if state is not None and not job.append:
            with contextlib.suppress(OSError, LevError):
                state.disk[job.name] = self.digest_of(job.run_id, job.name)

    def _write_some(self, jobs: list[FileJob], state: _State) -> list[Exception | None]:
        """Write files of one run; what fails with one of them leaves the others alone."""
        path = os.path.join(self._runs, jobs[0].run_id)
        errors: list[Exception | None] = []
        with contextlib.ExitStack() as stack:
            folder = self._open(path, jobs[-1], state)
            if folder is None:
                return [None] * len(jobs)
            stack.callback(self._fs.close, folder)
            below: dict[str, int] = {"": folder}
            for job in jobs:
                try:
                    self._write(job, state, folder, below, stack)
                except (OSError, LevError) as error:
                    self._look(job, state)
                    errors.append(error)
                else:
                    errors.append(None)
        return errors

    def _write(
        self,
        job: FileJob,
        state: _State,
        folder: int,
        below: dict[str, int],
        stack: contextlib.ExitStack,
    ) -> None:
        place, _, name = job.name.rpartition("/")
        if place:
            self._append(job, place, name, below, stack)
            return
        if not (job.is_calm and exchange_file(folder, name, job.data, self._fs)):
            write_file_atomic(folder, name, job.data, sync=job.sync, fs=self._fs)
        state.disk[name] = job.digest
        if job.drops_spare:
            with contextlib.suppress(OSError):
                self._fs.unlink(folder, spare_name(name))

    def _open(self, path: str, job: FileJob, state: _State) -> int | None:
        """The run's folder, made if need be; None when it was deleted after its run ended."""
        with storage_errors(path):
            try:
                folder = self._fs.open_folder(path)
            except FileNotFoundError:
                if state.made and job.is_over:
                    return None
                self._runs.mkdir(mode=FOLDER_MODE, exist_ok=True)
                make_run_folder(self._runs, job.run_id, fs=self._fs)
                folder = self._fs.open_folder(path)
        state.made = True
        return folder

    def _append(
        self,
        job: FileJob,
        place: str,
        name: str,
        below: dict[str, int],
        stack: contextlib.ExitStack,
    ) -> None:
        """Append in a folder further down, which is made when it is missing. ``below`` keeps the
        folders that are open."""
        with self._changed:
            first = job.key not in self._appended
            self._appended.discard(job.key)  # after a failure it is the first again
        folder, path = below[""], ""
        for part in place.split("/"):
            path = f"{path}/{part}"
            known = below.get(path)
            if known is None:
                if first:
                    with contextlib.suppress(FileExistsError):
                        self._fs.make_folder(folder, part)
                whole = os.path.join(self._runs, job.run_id) + path
                known = below[path] = stack.enter_context(opened_folder(whole, self._fs))
            folder = known
        append_lines(folder, name, job.data, cut_torn=first, fs=self._fs)
        with self._changed:
            self._appended.add(job.key)

    def _remove(self, job: Removal) -> None:
        check_run_id(job.run_id)
        if os.path.lexists(self._runs):
            with opened_folder(self._runs, self._fs) as fd, storage_errors(str(self._runs)):
                try:
                    self._fs.remove_tree(fd, job.run_id)
                except FileNotFoundError:
                    # Of the folder, or of a file that somebody else removed just now.
                    if os.path.lexists(self._runs / job.run_id):
                        raise
                self._fs.sync(fd)
        with self._changed:
            self._removed.add(job.run)

    def has_folder(self, run_id: str) -> bool:
        """Whether something stands where the run's files go."""
        return os.path.lexists(os.path.join(self._runs, run_id))

    def digest_of(self, run_id: str, name: str) -> bytes:
        """The digest of a file as it stands on the disk; MISSING without it."""
        folder = self._runs / run_id
        if not os.path.isdir(folder):
            return MISSING
        data = read_file_confined(folder, name, bytes_max=READ_BYTES_MAX, fs=self._fs)
        return MISSING if data is None else file_digest(data)
