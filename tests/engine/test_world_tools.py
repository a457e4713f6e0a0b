"""Tools of every kind under a real host: async, plain, raising, hanging, huge, odd."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated, Any

import pytest
import trio
from callback_receiver import Kept
from engine_worlds import Counting, Gate, in_trio, one, opened, pass_time, priced, tool_call, until

from leviath.components.errors import ConfigError, RunConflict
from leviath.components.events import CallFailed, Ended, ToolEnded
from leviath.components.run_status import RunStatus
from leviath.engine.clock import ManualClock
from leviath.engine.tools import MayHaveHappened, ToolCall, ToolResult, tool

if TYPE_CHECKING:
    from pathlib import Path


async def results(
    tmp_path: Path, made: Any, *, durability: str = "process", **more: Any
) -> tuple[str, list[ToolEnded], Any]:
    """Call a tool once; what the model reads of it, the events, the run's row."""
    provider = Counting(priced("", tool_call(made.name)), "done")
    async with opened(
        tmp_path / "home", [provider], tools=[made], durability=durability, **more
    ) as world:
        run = await world.spawn(one(made.name), task="x", workdir=tmp_path)
        row = await run.wait()
        ended = [event async for event in run.events() if isinstance(event, ToolEnded)]
    return provider.asked[1].messages[-1].text, ended, row


@pytest.mark.parametrize("plain", [False, True])
@in_trio
async def test_a_tool_gets_its_call_and_gives_its_result(tmp_path: Path, plain: bool) -> None:
    seen: list[ToolCall] = []

    def note(call: ToolCall) -> dict[str, int]:
        "Look."
        seen.append(call)
        return {"found": 3}

    async def note_later(call: ToolCall) -> dict[str, int]:
        "Look."
        await trio.lowlevel.checkpoint()
        return note(call)

    function: Any = note if plain else note_later
    look = tool(function, effect="pure", name="look")
    text, ended, _ = await results(tmp_path, look)
    assert text == '{"found":3}'
    assert [event.is_error for event in ended] == [False]
    (call,) = seen
    assert call.idempotency_key.startswith(call.run_id + ":")
    assert (call.attempt, call.workdir) == (1, str(tmp_path))


@pytest.mark.parametrize("durability", ["process", "memory"])
@in_trio
async def test_a_tool_that_returns_50_mb_leaves_little_behind(
    tmp_path: Path, durability: str
) -> None:
    @tool(effect="pure")
    def dump() -> str:
        "Dump."
        return "é" * (25 * 1024 * 1024)

    text, _, _ = await results(tmp_path, dump, durability=durability)
    assert len(text.encode()) <= 64 * 1024
    if durability == "memory":
        return
    (spilled,) = (tmp_path / "home" / "runs").glob("*/spill/*")
    assert spilled.stat().st_size == 50 * 1024 * 1024
    assert f"spill/{spilled.name}" in text
    assert (tmp_path / "home" / "world.db").stat().st_size < 1024 * 1024


@in_trio
async def test_half_characters_and_nul_are_replaced_wherever_they_enter(tmp_path: Path) -> None:
    odd = "a\ud83db\x00c\U0001f600"
    fit = "a\ufffdb\ufffdc\U0001f600"

    @tool(effect="pure")
    def echo(text: str) -> dict[str, str]:
        "Echo."
        return {odd: text + odd}

    call = tool_call("echo", text=odd)
    strange = tool_call(odd)
    submit = tool_call("submit_output", content=odd, format=odd)
    provider = Counting(priced(odd, call, strange, submit), odd)
    agent = one("echo", "submit_output")
    async with opened(tmp_path / "home", [provider], tools=[echo], callbacks=Kept()) as world:
        run = await world.spawn(
            agent, task=odd, workdir=tmp_path, metadata={odd: odd}, yolo=True, allow=("echo",)
        )
        row = await run.wait()
        assert run.result() == fit
        await world.run(run.run_id).forget()
        for more in (
            {"model": odd},
            {"callback_url": "https://example.org/" + odd, "callback_secret": odd},
        ):
            other = await world.spawn(agent, task=odd, workdir=tmp_path, **more)
            await other.pause(why=odd, actor=odd)
            assert other.status.why == fit
            await other.message(odd, sender=odd)
            with pytest.raises(ConfigError, match="no region"):
                await other.message(odd, region=odd)
            with pytest.raises(RunConflict, match="no call"):
                await other.decide(odd, "again", actor=odd)
            await other.cancel(why=odd, actor=odd)
    assert row.task_head == fit
    assert row.status == "complete"
    said = [message for message in provider.asked[1].messages if message.role == "tool"]
    assert said[0].text == f'{{"{fit}":"{fit}{fit}"}}'
    assert "is not offered" in said[1].text
    async with opened(tmp_path / "home", [Counting("x")], tools=[echo]) as world:
        assert all(row.status in ("cancelled", "complete") for row in world.listing())


