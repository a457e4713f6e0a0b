"""Word of endings: what a real receiver gets, and what becomes of it when it does not."""

from __future__ import annotations

import hashlib
import hmac
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest
import trio
from callback_receiver import AGENT, LOCAL, SECRET, Kept, ended, receiving, settled
from engine_worlds import Counting, Gate, in_trio, one, opened, pass_time, priced, until
from msgspec.structs import replace

from leviath import ManualClock, RunConflict
from leviath.components.error_kind import ErrorKind
from leviath.components.events import WebhookDelivered, WebhookFailed
from leviath.components.world_facts import Policy
from leviath.engine.limits import CUT_INTERVAL_MS
from leviath.providers.scripted import Failure, tool_call

if TYPE_CHECKING:
    from collections.abc import Callable


WRITER = one("submit_output", name="teller")


async def told(world: Any, count: int) -> list[WebhookDelivered | WebhookFailed]:
    """What the world's events say of deliveries, from the first on."""
    found: list[WebhookDelivered | WebhookFailed] = []
    async for event in world.events(after=0):
        if isinstance(event, WebhookDelivered | WebhookFailed):
            found.append(event)
            if len(found) == count:
                return found
    raise AssertionError("the world was closed")


@in_trio
async def test_a_receiver_gets_the_ending_signed_over_the_exact_body(tmp_path: Path) -> None:
    answer = priced("", tool_call("submit_output", content="the résumé"))
    async with (
        receiving() as receiver,
        opened(tmp_path / "home", [Counting(answer, priced("bye"))], callbacks=LOCAL) as world,
    ):
        run = await ended(
            world, receiver.url, agent=WRITER, workdir=tmp_path, metadata={"ticket": "7"}
        )
        assert await settled(run) == "delivered"
        (event,) = await told(world, 1)
        row = run.row()
    (request,) = receiver.got
    assert request.target == "/hook?x=1"
    name = f"agent_completed:{run.run_id}"
    headers, body = request.headers, json.loads(request.body)
    assert headers["x-leviath-delivery"] == body["delivery_id"] == name
    assert (type(event), event.delivery_id, event.attempt) == (WebhookDelivered, name, 1)
    digest = hmac.new(SECRET.encode(), request.body, hashlib.sha256).hexdigest()
    assert headers["x-leviath-signature"] == f"sha256={digest}"
    timed = f"{headers['x-leviath-timestamp']}.".encode() + request.body
    digest = hmac.new(SECRET.encode(), timed, hashlib.sha256).hexdigest()
    assert headers["x-leviath-signature-timestamped"] == f"sha256={digest}"
    assert headers["content-type"] == "application/json"
    assert body["final_output"] == "the résumé"
    assert body["metadata"] == {"ticket": "7"}
    assert (body["event"], body["status"], body["result"]) == ("agent_completed", "complete", None)
    assert body["agent_id"] == "teller"
    assert body["tokens"] == {"prompt": 20, "completion": 4, "cached": 0, "cache_write": 0}
    assert body["cost"]["priced_usd"] == row.cost_priced_nano / 1e9 > 0
    assert body["cost"]["unpriced_calls"] == 0
    assert SECRET.encode() not in request.body


