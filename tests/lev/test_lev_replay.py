"""``lev replay``, ``at``, ``diff``, ``why`` and ``export``: what they print and return."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from lev_commands import Place

from leviath.lev import cli

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def started(place: Place, workdir: Path | None = None) -> str:
    """A run that ended; its id."""
    script = str(place.path / "replies.toml")
    work = ("--workdir", str(workdir or place.path))
    answer = place.lev(
        "run", str(place.path / "agent"), "-t", "look", "-q", "--script", script, *work
    )
    assert answer.code == 0, answer.err
    (run,) = (place.home / "runs").iterdir()
    return run.name


def plain(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.run(words)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_home_and_its_export_replay_the_same(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = started(place)
    code, home_said, _ = plain(capsys, "replay", str(place.home))
    assert code == 0
    assert home_said.startswith("same: ")
    folder = str(place.path / "out")
    done = place.lev("export", "all", folder, "--json").document()
    assert done["runs"] == [run_id]
    assert plain(capsys, "replay", folder)[:2] == (0, home_said)
    assert place.lev("export", run_id[:8], folder).code == 0
    code, said, _ = plain(capsys, "replay", folder, "--json")
    assert code == 0
    assert '"same": true' in said
    assert plain(capsys, "why", run_id, "--home", folder)[1] == place.lev("why", run_id).out


def test_a_difference_is_told_and_accepted(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    from leviath.components.marker import Marker
    from leviath.persistence.saved import open_saved
    from leviath.persistence.saved_folder import SavedFolder, write_world
    from leviath.simulation.replay import Replayer
    from leviath.systems.schedule import PER_RUN, Schedule

    run_id = started(place)
    folder = place.path / "out"
    place.lev("export", "all", str(folder))
    with open_saved(folder) as saved:
        assert isinstance(saved, SavedFolder)
        without: Schedule = {m: s for m, s in PER_RUN.items() if m is not Marker.resolve_transition}
        rows = list(Replayer(saved, schedule=without).rows())
        write_world(folder, saved.header_under("1", rows[-1]), [], rows)
    code, said, _ = plain(capsys, "replay", str(folder))
    assert code == 1
    assert said.startswith("rules changed: step ")
    assert run_id in said
    assert "  old: " in said
    assert "  new: " in said
    assert plain(capsys, "replay", "--accept", str(folder))[0] == 0
    assert plain(capsys, "replay", str(folder))[0] == 0
    code, _, error = plain(capsys, "replay", "--accept", str(place.home))
    assert code == 1
    assert "export" in error


def test_at_diff_and_why_read_the_history(place: Place) -> None:
    run_id = started(place)
    causes = place.lev("why", run_id, "--json").document()["causes"]
    born, ended = causes[0]["step"], causes[-1]["step"]
    assert causes[0]["inputs"][0]["type"] == "Spawn"
    told = place.lev("why", run_id).out
    assert told.startswith(f"step {born} at ")
    assert "-> complete" in told
    assert run_id not in place.lev("at", str(born - 1)).out
    assert "complete" in place.lev("at", str(ended)).out
    parts = place.lev("at", str(ended), run_id, "--json").document()["owners"][0]["parts"]
    assert parts["Status"]["status"] == "complete"
    assert 'status: "complete"' not in place.lev("at", str(born), run_id).out
    names = {
        row["component"] for row in place.lev("diff", str(born), str(ended), "--json").document()
    }
    assert {"Status", "Cost"} <= names
    assert "Status" in place.lev("diff", str(born), str(ended)).out
    assert place.lev("diff", str(born), str(born)).out == "nothing differs\n"
    assert place.lev("at", "999999").code == 1


def test_what_is_no_world_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = plain(capsys, "replay", str(tmp_path))
    assert (code, out) == (1, "")
    assert error.count("\n") == 1
    assert "no saved world" in error


def test_a_fork_is_made_and_driven_by_the_next_host(place: Place) -> None:
    run_id = started(place)
    ended = place.lev("why", run_id, "--json").document()["causes"][-1]["step"]
    where = ("--at", str(ended - 1), "--copy", str(place.path / "copy"))
    usage = place.lev("fork", run_id, "--at", "3")
    assert usage.code == 2
    assert "required" in usage.err
    (place.path / "agent" / "kept.txt").write_text("kept")
    answer = place.lev("fork", run_id, *where, "--json")
    # The run worked in the folder that holds the copy: that would copy itself.
    assert answer.code == 1
    assert "would copy" in answer.err
    work = place.path / "work"
    work.mkdir()
    where = ("--at", str(ended - 1), "--workdir", str(work))
    document = place.lev("fork", run_id, *where, "--key", "k", "--json").document()
    assert document["forked_from"] == {"run_id": run_id, "step": ended - 1}
    assert document["prefix"]["cost_nano_usd"] > 0
    assert place.lev("fork", run_id, *where, "--key", "k").out == document["run_id"] + "\n"
    driven = place.lev("host", "-q", "--script", str(place.path / "replies.toml"))
    assert driven.code == 0, driven.err
    assert "-> complete" in place.lev("why", document["run_id"]).out


def test_a_fork_works_in_a_copy_or_a_worktree(place: Place) -> None:
    work = place.path / "work"
    work.mkdir()
    (work / "notes.txt").write_text("notes")
    git = ["git", "-C", str(work), "-c", "user.name=n", "-c", "user.email=e@x"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    run_id = started(place, work)
    ended = place.lev("why", run_id, "--json").document()["causes"][-1]["step"]
    at = ("--at", str(ended - 1))
    copy, tree = place.path / "copy", place.path / "tree"
    made = place.lev("fork", run_id, *at, "--copy", str(copy))
    assert made.code == 0, made.err
    assert (copy / "notes.txt").read_text() == "notes"
    made = place.lev("fork", run_id, *at, "--worktree", str(tree))
    assert made.code == 0, made.err
    assert (tree / "notes.txt").read_text() == "notes"
    again = place.lev("fork", run_id, *at, "--worktree", str(tree))
    assert (again.code, "exists already" in again.err) == (1, True)
    assert place.lev("fork", run_id, *at, "--same-workdir").code == 0
