"""The parts of torture: what the outside did by when, which file is newer, which calls fail."""

from __future__ import annotations

from pathlib import Path

import pytest

import leviath.simulation
from leviath.components.errors import ConfigError
from leviath.engine.file_thread import file_digest
from leviath.engine.tools import builtin_tools
from leviath.persistence.rows import MirrorRow
from leviath.providers.scripted import Scripted
from leviath.simulation.disk_log import FolderSync, Link, Rename, Write
from leviath.simulation.images import Versions
from leviath.simulation.scenario import (
    WORK_FILES_MAX,
    Book,
    demo,
    read_folder,
    scenario_of,
    write_folder,
)
from leviath.simulation.torture import CALLS, FaultAt, Torture, failing_call

ROOT = Path(__file__).parents[2]


def test_the_bundled_demonstration_is_the_one_that_is_shown() -> None:
    # Where it is installed: beside the modules, in a checkout as in a wheel.
    bundled = read_folder(Path(leviath.simulation.__file__).parent / "demo")
    shown = read_folder(ROOT / "examples" / "demo")
    assert bundled == {name: shown[name] for name in bundled}
    assert set(shown) - set(bundled) == {"expected.txt", "run.py"}


def test_a_book_tells_what_was_done_by_a_position(tmp_path: Path) -> None:
    at = 10
    write_folder({"a.txt": b"1", "go.sh": b"#!/bin/sh\n"}, tmp_path / "work")
    assert (tmp_path / "work" / "go.sh").stat().st_mode & 0o111
    book = Book(tmp_path / "work", tmp_path / "runs", lambda: at)
    at = 20
    book.begin("send", "run:1", "once")
    book.begin("look", "run:2", "pure")
    (tmp_path / "work" / "a.txt").write_bytes(b"2")
    write_folder({"run/spill/draft": b"d", "run/meta.json": b"m"}, tmp_path / "runs")
    book.end()
    at = 30
    book.end()
    assert not book.busy
    assert book.made_by(19) == frozenset()
    assert book.made_by(20) == {"run:1"}
    assert book.states_at(5) == (0, 0)
    assert book.states_at(15) == (0, 0)
    first, last = book.states_at(25)
    assert [book.states[place][1].work["a.txt"] for place in (first, last)] == [b"1", b"2"]
    assert book.states[last][1].spill == {"run/spill/draft": b"d"}
    assert book.states_at(99) == (4, 4)


def test_a_file_is_newer_when_no_row_vouches_for_it_yet() -> None:
    log = [
        operation
        for number, data in enumerate((b"one", b"two", b"three"), start=1)
        for operation in (
            Link(number, "runs/r/meta.json.tmp"),
            Write(number, 0, data),
            Rename("runs/r/meta.json.tmp", "runs/r/meta.json"),
            FolderSync("runs/r"),
        )
    ]
    versions = Versions(log)
    name = "runs/r/meta.json"
    first, second, third = map(file_digest, (b"one", b"two", b"three"))
    row = MirrorRow(1, "meta.json", 4, 3, first, second)
    assert not versions.is_newer(name, b"one", row)
    assert not versions.is_newer(name, b"two", row)
    assert versions.is_newer(name, b"three", row)
    assert versions.is_newer(name, b"one", None)
    assert not versions.is_newer(name, b"thr", row), "torn"
    skipped = MirrorRow(1, "meta.json", 4, 3, first, file_digest(b"never written"))
    assert not versions.is_newer(name, b"one", skipped)
    assert versions.is_newer(name, b"two", skipped)
    assert not versions.is_newer(name, b"three", MirrorRow(1, "m", 5, 5, second, third))


def test_the_calls_that_fail_are_all_or_spread_over_the_scenario() -> None:
    played = Torture(demo(Scripted))
    try:
        every = played.faults(most=None)
        counts = played.told().recording.calls
        assert len(every) == 2 * sum(counts[kind] for kind in CALLS)
        some = played.faults(most=5)
        assert {at.kind for at in some} == {kind for kind in CALLS if counts[kind]}
        for kind in CALLS:
            chosen = [at.nth for at in some if at.kind == kind and at.failure == "eio"]
            assert len(chosen) == min(counts[kind], len(chosen)) <= 5
            assert chosen[-1] > counts[kind] - counts[kind] // 2 if len(chosen) > 1 else True
    finally:
        played.close()


def test_a_failing_call_is_named_as_it_is_told() -> None:
    at = FaultAt("write", 17, "eio")
    assert failing_call(str(at)) == at
    for text in ("", "write", "read:1:eio", "write:1:full", "write:-1:eio"):
        with pytest.raises(ConfigError, match="write:17:eio"):
            failing_call(text)


def test_a_working_folder_that_is_too_large_is_refused(tmp_path: Path) -> None:
    for number in range(WORK_FILES_MAX + 1):
        (tmp_path / str(number)).touch()
    with pytest.raises(ConfigError, match="more than 256 files"):
        scenario_of("agent", task="", work=tmp_path, providers=list)
    assert len(scenario_of("agent", task="", work=None, providers=list).tools) == len(
        builtin_tools()
    )
