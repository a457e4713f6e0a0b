"""When the runs of a simulation are started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leviath.simulation.chances import draw, subject_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from leviath.simulation.fleet_scenario import Arrival


class Calendar:
    """Puts waves of arrivals on the heap, and of each wave one run's start after another."""

    def __init__(
        self,
        arrivals: tuple[Arrival, ...],
        seed: int,
        push: Callable[[int, tuple[str, int, int, int, Any]], None],
    ) -> None:
        self._arrivals = arrivals
        self._push = push
        self._key = subject_key(seed, "arrivals")

    def begin(self) -> None:
        """Put the first wave of everything on the heap."""
        for number, arrival in enumerate(self._arrivals):
            self._push(arrival.at_ms, ("wave", 0, number, 0, 0))

    def wave(self, at_ms: int, number: int, index: int) -> None:
        """A wave begins: its first start, and the wave after it.

        ``at_ms`` is later than planned when the host was down.
        """
        arrival = self._arrivals[number]
        begin_ms = arrival.at_ms + index * arrival.every_ms
        times = self.times(number, index, begin_ms)
        self._push(max(at_ms, times[0]), ("spawn", number, index, 0, (0, times)))
        if arrival.every_ms:
            next_ms = begin_ms + arrival.every_ms
            self._push(max(at_ms, next_ms), ("wave", 0, number, 0, index + 1))

    def times(self, number: int, index: int, begin_ms: int) -> list[int]:
        """Virtual times of one wave's starts, ascending."""
        arrival = self._arrivals[number]
        if not arrival.at_random:
            return [begin_ms + arrival.over_ms * at // arrival.count for at in range(arrival.count)]
        purpose = f"arrival {number} {index}"
        return sorted(
            begin_ms + (arrival.over_ms * draw(self._key, purpose, at) >> 32)
            for at in range(arrival.count)
        )

    def due(
        self, outcome: tuple[str, int, int, int, Any], now_ms: int
    ) -> Iterator[tuple[str, str]]:
        """(agent, key) of every start of a wave that is due; the next one goes on the heap."""
        _, number, index, _, (at, times) = outcome
        agent = self._arrivals[number].agent
        while at < len(times) and times[at] <= now_ms:
            yield agent, f"{number}.{index}.{at}"
            at += 1
        if at < len(times):
            self._push(times[at], ("spawn", number, index, 0, (at, times)))
