"""``lev run`` and ``lev validate``."""

from __future__ import annotations

import json
import signal

import pytest
from lev_commands import Place, finish, lines_until


def test_a_run_is_driven_to_its_end(place: Place) -> None:
    answer = place.spawn()
    spawned, output = answer.out.splitlines()
    assert answer.code == 0
    assert spawned == f"spawned {place.ids()[0]}"
    assert output == "two notes"
    for word in ("spawned", "stage main", "turn 1: 1,452 tokens in, 31 out, $0.0012", "complete"):
        assert word in answer.err


def test_json_is_one_document_and_progress_may_be_left_out(place: Place) -> None:
    answer = place.spawn("--json", "--quiet", "--yolo", "--metadata", "team=a=b")
    body = answer.document()
    assert answer.code == 0
    assert answer.err == ""
    assert body["run_id"] == place.ids()[0]
    assert body["blueprint_path"] == str(place.path / "agent")
    assert body["workdir"] == str(place.path)
    assert body["yolo"] is True
    assert body["status"] == "complete"
    assert body["output"] == "two notes"
    assert body["cost_usd"] == pytest.approx(0.0017)
    assert "team=a=b" in place.lev("show", body["run_id"]).out


def test_count_starts_so_many_and_lists_them(place: Place) -> None:
    body = place.spawn("--json", "--count", "3").document()
    assert [entry["status"] for entry in body] == ["complete"] * 3
    assert sorted(entry["run_id"] for entry in body) == sorted(place.ids())


def test_a_key_starts_one_run_only(place: Place) -> None:
    first = place.spawn("--json", "--key", "ticket-7").document()
    second = place.spawn("--json", "--key", "ticket-7").document()
    assert first["run_id"] == second["run_id"]
    assert place.ids() == [first["run_id"]]
    assert place.spawn("--key", "k", "--count", "2").code == 1


def test_a_task_may_be_a_file(place: Place) -> None:
    place.write("task.md", "\n  Look at the tea.\n\n")
    body = place.spawn("--json", task=str(place.path / "task.md")).document()
    assert "Look at the tea." in place.lev("show", body["run_id"]).out


@pytest.mark.parametrize(
    "task",
    ["./task", "../task", "/nowhere/task", "~/no-such-task", "notes/task", "task.md", "A.TXT"],
)
def test_a_task_that_looks_like_a_path_and_leads_nowhere_is_refused(
    place: Place, task: str
) -> None:
    answer = place.spawn(task=task)
    assert answer.code == 1
    assert "looks like a path" in answer.err
    assert not place.home.exists()


@pytest.mark.parametrize("task", ["Fix and/or drop it", "word", "v1.2", "a\nb.md", "x" * 5_000])
def test_other_tasks_are_text(place: Place, task: str) -> None:
    assert place.spawn(task=task).code == 0


def test_a_task_that_is_wanted_is_asked_for_and_one_without_a_region_is_taken(place: Place) -> None:
    answer = place.spawn(task="")
    assert answer.code == 1
    assert "needs a task" in answer.err
    model = '[stages.main.model]\nmodels = [{ provider = "scripted", model = "m" }]\n'
    place.write("agent/agent.leviath", f'[agent]\nname = "bare"\n[stages.main]\n{model}')
    answer = place.spawn()
    assert answer.code == 0, answer.err


def test_what_cannot_be_run_leaves_nothing(place: Place) -> None:
    agent = str(place.path / "agent")
    place.write("big.md", "x" * (1024 * 1024 + 1))
    place.write("odd.md", "").write_bytes(b"\xff")
    unbuilt = '[agent]\nname = "w"\ndynamic_tools = true\n[stages.main]\n'
    place.write("unbuilt/agent.leviath", unbuilt)
    for words, fault in (
        (("run", str(place.path / "nowhere"), "--task", "a b"), "there is no such file"),
        (("run", str(place.path / "unbuilt")), "dynamic_tools"),
        (("run", agent, "--task", "a b", "--workdir", str(place.path / "gone")), "is no folder"),
        (("run", agent, "--task", str(place.path / "big.md")), "1,048,576"),
        (("run", agent, "--task", str(place.path / "odd.md")), "is not UTF-8"),
        (("run", agent, "--task", "a b", "--region", "task"), "is no NAME=TEXT"),
        (("run", agent, "--task", "a b", "--script", str(place.path / "gone.toml")), "gone.toml"),
        (("run", "a\0b", "--task", "a b"), "NUL"),
    ):
        answer = place.lev(*words)
        assert answer.code == 1
        assert fault in answer.err
        assert not place.home.exists()


