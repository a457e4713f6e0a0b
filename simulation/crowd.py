"""The people of a simulation: they hear of runs that wait for them and answer late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from leviath.components.effects import Turn
from leviath.components.events import StatusChanged
from leviath.components.inputs import Decide, Resume
from leviath.components.run_status import RunStatus
from leviath.components.status import Status
from leviath.simulation.cast import PeoplePart, RunPart

if TYPE_CHECKING:
    from typing import Any

    from leviath.components.inputs import Input
    from leviath.engine.step import StepResult
    from leviath.simulation.fleet_scenario import People
    from leviath.simulation.measures import Measures
    from leviath.systems.world import World

    Outcome = tuple[str, int, int, int, Any]


class Stage(Protocol):
    """What the people see of the simulation."""

    now_ms: int
    world: World
    measures: Measures

    def push(self, at_ms: int, outcome: Outcome) -> None:
        """Let something happen at that time."""
        ...

    def run_part(self, n: int) -> RunPart:
        """What a run does."""
        ...


class Crowd:
    """Everybody who answers, in a simulation.

    A run that starts to wait for somebody is asked about once; ``_ask`` is where a new way of
    waiting gets its answer.
    """

    def __init__(self, people: People, fleet: Stage) -> None:
        self._part = PeoplePart(people)
        self._fleet = fleet
        self._asked = 0
        """Counts what people were asked, so that each answer takes its own time."""

    def hear(self, result: StepResult) -> None:
        """Hear of the runs that began to wait in a step."""
        by_run_id = self._fleet.world.by_run_id
        for event in result.events:
            if (
                type(event) is StatusChanged
                and event.status == "waiting_input"
                and event.run_id in by_run_id
            ):
                self._ask(by_run_id[event.run_id])

    def ask_again(self) -> None:
        """After a crash nobody remembers what they were going to say: every question is new."""
        world = self._fleet.world
        for n in sorted(world.owners()):
            if world.get(n, Status).status is RunStatus.WAITING_INPUT:
                self._ask(n)

    def _ask(self, n: int) -> None:
        world = self._fleet.world
        waiting = world.get(n, Status).waiting
        if waiting is None:
            return
        if waiting.reason == "tool_approval":
            turn = world.find(n, Turn)
            for call in () if turn is None else turn.calls:
                if call.state in ("asked", "unknown"):
                    self._ask_about_call(n, call.call_id, call.state)
        elif waiting.reason == "needs_setup" and self._part.fix is not None:
            self._asked += 1
            key = self._fleet.run_part(n).key
            late_ms = self._part.fix(key, "fix", self._asked)
            at_ms = self._part.at_work(self._fleet.now_ms + late_ms)
            self._fleet.push(at_ms, ("resume", n, 0, 0, None))

    def _ask_about_call(self, n: int, call_id: str, state: str) -> None:
        if self._part.answer is None:
            return
        self._asked += 1
        now_ms, key = self._fleet.now_ms, self._fleet.run_part(n).key
        at_ms = self._part.at_work(now_ms + self._part.answer(key, "answer", self._asked))
        verdict = self._part.verdict(state, key, self._asked)
        self._fleet.push(at_ms, ("decide", n, now_ms, 0, (call_id, verdict)))

    def speak(self, outcome: Outcome) -> Input:
        """What somebody says now."""
        kind, n, asked_ms, _, more = outcome
        if kind == "resume":
            return Resume(n, actor="operator")
        call_id, verdict = more
        self._fleet.measures.answered_after(self._fleet.now_ms - asked_ms)
        return Decide(n, call_id, verdict, actor="person")
