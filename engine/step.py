"""One advance of the world: inputs in, redo list and wishes out. No I/O, no await, no clock.

First the inputs in their order, then what is due, then rounds: systems take runs out of transient
markers, and slots are granted, until nothing moves. A system that raises is undone for its run,
whose stage ends in error with the system's name and the exception's type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from leviath.components.changes import Gone
from leviath.components.effects import Effects
from leviath.components.inputs import Fork, Import, Pause, Spawn
from leviath.components.outbox import Outbox
from leviath.components.parts import WORLD_OWNER
from leviath.components.status import Status
from leviath.components.world_facts import Counters
from leviath.systems import intake, slots, timers, trees
from leviath.systems.caches import Caches
from leviath.systems.control import drop_effect, fail_stage, put_down
from leviath.systems.run import Ack, LedgerFact, Now, Run, StoreFact, Tick
from leviath.systems.schedule import PER_RUN, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leviath.components.changes import Change
    from leviath.components.commands import Command
    from leviath.components.events import WorldEvent
    from leviath.components.inputs import Input
    from leviath.systems.run import Guard
    from leviath.systems.world import World, Written


def _take_any(run: Run, tick: Tick, caches: Caches, item: Input) -> None:
    intake.take(run.world, tick, caches, item)


class StepResult(Struct, frozen=True, gc=False):
    """What one step did and wants."""

    step: int
    now: Now
    inputs: tuple[Input, ...]
    changes: list[Change]
    written: Written
    """The parts that changed, as the step left them."""
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
    endings: tuple[StoreFact, ...] = ()
    """Runs that ended, were charged late and were taken up again, in their order."""

    @property
    def is_empty(self) -> bool:
        """It took no input and changed nothing: such a step is not journaled."""
        return not self.inputs and not self.changes


class Stepper:
    """A world with its caches, stepped by whoever drives it: host, replay, simulator or test."""

    def __init__(self, world: World, caches: Caches, *, schedule: Schedule | None = None) -> None:
        self.world = world
        self.caches = caches
        self.schedule: Schedule = PER_RUN if schedule is None else schedule
        """Systems over one run by marker; others than ``PER_RUN`` to try changed rules."""

    def step(self, inputs: Sequence[Input], now: Now) -> StepResult:
        """Take ``inputs`` in order at ``now`` and let every run go as far as it can.

        Raises WorldError when the world itself is broken, and MemoryError; the step is abandoned
        then, and the host loads again from what is durable.
        """
        world = self.world
        world.check_thread()
        counters = world.get(WORLD_OWNER, Counters)
        tick = Tick(world, now, counters.event)
        failures: list[tuple[int, str]] = []

        tick.guard = guard = self._guard_of(tick, failures)
        for item in inputs:
            self._take(tick, item)
        for n in self.caches.take_due(now.world_ms):
            guard(n, "timers", timers.on_due)
        slots.wake_breakers(world, tick, self.caches)
        self._rounds(tick, failures)
        return self._finish(tuple(inputs), tick, failures)

    def _take(self, tick: Tick, item: Input) -> None:
        """Apply one input. What cannot be applied leaves nothing behind, and its caller hears
        so."""
        n = intake.owner_of(item)
        world = self.world
        hosted = n in world.live_rows and not world.is_leaving(n)
        if not hosted or not (n or isinstance(item, Spawn | Import | Fork)):
            # Answered without a run, or about the world itself: a failure is one of the whole.
            intake.take(world, tick, self.caches, item)
            return
        if isinstance(item, Pause):
            self._rest_first(tick, n)
        kind = type(item)
        name = kind.__name__
        if tick.guard(n, name, intake.FOR_RUN.get(kind, _take_any), self.caches, item):
            return
        ticket = getattr(item, "ticket", 0)
        if ticket:
            known = n in world
            message = f"{name} could not be applied; this is a defect of leviath, please report it"
            run_id = world.run_id(n) if known and n else ""
            tick.acks.append(Ack(ticket, n, run_id, "world", message))
        if n in world:
            # Its outcome is used up: an effect that stayed would hold its slot for ever.
            drop_effect(Run(world, n), getattr(item, "effect", 0))

    def _rest_first(self, tick: Tick, n: int) -> None:
        """Let a run that is about to be paused go to where it rests: what arrived before it, in the
        same step, is worked through as if it had had a step of its own."""
        for _ in range(self.world.policy.rounds_max):
            marker = self.world.marker(n)
            system = None if marker is None else self.schedule.get(marker)
            if system is None:
                return
            tick.guard(n, system.__name__, system)

    def _guard_of(self, tick: Tick, failures: list[tuple[int, str]]) -> Guard:
        """What runs one system over one run; when it raises, undoes it and ends the run's stage in
        error. Called five times a turn, so it marks its place by hand.

        Owner 0 stands for a run that does not exist yet: undoing leaves nothing of it.
        """
        world = self.world
        log = world.undo_log
        commands, events, facts, acks = tick.commands, tick.events, tick.facts, tick.acks

        def guard(n: int, name: str, system: Callable[..., None], *more: object) -> bool:
            mark = len(log)
            wishes = (len(commands), len(events), len(facts), len(acks))
            try:
                system(Run(world, n), tick, *more)
            except (MemoryError, RecursionError):
                # Says nothing about the run: another process would not fail here.
                raise
            except Exception as error:  # noqa: BLE001 - a failing rule ends a stage, not the host
                self._undo(tick, mark, wishes)
                failures.append((n, f"{name}: {type(error).__name__}"))
                if n:
                    failed = f"system {name} failed with {type(error).__name__}"
                    self._end_in_error(tick, n, failed)
                return False
            return True

        return guard

    def _undo(self, tick: Tick, mark: int, wishes: tuple[int, int, int, int]) -> None:
        self.world.undo_to(mark)
        tick.undo_to(wishes)
        self.caches.all_dirty()

    def _end_in_error(self, tick: Tick, n: int, message: str) -> None:
        world = self.world
        if n not in world or world.get(n, Status).status.is_ended:
            return
        mark, wishes = world.mark(), tick.mark()
        try:
            fail_stage(Run(world, n), tick, message)
        except (MemoryError, RecursionError):
            raise
        except Exception:  # noqa: BLE001 - its components are past helping; the others go on
            self._undo(tick, mark, wishes)
            put_down(Run(world, n), tick, message)

    def _rounds(self, tick: Tick, failures: list[tuple[int, str]]) -> None:
        world = self.world
        rounds = 0
        while rounds < world.policy.rounds_max:
            moved = False
            tree_moves = tick.tree_moves
            for marker, system in self.schedule.items():
                queue = world.runs_with(marker)
                if queue:
                    moved = True
                    for n in list(queue):
                        tick.guard(n, system.__name__, system)
            if trees.advance(world, tick):
                moved = True
            if slots.grant(world, tick, self.caches):
                moved = True
            if not moved:
                return
            if tick.tree_moves == tree_moves:
                # Others count by themselves: workers that end at once follow each other, and none
                # of them, nor their parent, is in a loop.
                rounds += 1
        message = f"the run moved {rounds} times within one step without a model call: a loop"
        for marker in self.schedule:
            for n in list(world.runs_with(marker)):
                failures.append((n, "schedule: loop"))
                put_down(Run(world, n), tick, message)

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
        changes, written = world.take_changes()
        touched = frozenset(world.touched)
        world.touched.clear()
        gone = tuple(change.owner for change in changes if isinstance(change, Gone))
        return StepResult(
            step=step,
            now=tick.now,
            inputs=inputs,
            changes=changes,
            written=written,
            events=tuple(tick.events),
            commands=tuple(tick.commands),
            facts=tuple([fact for fact in tick.facts if isinstance(fact, LedgerFact)]),
            endings=tuple([fact for fact in tick.facts if not isinstance(fact, LedgerFact)]),
            acks=tuple(tick.acks),
            mirror=tick.mirror,
            touched=touched,
            gone=gone,
            failures=tuple(failures),
            next_due_ms=self.next_due_ms(tick.now.world_ms),
        )

    def is_over(self, n: int) -> bool:
        """Whether a run has ended, nothing of it or below it is outside, and nobody has yet to hear
        of it."""
        if not Run(self.world, n).status.is_ended or self.world.get(n, Effects).items:
            return False
        box = self.world.find(n, Outbox)
        return (box is None or not box.is_owed) and not self.world.trees.has_work_below(n)

    def next_due_ms(self, world_ms: int) -> int | None:
        """World time of the next deadline of a run or a breaker; now, while trees move on."""
        if trees.has_more(self.world):
            return world_ms
        times = [
            at
            for at in (
                self.caches.next_due_ms(),
                slots.next_breaker_ms(self.world, world_ms),
            )
            if at is not None
        ]
        return min(times, default=None)
