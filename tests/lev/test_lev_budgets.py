"""Budgets on the command line: set, shown, spent, raised."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from lev_commands import LIMIT_S, finish, lines_until

from leviath.persistence.store import Store

if TYPE_CHECKING:
    from lev_commands import Place

PRICES = '[prices."scripted/m"]\nprompt = "1"\ncompletion = "2"\n'


def priced(place: Place) -> tuple[str, str]:
    """The option that gives the model of the agent a price."""
    return "--prices", str(place.write("prices.toml", PRICES))


def outcome(place: Place) -> str:
    with Store.open(place.home / "world.db") as store:
        (run,) = store.runs()
        return str(run.outcome)


def test_a_run_that_spent_its_turns_says_so_and_goes_on_with_more(place: Place) -> None:
    said = place.spawn("--json", "--budget-turns", "1", "--budget-time", "15m")
    body = said.document()
    assert said.code == 1
    assert "model call not made: the run's budget of 1 turn is spent" in said.err
    run_id = body["run_id"]
    assert (body["status"], body["tree_budget"]) == ("error", None)
    assert body["budget"]["turns"] == {"limit": 1, "spent": 1, "set_aside": 0}
    assert body["budget"]["wall_ms"] == {"limit": 900_000, "spent": None, "set_aside": 0}
    shown = place.lev("show", run_id).out
    assert "budget    spent 1 of 1 turns, less than 15m\n" in shown
    assert f"{run_id} --budget-turns N, larger than before\n" in shown
    assert place.lev("show", "--json", run_id).document()["budget"] == body["budget"]
    stats = place.lev("stats", "--json", "--by", "outcome").document()
    assert [row["group"] for row in stats["groups"]] == ["step_cap_reached"]
    again = place.lev("resume", run_id)
    assert again.code == 1 and f"{run_id} cannot go on: the run's budget of 1 turn is" in again.err
    assert place.lev("resume", run_id, "--budget-turns", "2").code == 0
    assert place.lev("host", "--script", str(place.path / "replies.toml")).code == 0
    shown = place.lev("show", run_id).out
    assert "complete" in shown and "spent 2 of 2 turns" in shown and "--budget" not in shown


def test_dollars_are_shown_as_spent_and_end_the_run(place: Place) -> None:
    body = place.spawn("--json", "--budget-usd", "0.02", *priced(place)).document()
    assert body["status"] == "complete"
    assert body["budget"] == {"usd": {"limit": 0.02, "spent": 0.0017, "set_aside": 0.0}}
    assert "budget    spent $0.0017 of $0.02\n" in place.lev("show", body["run_id"]).out


@pytest.mark.parametrize(
    ("options", "name", "remedy"),
    [
        (("--budget-usd", "0.001"), "cost_budget_exceeded", " --budget-usd USD, larger"),
        (("--budget-tokens", "9"), "cost_budget_exceeded", " --budget-tokens N, larger"),
        (("--tree-budget-usd", "0.001"), "budget_ceiling_reached", " --tree-budget-usd USD, l"),
        (("--tree-budget-turns", "1"), "budget_ceiling_reached", " --tree-budget-turns N, l"),
        (("--fleet-budget-tokens", "9"), "budget_ceiling_reached", ""),
    ],
)
def test_each_option_stops_the_run_under_its_own_outcome(
    place: Place, options: tuple[str, str], name: str, remedy: str
) -> None:
    body = place.spawn("--json", *options, *priced(place)).document()
    assert body["status"] == "error"
    assert outcome(place) == name
    assert f"lev resume --home {place.home} {body['run_id']}{remedy}" in (
        place.lev("show", body["run_id"]).out
    )
    assert name in place.lev("stats", "--by", "outcome").out


def test_time_ends_a_run_that_a_model_keeps_waiting(place: Place) -> None:
    body = place.spawn("--json", "--budget-time", "1s", script="hangs.toml").document()
    assert (body["status"], outcome(place)) == ("error", "time_budget_exceeded")
    assert "the run's budget of 1 s is over" in body["error"]
    assert body["budget"]["wall_ms"] == {"limit": 1_000, "spent": 1_000, "set_aside": 0}
    assert "--budget-time SPAN, longer than before" in place.lev("show", body["run_id"]).out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--budget-usd", "0.5x"), "budget: usd '0.5x' is not an amount of dollars"),
        (("--budget-tokens", "0"), "budget: tokens 0 (int) must be between 1 and"),
        (("--budget-time", "soon"), "--budget-time"),
        (("--budget-usd", "1"), "the price of scripted/m is not known"),
        (("--fleet-budget-usd", "1"), "fleet_budget is in dollars, and the price of scripted/m"),
        (("--prices", "nowhere.toml"), "the prices nowhere.toml cannot be read"),
    ],
)
def test_what_cannot_be_a_budget_starts_no_run(
    place: Place, options: tuple[str, str], message: str
) -> None:
    said = place.spawn(*options)
    assert said.code != 0 and message in said.err
    assert not place.home.exists() or place.ids() == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prices = 3", "have no prices; write a table [prices]"),
        ("[price]\na = 1", "have price; write a table [prices]"),
        ("[prices", "are no TOML"),
        ('[prices."scripted/m"]\nprompt = 1.5', 'prices."scripted/m".prompt'),
    ],
)
def test_prices_that_cannot_be_read_are_refused(place: Place, text: str, message: str) -> None:
    said = place.spawn("--prices", str(place.write("odd.toml", text)))
    assert said.code != 0 and message in said.err
    assert not place.home.exists()


def test_a_call_under_way_is_set_aside_and_a_killed_host_leaves_its_bound(place: Place) -> None:
    argv = ("run", str(place.path / "agent"), "--task", "x", "--workdir", str(place.path))
    script = ("--script", str(place.path / "hangs.toml"))
    process: subprocess.Popen[str] = place.start(
        *argv, *script, "--tree-budget-usd", "0.02", "--budget-tokens", "99999", *priced(place)
    )
    assert process.stdout is not None
    run_id = process.stdout.readline().split()[1]
    list(lines_until(process, "stage main"))
    held = place.lev("show", "--json", run_id).document()
    while not held["tree_budget"]["usd"]["set_aside"]:
        held = place.lev("show", "--json", run_id).document()
    aside = held["tree_budget"]["usd"]["set_aside"]
    assert held["tree_budget"]["usd"]["spent"] == 0
    assert 8_192 < held["budget"]["tokens"]["set_aside"] < 20_000
    assert "set aside for calls under way" in place.lev("show", run_id).out
    process.kill()
    process.communicate(timeout=LIMIT_S)
    # What is left does not cover a second attempt: the bound of the lost one counts.
    done = finish(place.start("host", "--script", str(place.path / "replies.toml"), *priced(place)))
    assert done.code == 0
    after = place.lev("show", "--json", run_id).document()
    assert after["status"] == "error" and after["interrupted_calls"] == 1
    assert after["tree_budget"]["usd"] == {"limit": 0.02, "spent": aside, "set_aside": 0.0}
    assert outcome(place) == "budget_ceiling_reached"
