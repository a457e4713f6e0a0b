"""Run files from durable steps: what is written when, and the mirror rows that vouch for it.

``meta.json`` is written at every projection. The larger files (``context.json``, ``stages.json``,
``state.lev``, ``final_output``) follow when the run rests or ends, and each 30 seconds while it is
busy and when its host closes; none of them is written when nothing in it changed. ``meta.json`` is
written last, so that it never tells of an answer that is not there yet.

``prepare`` runs in the writer's thread before a unit's commit and may run again for the same unit;
what it found out is taken over by ``write``, after the commit.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from leviath.components.blueprint import Blueprint, decode_blueprint
from leviath.components.errors import Damaged, DocumentError, StorageError
from leviath.components.identity import Identity, Launch, Tree
from leviath.components.output import Output
from leviath.components.progress import Ledgers, Stage
from leviath.components.run_status import RunStatus
from leviath.components.secret import Secret
from leviath.components.status import Status
from leviath.engine.file_thread import (
    BACKLOG_BYTES_MAX,
    FileJob,
    FileThread,
    Removal,
    file_digest,
)
from leviath.engine.limits import HEARTBEAT_INTERVAL_MS
from leviath.engine.mirroring import BUSY
from leviath.engine.run_logs import Line, as_bytes, lines_of
from leviath.persistence.files import REAL
from leviath.persistence.projection import project_context, project_meta, project_stages
from leviath.persistence.rows import MirrorRow
from leviath.persistence.run_documents import stages_to_json
from leviath.persistence.run_row import maybe, part
from leviath.persistence.state_file import encode_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from leviath.components.base import Component
    from leviath.components.text import Text
    from leviath.engine.commits import PartRow, Unit
    from leviath.persistence.files import FileSystem
    from leviath.persistence.reader import Reader

META: Final = "meta.json"
CONTEXT: Final = "context.json"
STAGES: Final = "stages.json"
STATE: Final = "state.lev"
FINAL_OUTPUT: Final = "final_output"
FILES: Final = (STATE, CONTEXT, STAGES, FINAL_OUTPUT, META)
"""All mirrored files, in the order in which they are written."""

CALM_MS: Final = 5_000
"""After so long between two writes, no reader is still at the version before the last."""
_BODIES_BYTES_MAX: Final = 16 * 1024 * 1024


class _Written(Struct):
    """What the newest full projection of a run was made of."""

    parts: tuple[Component, ...]
    full_ms: int
    """World time of it."""
    meta_ms: int | None = None
    """World time of the newest projection of any kind."""


class _Prepared(Struct):
    """What ``write`` takes over from ``prepare``."""

    jobs: list[FileJob] = field(default_factory=list[FileJob])
    removals: list[Removal] = field(default_factory=list[Removal])
    let_go: list[int] = field(default_factory=list[int])
    """Runs whose folders this unit says are gone."""
    written: dict[int, _Written | None] = field(default_factory=dict[int, _Written | None])
    """None for runs that need not be remembered any more."""
    vouched: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """Files (run, name) that this unit has rows of."""
    lines: dict[str, list[Line]] = field(default_factory=dict[str, list[Line]])
    """Log lines that wait for the next projection of their run."""
    world_ms: int = 0
    step: int = 0
    more_follow: bool = False
    """Files of the same crowd come with the next unit."""


class FilesMirror:
    """The FileMirror of a home with run folders.

    ``database`` is the writer's own connection, used by ``prepare`` only. ``redact`` hides known
    secret values in the lines of logs. ``sync_ended`` makes the record of an ended run last through
    a power cut.
    """

    def __init__(
        self,
        runs: Path,
        database: Reader,
        *,
        fs: FileSystem = REAL,
        redact: Callable[[str], str] = str,
        sync_ended: bool = True,
        backlog_bytes_max: int = BACKLOG_BYTES_MAX,
    ) -> None:
        self.database = database
        self.redact = redact
        self.sync_ended = sync_ended
        self.thread: FileThread = FileThread(runs, fs, backlog_bytes_max=backlog_bytes_max)
        self.written: dict[int, _Written] = {}
        self._lines: dict[str, list[Line]] = {}
        self._bodies: OrderedDict[bytes, bytes] = OrderedDict()
        self._bodies_bytes = 0
        self.blueprints: dict[bytes, Blueprint] = {}
        self._doubted: set[int] = set()
        self.unvouched: set[tuple[int, str]] = set()
        """Files (run, name) that were looked at on the disk, because no row could be relied on."""
        self._children: dict[str, dict[str, None]] | None = None
        self.names: dict[int, str] = {}
        row = database.world()
        self._step = 0 if row is None else row.step
        newest = next(iter(database.rows("select max(ordinal) from run")), (None,))[0]
        self._newest: int = newest or 0
        """Of the runs that were met so far, also by mirrors before: no row tells of later ones."""
        self._world_ms = 0

    # --- FileMirror -------------------------------------------------------------------------------

    def prepare(self, unit: Unit) -> None:
        """Project ``unit.runs`` without those behind; fill ``mirror_rows`` and ``files``."""
        self.thread.wait_for_room()
        prepared = _Prepared(world_ms=self._world_time(unit), step=self._step)
        if unit.results:
            prepared.step = unit.results[-1].step
        task = _Task(self, unit, prepared)
        fresh: dict[str, list[Line]] = {}
        for result in unit.results:
            for line in lines_of(result, task.run_id, task.resolve):
                fresh.setdefault(line.run_id, []).append(line)
        # What waits is shared with the next call for this unit, should its commit fail.
        prepared.lines = dict(self._lines)
        for run_id, lines in fresh.items():
            prepared.lines[run_id] = [*self._lines.get(run_id, ()), *lines]
        for n in unit.gone:
            run_id = task.run_id(n)
            prepared.lines.pop(run_id, None)
            prepared.removals.append(Removal(n, run_id))
            prepared.written[n] = None
        unit.let_go = prepared.let_go = self.thread.removed()
        prepared.more_follow = bool(unit.behind)
        for parts in unit.runs.values():
            self._know_parent(parts)
        for n, parts in unit.runs.items():
            if n not in unit.behind and n not in unit.gone:
                try:
                    task.project(n, parts)
                except (Damaged, DocumentError) as error:
                    # One run's files must not keep what other runs did from becoming durable.
                    self.thread.note(task.run_id(n), error)
        unit.files = prepared

    def write(self, files: object) -> None:
        """Hand to the file thread what was prepared and has become durable; returns at once."""
        assert isinstance(files, _Prepared)
        self._world_ms, self._step, self._lines = files.world_ms, files.step, files.lines
        for n, written in files.written.items():
            if written is None:
                self.written.pop(n, None)
                self.names.pop(n, None)
                self.unvouched.difference_update((n, name) for name in FILES)
            else:
                self.written[n] = written
        self.unvouched.difference_update(files.vouched)
        self.thread.let_go(files.let_go)
        self.thread.put(files.jobs, files.removals, more_follow=files.more_follow)

    def remove(self, forgotten: list[tuple[int, str]]) -> None:
        """Remove the folders of runs (ordinal, run id) that an earlier host has forgotten."""
        self.thread.put([], [Removal(n, run_id) for n, run_id in forgotten])

    def removed(self) -> list[int]:
        """Ordinals of forgotten runs whose folders are gone, which no commit has said so far."""
        return self.thread.removed()

    def close(self) -> None:
        """Wait until everything is written."""
        self.thread.close()

    @property
    def is_idle(self) -> bool:
        """Everything that was handed over is written, or failed."""
        return self.thread.is_idle

    def problems(self) -> dict[str, str]:
        """By run id, why the files of a run are not up to date; they are tried again."""
        return self.thread.problems()

    def doubt(self, runs: Iterable[int]) -> None:
        """Do not rely on the rows of these runs (ordinals): look at what stands on the disk.

        For the runs that reconciling found out of date; before anything is prepared.
        """
        self._doubted.update(runs)

    # --- what a projection needs ------------------------------------------------------------------

    def _world_time(self, unit: Unit) -> int:
        if unit.world_ms:
            return unit.world_ms
        return unit.results[-1].now.world_ms if unit.results else self._world_ms

    def body(self, digest: bytes) -> bytes:
        """A body that is durable, from a bounded cache or the database. Raises Damaged."""
        data = self._bodies.get(digest)
        if data is not None:
            self._bodies.move_to_end(digest)
            return data
        data = self.database.entry(digest)
        if data is None:
            raise Damaged(f"the store has lost the text {digest.hex()}; restore the home")
        self._bodies[digest] = data
        self._bodies_bytes += len(data)
        while self._bodies_bytes > _BODIES_BYTES_MAX and len(self._bodies) > 1:
            self._bodies_bytes -= len(self._bodies.popitem(last=False)[1])
        return data

    def introduce(self, n: int, run_id: str) -> None:
        """Tell the thread what stands on the disk for a run, as far as rows and folders say."""
        self.names[n] = run_id
        if self.thread.knows(n):
            return
        rows: dict[str, bytes] = {}
        if n <= self._newest:
            rows = {row.file: row.after for row in self.database.mirror_rows(n)}
        self._newest = max(self._newest, n)
        if rows and n not in self._doubted:
            self.thread.introduce(n, rows, made=True)
            return
        found: dict[str, bytes] = {}
        if self.thread.has_folder(run_id):
            # One that cannot be read is met again, and reported, when it is to be written.
            with contextlib.suppress(OSError, StorageError):
                found = {name: self.thread.digest_of(run_id, name) for name in FILES}
        self.unvouched.update((n, name) for name in FILES)
        self.thread.introduce(n, found, made=False)

    def children_of(self, run_id: str) -> tuple[str, ...]:
        """Ids of the runs that name this one as their parent, oldest first."""
        if self._children is None:
            self._children = {}
            for child, parent in self.database.rows(
                "select run_id, parent_run_id from run where parent_run_id is not null"
                " order by ordinal"
            ):
                self._children.setdefault(parent, {})[child] = None
        return tuple(self._children.get(run_id, ()))

    def _know_parent(self, parts: PartRow) -> None:
        parent = part(parts, Tree).parent_run_id
        if parent is not None:
            self.children_of(parent)
            assert self._children is not None
            self._children.setdefault(parent, {})[part(parts, Identity).run_id] = None


class _Task:
    """The work of one ``prepare``."""

    def __init__(self, mirror: FilesMirror, unit: Unit, prepared: _Prepared) -> None:
        self._mirror = mirror
        self._unit = unit
        self._prepared = prepared
        self._fresh = dict(unit.entries)
        self._secrets = dict(unit.secrets)

    def body(self, digest: bytes) -> bytes:
        """A body of this unit, or one that is durable."""
        data = self._fresh.get(digest)
        return self._mirror.body(digest) if data is None else data

    def resolve(self, text: Text) -> str:
        """The whole of a text."""
        return self.body(text.digest).decode() if text.digest else text.body

    def run_id(self, n: int) -> str:
        """The id of a run, also of one that is not projected now."""
        parts = self._unit.runs.get(n)
        if parts is not None:
            return part(parts, Identity).run_id
        name = self._mirror.names.get(n)
        if name is None:
            row = self._mirror.database.run_by_ordinal(n)
            name = "" if row is None else row.run_id
        return name

    def project(self, n: int, parts: PartRow) -> None:
        """Prepare the files of one run that changed or are due."""
        mirror, now_ms = self._mirror, self._prepared.world_ms
        run_id = part(parts, Identity).run_id
        mirror.introduce(n, run_id)
        status = part(parts, Status).status
        written = mirror.written.get(n)
        if written is None:
            # Not yet full: a busy run's first large files are due an interval after it appears.
            written = _Written((), now_ms)
        calm = written.meta_ms is not None and now_ms - written.meta_ms >= CALM_MS
        due = now_ms - written.full_ms >= HEARTBEAT_INTERVAL_MS
        due = due or self._unit.closing or status not in BUSY
        row = tuple(parts.values())
        if due and not _same(row, written.parts):
            self._full(n, run_id, parts, status)
            written = _Written(row, now_ms)
        self._logs(n, run_id, parts, status)
        self._file(n, run_id, META, self._meta(run_id, parts), status, calm=calm)
        remembered = _Written(written.parts, written.full_ms, now_ms)
        self._prepared.written[n] = None if status.is_ended else remembered

    def _meta(self, run_id: str, parts: PartRow) -> bytes:
        launch = part(parts, Launch)
        value = self._secret(launch.callback_secret_ref)
        meta = project_meta(
            parts,
            now_s=self._unit.wall_ms // 1_000,
            world_ms=self._prepared.world_ms,
            children=self._mirror.children_of(run_id),
            secret=None if value is None else Secret(value),
            url=self._secret(launch.callback_url_ref),
            resolve=self.resolve,
        )
        return meta.to_json()

    def _secret(self, ref: str | None) -> str | None:
        if ref is None:
            return None
        return self._secrets.get(ref) or self._mirror.database.secret(ref)

    def _full(self, n: int, run_id: str, parts: PartRow, status: RunStatus) -> None:
        state = encode_state(
            parts,
            self.body,
            step=self._prepared.step,
            epoch=self._unit.epoch,
            world_ms=self._prepared.world_ms,
            wall_ms=self._unit.wall_ms,
        )
        self._file(n, run_id, STATE, state, status)
        blueprint = self._blueprint(part(parts, Launch).blueprint)
        context = project_context(parts, self.resolve, blueprint=blueprint)
        self._file(n, run_id, CONTEXT, context.to_json(), status)
        stages = project_stages(parts)
        if stages:
            self._file(n, run_id, STAGES, stages_to_json(stages), status)
        output = maybe(parts, Output)
        if output is not None:
            text = self.resolve(output.content)
            self._file(n, run_id, FINAL_OUTPUT, text.encode(errors="replace"), status)

    def _blueprint(self, digest: bytes) -> Blueprint:
        known = self._mirror.blueprints
        blueprint = known.get(digest)
        if blueprint is None:
            blueprint = known[digest] = decode_blueprint(self.body(digest))
        return blueprint

    def _file(
        self,
        n: int,
        run_id: str,
        name: str,
        data: bytes,
        status: RunStatus,
        *,
        calm: bool = False,
    ) -> None:
        """A job and its row; neither when the disk has these very bytes and its row says so."""
        mirror, key = self._mirror, (n, name)
        digest = file_digest(data)
        before = mirror.thread.take_back(key, digest)
        if before is None and key not in mirror.unvouched:
            return
        step = self._prepared.step
        row = MirrorRow(n, name, step, len(data), digest if before is None else before, digest)
        self._unit.mirror_rows.append(row)
        self._prepared.vouched.append(key)
        if before is None:
            # What stands there is right, and without a row every opening would doubt it again.
            return
        record = name in (META, FINAL_OUTPUT)
        sync = status.is_ended and record and self._mirror.sync_ended
        job = FileJob(n, run_id, name, data, digest, sync=sync, is_over=status.is_ended)
        job.is_calm = calm and not status.is_ended
        job.drops_spare = name == META and status.is_ended
        self._prepared.jobs.append(job)

    def _logs(self, n: int, run_id: str, parts: PartRow, status: RunStatus) -> None:
        lines = self._prepared.lines.pop(run_id, None)
        if not lines:
            return
        ledgers, stage = maybe(parts, Ledgers), maybe(parts, Stage)
        index = {} if ledgers is None else {row.name: i for i, row in enumerate(ledgers.stages)}
        current = 0 if stage is None else stage.index
        logs: dict[tuple[int, str], list[Line]] = {}
        for line in lines:
            if line.stage:
                current = index.get(line.stage, current)
            logs.setdefault((current, line.file), []).append(line)
        for (stage_index, file), some in logs.items():
            name = f"stages/{stage_index}/{file}"
            job = FileJob(n, run_id, name, as_bytes(some, self._mirror.redact), append=True)
            job.is_over = status.is_ended
            self._prepared.jobs.append(job)


def _same(row: tuple[Component, ...], other: tuple[Component, ...]) -> bool:
    """Components are replaced, never edited: the same objects are the same facts."""
    return len(row) == len(other) and all(a is b for a, b in zip(row, other, strict=True))
