"""``lev respond`` and ``lev msg`` on a home that nobody hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lev_commands import Place

ASKS = """
[[turn]]
calls = [{ name = "ask_user_choice", arguments = { question = "?", options = ["red", "blue"] } }]
[[turn]]
calls = [{ name = "submit_output", arguments = { content = "painted" } }]
[[turn]]
text = "done"
"""


@pytest.fixture
def asking(place: Place, monkeypatch: pytest.MonkeyPatch) -> str:
    """Id of a run that waits for an answer, in a home whose host is gone."""
    monkeypatch.chdir(place.path)
    place.agent("ask_user_choice")
    place.write("asks.toml", ASKS)
    assert place.lev("run", "agent", "--task", "paint", "--script", "asks.toml").code == 1
    (run_id,) = place.ids()
    return run_id


def test_an_answer_outlives_the_host_and_the_run_goes_on_with_it(place: Place, asking: str) -> None:
    shown = place.lev("show", asking).out
    assert "q1 (choice) ?" in shown
    assert "2. blue" in shown
    assert f"{asking} q1 with --choice N" in shown
    for words in (["--choice", "3"], ["--choice", "0"], ["--text", "blue"], ["--yes"], []):
        assert place.lev("respond", asking, *words).code == 1, words
    assert place.lev("respond", asking, "q2", "--choice", "1").code == 1
    assert place.lev("msg", asking, "hurry").code == 0
    assert place.lev("respond", asking, "q1", "--choice", "2").code == 0
    twice = place.lev("respond", asking, "--choice", "1")
    assert twice.code == 1
    assert "asks nobody" in twice.err
    assert place.lev("host", "--script", "asks.toml").code == 0
    assert place.lev("result", asking).out.strip() == "painted"


def test_a_message_to_a_run_that_is_not_there_or_over_is_an_error(
    place: Place, asking: str
) -> None:
    assert place.lev("msg", "nobody-1", "hello").code == 1
    assert place.lev("msg", asking, " ").code == 1
    assert place.lev("cancel", asking).code == 0
    assert place.lev("msg", asking, "hello").code == 1
    assert place.lev("respond", asking, "--choice", "1").code == 1


def test_a_profile_comes_from_a_file_and_an_unknown_one_is_refused(place: Place) -> None:
    place.agent("ask_user_choice")
    script = place.write("asks.toml", ASKS)
    path = place.write("p.toml", '[profiles.alone]\notherwise = "deny"\nattended = false\n')
    words = ("run", str(place.path / "agent"), "--task", "paint", "--script", str(script))
    unknown = place.lev(*words, "--yolo=other", "--profiles", str(path))
    assert unknown.code == 1
    assert "it has alone" in unknown.err