@in_trio
async def test_what_a_tool_raises_is_a_result(tmp_path: Path) -> None:
    @tool(effect="pure")
    def break_(kind: str = "") -> str:
        "Break."
        raise KeyboardInterrupt if kind else ValueError("secret words")

    text, ended, row = await results(tmp_path, break_)
    assert "ValueError" in text
    assert "secret" not in text
    assert [event.is_error for event in ended] == [True]
    assert row.status == "complete"


@pytest.mark.parametrize("how", ["async", "plain", "shielded"])
@in_trio
async def test_a_tool_that_hangs_is_given_up_at_its_deadline(tmp_path: Path, how: str) -> None:
    release = threading.Event()
    let_go = trio.Event()
    begun: list[str] = []
    clock = ManualClock()

    def hang_plainly() -> str:
        "Hang."
        begun.append("x")
        release.wait()
        return "late"

    async def hang_awaiting() -> str:
        "Hang."
        begun.append("x")
        with trio.CancelScope(shield=how == "shielded"):
            await let_go.wait()
        return "late"

    function: Any = hang_plainly if how == "plain" else hang_awaiting
    hang = tool(function, effect="once", name="hang", deadline_ms=30_000)
    provider = Counting(priced("", tool_call("hang")), "done")
    async with opened(tmp_path / "home", [provider], tools=[hang], clock=clock) as world:
        run = await world.spawn(one("hang"), task="x", workdir=tmp_path)
        await until(lambda: begun)
        await pass_time(clock, 25_000)
        assert run.status.status is RunStatus.RUNNING
        await until(lambda: run._is_over, clock)
        assert (await run.wait()).status == "complete"
        ended = [event async for event in run.events() if isinstance(event, ToolEnded)]
        assert [event.is_error for event in ended] == [True]
        text = provider.asked[1].messages[-1].text
        assert "did not finish within 30000 ms" in text
        assert "may have taken effect" in text
        release.set()
        let_go.set()


@in_trio
async def test_a_hanging_plain_tool_keeps_no_other_from_running(tmp_path: Path) -> None:
    release = threading.Event()

    @tool(effect="pure")
    def hang() -> str:
        "Hang."
        release.wait()
        return ""

    @tool(effect="pure")
    def quick() -> str:
        "Be quick."
        return "quick"

    stuck = Counting(priced("", *[tool_call("hang")] * 8), "done")
    stuck.name = "stuck"
    provider = Counting(priced("", tool_call("quick")), "done")
    async with opened(tmp_path / "home", [provider, stuck], tools=[hang, quick]) as world:
        first = await world.spawn(one("hang"), model="stuck/m", task="x", workdir=tmp_path)
        await until(lambda: first.row().tool_calls)
        other = await world.spawn(one("quick"), task="x", workdir=tmp_path)
        assert (await other.wait()).status == "complete"
        release.set()
        assert (await first.wait()).status == "complete"


@in_trio
async def test_a_call_given_up_before_it_began_never_happens(tmp_path: Path) -> None:
    release = threading.Event()
    happened: list[str] = []

    @tool(effect="once")
    def send(call: ToolCall) -> str:
        "Send."
        if call.call_id == "call-1":
            release.wait()
        happened.append(call.call_id)
        return ""

    provider = Counting(priced("", tool_call("send"), tool_call("send")), "done")
    async with opened(tmp_path / "home", [provider], tools=[send]) as world:
        await until(lambda: world._host.sending)
        sending = world._host.sending
        assert sending is not None
        sending._threads._threads_max = 1
        run = await world.spawn(one("send"), task="x", workdir=tmp_path)
        await until(lambda: run.row().tool_calls)
        await run.cancel()
        await run.wait()
        release.set()
        await until(lambda: happened)
        await until(sending._threads._queue.empty)
        await trio.testing.wait_all_tasks_blocked(0.01)
    assert happened == ["call-1"]


