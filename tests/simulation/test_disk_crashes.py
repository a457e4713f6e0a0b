"""Power cuts, full disks and failing disks under the database and the files of a home."""

from __future__ import annotations

import itertools
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leviath.components.errors import DiskFull, LevError, StorageError
from leviath.persistence import schema, sqlite
from leviath.persistence.database import Batch, Database, JournalRow, StateRow, open_database
from leviath.persistence.exchange import exchange_file, spare_name
from leviath.persistence.files import (
    append_lines,
    make_run_folder,
    opened_folder,
    read_file_confined,
    write_file_atomic,
)
from leviath.simulation.disk import Fault, Recording, RecordingDisk, RecordingFileSystem
from leviath.simulation.disk_log import (
    CrashImage,
    Found,
    Operation,
    Write,
    crash_images,
    materialise,
)

_numbers = itertools.count()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[RecordingDisk]:
    (tmp_path / "home").mkdir()
    vfs = RecordingDisk(f"recording-{next(_numbers)}", Recording(tmp_path / "home"))
    yield vfs
    vfs.unregister()


def opened(disk: RecordingDisk) -> Database:
    return open_database(disk.recording.root / "world.db", level="full", vfs=disk.name)


def journal_row(step: int, size: int = 700) -> JournalRow:
    return JournalRow(step, 1, step, step, b"i" * size, b"c%d" % step, b"", b"%d" % step)


def state_row(owner: int, cut: int, text: str) -> StateRow:
    body = f"{text}-{cut}-".encode() * 100
    return StateRow(owner, "part", cut, zlib.crc32(body), body)


class Story:
    """Commits and cuts, and what was promised when: the recording's position at each return."""

    def __init__(self, disk: RecordingDisk) -> None:
        self.disk = disk
        self.promised: list[tuple[int, int, int]] = [(0, -1, -1)]  # position, step, cut
        self.step = 0
        self.cut = 0
        self.db = opened(disk)
        self.db.initialise("w", 1)
        self.db.claim(0, "r")
        self.promise()

    def promise(self) -> None:
        self.promised.append((self.disk.recording.position, self.step, self.cut))

    def commit(self, steps: int = 1) -> None:
        rows = [journal_row(self.step + n + 1) for n in range(steps)]
        entries = [(b"entry-%d" % rows[0].step, b"text" * 300)]
        self.db.commit(Batch(journal=rows, entries=entries))
        self.step += steps
        self.promise()

    def make_cut(self) -> None:
        self.db.write_state([state_row(0, self.step, "world")])
        self.db.write_state([state_row(1, self.step, "run")])
        self.db.finish_cut(self.step, keep_history_from=None)
        self.cut = self.step
        self.promise()

    def acknowledged(self, position: int) -> tuple[int, int]:
        _, step, cut = [promise for promise in self.promised if promise[0] <= position][-1]
        return step, cut


def run_story(disk: RecordingDisk) -> Story:
    story = Story(disk)
    story.db.checkpoint_pages = 12  # so that checkpoints and log resets happen too
    for number in range(12):
        story.commit(steps=1 + number % 3)
        if number % 4 == 3:
            story.make_cut()
    story.db.close()
    story.promise()
    return story


def faults_of(story: Story, image: CrashImage, folder: Path) -> str | None:
    """What is wrong with what an image loads to; None when nothing is."""
    materialise(image, folder)
    step, cut = story.acknowledged(image.position)
    try:
        db = open_database(folder / "world.db", level="process")
        world = db.world()
        if world is None:
            return None if step < 0 else "the world is gone"
        rows = list(db.journal_after(0))
        state = list(db.state_rows())
        entries = db.entries([b"entry-%d" % n for n in range(1, world.step + 1)])
        sound = db.connection.pragma("quick_check")
        db.close()
    except LevError as error:
        return f"does not open: {error}"
    if world.step < step or world.cut < cut:
        return f"lost: at {world.step}/{world.cut}, promised {step}/{cut}"
    if rows != [journal_row(n + 1) for n in range(world.step)]:
        return "the journal is not that of its step"
    expected = [state_row(0, world.cut, "world"), state_row(1, world.cut, "run")]
    if state != (expected if world.cut else []):
        return "the state is not that of its cut"
    starts = {s for _, s, _ in story.promised if 0 <= s < world.step}
    if set(entries) != {b"entry-%d" % (s + 1) for s in starts}:
        return "entries and journal disagree"
    return None if sound == "ok" else f"unsound: {sound}"


