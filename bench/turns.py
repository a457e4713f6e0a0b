"""Turns a second of a busy fleet, the turn time of a run alone, and what a turn writes."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import apsw
import fleet
import trio
from harness import Benchmark, Row, median, scratch

from leviath.engine.commits import Chain
from leviath.engine.opening import Durability
from leviath.engine.tools import Tool

TURNS = 20
"""Tool turns of a run. The last word, one more model call, is not counted."""
_TABLES = ("entry", "journal", "run", "ledger", "mirror", "state")
_VFS = "leviath-bench-counting"


def _rate(durability: Durability, counter: Tool, *, runs: int, times: int) -> tuple[float, str]:
    rates: list[float] = []
    per_commit: list[float] = []

    async def once(folder: Path) -> None:
        home = None if durability == "memory" else folder / "home"
        async with fleet.open_gated(
            home, turns=TURNS, durability=durability, counter=counter
        ) as world:
            await fleet.spawn_all(world, fleet.blueprint(TURNS), runs, folder)
            commits = fleet.host_of(world).commits
            span = await fleet.drive(world, runs)
            rates.append(runs * TURNS / span)
            per_commit.append(runs * TURNS / max(1, fleet.host_of(world).commits - commits))

    for _ in range(times):
        with scratch() as folder:
            trio.run(once, folder)
        gc.collect()
    note = "" if durability == "memory" else f"{median(per_commit):.0f} turns a commit"
    return median(rates), note


def _fleet(name: str, what: str, durability: Durability, counter: Tool, target: int) -> Benchmark:
    def measure(*, quick: bool) -> list[Row]:
        runs, times = (200, 1) if quick else (1_000, 3)
        value, note = _rate(durability, counter, runs=runs, times=times)
        return [Row(name, value, "turns/s", target, "higher", note)]

    return Benchmark(name, what, measure)


# --- one run alone ------------------------------------------------------------------------------


class _TimedChain(Chain):
    """Notes how long each commit takes in the writer's thread, encoding included."""

    spans: list[float]

    def commit(self, *arguments: object) -> int:
        began = time.perf_counter()
        try:
            return super().commit(*arguments)  # type: ignore[arg-type]
        finally:
            self.spans.append((time.perf_counter() - began) * 1_000)


def _alone(*, quick: bool) -> list[Row]:
    turns = 50 if quick else 300
    turn_ms: list[float] = []
    commit_ms: list[float] = []
    commits: list[float] = []

    async def once(folder: Path) -> None:
        async with fleet.open_gated(folder / "home", turns=turns, durability="full") as world:
            await fleet.spawn_all(world, fleet.blueprint(turns), 1, folder)
            host = fleet.host_of(world)
            assert host.chain is not None
            timed = _TimedChain(host.chain.db, host.chain.digest)
            timed.step, timed.spans = host.chain.step, []
            host.chain = timed
            before = host.commits
            turn_ms.append(await fleet.drive(world, 1) * 1_000 / turns)
            commit_ms.append(median(timed.spans))
            commits.append((host.commits - before) / turns)

    for _ in range(1 if quick else 3):
        with scratch() as folder:
            trio.run(once, folder)
    target = 2 * median(commit_ms) + 1
    note = f"the target is two commits and 1 ms; {median(commits):.1f} commits a turn"
    return [
        Row("alone_turn", median(turn_ms), "ms", round(target, 3), "lower", note),
        Row("alone_commit", median(commit_ms), "ms", None, "lower", "in the writer's thread"),
    ]


# --- what a turn writes -------------------------------------------------------------------------


class _CountingFile(apsw.VFSFile):
    def __init__(self, vfs: _CountingVFS, name: str | apsw.URIFilename | None, flags: list[int]):
        super().__init__("", name, flags)
        self._vfs = vfs

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._vfs.size_bytes += len(data)
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._vfs.syncs += 1
        super().xSync(flags)


class _CountingVFS(apsw.VFS):
    """Counts what SQLite writes and syncs, WAL and database."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.syncs = 0
        super().__init__(_VFS, "")

    def xOpen(  # noqa: N802
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> _CountingFile:
        return _CountingFile(self, name, flags)


def _stored(home: Path) -> tuple[int, int]:
    """(rows, bytes of journal rows) of a closed home."""
    db = apsw.Connection(str(home / "world.db"), flags=apsw.SQLITE_OPEN_READONLY)
    rows = sum(db.execute(f"select count(*) from {t}").fetchall()[0][0] for t in _TABLES)  # noqa: S608
    size = "select sum(length(inputs) + length(changes) + length(events)) from journal"
    journal = db.execute(size).fetchall()[0][0] or 0
    db.close()
    return rows, journal


def _written(*, quick: bool) -> list[Row]:
    runs = 200 if quick else 1_000
    vfs = _CountingVFS()
    delta: dict[str, float] = {}

    async def once(folder: Path) -> None:
        home = folder / "home"
        async with fleet.open_gated(home, turns=TURNS, durability="full", vfs=_VFS) as world:
            await fleet.spawn_all(world, fleet.blueprint(TURNS), runs, folder)
            rows, journal = _stored(home)
            host, size, syncs = fleet.host_of(world), vfs.size_bytes, vfs.syncs
            commits = host.commits
            await fleet.drive(world, runs)
            delta["turn_commits"] = host.commits - commits
            delta["turn_fsyncs"] = vfs.syncs - syncs
            delta["turn_disk_bytes"] = vfs.size_bytes - size
            now_rows, now_journal = _stored(home)
            delta["turn_rows"] = now_rows - rows
            delta["turn_journal_bytes"] = now_journal - journal

    with scratch() as folder:
        trio.run(once, folder)
    notes = {
        "turn_commits": "one commit for many turns",
        "turn_disk_bytes": "pages written to WAL and database, checkpoints included",
        "turn_journal_bytes": "inputs, redo lists and events; texts of a few words in it",
    }
    units = {name: "bytes" if name.endswith("bytes") else "a turn" for name in delta}
    targets = {"turn_journal_bytes": 3_072.0, "turn_disk_bytes": 3_072.0}
    return [
        Row(
            name,
            value / (runs * TURNS),
            units[name],
            targets.get(name),
            "lower",
            notes.get(name, ""),
        )
        for name, value in delta.items()
    ]


BENCHMARKS = [
    _fleet("turns_full", "1,000 runs, async tool, full", "full", fleet.count_words, 8_000),
    _fleet(
        "turns_full_plain_tool",
        "the same with a plain function",
        "full",
        fleet.plain_count_words,
        5_000,
    ),
    _fleet("turns_memory", "1,000 runs, async tool, memory", "memory", fleet.count_words, 12_000),
    Benchmark("alone", "one run alone, full: turn time and one commit", _alone),
    Benchmark("written", "rows, commits, fsyncs and bytes of a turn", _written),
]
