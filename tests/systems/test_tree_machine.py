"""Trees in any order: agents start, split, wait, end, are cancelled, paused, resumed and restarted.

``Hand`` holds every step to the invariants, to a rebuilt world and to its own redo list. In the end
every tree comes to rest, and nothing of it is left anywhere.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hand_agents import TALK
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tree_hands import BOSS, call, fan_out, hand, narrow

from leviath.components.commands import CallTool, FindAgent, Infer
from leviath.components.effects import Turn
from leviath.components.family import FanOut, Joins, Split
from leviath.components.identity import Tree
from leviath.components.inputs import AgentFound, Cancel, Decide, Input, Pause, Release, Resume
from leviath.components.progress import Cost
from leviath.components.run_status import RunStatus
from leviath.components.text import inline
from leviath.systems.tree_index import Totals, totals_of

SPLITS = fan_out("max_workers = 2\nmax_attempts = 1")
QUORUM = fan_out('join = "quorum"\nquorum = 2\nmax_workers = 0')
CAPS = narrow(
    tree_moves_max=2,
    tree_children_max=5,
    tree_runs_max=9,
    tree_spawns_max=7,
    tree_window_ms=5_000,
    slots_default=3,
    iterations_default=5,
)
picks = st.integers(0, 9)
joins = st.sampled_from(["all", "fail_all", "first", "quorum"])


class Trees(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.hand = hand(CAPS)

    def runs(self) -> list[int]:
        return sorted(self.hand.world.owners())

    def post(self, *inputs: Input) -> None:
        result = self.hand.post(*inputs)
        assert not result.failures, result.failures

    def wanted(self, kind: type[Any], pick: int) -> Any:
        found = [command for command in self.hand.commands if isinstance(command, kind)]
        if not found:
            return None
        command = found[pick % len(found)]
        self.hand.commands.remove(command)
        return command

    @precondition(lambda self: len(self.runs()) < 12)
    @rule(agent=st.sampled_from([BOSS, SPLITS, QUORUM]), yolo=st.booleans())
    def start(self, agent: Any, yolo: bool) -> None:
        self.hand.spawn(agent, yolo=yolo)
        assert not self.hand.results[-1].failures

    @rule(pick=picks, what=st.sampled_from(["say", "nothing", "fail", "bill"]))
    def answer(self, pick: int, what: str) -> None:
        infer = self.wanted(Infer, pick)
        if infer is None:
            return
        if what == "fail":
            self.post(self.hand.inferred(infer, error_kind="bad_request", error="no"))
            return
        cost = None if what == "bill" else 5
        text = inline("" if what == "nothing" else "a result")
        self.post(self.hand.inferred(infer, text=text, cost_nano_usd=cost, prompt=3))

    @rule(
        pick=picks,
        other=picks,
        tool=st.sampled_from(
            ["spawn_agent", "spawn_agent", "wait_for_agents", "kill_agent", "check_agent", "send"]
        ),
        count=st.integers(1, 3),
        wait=st.booleans(),
        join=joins,
    )
    def ask(self, pick: int, other: int, tool: str, count: int, wait: bool, join: str) -> None:
        infer = self.wanted(Infer, pick)
        if infer is None:
            return
        ids = [self.hand.world.run_id(n) for n in self.runs()]
        arguments: dict[str, Any] = {
            "spawn_agent": {"agent": "x", "task": "t", "wait": wait},
            "wait_for_agents": {"join": join, "quorum": 1},
            "send": {},
        }.get(tool, {"agent_id": ids[other % len(ids)]})
        calls = tuple(call(tool, f"c{n}", **arguments) for n in range(count))
        self.post(self.hand.inferred(infer, calls=calls, cost_nano_usd=5))

    @rule(pick=picks, items=st.integers(0, 5), of=st.sampled_from(["", "x"]), join=joins)
    def split(self, pick: int, items: int, of: str, join: str) -> None:
        infer = self.wanted(Infer, pick)
        if infer is None:
            return
        more: dict[str, Any] = {"agent": of, "join": join, "quorum": 1} if of else {}
        asked = call("fan_out", items=[f"i{n}" for n in range(items)], **more)
        self.post(self.hand.inferred(infer, calls=(asked,), cost_nano_usd=5))

    @rule(pick=picks, agent=st.sampled_from([BOSS, TALK, SPLITS, None]))
    def find(self, pick: int, agent: Any) -> None:
        command = self.wanted(FindAgent, pick)
        if command is None:
            return
        at = (command.run, command.effect, command.attempt)
        if agent is None:
            self.post(AgentFound(*at, error="there is none"))
        else:
            self.post(AgentFound(*at, self.hand._shelve(agent), agent.name))

    @rule(pick=picks)
    def tool(self, pick: int) -> None:
        sent = self.wanted(CallTool, pick)
        if sent is not None:
            self.post(self.hand.finished(sent, result=inline("sent")))

    @precondition(lambda self: self.runs())
    @rule(pick=picks, what=st.sampled_from([Pause, Resume, Resume, Cancel, Release]))
    def control(self, pick: int, what: Any) -> None:
        runs = self.runs()
        self.post(what(runs[pick % len(runs)], 1))

    @rule(drive=st.sampled_from([True, True, False]))
    def restart(self, drive: bool) -> None:
        assert not self.hand.restart(drive=drive).failures

    @rule(span=st.sampled_from([0, 0, 1_000, 61_000]))
    def sleep(self, span: int) -> None:
        assert not self.hand.sleep(span).failures

    @invariant()
    def totals_are_those_of_all_runs_below(self) -> None:
        world = self.hand.world
        sums = {n: totals_of(world.get(n, Cost)) for n in self.runs()}
        for n in reversed(self.runs()):
            parent = world.get(n, Tree).parent
            if parent in sums:
                sums[parent].add(sums[n])
        for n, total in sums.items():
            assert world.trees.total(n) == total

    @invariant()
    def caps_hold(self) -> None:
        world = self.hand.world
        for n in self.runs():
            assert len(world.trees.live_children(n)) <= CAPS.tree_children_max

    def teardown(self) -> None:
        """Whatever happened: answering everything brings each tree to an end."""
        world = self.hand
        world.restart()
        for _ in range(300):
            self.help()
            if all(world.status(n).status.is_ended for n in self.runs()):
                break
            world.sleep(1_000)
        else:
            left = [n for n in self.runs() if not world.status(n).status.is_ended]
            raise AssertionError([(n, world.status(n), world.world.marker(n)) for n in left])
        self.help()
        for n in self.runs():
            assert not any(world.world.find(n, kind) for kind in (FanOut, Joins, Split))
        snapshot = world.caches.snapshot()
        assert snapshot["in_use"] == {} and snapshot["waiting"] == {} and snapshot["due"] == {}
        assert world.world.trees.live == {}
        assert not self.runs() or world.world.trees.total(self.runs()[0]) != Totals()

    def help(self) -> None:
        """Answer all that is asked for, and let go of what is held."""
        for n in self.runs():
            if self.hand.status(n).status is RunStatus.PAUSED:
                self.hand.post(Resume(n, 1))
            turn = self.hand.world.find(n, Turn)
            for asked in () if turn is None else turn.calls:
                if asked.state == "unknown" and self.hand.world.find(n, Turn) is not None:
                    self.hand.post(Decide(n, asked.call_id, "done", 1))
        while (infer := self.wanted(Infer, 0)) is not None:
            self.post(self.hand.inferred(infer, text=inline("DONE")))
        while (sent := self.wanted(CallTool, 0)) is not None:
            self.post(self.hand.finished(sent))
        while (command := self.wanted(FindAgent, 0)) is not None:
            self.post(
                AgentFound(command.run, command.effect, command.attempt, error="nobody is there")
            )


Trees.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=50,
    phases=[Phase.reuse, Phase.generate, Phase.shrink],
    deadline=None,
)
TestTrees = Trees.TestCase
