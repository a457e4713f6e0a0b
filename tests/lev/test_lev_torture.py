"""``lev torture``: nothing breaks over the demonstration, and every planted fault is found."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from lev_commands import SRC, Answer

from leviath.lev import cli
from leviath.simulation.checkers import NAMES

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def lev(capsys: pytest.CaptureFixture[str]) -> Any:
    """Call ``lev torture`` in this process."""

    def call(*words: str) -> Answer:
        capsys.readouterr()
        try:
            code = cli.run(["torture", *words])
        except SystemExit as error:
            code = int(error.code or 0)
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return call


def broken(document: dict[str, Any]) -> dict[str, int]:
    """Breaches over all phases, those that there are."""
    found = {name: sum(phase["breaches"][name] for phase in document["phases"]) for name in NAMES}
    return {name: count for name, count in found.items() if count}


@pytest.mark.slow
def test_no_crash_of_the_demonstration_breaks_anything(lev: Any) -> None:
    answer = lev("--only", "images", "--json")
    document = answer.document()
    assert (document["failures"], broken(document), answer.code) == ([], {}, 0)
    assert document["phases"][0]["cases"] > 300
    assert document["driven_on"] > 15
    assert list(document["invariants"]) == list(NAMES)


@pytest.mark.slow
def test_no_failing_call_of_the_demonstration_breaks_anything(lev: Any) -> None:
    answer = lev("--only", "faults", "--json")
    document = answer.document()
    assert (document["failures"], broken(document), answer.code) == ([], {}, 0)
    assert [phase["name"] for phase in document["phases"]] == ["enospc", "eio"]
    assert min(phase["cases"] for phase in document["phases"]) > 40


def test_the_table_has_a_row_for_each_part_and_a_column_for_each_invariant(lev: Any) -> None:
    answer = lev("--only", "histories", "--histories", "20")
    assert answer.code == 0
    head, row = answer.out.splitlines()
    assert head.split() == ["cases", *NAMES]
    assert row.split() == ["random", "histories", "20", *("0" for _ in NAMES)]
    assert answer.err == "random histories ...\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "invariant"), [("sync", "steps"), ("journal", "steps"), ("file", "files")]
)
def test_a_fault_planted_in_the_disk_is_found(lev: Any, plant: str, invariant: str) -> None:
    answer = lev("--only", "images", "--plant", plant, "--json", "-q")
    assert answer.code == 1
    assert broken(answer.document())[invariant]
    assert answer.document()["failures"][0]["again"] == (
        f"lev torture --only images --plant {plant}"
    )


@pytest.mark.parametrize(
    ("plant", "invariant"),
    [("sync", "steps"), ("journal", "steps"), ("file", "files"), ("outcome", "totals")],
)
def test_a_fault_planted_in_histories_is_found_and_its_command_repeats_it(
    lev: Any, plant: str, invariant: str
) -> None:
    answer = lev("--only", "histories", "--histories", "40", "--plant", plant, "-q")
    assert answer.code == 1
    repeat = next(line for line in answer.out.splitlines() if line.startswith("    again: "))
    words = shlex.split(repeat.removeprefix("    again: "))
    assert words[:2] == ["lev", "torture"]
    again = lev(*words[2:])
    assert again.code == 1
    assert f"{invariant}: " in again.out.splitlines()[-1]
    assert len(again.out.splitlines()) <= 10
    sound = lev(*words[2 : words.index("--plant")])
    assert (sound.code, sound.out.splitlines()[-1]) == (0, "nothing broken")


def test_a_single_call_can_be_failed_again(lev: Any) -> None:
    for at in ("write:40:enospc", "sync:20:eio"):
        document = lev("--fault", at, "--json").document()
        assert [phase["cases"] for phase in document["phases"]] == [1]
        assert broken(document) == {}


def test_an_agent_of_ones_own_is_tortured_with_its_tools(lev: Any, tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "letter.txt").write_text("Dear", encoding="utf-8")
    (tmp_path / "agent" / "agent.leviath").write_text(
        '[agent]\nname = "postman"\n[stages.main]\navailable_tools = ["post"]\n'
        'model = { provider = "scripted", model = "m" }\n',
        encoding="utf-8",
    )
    (tmp_path / "replies.toml").write_text(
        '[[turn]]\ncalls = [{ name = "post", arguments = { letter = "letter.txt" } }]\n'
        'usage = { prompt = 9 }\n[[turn]]\ntext = "posted"\n',
        encoding="utf-8",
    )
    (tmp_path / "mine.py").write_text(
        "import pathlib, leviath\n\n\n@leviath.tool\ndef post(call: leviath.ToolCall, letter: str)"
        ' -> str:\n    "Post."\n    place = pathlib.Path(call.workdir)\n'
        '    with open(place / "sent", "a") as sent:\n'
        "        sent.write((place / letter).read_text())\n    return 'sent'\n",
        encoding="utf-8",
    )
    words = [str(tmp_path / "agent"), "--workdir", str(tmp_path / "work")]
    words += ["--script", str(tmp_path / "replies.toml"), "--tools", f"{tmp_path}/mine.py:post"]
    answer = lev(*words, "--histories", "60", "--json", "-q", "--only", "images")
    assert (answer.code, broken(answer.document())) == (0, {})
    answer = lev(*words, "--histories", "60", "--json", "-q", "--only", "histories")
    assert (answer.code, broken(answer.document())) == (0, {})
    assert not (tmp_path / "work" / "sent").exists(), "the folder itself is only copied"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_goes_on_forever_until_interrupted_and_prints_seeds(number: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "leviath.lev", "torture", "--forever", "--seed", "7"],
        env=os.environ | {"PYTHONPATH": str(SRC)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        said = [process.stderr.readline() for _ in range(2)]
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    assert said == ["random histories ...\n", "seeds 7 to 206: nothing broken\n"]
    assert process.returncode == 0
    assert out.splitlines()[-1].split()[:2] == ["random", "histories"]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--fault", "write"), 1, "write KIND:N:FAILURE"),
        (("--fault", "write:x:eio"), 1, "write KIND:N:FAILURE"),
        (("--acts", "1,x"), 2, "'x' is no whole number"),
        (("--plant", "weeds"), 2, "invalid choice"),
        (("--seed", "-1"), 2, "is no whole number"),
        (("nowhere",), 1, "no model answers"),
        (("nowhere", "--script", "nothing.toml"), 1, "nowhere"),
    ],
)
def test_what_cannot_be_played_is_one_error(
    lev: Any, words: tuple[str, ...], code: int, told: str
) -> None:
    answer = lev(*words)
    assert answer.code == code
    assert told in answer.err
    assert "Traceback" not in answer.err
    assert json.dumps(answer.out) == '""'
