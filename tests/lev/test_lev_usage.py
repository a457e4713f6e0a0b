"""What every call keeps: exit codes, streams, errors without a traceback, ids at the border."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from lev_commands import SRC, Place, finish

from leviath.lev.arguments import COMMANDS, parser

if TYPE_CHECKING:
    from pathlib import Path


def test_the_version_is_the_last_word_of_the_last_line(place: Place) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "leviath.lev", "--version"],
        env=os.environ | {"PYTHONPATH": str(SRC)},
        capture_output=True,
        check=True,
        text=True,
    )
    name, version = process.stdout.splitlines()[-1].split()
    assert name == "lev"
    assert version[0].isdigit()
    assert process.stderr == ""


@pytest.mark.parametrize(
    "words",
    [
        ("ps", "--limit", "0"),
        ("ps", "--limit", "1001"),
        ("ps", "--after", "-1"),
        ("decide", "run", "call"),
        ("decide", "run", "call", "--allow", "--deny"),
        ("gc", "--older-than", "30"),
        ("gc", "--older-than", "٣d"),
        ("result", "run", "--raw", "--json"),
        ("run", "--count", "0"),
        ("show",),
        ("nothing",),
    ],
)
def test_a_usage_error_is_2(place: Place, words: tuple[str, ...]) -> None:
    answer = place.lev(*words)
    assert answer.code == 2
    assert answer.out == ""
    assert "Error: " in answer.err
    assert not place.home.exists()


BAD_IDS = ["", "..", ".", "../x", "a/b", "a\0b", "x" * 300, "аgent", "a b", "a\x1b[31m", "a%"]
ON_A_RUN = [
    ("show",),
    ("result",),
    ("pause",),
    ("resume",),
    ("cancel",),
    ("decide", "call", "--stop"),
]


@pytest.mark.parametrize("run_id", BAD_IDS, ids=ascii)
@pytest.mark.parametrize("words", ON_A_RUN, ids=lambda words: words[0])
def test_what_no_run_can_be_called_is_refused(
    place: Place, words: tuple[str, ...], run_id: str
) -> None:
    name, *rest = words
    answer = place.lev(name, run_id, *rest)
    assert answer.code == 1
    assert answer.err.startswith("Error: run id ")
    assert answer.err.count("\n") == 1
    assert len(answer.err) < 300
    assert "\0" not in answer.err
    assert "\x1b" not in answer.err
    assert not place.home.exists()


@pytest.mark.parametrize("words", ON_A_RUN, ids=lambda words: words[0])
def test_a_run_that_is_not_there_is_an_error_that_makes_nothing(
    place: Place, words: tuple[str, ...]
) -> None:
    name, *rest = words
    answer = place.lev(name, "CON", *rest)
    assert answer.code == 1
    assert "Error: " in answer.err
    assert "CON" in answer.err
    assert not place.home.exists()


def test_an_id_may_be_cut_while_it_names_one_run(place: Place) -> None:
    assert place.spawn("--count", "2").code == 0
    first, second = place.ids()
    alike = next(at for at in range(len(first)) if first[at] != second[at])
    assert place.lev("result", first[: alike + 1]).out == "two notes\n"
    answer = place.lev("result", first[:alike])
    assert answer.code == 1
    assert first in answer.err
    assert second in answer.err


def test_an_error_shows_its_traceback_only_when_asked(place: Place) -> None:
    assert "Traceback" not in place.lev("show", "nobody").err
    verbose = place.lev("show", "nobody", "-v")
    assert "Traceback" in verbose.err
    assert verbose.err.splitlines()[-1].startswith("Error: ")


def test_a_home_that_is_no_folder_or_no_path_is_one_clear_error(place: Place) -> None:
    file = place.write("file", "text")
    place.home = file
    assert "not a folder" in place.spawn().err
    place.home = place.path / "a\0b"
    assert "is not a path" in place.lev("ps").err


def test_a_damaged_database_is_one_clear_error_and_stays_as_it_is(place: Place) -> None:
    place.spawn()
    database = place.home / "world.db"
    data = b"no database at all" * 100
    database.write_bytes(data)
    for words in (("ps",), ("ps", "--json"), ("show", "x")):
        answer = place.lev(*words)
        assert answer.code == 1
        assert answer.out == ""
        assert "is not a SQLite database" in answer.err
    assert database.read_bytes() == data


def test_every_command_can_be_called_and_explains_itself(place: Place) -> None:
    for name in COMMANDS:
        answer = place.lev(name, "--help")
        assert answer.code == 0
        assert f"lev {name}" in answer.out
    assert set(COMMANDS) <= set(parser().format_help().split())


def test_the_current_folder_is_no_place_to_import_from(place: Place) -> None:
    place.write("mine.py", "providers = []\n")
    place.write("trio.py", "raise SystemExit('a file of the workdir was imported')\n")
    by_name = finish(place.start("host", "--providers", "mine:providers"))
    assert by_name.code == 1
    assert "No module named 'mine'" in by_name.err
    by_path = finish(place.start("host", "--providers", "./mine.py:providers"))
    assert by_path.code == 0, by_path.err


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("mine.py", "names nothing"),
        (":x", "names nothing"),
        ("./gone.py:x", "there is no such file"),
        ("./mine.py:gone", "has no 'gone'"),
        ("./mine.py:number", "is no provider"),
        ("./mine.py:fails", "ZeroDivisionError"),
        ("./broken.py:x", "SyntaxError"),
    ],
)
def test_a_provider_that_cannot_be_had_is_one_clear_error(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, fault: str
) -> None:
    place.write("mine.py", "number = 3\ndef fails():\n    return 1 / 0\n")
    place.write("broken.py", "def\n")
    monkeypatch.chdir(tmp_path)
    answer = place.lev("host", "--providers", name)
    assert answer.code == 1
    assert fault in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    "words", [("ps",), ("ps", "--home", "x"), ("validate", "x"), ("run", "x"), ("import", "x")]
)
def test_a_current_directory_that_is_gone_is_said_in_one_line(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    doomed = tmp_path / "doomed"
    doomed.mkdir()
    code = (
        "import os, sys; os.rmdir(os.getcwd()); from leviath.lev.cli import run; "
        "sys.exit(run(sys.argv[1:]))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=doomed,
        env=os.environ | {"PYTHONPATH": str(SRC), "LEVIATH_HOME": str(tmp_path / "home")},
        capture_output=True,
        check=False,
        text=True,
    )
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr.startswith("Error: the current directory is gone")
    assert process.stderr.count("\n") == 1
    assert not (tmp_path / "home").exists()
