"""``lev stats`` and the store of a world: every ending, once, and to the token."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio.testing
from engine_worlds import Counting, Gate, in_trio, one, opened, priced, until
from msgspec.structs import replace

from leviath.components.error_kind import ErrorKind
from leviath.components.errors import Damaged, RunConflict, StorageError
from leviath.components.world_facts import Policy
from leviath.persistence.run_meta import RunMeta
from leviath.persistence.store import Store
from leviath.persistence.store_rows import StepRecord
from leviath.providers.scripted import Failure, Reply, tool_call

if TYPE_CHECKING:
    from collections.abc import Callable

    from lev_commands import Place

DEMO = Path(__file__).parents[2] / "examples" / "demo"
SUBMIT = tool_call("submit_output", content="the result")


def store_of(home: Path) -> Store:
    return Store.open(home / "world.db")


@pytest.mark.timeout(120)
def test_stats_over_the_demo_agree_with_its_run_files_to_the_token(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    src = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        [sys.executable, DEMO / "run.py", "--keep", kept],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": src},
        capture_output=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr.decode()
    homes = sorted(path.parent for path in kept.glob("**/world.db"))
    assert homes
    for home in homes:
        argv = [sys.executable, "-m", "leviath.lev", "stats", "--home", str(home), "--json"]
        environ = os.environ | {"PYTHONPATH": src}
        said = subprocess.run(argv, env=environ, capture_output=True, check=True).stdout
        whole = json.loads(said)["all"]
        metas = [RunMeta.load(path) for path in home.glob("runs/*/meta.json")]
        ended = [meta for meta in metas if meta.status.is_ended]
        tokens = [
            meta.prompt_tokens
            + meta.completion_tokens
            + meta.cached_tokens
            + meta.cache_write_tokens
            for meta in ended
        ]
        assert ended
        assert whole["runs"] == len(ended)
        assert whole["tokens"] == sum(tokens) > 0
        assert whole["unpriced"] == sum(meta.unpriced_calls for meta in ended)
        cost = sum(round(meta.cost_priced_usd * 1e9) for meta in ended)
        assert whole["cost_nano_usd"] == cost
        with store_of(home) as store:
            for info in store.runs():
                steps = store.steps(info.run_id)
                assert sum(step.tokens for step in steps) == info.tokens


FAILED = Failure(kind=ErrorKind.BAD_REQUEST, message="no")
DOWN = Failure(kind=ErrorKind.SERVER, message="down")
WRITE = tool_call("write_file", path="a.txt", content="x")
ENDINGS: list[tuple[str, tuple[Any, ...], tuple[str, ...], str]] = [
    ("an output", (priced("", SUBMIT), priced("bye")), ("submit_output",), "success"),
    ("changed files", (priced("", WRITE), priced("bye")), ("write_file",), "success"),
    ("nothing left", (priced("bye"),), (), "finished"),
    ("a terminal error", (FAILED,), (), "escalated_terminal"),
    ("retries spent", (Reply(failures=((0, DOWN),)),), (), "escalated_retryable"),
]


@pytest.mark.parametrize(
    ("replies", "tools", "outcome"), [row[1:] for row in ENDINGS], ids=[row[0] for row in ENDINGS]
)
def test_a_run_of_a_world_ends_as_its_table_says(
    tmp_path: Path, replies: tuple[Any, ...], tools: tuple[str, ...], outcome: str
) -> None:
    one_attempt: Callable[[Policy], Policy] = lambda policy: replace(policy, attempts_max=1)  # noqa: E731

    @in_trio
    async def check() -> None:
        async with opened(tmp_path / "home", [Counting(*replies)], policy=one_attempt) as world:
            run = await world.spawn(one(*tools), task="t", workdir=tmp_path)
            await run.wait()
            with store_of(tmp_path / "home") as store:
                summary = store.run_summary(run.ordinal)
                assert summary is not None
                assert (summary.outcome, summary.success) == (outcome, outcome == "success")
                row = run.row()
                tokens = row.prompt_tokens + row.completion_tokens
                assert (summary.tokens, summary.cost_nano_usd) == (tokens, row.cost_priced_nano)
                assert store.run(run.ordinal).outcome == outcome
                assert summary.duration_ms is not None

    check()


@in_trio
async def test_a_resume_supersedes_and_an_ending_within_one_commit_is_kept(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with opened(home, [Counting(FAILED, FAILED, priced("done"))]) as world:
        run = await world.spawn(one(), task="t", workdir=tmp_path)
        for _ in range(2):
            await run.wait()
            await run.resume()
        await run.wait()
    for _ in range(2):
        with store_of(home) as store:
            summary = store.run_summary(run.ordinal)
            assert summary is not None
            assert summary.outcome == "finished"
            old = [each.outcome for each in store.superseded(run.ordinal)]
            assert old == ["escalated_terminal", "escalated_terminal"]
        async with opened(home, []):
            pass


@in_trio
async def test_there_is_no_summary_while_a_run_goes_or_waits_and_one_after_a_cancel(
    tmp_path: Path,
) -> None:
    home, gate = tmp_path / "home", Gate("never")
    async with opened(home, [gate]) as world:
        run = await world.spawn(one(), task="the goal", workdir=tmp_path)
        await gate.waiting.wait()
        with store_of(home) as store:
            assert store.run_summary(run.ordinal) is None
            assert store.run(run.ordinal).outcome is None
            await run.cancel()
            await until(lambda: store.run_summary(run.ordinal) is not None)
            info = store.run(run.ordinal)
            assert (info.outcome, info.goal, info.agent) == ("cancelled", "the goal", "one")
            assert [each.run_id for each in store.runs()] == [run.ordinal]
            gate.open.set()
            for _ in range(50):  # the call that was broken off comes back first
                with contextlib.suppress(RunConflict):
                    await run.forget()
                    break
                await trio.testing.wait_all_tasks_blocked(0.001)
            assert store.runs() == []
            assert store.stats()[0].runs == 0


@in_trio
async def test_the_store_of_a_world_is_read_only_and_its_host_goes_on(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with opened(home, [Counting(priced("x"), loop=True)]) as world:
        run = await world.spawn(one(), task="t", workdir=tmp_path)
        await run.wait()
        with store_of(home) as store:
            for call in (
                lambda: store.start_run("g", "f"),
                lambda: store.record(1, StepRecord(1, "d", "r")),
                lambda: store.finish_run(1, "cancelled"),
                lambda: store.resume_run(1),
                lambda: store.take_run(1),
            ):
                with pytest.raises(StorageError, match="written by its host alone"):
                    call()
            lines = store.export()
            next(lines)
            other = await world.spawn(one(), task="t", workdir=tmp_path)
            await other.wait()


def test_stats_of_a_home(place: Place) -> None:
    assert place.spawn().code == 0
    assert place.spawn("--count", "2", script="replies.toml").code == 0
    answer = place.lev("stats", "--by", "agent")
    assert answer.code == 0, answer.err
    head, *rows = answer.out.splitlines()
    assert head.split() == ["AGENT", "ENDED", "WORKED", "TURNS", "TOKENS", "MEAN", "COST"]
    assert rows[0].split()[:4] == ["small", "3", "100.0", "%"]
    document = place.lev("stats", "--by", "outcome", "--json").document()
    assert document["all"]["runs"] == document["groups"][0]["runs"] == 3
    assert document["groups"][0]["group"] == "success"
    assert document["all"]["tokens"] == 3 * (812 + 31 + 640)
    assert document["all"]["cost_nano_usd"] == 3 * 1_700_000
    assert place.lev("stats", "--since", "1h", "--json").document()["all"]["runs"] == 3
    assert "no run ended" in place.lev("stats", "--since", "0s").out


@pytest.mark.parametrize("name", ["a.png", "a.svg"])
def test_a_plot_is_drawn_and_the_same_numbers_make_the_same_file(place: Place, name: str) -> None:
    assert place.spawn().code == 0
    bodies: list[bytes] = []
    for _ in range(2):
        answer = place.lev("stats", "--by", "model", "--plot", str(place.path / name))
        assert answer.code == 0, answer.err
        bodies.append((place.path / name).read_bytes())
    assert bodies[0] == bodies[1]
    assert bodies[0].startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--plot", "a.pdf"), "ends in .png or .svg"),
        (("--since", "week"), "no length of time"),
        (("--by", "weather"), "invalid choice"),
        (("--plot", "nowhere/a.svg"), "cannot be written"),
    ],
)
def test_bad_words_are_refused(place: Place, words: tuple[str, ...], says: str) -> None:
    assert place.spawn().code == 0
    answer = place.lev("stats", *words)
    assert answer.code in (1, 2)
    assert says in answer.err


def test_a_home_that_is_none_and_one_that_is_damaged(place: Place) -> None:
    answer = place.lev("stats")
    assert (answer.code, "holds no world" in answer.err) == (1, True)
    place.home.mkdir()
    (place.home / "world.db").write_bytes(b"\0" * 999)
    assert place.lev("stats").code == 1
    with pytest.raises(Damaged):
        store_of(place.home)