def test_an_installed_agent_is_found_by_its_name(place: Place) -> None:
    text = (place.path / "agent/agent.leviath").read_text(encoding="utf-8")
    place.write("home/agents/known-agent/agent.leviath", text)
    script = str(place.path / "replies.toml")
    answer = place.lev("run", "known-agent", "--task", "a b", "--script", script)
    assert answer.code == 0, answer.err


def test_without_its_provider_a_run_waits_and_says_what_helps(place: Place) -> None:
    answer = place.lev("run", str(place.path / "agent"), "--task", "a b")
    assert answer.code == 1
    assert "its provider is not here" in answer.err
    assert "--script FILE" in answer.err
    listing = place.lev("ps", "--json").document()
    assert [entry["wait_reason"] for entry in listing["runs"]] == ["needs_setup"]
    hosted = place.lev("host")
    assert hosted.code == 0
    assert "1 run left" in hosted.out
    assert "give what is missing: lev host" in hosted.out
    again = place.lev("host", "--script", str(place.path / "replies.toml"))
    assert again.code == 0
    assert again.out == "nothing is left to drive\n"
    assert place.lev("result", place.ids()[0]).out == "two notes\n"


def test_a_run_that_ends_in_error_is_no_success(place: Place) -> None:
    place.write(
        "fails.toml", '[[turn]]\nerror = { kind = "bad_request", message = "no\\u001b[2J" }\n'
    )
    answer = place.spawn(script="fails.toml")
    assert answer.code == 1
    assert "\x1b" not in answer.err
    assert "\\x1b[2J" in answer.err
    assert place.lev("result", place.ids()[0]).code == 1


def test_ctrl_c_closes_in_order_and_says_how_to_go_on(place: Place) -> None:
    words = ("run", "agent", "--task", "a b", "--script", "hangs.toml")
    process = place.start(*words)
    list(lines_until(process, "stage main"))
    process.send_signal(signal.SIGINT)
    answer = finish(process)
    assert answer.code == 1
    assert "Traceback" not in answer.err
    assert "lev host" in answer.err
    listing = place.lev("ps", "--json").document()
    assert [entry["status"] for entry in listing["runs"]] == ["running"]
    assert listing["runs"][0]["interrupted"] is True


def test_a_second_signal_leaves_at_once_and_loses_nothing(place: Place) -> None:
    process = place.start("run", "agent", "--task", "a b", "--script", "hangs.toml")
    list(lines_until(process, "stage main"))
    process.send_signal(signal.SIGINT)
    list(lines_until(process, "closing in order"))
    process.send_signal(signal.SIGINT)
    answer = finish(process)
    assert answer.code == 1
    assert "interrupted;" not in answer.err
    assert place.lev("ps", "--json").document()["runs"][0]["interrupted"] is True
    assert place.lev("host", "--script", str(place.path / "replies.toml")).code == 0
    assert place.lev("result", place.ids()[0]).out == "two notes\n"


def test_a_host_stays_when_asked_to_and_stops_in_order(place: Place) -> None:
    process = place.start("host", "--forever")
    list(lines_until(process, "hosting on"))
    process.send_signal(signal.SIGTERM)
    answer = finish(process)
    assert answer.code == 0
    assert "Traceback" not in answer.err


def test_validate_tells_faults_and_warnings(place: Place) -> None:
    agent = str(place.path / "agent")
    assert place.lev("validate", agent).out == "small is sound\n"
    body = place.lev("validate", agent, "--json").document()
    assert body["valid"] is True
    assert body["stages"] == ["main"]
    place.write(
        "warned/agent.leviath", '[agent]\nname = "w"\ndynamic_tools = true\n[stages.main]\n'
    )
    warned = str(place.path / "warned")
    assert place.lev("validate", warned).code == 0
    assert "warning: " in place.lev("validate", warned).out
    strict = place.lev("validate", warned, "--deny-warnings", "--json")
    assert strict.code == 1
    assert json.loads(strict.out)["valid"] is False
    place.write("broken/agent.leviath", '[agent]\nnames = "w"\n[stages.main]\nmode = "odd"\n')
    broken = place.lev("validate", str(place.path / "broken"), "--json")
    assert broken.code == 1
    assert len(broken.document()["errors"]) == 2
    told = place.lev("validate", str(place.path / "broken"))
    assert told.out == ""
    assert told.err.splitlines()[-1].startswith("Error: ")
