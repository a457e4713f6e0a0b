"""When which run's files are written."""

from __future__ import annotations

import gc

from hand_agents import ONE, TOOLS

from leviath.engine.limits import MIRROR_INTERVAL_MS, MIRROR_RUNS_S_MAX
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
