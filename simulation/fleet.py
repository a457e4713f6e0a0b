"""A fleet in virtual time: the real world and rules, driven by a heap of what comes next.

No trio, no clock, no disk. Everything that falls on one virtual millisecond is one step, commands
leave when their step is durable, and a crash takes what was not.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

from leviath.components.blueprint import digest as blueprint_digest
from leviath.components.commands import Abort, CallTool, FindAgent, Gather, Infer
from leviath.components.errors import WorldError
from leviath.components.identity import Launch, Tree
from leviath.components.inputs import (
    AgentFound,
    Configured,
    Gathered,
    HostOpened,
    Settle,
    Spawn,
)
from leviath.components.marker import Marker
from leviath.components.parts import WORLD_OWNER
from leviath.components.progress import Stage
from leviath.components.status import Status
from leviath.components.text import inline, text_digest
from leviath.components.world_facts import Counters, Offer, OfferedTool, Seed
from leviath.engine.offering import IN_STEP_TOOLS
from leviath.engine.step import Stepper, StepResult
from leviath.persistence.journal import ORIGIN, encode_step
from leviath.simulation.calendar import Calendar
from leviath.simulation.cast import (
    AgentPart,
    ProviderPart,
    RunPart,
    ToolPart,
    failure,
    given_up,
)
from leviath.simulation.checkers import check_totals
from leviath.simulation.crowd import Crowd
from leviath.simulation.fleet_scenario import START_MS, Scenario
from leviath.simulation.measures import Measures
from leviath.simulation.unwritten import UnwrittenWorld, loaded, parts_by_owner
from leviath.systems.invariants import broken
from leviath.systems.run import Now
from leviath.systems.schedule import RULES
from leviath.systems.slots import slot_cap
from leviath.systems.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from leviath.components.base import Component
    from leviath.components.commands import Command
    from leviath.components.inputs import Input
    from leviath.simulation.report import Report
    from leviath.systems.caches import Caches
    from leviath.systems.run import LedgerFact

_READY: Final = Marker.ready_to_infer
_STUCK_STEPS_MAX: Final = 100_000
"""Steps of one virtual millisecond: beyond it something is due that no step clears."""
_COLLECT_STEPS: Final = 2_000
_LOOK_STEPS: Final = 512
Outcome = tuple[str, int, int, int, Any]
"""What a heap entry carries: (kind, run, number, order, more)."""


def simulate(
    scenario: Scenario,
    *,
    seed: int | None = None,
    digest: bool = False,
    check: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Play a scenario to its end and say what came of it.

    ``seed`` takes the place of the scenario's own. With ``digest`` every step is encoded and
    chained as a host would journal it. With ``check`` every step is held to the invariants;
    AssertionError or Breached names the first that breaks. ``on_progress`` is called now and then
    with the virtual milliseconds and the turns so far.
    """
    seed = scenario.seed if seed is None else seed
    fleet = Fleet(scenario, seed, digest=digest, check=check)
    with _collected_by_hand():
        fleet.play(on_progress)
    return fleet.report()


