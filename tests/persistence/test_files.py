"""Files are private, whole, and where they should be."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leviath.components.errors import ConfigError, DiskFull, LevError, StorageError
from leviath.persistence.files import (
    RealFileSystem,
    append_lines,
    make_run_folder,
    read_file_confined,
    write_file_atomic,
)


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


@pytest.mark.parametrize("sync", [False, True])
def test_a_file_is_written_whole_and_private(tmp_path: Path, sync: bool) -> None:
    (tmp_path / "meta.json").write_bytes(b"old")
    (tmp_path / "meta.json").chmod(0o644)
    for data in (b"", b"new" * 100_000):
        write_file_atomic(tmp_path, "meta.json", data, sync=sync)
        assert (tmp_path / "meta.json").read_bytes() == data
    assert (tmp_path / "meta.json").stat().st_mode & 0o777 == 0o600
    assert names(tmp_path) == {"meta.json"}


def test_a_folder_can_be_given_open(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    write_file_atomic(fd, "a", b"1", sync=True)
    append_lines(fd, "b", b"2\n")
    assert read_file_confined(fd, "a", bytes_max=1) == b"1"
    make_run_folder(fd, "run-1")
    os.close(fd)
    assert names(tmp_path) == {"a", "b", "run-1"}


def test_a_left_temporary_file_is_replaced_and_never_written_through(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"precious")
    (tmp_path / "a.tmp").symlink_to(tmp_path / "outside")
    write_file_atomic(tmp_path, "a", b"new", sync=False)
    assert (tmp_path / "outside").read_bytes() == b"precious"
    assert (tmp_path / "a").read_bytes() == b"new"
    assert names(tmp_path) == {"a", "outside"}


def test_a_link_in_place_of_the_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"precious")
    (tmp_path / "a").symlink_to(tmp_path / "outside")
    write_file_atomic(tmp_path, "a", b"new", sync=False)
    assert (tmp_path / "outside").read_bytes() == b"precious"
    assert not (tmp_path / "a").is_symlink()


def test_a_linked_run_folder_is_refused_everywhere(tmp_path: Path) -> None:
    runs, outside = tmp_path / "runs", tmp_path / "outside"
    runs.mkdir()
    outside.mkdir()
    (outside / "a").write_bytes(b"secret")
    (runs / "run-1").symlink_to(outside)
    with pytest.raises(StorageError, match="a link or a file"):
        make_run_folder(runs, "run-1")
    acts: tuple[Callable[[], object], ...] = (
        lambda: write_file_atomic(runs / "run-1", "a", b"x", sync=False),
        lambda: append_lines(runs / "run-1", "a", b"x"),
        lambda: read_file_confined(runs / "run-1", "a", bytes_max=10),
    )
    for act in acts:
        with pytest.raises(StorageError):
            act()
    assert (outside / "a").read_bytes() == b"secret"
    assert names(outside) == {"a"}


@pytest.mark.parametrize(
    "run_id",
    ["../x", "a/b", "", ".", "..", "CON", "x" * 300, "a\x00b", "ｒｕｎ", "/etc", "a\\b", " "],
)
def test_a_bad_run_id_makes_nothing(tmp_path: Path, run_id: str) -> None:
    (tmp_path / "runs").mkdir()
    with pytest.raises(ConfigError):
        make_run_folder(tmp_path / "runs", run_id)
    assert names(tmp_path) == {"runs"}
    assert names(tmp_path / "runs") == set()


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "..", "a\x00b", "x" * 252, "a\\b"])
def test_a_bad_file_name_is_refused_by_each_door(tmp_path: Path, name: str) -> None:
    acts: tuple[Callable[[], object], ...] = (
        lambda: write_file_atomic(tmp_path, name, b"x", sync=False),
        lambda: append_lines(tmp_path, name, b"x"),
        lambda: read_file_confined(tmp_path, name, bytes_max=10),
    )
    for act in acts:
        with pytest.raises(ConfigError):
            act()
    assert names(tmp_path) == set()


def test_run_folders(tmp_path: Path) -> None:
    assert make_run_folder(tmp_path, "run-1") == tmp_path / "run-1"
    assert (tmp_path / "run-1").stat().st_mode & 0o777 == 0o700
    assert make_run_folder(tmp_path, "run-1") == tmp_path / "run-1"
    (tmp_path / "run-2").write_text("x")
    with pytest.raises(StorageError, match="a link or a file"):
        make_run_folder(tmp_path, "run-2")
    with pytest.raises(StorageError):
        make_run_folder(tmp_path / "missing", "run-1")


def test_reading(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_file_confined(tmp_path, "a", bytes_max=5) == b"12345"
    assert read_file_confined(tmp_path, "missing", bytes_max=5) is None
    with pytest.raises(StorageError, match="over 4 bytes"):
        read_file_confined(tmp_path, "a", bytes_max=4)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for odd in ("link", "pipe", "folder"):
        with pytest.raises(StorageError):
            read_file_confined(tmp_path, odd, bytes_max=5)


class ScannedFileSystem(RealFileSystem):
    """Windows with a virus scanner: a rename is denied some times."""

    def __init__(self, denials: int, winerror: int) -> None:
        self.denials = denials
        self.winerror = winerror

    def replace(self, folder: int, old: str, new: str) -> None:
        if self.denials:
            self.denials -= 1
            error = PermissionError(13, "Access is denied")
            error.winerror = self.winerror  # type: ignore[attr-defined]
            raise error
        super().replace(folder, old, new)


@pytest.mark.parametrize("winerror", [5, 32, 33])
def test_a_scanner_holds_a_rename_up_for_a_while(tmp_path: Path, winerror: int) -> None:
    waits: list[int] = []
    fs = ScannedFileSystem(2, winerror)
    write_file_atomic(tmp_path, "a", b"new", sync=False, fs=fs, wait=waits.append)
    assert (tmp_path / "a").read_bytes() == b"new"
    assert len(waits) == 2


def test_a_scanner_that_never_lets_go_gives_the_true_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    waits: list[int] = []
    fs = ScannedFileSystem(1_000, 5)
    with pytest.raises(StorageError, match="Access is denied") as caught:
        write_file_atomic(tmp_path, "a", b"new", sync=False, fs=fs, wait=waits.append)
    assert isinstance(caught.value.__cause__, PermissionError)
    assert sum(waits) < 1_000
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == {"a"}


def test_another_refusal_is_not_tried_again(tmp_path: Path) -> None:
    waits: list[int] = []
    with pytest.raises(StorageError):
        write_file_atomic(
            tmp_path, "a", b"", sync=False, fs=ScannedFileSystem(1, 1), wait=waits.append
        )
    assert waits == []


def test_lines_are_appended_and_a_torn_one_is_cut(tmp_path: Path) -> None:
    append_lines(tmp_path, "log", b"one\ntwo\n", cut_torn=True)
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600
    with (tmp_path / "log").open("ab") as file:
        file.write(b"x" * 3_000_000)
    append_lines(tmp_path, "log", b"three\n", cut_torn=True)
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\nthree\n"
    (tmp_path / "torn").write_bytes(b"no line feed at all")
    append_lines(tmp_path, "torn", b"first\n", cut_torn=True)
    assert (tmp_path / "torn").read_bytes() == b"first\n"


@given(lines=st.lists(st.binary(max_size=5).filter(lambda b: b"\n" not in b)), cut=st.integers(0))
def test_whatever_a_crash_cuts_off_all_lines_are_whole_afterwards(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], cut: int
) -> None:
    folder = tmp_path_factory.mktemp("lines")
    text = b"".join(line + b"\n" for line in lines)
    (folder / "log").write_bytes(text[: cut % (len(text) + 1)])
    append_lines(folder, "log", b"last\n", cut_torn=True)
    *kept, last, rest = (folder / "log").read_bytes().split(b"\n")
    assert (last, rest) == (b"last", b"")
    assert kept == lines[: len(kept)]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_real_full_disk_is_called_that(tmp_path: Path) -> None:
    class Full(RealFileSystem):
        def create(self, folder: int, name: str) -> int:
            os.close(super().create(folder, name))
            return os.open("/dev/full", os.O_WRONLY)

    with pytest.raises(DiskFull, match="no space left"):
        write_file_atomic(tmp_path, "a", b"x", sync=True, fs=Full())
    assert names(tmp_path) == set()


def test_errors_are_of_our_tree(tmp_path: Path) -> None:
    with pytest.raises(LevError) as caught:
        write_file_atomic(tmp_path / "missing", "a", b"x", sync=False)
    assert str(tmp_path / "missing") in str(caught.value)
