"""A world that takes any inputs in any order; in the end no run may be stuck.

``Hand`` holds every step to the invariants, to a rebuilt world and to its own redo list.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hand_agents import ALL, ONE, TALK, TOOLS, TWO_MODELS, agent
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from leviath.components.clean import clean_text
from leviath.components.commands import CallTool, Gather, Infer
from leviath.components.context import AskedCall
from leviath.components.effects import Turn
from leviath.components.error_kind import ErrorKind
from leviath.components.inputs import (
    Cancel,
    Decide,
    Gathered,
    Input,
    Pause,
    Post,
    Release,
    Resume,
)
from leviath.components.run_status import RunStatus
from leviath.components.text import inline
from leviath.components.world_facts import Policy
from leviath.simulation.hand import Hand

GRAPH = agent(
    f"""
[stages.first]
available_tools = {ALL}
max_iterations = 3
max_revisits = 1
[[stages.first.edges]]
to = "second"
gate = {{ require_modifications = true, max_attempts = 2 }}
[[stages.first.edges]]
to = "last-one"
condition = "error"
[[stages.first.edges]]
to = "second"
condition = "stuck"
stuck_after_minutes = 2
stuck_after_tool_calls = 4
[stages.second]
available_tools = {ALL}
max_iterations = 3
max_revisits = 1
allow_complete = true
transition_prompt = "Where to?"
[[stages.second.edges]]
to = "first"
condition = "llm_choice"
transform = "clear"
[[stages.second.edges]]
to = "last-one"
condition = "llm_choice"
[[stages.second.edges]]
to = "last-one"
condition = "dead_end"
[stages.last-one]
mode = "output"
available_tools = {ALL}
max_iterations = 4
max_revisits = 2
[tool_permissions]
edit = "ask"
find = "deny"
[repetition_detection]
max_repeat_calls = 2
""",
    models=TWO_MODELS,
)
SEEDED = agent(
    f"""
