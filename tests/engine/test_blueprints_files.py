"""Manifests as files: what loads, what is refused, and that the examples are sound."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from leviath.components.errors import BlueprintError
from leviath.engine import limits
from leviath.engine.blueprints import (
    MANIFEST_NAME,
    check_spawnable,
    lint,
    load_blueprint,
    parse_blueprint,
)

EXAMPLES = Path(__file__).parents[2] / "examples" / "agents"


def manifest(folder: Path, data: bytes = b"[agent]\nname = 'x'\n") -> Path:
    file = folder / MANIFEST_NAME
    file.write_bytes(data)
    return file


def refused(path: Path | str) -> str:
    with pytest.raises(BlueprintError) as caught:
        load_blueprint(path)
    assert str(path) in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).faults == caught.value.faults
    return str(caught.value)


def test_a_file_its_folder_and_a_link_to_either_load_the_same(tmp_path: Path) -> None:
    home = tmp_path / "agent"
    home.mkdir()
    file = manifest(home)
    (tmp_path / "link").symlink_to(home)
    (tmp_path / "file").symlink_to(file)
    loaded = load_blueprint(file)
    assert loaded.path == home.resolve()
    assert loaded.blueprint.name == "x"
    for other in (home, tmp_path / "link", tmp_path / "file", str(home)):
        assert load_blueprint(other) == loaded


def test_the_source_digest_tells_an_edit_that_the_blueprint_does_not_show(tmp_path: Path) -> None:
    first = load_blueprint(manifest(tmp_path))
    second = load_blueprint(manifest(tmp_path, b"# edited\r\n[agent]\r\nname = 'x'\r\n"))
    assert first.blueprint == second.blueprint
    assert first.source_digest != second.source_digest
    assert len(first.source_digest) == 16


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"[agent]\nname = '\xff'", "byte 16 is not UTF-8"),
        (b"\xef\xbb\xbf[agent]", "byte order mark"),
        (b"[agent]\n\x00", "line 2 holds a NUL"),
        (b"#" * (limits.BLUEPRINT_BYTES_MAX + 1), "is longer than 256 KiB"),
        (b"[agent", "is not TOML"),
        (b"\xff\xfe[\x00", "byte 0 is not UTF-8"),
    ],
)
def test_bytes_that_are_no_manifest_are_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    assert reason in refused(manifest(tmp_path, data))


def test_the_longest_manifest_loads(tmp_path: Path) -> None:
    load_blueprint(manifest(tmp_path, b"#" * limits.BLUEPRINT_BYTES_MAX))


def test_a_text_beyond_the_limit_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(BlueprintError, match="is longer than 256 KiB"):
        parse_blueprint("[" * (limits.BLUEPRINT_BYTES_MAX + 1), where="test")


def test_paths_that_lead_to_no_manifest_are_refused(tmp_path: Path) -> None:
    assert "there is no such file" in refused(tmp_path)
    assert "there is no such file" in refused(tmp_path / "missing")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert "symlinks form a loop" in refused(loop)
    os.mkfifo(tmp_path / "fifo")
    assert "not a regular file" in refused(tmp_path / "fifo")
    assert "NUL" in refused(f"{tmp_path}/a\0b")
    (tmp_path / "file").touch()
    assert "Not a directory" in refused(tmp_path / "file" / "below")
    (tmp_path / MANIFEST_NAME).mkdir()
    assert "not a regular file" in refused(tmp_path)


@pytest.mark.parametrize("name", ["ticket-fixer", "summarise"])
def test_the_examples_are_sound_and_spawnable(name: str) -> None:
    blueprint = load_blueprint(EXAMPLES / name).blueprint
    assert blueprint.name == name
    assert lint(blueprint) == ()
    check_spawnable(blueprint)