def all_faults(story: Story, folder: Path) -> list[str]:
    found: list[str] = []
    for number, image in enumerate(story.disk.recording.crash_images()):
        fault = faults_of(story, image, folder / str(number))
        shutil.rmtree(folder / str(number))
        if fault is not None:
            found.append(f"image {number} at {image.position}: {fault}")
    return found


def test_every_crash_image_is_a_state_not_older_than_the_last_promise(
    disk: RecordingDisk, tmp_path: Path
) -> None:
    story = run_story(disk)
    kinds = {type(operation).__name__ for operation in disk.recording.log}
    assert {"Found", "Link", "Write", "Sync", "FolderSync", "Unlink"} <= kinds
    assert sum(1 for _ in disk.recording.crash_images()) > 200
    assert all_faults(story, tmp_path) == []


def test_a_skipped_sync_is_caught(disk: RecordingDisk, tmp_path: Path) -> None:
    disk.recording.arm(Fault("sync", 8, "skip", times=None))
    story = run_story(disk)
    assert any("lost: at" in fault for fault in all_faults(story, tmp_path))


def test_a_single_skipped_sync_is_caught(disk: RecordingDisk, tmp_path: Path) -> None:
    story = Story(disk)
    story.commit()
    disk.recording.arm(Fault("sync", 1, "skip"))
    story.commit()
    disk.recording.arm()
    assert any("lost: at" in fault for fault in all_faults(story, tmp_path))
    story.db.close()


def test_images_are_the_same_every_time(disk: RecordingDisk) -> None:
    run_story(disk)
    first = list(disk.recording.crash_images())
    assert first == list(disk.recording.crash_images())
    middle = len(disk.recording.log) // 2
    assert all(image.position <= middle for image in disk.recording.crash_images(middle))


def test_the_record_is_what_the_disk_got(disk: RecordingDisk) -> None:
    story = Story(disk)
    story.commit()
    *_, everything = [
        image for image in disk.recording.crash_images() if "world.db-wal" in image.files
    ]
    for name, data in everything.files.items():
        assert (disk.recording.root / name).read_bytes() == data
    story.db.close()


# --- full disk ----------------------------------------------------------------------------------


def attempt(disk: RecordingDisk, act: Callable[[], object]) -> bool:
    """Do it; True when the disk was full, which must be what the error is."""
    try:
        act()
    except DiskFull:
        return True
    return False


def test_a_disk_full_at_any_write_rolls_back_and_the_same_batch_passes_later(
    disk: RecordingDisk,
) -> None:
    story = Story(disk)
    story.db.checkpoint_pages = 8
    failures = 0
    for nth in range(1, 200):
        disk.recording.arm(Fault("write", nth, "enospc", times=None))
        before = story.step
        full = attempt(disk, lambda: story.commit(steps=3))
        disk.recording.arm()
        if not full:
            break
        failures += 1
        assert story.db.world().step == before  # type: ignore[union-attr]
        story.commit(steps=3)
    assert failures > 4
    story.make_cut()
    assert [row.step for row in story.db.journal_after(0)] == list(range(1, story.step + 1))
    story.db.close()
    again = opened(disk)
    assert again.world().step == story.step  # type: ignore[union-attr]
    again.close()


def test_a_disk_full_during_a_cut_leaves_the_old_cut(disk: RecordingDisk) -> None:
    story = Story(disk)
    story.commit()
    story.make_cut()
    for nth in range(1, 200):
        story.commit()
        old = story.cut
        disk.recording.arm(Fault("write", nth, "enospc", times=None))
        full = attempt(disk, story.make_cut)
        disk.recording.arm()
        expected = [state_row(0, story.cut, "world"), state_row(1, story.cut, "run")]
        assert list(story.db.state_rows()) == expected
        if not full:
            break
        assert story.cut == old
    else:
        pytest.fail("the disk stayed full")
    story.db.close()


