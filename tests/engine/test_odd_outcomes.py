"""What an adapter or a tool must not be able to do to the host: odd numbers, odd exceptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
from engine_worlds import in_trio, one, opened, until

from leviath.components.money import Rates
from leviath.components.run_status import RunStatus
from leviath.engine.outside import passes
from leviath.engine.ports import InferenceReply, InferenceRequest, ProviderError, Usage
from leviath.engine.pricing import PriceTable
from leviath.engine.tools import tool
from leviath.providers.script import tool_call

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError


class Odd:
    """A provider that does what it is told, once, and then answers."""

    name = "scripted"

    def __init__(self, act: Callable[[], InferenceReply]) -> None:
        self._act = act
        self.calls = 0

    async def infer(self, request: InferenceRequest, on_text: object) -> InferenceReply:
        self.calls += 1
        if self.calls == 1:
            return self._act()
        return InferenceReply(text="done", cost_nano_usd=1)


def raising(error: BaseException) -> Callable[[], InferenceReply]:
    def act() -> InferenceReply:
        raise error

    return act


def answering(**values: Any) -> Callable[[], InferenceReply]:
    return lambda: InferenceReply(**values)


@pytest.mark.parametrize(
    "act",
    [
        raising(SystemExit(3)),
        raising(GeneratorExit()),
        raising(BaseExceptionGroup("x", [SystemExit()])),
        raising(ExceptionGroup("x", [ValueError()])),
        raising(Mute()),
        raising(ProviderError("odd", kind=5)),  # type: ignore[arg-type]
        raising(ProviderError("odd", kind="rate_limited", retry_after_ms=0.5)),  # type: ignore[arg-type]
        raising(ProviderError("odd", kind="rate_limited", retry_after_ms=-(2**70))),
        answering(usage=Usage(prompt=2**53 - 1)),
        answering(usage=Usage(prompt=2**70)),
        answering(cost_nano_usd=2**53),
        answering(calls=(tool_call("look"),) * 300),
    ],
)
@in_trio
async def test_an_odd_outcome_costs_its_run_one_call_and_nobody_the_host(
    tmp_path: Path, act: Callable[[], InferenceReply]
) -> None:
    home = tmp_path / "home"
    odd = Odd(act)
    async with opened(home, [odd]) as world:
        run = await world.spawn(one(), task="x", workdir=tmp_path)
        await until(lambda: odd.calls >= 1)
        other = await world.spawn(one(), task="x", workdir=tmp_path)
        assert (await other.wait()).status == "complete"
        status = run.row().status
        assert status in ("error", "running", "complete")
    async with opened(home, [odd]) as world:
        assert world.report.quarantined == ()
        assert world.run(run.run_id).row().run_id == run.run_id


@in_trio
async def test_totals_stop_where_a_store_would_break_and_say_that_they_are_not_whole(
    tmp_path: Path,
) -> None:
    replies = [InferenceReply(calls=(tool_call("look"),), usage=Usage(prompt=10**12))] * 5

    class Many:
        name = "scripted"

        async def infer(self, request: InferenceRequest, on_text: object) -> InferenceReply:
            return replies.pop() if replies else InferenceReply(text="done", cost_nano_usd=1)

    @tool(effect="pure")
    async def look() -> str:
        "Look."
        return "seen"

    prices = PriceTable({("scripted", "m"): Rates(10**12, 0, 0, 0)})
    home = tmp_path / "home"
    async with opened(home, [Many()], tools=[look], prices=prices) as world:
        run = await world.spawn(one("look"), task="x", workdir=tmp_path)
        row = await run.wait()
        assert row.status == "complete"
        assert row.unpriced_calls == 5, "a call of more than a million dollars has no price"
        assert row.prompt_tokens == 5 * 10**12
    async with opened(home, []) as world:
        assert world.run(run.run_id).row().unpriced_calls == 5


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("error", [SystemExit, GeneratorExit])
@in_trio
async def test_a_tool_that_raises_no_exception_is_told_to_the_model(
    tmp_path: Path, error: type[BaseException], is_async: bool
) -> None:
    @tool(effect="pure", name="look")
    async def waits() -> str:
        "Look."
        raise error

    @tool(effect="pure", name="look")
    def plain() -> str:
        "Look."
        raise error

    odd = Odd(answering(calls=(tool_call("look"),), cost_nano_usd=1))
    async with opened(tmp_path / "home", [odd], tools=[waits if is_async else plain]) as world:
        run = await world.spawn(one("look"), task="x", workdir=tmp_path)
        assert (await run.wait()).status == RunStatus.COMPLETE.wire()


def test_only_cancellations_and_a_persons_interrupt_pass() -> None:
    assert passes(KeyboardInterrupt())
    assert passes(BaseExceptionGroup("x", [ValueError(), KeyboardInterrupt()]))
    assert not passes(SystemExit())
    assert not passes(BaseExceptionGroup("x", [SystemExit()]))

    seen: list[BaseException] = []

    async def cancelled() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.lowlevel.checkpoint()
            except BaseException as error:
                seen.append(error)
                raise

    trio.run(cancelled)
    assert passes(seen[0])
