"""``lev ps``: one index, no run file, no slow import; what is hosted comes from the lock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from lev_commands import ROW, SRC, Place
from msgspec.structs import replace

from leviath.lev.ps import FINISHED_FOR_MS, STRAYS_READ_MAX, Snapshot, document, lines, look
from leviath.persistence.database import open_database
from leviath.persistence.home import HomeLock
from leviath.persistence.listing import Listing, strays
from leviath.persistence.rows import Batch
from leviath.persistence.run_meta import RunMeta

if TYPE_CHECKING:
    import apsw

    from leviath.persistence.rows import RunRow

STATUSES = ("starting", "running", "waiting_input", "paused", "complete", "error", "cancelled")


def rows(count: int) -> list[RunRow]:
    found: list[RunRow] = []
    for n in range(1, count + 1):
        status = STATUSES[n % len(STATUSES)]
        ended = 5_000 + n if status in ("complete", "error", "cancelled") else None
        found.append(
            replace(
                ROW,
                ordinal=n,
                run_id=f"run-{n}",
                status=status,
                updated_ms=10_000 + n * 7 % 1_000,
                ended_ms=ended,
            )
        )
    return found


def fill(home: Path, runs: list[RunRow]) -> None:
    home.mkdir(mode=0o700, exist_ok=True)
    with open_database(home / "world.db", level="process") as database:
        database.initialise("world", 1)
        database.claim(1_000, "1")
        database.commit(Batch(runs=runs))


def test_a_cold_listing_imports_nothing_slow_and_opens_no_file_of_a_run(place: Place) -> None:
    fill(place.home, rows(300))
    for n in range(1, 301):
        place.write(f"home/runs/run-{n}/meta.json", "not looked at")
    program = """
import json, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from leviath.lev.cli import run
code = run(["ps", "--home", sys.argv[1]])
print(json.dumps([code, sorted(sys.modules), opened]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(place.home)],
        env=os.environ | {"PYTHONPATH": str(SRC)},
        capture_output=True,
        check=True,
        text=True,
    )
    code, modules, opened = json.loads(done.stdout.splitlines()[-1])
    assert code == 0
    assert "run-297" in done.stdout
    heavy = {
        name for name in modules if name.split(".")[0] in ("trio", "msgspec", "esper", "asyncio")
    }
    assert heavy == set()
    ours = {name for name in modules if name.startswith("leviath.engine.")}
    assert ours == {"leviath.engine.clock", "leviath.engine.limits"}
    assert not any(name.startswith("leviath.systems") for name in modules)
    assert not [path for path in opened if "/runs/" in path]


def counted(listing: Listing) -> list[tuple[str, Any]]:
    """The statements that a connection carries out from now on, with their bindings."""
    statements: list[tuple[str, Any]] = []

    def trace(cursor: Any, sql: str, bindings: Any) -> bool:
        statements.append((sql, bindings))
        return True

    cast("apsw.Connection", listing.connection).exec_trace = trace
    return statements


@pytest.mark.parametrize("count", [10, 3_000])
def test_a_page_costs_the_same_statements_whatever_the_home_holds(
    tmp_path: Path, count: int
) -> None:
    fill(tmp_path, rows(count))
    with cast("Listing", Listing.open(tmp_path)) as listing:
        statements = counted(listing)
        assert len(listing.page(limit=50)) == min(count, 50)
        assert len(statements) == 1
        sql, bindings = statements[0]
        plan = [row[3] for row in listing.connection.execute(f"explain query plan {sql}", bindings)]
    assert [step for step in plan if step.startswith("SCAN run")] == []
    assert sum("COVERING INDEX run_by_status" in step for step in plan) == 2, plan


def test_pages_show_every_run_once_while_rows_are_renewed(tmp_path: Path) -> None:
    runs = rows(200)
    fill(tmp_path, runs)
    seen: list[int] = []
    after: int | None = None
    while True:
        with cast("Listing", Listing.open(tmp_path)) as listing:
            page = listing.page(limit=30, after=after)
        if not page:
            break
        seen += [run.ordinal for run in page]
        after = page[-1].ordinal
        with open_database(tmp_path / "world.db", level="process") as database:
            database.claim(2_000, "1")
            database.commit(Batch(runs=[replace(run, updated_ms=90_000 + after) for run in runs]))
    assert seen == list(range(200, 0, -1))


