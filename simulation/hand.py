"""A world driven by hand: the test is its clock, its models and its tools.

Nothing waits and nothing is written. Every step is chained into a digest, as a host would journal
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from msgspec.structs import replace

from leviath.components.blueprint import digest as blueprint_digest
from leviath.components.commands import CallTool, Command, Infer
from leviath.components.context import AskedCall
from leviath.components.identity import Launch
from leviath.components.inputs import (
    Configured,
    HostOpened,
    InferenceFinished,
    Input,
    Settle,
    Spawn,
    ToolFinished,
)
from leviath.components.parts import WORLD_OWNER
from leviath.components.status import Status
from leviath.components.text import inline
from leviath.components.world_facts import Counters, Offer, OfferedTool, Policy, Prices, Seed
from leviath.engine.offering import Offering
from leviath.engine.step import Stepper, StepResult
from leviath.engine.tools import Tool, as_tool
from leviath.persistence.journal import ORIGIN, decode_changes, encode_step
from leviath.persistence.redo import Owners, apply_changes
from leviath.simulation.rebuild import rebuild
from leviath.systems.caches import Caches
from leviath.systems.invariants import broken
from leviath.systems.run import Now
from leviath.systems.schedule import RULES
from leviath.systems.world import World

if TYPE_CHECKING:
    from leviath.components.base import Component
    from leviath.components.blueprint import Blueprint
    from leviath.persistence.rows import JournalRow

K = TypeVar("K")
Offerable: TypeAlias = Sequence[Tool | Callable[..., object] | OfferedTool]
START_MS = 1_790_000_000_000
_OF_SPAWN = ("key", "run_id", "parent", "budget", "tree_budget")


class Hand:
    """A world without a host. ``commands`` holds what was asked for and is not answered yet.

    ``tools`` are given as to ``open_world``, and leviath's own two for output and context come with
    them; an OfferedTool stands for itself. No tool is run: ``tool`` says what came of a call.

    With ``check`` every step is held to the invariants, to a world rebuilt from its components and
    to its own redo list; AssertionError names the first difference.
    """

    def __init__(
        self,
        *,
        providers: tuple[str, ...] = ("scripted",),
        tools: Offerable = (),
        policy: Policy | None = None,
        prices: Prices | None = None,
        seed: int = 1,
        check: bool = True,
    ) -> None:
        self.world: World = World()
        self.caches: Caches = Caches(self.world)
        self.stepper: Stepper = Stepper(self.world, self.caches)
        self.check = check
        self.world_ms: int = 0
        self.wall_ms: int = START_MS
        self.digest: bytes = ORIGIN
        self.rows: list[JournalRow] = []
        self.results: list[StepResult] = []
        self.commands: list[Command] = []
        self.world.put(WORLD_OWNER, Seed("hand", seed))
        self.world.take_changes()
        self.redone: Owners = {WORLD_OWNER: _row(self.world, WORLD_OWNER)}
        """What a loader would have: the start, and every redo list since."""
        self.offer: Offer = Offer(providers, _offered(tools))
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
            if self.check:
                apply_changes(self.redone, decode_changes(row))
        self.results.append(result)
        self.commands.extend(result.commands)
        if self.check:
            self._check(result)
        return result

    def _check(self, result: StepResult) -> None:
        world = self.world
        faults = broken(world, sorted(result.touched))
        assert not faults, faults
        owners = {WORLD_OWNER, *world.owners()}
        assert owners == set(self.redone), "the redo list names other owners than the world"
        for owner in sorted(result.touched & owners):
            row = _row(world, owner)
            assert row == self.redone[owner], _difference(owner, row, self.redone[owner])
        live, rebuilt = self.caches.snapshot(), rebuild(world)[1].snapshot()
        for name, value in live.items():
            assert value == rebuilt[name], f"cache {name}: {value}, rebuilt {rebuilt[name]}"

    def restart(
        self, *, offer: Offer | None = None, away_ms: int = 0, drive: bool = True
    ) -> StepResult:
        """A new host takes the world from its components: what was in flight is lost and settled.

        With ``drive`` False it only carries out requests, and settling is left to the next host.
        """
        self.world, self.caches = rebuild(self.world)
        self.stepper = Stepper(self.world, self.caches)
        self.wall_ms += away_ms
        self.commands.clear()
        self.offer = offer or self.offer
        epoch = self.world.get(WORLD_OWNER, Counters).epoch + 1
        opened = HostOpened(epoch, RULES, away_ms, clean=False, drive=drive)
        if not drive:
            return self.post(opened)
        settle = Settle(tuple(sorted(self.world.owners())))
        return self.post(opened, Configured(None, self.offer), settle)

    def configure(
        self,
        *,
        providers: tuple[str, ...] | None = None,
        tools: Offerable | None = None,
        policy: Policy | None = None,
    ) -> StepResult:
        """Change what the host offers, or how it decides."""
        if providers is not None:
            self.offer = replace(self.offer, providers=providers)
        if tools is not None:
            self.offer = replace(self.offer, tools=_offered(tools))
        return self.post(Configured(policy, self.offer))

    def sleep(self, span_ms: int) -> StepResult:
        """Let time pass, then take what is due."""
        self.world_ms += span_ms
        self.wall_ms += span_ms
        return self.post()

    def spawn(self, blueprint: Blueprint, task: str = "", **more: Any) -> int:
        """Start a run; returns its ordinal."""
        digest = self._shelve(blueprint)
        options = {key: more.pop(key) for key in _OF_SPAWN if key in more}
        launch = Launch(
            task=inline(task),
            workdir="/w",
            blueprint=digest,
            started_ms=self.wall_ms,
            num_stages=len(blueprint.stages),
            **more,
        )
        spawn = Spawn(1, blueprint.name, "/agents/" + blueprint.name, launch, **options)
        return self.post(spawn).acks[0].run

    def _shelve(self, blueprint: Blueprint) -> bytes:
        """Put a blueprint on the world's shelf; returns its digest, worked out once."""
        for digest, known in self.world.blueprints.items():
            if known is blueprint:
                return digest
        digest = blueprint_digest(blueprint)
        self.world.blueprints[digest] = blueprint
        return digest

    def take(self, kind: type[K]) -> list[K]:
        """Take the commands of one kind off the list, oldest first."""
        taken: list[K] = [command for command in self.commands if isinstance(command, kind)]
        self.commands = [command for command in self.commands if not isinstance(command, kind)]
        return taken

    def reply(
        self,
        text: str = "",
        *calls: tuple[str, str, str],
        infer: Infer | None = None,
        **more: Any,
    ) -> StepResult:
        """Answer the oldest model call (or ``infer``). ``calls`` are (call id, tool, JSON
        arguments)."""
        asked = tuple(AskedCall(call_id, tool, inline(args)) for call_id, tool, args in calls)
        values: dict[str, Any] = {"prompt": 10, "completion": 2, "cost_nano_usd": 1_000}
        values.update(more)
        return self.post(self.inferred(infer, text=inline(text), calls=asked, **values))

    def inferred(self, command: Infer | None = None, **values: Any) -> InferenceFinished:
        """The outcome of a model call, to be posted: of the oldest, unless another is given."""
        command = command or self._next(Infer)
        return InferenceFinished(
            command.run, command.effect, command.attempt, command.epoch, **values
        )

    def fail(
        self, kind: str, message: str = "no", *, infer: Infer | None = None, **more: Any
    ) -> StepResult:
        """Fail the oldest model call (or ``infer``)."""
        values: dict[str, Any] = {"error_kind": kind, "error": message, "charged": False}
        return self.post(self.inferred(infer, **(values | more)))

    def tool(self, text: str = "ok", *, call: CallTool | None = None, **more: Any) -> StepResult:
        """Answer the oldest tool call (or ``call``)."""
        return self.post(self.finished(call, result=inline(text), **more))

    def finished(self, command: CallTool | None = None, **values: Any) -> ToolFinished:
        """The outcome of a tool call, to be posted: of the oldest, unless another is given."""
        command = command or self._next(CallTool)
        return ToolFinished(command.run, command.effect, command.attempt, command.epoch, **values)

    def _next(self, kind: type[K]) -> K:
        for index, command in enumerate(self.commands):
            if isinstance(command, kind):
                del self.commands[index]
                return command
        raise AssertionError(f"no {kind.__name__} is wanted")

    def status(self, run: int) -> Status:
        """The run's status with all that belongs to it."""
        return self.world.get(run, Status)


def _offered(tools: Offerable) -> tuple[OfferedTool, ...]:
    """What a host with these tools would offer."""
    given = tuple(tool for tool in tools if isinstance(tool, OfferedTool))
    own = [as_tool(tool) for tool in tools if not isinstance(tool, OfferedTool)]
    return given if not own else (*given, *Offering((), own).offer.tools)


def _row(world: World, owner: int) -> dict[type[Component], Component]:
    return {type(component): component for component in world.parts_of(owner)}


def _difference(
    owner: int,
    live: dict[type[Component], Component],
    redone: dict[type[Component], Component],
) -> str:
    for kind in sorted({*live, *redone}, key=lambda kind: kind.__name__):
        if live.get(kind) != redone.get(kind):
            return f"run {owner}: live {live.get(kind)}, from its redo lists {redone.get(kind)}"
    return f"run {owner}: equal"
