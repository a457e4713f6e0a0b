"""Trees of runs on a real home while several hands pause, resume, cancel and answer at once.

What the model of a call does follows from its key alone, so that a restart asks for the same.
Nothing sleeps: a call waits a number of turns of the loop, or for ever, until it is broken off.
"""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import TYPE_CHECKING

import trio
import trio.testing
from engine_worlds import opened
from msgspec.structs import replace
from tree_worlds import calls, stages, text

from leviath.components.effects import Turn
from leviath.components.errors import ProviderError, RunConflict, RunNotFound
from leviath.components.run_status import RunStatus
from leviath.engine.tools import tool

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from leviath.components.blueprint import Blueprint
    from leviath.components.world_facts import Policy
    from leviath.engine.clock import ManualClock
    from leviath.engine.ports import InferenceReply, InferenceRequest
    from leviath.engine.run_handle import RunHandle
    from leviath.engine.world import OpenWorld

ROUNDS_MAX = 2_000
"""Seconds of world time in which everything that is helped has to end."""
_TOOLS = (
    '["spawn_agent", "wait_for_agents", "check_agent", "kill_agent", "send_to_agent", "note",'
    ' "post"]'
)


def _splits(name: str, worker: str, keys: str) -> Blueprint:
    return stages(
        f"""
[stages.split]
mode = "fan_out"
{worker}
merge_stage = "merge"
max_attempts = 1
{keys}
[stages.work]
allow_as_worker = true
available_tools = ["note", "post"]
required_tools = ["ask_user_text"]
[stages.merge]
[stages.merge.transitions]
""",
        name,
    )


LEAD = stages(f"[stages.main]\navailable_tools = {_TOOLS}\nrequires_children = true\n", "lead")
AGENTS = (
    _splits("all", 'worker_stage = "work"', "max_workers = 2"),
    _splits("fail", 'worker_stage = "work"', 'join = "fail_all"'),
    _splits("first", 'worker_agent = "lead"', 'join = "first"'),
    _splits("quorum", 'worker_agent = "all"', 'join = "quorum"\nquorum = 2'),
    LEAD,
)
ROOTS = (*AGENTS, *AGENTS[2:4])


class Moods:
    """A provider whose every call has a mood of its own."""

    name = "scripted"

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.calm = False
        """Everything is answered, and by text."""

    async def infer(
        self, request: InferenceRequest, on_text: Callable[[str], None] | None
    ) -> InferenceReply:
        rng = random.Random(f"{self.seed} {request.idempotency_key} {request.attempt}")
        for _ in range(rng.choice((0, 0, 1, 3, 30))):
            await trio.lowlevel.checkpoint()
        if self.calm:
            return text("DONE")
        mood = rng.random()
        if mood < 0.03:
            await trio.sleep_forever()
        if mood < 0.10:
            raise ProviderError("busy", kind=rng.choice(("overloaded", "server")))
        if mood < 0.13:
            raise ProviderError("no", kind="bad_request")
        if request.stage == "split":
            count = rng.choice((0, 1, 2, 3, 5))
            return text(json.dumps([f"task {n}" for n in range(count)]))
        if request.stage == "main" and mood < 0.6:
            return calls(*(self._order(rng) for _ in range(rng.choice((1, 1, 2)))))
        if request.stage == "work" and mood < 0.35:
            asks: dict[str, object] = {"question": "what?"}
            return calls(rng.choice((("ask_user_text", asks), ("note", {}), ("post", {}))))
        return text("a result")

    @staticmethod
    def _order(rng: random.Random) -> tuple[str, dict[str, object]]:
        name = rng.choice(("lead", "all", "fail", "first"))
        orders: tuple[tuple[str, dict[str, object]], ...] = (
            ("spawn_agent", {"agent": name, "task": "t", "wait": rng.random() < 0.5}),
            ("spawn_agent", {"agent": name, "task": "t"}),
            ("wait_for_agents", {"join": rng.choice(("all", "first", "fail_all"))}),
            ("post", {}),
        )
        return rng.choice(orders)


