"""No path, link or swap leads out of the workdir."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leviath.components.errors import ToolError
from leviath.engine.toolbox.confine import FOLDERS_MAX, locate, open_file, open_folder
from leviath.engine.tools import Tool, ToolCall, builtin_tools

SECRET = "the-secret-outside"


def where(root: Path, path: str) -> str:
    with locate(str(root), path) as place:
        return place.path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workdir with a/b/file, and a secret beside the workdir."""
    (tmp_path / "work" / "a" / "b").mkdir(parents=True)
    (tmp_path / "work" / "a" / "b" / "file").write_text("inside")
    (tmp_path / "secret").write_text(SECRET)
    return tmp_path / "work"


def test_dots_and_absolute_paths_that_stay_inside_are_fine(root: Path) -> None:
    assert where(root, "a/../a/./b//file") == "a/b/file"
    assert where(root, f"{root}/a/b/file") == "a/b/file"
    assert where(root, f"//{root}//a/b/..") == "a"
    assert where(root, str(root)) == "."
    assert where(root, "a/..") == "."
    assert where(root, "new") == "new"


@pytest.mark.parametrize(
    "path",
    ["..", "../secret", "a/../../secret", "/etc/passwd", "/", "a/b/../../../work/a", "/a/b/file"],
)
def test_paths_that_leave_are_refused(root: Path, path: str) -> None:
    with pytest.raises(ToolError, match="outside of the working folder"):
        where(root, path)


@pytest.mark.parametrize("path", ["", "a\0b", "\ud83d", "x" * 5000])
def test_what_is_no_path_is_refused(root: Path, path: str) -> None:
    with pytest.raises(ToolError, match="is no path"):
        where(root, path)


def test_a_neighbour_whose_name_starts_like_the_workdir_is_outside(root: Path) -> None:
    (root.parent / "work2").mkdir()
    with pytest.raises(ToolError, match="outside"):
        where(root, f"{root}2/x")


def test_links_are_followed_as_long_as_they_stay_inside(root: Path) -> None:
    (root / "rel").symlink_to("a/b")
    (root / "abs").symlink_to(root / "a")
    (root / "a" / "up").symlink_to("../rel/file")
    (root / "out").symlink_to("..")
    (root / "way-out").symlink_to("/etc")
    assert where(root, "rel/file") == "a/b/file"
    assert where(root, "abs/up") == "a/b/file"
    for path in ("out", "out/secret", "way-out/passwd", "abs/../../secret"):
        with pytest.raises(ToolError, match="outside"):
            where(root, path)


def test_a_workdir_reached_through_a_link_takes_both_of_its_names(root: Path) -> None:
    alias = root.parent / "alias"
    alias.symlink_to(root)
    assert where(alias, f"{alias}/a") == "a"
    assert where(alias, f"{root}/a") == "a"


def test_links_in_a_circle_end_in_an_error(root: Path) -> None:
    (root / "x").symlink_to("y")
    (root / "y").symlink_to("x")
    with pytest.raises(ToolError, match="more than 40 links"):
        where(root, "x/z")


def test_a_path_through_too_many_folders_is_refused(root: Path) -> None:
    path = "/".join(["d"] * (FOLDERS_MAX + 2))
    with (
        pytest.raises(ToolError, match="folders deep"),
        locate(str(root), path, make_folders=True),
    ):
        pass


def test_a_link_that_is_not_utf8_is_refused(root: Path) -> None:
    os.symlink(b"\xff", os.fsencode(root / "odd"))
    with pytest.raises(ToolError, match="not in UTF-8"):
        where(root, "odd")


def test_a_missing_folder_and_a_file_as_folder_are_named(root: Path) -> None:
    with pytest.raises(ToolError, match=r"cannot open 'gone': does not exist \(ENOENT\)"):
        where(root, "gone/x")
    with pytest.raises(ToolError, match=r"cannot open 'a/b/file': is not a folder \(ENOTDIR\)"):
        where(root, "a/b/file/x")
    with pytest.raises(ToolError, match="cannot open the working folder"):
        where(root / "gone", "x")


def test_a_file_swapped_for_a_link_after_the_walk_is_not_opened(root: Path) -> None:
    with locate(str(root), "a/b/file") as place:
        (root / "a" / "b" / "file").unlink()
        (root / "a" / "b" / "file").symlink_to(root.parent / "secret")
        with pytest.raises(ToolError, match="replaced by a link"):
            open_file(place)