def test_the_command_pages_by_what_it_names(place: Place) -> None:
    fill(place.home, rows(20))
    seen: list[str] = []
    words: tuple[str, ...] = ()
    for _ in range(10):
        body = place.lev("ps", "--all", "--json", "--limit", "6", *words).document()
        seen += [
            run["run_id"] for part in ("runs", "finished", "not_running") for run in body[part]
        ]
        if body["next_after"] is None:
            break
        words = ("--after", str(body["next_after"]))
    assert sorted(seen) == sorted(run.run_id for run in rows(20))
    assert "more: lev ps" in place.lev("ps", "--all", "--limit", "6").out


def test_only_runs_that_ended_lately_are_listed_without_all(tmp_path: Path) -> None:
    ended = [
        replace(ROW, ordinal=n, run_id=f"e{n}", status="complete", ended_ms=n, updated_ms=n)
        for n in (1_000, 2_000)
    ]
    fill(tmp_path, [ROW, *ended])
    with cast("Listing", Listing.open(tmp_path)) as listing:
        recent = listing.page(limit=9, ended_since_ms=1_500)
    assert [run.run_id for run in recent] == ["e2000", "run-1"]
    shown = look(tmp_path, limit=9, after=None, ended=False)
    assert [run.run_id for run in shown.runs] == ["run-1"]
    assert len(look(tmp_path, limit=9, after=None, ended=True).runs) == 3


def test_the_lock_alone_says_what_is_hosted(tmp_path: Path) -> None:
    fill(tmp_path, [ROW, replace(ROW, ordinal=2, run_id="run-2", status="waiting_input")])
    free = document(look(tmp_path, limit=9, after=None, ended=False), ended=False)
    assert free["hosted"] is False
    assert [run["interrupted"] for run in cast("Any", free["runs"])] == [False, True]
    assert cast("Any", free["health"])["agents"]["active"] == 0
    assert cast("Any", free["health"])["agents"]["interrupted"] == 1
    with HomeLock.acquire(tmp_path):
        held = document(look(tmp_path, limit=9, after=None, ended=False), ended=False)
    assert held["hosted"] is True
    assert [run["interrupted"] for run in cast("Any", held["runs"])] == [False, False]
    assert [run["status"] for run in cast("Any", held["runs"])] == ["waiting_input", "running"]
    assert cast("Any", held["health"])["agents"]["active"] == 1
    assert cast("Any", held["health"])["agents"]["interrupted"] == 0


def test_a_lock_that_cannot_be_looked_at_is_unknown_and_says_so(tmp_path: Path) -> None:
    fill(tmp_path, [ROW])
    (tmp_path / "lock").symlink_to("lock")
    found = look(tmp_path, limit=9, after=None, ended=False)
    body = document(found, ended=True)
    assert body["hosted"] is None
    assert cast("Any", body["runs"])[0]["hosted"] is None
    assert cast("Any", body["runs"])[0]["interrupted"] is False
    assert cast("Any", body["health"])["agents"]["active"] is None
    assert any("cannot be told" in line for line in lines(found, ended=False, home=None))


def test_a_run_that_hosts_died_on_is_quarantined(tmp_path: Path) -> None:
    fill(tmp_path, [ROW, replace(ROW, ordinal=2, run_id="run-2")])
    for _ in range(2):
        with open_database(tmp_path / "world.db", level="process") as database:
            database.claim(3_000, "1")
            database.set_loading(2)
    with HomeLock.acquire(tmp_path):
        found = look(tmp_path, limit=9, after=None, ended=False)
    body = document(found, ended=False)
    assert body["quarantined"] == ["run-2"]
    by_id = {run["run_id"]: run for run in cast("Any", body["runs"])}
    assert by_id["run-2"]["hosted"] is False
    assert by_id["run-2"]["status"] == "running"
    assert by_id["run-1"]["hosted"] is True
    assert cast("Any", body["health"])["agents"]["active"] == 1
    assert any("quarantined: run-2" in line for line in lines(found, ended=False, home=None))


