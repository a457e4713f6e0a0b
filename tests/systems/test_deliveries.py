"""Word of endings under any history: sent, lost, answered late, taken over by other hosts."""

from __future__ import annotations

from collections import Counter

from hand_agents import TALK
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from leviath.components.commands import Abort, Deliver
from leviath.components.events import WebhookDelivered, WebhookFailed
from leviath.components.inputs import Cancel, Delivered, Resume
from leviath.components.outbox import DELIVERIES_KEPT, Outbox
from leviath.components.world_facts import Policy
from leviath.simulation.hand import Hand

POLICY = Policy(deliver_attempts_max=3, deliver_base_ms=100, deliver_max_ms=400)


class Deliveries(RuleBasedStateMachine):
    """Two runs, whose endings are told to an address that answers as it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.hand = Hand(policy=POLICY)
        self.sent: list[Deliver] = []
        self.confirmed: set[tuple[int, int]] = set()
        """(run, generation) that the receiver has said yes to, and that was heard."""
        self.runs = [
            self.hand.spawn(TALK, callback_url="https://receiver.test/", run_id=name)
            for name in ("a", "b")
        ]
        self.seen = 0

    def _collect(self) -> None:
        self.sent += self.hand.take(Deliver)
        self.hand.take(Abort)

    @rule(run=st.sampled_from([0, 1]))
    def stop(self, run: int) -> None:
        self.hand.post(Cancel(self.runs[run]))
        self._collect()

    @rule(run=st.sampled_from([0, 1]))
    def go_on(self, run: int) -> None:
        self.hand.post(Resume(self.runs[run]))
        self._collect()

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        """Any attempt that was ever made may be answered, late and twice."""
        command = data.draw(st.sampled_from(self.sent))
        accepted = data.draw(st.booleans())
        retryable = data.draw(st.booleans())
        after = data.draw(st.sampled_from([None, 0, 250, 10**9]))
        delivery = command.delivery
        self.hand.post(
            Delivered(
                command.run,
                delivery.number,
                delivery.attempt,
                delivery.epoch,
                "so",
                accepted,
                retryable,
                after,
            )
        )
        if accepted:
            self.confirmed.add((command.run, delivery.generation))
        self._collect()

    @rule(span_ms=st.sampled_from([50, 100, 400, POLICY.deliver_deadline_ms]))
    def pass_time(self, span_ms: int) -> None:
        self.hand.sleep(span_ms)
        self._collect()

    @rule(drive=st.booleans())
    def restart(self, drive: bool) -> None:
        self.hand.restart(drive=drive)
        self._collect()

    @invariant()
    def every_ending_is_told_under_its_own_name(self) -> None:
        for n in self.runs:
            box = self.hand.world.find(n, Outbox)
            items = () if box is None else box.items
            names = Counter(item.generation for item in items)
            assert all(count == 1 for count in names.values())
            assert len(items) <= DELIVERIES_KEPT + sum(item.is_open for item in items)
            status = self.hand.status(n)
            if status.status.is_ended:
                assert items
                assert items[-1].generation == status.attempt

    @invariant()
    def what_was_confirmed_is_never_sent_again(self) -> None:
        for result in self.hand.results[self.seen :]:
            for event in result.events:
                if isinstance(event, WebhookFailed) and event.retry_in_ms is not None:
                    assert 0 <= event.retry_in_ms <= POLICY.deliver_max_ms
                assert not isinstance(event, WebhookDelivered) or event.attempt >= 1
        self.seen = len(self.hand.results)
        for n in self.runs:
            box = self.hand.world.find(n, Outbox)
            for item in () if box is None else box.items:
                if (n, item.generation) in self.confirmed:
                    assert not item.is_open


TestDeliveries = Deliveries.TestCase
TestDeliveries.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
