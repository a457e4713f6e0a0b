"""A second release of a write, after a crash at each point of the first one."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from leviath.components.errors import ToolError
from leviath.engine.toolbox import staging
from leviath.engine.toolbox.confine import locate
from leviath.engine.tools import MayHaveHappened, Tool, ToolCall

MakeCall = Callable[..., ToolCall]
OLD, NEW = "old text\n", "new text\n"
WRITE = {"path": "f", "content": NEW}
EDIT = {"path": "f", "old": "old", "new": "new"}
BOTH = pytest.mark.parametrize(
    ("name", "arguments", "note"),
    [
        ("write_file", WRITE, "replaced f (9 bytes)"),
        ("edit_file", EDIT, "edited f (1 replaced)"),
    ],
)


@pytest.fixture
def target(tmp_path: Path, make_call: MakeCall) -> Path:
    """The file that the call is about."""
    path = tmp_path / "work" / "f"
    path.write_text(OLD)
    return path


def first_release(call: ToolCall, note: str, *, until: str) -> None:
    """The first release up to and with the phase ``until``, as the tools do it."""
    with locate(call.workdir, "f") as place:
        old, new = staging.digest_of(OLD.encode()), staging.digest_of(NEW.encode())
        record = staging.Record("f", old, new, note)
        staging.stage(call, record, NEW.encode())
        if until in ("install", "settle"):
            staging.install(call, place)
        if until == "settle":
            staging.settle(call, place, record)


@BOTH
def test_crash_before_the_record_is_as_if_never_released(
    name: str,
    arguments: dict[str, object],
    note: str,
    tools: dict[str, Tool],
    make_call: MakeCall,
    target: Path,
) -> None:
    folder = target.parent.parent / "run" / "spill" / "staging"
    folder.mkdir(parents=True)
    (folder / "r1-c1.new").write_text("half of the n")
    (folder / "r1-c1.json.part").write_text('{"path":')
    target.write_text(OLD)
    result = tools[name].call_sync(make_call(attempt=2), arguments)
    assert (result.text, result.modified, target.read_text()) == (note, ("f",), NEW)


@BOTH
@pytest.mark.parametrize("until", ["stage", "install", "settle"])
def test_second_release_ends_as_the_first_would_have(
    name: str,
    arguments: dict[str, object],
    note: str,
    until: str,
    tools: dict[str, Tool],
    make_call: MakeCall,
    target: Path,
) -> None:
    first_release(make_call(), note, until=until)
    assert target.read_text() == (OLD if until == "stage" else NEW)
    inode = target.stat().st_ino
    result = tools[name].call_sync(make_call(attempt=2), arguments)
    assert (result.text, result.modified, target.read_text()) == (note, ("f",), NEW)
    assert (target.stat().st_ino == inode) == (until != "stage")
    assert tools[name].call_sync(make_call(attempt=3), arguments) == result


@BOTH
@pytest.mark.parametrize("until", ["stage", "install"])
def test_a_file_that_is_neither_old_nor_new_may_have_been_written(
    name: str,
    arguments: dict[str, object],
    note: str,
    until: str,
    tools: dict[str, Tool],
    make_call: MakeCall,
    target: Path,
) -> None:
    first_release(make_call(), note, until=until)
    target.write_text("someone else's")
    with pytest.raises(MayHaveHappened, match="neither what it was before"):
        tools[name].call_sync(make_call(attempt=2), arguments)
    assert target.read_text() == "someone else's"


def test_what_others_did_after_a_settled_write_stays(
    tools: dict[str, Tool], make_call: MakeCall, target: Path
) -> None:
    tools["write_file"].call_sync(make_call(), WRITE)
    target.write_text(OLD)
    assert not tools["write_file"].call_sync(make_call(attempt=2), WRITE).is_error
    assert target.read_text() == OLD


def test_a_path_that_leads_elsewhere_by_now_may_have_been_written(
    tools: dict[str, Tool], make_call: MakeCall, target: Path
) -> None:
    first_release(make_call(), "", until="stage")
    target.rename(target.with_name("g"))
    target.symlink_to("g")
    with pytest.raises(MayHaveHappened, match="now leads to 'g'"):
        tools["write_file"].call_sync(make_call(attempt=2), WRITE)


def test_a_copy_left_beside_the_file_is_used_up(
    tools: dict[str, Tool], make_call: MakeCall, target: Path
) -> None:
    call = make_call()
    first_release(call, "", until="stage")
    with locate(call.workdir, "f") as place:
        staging._copy(call, place, staging.copy_name(call))
    assert len(os.listdir(target.parent)) == 2
    tools["write_file"].call_sync(make_call(attempt=2), WRITE)
    assert os.listdir(target.parent) == ["f"]
    assert target.read_text() == NEW


def test_a_damaged_record_is_not_taken_for_none(
    tools: dict[str, Tool], make_call: MakeCall, target: Path
) -> None:
    first_release(make_call(), "", until="stage")
    (target.parent.parent / "run" / "spill" / "staging" / "r1-c1.json").write_bytes(b"\0" * 40)
    with pytest.raises(MayHaveHappened, match="cannot read what an earlier attempt staged"):
        tools["write_file"].call_sync(make_call(attempt=2), WRITE)


def test_staging_is_private_and_forgotten_when_told(
    tools: dict[str, Tool], make_call: MakeCall, target: Path
) -> None:
    call = make_call()
    first_release(call, "", until="stage")
    folder = target.parent.parent / "run" / "spill" / "staging"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    staging.forget(call)
    staging.forget(call)
    assert os.listdir(folder) == []
    assert staging.staged(call) is None


def test_another_call_does_not_find_it(
    tools: dict[str, Tool], make_call: MakeCall, target: Path
) -> None:
    tools["write_file"].call_sync(make_call("c1"), WRITE)
    target.write_text(OLD)
    tools["write_file"].call_sync(make_call("c2"), WRITE)
    assert target.read_text() == NEW


def test_a_disk_that_refuses_the_staging_leaves_the_file_as_it_was(
    tools: dict[str, Tool], make_call: MakeCall, target: Path
) -> None:
    (target.parent.parent / "run" / "spill").write_text("a file in the way")
    result = tools["write_file"].call_sync(make_call(), WRITE)
    assert result.is_error
    assert "cannot stage the new content of 'f'" in result.text
    assert target.read_text() == OLD


def test_a_file_that_grew_too_large_to_edit_is_refused(make_call: MakeCall, target: Path) -> None:
    with target.open("wb") as file:
        file.truncate(staging.STAGED_BYTES_MAX + 1)
    with (
        locate(make_call().workdir, "f") as place,
        pytest.raises(ToolError, match="is larger than"),
    ):
        staging.content_at(place)


def test_a_sparse_file_of_a_terabyte_is_replaced_or_refused_without_reading_it(
    tools: dict[str, Tool], make_call: MakeCall, target: Path
) -> None:
    os.truncate(target, 1 << 40)
    refused = tools["edit_file"].call_sync(make_call("c2"), EDIT)
    assert "is larger than 16777216 bytes" in refused.text
    with locate(make_call().workdir, "f") as place:
        before = staging.digest_at(place)
        os.truncate(target, (1 << 40) + 1)
        assert staging.digest_at(place) != before
    assert tools["write_file"].call_sync(make_call(), WRITE).modified == ("f",)
    assert target.read_text() == NEW