def test_folders_without_a_run_are_named_with_what_is_wrong(place: Place) -> None:
    fill(place.home, [ROW])
    good = RunMeta.new("good", "a", "/a", "task", None, "/w", 1, now=1_000)
    place.write("home/runs/run-1/meta.json", "known: not looked at")
    place.write("home/runs/good/meta.json", good.to_json().decode())
    place.write("home/runs/other/meta.json", good.to_json().decode())
    odd = good.to_json().decode().replace('"starting"', '"hib\\u001bernating"')
    place.write("home/runs/odd/meta.json", odd)
    place.write("home/runs/torn/meta.json", good.to_json().decode()[:200])
    place.write("home/runs/zeros/meta.json", "\0" * 500)
    (place.home / "runs/empty").mkdir()
    (place.home / "runs/link").symlink_to(place.path)
    place.write("home/runs/file", "no folder")
    place.write("home/runs/.hidden/meta.json", "ours")
    body = place.lev("ps", "--json").document()
    assert body["not_imported"] == [{"run_id": "good", "status": "starting"}]
    unreadable = {entry["run_id"]: entry for entry in body["unreadable"]}
    assert sorted(unreadable) == [".hidden", "empty", "link", "odd", "other", "torn", "zeros"]
    assert unreadable["odd"]["status"] == "hib\x1bernating"
    assert "'good'" in unreadable["other"]["reason"]
    assert "symbolic link" in unreadable["link"]["reason"]
    shown = place.lev("ps")
    assert "\x1b" not in shown.out
    assert shown.out.count("unreadable: ") == 7
    assert "1 run folder that this home does not know yet" in shown.out


def test_many_strange_folders_cost_one_scan_and_a_bounded_number_of_reads(place: Place) -> None:
    fill(place.home, [ROW])
    for n in range(STRAYS_READ_MAX + 20):
        (place.home / f"runs/x{n:03}").mkdir(parents=True)
    found = place.lev("ps", "--json").document()["unreadable"]
    assert len(found) == STRAYS_READ_MAX + 20
    assert sum("not looked at" in entry["reason"] for entry in found) == 20


def test_strays_of_a_folder_that_cannot_be_read_are_no_guess(tmp_path: Path) -> None:
    assert list(strays(tmp_path, ())) == []
    (tmp_path / "runs").write_text("a file")
    assert list(strays(tmp_path, ())) == []


def test_a_home_without_a_world_is_empty_and_not_made(place: Place) -> None:
    answer = place.lev("ps")
    assert answer.code == 0
    assert answer.out == "no agent runs active\n"
    assert "does not exist yet" in answer.err
    assert place.lev("ps", "--all", "--json").document()["runs"] == []
    assert not place.home.exists()


def test_the_table_tells_people_what_a_run_is_at() -> None:
    runs = [
        replace(
            ROW, status="waiting_input", waiting_on="tool_approval", num_stages=3, stage_index=1
        ),
        replace(ROW, status="paused", waiting_on=None, title="a \x1b[31mred\ntitle"),
        replace(ROW, status="error", error="no\nmodel", progress_ms=None),
        replace(ROW, status="complete", empty_output=True, stage=""),
    ]
    with_columns = [Listed(run) for run in runs]
    found = Snapshot("hosted", 2_000 + 7_200_000, with_columns, {}, {}, [], [], None)
    shown = lines(found, ended=True, home=None)
    assert shown[0].split() == ["RUN", "TITLE", "STATUS", "STAGE", "ITER", "TOOLS", "AGE"]
    assert "waiting: tool approval" in shown[1]
    assert "main 2/3" in shown[1]
    assert shown[1].endswith("2h")
    assert "a \\x1b[31mred title" in shown[2]
    assert "error: no model" in shown[3]
    assert shown[3].endswith("-")
    assert "complete (no output)" in shown[4]
    assert len({line.index("main") for line in shown[1:4]}) == 1


def Listed(row: RunRow) -> Any:  # noqa: N802 - stands in for the class
    from leviath.persistence.listing import ListedRun

    return ListedRun(*(getattr(row, name) for name in ListedRun._fields))


def test_finished_and_older_endings_are_told_apart(tmp_path: Path) -> None:
    now = look(tmp_path, limit=1, after=None, ended=True).now_ms
    fill(
        tmp_path,
        [
            replace(ROW, ordinal=n, run_id=f"e{n}", status="complete", ended_ms=at, updated_ms=at)
            for n, at in ((1, now - FINISHED_FOR_MS - 60_000), (2, now - 1_000))
        ],
    )
    body = document(look(tmp_path, limit=9, after=None, ended=True), ended=True)
    assert [run["run_id"] for run in cast("Any", body["finished"])] == ["e2"]
    assert [run["run_id"] for run in cast("Any", body["not_running"])] == ["e1"]
