"""What a step costs beside runs that do nothing: ten busy ones among 100,000."""

from __future__ import annotations

import time
from collections.abc import Sequence

import fleet
from harness import Benchmark, Row, measured, median

from leviath.components.blueprint import digest
from leviath.components.commands import CallTool, Command, Infer
from leviath.components.context import AskedCall
from leviath.components.identity import Launch
from leviath.components.inputs import (
    Configured,
    HostOpened,
    InferenceFinished,
    Input,
    Pause,
    Spawn,
    ToolFinished,
)
from leviath.components.parts import WORLD_OWNER
from leviath.components.text import inline
from leviath.components.world_facts import Offer, OfferedTool, Policy, Seed
from leviath.engine.step import Stepper
from leviath.systems.caches import Caches
from leviath.systems.run import Now
from leviath.systems.schedule import RULES
from leviath.systems.world import World

BUSY = 10
_BATCH = 256
_TOOLS = (OfferedTool("count_words", "pure", 600_000, b"count"),)
_CALL = (AskedCall("call-1", "count_words", inline('{"text":"one two"}')),)


class Driver:
    """A world in memory without a host: what it asks for is answered in the next step."""

    def __init__(self, parked: int) -> None:
        self.world = World()
        caches = Caches(self.world)
        self.stepper = Stepper(self.world, caches)
        self.world.load(WORLD_OWNER, [Seed("bench", 1)])
        self.now = Now(0, 1_790_000_000_000)
        self._offer(("scripted",))
        self._spawn("elsewhere", parked)
        self.commands = self._spawn("scripted", BUSY)

    def _offer(self, providers: tuple[str, ...]) -> list[Command]:
        policy = Policy(slots_default=fleet.SLOTS * 2)
        return self.step([HostOpened(1, RULES), Configured(policy, Offer(providers, _TOOLS))])

    def step(self, inputs: Sequence[Input]) -> list[Command]:
        self.now = Now(self.now.world_ms + 1, self.now.wall_ms + 1)
        return list(self.stepper.step(inputs, self.now).commands)

    def _spawn(self, provider: str, count: int) -> list[Command]:
        agent = fleet.blueprint(100_000, provider=provider)
        key = digest(agent)
        self.world.blueprints[key] = agent
        launch = Launch(
            task=inline("count"), workdir="/w", blueprint=key, started_ms=0, num_stages=1
        )
        commands: list[Command] = []
        for at in range(0, count, _BATCH):
            many = min(_BATCH, count - at)
            commands += self.step([Spawn(0, agent.name, "", launch) for _ in range(many)])
        return commands

    def make_all_busy_once(self) -> None:
        """The parked ones get their provider, make a call, and are paused over it."""
        asked = self._offer(("scripted", "elsewhere"))
        calls = [command for command in asked if isinstance(command, Infer)]
        for at in range(0, len(calls), _BATCH):
            some = calls[at : at + _BATCH]
            self.step([Pause(call.run, 0) for call in some])
            self.step([answer for call in some if (answer := _answer(call)) is not None])

    def spans(self, steps: int) -> list[float]:
        """Milliseconds of each of so many steps, in which every busy run moves."""
        found: list[float] = []
        for _ in range(steps):
            answers = [a for command in self.commands if (a := _answer(command)) is not None]
            assert len(answers) == BUSY, "a busy run stopped"
            began = time.perf_counter()
            with measured():
                self.commands = self.step(answers)
            found.append((time.perf_counter() - began) * 1_000)
        return found


def _answer(command: Command) -> Input | None:
    if isinstance(command, Infer):
        return InferenceFinished(
            command.run, command.effect, command.attempt, command.epoch, calls=_CALL, prompt=10
        )
    if isinstance(command, CallTool):
        return ToolFinished(
            command.run, command.effect, command.attempt, command.epoch, result=inline("2")
        )
    return None


def _beside(alone: Driver, crowded: Driver, rounds: int) -> tuple[float, float]:
    """Median ms of a step of each, measured in turns so that both see the same machine."""
    for driver in (alone, crowded):
        driver.spans(20)
    few: list[float] = []
    many: list[float] = []
    for _ in range(rounds):
        few += alone.spans(20)
        many += crowded.spans(20)
    return median(few), median(many)


def _parked(*, quick: bool) -> list[Row]:
    parked, rounds = (2_000, 3) if quick else (100_000, 10)
    crowded = Driver(parked)
    few, many = _beside(Driver(0), crowded, rounds)
    crowded.make_all_busy_once()
    few_after, many_after = _beside(Driver(0), crowded, rounds)
    note = "{:.2f} ms beside {:.2f} ms with none parked"
    return [
        Row("step_parked", many / few, "x", 1.2, "lower", note.format(many, few)),
        Row(
            "step_once_busy",
            many_after / few_after,
            "x",
            1.2,
            "lower",
            note.format(many_after, few_after),
        ),
    ]


BENCHMARKS = [
    Benchmark("step_parked", "step with 10 busy runs among 100,000 parked", _parked),
]