@in_trio
async def test_a_delivery_that_fails_is_sent_again_as_it_was(tmp_path: Path) -> None:
    clock = ManualClock()
    async with (
        receiving(503, "hang up", 429, 408, 200) as receiver,
        opened(tmp_path / "home", [Counting("done")], callbacks=LOCAL, clock=clock) as world,
    ):
        run = await ended(world, receiver.url, workdir=tmp_path)
        assert await settled(run, clock) == "delivered"
        events = await told(world, 5)
    assert len({request.body for request in receiver.got}) == 1
    names = {request.headers["x-leviath-delivery"] for request in receiver.got}
    assert names == {f"agent_completed:{run.run_id}"}
    attempts = [request.headers["x-leviath-attempt"] for request in receiver.got]
    assert attempts == ["1", "2", "3", "4", "5"]
    waits = [event.retry_in_ms for event in events if isinstance(event, WebhookFailed)]
    spans = (500, 1_000, 2_000, 4_000)
    assert all(span // 2 <= (wait or 0) <= span for wait, span in zip(waits, spans, strict=True))


@pytest.mark.parametrize("status", [301, 302, 400, 401, 404, 410])
def test_another_answer_is_final_and_a_redirect_is_not_followed(
    tmp_path: Path, status: int
) -> None:
    @in_trio
    async def check() -> None:
        async with receiving() as elsewhere, receiving((status, {})) as receiver:
            receiver.plan[:] = [(status, {"Location": elsewhere.url})]
            async with opened(tmp_path / "home", [Counting("x")], callbacks=LOCAL) as world:
                run = await ended(world, receiver.url, workdir=tmp_path)
                assert await settled(run) == "failed"
                assert run.deliveries()[-1].answer == f"{status} so be it"
        assert (len(receiver.got), elsewhere.connections) == (1, 0)

    check()


@in_trio
async def test_a_receiver_is_given_up_after_so_many_attempts(tmp_path: Path) -> None:
    clock = ManualClock()
    policy: Callable[[Policy], Policy] = lambda policy: replace(policy, deliver_attempts_max=3)  # noqa: E731
    async with (
        receiving(500, 500, 500, 200) as receiver,
        opened(
            tmp_path / "home", [Counting("x")], callbacks=LOCAL, clock=clock, policy=policy
        ) as world,
    ):
        run = await ended(world, receiver.url, workdir=tmp_path)
        assert await settled(run, clock) == "failed"
        events = await told(world, 3)
        assert isinstance(events[-1], WebhookFailed)
        assert events[-1].retry_in_ms is None
        await pass_time(clock, 600_000)
    assert len(receiver.got) == 3


@in_trio
async def test_a_receiver_says_when_to_come_again(tmp_path: Path) -> None:
    clock = ManualClock()
    async with (
        receiving((429, {"Retry-After": "20"}), (503, {"Retry-After": "999999"}), 200) as receiver,
        opened(tmp_path / "home", [Counting("x")], callbacks=LOCAL, clock=clock) as world,
    ):
        run = await ended(world, receiver.url, workdir=tmp_path)
        assert await settled(run, clock) == "delivered"
        waits = [getattr(event, "retry_in_ms", None) for event in await told(world, 3)]
    assert waits == [20_000, Policy().deliver_max_ms, None]


@in_trio
async def test_a_receiver_that_hangs_is_left_and_keeps_no_model_call_waiting(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with (
        receiving(*["hang"] * 40) as receiver,
        opened(
            tmp_path / "home", [Counting("x", loop=True)], callbacks=LOCAL, clock=clock
        ) as world,
    ):
        runs = [await ended(world, receiver.url, workdir=tmp_path) for _ in range(40)]
        # More than are sent at once: the others wait for their turn, and runs go on all the same.
        await receiver.arrived(32)
        other = await world.spawn(AGENT, task="t", workdir=tmp_path)
        await other.wait()
        receiver.plan.clear()
        await pass_time(clock, Policy().deliver_deadline_ms + 1_000)
        for run in runs:
            assert await settled(run, clock) == "delivered"
    assert len({request.headers["x-leviath-delivery"] for request in receiver.got}) == 40


@in_trio
async def test_a_resumed_run_tells_of_each_of_its_endings(tmp_path: Path) -> None:
    refused = Failure(kind=ErrorKind.BAD_REQUEST, message="no")
    async with (
        receiving() as receiver,
        opened(tmp_path / "home", [Counting(refused, "done")], callbacks=LOCAL) as world,
    ):
        run = await ended(world, receiver.url, workdir=tmp_path)
        assert run.row().status == "error"
        await run.resume()

        await run.wait()
        assert await settled(run) == "delivered"
        await receiver.arrived(2)
    bodies = [json.loads(request.body) for request in receiver.got]
    bodies.sort(key=lambda body: body["attempt"])
    first = f"agent_completed:{run.run_id}"
    assert [body["delivery_id"] for body in bodies] == [first, f"{first}:2"]
    assert [body["status"] for body in bodies] == ["error", "complete"]
    assert bodies[0]["result"] and bodies[1]["result"] is None


@in_trio
async def test_a_cancelled_call_makes_the_cost_unknown_not_zero(tmp_path: Path) -> None:
    gate = Gate("never")
    sender = Kept()
    async with opened(tmp_path / "home", [gate], callbacks=sender) as world:
        run = await world.spawn(
            AGENT, task="t", workdir=tmp_path, callback_url="https://receiver.test/"
        )
        await gate.waiting.wait()
        await run.cancel()
        assert await settled(run) == "delivered"
    body = json.loads(sender.sent[0].body)
    assert body["status"] == "cancelled"
    assert body["cost"] == {"usd": None, "priced_usd": 0.0, "unpriced_calls": 1, "is_exact": False}
    assert "x-leviath-signature" not in {name.lower() for name in sender.sent[0].headers}


@in_trio
async def test_what_nobody_sent_yet_goes_out_from_the_next_host(tmp_path: Path) -> None:
    """A host that does not drive ends a run; a cut takes it out of memory; another host tells."""
    home, clock, gate = tmp_path / "home", ManualClock(), Gate("never")
    async with opened(home, [gate], callbacks=Kept(), clock=clock) as world:
        run = await world.spawn(
            AGENT,
            task="t",
            workdir=tmp_path,
            callback_url="https://receiver.test/",
            callback_secret=SECRET,
        )
        await gate.waiting.wait()
    silent = Kept()
    async with opened(home, [], drive=False, callbacks=silent, clock=clock) as world:
        run = world.run(run.run_id)
        await run.cancel()
        await pass_time(clock, 2 * CUT_INTERVAL_MS)
    assert silent.sent == []
    for _ in range(2):
        sender = Kept()
        async with opened(home, [gate], callbacks=sender, clock=clock) as world:
            assert await settled(world.run(run.run_id), clock) == "delivered"
        silent.sent.extend(sender.sent)
    # Once: the second host finds it delivered.
    (request,) = silent.sent
    expected = hmac.new(SECRET.encode(), request.body, hashlib.sha256).hexdigest()
    assert request.headers["X-Leviath-Signature"] == f"sha256={expected}"


@in_trio
async def test_an_open_delivery_outlives_cuts_and_hosts_and_keeps_retention_away(
    tmp_path: Path,
) -> None:
    home, clock = tmp_path / "home", ManualClock()
    async with opened(home, [Counting("x")], callbacks=Kept(*[500] * 99), clock=clock) as world:
        run = await ended(world, "https://receiver.test/", workdir=tmp_path)
        await until(lambda: run.deliveries()[-1].state == "waiting")
        with pytest.raises(RunConflict, match="has not told its callback address"):
            await run.forget()
        await pass_time(clock, CUT_INTERVAL_MS)
    sender = Kept()
    async with opened(home, [Counting("x")], callbacks=sender, clock=clock) as world:
        run = world.run(run.run_id)
        assert await settled(run, clock) == "delivered"
        await run.forget()
    assert len(sender.sent) == 1


@in_trio
async def test_a_run_from_another_home_tells_nobody_here(tmp_path: Path) -> None:
    first, second, clock = tmp_path / "first", tmp_path / "second", ManualClock()
    async with opened(first, [Counting("x")], callbacks=Kept(*[500] * 9), clock=clock) as world:
        run = await ended(world, "https://receiver.test/", workdir=tmp_path)
        await until(lambda: run.deliveries()[-1].state == "waiting")
    async with opened(second, [Counting("x")], clock=clock) as world:
        pass
    (second / "runs").mkdir(mode=0o700, exist_ok=True)
    (first / "runs" / run.run_id).rename(second / "runs" / run.run_id)
    sender = Kept()
    async with opened(second, [Counting("x")], callbacks=sender, clock=clock) as world:
        assert await settled(world.run(run.run_id), clock) == "held"
        await pass_time(clock, 700_000)
    assert sender.sent == []


@in_trio
async def test_nothing_goes_out_unsigned_when_its_secret_is_lost(tmp_path: Path) -> None:
    home, clock = tmp_path / "home", ManualClock()
    async with opened(home, [Counting("x")], callbacks=Kept(500), clock=clock) as world:
        run = await ended(world, "https://receiver.test/", workdir=tmp_path)
        await until(lambda: run.deliveries()[-1].state == "waiting")
    with apsw.Connection(str(home / "world.db")) as db:
        db.execute("delete from secret")
    db.close()
    sender = Kept()
    async with opened(home, [Counting("x")], callbacks=sender, clock=clock) as world:
        assert await settled(world.run(run.run_id), clock) == "failed"
        assert "secret" in world.run(run.run_id).deliveries()[-1].answer
    assert sender.sent == []


# --- a host that dies -----------------------------------------------------------------------------

CHILD = """
import sys, trio, leviath
async def main():
    home, agent, url = sys.argv[1:]
    async with leviath.open_world(home, providers=[leviath.Scripted.of("done")],
            callbacks=leviath.HttpCallbacks(allow_private=True)) as world:
        run = await world.spawn(agent, task="t", workdir=home, callback_url=url,
            callback_secret="a secret of the receiver")
        await trio.sleep_forever()
trio.run(main)
"""


@in_trio
async def test_a_host_killed_while_it_tells_leaves_the_telling_to_the_next(tmp_path: Path) -> None:
    home, agent = tmp_path / "home", tmp_path / "agent"
    home.mkdir()
    agent.mkdir()
    (agent / "agent.leviath").write_text(
        '[agent]\nname = "a"\n[stages.main.model]\nmodels = [{provider="scripted", model="m"}]\n'
    )
    async with receiving("hang") as receiver:
        argv = [sys.executable, "-c", CHILD, str(home), str(agent), receiver.url]
        with subprocess.Popen(argv) as child:  # noqa: ASYNC220 - started at once, waited for below
            await receiver.arrived(1)
            child.send_signal(signal.SIGKILL)
            assert await trio.to_thread.run_sync(child.wait) == -signal.SIGKILL
        async with opened(home, [Counting("x")], callbacks=LOCAL) as world:
            await receiver.arrived(2)
            (row,) = world.listing()
            assert await settled(world.run(row.run_id)) == "delivered"
    first, second = receiver.got
    assert first.body == second.body
    assert first.headers["x-leviath-signature"] == second.headers["x-leviath-signature"]
    assert len({request.headers["x-leviath-delivery"] for request in receiver.got}) == 1
