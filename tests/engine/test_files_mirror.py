"""Files follow durable steps; the rows always vouch for what stands on the disk."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mirror_units import WALL_MS, carry, commit, new_database, run_parts, unit_of
from msgspec.structs import replace

from leviath.components.events import CallFailed, StatusChanged, ToolEnded, TurnFinished
from leviath.components.identity import Launch, Tree
from leviath.components.inputs import InferenceFinished
from leviath.components.output import Output
from leviath.components.progress import Cost
from leviath.components.run_status import RunStatus
from leviath.components.text import Text, inline
from leviath.engine.file_thread import MISSING, file_digest
from leviath.engine.files_mirror import FilesMirror
from leviath.engine.run_logs import redactor
from leviath.persistence.exchange import exchange_file, spare_name
from leviath.persistence.files import RealFileSystem
from leviath.persistence.run_documents import ContextSnapshot, load_stages
from leviath.persistence.run_meta import RunMeta
from leviath.persistence.state_file import decode_state, parts_of_state
from leviath.simulation.disk import Fault, Recording, RecordingFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leviath.persistence.database import Database


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def database(home: Path) -> Iterator[Database]:
    with new_database(home) as opened:
        yield opened


class GatedFileSystem(RealFileSystem):
    """Files whose writing waits until the test lets it go on."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.arrived = threading.Event()
        self.created: list[str] = []

    def create(self, folder: int, name: str) -> int:
        """See FileSystem."""
        self.arrived.set()
        assert self.gate.wait(30)
        self.created.append(name)
        return super().create(folder, name)


def test_a_resting_run_gets_all_files_private(home: Path, database: Database) -> None:
    parts = run_parts(output=_output())
    mirror = FilesMirror(home / "runs", database)
    carry(mirror, database, unit_of(1, parts))
    mirror.close()
    folder = home / "runs" / "run-1"
    meta = RunMeta.load(folder / "meta.json")
    assert (meta.run_id, meta.status) == ("run-1", RunStatus.WAITING_INPUT)
    assert meta.updated_at == WALL_MS // 1_000 + 1
    context = ContextSnapshot.load(folder / "context.json")
    assert context.regions[0].entries[0].content == "hello"
    assert [record.name for record in load_stages(folder / "stages.json")] == ["read", "write"]
    assert (folder / "final_output").read_bytes() == b"the answer"
    assert parts_of_state(decode_state((folder / "state.lev").read_bytes())) == parts
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    _rows_vouch(home, database)


def _output() -> Output:
    return Output(inline("the answer"), "read", WALL_MS, 10)


def _rows_vouch(home: Path, database: Database) -> None:
    """Each row's newer digest is that of its file, and no file is without a row."""
    files = {path.name for path in (home / "runs" / "run-1").iterdir() if path.is_file()}
    rows = {row.file: row for row in database.mirror_rows(1)}
    assert {name for name in files if not name.startswith(".")} == set(rows)
    for name, row in rows.items():
        data = (home / "runs" / "run-1" / name).read_bytes()
        assert (row.after, row.length) == (file_digest(data), len(data))


def test_a_busy_run_writes_its_meta_only_until_an_interval_has_passed(
    home: Path, database: Database
) -> None:
    mirror = FilesMirror(home / "runs", database)
    folder = home / "runs" / "run-1"
    parts = run_parts(status=RunStatus.RUNNING)
    carry(mirror, database, unit_of(1, parts))
    carry(mirror, database, unit_of(2, parts, world_ms=30_999))
    assert {row.file for row in database.mirror_rows(1)} == {"meta.json"}
    carry(mirror, database, unit_of(3, parts, world_ms=31_000))
    mirror.close()
    assert {"state.lev", "context.json", "meta.json"} <= {path.name for path in folder.iterdir()}
    meta = RunMeta.load(folder / "meta.json")
    assert meta.active is not None
    assert (meta.active.banked_secs, meta.active.since) == (23, meta.updated_at)


def test_a_heartbeat_rewrites_nothing_but_the_stamp(home: Path, database: Database) -> None:
    mirror = FilesMirror(home / "runs", database)
    parts = run_parts(output=_output())
    carry(mirror, database, unit_of(1, parts))
    beat = unit_of(2, dict(parts), world_ms=31_000)
    beat.results = []
    carry(mirror, database, beat)
    assert [row.file for row in beat.mirror_rows] == ["meta.json"]
    changed = unit_of(3, parts | {Cost: Cost(11)}, world_ms=61_000)
    carry(mirror, database, changed)
    mirror.close()
    # The answer, the stages and the context are what they were.
    assert [row.file for row in changed.mirror_rows] == ["state.lev", "meta.json"]
    assert RunMeta.load(home / "runs" / "run-1" / "meta.json").prompt_tokens == 11
    _rows_vouch(home, database)


