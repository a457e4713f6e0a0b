"""SIGKILL at a random moment, many times in a row: nothing that was promised is lost or done twice.

Not checked here: power cuts (tests/crash) and run files (tests/persistence).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import pytest
import trio
from kill import child

from leviath.components.effects import Turn
from leviath.components.events import Ended, TurnFinished, WorldEvent
from leviath.components.parts import WORLD_OWNER
from leviath.components.world_facts import Counters
from leviath.engine.world import open_world
from leviath.persistence.database import open_database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from leviath.engine.opening import Durability
    from leviath.engine.run_handle import RunHandle
    from leviath.engine.world import OpenWorld

KILLS = int(os.environ.get("LEVIATH_KILLS", "200"))
KILLS_PER_STORY = 20
LONGEST_S = 0.09
"""Longest life of a child that shall be killed; opening included."""
LIVES_MAX = 60


class Lives:
    """Real processes, one after the other."""

    def __init__(self) -> None:
        paths = os.pathsep.join(sys.path)
        self._program = subprocess.Popen(
            [sys.executable, child.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
        )

    def live(self, life: child.Life) -> int:
        """Let one live; 0, or minus the signal that ended it."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(msgspec.json.encode(life) + b"\n")
        self._program.stdin.flush()
        return int(self._program.stdout.readline())

    def close(self) -> None:
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.close()
        self._program.wait()
        self._program.stdout.close()


@pytest.fixture(scope="module")
def lives() -> Iterator[Lives]:
    made = Lives()
    yield made
    made.close()


class Story:
    """One home, its lives, and all that was promised on the way."""

    def __init__(self, folder: Path, level: Durability, lives: Lives) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.level: Durability = level
        self.lives = lives
        self.kills = 0
        self.digests: dict[int, bytes] = {}
        self.settled: set[tuple[int, int, int, int | None, str]] = set()
        self.taken_as_done: set[str] = set()
        """Keys of calls of which the person said that they had happened."""

    def live(self, life_s: float | None) -> None:
        """Host until nothing can move, or for so long."""
        life = child.Life(str(self.home), str(self.folder), self.level, life_s)
        code = self.lives.live(life)
        assert code in (0, -signal.SIGKILL)
        self.kills += code != 0
        self.look()

    def look(self) -> None:
        """Every step and every settled row that was there stays as it was."""
        if not (self.folder / "spawned").exists():
            return  # nothing was promised yet
        with open_database(self.home / "world.db", level="process", read_only=True) as reader:
            digests = {row.step: row.digest for row in reader.journal_after(0)}
            assert self.digests.items() <= digests.items()
            self.digests = digests
            settled = {
                (row.run, row.effect, row.attempt, row.nano_usd, row.certainty)
                for n in range(1, child.RUNS + 1)
                for row in reader.ledger(n)
            }
            assert self.settled <= settled
            self.settled = settled

    def decide(self) -> bool:
        """Be the person who looks whether a call happened. True when every run has ended."""
        return trio.run(self._decide)

    async def _decide(self) -> bool:
        effects = self.effects()
        async with open_world(
            self.home, providers=[], durability=self.level, drive=False, builtins=False
        ) as world:
            assert not world._opened.loaded.quarantined
            for run in world.runs():
                for call_id, key in parked(world, run):
                    # The word was acknowledged: nobody asks again.
                    assert key not in self.taken_as_done
                    verdict = "done" if key in effects else "again"
                    await run.decide(call_id, verdict)
                    if verdict == "done":
                        self.taken_as_done.add(key)
            return all(run.status.status.is_ended for run in world.runs()) and bool(world.listing())

    def effects(self) -> Counter[str]:
        """How often each key took effect."""
        path = self.folder / "effects"
        lines = path.read_text().splitlines() if path.exists() else []
        return Counter(line.split()[1] for line in lines)


def parked(world: OpenWorld, run: RunHandle) -> list[tuple[str, str]]:
    """(call id, idempotency key) of the calls that may have happened."""
    turn = world._host.world.find(run.ordinal, Turn)
    return [
        (call.call_id, f"{run.run_id}:{call.effect}")
        for call in (() if turn is None else turn.calls)
        if call.state == "unknown"
    ]


class Told(msgspec.Struct):
    """What must not depend on kills."""

    rows: list[tuple[object, ...]]
    events: dict[int, WorldEvent]
    interrupted: dict[str, int]


