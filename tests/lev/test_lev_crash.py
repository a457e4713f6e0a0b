"""A host that is killed: what a listing shows, and that every way on leads to an ending."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import pytest
from lev_commands import LIMIT_S, Place, finish, lines_until

if TYPE_CHECKING:
    from pathlib import Path

TOOLS = """
import threading
import leviath.engine.tools as tools

@tools.tool(effect="once")
def ring(text: str) -> str:
    "Ring a bell, once."
    with open("rung", "a") as file:
        file.write(text + "\\\\n")
    threading.Event().wait()
    return "rung"

@tools.tool(name="ring", effect="once")
def ring_quickly(text: str) -> str:
    "Ring a bell, once."
    with open("rung", "a") as file:
        file.write(text + "\\\\n")
    return "rung"

hanging, quick = [ring], [ring_quickly]
""".replace("\\\\", "\\")

RINGS = """
[[turn]]
calls = [{ name = "ring", arguments = { text = "ding" }, id = "bell 1" }]
[[turn]]
calls = [{ name = "submit_output", arguments = { content = "rang" } }]
[[turn]]
text = "done"
"""


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=LIMIT_S)


def start_hanging(place: Place, count: int) -> subprocess.Popen[str]:
    """A host of so many runs, each in the middle of a model call."""
    words = ("--script", "hangs.toml", "--count", str(count))
    process = place.start("run", "agent", "--task", "a b", *words)
    entered = 0
    while entered < count:
        entered += sum("stage main" in line for line in lines_until(process, "stage main"))
    return process


def statuses(place: Place) -> dict[str, str]:
    body = place.lev("ps", "--all", "--json").document()
    return {
        run["run_id"]: run["status"]
        for part in ("runs", "finished", "not_running")
        for run in body[part]
    }


def test_runs_of_a_killed_host_are_interrupted_and_can_all_be_brought_to_an_end(
    place: Place,
) -> None:
    process = start_hanging(place, 3)
    hosted = place.lev("ps", "--json").document()
    assert hosted["hosted"] is True
    assert [run["hosted"] for run in hosted["runs"]] == [True] * 3
    assert hosted["health"]["agents"]["active"] == 3
    assert "interrupted" not in place.lev("ps").out
    kill(process)

    killed = place.lev("ps", "--json").document()
    assert killed["hosted"] is False
    assert [(run["status"], run["interrupted"]) for run in killed["runs"]] == [
        ("running", True)
    ] * 3
    assert killed["health"]["agents"]["active"] == 0
    shown = place.lev("ps").out
    assert shown.count("interrupted") == 4  # three rows, one footer
    first, second, third = place.ids()
    assert "interrupted" in place.lev("show", first).out

    assert place.lev("cancel", first, "--why", "not needed").code == 0
    assert place.lev("pause", second, "--why", "waits for Ann").code == 0
    assert statuses(place) == {first: "cancelled", second: "paused", third: "running"}
    for _ in range(3):
        assert place.lev("host", "--script", str(place.path / "replies.toml")).code == 0
        assert statuses(place)[second] == "paused"
    assert "waits for Ann" in place.lev("show", second).out
    assert "paused by operator: waits for Ann" in place.lev("host").out
    assert place.lev("resume", second).code == 0
    assert place.lev("host", "--script", str(place.path / "replies.toml")).code == 0
    assert statuses(place) == {first: "cancelled", second: "complete", third: "complete"}
    told = place.lev("show", third).out
    assert "for 1 interrupted call" in told
    assert "0.0017 + " in told


@pytest.mark.parametrize(
    ("verdict", "rung", "status"),
    [
        ("again", "ding\nding\n", "complete"),
        ("done", "ding\n", "complete"),
        ("stop", "ding\n", "cancelled"),
    ],
)
def test_a_call_that_may_have_happened_waits_for_a_word(
    place: Place, monkeypatch: pytest.MonkeyPatch, verdict: str, rung: str, status: str
) -> None:
    monkeypatch.chdir(place.path)
    place.agent("ring")
    place.write("mine.py", TOOLS)
    place.write("rings.toml", RINGS)
    words = ("--script", "rings.toml", "--tools", "./mine.py:hanging")
    process = place.start("run", "agent", "--task", "a b", *words)
    list(lines_until(process, "tool ring"))
    wait_for_text(process, place.path / "rung")
    kill(process)

    quick = ("--script", "rings.toml", "--tools", "./mine.py:quick")
    hosted = place.lev("host", *quick)
    assert hosted.code == 0
    assert "tool approval" in hosted.out
    (run_id,) = place.ids()
    shown = place.lev("show", run_id).out
    assert "may have happened" in shown
    assert '{"text":"ding"}' in shown.replace('": "', '":"')
    assert f"lev decide --home {place.home} {run_id} 'bell 1'" in shown
    assert (place.path / "rung").read_text() == "ding\n"

    wrong = place.lev("decide", run_id, "bell 1", "--allow")
    assert wrong.code == 1
    assert "takes again, done or stop" in wrong.err
    other = place.lev("decide", run_id, "bell", "--done")
    assert other.code == 1
    assert "these wait: bell 1" in other.err
    assert place.lev("decide", run_id, "bell 1", f"--{verdict}").code == 0
    twice = place.lev("decide", run_id, "bell 1", f"--{verdict}")
    assert twice.code == 1
    assert place.lev("host", *quick).code == 0
    assert statuses(place) == {run_id: status}
    assert (place.path / "rung").read_text() == rung


def wait_for_text(process: subprocess.Popen[str], path: Path) -> None:
    """Until the tool has written; the host may be slow, but it is alive meanwhile."""
    while not (path.exists() and path.read_text()):
        assert process.poll() is None
        try:
            process.wait(timeout=0.01)
        except subprocess.TimeoutExpired:
            continue


def test_a_call_that_asks_is_allowed_or_denied(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.path)
    place.agent("ring", ask="ring")
    place.write("mine.py", TOOLS)
    place.write("rings.toml", RINGS)
    quick = ("--script", "rings.toml", "--tools", "./mine.py:quick")
    asked = place.lev("run", "agent", "--task", "a b", *quick)
    assert asked.code == 1
    assert "lev show" in asked.err
    (run_id,) = place.ids()
    assert "asks" in place.lev("show", run_id).out
    assert "1 run waits for somebody" in place.lev("ps").out
    assert place.lev("decide", run_id, "bell 1", "--deny").code == 0
    assert place.lev("host", *quick).code == 0
    assert statuses(place) == {run_id: "complete"}
    assert not (place.path / "rung").exists()
    allowed = place.lev("run", "agent", "--task", "a b", *quick, "--allow", "ring")
    assert allowed.code == 0
    assert (place.path / "rung").read_text() == "ding\n"


def test_requests_to_a_hosted_home_say_who_has_it(place: Place) -> None:
    process = start_hanging(place, 1)
    (run_id,) = place.ids()
    for words in (
        ("pause", run_id),
        ("resume", run_id),
        ("cancel", run_id),
        ("host",),
        ("gc", "--keep", "0"),
    ):
        answer = place.lev(*words)
        if words[0] == "gc":
            assert answer.out == "nothing to remove\n"
            continue
        assert answer.code == 1
        assert f"process {process.pid} hosts" in answer.err
    assert statuses(place) == {run_id: "running"}
    process.send_signal(signal.SIGTERM)
    assert finish(process).code == 1


def test_what_a_status_does_not_allow_is_refused(place: Place) -> None:
    place.spawn()
    (run_id,) = place.ids()
    for words in (("pause", run_id), ("resume", run_id), ("cancel", run_id)):
        answer = place.lev(*words)
        assert answer.code == 1
        assert "complete" in answer.err or "has ended" in answer.err
    assert place.lev("decide", run_id, "x", "--done").code == 1
    assert statuses(place) == {run_id: "complete"}


def test_a_cancelled_run_can_be_started_again(place: Place) -> None:
    process = start_hanging(place, 1)
    kill(process)
    (run_id,) = place.ids()
    assert place.lev("cancel", run_id).code == 0
    assert place.lev("cancel", run_id).code == 0
    assert place.lev("resume", run_id).code == 0
    assert place.lev("host", "--script", str(place.path / "replies.toml")).code == 0
    assert statuses(place) == {run_id: "complete"}