def test_a_disk_full_while_a_home_is_made_leaves_one_that_can_be_made_later(
    disk: RecordingDisk,
) -> None:
    refused = 0
    for nth in range(1, 200):
        disk.recording.arm(Fault("write", nth, "enospc", times=None))
        full = attempt(disk, lambda: opened(disk).close())
        disk.recording.arm()
        if not full:
            break
        refused += 1
    assert refused > 5
    story = Story(disk)
    story.commit()
    story.db.close()


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_an_io_error_is_called_one(disk: RecordingDisk, kind: str) -> None:
    story = Story(disk)
    disk.recording.arm(Fault(kind, 1, "eio"))  # type: ignore[arg-type]
    with pytest.raises(StorageError) as caught:
        story.commit()
    assert caught.value.fields["io"] is True
    assert not isinstance(caught.value, DiskFull)
    story.db.close()


def test_a_failed_checkpoint_fails_the_next_commit_and_not_the_durable_one(
    disk: RecordingDisk,
) -> None:
    story = Story(disk)
    story.db.checkpoint_pages = 1
    disk.recording.arm(Fault("sync", 3, "eio"))  # of the log twice, then of the database
    story.commit()
    disk.recording.arm()
    with pytest.raises(StorageError, match="checkpoint failed") as caught:
        story.commit()
    assert caught.value.fields["io"] is True
    assert story.db.world().step == 1  # type: ignore[union-attr]
    story.db.close()


def test_a_full_disk_only_delays_a_checkpoint(disk: RecordingDisk) -> None:
    story = Story(disk)
    story.commit()
    log = story.disk.recording.root / "world.db-wal"
    pages = len(log.read_bytes()) // 4096
    story.db.checkpoint_pages = pages
    # Let the commit's own writes pass and fail the checkpoint's.
    disk.recording.arm()
    before = disk.recording.calls["write"]
    story.commit()
    spent = disk.recording.calls["write"] - before
    assert spent > 5
    story.db.checkpoint_pages = 1
    disk.recording.arm(Fault("write", spent, "enospc", times=None))
    story.commit()
    disk.recording.arm()
    story.commit()
    assert story.db.world().step == 4  # type: ignore[union-attr]
    story.db.close()


# --- a change of format -------------------------------------------------------------------------

NEXT = (
    *schema.MIGRATIONS,
    "alter table run add column colour text; create table more (x any) strict",
)


def test_a_power_cut_in_a_change_of_format_leaves_the_old_one_or_the_new_one(
    disk: RecordingDisk, tmp_path: Path
) -> None:
    story = Story(disk)
    story.commit(steps=3)
    begun = disk.recording.position
    schema.migrate(story.db.connection, NEXT)
    done = disk.recording.position
    story.db.close()
    seen: set[int] = set()
    for image in disk.recording.crash_images(done):
        if image.position < begun:
            continue
        folder = tmp_path / "image"
        materialise(image, folder)
        db = sqlite.connect(str(folder / "world.db"), flags=apsw.SQLITE_OPEN_READWRITE, vfs=None)
        seen.add(schema.format_of(db))
        names = {name for (name,) in db.execute("select name from sqlite_schema")}
        assert ("more" in names) == (schema.format_of(db) == len(NEXT))
        assert db.execute("select step from world").fetchone() == (3,)
        assert db.pragma("quick_check") == "ok"
        db.close()
        shutil.rmtree(folder)
    assert seen == {schema.FORMAT, len(NEXT)}


def test_a_disk_full_in_a_change_of_format_leaves_the_old_one(disk: RecordingDisk) -> None:
    story = Story(disk)
    story.commit()
    refused = 0
    for nth in range(1, 100):
        disk.recording.arm(Fault("write", nth, "enospc", times=None))
        try:
            schema.migrate(story.db.connection, NEXT)
        except apsw.FullError:
            refused += 1
        else:
            break
        finally:
            disk.recording.arm()
        assert schema.format_of(story.db.connection) in (schema.FORMAT, len(NEXT))
    assert refused > 3
    assert schema.format_of(story.db.connection) == len(NEXT)
    story.db.close()


# --- files --------------------------------------------------------------------------------------


def home_files(recording: Recording, *, sync: bool) -> list[int]:
    """Write one file three times; the positions of the returns."""
    fs = RecordingFileSystem(recording)
    make_run_folder(recording.root, "run-1", fs=fs)
    returns: list[int] = []
    for text in (b"one", b"two" * 500, b"three"):
        write_file_atomic(recording.root / "run-1", "meta.json", text, sync=sync, fs=fs)
        returns.append(recording.position)
    return returns


VERSIONS = [None, b"one", b"two" * 500, b"three"]


