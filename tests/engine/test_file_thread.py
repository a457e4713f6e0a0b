"""The thread that writes run files: a crowd of ended runs is written whole, and lasts together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leviath.engine.file_thread import (
    SYNC_ALL,
    TOGETHER_MIN,
    FileJob,
    FileThread,
    file_digest,
)
from leviath.persistence.files import REAL

if TYPE_CHECKING:
    from pathlib import Path


def ended(thread: FileThread, number: int) -> FileJob:
    """The last word on a run, which is to last."""
    data = f"run {number}".encode()
    thread.introduce(number, {}, made=False)
    name = f"run-{number}"
    return FileJob(number, name, "meta.json", data, file_digest(data), sync=True, is_over=True)


def test_a_crowd_of_ended_runs_is_written_whole_and_nothing_is_left_to_sync(
    tmp_path: Path,
) -> None:
    thread = FileThread(tmp_path, REAL, backlog_bytes_max=1 << 20)
    count = TOGETHER_MIN + 50
    jobs = [ended(thread, number) for number in range(1, count + 1)]
    thread.put(jobs, [])
    thread.close()
    assert thread.is_idle and thread.problems() == {}
    for number in range(1, count + 1):
        assert (tmp_path / f"run-{number}" / "meta.json").read_bytes() == f"run {number}".encode()
    assert [job.sync for job in jobs].count(False) >= 50 or all(job.sync for job in jobs), (
        "those before the end of the crowd were put off, where the system can do that"
    )
    assert thread._unsynced == 0


def written_out(thread: FileThread) -> None:
    """Wait, as a commit does, until the thread has nothing to do."""
    with thread._changed:
        while thread._jobs or thread._begun:
            thread._changed.wait()


def test_parts_of_a_crowd_last_together_with_the_last_one(tmp_path: Path) -> None:
    thread = FileThread(tmp_path, REAL, backlog_bytes_max=1 << 20)
    parts = [[ended(thread, 10 * part + n) for n in range(3)] for part in (1, 2)]
    for part in parts:
        thread.put(part, [], more_follow=True)
        written_out(thread)
    can = SYNC_ALL is not None
    assert [job.sync for part in parts for job in part] == [not can] * 6
    assert thread._unsynced == (6 if can else 0)
    last = ended(thread, 30)
    thread.put([last], [])
    thread.close()
    assert thread._unsynced == 0 and (tmp_path / "run-30" / "meta.json").exists()


def test_a_crowd_whose_end_brings_no_file_lasts_too(tmp_path: Path) -> None:
    thread = FileThread(tmp_path, REAL, backlog_bytes_max=1 << 20)
    thread.put([ended(thread, 1)], [], more_follow=True)
    written_out(thread)
    thread.put([], [])
    with thread._changed:
        while thread._unsynced:
            thread._changed.wait()
    thread.close()
    assert (tmp_path / "run-1" / "meta.json").exists()
