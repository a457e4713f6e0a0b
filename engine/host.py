"""The loop that owns a world: it takes inputs, steps, makes steps durable, and only then lets go.

arrive -> step -> commit (intent durable, not started) -> release (it may have happened) -> outcome
posted -> commit of the step that took it (it happened, once).
"""

from __future__ import annotations

import gc
import logging
import math
from collections import deque
from typing import TYPE_CHECKING

import trio

from leviath.components.base import Component
from leviath.components.changes import Put
from leviath.components.errors import DiskFull, StorageError
from leviath.components.identity import Identity
from leviath.components.inputs import HostClosing, Pause, Slept
from leviath.components.parts import WORLD_OWNER
from leviath.components.run_status import RunStatus
from leviath.components.status import Status
from leviath.components.world_facts import Counters
from leviath.engine.clock import WorldTime, perf_ns
from leviath.engine.commits import Backlog, Unit, epoch_of
from leviath.engine.cutting import Cutting
from leviath.engine.feed import Feed
from leviath.engine.limits import (
    CHECK_RUNS,
    CLOSE_GRACE_MS,
    FREEZE_RUNS,
    HEARTBEAT_BUCKETS,
    STORAGE_RETRY_MS,
    THREAD_LOOK_MS,
)
from leviath.engine.outside import Outside
from leviath.engine.pacing import Pacer, uncollected
from leviath.engine.preview import Previews
from leviath.engine.sending import Sending
from leviath.systems.invariants import broken
from leviath.systems.run import Ack, Now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from leviath.components.inputs import Input
    from leviath.engine.clock import Clock
    from leviath.engine.commits import Chain, PartRow
    from leviath.engine.mirroring import Mirror
    from leviath.engine.step import Stepper, StepResult
    from leviath.engine.texts import Texts
    from leviath.engine.writer import Writer
    from leviath.systems.world import World

_log = logging.getLogger("leviath.engine")


