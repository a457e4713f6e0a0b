"""Reading, listing, writing and editing below the workdir."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from leviath.engine.limits import READ_SCAN_BYTES_MAX
from leviath.engine.toolbox.files import ENTRIES_MAX, READ_BYTES_MAX
from leviath.engine.tools import Tool, ToolCall, ToolResult

MakeCall = Callable[..., ToolCall]


@pytest.fixture
def work(tmp_path: Path, make_call: MakeCall) -> Path:
    return tmp_path / "work"


@pytest.fixture
def use(tools: dict[str, Tool], make_call: MakeCall) -> Callable[..., ToolResult]:
    """Calls a tool by name, each time as a new call."""
    count = iter(range(1000))

    def call(name: str, /, **arguments: object) -> ToolResult:
        return tools[name].call_sync(make_call(f"c{next(count)}"), arguments)

    return call


Use = Callable[..., ToolResult]


def test_read_gives_the_lines_asked_for_and_says_how_to_go_on(work: Path, use: Use) -> None:
    (work / "f").write_text("one\ntwo\nthree\nfour")
    assert use("read_file", path="f").text == "one\ntwo\nthree\nfour"
    part = use("read_file", path="f", offset_lines=1, limit_lines=2)
    assert part.text == "two\nthree\n\n[more lines follow; go on with offset_lines=3]"
    assert use("read_file", path="f", offset_lines=3, limit_lines=9).text == "four"
    assert use("read_file", path="f", offset_lines=9).text == "[the file has 4 lines]"
    (work / "none").write_text("")
    assert use("read_file", path="none").text == "[empty]"


def test_no_more_of_a_huge_file_is_looked_through_than_is_said(work: Path, use: Use) -> None:
    # 4 TiB of nothing behind text: to look through all of it would take the better part of an hour.
    with (work / "huge").open("wb") as file:
        file.write(b"text\n" * 4_000)
        file.truncate(2**42)
    text = use("read_file", path="huge", offset_lines=5_000).text
    assert f"not within the first {READ_SCAN_BYTES_MAX} bytes" in text
    assert "line 4001 is where they end" in text
    assert use("read_file", path="huge", offset_lines=3_999, limit_lines=1).text.startswith("text")
    text = use("read_file", path="huge", offset_lines=4_000).text
    assert text.endswith(
        f"[line 4001 is cut at {READ_BYTES_MAX} bytes; where it ends is not within the first "
        f"{READ_SCAN_BYTES_MAX} bytes of the file]"
    )


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("size", [1, 65_535, 65_536, 65_537, 200_000])
def test_lines_are_skipped_wherever_a_block_ends(work: Path, use: Use, size: int, end: str) -> None:
    lines = ["x" * (size - 1), "", "y" * size, "z"]
    (work / "f").write_text("\n".join(lines) + end)
    for at, line in enumerate(lines):
        text = use("read_file", path="f", offset_lines=at, limit_lines=1).text
        assert text.startswith(f"{line}\n"[:9] if at < 3 else line)
    assert use("read_file", path="f", offset_lines=4).text == "[the file has 4 lines]"
    assert use("read_file", path="f", offset_lines=99).text == "[the file has 4 lines]"


def test_a_long_file_read_in_parts_is_the_file(work: Path, use: Use) -> None:
    whole = "".join(f"line {number} {'x' * (number % 300)}\n" for number in range(2000))
    (work / "f").write_text(whole)
    parts: list[str] = []
    offset = 0
    while True:
        text = use("read_file", path="f", offset_lines=offset).text
        part, _, note = text.rpartition("\n[more lines follow; go on with offset_lines=")
        if not note.endswith("]"):
            parts.append(text)
            break
        parts.append(part)
        offset = int(note[:-1])
    assert len(parts) > 2
    assert "".join(parts) == whole


def test_a_line_longer_than_a_result_is_cut_and_skipped(work: Path, use: Use) -> None:
    (work / "f").write_text("x" * (3 * READ_BYTES_MAX) + "\nnext\n")
    result = use("read_file", path="f")
    assert result.text.startswith("x" * READ_BYTES_MAX + "\n[line 1 is cut at")
    assert result.text.endswith("go on with offset_lines=1]")
    assert result.spill is None
    assert use("read_file", path="f", offset_lines=1).text == "next\n"


def test_read_refuses_what_is_no_text_and_mends_half_characters(work: Path, use: Use) -> None:
    (work / "binary").write_bytes(b"\x7fELF\0\0")
    assert use("read_file", path="binary").text == "cannot read 'binary': it is no text (6 bytes)"
    (work / "latin").write_bytes(b"caf\xe9")
    assert use("read_file", path="latin").text == "caf\ufffd"
    missing = use("read_file", path="gone")
    assert missing.is_error
    assert missing.text == "cannot read 'gone': does not exist (ENOENT)"
    assert "Expected `int` >= 0" in use("read_file", path="latin", offset_lines=-1).text


def test_list_is_sorted_typed_and_bounded(work: Path, use: Use) -> None:
    assert use("list_dir").text == "[empty]"
    (work / "b").write_text("12345")
    (work / "a").mkdir()
    (work / "c").symlink_to("nowhere")
    (work / os.fsdecode(b"d\xff")).write_text("")
    assert use("list_dir", path=".").text == "a/\nb  5 bytes\nc@\nd\ufffd  0 bytes"
    for number in range(ENTRIES_MAX + 7):
        (work / "a" / f"{number:05}").touch()
    lines = use("list_dir", path="a").text.splitlines()
    assert lines[0] == "00000  0 bytes"
    assert lines[-1] == "[7 more entries are not shown]"
    assert len(lines) == ENTRIES_MAX + 1
    assert "is not a folder" in use("list_dir", path="b").text


def test_write_makes_folders_and_replaces_whole_files(work: Path, use: Use) -> None:
    result = use("write_file", path="x/y/../z/f", content="ä\n")
    assert result == ToolResult(text="wrote x/z/f (3 bytes)", modified=("x/z/f",))
    assert (work / "x" / "z" / "f").read_text() == "ä\n"
    (work / "x" / "z" / "f").chmod(0o750)
    assert use("write_file", path="x/z/f", content="new").text == "replaced x/z/f (3 bytes)"
    assert (work / "x" / "z" / "f").stat().st_mode & 0o777 == 0o750
    assert os.listdir(work / "x" / "z") == ["f"]


def test_a_new_file_has_the_mode_that_the_umask_leaves(work: Path, use: Use) -> None:
    (work / "usual").touch()
    use("write_file", path="f", content="x")
    assert (work / "f").stat().st_mode == (work / "usual").stat().st_mode


def test_write_goes_through_a_link_that_stays_inside(work: Path, use: Use) -> None:
    (work / "real").write_text("old")
    (work / "link").symlink_to("real")
    assert use("write_file", path="link", content="new").modified == ("real",)
    assert (work / "real").read_text() == "new"
    assert (work / "link").is_symlink()


@pytest.mark.parametrize("path", [".", "a", "new/", "pipe"])
def test_write_refuses_what_is_no_file(work: Path, use: Use, path: str) -> None:
    (work / "a").mkdir()
    os.mkfifo(work / "pipe")
    assert use("write_file", path=path, content="x").is_error
    assert sorted(os.listdir(work)) in (["a", "pipe"], ["a", "new", "pipe"])


def test_write_refuses_more_than_one_call_may_write(work: Path, use: Use) -> None:
    assert "more than the 16777216" in use("write_file", path="f", content="x" * 17_000_000).text
    assert os.listdir(work) == []


def test_edit_replaces_exactly_what_was_named(work: Path, use: Use) -> None:
    (work / "f").write_bytes(b"a = 1\r\nb = 1\r\n")
    result = use("edit_file", path="f", old="a = 1", new="a = 2")
    assert result == ToolResult(text="edited f (1 replaced)", modified=("f",))
    assert use("edit_file", path="f", old="=", new=":", count=2).text == "edited f (2 replaced)"
    assert (work / "f").read_bytes() == b"a : 2\r\nb : 1\r\n"


@pytest.mark.parametrize(
    ("old", "says"),
    [
        ("x", "occurs 2 times in 'f', not 1; give more of the text around it, or count=2"),
        ("gone", "does not occur in 'f'; read the file again"),
        ("x\ny", r"the lines of the file end in \r\n"),
        ("  y  ", "without the blanks around it, it does"),
        ("x  x", "with other blanks or line breaks it does"),
        ("", "the old text is empty"),
    ],
)
def test_an_edit_that_does_not_fit_says_why_and_changes_nothing(
    work: Path, use: Use, old: str, says: str
) -> None:
    (work / "f").write_bytes(b"x x\r\ny\r\n") if old != "x\ny" else None
    if old == "x\ny":
        (work / "f").write_bytes(b"x\r\ny\r\n")
    before = (work / "f").read_bytes()
    result = use("edit_file", path="f", old=old, new="z")
    assert result.is_error
    assert says in result.text
    assert (work / "f").read_bytes() == before


def test_edit_refuses_what_is_not_there_and_what_is_no_text(work: Path, use: Use) -> None:
    assert "use write_file" in use("edit_file", path="gone", old="a", new="b").text
    (work / "latin").write_bytes(b"caf\xe9")
    assert "no UTF-8 text" in use("edit_file", path="latin", old="c", new="b").text


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anything")
def test_write_leaves_a_read_only_file_alone(work: Path, use: Use) -> None:
    (work / "f").write_text("kept")
    (work / "f").chmod(0o444)
    assert "read-only" in use("write_file", path="f", content="new").text
    assert (work / "f").read_text() == "kept"