@contextmanager
def _collected_by_hand() -> Generator[None, None, None]:
    """No garbage collection of its own accord: ``Fleet.play`` collects what a step leaves."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Fleet:
    """One simulation under way. ``play`` brings it to its end, ``report`` tells."""

    def __init__(self, scenario: Scenario, seed: int, *, digest: bool, check: bool) -> None:
        self.scenario = scenario
        self.seed = seed
        self.now_ms: int = 0
        self.down_ms: int = 0
        """How long no host was up so far: world time leaves it out."""
        self.check = check
        self.chain: bytes | None = ORIGIN if digest else None
        sample_ms = scenario.sample_ms or max(1, scenario.duration_ms // 24)
        self.measures: Measures = Measures(sample_ms, scenario.budget_nano_usd)
        self.heap: list[tuple[int, int, Outcome]] = []
        self._order = 0
        self._flights: dict[tuple[int, int], tuple[int, Infer | CallTool]] = {}
        """Calls outside, by (run, effect): the order of their outcome on the heap."""
        self._runs: dict[int, RunPart] = {}
        self._ready_ms: dict[int, int] = {}
        """Since when a run stands ready for a slot."""
        agents = scenario.agents
        self._digests = {model.name: blueprint_digest(model.blueprint) for model in agents}
        parts = {model.name: AgentPart(model) for model in agents}
        self._agents = {self._digests[name]: part for name, part in parts.items()}
        inline_max = scenario.policy.text_inline_bytes_max
        self._providers = {model.name: ProviderPart(model) for model in scenario.providers}
        self._tools = {model.name: ToolPart(model, inline_max) for model in scenario.tools}
        self.calendar: Calendar = Calendar(scenario.arrivals, seed, self.push)
        self.crowd: Crowd = Crowd(scenario.people, self)
        self._crashes = list(scenario.crashes)
        self._before: dict[int, tuple[Component, ...]] | None = None
        """The state before the first step that the next crash takes; None when there is none."""
        self._chain_before = self.chain
        self._again: list[tuple[str, str]] = []
        """Spawns of steps that the next crash takes: their callers try again."""
        self._ledger: dict[int, list[LedgerFact]] = {}
        """Rows of runs in memory, to check their totals with."""
        self.kind: type[World] = World if digest else UnwrittenWorld
        self.offer: Offer = _offer(scenario)
        shelf = {self._digests[model.name]: model.blueprint for model in agents}
        first: World = World()
        rows = parts_by_owner(first)
        rows[WORLD_OWNER] = (*rows[WORLD_OWNER], Seed("simulation", seed))
        self.world: World
        self.caches: Caches
        self.world, self.caches = loaded(self.kind, rows, shelf)
        self.stepper: Stepper = Stepper(self.world, self.caches)
        for crash in self._crashes:
            self.push(crash.at_ms, ("crash", 0, crash.down_ms, 0, None))
        self.next_due_ms: int | None = None
        self._step(
            [
                HostOpened(1, RULES),
                Configured(scenario.decides(), self.offer, scenario.prices),
            ]
        )
        self.calendar.begin()

    # --- time -----------------------------------------------------------------------------------

    def push(self, at_ms: int, outcome: Outcome) -> None:
        """Let something happen at that virtual time, after what was pushed for it before."""
        self._order += 1
        heappush(self.heap, (at_ms, self._order, outcome))

    def play(self, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Go on until nothing is left to happen, or the scenario's time is over."""
        measures, end_ms = self.measures, self.scenario.duration_ms
        steps = same = 0
        while True:
            at_ms = self._next_ms()
            if at_ms is None or at_ms > end_ms:
                break
            same = same + 1 if at_ms == self.now_ms else 0
            if same > _STUCK_STEPS_MAX:
                raise WorldError(f"the simulation does not get past {at_ms} ms: a step repeats")
            while measures.next_sample_ms < at_ms:
                measures.sample(measures.next_sample_ms, len(self._ready_ms))
            self.now_ms = at_ms
            inputs = self._arrivals(at_ms)
            if inputs is None:
                continue
            self._step(inputs)
            steps += 1
            if not steps % _LOOK_STEPS and on_progress is not None:
                on_progress(at_ms, measures.turns)
            if not steps % _COLLECT_STEPS:
                gc.collect(0 if steps % (_COLLECT_STEPS * 64) else 1)
        if self._next_ms() is not None:
            self.now_ms = end_ms
        while measures.next_sample_ms <= self.now_ms:
            measures.sample(measures.next_sample_ms, len(self._ready_ms))
        if self.check:
            self._check_whole()

    def _check_whole(self) -> None:
        owners = sorted(self.world.owners())
        faults = broken(self.world, owners)
        assert not faults, faults
        if self._before is None:
            check_totals(self.world, owners, self._ledger)

    def _next_ms(self) -> int | None:
        """When the next step is: an event, or what the world itself has due."""
        at_ms = self.heap[0][0] if self.heap else None
        if self.next_due_ms is not None:
            due_ms = max(self.now_ms, self.next_due_ms + self.down_ms)
            if at_ms is None or due_ms < at_ms:
                return due_ms
        return at_ms

    def _arrivals(self, at_ms: int) -> list[Input] | None:
        """What happens at that time, in order; what is no input is done at once. None when the
        host died: there is nobody to take a step."""
        inputs: list[Input] = []
        heap = self.heap
        while heap and heap[0][0] == at_ms:
            _, order, outcome = heappop(heap)
            kind, n, number, _, more = outcome
            if kind == "call":
                flight = self._flights.get((n, number))
                if flight is not None and flight[0] == order:
                    del self._flights[n, number]
                    command = flight[1]
                    if type(command) is Infer:
                        key = (command.provider, command.model)
                        self.measures.slots[key].change(at_ms, -1)
                    inputs.append(more)
            elif kind == "input":
                inputs.append(more)
            elif kind == "spawn":
                inputs.extend(self._spawns(outcome, at_ms))
            elif kind == "wave":
                self.calendar.wave(at_ms, number, more)
            elif kind == "crash":
                # It was planned before all else of its time, which the next host hears of.
                assert not inputs
                self._crash(number)
                return None
            elif kind == "opened":
                inputs.extend(self._open(number))
            else:
                inputs.append(self.crowd.speak(outcome))
        return inputs

    def _spawns(self, outcome: Outcome, at_ms: int) -> list[Input]:
        starts = list(self.calendar.due(outcome, at_ms))
        if self._in_doubt(at_ms):
            self._again += starts
        return [self._spawn(name, key) for name, key in starts]

    def _spawn(self, name: str, key: str) -> Spawn:
        digest = self._digests[name]
        launch = Launch(
            task=inline("simulated"),
            workdir="/simulated",
            blueprint=digest,
            started_ms=START_MS + self.now_ms,
            num_stages=len(self.world.blueprints[digest].stages),
        )
        return Spawn(1, name, "", launch, key)

    # --- a step ---------------------------------------------------------------------------------

    def _in_doubt(self, at_ms: int) -> bool:
        """Whether a step of that time is not durable when the host dies next."""
        return bool(self._crashes) and at_ms + self.scenario.commit_ms > self._crashes[0].at_ms

    def _step(self, inputs: list[Input]) -> None:
        now_ms = self.now_ms
        in_doubt = bool(self._crashes) and self._in_doubt(now_ms)
        if in_doubt and self._before is None:
            self._before = parts_by_owner(self.world)
            self._chain_before = self.chain
        now = Now(now_ms - self.down_ms, START_MS + now_ms)
        result = self.stepper.step(inputs, now)
        self.next_due_ms = result.next_due_ms
        if self.chain is not None and not result.is_empty:
            row = encode_step(
                self.chain,
                step=result.step,
                epoch=self.world.get(WORLD_OWNER, Counters).epoch,
                world_ms=now.world_ms,
                wall_ms=now.wall_ms,
                inputs=result.inputs,
                changes=result.changes,
                events=(),
            )
            self.chain = row.digest
        if self.check:
            faults = broken(self.world, sorted(result.touched), deep=False)
            assert not faults, faults
            assert not result.failures, result.failures
        if not in_doubt:
            self._book(result)

    def _book(self, result: StepResult) -> None:
        """The step is durable: count it, let its commands leave, and forget who ended."""
        now_ms = self.now_ms
        measures = self.measures
        measures.steps += 1
        measures.take(now_ms, result.events, result.facts)
        if self.check:
            for fact in result.facts:
                self._ledger.setdefault(fact.run, []).append(fact)
        ends: list[int] = []
        for command in result.commands:
            kind = type(command)
            if kind is Infer:
                self._call_model(command)  # type: ignore[arg-type]
            elif kind is CallTool:
                self._call_tool(command)  # type: ignore[arg-type]
            else:
                self._do(command, ends)
        self.crowd.hear(result)
        if self._ready_ms or self.caches.waiting:
            self._note_ready(result)
        for n in ends:
            self._forget(n)

    def _note_ready(self, result: StepResult) -> None:
        ready, world = self._ready_ms, self.world
        for n in result.touched:
            if n in world and world.marker(n) is _READY:
                ready.setdefault(n, self.now_ms)
            else:
                ready.pop(n, None)

    def _forget(self, n: int) -> None:
        """An ended run leaves memory, as a host lets it; one of a tree stays."""
        tree = self.world.find(n, Tree) if n in self.world else None
        if tree is not None and not tree.parent and self.stepper.is_over(n):
            if self.check:
                check_totals(self.world, [n], self._ledger)
                self._ledger.pop(n, None)
            self.world.evict(n)
            self._runs.pop(n, None)

    def run_part(self, n: int) -> RunPart:
        """What a run does."""
        part = self._runs.get(n)
        if part is None:
            agent = self._agents[self.world.get(n, Launch).blueprint]
            part = self._runs[n] = RunPart(agent, self.seed, self.world.run_id(n))
        return part

    # --- the outside ----------------------------------------------------------------------------

    def _call_model(self, command: Infer) -> None:
        now_ms, n = self.now_ms, command.run
        key = (command.provider, command.model)
        waited_ms = now_ms - self._ready_ms.pop(n, now_ms)
        self.measures.call_begins(now_ms, key, slot_cap(self.world, key), waited_ms)
        asking: tuple[str, ...] = ()
        if command.purpose != "turn":
            asking = self.world.get(n, Stage).asking
        begins_ms = now_ms + self.scenario.commit_ms
        provider = self._providers[command.provider]
        latency_ms, done = provider.answer(begins_ms, command, self.run_part(n), asking)
        self._order += 1
        order = self._order
        self._flights[n, command.effect] = (order, command)
        heappush(
            self.heap, (begins_ms + latency_ms, order, ("call", n, command.effect, order, done))
        )

    def _call_tool(self, command: CallTool) -> None:
        n = command.run
        part = self._tools.get(command.tool)
        begins_ms = self.now_ms + self.scenario.commit_ms
        if part is None:
            latency_ms, done = 0, given_up(command)
        else:
            latency_ms, done = part.answer(command, self.run_part(n).key)
        self._order += 1
        order = self._order
        self._flights[n, command.effect] = (order, command)
        heappush(
            self.heap, (begins_ms + latency_ms, order, ("call", n, command.effect, order, done))
        )

    def _do(self, command: Command, ends: list[int]) -> None:
        at_ms = self.now_ms + self.scenario.commit_ms
        if isinstance(command, Abort):
            flight = self._flights.get((command.run, command.effect))
            if flight is None:
                return
            call = flight[1]
            done = given_up(call) if isinstance(call, CallTool) else failure(call, "timeout")
            if isinstance(call, Infer):
                # It may have been charged, nobody knows how much.
                done = failure(call, "timeout", charged=True)
            self._order += 1
            self._flights[command.run, command.effect] = (self._order, call)
            outcome = ("call", command.run, command.effect, self._order, done)
            heappush(self.heap, (at_ms, self._order, outcome))
        elif isinstance(command, Gather):
            gathered = Gathered(command.run, command.effect, command.attempt)
            self.push(at_ms, ("input", command.run, command.effect, 0, gathered))
        elif isinstance(command, FindAgent):
            found = AgentFound(
                command.run,
                command.effect,
                command.attempt,
                error=f"a simulation has no agents to look up ({command.wanted})",
            )
            self.push(at_ms, ("input", command.run, command.effect, 0, found))
        else:
            ends.append(command.run)

    # --- crashes --------------------------------------------------------------------------------

    def _crash(self, down_ms: int) -> None:
        """The host is gone: what was not durable never happened, what was outside is lost."""
        self._crashes.pop(0)
        rows = self._before or parts_by_owner(self.world)
        self.world, self.caches = loaded(self.kind, rows, self.world.blueprints)
        self.stepper = Stepper(self.world, self.caches)
        if self._before is not None:
            self.chain = self._chain_before
        up_ms = self.now_ms + down_ms
        self.measures.calls_lost(self.now_ms)
        self._flights.clear()
        self._ready_ms.clear()
        self._runs.clear()
        kept = sorted(entry for entry in self.heap if entry[2][0] in ("crash", "spawn", "wave"))
        self.heap = []
        self.push(up_ms, ("opened", 0, down_ms, 0, None))
        self._before = None
        for at_ms, _, outcome in kept:
            # Who comes while the host is down tries again until it is up.
            self.push(at_ms if outcome[0] == "crash" else max(at_ms, up_ms), outcome)
        self.next_due_ms = None

    def _open(self, away_ms: int) -> list[Input]:
        self.down_ms += away_ms
        epoch = self.world.get(WORLD_OWNER, Counters).epoch + 1
        self.crowd.ask_again()
        ready = self.world.runs_with(_READY)
        self._ready_ms = dict.fromkeys(ready, self.now_ms)
        again = [self._spawn(name, key) for name, key in self._again]
        self._again = []
        return [
            HostOpened(epoch, RULES, away_ms, clean=False),
            Configured(None, self.offer),
            Settle(tuple(sorted(self.world.owners()))),
            *again,
        ]

    # --- the end --------------------------------------------------------------------------------

    def unfinished(self) -> dict[str, int]:
        """Runs that have not ended, by what they wait for."""
        found: dict[str, int] = {}
        for n in self.world.owners():
            status = self.world.get(n, Status)
            if status.status.is_ended:
                continue
            waiting, marker = status.waiting, self.world.marker(n)
            if waiting is not None:
                why = waiting.blocker or waiting.reason
            else:
                why = status.status.value if marker is None else marker.value
            found[why] = found.get(why, 0) + 1
        return found

    def report(self) -> Report:
        """What came of it so far."""
        digest = "" if self.chain is None else self.chain.hex()
        return self.measures.report(
            self.scenario.title, self.seed, self.now_ms, self.unfinished(), digest
        )


def _offer(scenario: Scenario) -> Offer:
    tools = [
        OfferedTool(model.name, model.effect, model.deadline_ms, text_digest(model.name.encode()))
        for model in sorted(scenario.tools, key=lambda model: model.name)
    ]
    tools += [
        OfferedTool(spec.name, "step", 0, text_digest(spec.name.encode())) for spec in IN_STEP_TOOLS
    ]
    return Offer(tuple(sorted(model.name for model in scenario.providers)), tuple(tools))