def test_a_version_that_was_overtaken_is_never_written_and_never_vouched_for(
    home: Path, database: Database
) -> None:
    fs = GatedFileSystem()
    fs.gate.set()
    mirror = FilesMirror(home / "runs", database, fs=fs)
    parts = run_parts(status=RunStatus.RUNNING)
    carry(mirror, database, unit_of(1, parts))
    mirror.close()
    on_disk = file_digest((home / "runs" / "run-1" / "meta.json").read_bytes())
    fs.gate.clear()
    fs.arrived.clear()
    mirror = FilesMirror(home / "runs", database, fs=fs)
    carry(mirror, database, unit_of(2, run_parts(2)))
    assert fs.arrived.wait(30), "the thread is busy with the other run"
    for step in (3, 4, 5):
        carry(mirror, database, unit_of(step, parts))
        (row,) = database.mirror_rows(1)
        assert row.before == on_disk
    fs.created.clear()
    fs.gate.set()
    mirror.close()
    assert fs.created.count("meta.json.tmp") == 2, "one version of each run"
    _rows_vouch(home, database)


@given(st.lists(st.sampled_from(["change", "beat", "retry", "restart", "rest"]), max_size=12))
def test_at_every_moment_the_disk_is_one_of_the_two_digests(
    tmp_path_factory: pytest.TempPathFactory, moves: list[str]
) -> None:
    home = tmp_path_factory.mktemp("home") / "h"
    with new_database(home) as database:
        mirror = FilesMirror(home / "runs", database)
        parts = run_parts(status=RunStatus.RUNNING)
        for step, move in enumerate(moves, 1):
            if move == "change":
                parts = parts | {Cost: Cost(step)}
            elif move == "rest":
                parts = run_parts(cost=Cost(step))
            elif move == "restart":
                mirror.close()
                mirror = FilesMirror(home / "runs", database)
            unit = unit_of(step, parts, world_ms=step * 7_000)
            if move == "retry":
                mirror.prepare(unit)
                unit.mirror_rows.clear()
            mirror.prepare(unit)
            commit(database, unit)
            for row in database.mirror_rows(1):
                path = home / "runs" / "run-1" / row.file
                found = file_digest(path.read_bytes()) if path.exists() else MISSING
                assert found in (row.before, row.after)
            mirror.write(unit.files)
        mirror.close()
        if moves:
            _rows_vouch(home, database)