@tool(effect="pure")
def note() -> str:
    "Note."
    return "noted"


@tool(effect="once")
async def post() -> str:
    "Post."
    for _ in range(5):
        await trio.lowlevel.checkpoint()
    return "posted"


def small(policy: Policy) -> Policy:
    """What takes a fleet and a day otherwise happens within a few calls."""
    return replace(
        policy,
        tree_runs_max=12,
        tree_moves_max=3,
        call_total_ms=60_000,
        breaker_cooldown_ms=20_000,
        iterations_default=6,
    )


class Storm:
    """A home of trees, and the hands at it."""

    def __init__(self, folder: Path, seed: int, clock: ManualClock) -> None:
        self.folder = folder
        self.seed = seed
        self.clock = clock
        self.provider = Moods(seed)

    def open(self, **more: object) -> AbstractAsyncContextManager[OpenWorld]:
        """A host for the home."""
        slots = random.Random(self.seed).choice((1, 2, 4))
        return opened(  # type: ignore[no-any-return]
            self.folder / "home",
            [self.provider],
            tools=[note, post],
            agents=AGENTS,
            slots=slots,
            policy=small,
            clock=self.clock,
            seed=self.seed,
            **more,
        )

    async def rage(self, world: OpenWorld, *, hands: int, acts: int) -> None:
        """Start a tree of each kind and have them disturbed by several tasks at once."""
        for number, agent in enumerate(ROOTS):
            await world.spawn(agent, task="go", key=f"root {number}", workdir=self.folder)
        async with trio.open_nursery() as nursery:
            for hand in range(hands):
                nursery.start_soon(self._disturb, world, f"{self.seed} {hand}", acts)

    async def _disturb(self, world: OpenWorld, seed: str, acts: int) -> None:
        rng = random.Random(seed)
        for _ in range(acts):
            for _ in range(rng.choice((0, 1, 5, 40))):
                await trio.lowlevel.checkpoint()
            act = rng.random()
            if act < 0.3:
                self.clock.advance(rng.choice((10, 1_000, 4_000)))
                continue
            runs = world.runs()
            if not runs:
                return
            run = rng.choice(runs)
            try:
                if act < 0.5:
                    await run.pause()
                elif act < 0.8:
                    await run.resume()
                elif act < 0.88:
                    await run.cancel()
                else:
                    await answer_some(world, rng)
            except (RunConflict, RunNotFound):
                pass  # the run was quicker

    async def calm(self, world: OpenWorld) -> None:
        """Let go of all that is held and answer all that is asked: every run has to end."""
        self.provider.calm = True
        left: list[RunHandle] = []
        for _ in range(ROUNDS_MAX):
            left = [run for run in world.runs() if not run.status.status.is_ended]
            if not left:
                return
            for run in left:
                await help_on(run)
            await answer_some(world, None)
            self.clock.advance(1_000)
            await trio.testing.wait_all_tasks_blocked(0.0005)
        raise AssertionError([told(run) for run in left])


async def answer_some(world: OpenWorld, rng: random.Random | None) -> None:
    """Answer questions: all of them, or one in two."""
    for question in world.questions():
        if rng is not None and rng.random() < 0.5:
            continue
        by_text = question.kind == "text"
        try:
            run = world.run(question.run_id)
            if by_text:
                await run.answer(question.id, text="words")
            else:
                await run.answer(question.id, approved=False)
        except RunConflict:
            pass  # answered or closed meanwhile


async def help_on(run: RunHandle) -> None:
    """Resume a run that is paused by itself, or waits for what is there again."""
    status = run.status
    waiting = status.waiting
    needs = waiting is not None and waiting.reason == "needs_setup"
    if status.status is RunStatus.PAUSED or needs:
        # Held with its parent, it is refused.
        with suppress(RunConflict):
            await run.resume()


def told(run: RunHandle) -> str:
    """A run that should have ended, as a failing test tells of it."""
    world = run._host.world
    row = world.live_rows[run.ordinal]
    return f"{run.run_id}: {run.status} {world.marker(run.ordinal)} {row.get(Turn)}"
