"""Questions, answers, pauses, cancels and restarts in any order, against a model of them."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from people_worlds import ASKER, answer, asks, hand, pose, prompts

from leviath.components.commands import CallTool, Infer
from leviath.components.context import AskedCall
from leviath.components.inputs import Cancel, Pause, Resume
from leviath.components.run_status import RunStatus
from leviath.components.text import inline


class People(RuleBasedStateMachine):
    """One run that asks; every step is held to all invariants and to its redo list."""

    @initialize()
    def start(self) -> None:
        self.world = hand()
        self.run = self.world.spawn(ASKER)
        self.seen: set[str] = set()
        self.answered: set[str] = set()
        self.sent = 0
        self.allowed = 0

    def status(self) -> RunStatus:
        return self.world.status(self.run).status

    @precondition(lambda self: any(isinstance(c, Infer) for c in self.world.commands))
    @rule(question=st.booleans(), send=st.booleans())
    def reply(self, *, question: bool, send: bool) -> None:
        calls = [pose("ask_user_confirm", "q", question="?")] if question else []
        calls += [AskedCall("s", "send", inline("{}"))] if send else []
        asks(self.world, self.run, *calls or [AskedCall("l", "look", inline("{}"))])

    @precondition(lambda self: any(isinstance(c, CallTool) for c in self.world.commands))
    @rule()
    def finish(self) -> None:
        self.world.tool()

    @precondition(lambda self: bool(prompts(self.world, self.run)))
    @rule(data=st.data(), verdict=st.sampled_from(["yes", "no"]))
    def respond(self, data: st.DataObject, verdict: str) -> None:
        prompt = data.draw(st.sampled_from(prompts(self.world, self.run)))
        assert answer(self.world, self.run, prompt.id, verdict=verdict) == ""
        self.answered.add(prompt.id)
        self.allowed += verdict == "yes" and prompt.kind in ("approval", "unknown")

    @rule(data=st.data())
    def respond_late(self, data: st.DataObject) -> None:
        gone = sorted(self.seen - {prompt.id for prompt in prompts(self.world, self.run)})
        late = data.draw(st.sampled_from([*gone, "other-run.q1"]))
        before = self.world.digest, self.status()
        assert "no open question" in answer(self.world, self.run, late, verdict="yes")
        assert self.status() is before[1]

    @rule()
    def pause(self) -> None:
        before = prompts(self.world, self.run)
        self.world.post(Pause(self.run))
        assert prompts(self.world, self.run) == before

    @rule()
    def resume(self) -> None:
        self.world.post(Resume(self.run))

    @rule()
    def cancel(self) -> None:
        self.world.post(Cancel(self.run))
        assert prompts(self.world, self.run) == ()

    @rule(drive=st.booleans())
    def restart(self, *, drive: bool) -> None:
        before = {prompt.id: prompt for prompt in prompts(self.world, self.run)}
        self.world.restart(drive=drive)
        after = {prompt.id: prompt for prompt in prompts(self.world, self.run)}
        assert before.items() <= after.items(), "a question is kept as it was"
        if not drive:
            self.world.restart()

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "world"):
            return
        now = {prompt.id for prompt in prompts(self.world, self.run)}
        assert not now & self.answered, "an answered question is open again"
        self.seen |= now
        assert len({prompt.call_id for prompt in prompts(self.world, self.run)}) == len(now)
        calls = [
            command
            for result in self.world.results
            for command in result.commands
            if isinstance(command, CallTool) and command.tool == "send"
        ]
        assert len(calls) <= self.allowed, "more was sent than was allowed"
        if self.status() is RunStatus.WAITING_INPUT:
            assert now, "it waits for nobody"


TestPeople = People.TestCase
TestPeople.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
