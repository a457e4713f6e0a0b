"""The acts of a random history, and how a seed says them.

A history is a seed: it says how many acts there are and what each of them is. Every act is a few
numbers that mean something in any state, so any of them can be left out.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from leviath.systems.draw import splitmix64

ACTS_MIN: Final = 6
ACTS_MAX: Final = 40


class Act(Struct, frozen=True):
    """One thing that happens: a word of ``WORDS``, and numbers that it takes modulo what there
    is."""

    word: str
    pick: int
    more: int
    flag: int


_WEIGHTS: Final = (
    ("spawn", 3),
    ("reply", 15),
    ("fail", 3),
    ("tool", 9),
    ("gather", 3),
    ("find", 6),
    ("deliver", 2),
    ("late", 2),
    ("control", 4),
    ("message", 2),
    ("decide", 3),
    ("respond", 3),
    ("release", 1),
    ("sleep", 3),
    ("offer", 1),
    ("slots", 1),
    ("crash", 3),
    ("together", 5),
    ("commit", 2),
    ("cut", 2),
)
_TABLE: Final = tuple(word for word, weight in _WEIGHTS for _ in range(weight))
WORDS: Final = tuple(word for word, _ in _WEIGHTS)


def acts_of(seed: int) -> tuple[Act, ...]:
    """The acts of a history."""
    bits = splitmix64(seed)
    count = ACTS_MIN + bits % (ACTS_MAX - ACTS_MIN + 1)
    acts: list[Act] = [Act("spawn", bits >> 8 & 0xFFFF, bits >> 24 & 0xFFFF, bits >> 40 & 0xFFFF)]
    for _ in range(count):
        bits = splitmix64(bits)
        word = _TABLE[(bits & 0xFFFF) % len(_TABLE)]
        acts.append(Act(word, bits >> 16 & 0xFFFF, bits >> 32 & 0xFFFF, bits >> 48 & 0xFFFF))
    return tuple(acts)


def told(act: Act) -> str:
    """An act as a person reads it."""
    return f"{act.word} {act.pick} {act.more} {act.flag}"
