"""Ten thousand random histories, and faults that are planted to see that they are found."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from leviath.simulation.acts import WORDS, Act, acts_of
from leviath.simulation.checkers import INVARIANTS, NAMES
from leviath.simulation.histories import play, search, shrunk
from leviath.simulation.model_host import Plants
from leviath.simulation.torture_cast import built_in, trees

if TYPE_CHECKING:
    from collections.abc import Sequence

HISTORIES = 10_000
CHUNK = 500
CAST = built_in()
TREES = trees()
SEARCHED = 60
"""Histories in which a planted fault has to be found at least once."""


@pytest.mark.parametrize("first", range(0, HISTORIES, CHUNK))
def test_ten_thousand_histories_break_nothing(first: int) -> None:
    steps = 0
    for seed in range(first, first + CHUNK):
        played, failure = search(CAST, seed)
        assert failure is None, f"lev torture --seed {seed} --histories 1: {failure}"
        steps += played.steps
    assert steps > 10 * CHUNK, "histories in which something happens"


def tree_acts(seed: int) -> list[Act]:
    """Four histories on end: trees need more of them to grow."""
    return [act for part in range(4) for act in acts_of(seed * 4 + part)[bool(part) :]]


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_no_order_of_acts_leaves_a_run_of_a_tree_behind(first: int) -> None:
    """Agents that start, wait for and split among others and ask people, with inputs that share
    steps: nobody waits for what will not come."""
    steps = 0
    for seed in range(first, first + 100):
        acts = tree_acts(seed)
        played = play(TREES, seed, acts)
        steps += played.steps

        def fails(places: Sequence[int], seed: int = seed, acts: Sequence[Act] = acts) -> bool:
            return play(TREES, seed, [acts[place] for place in places]).breach is not None

        if played.breach is not None:
            least = [acts[place] for place in shrunk(fails, range(len(acts)))]
            raise AssertionError((seed, played.breach, play(TREES, seed, least).breach, least))
    assert steps > 2_000, "trees in which something happens"


def found(plants: Plants) -> Counter[str]:
    """The invariants that a planted fault breaks, and how often."""
    counts: Counter[str] = Counter()
    for seed in range(SEARCHED):
        breach = play(CAST, seed, acts_of(seed), plants).breach
        if breach is not None:
            counts[breach.invariant] += 1
    return counts


@pytest.mark.parametrize(
    ("plants", "invariant"),
    [
        (Plants(lost_commit=4), "steps"),
        (Plants(lost_row=4), "steps"),
        (Plants(early_file=1), "files"),
        (Plants(twice=2), "totals"),
    ],
    ids=["a skipped sync", "a dropped journal row", "an early file", "an outcome twice"],
)
def test_a_planted_fault_is_found(plants: Plants, invariant: str) -> None:
    counts = found(plants)
    assert counts[invariant] >= 3, counts
    assert counts.most_common(1)[0][0] == invariant


def test_a_failure_shrinks_to_a_seed_and_a_few_acts_that_repeat_it() -> None:
    plants = Plants(twice=1)
    failures = [failure for seed in range(20) if (failure := search(CAST, seed, plants)[1])]
    assert failures
    for failure in failures:
        assert len(failure.places) <= 4, failure
        acts = [acts_of(failure.seed)[place] for place in failure.places]
        assert play(CAST, failure.seed, acts, plants).breach == failure.breach
        assert play(CAST, failure.seed, acts).breach is None


def test_a_seed_is_the_same_history_each_time() -> None:
    for seed in (0, 1, 7, 2**64 - 1):
        assert acts_of(seed) == acts_of(seed)
        assert play(CAST, seed, acts_of(seed)) == play(CAST, seed, acts_of(seed))
    assert len({play(CAST, seed, acts_of(seed)).digest for seed in range(20)}) == 20


def test_every_kind_of_act_occurs() -> None:
    counts = Counter(act.word for seed in range(200) for act in acts_of(seed))
    assert set(counts) == set(WORDS)
    assert min(counts.values()) > 20


numbers = st.integers(0, 0xFFFF)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**64 - 1),
    acts=st.lists(st.builds(Act, st.sampled_from(WORDS), numbers, numbers, numbers), max_size=30),
)
def test_no_order_of_acts_breaks_anything(seed: int, acts: list[Act]) -> None:
    assert play(CAST, seed, [Act("spawn", 2, 1, 1), *acts]).breach is None


@given(st.lists(st.integers(0, 30), max_size=20, unique=True), st.sets(st.integers(0, 30)))
def test_shrinking_keeps_what_is_needed_and_nothing_else(
    places: list[int], needed: set[int]
) -> None:
    wanted = needed & set(places)

    def fails(kept: Sequence[int]) -> bool:
        return wanted <= set(kept)

    assert set(shrunk(fails, places)) == wanted


def test_every_invariant_has_a_name_and_one_line() -> None:
    assert len(set(NAMES)) == len(NAMES) == len(INVARIANTS)
    for invariant in INVARIANTS:
        assert invariant.name.isidentifier()
        assert 10 < len(invariant.line) < 90
        assert "\n" not in invariant.line
