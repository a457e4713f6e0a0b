"""``lev sim``: the table, the document, the picture, and the sweep."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from leviath.lev import cli
from leviath.lev.sim_bar import Bar
from leviath.lev.sim_table import cents, money_text, wait_text

if TYPE_CHECKING:
    from pathlib import Path

PLAN = """
title = "A plan"
duration = "2h"
budget_usd = "100"
[providers.acme]
latency = { min = "1s", max = "9s" }
errors_permille = { overloaded = 50 }
[prices]
"acme/large" = { prompt = "3.00", completion = "15.00" }
[tools.look]
failures_permille = 200
[agents.worker]
models = ["acme/large"]
tools = { look = 1 }
asks = ["look"]
turns = 4
[people]
answer = "1m"
[[arrivals]]
agent = "worker"
count = 20
"""


@pytest.fixture
def plan(tmp_path: Path) -> str:
    (tmp_path / "plan.toml").write_text(PLAN)
    return str(tmp_path / "plan.toml")


def test_the_table_says_what_a_planner_asks(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["sim", plan, "--digest", "--check"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("A plan\nseed 1, ")
    for words in (
        "20 runs, 80 turns",
        "wait p99",
        "acme/large",
        "the budget of $100 was enough",
        "people answered 60 times, after 60.0s (p50)",
        "failed model calls:",
        "tool calls: 60 look",
        "runs were parked: 60 tool_approval",
        "digest: ",
    ):
        assert words in out.replace("1m00s", "60.0s"), (words, out)


PRICES = PLAN[PLAN.index("[prices]") : PLAN.index("[tools.look]")]


@pytest.mark.parametrize(
    ("prices", "shown"),
    [
        ("", "unpriced"),
        (PRICES.replace("3.00", "0").replace("15.00", "0"), "0.00"),
    ],
)
def test_a_call_without_a_price_is_not_shown_as_free(
    prices: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.replace(PRICES, prices).replace('budget_usd = "100"\n', ""))
    assert cli.run(["sim", str(path)]) == 0
    out = capsys.readouterr().out
    money = [line.split()[-1] for line in out.splitlines() if line.lstrip()[:3] in ("0ms", "end")]
    assert money == [shown, shown]
    assert ("0.00" in out) == (shown == "0.00")
    assert cli.run(["sim", str(path), "--sweep", "seed=1", "--processes", "1"]) == 0
    assert capsys.readouterr().out.split()[-1] == shown


@pytest.mark.parametrize(
    ("unpriced", "shown"), [(0, "1.50"), (3, "at least 1.50"), (10, "unpriced")]
)
def test_a_sum_of_which_calls_are_missing_says_so(unpriced: int, shown: str) -> None:
    assert money_text(1_500_000_000, 10, unpriced) == shown


def test_a_budget_that_is_spent_stops_the_runs(
    plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["sim", plan, "--set", "budget_usd='0.60'"]) == 0
    out = capsys.readouterr().out
    assert "the budget of $0.6 was spent after" in out and "runs stopped" in out
    assert cli.run(["sim", plan, "--set", "budget_usd='0.60'", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["statuses"]["error"] == report["budget_runs"] > 0
    assert 0 < report["spent_nano_usd"] < 600_000_000


def test_the_document_is_one_and_the_same_for_a_seed(
    plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    documents: list[str] = []
    for seed in ("7", "7", "8"):
        assert cli.run(["sim", plan, "--json", "--seed", seed]) == 0
        documents.append(capsys.readouterr().out)
    assert documents[0] == documents[1] != documents[2]
    assert json.loads(documents[0])["statuses"]["complete"] == 20


def test_a_sweep_prints_a_row_for_each_cell(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    grid = ["--sweep", "policy.slots_default=1,20", "--processes", "1", "--set", "seed=3"]
    assert cli.run(["sim", plan, *grid]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[0] == "policy.slots_default"
    assert [line.split()[0] for line in lines[1:]] == ["1", "20"]
    assert cli.run(["sim", plan, *grid, "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)
    assert [cell["changes"] for cell in cells] == [
        {"policy.slots_default": 1},
        {"policy.slots_default": 20},
    ]
    assert all(cell["report"]["seed"] == 3 for cell in cells)


def test_bundled_scenarios_are_listed_and_played_by_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run(["sim", "--list"]) == 0
    listed = capsys.readouterr().out
    assert "pool-width" in listed
    assert "A provider is down for an hour" in listed
    assert cli.run(["sim", "provider-outage", "--set", "duration=20m"]) == 0
    assert "A provider is down for an hour" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "needs a scenario"),
        (["nothing.toml"], "cannot be read"),
        (["pool-width", "--set", "policy.slots_default=0"], "is not between 1 and"),
        (["pool-width", "--set", "seed=1,2"], "--sweep takes several"),
        (["pool-width", "--sweep", "seed=1", "--sweep", "seed=2"], "given twice"),
        (["pool-width", "--sweep", "seed"], "is no sweep"),
        (["pool-width", "--plot", "plan.gif"], "ends in .png or .svg"),
        (["pool-width", "--plot", "plan.svg", "--sweep", "seed=1,2"], "leave out --sweep"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_played(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["sim", *arguments]) == 1
    captured = capsys.readouterr()
    assert told in captured.err
    assert captured.out == ""


def test_a_picture_is_the_same_for_a_seed(
    plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one.svg", "two.svg", "one.png"):
        assert cli.run(["sim", plan, "--plot", str(tmp_path / name)]) == 0
    capsys.readouterr()
    one, two = ((tmp_path / name).read_bytes() for name in ("one.svg", "two.svg"))
    assert one == two
    assert ET.fromstring(one).tag.endswith("svg")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_draws_on_a_terminal_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, drawn in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr("sys.stderr", stream)
        with Bar(1_000) as bar:
            bar.at(500, 12_345)
            bar.done(1, 2)
        text = stream.getvalue()
        assert ("50 %  12,345 turns" in text) is drawn
        assert text.endswith("\r\x1b[K") is drawn


def test_times_and_amounts_are_short() -> None:
    times = [0, 999, 1_000, 59_949, 59_950, 3_599_400, 3_600_000, 86_399_000, 90_000_000]
    shown = ["0ms", "999ms", "1.0s", "59.9s", "1m00s", "59m59s", "1h00m", "23h59m", "1d01h"]
    assert [wait_text(ms) for ms in times] == shown
    assert [cents(nano) for nano in (0, 5_000_000, 4_999_999, 1_234_567_890_000)] == [
        "0.00", "0.01", "0.00", "1,234.57",
    ]  # fmt: skip