def test_a_full_disk_is_said_once_and_the_files_follow_when_there_is_room(
    home: Path, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    recording = Recording(home)
    mirror = FilesMirror(home / "runs", database, fs=RecordingFileSystem(recording))
    parts = run_parts(status=RunStatus.RUNNING)
    carry(mirror, database, unit_of(1, parts))
    mirror.thread.put([], [])
    mirror.close()
    mirror = FilesMirror(home / "runs", database, fs=RecordingFileSystem(recording))
    before = (home / "runs" / "run-1" / "meta.json").read_bytes()
    recording.arm(Fault("create", 1, "enospc", times=3))
    for step in (2, 3):
        carry(mirror, database, unit_of(step, parts))
        _drain(mirror)
        assert "no space left" in mirror.problems()["run-1"]
    assert (home / "runs" / "run-1" / "meta.json").read_bytes() == before
    assert len([r for r in caplog.records if "cannot be written" in r.message]) == 1
    recording.arm()
    carry(mirror, database, unit_of(4, parts))
    mirror.close()
    assert mirror.problems() == {}
    _rows_vouch(home, database)


def _drain(mirror: FilesMirror) -> None:
    thread = mirror.thread
    with thread._changed:
        while thread._jobs or thread._begun:
            assert thread._changed.wait(30)


@pytest.mark.parametrize("kind", ["create", "write", "rename"])
@pytest.mark.parametrize("nth", range(1, 6))
def test_any_failed_write_is_made_up_for_at_close(
    home: Path, database: Database, kind: str, nth: int
) -> None:
    recording = Recording(home)
    mirror = FilesMirror(home / "runs", database, fs=RecordingFileSystem(recording))
    recording.arm(Fault(kind, nth, "eio"))  # type: ignore[arg-type]
    carry(mirror, database, unit_of(1, run_parts(status=RunStatus.COMPLETE, output=_output())))
    _drain(mirror)
    assert list(mirror.problems()) == ["run-1"]
    mirror.close()
    assert mirror.problems() == {}
    _rows_vouch(home, database)


def test_after_a_power_cut_the_record_of_an_ended_run_is_there(
    home: Path, database: Database
) -> None:
    (home / "runs" / "run-1").mkdir()
    recording = Recording(home / "runs")
    mirror = FilesMirror(home / "runs", database, fs=RecordingFileSystem(recording))
    carry(mirror, database, unit_of(1, run_parts(status=RunStatus.COMPLETE, output=_output())))
    mirror.close()
    images = [image for image in recording.crash_images() if image.position == len(recording.log)]
    assert images
    for image in images:
        meta = RunMeta.from_json(image.files["run-1/meta.json"])
        assert meta.status is RunStatus.COMPLETE
        assert image.files["run-1/final_output"] == b"the answer"


def test_a_deleted_folder_of_an_ended_run_stays_deleted(home: Path, database: Database) -> None:
    folder = home / "runs" / "run-1"
    ended = run_parts(status=RunStatus.COMPLETE)
    mirror = FilesMirror(home / "runs", database)
    carry(mirror, database, unit_of(1, ended))
    mirror.close()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    mirror = FilesMirror(home / "runs", database)
    carry(mirror, database, unit_of(2, ended | {Cost: Cost(99)}))
    mirror.close()
    assert not folder.exists()
    mirror = FilesMirror(home / "runs", database)
    carry(mirror, database, unit_of(3, run_parts()))
    mirror.close()
    assert folder.exists(), "a run that goes on has its files"


def test_a_run_that_retention_dropped_takes_its_folder_along(
    home: Path, database: Database
) -> None:
    mirror = FilesMirror(home / "runs", database)
    ended = run_parts(status=RunStatus.COMPLETE)
    carry(mirror, database, unit_of(1, ended, run_parts(2)))
    outside = home / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    _drain(mirror)
    (home / "runs" / "run-1" / "link").symlink_to(outside)
    carry(mirror, database, unit_of(2, gone=(1,)))
    mirror.close()
    assert sorted(os.listdir(home / "runs")) == ["run-2"]
    assert (outside / "kept").exists()
    assert mirror.thread.problems() == {}


def test_a_symbolic_link_in_a_folder_s_place_is_not_followed(
    home: Path, database: Database
) -> None:
    outside = home / "outside"
    outside.mkdir()
    (home / "runs" / "run-1").symlink_to(outside)
    mirror = FilesMirror(home / "runs", database)
    carry(mirror, database, unit_of(1, run_parts()))
    mirror.close()
    assert os.listdir(outside) == []
    assert "run-1" in mirror.problems()


def test_logs_tell_what_happened_without_known_secrets(home: Path, database: Database) -> None:
    mirror = FilesMirror(home / "runs", database, redact=redactor(["canary-1", "canary-12", "x"]))
    reply = InferenceFinished(1, 1, 1, 1, inline("I found canary-12.\nAnd x."))
    events = (
        TurnFinished(1, "run-1", 0, "write", 1, 1, 9, 4, 0, 0, 412_500_000, 1),
        ToolEnded(2, "run-1", 0, "c1", "shell", is_error=False),
        CallFailed(3, "run-1", 0, "server", "said canary-1\nagain", 1, None),
        StatusChanged(4, "run-1", 0, "paused", "running", "read", why="enough", actor="host"),
    )
    carry(mirror, database, unit_of(1, run_parts()))
    waiting = unit_of(2, inputs=(reply,), events=events)
    carry(mirror, database, waiting)
    assert waiting.mirror_rows == [], "lines wait for their run's projection"
    carry(mirror, database, unit_of(3, run_parts()))
    mirror.close()
    stages = home / "runs" / "run-1" / "stages"
    assert (stages / "1" / "output.log").read_text() == "I found ***.\nAnd x.\n"
    assert (stages / "1" / "logs.log").read_text().splitlines() == [
        "[Tokens: 9 in, 4 out, 0 cached, 0 written to cache, $0.4125]",
        "[tool] shell c1",
        "[error] server: said *** again",
    ]
    assert (stages / "0" / "logs.log").read_text() == "[paused] by host: enough\n"
    assert stat.S_IMODE((stages / "1" / "logs.log").stat().st_mode) == 0o600


def test_a_torn_line_is_cut_off_before_the_next_is_appended(home: Path, database: Database) -> None:
    place = home / "runs" / "run-1" / "stages" / "0"
    place.mkdir(parents=True)
    (place / "logs.log").write_bytes(b"whole\ntor")
    mirror = FilesMirror(home / "runs", database)
    ended = ToolEnded(2, "run-1", 0, "c1", "t", is_error=True, note="again")
    carry(mirror, database, unit_of(1, run_parts(), events=(ended,)))
    mirror.close()
    assert (place / "logs.log").read_bytes() == b"whole\n[error] t c1 (again)\n"


def test_the_secret_of_a_callback_is_in_the_private_file_only(
    home: Path, database: Database
) -> None:
    parts = run_parts()
    launch = parts[Launch]
    assert isinstance(launch, Launch)
    parts[Launch] = replace(launch, callback_secret_ref="ref")
    unit = unit_of(1, parts)
    unit.secrets = [("ref", "canary")]
    mirror = FilesMirror(home / "runs", database)
    carry(mirror, database, unit)
    mirror.close()
    holding = [p.name for p in (home / "runs" / "run-1").iterdir() if b"canary" in p.read_bytes()]
    assert holding == ["meta.json"]


def test_what_is_known_of_an_ended_run_is_dropped_once_it_is_written(
    home: Path, database: Database
) -> None:
    mirror = FilesMirror(home / "runs", database)
    for step in range(1, 6):
        carry(mirror, database, unit_of(step, run_parts(step, RunStatus.COMPLETE)))
        _drain(mirror)
    mirror.prepare(unit_of(6))
    assert mirror.thread._states == {}
    assert mirror.written == {}
    assert mirror.names == {}
    # A late outcome is charged to a run that is over.
    late = run_parts(1, RunStatus.COMPLETE) | {Cost: Cost(99)}
    unit = unit_of(6, late)
    carry(mirror, database, unit)
    mirror.close()
    assert [row.file for row in unit.mirror_rows] == ["state.lev", "meta.json"]
    _rows_vouch(home, database)


def test_a_backlog_that_cannot_shrink_is_given_up_and_known_to_lag(
    home: Path, database: Database
) -> None:
    recording = Recording(home)
    fs = RecordingFileSystem(recording)
    mirror = FilesMirror(home / "runs", database, fs=fs, backlog_bytes_max=0)
    recording.arm(Fault("create", 1, "enospc", times=None))
    carry(mirror, database, unit_of(1, run_parts(1, RunStatus.COMPLETE)))
    _drain(mirror)
    recording.arm()
    unit = unit_of(2, run_parts(1, RunStatus.COMPLETE))
    carry(mirror, database, unit)
    mirror.close()
    assert {row.before for row in unit.mirror_rows} == {MISSING}
    _rows_vouch(home, database)


def test_a_run_whose_text_is_lost_keeps_no_other_run_from_being_committed(
    home: Path, database: Database
) -> None:
    lost = run_parts(output=replace(_output(), content=Text("", b"nowhere", 9)))
    mirror = FilesMirror(home / "runs", database)
    carry(mirror, database, unit_of(1, lost, run_parts(2)))
    assert "has lost the text" in mirror.problems()["run-1"]
    mirror.close()
    assert (home / "runs" / "run-2" / "meta.json").exists()


def test_a_parent_lists_its_children(home: Path, database: Database) -> None:
    mirror = FilesMirror(home / "runs", database)
    child = run_parts(2) | {Tree: Tree(1, "run-1", 1, 0, 1)}
    carry(mirror, database, unit_of(1, run_parts(), child))
    mirror.close()
    mirror = FilesMirror(home / "runs", database)
    carry(mirror, database, unit_of(2, run_parts()))
    mirror.close()
    assert RunMeta.load(home / "runs" / "run-1" / "meta.json").children == ("run-2",)


def test_a_file_that_was_there_before_its_run_was_known_is_what_the_row_names(
    home: Path, database: Database
) -> None:
    folder = home / "runs" / "run-1"
    folder.mkdir()
    (folder / "meta.json").write_bytes(b"{}")
    unit = unit_of(1, run_parts())
    FilesMirror(home / "runs", database).prepare(unit)
    before = {row.file: row.before for row in unit.mirror_rows}
    assert before["meta.json"] == file_digest(b"{}")
    assert before["state.lev"] == MISSING


def test_exchange_swaps_or_leaves_everything_as_it_is(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert exchange_file(fd, "meta.json", b"new") is False, "there is no file to swap with"
        (tmp_path / spare_name("meta.json")).unlink(missing_ok=True)
        (tmp_path / "meta.json").write_bytes(b"first, and longer")
        if not exchange_file(fd, "meta.json", b"second"):
            pytest.skip("this kernel or file system cannot exchange names")
        assert exchange_file(fd, "meta.json", b"3")
        assert (tmp_path / "meta.json").read_bytes() == b"3"
        assert (tmp_path / spare_name("meta.json")).read_bytes() == b"second"
        spare = tmp_path / spare_name("meta.json")
        spare.unlink()
        (tmp_path / "target").write_bytes(b"kept")
        spare.symlink_to(tmp_path / "target")
        assert exchange_file(fd, "meta.json", b"4") is False
        spare.unlink()
        spare.hardlink_to(tmp_path / "target")
        assert exchange_file(fd, "meta.json", b"5") is False
        assert (tmp_path / "target").read_bytes() == b"kept"
        assert (tmp_path / "meta.json").read_bytes() == b"3"
    finally:
        os.close(fd)


def test_redaction_takes_the_longest_value_and_leaves_words_alone() -> None:
    redact = redactor(["tok", "token-1", "token-123", ""])
    assert redact("tok token-123 token-1 token-12") == "tok *** *** ***2"