def test_a_folder_swapped_for_a_link_after_the_walk_changes_nothing(root: Path) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "file").write_text(SECRET)
    with locate(str(root), "a/b/file") as place:
        (root / "a" / "b").rename(root / "a" / "moved")
        (root / "a" / "b").symlink_to(outside)
        fd = open_file(place)
        assert os.read(fd, 100) == b"inside"
        os.close(fd)


def test_what_is_no_regular_file_is_refused_without_waiting(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with locate(str(root), "pipe") as place, pytest.raises(ToolError, match="not a regular file"):
        open_file(place)
    with locate(str(root), "a") as place, pytest.raises(ToolError, match="use list_dir"):
        open_file(place)
    with locate(str(root), "pipe") as place, pytest.raises(ToolError, match="is not a folder"):
        open_folder(place)


def test_walks_leave_no_descriptor_open(root: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    (root / "out").symlink_to("a/b/../../..")
    for path in ("a/b/file", "a/b/file/x", "out/secret", "gone/x", f"{root}/a/b"):
        try:
            where(root, path)
        except ToolError:
            continue
    assert len(os.listdir("/dev/fd")) == before


NAMES = st.sampled_from(["a", "b", "c"])
PLACES = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
STEPS = st.sampled_from(["a", "b", "c", "..", ".", "", "secret", "outside"])
PATHS = st.lists(STEPS, min_size=1, max_size=6).map("/".join)
ROOTS = st.sampled_from(["{root}/", "{above}/", "/"])
TARGETS = (
    st.sampled_from(["..", "../..", "../secret", "../outside", "{above}/secret", "{above}/outside"])
    | PATHS
    | st.tuples(ROOTS, PATHS).map("".join)
)
USED = (
    PLACES
    | st.tuples(PLACES, st.sampled_from(["/secret", "/a", "/.."])).map("".join)
    | st.tuples(PLACES, st.just("/"), PATHS).map("".join)
    | TARGETS
)


def grow(root: Path, kind: str, place: str, target: str) -> None:
    """Put a folder, file or link at ``place``, unless it is taken or a link leads out."""
    spot = root / place
    if Path(os.path.realpath(spot.parent)).is_relative_to(root) and not os.path.lexists(spot):
        try:
            spot.parent.mkdir(parents=True, exist_ok=True)
            if kind == "folder":
                spot.mkdir()
            elif kind == "file":
                spot.write_text("inside")
            else:
                spot.symlink_to(target.format(root=root, above=root.parent))
        except OSError:
            return


def outside(above: Path) -> dict[str, str]:
    """Everything beside the workdir: path and content."""
    return {
        str(path.relative_to(above)): path.read_text() if path.is_file() else ""
        for path in above.rglob("*")
        if not path.is_relative_to(above / "work") and not path.is_relative_to(above / "run")
    }


def use(made: Tool, call: ToolCall, **arguments: object) -> str:
    return made.call_sync(call, arguments).text


@settings(max_examples=60, deadline=None)
@given(
    tree=st.lists(
        st.tuples(st.sampled_from(["folder", "file", "link", "link"]), PLACES, TARGETS), max_size=8
    ),
    paths=st.lists(USED, min_size=1, max_size=6),
)
def test_no_tree_of_links_lets_a_tool_read_or_write_outside(
    tree: list[tuple[str, str, str]], paths: list[str]
) -> None:
    read_file, list_dir, write_file, edit_file, _ = builtin_tools()
    with tempfile.TemporaryDirectory() as made:
        above = Path(made).resolve()
        root = above / "work"
        root.mkdir()
        (above / "run").mkdir()
        (above / "outside").mkdir()
        for name in ("secret", "outside/secret", "outside/a"):
            (above / name).write_text(SECRET)
        for kind, place, target in tree:
            grow(root, kind, place, target)
        before = outside(above)
        for number, raw in enumerate(paths):
            path = raw.format(root=root, above=above)
            call = ToolCall(
                run_id="r", call_id=f"c{number}", tool="t", attempt=1,
                idempotency_key=f"k{number}", deadline_ms=1000,
                workdir=str(root), spill_dir=str(above / "run" / "spill"),
            )  # fmt: skip
            assert SECRET not in use(read_file, call, path=path)
            assert f"  {len(SECRET)} bytes" not in use(list_dir, call, path=path)
            use(edit_file, call, path=path, old=SECRET, new="broken")
            use(write_file, call, path=path, content="written")
        assert outside(above) == before