@in_trio
async def test_a_tool_that_cannot_tell_parks_its_call_until_somebody_decides(
    tmp_path: Path,
) -> None:
    times: list[int] = []

    @tool(effect="once")
    def send(call: ToolCall) -> str:
        "Send."
        times.append(call.attempt)
        if len(times) == 1:
            raise MayHaveHappened("the line broke")
        return "sent"

    provider = Counting(priced("", tool_call("send")), "done")
    async with opened(tmp_path / "home", [provider], tools=[send]) as world:
        run = await world.spawn(one("send"), task="x", workdir=tmp_path)
        await until(lambda: run.status.status is RunStatus.WAITING_INPUT)
        assert run.status.waiting is not None
        assert run.status.waiting.reason == "tool_approval"
    async with opened(tmp_path / "home", [provider], tools=[send]) as world:
        run = world.run(run.run_id)
        assert run.status.status is RunStatus.WAITING_INPUT
        await run.decide("call-1", "again")
        assert (await run.wait()).status == "complete"
    assert times == [1, 2]


@in_trio
async def test_a_call_with_broken_arguments_is_a_result(tmp_path: Path) -> None:
    from leviath.engine.ports import CallRequest

    @tool(effect="pure")
    def look(text: Annotated[str, "What."]) -> str:
        "Look."
        return text

    bad = ("{", "[1]", '{"text": 3}', "{}", "\ud83d", '{"text": NaN}', "[" * 100_000, "null")
    calls = [CallRequest(f"c{n}", "look", text) for n, text in enumerate(bad)]
    provider = Counting(priced("", *calls), "done")
    async with opened(tmp_path / "home", [provider], tools=[look]) as world:
        run = await world.spawn(one("look"), task="x", workdir=tmp_path)
        assert (await run.wait()).status == "complete"
        ended = [event async for event in run.events() if isinstance(event, ToolEnded)]
        assert [event.is_error for event in ended] == [True] * len(bad)


@pytest.mark.parametrize("what", ["none", "negative", "huge", "words", "raises"])
@in_trio
async def test_an_adapter_that_answers_nonsense_costs_its_run_one_call(
    tmp_path: Path, what: str
) -> None:
    from msgspec.structs import replace

    from leviath.engine.ports import Usage

    class Odd(Counting):
        async def infer(self, request: Any, on_text: Any) -> Any:
            reply = await super().infer(request, on_text)
            match what:
                case "none":
                    return None
                case "raises":
                    raise ZeroDivisionError("no")
                case _:
                    counts: dict[str, Any] = {"negative": -1, "huge": 1 << 70, "words": "many"}
                    return replace(reply, usage=Usage(prompt=counts[what]))

    sound = Counting("done")
    sound.name = "sound"
    async with opened(tmp_path / "home", [Odd("x", loop=True), sound]) as world:
        run = await world.spawn(one(), task="x", workdir=tmp_path)
        other = await world.spawn(one(), task="x", model="sound/m", workdir=tmp_path)
        assert (await other.wait()).status == "complete"
        assert (await run.wait()).status == "error"
        failed = [event async for event in run.events() if isinstance(event, CallFailed)]
        assert {event.kind for event in failed} == {"other"}
        assert all(line.certainty != "provider" for line in run.ledger())


@in_trio
async def test_a_failing_subscriber_of_text_or_a_result_of_bytes_stops_nobody(
    tmp_path: Path,
) -> None:
    @tool(effect="pure")
    def odd() -> ToolResult:
        "Be odd."
        return ToolResult(text="\ud83d" * 3, modified=("\ud83d", "b\x00"))

    def hear(run_id: str, piece: str) -> None:
        raise ValueError(piece)

    provider = Counting(priced("said", tool_call("odd")), priced("done"))
    async with opened(tmp_path / "home", [provider], tools=[odd], on_text=hear) as world:
        run = await world.spawn(one("odd"), task="x", workdir=tmp_path)
        await run.wait()
        assert isinstance([event async for event in run.events()][-1], Ended)
    async with opened(tmp_path / "home", [Gate("x")], tools=[odd]) as world:
        assert world.listing()[0].run_id == run.run_id
