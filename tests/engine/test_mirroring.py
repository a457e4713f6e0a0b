"""When which run's files are written."""

from __future__ import annotations

import gc

from hand_agents import ONE, TOOLS

from leviath.components.inputs import Pause, Release
from leviath.engine.commits import Unit
from leviath.engine.limits import MIRROR_INTERVAL_MS, MIRROR_RUNS_COMMIT, MIRROR_RUNS_S_MAX
from leviath.engine.mirroring import Mirror
from leviath.engine.pacing import uncollected
from leviath.simulation.hand import Hand


class _Nothing:
    """Files that are never written."""

    is_idle = True

    def prepare(self, unit: object) -> None: ...

    def write(self, files: object) -> None: ...

    def close(self) -> None: ...

    def problems(self) -> dict[str, str]:
        return {}

    def removed(self) -> list[int]:
        return []


def _turn(hand: Hand, mirror: Mirror, now_ms: int) -> None:
    hand.reply("", ("a", "look", "{}"))
    mirror.note(hand.results[-1], now_ms)
    hand.tool()
    mirror.note(hand.results[-1], now_ms)


def test_a_run_of_less_than_a_second_is_written_at_its_start_and_its_end() -> None:
    hand, mirror = Hand(tools=TOOLS), Mirror(_Nothing())
    run = hand.spawn(ONE)
    mirror.note(hand.results[-1], 0)
    assert mirror.take_due(0) == [run]
    for now_ms in (10, 500, 900):
        _turn(hand, mirror, now_ms)
        assert mirror.take_due(now_ms) == []
    hand.reply("done")
    mirror.note(hand.results[-1], 950)
    assert mirror.take_due(950) == [run] and mirror.next_due_ms() is None


def test_a_busy_run_lags_no_more_than_the_interval() -> None:
    hand, mirror = Hand(tools=TOOLS), Mirror(_Nothing())
    run = hand.spawn(ONE)
    for now_ms in (5_000, 5_400, 5_900):
        _turn(hand, mirror, now_ms)
    due_ms = 5_000 + MIRROR_INTERVAL_MS
    assert mirror.next_due_ms() == due_ms and mirror.take_due(due_ms) == [run]
    _turn(hand, mirror, due_ms)
    assert mirror.next_due_ms() == due_ms + MIRROR_INTERVAL_MS


def test_intervals_grow_with_the_fleet_and_urgent_files_do_not_wait() -> None:
    hand, mirror = Hand(tools=TOOLS, check=False), Mirror(_Nothing())
    for n in range(1_000, 1_000 + 2 * MIRROR_RUNS_S_MAX):
        mirror.want(n, 60_000)
    run = hand.spawn(ONE)
    mirror.note(hand.results[-1], 0)
    assert mirror.take_due(0) == [run]
    _turn(hand, mirror, 0)
    assert mirror.next_due_ms() == 2_000


# --- crowds --------------------------------------------------------------------------------------


def taken(hand: Hand, mirror: Mirror, *, closing: bool = False) -> Unit:
    """The next commit's runs."""
    unit = Unit(closing=closing)
    mirror.take(unit, hand.world, 0)
    return unit


def crowd(count: int) -> tuple[Hand, Mirror, list[int]]:
    """Runs that all began in this moment."""
    hand, mirror = Hand(tools=TOOLS, check=False), Mirror(_Nothing())
    runs = [hand.spawn(ONE) for _ in range(count)]
    for result in hand.results:
        mirror.note(result, 0)
    return hand, mirror, runs


def test_files_of_a_crowd_follow_with_the_next_commits_oldest_first() -> None:
    hand, mirror, runs = crowd(2 * MIRROR_RUNS_COMMIT + 1)
    unit = taken(hand, mirror)
    assert set(unit.runs) == set(runs), "every listing row is written at once"
    assert set(runs) - unit.behind == set(runs[:MIRROR_RUNS_COMMIT])
    assert not mirror.is_idle and mirror.next_due_ms() == 0, "the rest is due already"
    assert mirror.is_behind(runs[-1]) and not mirror.is_behind(runs[0])
    unit = taken(hand, mirror)
    assert list(unit.runs) == runs[MIRROR_RUNS_COMMIT:-1] and not unit.behind
    assert list(taken(hand, mirror).runs) == runs[-1:]
    assert mirror.is_idle and mirror.next_due_ms() is None


def test_whoever_waits_for_somebody_is_never_behind() -> None:
    hand, mirror, runs = crowd(MIRROR_RUNS_COMMIT + 2)
    assert taken(hand, mirror).behind == set(runs[-2:])
    mirror.note(hand.post(Pause(runs[-1])), 0)
    unit = taken(hand, mirror)
    assert set(unit.runs) == set(runs[-2:]) and not unit.behind and mirror.is_idle


def test_a_host_that_closes_leaves_no_file_behind() -> None:
    hand, mirror, runs = crowd(MIRROR_RUNS_COMMIT + 2)
    unit = taken(hand, mirror, closing=True)
    assert set(unit.runs) == set(runs) and not unit.behind and mirror.is_idle


def test_a_forgotten_run_is_not_behind_any_more() -> None:
    hand, mirror, runs = crowd(MIRROR_RUNS_COMMIT + 1)
    taken(hand, mirror)
    while not hand.status(runs[-1]).status.is_ended:
        hand.reply("done")
    mirror.note(hand.post(Release(runs[-1])), 0)
    assert hand.results[-1].gone == (runs[-1],)
    assert mirror.is_idle and taken(hand, mirror).runs == {}


# --- garbage -------------------------------------------------------------------------------------


def test_collection_is_off_within_and_as_it_was_after() -> None:
    was_on = gc.isenabled()
    try:
        for is_on in (True, False):
            if is_on:
                gc.enable()
            else:
                gc.disable()
            with uncollected():
                assert not gc.isenabled()
            assert gc.isenabled() is is_on
    finally:
        if was_on:
            gc.enable()
