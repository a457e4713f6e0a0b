"""What a run waits for decides whether the command line drives it on, and what it says to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lev_commands import Place

TOOLS = """
import leviath


@leviath.tool(effect="pure")
def search(q: str) -> str:
    "Search."
    return q
"""
AGENT = """
[agent]
name = "survey"
[stages.split]
mode = "fan_out"
worker_stage = "count"
merge_stage = "merge"
max_workers = 1
[stages.split.model]
models = [{ provider = "scripted", model = "m" }]
[stages.count]
allow_as_worker = true
[stages.count.model]
models = [{ provider = "scripted", model = "m" }]
[stages.merge]
[stages.merge.model]
models = [{ provider = "scripted", model = "m" }]
[stages.merge.transitions]
"""
SCRIPT = """
[[rules]]
when = { stage = "split" }
text = '["one", "two", "three"]'
[[rules]]
when = { stage = "count" }
text = "counted"
[[rules]]
when = { stage = "merge" }
text = "merged"
"""


def test_a_run_that_splits_is_driven_until_its_workers_and_itself_have_ended(place: Place) -> None:
    place.write("survey/agent.leviath", AGENT)
    place.write("survey.toml", SCRIPT)
    answer = place.lev(
        *("run", str(place.path / "survey"), "--task", "T", "--workdir", str(place.path)),
        *("--script", str(place.path / "survey.toml")),
    )
    assert answer.code == 0, answer.err
    listing = place.lev("ps", "--all", "--json").document()
    assert listing["runs"] == []
    assert len(place.ids()) == 4


def test_a_run_that_waits_for_tools_says_so_once_its_provider_is_there(place: Place) -> None:
    place.agent("search")
    place.write("tools.py", TOOLS)
    tools = ("--tools", f"{place.path / 'tools.py'}:search")
    started = place.lev(
        *("run", str(place.path / "agent"), "--task", "T", "--workdir", str(place.path), *tools)
    )
    assert started.code == 1
    script = ("--script", str(place.path / "replies.toml"))
    hosted = place.lev("host", *script)
    assert "search" in hosted.out
    assert "--tools" in hosted.out
    assert place.lev("host", *script, *tools).code == 0
    assert place.lev("ps", "--json").document()["runs"] == []
