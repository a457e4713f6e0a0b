"""A world driven by hand: the test is its clock, its models and its tools.

Nothing waits and nothing is written. Every step is chained into a digest, as a host would journal it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leviath.components.blueprint import digest as blueprint_digest
from leviath.components.commands import CallTool, Command, Infer
from leviath.components.context import AskedCall
from leviath.components.identity import Launch
from leviath.components.inputs import (
    Configured,
    HostOpened,
    InferenceFinished,
    Input,
    Spawn,
    ToolFinished,
)
from leviath.components.parts import WORLD_OWNER
from leviath.components.status import Status
from leviath.components.text import inline
from leviath.components.world_facts import Counters, Offer, OfferedTool, Policy, Prices, Seed
from leviath.engine.step import Stepper, StepResult
from leviath.persistence.journal import ORIGIN, encode_step
from leviath.systems.caches import Caches
from leviath.systems.run import Now
from leviath.systems.schedule import RULES
from leviath.systems.world import World

if TYPE_CHECKING:
    from leviath.components.blueprint import Blueprint
    from leviath.persistence.rows import JournalRow

START_MS = 1_790_000_000_000


class Hand:
    """A world without a host. ``commands`` holds what was asked for and is not answered yet."""

    def __init__(
        self,
        *,
        providers: tuple[str, ...] = ("scripted",),
        tools: tuple[OfferedTool, ...] = (),
        policy: Policy | None = None,
        prices: Prices | None = None,
        seed: int = 1,
    ) -> None:
        self.world = World()
        self.caches = Caches(self.world)
        self.stepper = Stepper(self.world, self.caches)
        self.world_ms = 0
        self.wall_ms = START_MS
        self.digest = ORIGIN
        self.rows: list[JournalRow] = []
        self.results: list[StepResult] = []
        self.commands: list[Command] = []
        self.world.put(WORLD_OWNER, Seed("hand", seed))
        self.offer = Offer(providers, tools)
        self.post(HostOpened(1, RULES), Configured(policy, self.offer, prices))

    def post(self, *inputs: Input) -> StepResult:
        """Take the inputs in one step."""
        result = self.stepper.step(inputs, Now(self.world_ms, self.wall_ms))
        if not result.is_empty:
            row = encode_step(
                self.digest,
                step=result.step,
                epoch=self.world.get(WORLD_OWNER, Counters).epoch,
                world_ms=self.world_ms,
                wall_ms=self.wall_ms,
                inputs=result.inputs,
                changes=result.changes,
                events=result.events,
            )
            self.digest = row.digest
            self.rows.append(row)
        self.results.append(result)
        self.commands.extend(result.commands)
        return result

    def sleep(self, span_ms: int) -> StepResult:
        """Let time pass, then take what is due."""
        self.world_ms += span_ms
        self.wall_ms += span_ms
        return self.post()

    def spawn(self, blueprint: Blueprint, task: str = "do it", **more: object) -> int:
        """Start a run; returns its ordinal."""
        digest = blueprint_digest(blueprint)
        self.world.blueprints[digest] = blueprint
        options = {key: more.pop(key) for key in ("key", "run_id") if key in more}
        launch = Launch(
            task=inline(task),
            workdir="/w",
            blueprint=digest,
            started_ms=self.wall_ms,
            num_stages=len(blueprint.stages),
            **more,  # type: ignore[arg-type]
        )
        spawn = Spawn(1, blueprint.name, "/agents/" + blueprint.name, launch, **options)  # type: ignore[arg-type]
        return self.post(spawn).acks[0].run

    def take(self, kind: type[Command]) -> list[Command]:
        """Take the commands of one kind off the list, oldest first."""
        taken = [command for command in self.commands if isinstance(command, kind)]
        self.commands = [command for command in self.commands if not isinstance(command, kind)]
        return taken

    def reply(
        self,
        text: str = "",
        *calls: tuple[str, str, str],
        infer: Infer | None = None,
        **more: object,
    ) -> StepResult:
        """Answer the oldest model call (or ``infer``). ``calls`` are (call id, tool, JSON arguments)."""
        command = infer or self._next(Infer)
        assert isinstance(command, Infer)
        asked = tuple(AskedCall(call_id, tool, inline(args)) for call_id, tool, args in calls)
        values: dict[str, object] = {"prompt": 10, "completion": 2, "cost_nano_usd": 1_000}
        values.update(more)
        return self.post(
            InferenceFinished(
                command.run,
                command.effect,
                command.attempt,
                command.epoch,
                inline(text),
                asked,
                **values,  # type: ignore[arg-type]
            )
        )

    def fail(self, kind: str, message: str = "no", **more: object) -> StepResult:
        """Fail the oldest model call."""
        return self.reply(
            error_kind=kind,
            error=message,
            charged=False,
            prompt=0,
            completion=0,
            cost_nano_usd=None,
            **more,
        )

    def tool(self, text: str = "ok", *, call: CallTool | None = None, **more: object) -> StepResult:
        """Answer the oldest tool call (or ``call``)."""
        command = call or self._next(CallTool)
        assert isinstance(command, CallTool)
        return self.post(
            ToolFinished(
                command.run,
                command.effect,
                command.attempt,
                command.epoch,
                inline(text),
                **more,  # type: ignore[arg-type]
            )
        )

    def _next(self, kind: type[Command]) -> Command:
        for index, command in enumerate(self.commands):
            if isinstance(command, kind):
                return self.commands.pop(index)
        raise AssertionError(f"no {kind.__name__} is wanted")

    def status(self, run: int) -> Status:
        return self.world.get(run, Status)
