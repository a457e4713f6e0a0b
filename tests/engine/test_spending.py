"""Where spending is forbidden, nothing reaches a provider that may cost money."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from engine_worlds import Counting, in_trio, one, opened

from leviath.engine import spending
from leviath.providers.scripted import Scripted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def forbidden(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(spending.NO_SPENDING, "1")
    before = list(spending.refused)
    yield
    spending.refused[:] = before


@in_trio
async def test_a_provider_that_may_cost_money_is_not_asked(tmp_path: Path) -> None:
    real = Counting("x")
    async with opened(tmp_path / "home", [real]) as world:
        run = await world.spawn(one(), task="t", workdir=tmp_path)
        row = await run.wait()
        charges = [entry.nano_usd for entry in run.ledger()]
    assert real.asked == []
    assert row.status == "error"
    assert "may cost money" in (row.error or "")
    assert charges == []
    assert [said for said in spending.refused if run.run_id in said]


@in_trio
async def test_one_that_says_it_is_free_is(tmp_path: Path) -> None:
    free = Counting("x")
    free.paid = False  # type: ignore[attr-defined]
    for provider in (free, Scripted.of("x")):
        async with opened(tmp_path / f"home-{provider.name}-{id(provider)}", [provider]) as world:
            run = await world.spawn(one(), task="t", workdir=tmp_path)
            assert (await run.wait()).status == "complete"
    assert len(free.asked) == 1
