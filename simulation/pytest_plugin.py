"""The pytest plugin: worlds on time that a test moves, recordings, and no call that costs money.

Loaded by pytest itself wherever leviath is installed; it imports the engine only in a test that
asks for it. ``docs/how-to/replay-in-tests.md`` shows it at work.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from contextlib import AbstractContextManager

    from leviath.engine.blocking import World
    from leviath.engine.ports import Provider
    from leviath.providers.recorded import Recorded
    from leviath.simulation.hand_clock import HandClock
    from leviath.simulation.saved_runs import SavedWorld

_SPENDING: Final = ("refuse", "allow")
_RECORD: Final = ("none", "new", "all")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say what the plugin can be told."""
    group = parser.getgroup("leviath")
    group.addoption(
        "--leviath-record",
        choices=_RECORD,
        default="none",
        help="which calls of leviath_recorded reach the real provider: none (the default), those "
        "without a recording, or all of them",
    )
    parser.addini(
        "leviath_spending",
        default="refuse",
        help="refuse (the default): a test that reaches a provider that may cost money fails; "
        "allow: it does not",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; refuse a word that is none."""
    config.addinivalue_line(
        "markers", "leviath_paid: this test may reach providers that cost money"
    )
    word: str = config.getini("leviath_spending")
    if word not in _SPENDING:
        raise pytest.UsageError(
            f"leviath_spending is {word!r}; write one of {', '.join(_SPENDING)}"
        )


@pytest.fixture(autouse=True)
def _leviath_spending(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep the test, and the hosts that it starts as processes, from spending money."""
    config = request.config
    recording = config.getoption("--leviath-record") != "none"
    may_spend = config.getini("leviath_spending") == "allow"
    if may_spend or recording or request.node.get_closest_marker("leviath_paid") is not None:
        yield
        return
    from leviath.engine import spending

    before = os.environ.get(spending.NO_SPENDING)
    known = len(spending.refused)
    os.environ[spending.NO_SPENDING] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(spending.NO_SPENDING, None)
        else:
            os.environ[spending.NO_SPENDING] = before
        refused = spending.refused[known:]
        del spending.refused[known:]
    if refused:
        told = refused[0] + (f" (and {len(refused) - 1} more calls)" if refused[1:] else "")
        pytest.fail(f"{told}; or mark the test: @pytest.mark.leviath_paid", pytrace=False)


@pytest.fixture
def leviath_clock() -> HandClock:
    """A clock that stands still until the test moves it: ``leviath_clock.advance(60_000)``."""
    from leviath.simulation.hand_clock import HandClock

    return HandClock()


@pytest.fixture
def leviath_world(
    leviath_clock: HandClock,
) -> Callable[..., AbstractContextManager[World]]:
    """A function that opens a world on ``leviath_clock``, for tests in plain code:
    ``with leviath_world(provider, ...) as world:``.

    It takes providers, and the other arguments of ``leviath.open_world`` as keywords. Without
    ``home`` the world is in memory. Blocks may follow each other on one home, as hosts do.
    """
    from leviath.engine import blocking

    @contextmanager
    def opened(*providers: Provider, **options: Any) -> Generator[World]:
        options.setdefault("clock", leviath_clock)
        if options.get("home") is None:
            options.setdefault("durability", "memory")
        options.setdefault("grace_ms", 0)
        clock = options["clock"]
        with blocking.open_world(providers=providers, **options) as world:
            if clock is not leviath_clock:
                yield world
                return
            with clock.driving(world):
                yield world

    return opened


@pytest.fixture
def leviath_replay() -> Callable[..., SavedWorld]:
    """A function that loads a saved world: ``leviath_replay("tests/worlds/outage").expect_same()``.

    It takes a home or a folder made by ``lev export``, relative to the folder that pytest was
    started in. What it gives also says what a run came to, and where to fork it.
    """
    from leviath.simulation.saved_runs import SavedWorld

    return SavedWorld


@pytest.fixture
def leviath_recorded(
    request: pytest.FixtureRequest,
) -> Iterator[Callable[..., Recorded]]:
    """A function that puts a cassette in front of a provider: ``leviath_recorded(path, provider)``.

    It takes the arguments of ``leviath.Recorded``; ``--leviath-record`` says whether calls may
    leave. The test fails when a call had no recording.
    """
    from leviath.providers.recorded import Recorded

    made: list[Recorded] = []

    def recorded(
        cassette: str | os.PathLike[str], provider: Provider | None = None, **options: Any
    ) -> Recorded:
        mode = request.config.getoption("--leviath-record")
        options.setdefault("mode", "none" if provider is None else mode)
        made.append(Recorded(cassette, provider, **options))
        return made[-1]

    yield recorded
    misses = [miss for each in made for miss in each.misses]
    if misses:
        pytest.fail(misses[0] + "\nor run this test with --leviath-record=new", pytrace=False)
