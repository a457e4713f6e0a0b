"""What opening a home finds: its own files, files of others, folders of other homes, and wrecks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from mirror_units import BLUEPRINT, WALL_MS, carry, new_database, run_parts, unit_of

from leviath.components.blueprint import Blueprint, decode_blueprint
from leviath.components.errors import BlueprintError
from leviath.components.identity import Launch
from leviath.components.output import Output
from leviath.components.parts import WORLD_OWNER
from leviath.components.progress import Cost
from leviath.components.run_status import RunStatus
from leviath.components.status import Status
from leviath.components.text import inline
from leviath.components.world_facts import Seed
from leviath.engine.files_mirror import FilesMirror
from leviath.engine.reconcile import Findings, reconcile, set_aside_database
from leviath.engine.run_folders import ImportedRun
from leviath.engine.step import Stepper
from leviath.persistence.database import open_database
from leviath.persistence.files import RealFileSystem
from leviath.persistence.rows import Batch
from leviath.persistence.run_meta import RunMeta
from leviath.systems.caches import Caches
from leviath.systems.invariants import broken
from leviath.systems.run import Now
from leviath.systems.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leviath.persistence.database import Database

DOCUMENT: dict[str, Any] = {
    "run_id": "old-1", "agent_name": "old", "agent_path": "/agents/a", "task": "t" * 3_000,
    "status": "running", "current_stage": "write", "stage_index": 1, "num_stages": 2,
    "iteration": 3, "prompt_tokens": 10, "completion_tokens": 2, "workdir": "/w",
    "started_at": 1_780_000_000, "updated_at": 1_780_000_600, "x-new": [1],
}  # fmt: skip


class CountingFileSystem(RealFileSystem):
    """Counts the files that are opened for reading."""

    def __init__(self) -> None:
        self.read = 0

    def open_read(self, folder: int, name: str) -> int:
        """See FileSystem."""
        self.read += 1
        return super().open_read(folder, name)


def load(path: str) -> Blueprint:
    """Finds the blueprint of every document but one."""
    if path == "/gone":
        raise BlueprintError("/gone: there is no such file", faults=())
    return BLUEPRINT


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def database(home: Path) -> Iterator[Database]:
    with new_database(home) as opened:
        yield opened


def found(home: Path, database: Database, **more: Any) -> Findings:
    *_, findings = reconcile(home, database, world_ms=0, load=load, **more)
    return findings


def mirrored(home: Path, database: Database, count: int = 3, *, clean: bool = True) -> None:
    """A home in which a host left runs 1 to ``count``, the last of them ended."""
    mirror = FilesMirror(home / "runs", database)
    runs = [run_parts(n) for n in range(1, count)]
    ended = run_parts(count, RunStatus.COMPLETE, output=Output(inline("x"), "read", 1, 1))
    row = database.world()
    assert row is not None
    carry(mirror, database, unit_of(row.step + 1, *runs, ended))
    mirror.close()
    if clean:
        database.liveness(2**52)
        database.mark_clean()
    database.claim(WALL_MS, "1")


def write_run(home: Path, name: str, **changes: Any) -> Path:
    folder = home / "runs" / name
    folder.mkdir(parents=True)
    body = DOCUMENT | {"run_id": name} | changes
    (folder / "meta.json").write_bytes(msgspec.json.encode(body))
    return folder


# --- files of runs that the store knows -----------------------------------------------------------


def test_nothing_is_read_after_a_clean_close(home: Path, database: Database) -> None:
    mirrored(home, database, 20)
    fs = CountingFileSystem()
    findings = found(home, database, fs=fs)
    assert findings.report() == Findings().report()
    assert fs.read == 0


def test_after_a_crash_only_what_the_last_host_wrote_is_read(
    home: Path, database: Database
) -> None:
    mirrored(home, database, 5)
    assert found(home, database).rewritten == []
    mirror = FilesMirror(home / "runs", database)
    carry(mirror, database, unit_of(2, run_parts(1) | {Cost: Cost(9)}))
    mirror.close()
    database.claim(WALL_MS, "1")
    fs = CountingFileSystem()
    assert found(home, database, fs=fs).rewritten == []
    assert 0 < fs.read <= 5, "the files of one run"


@pytest.mark.parametrize("clean", [True, False])
def test_a_file_that_was_still_owed_is_written_again(
    home: Path, database: Database, clean: bool
) -> None:
    mirrored(home, database, 2, clean=clean)
    database.commit(Batch(behind=[1]))
    findings = found(home, database)
    assert findings.rewritten == [1]
    assert findings.set_aside == [], "it is as the store left it, only older"
    path = home / "runs" / "run-1" / "meta.json"
    path.write_bytes(path.read_bytes().replace(b'"task": "task"', b'"task": "evil"'))
    assert found(home, database).set_aside == ["runs/run-1/meta.json.other-1"]


@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_or_older_file_is_written_again(
    home: Path, database: Database, clean: bool
) -> None:
    older = home / "older"
    mirror = FilesMirror(home / "runs", database)
    carry(mirror, database, unit_of(1, run_parts(1)))
    mirror.close()
    older.write_bytes((home / "runs" / "run-1" / "meta.json").read_bytes())
    mirrored(home, database, 3, clean=clean)
    os.replace(older, home / "runs" / "run-1" / "meta.json")
    os.utime(home / "runs" / "run-1" / "meta.json", (2**33, 2**33))
    database.liveness(0)
    (home / "runs" / "run-2" / "meta.json").unlink()
    findings = found(home, database)
    assert findings.rewritten == [1, 2]
    assert findings.set_aside == []


def test_what_somebody_else_wrote_is_kept_beside(home: Path, database: Database) -> None:
    mirrored(home, database)
    path = home / "runs" / "run-1" / "meta.json"
    theirs = path.read_bytes().replace(b'"task": "task"', b'"task": "evil"')
    path.write_bytes(theirs)
    database.liveness(0)
    (path.parent / "meta.json.other-1").write_bytes(b"earlier")
    findings = found(home, database)
    assert (findings.rewritten, findings.set_aside) == ([1], ["runs/run-1/meta.json.other-2"])
    assert (path.parent / "meta.json.other-2").read_bytes() == theirs
    assert not path.exists()
    mirror = FilesMirror(home / "runs", database)
    mirror.doubt(findings.rewritten)
    carry(mirror, database, unit_of(2, run_parts(1)))
    mirror.close()
    assert RunMeta.load(path).task == "task"


@pytest.mark.parametrize("wreck", [b"", bytes(900), b"\xff" * 9, b'{"run_id"', b"[]", b"{}"])
def test_a_torn_file_of_a_known_run_is_replaced(
    home: Path, database: Database, wreck: bytes
) -> None:
    mirrored(home, database)
    (home / "runs" / "run-1" / "meta.json").write_bytes(wreck)
    findings = found(home, database)
    assert (findings.rewritten, findings.set_aside) == ([1], [])


def test_a_word_of_a_newer_leviath_is_kept_beside(home: Path, database: Database) -> None:
    mirrored(home, database)
    path = home / "runs" / "run-1" / "meta.json"
    path.write_bytes(path.read_bytes().replace(b'"waiting_input"', b'"hibernating"'))
    assert found(home, database).set_aside == ["runs/run-1/meta.json.other-1"]


def test_a_file_that_is_missing_beside_its_meta_is_noticed_after_a_crash(
    home: Path, database: Database
) -> None:
    mirrored(home, database, clean=False)
    (home / "runs" / "run-3" / "final_output").unlink()
    assert found(home, database).rewritten == [3]


def test_a_deleted_folder_stays_deleted_once_its_run_has_ended(
    home: Path, database: Database
) -> None:
    mirrored(home, database)
    for n in (2, 3):
        folder = home / "runs" / f"run-{n}"
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    assert found(home, database).rewritten == [2]


def test_links_in_the_place_of_folders_and_quarantined_runs_are_left_alone(
    home: Path, database: Database, tmp_path: Path
) -> None:
    mirrored(home, database)
    os.rename(home / "runs" / "run-1", tmp_path / "elsewhere")
    (home / "runs" / "run-1").symlink_to(tmp_path / "elsewhere")
    (home / "runs" / "run-2" / "meta.json").unlink()
    findings = found(home, database, quarantined={2: "a host died twice"})
    assert findings.rewritten == []
    assert "symbolic link" in findings.unreadable[0].reason
    assert findings.report().quarantined[0].run_id == "run-2"


# --- folders that the store does not know ---------------------------------------------------------


def test_a_folder_of_another_home_comes_in_with_its_texts(home: Path, database: Database) -> None:
    write_run(home, "old-1", callback_secret="canary")
    findings = found(home, database)
    (run,) = findings.imports
    assert run.run_id == "old-1"
    bodies = dict(run.bodies)
    assert b"t" * 3_000 in bodies.values()
    assert decode_blueprint(bodies[run.blueprint]) == BLUEPRINT
    ((ref, secret),) = run.secrets
    assert (ref, secret.reveal()) == ("callback-old-1", "canary")
    assert b"canary" not in msgspec.msgpack.encode(run.as_input(1, hold=True))
    assert findings.report().imported == ("old-1",)
    assert findings.report().rebuilt == ()


@pytest.mark.parametrize("status", [status.value for status in RunStatus])
@pytest.mark.parametrize("hold", [True, False])
def test_the_step_takes_the_run_and_every_invariant_holds(
    home: Path, database: Database, status: str, hold: bool
) -> None:
    write_run(home, "old-1", status=status)
    (run,) = found(home, database).imports
    world, _ = taken([run], hold=hold)
    n = world.by_run_id["old-1"]
    shown = world.get(n, Status).status
    driven = status in ("starting", "running", "waiting_input")
    assert shown.value == ("paused" if driven and hold else status)
    assert broken(world, [n]) == []


def taken(runs: list[ImportedRun], *, hold: bool) -> tuple[World, Stepper]:
    world = World()
    stepper = Stepper(world, Caches(world))
    world.load(WORLD_OWNER, [Seed("w", 1)])
    for run in runs:
        world.blueprints[run.blueprint] = decode_blueprint(dict(run.bodies)[run.blueprint])
    inputs = [run.as_input(ticket, hold=hold) for ticket, run in enumerate(runs, 1)]
    result = stepper.step(inputs, Now(1_000, WALL_MS))
    assert result.failures == ()
    assert [ack.code for ack in result.acks] == [""] * len(runs)
    return world, stepper


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a", b"", "is empty"),
        ("a", bytes(700), "NUL bytes"),
        ("a", b'{"run_id":"a"', "too early"),
        ("a", b"\x89PNG....", "not UTF-8"),
        ("a", b"[1]", "expected an object"),
        ("a", None, "holds no meta.json"),
        (".hidden", b"{}", "starts with a dot"),
        ("CON", b"{}", "device name"),
        ("a b", b"{}", "contains ' '"),
    ],
)
def test_a_folder_that_does_not_load_is_listed_and_untouched(
    home: Path, database: Database, name: str, content: bytes | None, reason: str
) -> None:
    folder = home / "runs" / name
    folder.mkdir()
    if content is not None:
        (folder / "meta.json").write_bytes(content)
    findings = found(home, database)
    assert findings.imports == []
    (listed,) = findings.unreadable
    assert listed.folder == name
    assert reason in listed.reason
    assert [p.read_bytes() for p in folder.iterdir()] == ([] if content is None else [content])


@pytest.mark.parametrize(
    ("field", "amount"),
    [("cost_usd", -0.5), ("cost_usd", 1e12), ("cost_priced_usd", 1e300), ("cost_priced_usd", -1)],
)
def test_a_cost_that_nothing_can_have_is_refused_with_its_field(
    home: Path, database: Database, field: str, amount: float
) -> None:
    write_run(home, "old-1", **{field: amount})
    findings = found(home, database)
    assert findings.imports == []
    assert f"`{field}` is {float(amount)!r}" in findings.unreadable[0].reason


def test_a_stage_with_such_a_cost_is_lost_and_the_run_says_so_when_it_is_held(
    home: Path, database: Database
) -> None:
    stage = {
        "name": "read", "index": 0, "status": "complete", "prompt_tokens": 1,
        "completion_tokens": 1, "cost_priced_usd": -2.0,
    }  # fmt: skip
    for name, status in (("old-1", "running"), ("old-2", "paused")):
        folder = write_run(home, name, status=status)
        (folder / "stages.json").write_bytes(msgspec.json.encode([stage]))
    findings = found(home, database)
    assert any("stage 0: `cost_priced_usd` is -2.0" in what for what in findings.imports[0].lost)
    world, _ = taken(findings.imports, hold=True)
    for name in ("old-1", "old-2"):
        why = world.get(world.by_run_id[name], Status).why
        assert "imported without counters of its stage" in why
        assert "`cost_priced_usd` is -2.0" in why
        assert "resume it" in why


def test_a_meta_with_such_a_cost_costs_a_rebuild_its_news_alone(home: Path) -> None:
    with lost_home(home) as database:
        path = home / "runs" / "run-1" / "meta.json"
        document = msgspec.json.decode(path.read_bytes()) | {"cost_priced_usd": -1.0}
        path.write_bytes(msgspec.json.encode(document))
        findings = found(home, database, rebuilding=True)
        assert [run.run_id for run in findings.imports] == ["run-1", "run-2", "run-3"]
        assert "`cost_priced_usd` is -1.0" in findings.report().rebuilt[0].lost[0]


def test_a_copied_folder_is_no_second_run(home: Path, database: Database) -> None:
    write_run(home, "copy", run_id="old-1")
    (listed,) = found(home, database).unreadable
    assert "'old-1' in the folder 'copy'" in listed.reason


def test_an_unknown_status_is_listed_with_its_word(home: Path, database: Database) -> None:
    folder = write_run(home, "old-1", status="hibernating")
    before = (folder / "meta.json").read_bytes()
    findings = found(home, database)
    assert findings.unreadable[0].status_word == "hibernating"
    assert findings.imports == []
    assert (folder / "meta.json").read_bytes() == before


def test_a_link_to_a_folder_is_not_followed(home: Path, database: Database, tmp_path: Path) -> None:
    folder = write_run(tmp_path, "old-1")
    (home / "runs" / "old-1").symlink_to(folder)
    write_run(home, "old-2")
    real = home / "runs" / "old-2" / "meta.json"
    os.rename(real, tmp_path / "meta")
    real.symlink_to(tmp_path / "meta")
    findings = found(home, database)
    assert findings.imports == []
    assert [run.folder for run in findings.unreadable] == ["old-1", "old-2"]
    assert all("symbolic link" in run.reason for run in findings.unreadable)


def test_a_run_whose_blueprint_is_gone_waits_for_it_unless_it_has_ended(
    home: Path, database: Database
) -> None:
    write_run(home, "old-1", agent_path="/gone")
    write_run(home, "old-2", agent_path="/gone", status="complete")
    findings = found(home, database)
    assert [run.run_id for run in findings.imports] == ["old-2"]
    assert "'/gone' cannot be loaded" in findings.unreadable[0].reason
    taken(findings.imports, hold=True)


def test_parents_come_before_their_children(home: Path, database: Database) -> None:
    write_run(home, "a-child", depth=1, parent_run_id="z-parent")
    write_run(home, "z-parent", children=["a-child"])
    findings = found(home, database)
    assert [run.run_id for run in findings.imports] == ["z-parent", "a-child"]


# --- when the store is lost -----------------------------------------------------------------------


def lost_home(home: Path) -> Database:
    """The home of ``mirrored`` after its database was found damaged."""
    with new_database(home) as database:
        mirrored(home, database)
    (home / "world.db").write_bytes(b"garbage")
    (home / "world.db-wal").write_bytes(b"log")
    assert set_aside_database(home) == ("world.db-wal.lost-1", "world.db.lost-1")
    assert sorted(p.name for p in home.iterdir() if "world.db" in p.name) == [
        "world.db-wal.lost-1",
        "world.db.lost-1",
    ]
    database = open_database(home / "world.db", level="process")
    database.initialise("w2", 1)
    database.claim(WALL_MS, "1")
    return database


def test_a_lost_store_is_rebuilt_from_the_files(home: Path) -> None:
    with lost_home(home) as database:
        findings = found(home, database, rebuilding=True)
        assert [run.run_id for run in findings.imports] == ["run-1", "run-2", "run-3"]
        assert [run.lost for run in findings.report().rebuilt] == [(), (), ()]
        world, _ = taken(findings.imports, hold=False)
        n = world.by_run_id["run-3"]
        assert world.get(n, Status).status is RunStatus.COMPLETE
        assert world.get(n, Output).content == inline("x")
        assert broken(world, world.owners()) == []


def test_the_report_says_what_each_run_lost(home: Path) -> None:
    with lost_home(home) as database:
        meta = home / "runs" / "run-1" / "meta.json"
        newer = meta.read_bytes().replace(b'"prompt_tokens": 10', b'"prompt_tokens": 90')
        meta.write_bytes(newer)
        (home / "runs" / "run-2" / "meta.json").write_bytes(bytes(10))
        (home / "runs" / "run-3" / "state.lev").write_bytes(b"LEVSTATE torn")
        findings = found(home, database, rebuilding=True)
        first, second, third = findings.report().rebuilt
        assert first.lost == ("the conversation of its turns after step 1; their cost is kept",)
        assert "NUL bytes" in second.lost[0]
        assert any("state.lev ends after 13 bytes" in what for what in third.lost)
        world, _ = taken(findings.imports, hold=False)
        assert world.get(world.by_run_id["run-1"], Cost).prompt == 90


def test_an_ending_that_is_newer_than_the_state_stays_an_ending(home: Path) -> None:
    with lost_home(home) as database:
        meta = home / "runs" / "run-1" / "meta.json"
        document = msgspec.json.decode(meta.read_bytes())
        document |= {"status": "cancelled", "waiting_on": None}
        meta.write_bytes(msgspec.json.encode(document))
        findings = found(home, database, rebuilding=True)
        world, _ = taken(findings.imports, hold=False)
        n = world.by_run_id["run-1"]
        assert world.get(n, Status).status is RunStatus.CANCELLED
        assert broken(world, [n]) == []
        assert findings.report().rebuilt[0].lost == ("how it came to be cancelled after step 1",)


def test_a_second_loss_is_kept_under_another_number(home: Path) -> None:
    lost_home(home).close()
    assert "world.db.lost-2" in set_aside_database(home)


def test_what_came_in_goes_out_as_it_was(home: Path, database: Database) -> None:
    folder = write_run(home, "old-1", cost_usd=0.1, cost_priced_usd=0.1)
    findings = found(home, database)
    world, _ = taken(findings.imports, hold=False)
    n = world.by_run_id["old-1"]
    unit = unit_of(1, world.row(n))
    unit.entries = list(findings.imports[0].bodies)
    mirror = FilesMirror(home / "runs", database)
    carry(mirror, database, unit)
    mirror.close()
    meta = RunMeta.load(folder / "meta.json")
    assert (meta.cost_usd, meta.task, meta.status) == (0.1, "t" * 3_000, RunStatus.RUNNING)
    assert b'"x-new"' in (folder / "meta.json").read_bytes()
    launch = world.get(n, Launch)
    assert launch.num_stages == 2