[stages.main]
available_tools = {ALL}
max_iterations = 2
[context.regions]
notes = {{ kind = "temporary", max_tokens = 20 }}
files = {{ kind = "pinned", seed = {{ files = ["a.txt"] }} }}
conversation = {{ kind = "sliding_window", max_items = 3, max_tokens = 40 }}
"""
)
BLUEPRINTS = {"one": ONE, "talk": TALK, "graph": GRAPH, "seeded": SEEDED}
POLICY = Policy(
    slots_default=2,
    breaker_failures=2,
    stall_ms=20_000,
    iterations_default=4,
    inbox_messages_max=3,
)

texts = st.one_of(
    st.sampled_from(
        ["", "done", "DONE", "first", "go to LAST-ONE", "\u0130\u1e9e\U0001fae8", "x" * 300]
    ),
    st.text(max_size=12).map(clean_text),
)
calls = st.lists(
    st.builds(
        AskedCall,
        st.sampled_from(["", "a", "b", "c" * 200]),
        st.sampled_from(
            ["look", "find", "edit", "send", "submit_output", "context_write", "n\u00f6 tool"]
        ),
        st.sampled_from(["{}", '{"a": 1}', "[", "\u2028"]).map(inline),
        st.sampled_from(["", "", "", "not JSON"]),
        st.sampled_from(
            [
                (),
                (("content", inline("result")),),
                (("region", inline("notes")), ("content", inline("note"))),
            ]
        ),
    ),
    max_size=3,
).map(tuple)
picks = st.integers(0, 7)


class Worlds(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.hand = Hand(providers=("scripted", "spare"), tools=TOOLS, policy=POLICY)
        self.runs: list[int] = []
        self.ticket = 0

    def one_of(self, kind: type[Any], pick: int) -> Any:
        wanted = [command for command in self.hand.commands if isinstance(command, kind)]
        if not wanted:
            return None
        command = wanted[pick % len(wanted)]
        self.hand.commands.remove(command)
        return command

    def post(self, *inputs: Input) -> None:
        result = self.hand.post(*inputs)
        assert not result.failures, result.failures

    def run_of(self, pick: int) -> int:
        return self.runs[pick % len(self.runs)]

    @precondition(lambda self: len(self.runs) < 6)
    @rule(
        name=st.sampled_from(sorted(BLUEPRINTS)),
        yolo=st.booleans(),
        key=st.sampled_from(["", "", "k"]),
        parent=picks,
    )
    def spawn(self, name: str, yolo: bool, key: str, parent: int) -> None:
        parents = [n for n in self.runs if n in self.hand.world]
        above = parents[parent % len(parents)] if parents and parent < 3 else 0
        n = self.hand.spawn(BLUEPRINTS[name], yolo=yolo, key=key, parent=above)
        if n not in self.runs:
            self.runs.append(n)
        assert not self.hand.results[-1].failures

    @rule(pick=picks, text=texts, asked=calls, known=st.booleans())
    def reply(self, pick: int, text: str, asked: tuple[AskedCall, ...], known: bool) -> None:
        command = self.one_of(Infer, pick)
        if command is not None:
            cost = 5 if known else None
            self.post(
                self.hand.inferred(
                    command, text=inline(text), calls=asked, prompt=3, cost_nano_usd=cost
                )
            )

    @rule(
        pick=picks,
        kind=st.sampled_from(ErrorKind),
        after=st.sampled_from([None, 0, 5_000]),
        charged=st.booleans(),
    )
    def fail(self, pick: int, kind: ErrorKind, after: int | None, charged: bool) -> None:
        command = self.one_of(Infer, pick)
        if command is not None:
            self.post(
                self.hand.inferred(
                    command,
                    error_kind=kind.value,
                    error="no \U0001fae8",
                    retry_after_ms=after,
                    charged=charged,
                )
            )

    @rule(
        pick=picks,
        text=texts,
        is_error=st.booleans(),
        unknown=st.booleans(),
        lost=st.sampled_from([False, False, True]),
    )
    def tool(self, pick: int, text: str, is_error: bool, unknown: bool, lost: bool) -> None:
        command = self.one_of(CallTool, pick)
        if command is not None:
            self.post(
                self.hand.finished(
                    command,
                    result=inline(text),
                    is_error=is_error,
                    unknown=unknown,
                    workspace_lost=lost,
                    modified=("a",) if command.tool == "edit" else (),
                )
            )

    @rule(pick=picks, error=st.sampled_from(["", "no such folder"]))
    def gather(self, pick: int, error: str) -> None:
        command = self.one_of(Gather, pick)
        if command is not None:
            self.post(
                Gathered(
                    command.run,
                    command.effect,
                    command.attempt,
                    (("files", (inline("text"),)),),
                    error,
                )
            )

    @precondition(lambda self: self.runs)
    @rule(pick=picks, what=st.sampled_from([Pause, Resume, Resume, Cancel]))
    def control(self, pick: int, what: Any) -> None:
        self.ticket += 1
        self.post(what(self.run_of(pick), self.ticket))
        assert [ack.ticket for ack in self.hand.results[-1].acks] == [self.ticket]

    @precondition(lambda self: self.runs)
    @rule(pick=picks, text=texts, region=st.sampled_from(["", "notes", "none"]))
    def message(self, pick: int, text: str, region: str) -> None:
        self.post(Post(self.run_of(pick), inline(text), 1, "someone", region))

    @precondition(lambda self: self.runs)
    @rule(
        pick=picks,
        of=picks,
        verdict=st.sampled_from(["again", "done", "stop", "allow", "deny", "?"]),
    )
    def decide(self, pick: int, of: int, verdict: str) -> None:
        run = self.run_of(pick)
        turn = self.hand.world.find(run, Turn)
        call = turn.calls[of % len(turn.calls)].call_id if turn and turn.calls else "none"
        self.post(Decide(run, call, verdict, 1))

    @precondition(lambda self: self.runs)
    @rule(pick=picks)
    def release(self, pick: int) -> None:
        self.post(Release(self.run_of(pick), 1))

    @rule(span=st.sampled_from([1, 1_000, 61_000, 700_000]))
    def sleep(self, span: int) -> None:
        assert not self.hand.sleep(span).failures

    @rule(providers=st.sampled_from([("scripted", "spare"), ("scripted",), ("spare",), ()]))
    def configure(self, providers: tuple[str, ...]) -> None:
        assert not self.hand.configure(providers=providers).failures

    @rule(drive=st.sampled_from([True, True, False]))
    def restart(self, drive: bool) -> None:
        assert not self.hand.restart(drive=drive).failures

    def teardown(self) -> None:
        """Whatever happened: answering everything ends each run."""
        hand = self.hand
        hand.restart()
        hand.configure(providers=("scripted", "spare"))
        left: list[int] = []
        for _ in range(200):
            for n in [n for n in self.runs if n in hand.world]:
                self._help(n)
            for infer in hand.take(Infer):
                self.post(hand.inferred(infer, text=inline("DONE")))
            for call in hand.take(CallTool):
                self.post(hand.finished(call, result=inline("ok")))
            for gather in hand.take(Gather):
                self.post(Gathered(gather.run, gather.effect, gather.attempt))
            left = [n for n in self.runs if n in hand.world and not hand.status(n).status.is_ended]
            if not left:
                break
            hand.sleep(400_000)
        else:
            raise AssertionError([(n, hand.status(n), hand.world.marker(n)) for n in left])
        for infer in hand.take(Infer):
            # Of runs that ended with their parent: the outcome is still owed.
            self.post(hand.inferred(infer))
        for call in hand.take(CallTool):
            self.post(hand.finished(call))
        snapshot = hand.caches.snapshot()
        assert snapshot["in_use"] == {} and snapshot["waiting"] == {} and snapshot["due"] == {}

    def _help(self, n: int) -> None:
        status = self.hand.status(n)
        if status.status is RunStatus.PAUSED:
            self.post(Resume(n, 1))
        status = self.hand.status(n)
        if status.status is RunStatus.WAITING_INPUT and status.waiting is not None:
            turn = self.hand.world.find(n, Turn)
            if status.waiting.reason == "needs_setup":
                self.post(Resume(n, 1))
            for call in () if turn is None else turn.calls:
                if call.state in ("asked", "unknown"):
                    self.post(
                        Decide(n, call.call_id, "deny" if call.state == "asked" else "done", 1)
                    )
