"""What happens by chance in a simulation: integers alone, so that no machine rounds otherwise.

Every draw is a pure function of the seed, a subject (a run id, a crash), a purpose and a counter;
nothing depends on what was drawn before. Functions of float libraries differ in their last digit
between platforms, so logarithms come from a table that is worked out in whole numbers.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cache
from hashlib import blake2b
from typing import Final

from msgspec import Struct

from leviath.systems.draw import splitmix64

_MASK: Final = (1 << 64) - 1
_ONE: Final = 1 << 32
"""The whole of a chance: positions are below it, shares are parts of it."""
_LN_2: Final = 2_977_044_472
"""ln 2, of _ONE."""
_STEPS: Final = 256
"""Rows of the table of logarithms; between them the straight line is off by less than 2e-6."""
PERMILLE: Final = 1_000


def subject_key(seed: int, subject: str) -> int:
    """The key of everything that is drawn for one subject. Keep it: it takes a hash."""
    digest = blake2b(subject.encode(), digest_size=8).digest()
    return splitmix64((seed ^ int.from_bytes(digest, "big")) & _MASK)


@cache
def _purpose_key(purpose: str) -> int:
    return int.from_bytes(blake2b(purpose.encode(), digest_size=8).digest(), "big")


def draw(key: int, purpose: str, counter: int) -> int:
    """A position in [0, 2**32) that depends on nothing but the arguments."""
    return splitmix64(splitmix64(key ^ _purpose_key(purpose)) + counter & _MASK) >> 32


def happens(key: int, purpose: str, counter: int, permille: int) -> bool:
    """Whether something happens that does in so many of a thousand cases."""
    if permille <= 0:
        return False
    return draw(key, purpose, counter) * PERMILLE < permille * _ONE


@cache
def _log2_table() -> tuple[int, ...]:
    """log2(1 + row / _STEPS), of _ONE: bit by bit, by squaring."""
    rows: list[int] = []
    for row in range(_STEPS + 1):
        x = _ONE + row * _ONE // _STEPS
        result = 0
        if x == 2 * _ONE:
            rows.append(_ONE)
            continue
        for bit in range(31, -1, -1):
            x = x * x >> 32
            if x >= 2 * _ONE:
                x >>= 1
                result |= 1 << bit
        rows.append(result)
    return tuple(rows)


def negative_ln(position: int) -> int:
    """-ln((position + 1) / 2**32), of 2**32: exponentially distributed, at most 22.2."""
    n = position + 1
    whole = n.bit_length() - 1
    part = (n << 32 >> whole) - _ONE  # the fraction of n / 2**whole, of _ONE
    row, rest = divmod(part * _STEPS, _ONE)
    table = _log2_table()
    log2 = (whole << 32) + table[row]
    if rest:
        log2 += (table[row + 1] - table[row]) * rest >> 32
    return (32 * _ONE - log2) * _LN_2 >> 32


class Spread(Struct, frozen=True):
    """How a number varies: always the same, along quantiles, or exponentially about a mean."""

    points: tuple[tuple[int, int], ...] = ()
    """(share of a thousand, value), both ascending, from 0 to 1,000; straight between them."""
    mean: int | None = None
    """Of an exponential spread, which has no points."""

    @classmethod
    def always(cls, value: int) -> Spread:
        """No spread at all."""
        return cls(((0, value), (PERMILLE, value)))

    @property
    def least(self) -> int:
        """The smallest value that can come."""
        return 0 if self.mean is not None else self.points[0][1]

    @property
    def most(self) -> int:
        """No value is greater."""
        return self.mean * 23 if self.mean is not None else self.points[-1][1]

    def dice(self) -> Dice:
        """What draws from it."""
        return Dice(self)


class Dice:
    """Draws from one spread, with what that needs worked out once."""

    __slots__ = ("_constant", "_mean", "_starts", "_values")

    def __init__(self, spread: Spread) -> None:
        self._mean = spread.mean
        self._starts = [share * _ONE // PERMILLE for share, _ in spread.points]
        self._values = [value for _, value in spread.points]
        self._constant = None
        if spread.mean is None and spread.least == spread.most:
            self._constant = spread.least

    def __call__(self, key: int, purpose: str, counter: int) -> int:
        """The value for that subject, purpose and counter."""
        if self._constant is not None:
            return self._constant
        return self.at(draw(key, purpose, counter))

    def at(self, position: int) -> int:
        """The value at a position in [0, 2**32)."""
        if self._constant is not None:
            return self._constant
        if self._mean is not None:
            return self._mean * negative_ln(position) >> 32
        starts, values = self._starts, self._values
        right = bisect_right(starts, position, 1, len(starts) - 1)
        begin, low = starts[right - 1], values[right - 1]
        return low + (values[right] - low) * (position - begin) // (starts[right] - begin)


class Wheel:
    """Picks one of several things, each as often as its weight says."""

    __slots__ = ("_sums", "_total", "things")

    def __init__(self, weights: tuple[tuple[str, int], ...]) -> None:
        self.things: tuple[str, ...] = tuple(name for name, _ in weights)
        self._sums: list[int] = []
        total = 0
        for _, weight in weights:
            total += weight
            self._sums.append(total)
        self._total = total

    def __call__(self, key: int, purpose: str, counter: int) -> str:
        """The thing for that subject, purpose and counter."""
        if len(self.things) == 1:
            return self.things[0]
        at = draw(key, purpose, counter) * self._total >> 32
        return self.things[bisect_right(self._sums, at)]