def test_a_synced_file_is_never_older_than_its_last_write_and_never_torn(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    returns = home_files(recording, sync=True)
    images = list(recording.crash_images())
    assert len(images) > 15
    for image in images:
        written = sum(position <= image.position for position in returns)
        assert image.files.get("run-1/meta.json") in VERSIONS[written:]


@pytest.mark.parametrize("skipped", [1, 2])
def test_a_file_whose_sync_is_skipped_is_seen_torn_or_old(tmp_path: Path, skipped: int) -> None:
    recording = Recording(tmp_path)
    recording.arm(Fault("sync", skipped, "skip"))
    returns = home_files(recording, sync=True)
    assert any(
        image.files.get("run-1/meta.json")
        not in VERSIONS[sum(position <= image.position for position in returns) :]
        for image in recording.crash_images()
    )


@pytest.mark.parametrize("failure", ["enospc", "eio"])
@pytest.mark.parametrize("kind", ["create", "write", "sync", "rename"])
def test_a_failing_disk_leaves_the_old_file_and_no_other(
    tmp_path: Path, kind: str, failure: str
) -> None:
    recording = Recording(tmp_path)
    fs = RecordingFileSystem(recording)
    write_file_atomic(tmp_path, "meta.json", b"old", sync=True, fs=fs)
    recording.arm(Fault(kind, 1, failure))  # type: ignore[arg-type]
    with pytest.raises(DiskFull if failure == "enospc" else StorageError):
        write_file_atomic(tmp_path, "meta.json", b"new", sync=True, fs=fs)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"meta.json": b"old"}


def test_an_append_to_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    fs = RecordingFileSystem(recording)
    append_lines(tmp_path, "log", b"one\n", fs=fs)
    recording.arm(Fault("write", 1, "enospc"))
    with pytest.raises(DiskFull):
        append_lines(tmp_path, "log", b"two\n", fs=fs)
    append_lines(tmp_path, "log", b"three\n", fs=fs)
    assert read_file_confined(tmp_path, "log", bytes_max=99, fs=fs) == b"one\nthree\n"


def test_database_and_files_share_one_moment(disk: RecordingDisk) -> None:
    story = Story(disk)
    fs = RecordingFileSystem(disk.recording)
    story.commit()
    between = disk.recording.position
    write_file_atomic(disk.recording.root, "meta.json", b"1", sync=True, fs=fs)
    for image in disk.recording.crash_images():
        if image.position < between:
            assert "meta.json" not in image.files
    story.db.close()


@settings(max_examples=30)
@given(offset=st.integers(0, 2_000), length=st.integers(513, 4_096))
def test_a_torn_write_is_whole_sectors(offset: int, length: int) -> None:
    whole = bytes(1 + n % 255 for n in range(length))
    log: list[Operation] = [Found(1, "f", bytes(offset + length)), Write(1, offset, whole)]
    torn = 0
    for image in crash_images(log):
        body = image.files["f"][offset:]
        torn += body not in (whole, bytes(length))
        for start in range(0, offset + length, 512):
            low, high = max(0, start - offset), max(0, start + 512 - offset)
            assert body[low:high] in (whole[low:high], bytes(len(whole[low:high])))
    assert torn


def test_a_swap_of_names_is_recorded_as_what_the_disk_got(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    recording = Recording(tmp_path / "home")
    fs = RecordingFileSystem(recording)
    write_file_atomic(recording.root, "f", b"first, which is long", sync=True, fs=fs)
    with opened_folder(recording.root, fs) as folder:
        for text in (b"second", b"third one", b"4"):
            if not exchange_file(folder, "f", text, fs):
                pytest.skip("this kernel or file system cannot exchange names")
        fs.sync(folder)
    assert (recording.root / "f").read_bytes() == b"4"
    images = list(recording.crash_images())
    spares = {image.files.get(spare_name("f")) for image in images}
    assert {b"third one"} <= spares, "the spare has the version before"
    last = [image for image in images if image.position == len(recording.log)]
    for image in last:
        assert set(image.files) == {"f", spare_name("f")}, "the names are durable"
    assert any(
        image.files == {name: (recording.root / name).read_bytes() for name in image.files}
        for image in last
    )
    recording.arm(Fault("rename", 1, "eio"))
    with opened_folder(recording.root, fs) as folder:
        assert exchange_file(folder, "f", b"5", fs) is False
    assert (recording.root / "f").read_bytes() == b"4", "as it was"