class Host:
    """Drives one world from inside a trio nursery. Made by ``open_world``."""

    def __init__(
        self,
        stepper: Stepper,
        outside: Outside,
        texts: Texts,
        clock: Clock,
        *,
        world_ms: int,
        chain: Chain | None,
        writer: Writer | None,
        mirror: Mirror | None,
        drive: bool = True,
        checks: bool = True,
        grace_ms: int = CLOSE_GRACE_MS,
    ) -> None:
        self.stepper = stepper
        self.world: World = stepper.world
        self.outside = outside
        outside.post = self.post
        outside.identity = self.identity
        self.texts = texts
        self.clock = clock
        self.time: WorldTime = WorldTime(clock, world_ms)
        self.chain = chain
        self.writer = writer
        self.mirror = mirror
        self.drive = drive
        """False: commands stay here, and the next host sends what is still open."""
        self.checks = checks
        """Check the invariants of the runs that each step changed."""
        self._grace_ms = grace_ms
        self.feed: Feed = Feed()
        self.previews: Previews = Previews()
        self.backlog: Backlog = Backlog()
        self.inbox: deque[Input] = deque()
        self.cutting: Cutting | None = None
        """None for a world without a store."""
        if chain is not None and writer is not None:
            ended = self._cut_ended
            self.cutting = Cutting(stepper, self.inbox, chain, writer, mirror, ended, world_ms)
        self.stalled: StorageError | None = None
        """The error that keeps steps from becoming durable; None while storage works."""
        self.durable_step: int = 0
        self.commits: int = 0
        self._unit = Unit()
        self._in_flight: Unit | None = None
        self._in_flight_bytes = 0
        """Texts of the unit that is being committed."""
        self._pacer = Pacer()
        self._frozen_runs = self.world.resident_count()
        self._next_due_ms: int | None = None
        self._retry_ms: int | None = None
        self._beat_second = world_ms // 1_000
        self._wakeup = trio.Event()
        self._tickets: dict[int, Callable[[Ack], None]] = {}
        self._ticket = 0
        self._closing = False
        self.fatal: BaseException | None = None
        """Why the host had to stop; None while it works."""
        self.ended: trio.Event = trio.Event()
        self.sending: Sending | None = None
        """Set once the host runs."""
        clock.subscribe(self.wake)

    # --- arriving -------------------------------------------------------------------------------

    def post(self, item: Input) -> None:
        """Put an input before the world. It is taken by a later step, in order of arrival."""
        self.inbox.append(item)
        self._wakeup.set()

    def wake(self) -> None:
        """Look again: something may be due."""
        self._wakeup.set()

    def ask(self, make: Callable[[int], Input], answer: Callable[[Ack], None]) -> None:
        """Post an input with a ticket; ``answer`` hears its acknowledgement once that is
        durable."""
        self.world.check_thread()
        if self._closing:
            answer(Ack(0, code="closed", message="this world is closing; open it again"))
            return
        self._ticket += 1
        self._tickets[self._ticket] = answer
        self.post(make(self._ticket))

    # --- the loop -------------------------------------------------------------------------------

    async def run(self, nursery: trio.Nursery) -> None:
        """Drive until closed, or until something fails for good: then ``fatal`` says what."""
        token = trio.lowlevel.current_trio_token()
        self.sending = Sending(self.outside, nursery, token)
        try:
            while self.fatal is None and not (self._closing and self.is_settled):
                if self._may_step():
                    self._step()
                    self._housekeep()
                    await trio.lowlevel.checkpoint()
                else:
                    await self._wait()
        except Exception as error:  # noqa: BLE001 - raised by whoever opened the world
            self._fail(error)
        finally:
            self._closing = True
            self.outside.post = _drop
            self.ended.set()
            self._answer_all()
            self.feed.close()
            self.previews.close(self.durable_step, self.step)

    def _answer_all(self) -> None:
        """Nobody waits for an answer that cannot come."""
        why = "this world was closed before it could answer; open it again"
        if self.fatal is not None:
            why = f"this world had to stop: {self.fatal}"
        tickets, self._tickets = self._tickets, {}
        for answer in tickets.values():
            answer(Ack(0, code="closed", message=why))

    @property
    def step(self) -> int:
        """Number of the newest step, durable or not."""
        return self.world.get(WORLD_OWNER, Counters).step

    async def until_durable(self, step: int) -> bool:
        """Wait until that step is durable; False when the host ended before."""
        while self.durable_step < step:
            if self.feed.closed:
                return False
            await self.feed.progressed()
        return True

    def is_pending(self, n: int, kind: type[Component]) -> bool:
        """A step that is not durable yet changed that part of the run."""
        units = (self._unit,) if self._in_flight is None else (self._in_flight, self._unit)
        return any(
            change.owner == n and isinstance(change, Put) and change.part == kind.__name__
            for unit in units
            for result in unit.results
            if n in result.touched
            for change in result.changes
        )

    @property
    def is_durable(self) -> bool:
        """Everything that was stepped is durable."""
        return not self._unit.results and self._in_flight is None

    @property
    def is_settled(self) -> bool:
        """Nothing waits to be stepped or to become durable."""
        cuts = self.cutting is not None and self.cutting.is_under_way
        return not (self.inbox or self._unit.results or self._in_flight is not None or cuts)

    def _may_step(self) -> bool:
        if self.stalled is not None or self.backlog.is_full:
            return False
        if self.inbox:
            return True
        due = self._next_due_ms
        return due is not None and due <= self.time.now_ms() and not self._closing

    async def _wait(self) -> None:
        """Sleep until something arrives, becomes durable, or is due."""
        self._housekeep()
        if self.inbox and self._may_step():
            return
        span = self._span_ms()
        self.time.waiting(span)
        timeout = math.inf if span is None else self.clock.timeout_s(span)
        with trio.move_on_after(timeout):
            await self._wakeup.wait()
        self._wakeup = trio.Event()

    def _span_ms(self) -> int | None:
        """How long there is nothing to do."""
        now = self.time.now_ms()
        times = []
        if self._next_due_ms is not None and self.stalled is None and not self._closing:
            times.append(self._next_due_ms)
        if self._retry_ms is not None:
            times.append(self._retry_ms)
        if self.mirror is not None:
            times.append((self._beat_second + 1) * 1_000)
            due = self.mirror.next_due_ms()
            if due is not None and self._in_flight is None:
                times.append(due)
        if self.sending is not None and self.sending.has_plain_calls:
            times.append(now + THREAD_LOOK_MS)
        return max(0, min(times) - now) if times else None

    def _housekeep(self) -> None:
        """What the loop looks after between steps: retries, threads, the heartbeat, due files."""
        now = self.time.now_ms()
        if self._retry_ms is not None and self._retry_ms <= now:
            self._retry()
        if self.sending is not None:
            self.sending.look()
        second = now // 1_000
        if self.mirror is not None and second > self._beat_second:
            # After a long wait one round of the buckets is enough.
            first = max(self._beat_second + 1, second - HEARTBEAT_BUCKETS + 1)
            for beat in range(first, second + 1):
                self.mirror.beat(self.world, beat)
            self._beat_second = second
            self._live()
        self._hand_over()

    def _live(self) -> None:
        """Renew the one row that tells readers that all hosted runs are hosted."""
        if self.writer is not None and self.chain is not None:
            chain, wall_ms = self.chain, self.clock.wall_ms()
            self.writer.submit(lambda: chain.live(wall_ms), self._lived)

    def _lived(self, value: object, error: Exception | None) -> None:
        if error is not None and not isinstance(error, DiskFull):
            self._fail(error)

    # --- stepping -------------------------------------------------------------------------------

    def _step(self) -> None:
        inputs: list[Input] = []
        world_ms = self.time.now_ms()
        slept = self.time.take_slept()
        if slept:
            inputs.append(Slept(slept))
        inbox = self.inbox
        while inbox and len(inputs) < self._pacer.inputs_max:
            inputs.append(inbox.popleft())
        began = perf_ns()
        with uncollected():
            result = self.stepper.step(inputs, Now(world_ms, self.clock.wall_ms()))
        self._pacer.took(len(inputs), perf_ns() - began)
        self._next_due_ms = result.next_due_ms
        for run, what in result.failures:
            _log.error("run %s: %s", self._name(run), what)
        if result.is_empty:
            return
        self._unit.results.append(result)
        self.backlog.steps += 1
        self.backlog.size_bytes = self.texts.fresh_bytes + self._in_flight_bytes
        self.previews.step(result.events)
        if self.checks:
            self.check(result.touched, deep=False)
        if self.world.resident_count() >= self._frozen_runs + FREEZE_RUNS:
            self._frozen_runs = self.world.resident_count()
            gc.freeze()
        if self.cutting is not None:
            self.cutting.dirty.note(result)
        if self.mirror is not None:
            self.mirror.note(result, world_ms)

    def check(self, owners: Iterable[int], *, deep: bool = True) -> list[tuple[str, str]]:
        """(run id, invariant) for each that does not hold. Such a run is held paused."""
        found: list[tuple[str, str]] = []
        for n, name in broken(self.world, owners, deep=deep):
            run_id = self._name(n)
            _log.error("run %s breaks an invariant: %s", run_id, name)
            found.append((run_id, name))
            status = self.world.get(n, Status).status
            if not status.is_ended and status is not RunStatus.PAUSED:
                self.post(Pause(n, 0, "engine", f"invariant broken: {name}"))
        return found

    async def check_all(self) -> list[tuple[str, str]]:
        """Check the whole world in slices that do not hold the loop."""
        owners = list(self.world.owners())
        found: list[tuple[str, str]] = []
        for at in range(0, len(owners), CHECK_RUNS):
            found.extend(self.check(owners[at : at + CHECK_RUNS]))
            await trio.lowlevel.checkpoint()
        return found

    def identity(self, run: int) -> Identity:
        """Who a run with an effect in flight is."""
        return self.world.get(run, Identity)

    def _name(self, run: int) -> str:
        return self.world.run_id(run) if run and run in self.world else str(run)

    # --- becoming durable -----------------------------------------------------------------------

    def _hand_over(self) -> None:
        """Give all steps that are ready to the writer, unless it is busy with others."""
        if self._in_flight is not None or self.stalled is not None:
            return
        unit = self._unit
        now = self.time.now_ms()
        unit.closing = self._closing
        if self.mirror is not None:
            self.mirror.take(unit, self.world, now)
        if not (unit.results or unit.runs):
            if self.cutting is not None and not self._closing:
                # Everything is durable: a cut that is due need not wait for a step.
                taken = self.cutting.take_due(now)
                if taken:
                    self.cutting.write(self.durable_step, taken)
            return
        self._unit = Unit()
        unit.epoch = epoch_of(self.world)
        unit.wall_ms = self.clock.wall_ms()
        unit.world_ms = now
        self._in_flight_bytes = self.texts.fresh_bytes
        unit.entries = self.texts.take_fresh()
        unit.secrets = self.outside.take_secrets()
        unit.gone = [n for result in unit.results for n in result.gone]
        self._in_flight = unit
        if self.writer is None or self.chain is None:
            self._committed(unit, None)
            return
        if unit.results and self.cutting is not None:
            unit.cut = self.cutting.take_due(now)
        self._submit(unit)

    def _submit(self, unit: Unit) -> None:
        assert self.writer is not None
        assert self.chain is not None
        chain, mirror = self.chain, self.mirror
        prepare = None if mirror is None else mirror.prepare

        def done(size: int | None, error: Exception | None) -> None:
            self._committed(unit, error)

        self.writer.submit(lambda: chain.commit(unit, prepare), done)

    def _committed(self, unit: Unit, error: Exception | None) -> None:
        """A unit is durable, or not: then it is kept and tried again, or the host ends."""
        self._wakeup.set()
        try:
            self._take_commit(unit, error)
        except Exception as failure:  # noqa: BLE001 - here is no task that could raise it
            self._fail(failure)

    def _take_commit(self, unit: Unit, error: Exception | None) -> None:
        if isinstance(error, DiskFull) and not self._closing:
            if self.stalled is None:
                _log.error("storage stalled: %s", error)
            self.stalled = error
            self._retry_ms = self.time.now_ms() + STORAGE_RETRY_MS
            return
        if error is not None:
            self._fail(error)
            return
        if self.stalled is not None:
            _log.warning("storage works again")
            self.stalled = None
        self._in_flight = None
        self.commits += 1
        self._in_flight_bytes = 0
        self.backlog.steps -= len(unit.results)
        self.backlog.size_bytes = self.texts.fresh_bytes
        self.texts.durable(unit.entries)
        if self.cutting is not None:
            self.cutting.dirty.size_bytes += unit.size_bytes
            if unit.cut:
                self.cutting.write(unit.results[-1].step, unit.cut)
        for result in unit.results:
            self._release(result)
        self.feed.progress()
        if self.mirror is not None and unit.files is not None:
            self.mirror.write(unit.files)
        self._hand_over()

    def _retry(self) -> None:
        self._retry_ms = None
        if self._in_flight is not None:
            self._submit(self._in_flight)

    def _fail(self, error: BaseException) -> None:
        self.fatal = self.fatal or error
        self._wakeup.set()

    def _cut_ended(self, error: Exception | None) -> None:
        if error is not None and not isinstance(error, DiskFull):
            self._fail(error)
        self._wakeup.set()

    def write_files_of(self, n: int, parts: PartRow | None) -> None:
        """Have a run's files written again; ``parts`` are those of a run that is not hosted."""
        if parts is not None:
            self._unit.runs[n] = parts
        elif self.mirror is not None:
            self.mirror.want(n, 0)

    # --- leaving --------------------------------------------------------------------------------

    def _release(self, result: StepResult) -> None:
        """The step is durable: its acknowledgements, events and commands may leave."""
        self.durable_step = result.step
        for ack in result.acks:
            answer = self._tickets.pop(ack.ticket, None)
            if answer is not None:
                answer(ack)
        self.feed.publish(result)
        self.previews.confirm(result.step)
        if self._closing or not self.drive or self.sending is None:
            return
        for command in result.commands:
            self.sending.carry_out(command)

    # --- closing --------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Send nothing more, and let outcomes in flight land within the grace period."""
        self.inbox.appendleft(HostClosing(sends_no_more=True))
        self.wake()
        with trio.move_on_after(self._grace_ms / 1_000):
            while (
                not self.ended.is_set()
                and self.sending is not None
                and (self.sending.is_busy or not (self.is_settled or self.stalled))
            ):
                await self._quiet()

    async def _quiet(self) -> None:
        with trio.move_on_after(THREAD_LOOK_MS / 1_000):
            await trio.sleep_forever()

    def close(self) -> None:
        """Take nothing new, let go of what is outside, and end when all is durable.

        Effects that are still in flight stay as they are: the next host settles them.
        """
        if self._closing:
            return
        self.outside.post = _drop
        if self.sending is not None:
            self.sending.close()
        self._closing = True
        if self.stalled is not None:
            self._fail(self.stalled)
        else:
            self._hand_over()
            self.wake()


def _drop(item: Input) -> None:
    """Where outcomes of a closed host go."""
