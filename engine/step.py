"""One advance of the world: inputs in, redo list and wishes out. No I/O, no await, no clock.

First the inputs in their order, then what is due, then rounds: systems take runs out of transient
markers, and slots are granted, until nothing moves. A system that raises is undone for its run, whose
stage ends in error with the system's name and the exception's type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from leviath.components.errors import WorldError
from leviath.components.parts import WORLD_OWNER
from leviath.components.world_facts import Counters
from leviath.systems import intake, slots, timers
from leviath.systems.caches import Caches
from leviath.systems.control import drop_effect, fail_stage
from leviath.systems.run import Ack, LedgerFact, Now, Run, Tick
from leviath.systems.schedule import PER_RUN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leviath.components.changes import Change
    from leviath.components.commands import Command
    from leviath.components.events import WorldEvent
    from leviath.components.inputs import Input
    from leviath.systems.world import World


class StepResult(Struct, frozen=True, gc=False):
    """What one step did and wants."""

    step: int
    now: Now
    inputs: tuple[Input, ...]
    changes: list[Change]
    events: tuple[WorldEvent, ...]
    commands: tuple[Command, ...]
    facts: tuple[LedgerFact, ...]
    acks: tuple[Ack, ...]
    mirror: dict[int, bool]
    """Runs whose files are out of date, and whether that is urgent."""
    touched: frozenset[int]
    gone: tuple[int, ...]
    failures: tuple[tuple[int, str], ...]
    """(run, system and exception type) for each system that raised."""
    next_due_ms: int | None
    """World time of the next deadline."""

    @property
    def is_empty(self) -> bool:
        """It took no input and changed nothing: such a step is not journaled."""
        return not self.inputs and not self.changes


class Stepper:
    """A world with its caches, stepped by whoever drives it: host, replay, simulator or test."""

    def __init__(self, world: World, caches: Caches) -> None:
        self.world = world
        self.caches = caches

    def step(self, inputs: Sequence[Input], now: Now) -> StepResult:
        """Take ``inputs`` in order at ``now`` and let every run go as far as it can.

        Raises WorldError when the world itself is broken, and MemoryError; the step is abandoned then,
        and the host loads again from what is durable.
        """
        world = self.world
        world.check_thread()
        counters = world.get(WORLD_OWNER, Counters)
        tick = Tick(world, now, counters.event)
        failures: list[tuple[int, str]] = []
        for item in inputs:
            self._take(tick, item, failures)
        for n in self.caches.take_due(now.world_ms):
            self._guard(tick, n, "timers", timers.on_due, failures)
        slots.wake_breakers(world, tick, self.caches)
        self._rounds(tick, failures)
        return self._finish(tuple(inputs), tick, failures)

    def _take(self, tick: Tick, item: Input, failures: list[tuple[int, str]]) -> None:
        n = intake.owner_of(item)
        if not n:
            intake.take(self.world, tick, self.caches, item)
            return

        def apply(run: Run, tick: Tick) -> None:
            intake.take(run.world, tick, self.caches, item)

        before = len(failures)
        self._guard(tick, n, type(item).__name__, apply, failures)
        if len(failures) > before:
            # Its outcome is used up: an effect that stayed would hold its slot for ever.
            drop_effect(Run(self.world, n), getattr(item, "effect", 0))

    def _guard(
        self,
        tick: Tick,
        n: int,
        name: str,
        system: Callable[[Run, Tick], None],
        failures: list[tuple[int, str]],
    ) -> None:
        """Run one system over one run; when it raises, undo it and end the run's stage in error."""
        world = self.world
        mark, wishes = world.mark(), tick.mark()
        try:
            system(Run(world, n), tick)
        except (
            WorldError,
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
            AssertionError,
            RecursionError,
        ) as error:
            world.undo_to(mark)
            tick.undo_to(wishes)
            self.caches.all_dirty()
            failures.append((n, f"{name}: {type(error).__name__}"))
            if n in world and not Run(world, n).status.is_ended:
                fail_stage(Run(world, n), tick, f"system {name} failed with {type(error).__name__}")

    def _rounds(self, tick: Tick, failures: list[tuple[int, str]]) -> None:
        world = self.world
        for _ in range(world.policy.rounds_max):
            moved = False
            for marker, system in PER_RUN.items():
                queue = world.runs_with(marker)
                if queue:
                    moved = True
                    for n in list(queue):
                        self._guard(tick, n, system.__name__, system, failures)
            if slots.grant(world, tick, self.caches):
                moved = True
            if not moved:
                return
        for marker in PER_RUN:
            for n in list(world.runs_with(marker)):
                failures.append((n, "schedule: loop"))
                self._end_loop(tick, n)

    def _end_loop(self, tick: Tick, n: int) -> None:
        """A run that still moves after so many rounds is caught in a loop: no edge can help it."""
        from leviath.components.run_status import RunStatus  # noqa: PLC0415 - rare
        from leviath.systems.moves import end  # noqa: PLC0415 - rare

        rounds = self.world.policy.rounds_max
        message = f"the run moved {rounds} times within one step without a model call: a loop"
        end(Run(self.world, n), tick, RunStatus.ERROR, error=message, why="loop")

    def _finish(
        self, inputs: tuple[Input, ...], tick: Tick, failures: list[tuple[int, str]]
    ) -> StepResult:
        world = self.world
        counters = world.get(WORLD_OWNER, Counters)
        step = counters.step
        if inputs or not world.is_clean:
            step += 1
            world.put(
                WORLD_OWNER,
                replace(
                    counters,
                    step=step,
                    event=tick.next_event - 1,
                    sequence=world.sequence,
                ),
            )
        changes = world.take_changes()
        touched = frozenset(world.touched)
        world.touched.clear()
        gone = tuple(n for n in touched if n and n not in world)
        return StepResult(
            step=step,
            now=tick.now,
            inputs=inputs,
            changes=changes,
            events=tuple(tick.events),
            commands=tuple(tick.commands),
            facts=tuple(tick.facts),
            acks=tuple(tick.acks),
            mirror=tick.mirror,
            touched=touched,
            gone=gone,
            failures=tuple(failures),
            next_due_ms=self.next_due_ms(tick.now.world_ms),
        )

    def next_due_ms(self, world_ms: int) -> int | None:
        """World time of the next deadline of a run or a breaker."""
        times = [
            at
            for at in (
                self.caches.next_due_ms(),
                slots.next_breaker_ms(self.world, world_ms),
            )
            if at is not None
        ]
        return min(times, default=None)