def told(story: Story) -> Told:
    """What the home says in the end, through the public API."""

    async def main() -> Told:
        async with open_world(
            story.home, providers=[], durability=story.level, drive=False, builtins=False
        ) as world:
            rows: list[tuple[object, ...]] = []
            events: dict[int, WorldEvent] = {}
            interrupted: dict[str, int] = {}
            for listed in sorted(world.listing(limit=100), key=lambda row: row.ordinal):
                run = world.run(listed.run_id)
                row = run.row()
                tokens = (row.prompt_tokens, row.completion_tokens, row.cached_tokens)
                rows.append(
                    (
                        row.key,
                        row.status,
                        run.result(),
                        tokens,
                        row.tool_calls,
                        row.cost_priced_nano,
                    )
                )
                assert listed == row or listed.updated_ms != row.updated_ms
                ledger = run.ledger()
                lost = [line for line in ledger if line.certainty == "interrupted"]
                interrupted[run.run_id] = len(lost)
                assert len(ledger) - len(lost) == 5 + 2 * child.ROUNDS
                assert sum(line.nano_usd or 0 for line in ledger) == row.cost_priced_nano
                # A call that was lost has a row of its own: no attempt is missing.
                attempts: dict[int, list[int]] = {}
                for line in ledger:
                    attempts.setdefault(line.effect, []).append(line.attempt)
                assert all(row == list(range(1, len(row) + 1)) for row in attempts.values())
                assert row.unpriced_calls == len(lost)
            newest = world._host.world.get(WORLD_OWNER, Counters).event
            async for event in world.events(after=0):
                events[event.number] = event
                if event.number == newest:
                    break
            return Told(rows, events, interrupted)

    return trio.run(main)


@pytest.fixture(scope="module")
def undisturbed(lives: Lives, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """The same script without a kill."""
    story = Story(tmp_path_factory.mktemp("undisturbed"), "process", lives)
    story.live(None)
    assert story.decide()
    found = told(story)
    assert set(found.interrupted.values()) == {0}
    return found


def stories() -> list[int]:
    return list(range(max(1, -(-KILLS // KILLS_PER_STORY))))


@pytest.mark.parametrize("seed", stories())
def test_nothing_is_lost_or_done_twice(
    seed: int, tmp_path: Path, lives: Lives, undisturbed: Told
) -> None:
    rng = random.Random(seed)
    level: Durability = "full" if seed % 5 == 4 else "process"
    wanted = min(KILLS_PER_STORY, KILLS)
    killed = 0
    number = 0
    while killed < wanted:
        folder = tmp_path / str(number)
        folder.mkdir()
        number += 1
        story = Story(folder, level, lives)
        for _ in range(LIVES_MAX):
            story.live(rng.uniform(0.0, LONGEST_S) if killed + story.kills < wanted else None)
            if story.home.exists() and story.decide():
                break
        else:
            raise AssertionError(f"not all runs ended in {LIVES_MAX} lives")
        check(story, undisturbed)
        killed += story.kills


def check(story: Story, undisturbed: Told) -> None:
    found = told(story)
    story.look()
    assert found.rows == undisturbed.rows
    # Numbered without a gap, and nobody heard what is not so.
    assert sorted(found.events) == list(range(1, len(found.events) + 1))
    heard = (story.folder / "heard").read_bytes().splitlines()
    decode = msgspec.json.Decoder(WorldEvent).decode
    for line in heard:
        event = decode(line)
        assert found.events[event.number] == event
    kinds = Counter(type(event) for event in found.events.values())
    assert kinds[Ended] == child.RUNS
    assert kinds[TurnFinished] == child.RUNS * (5 + 2 * child.ROUNDS)
    spawned = {tuple(line.split()) for line in (story.folder / "spawned").read_text().splitlines()}
    assert len(spawned) == child.RUNS
    assert max(found.interrupted.values()) <= story.kills
    once_at_most(story, {run_id: key for key, run_id in spawned})


def once_at_most(story: Story, keys: dict[str, str]) -> None:
    """No ``once`` effect happened twice; an attended run's happened exactly once, others never less
    often than they were told."""
    calls: Counter[tuple[str, str]] = Counter()
    for line in (story.folder / "effects").read_text().splitlines():
        tool, key, _ = line.split()
        calls[tool, key] += 1
    per_run: Counter[tuple[str, str]] = Counter()
    for (tool, key), times in calls.items():
        run_id = key.rsplit(":", 1)[0]
        per_run[run_id, tool] += 1
        if tool.startswith("send"):
            assert times == 1, (tool, key)
    for run_id, name in keys.items():
        attended = int(name.split("-")[1]) % 2 == 0
        assert per_run[run_id, "look"] == 1 + child.ROUNDS
        assert per_run[run_id, "put"] == 1 + child.ROUNDS
        for tool in ("send", "send_slowly"):
            if attended:
                assert per_run[run_id, tool] == child.ROUNDS
            assert per_run[run_id, tool] <= child.ROUNDS
