"""Steps are sized by the time they take, within their bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leviath.engine.limits import STEP_HOLD_MS, STEP_INPUTS_MAX, STEP_INPUTS_MIN
from leviath.engine.pacing import Pacer

HOLD_NS = STEP_HOLD_MS * 1_000_000


def test_slow_steps_become_smaller_until_they_fit() -> None:
    pacer = Pacer()
    for _ in range(20):
        pacer.took(pacer.inputs_max, pacer.inputs_max * HOLD_NS // 50)
    assert 45 <= pacer.inputs_max <= 50


def test_quick_steps_become_larger_again() -> None:
    pacer = Pacer()
    for _ in range(20):
        pacer.took(100, 100 * HOLD_NS)
    assert pacer.inputs_max == STEP_INPUTS_MIN
    for _ in range(20):
        pacer.took(pacer.inputs_max, 1)
    assert pacer.inputs_max == STEP_INPUTS_MAX


def test_a_step_of_few_inputs_says_nothing() -> None:
    pacer = Pacer()
    pacer.took(7, 100 * HOLD_NS)
    assert pacer.inputs_max == STEP_INPUTS_MAX


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 10**12))))
def test_the_size_stays_within_its_bounds(steps: list[tuple[int, int]]) -> None:
    pacer = Pacer()
    for inputs, took_ns in steps:
        pacer.took(inputs, took_ns)
        assert STEP_INPUTS_MIN <= pacer.inputs_max <= STEP_INPUTS_MAX
