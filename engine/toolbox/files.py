"""read_file, list_dir, write_file and edit_file: the files below the workdir, and nothing else."""

from __future__ import annotations

import heapq
import os
import stat
from typing import Annotated, BinaryIO, Final

import msgspec

from leviath.components.clean import clean_text
from leviath.components.errors import ToolError
from leviath.engine.limits import KIB, READ_SCAN_BYTES_MAX, TOOL_RESULT_INLINE_BYTES_MAX
from leviath.engine.toolbox import staging
from leviath.engine.toolbox.call import ToolCall, ToolResult
from leviath.engine.toolbox.confine import Place, locate, open_file, open_folder, tool_error
from leviath.engine.tools import tool

ENTRIES_MAX: Final = 1000
"""Entries of one listing; a model asks for a folder further down instead of a longer list."""
READ_BYTES_MAX: Final = TOOL_RESULT_INLINE_BYTES_MAX - KIB
"""What one read gives, less room for the note: the file itself is the spill file of the rest."""
_SNIFF_BYTES: Final = 8 * KIB
_SKIP_BYTES: Final = 64 * KIB
"""What is read at a time of lines that are skipped."""

_PATH = "Path of the file, relative to the working folder."
Natural = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]


@tool(effect="pure")
def read_file(
    call: ToolCall,
    path: Annotated[str, _PATH],
    offset_lines: Annotated[Natural, "Lines to skip."] = 0,
    limit_lines: Annotated[Positive | None, "Lines to read; all when left out."] = None,
) -> ToolResult:
    """Read a text file of the working folder. Long files come in parts; it says how to go on."""
    with locate(call.workdir, path) as place, open(open_file(place), "rb") as file:
        _refuse_binary(file, place)
        return ToolResult(text=_read_lines(file, offset_lines, limit_lines))


@tool(effect="pure")
def list_dir(
    call: ToolCall,
    path: Annotated[str, "Path of the folder, relative to the working folder."] = ".",
) -> ToolResult:
    """List a folder of the working folder, sorted by name. Folders end in /, links in @."""
    with locate(call.workdir, path) as place:
        folder = open_folder(place)
        try:
            names = os.listdir(folder)
            shown = heapq.nsmallest(ENTRIES_MAX, names)
            lines = [_entry_line(folder, name) for name in shown]
        except OSError as error:
            raise tool_error("list", place.path, error) from None
        finally:
            os.close(folder)
    if len(names) > len(shown):
        lines.append(f"[{len(names) - len(shown)} more entries are not shown]")
    return ToolResult(text="\n".join(lines) or "[empty]")


@tool(effect="idempotent", modifies=True)
def write_file(
    call: ToolCall,
    path: Annotated[str, _PATH],
    content: Annotated[str, "The whole new content of the file."],
) -> ToolResult:
    """Write a text file of the working folder: a new one, or the whole content of an old one."""
    data = clean_text(content).encode()
    with locate(call.workdir, path, make_folders=True) as place:
        record = staging.staged(call)
        if record is not None:
            staging.settle(call, place, record)
            return _written(place, record)
        old = _digest_before(place, path)
        note = f"{'wrote' if old == '' else 'replaced'} {place.path} ({len(data)} bytes)"
        return _replace(call, place, old, data, note)


@tool(effect="idempotent", modifies=True)
def edit_file(
    call: ToolCall,
    path: Annotated[str, _PATH],
    old: Annotated[str, "The text to replace, exactly as it stands in the file."],
    new: Annotated[str, "The text to put in its place."],
    count: Annotated[Positive, "How many times the old text occurs; all are replaced."] = 1,
) -> ToolResult:
    """Replace a text in a file of the working folder. Changes nothing unless it is found."""
    with locate(call.workdir, path) as place:
        record = staging.staged(call)
        if record is not None:
            staging.settle(call, place, record)
            return _written(place, record)
        _digest_before(place, path)
        content = staging.content_at(place)
        if content is None:
            raise ToolError(f"cannot edit {place.path!r}: it does not exist; use write_file")
        data = _edited(place, content, clean_text(old), clean_text(new), count)
        note = f"edited {place.path} ({count} replaced)"
        return _replace(call, place, staging.digest_of(content), data, note)


def _refuse_binary(file: BinaryIO, place: Place) -> None:
    if b"\0" in file.read(_SNIFF_BYTES):
        size_bytes = os.fstat(file.fileno()).st_size
        raise ToolError(f"cannot read {place.path!r}: it is no text ({size_bytes} bytes)")
    file.seek(0)


def _read_lines(file: BinaryIO, offset_lines: int, limit_lines: int | None) -> str:
    """The lines asked for, as many as fit, with a note when the file goes on after them."""
    number, is_cut = _skip_lines(file, offset_lines)
    if is_cut:
        return (
            f"[line {offset_lines + 1} is not within the first {READ_SCAN_BYTES_MAX} bytes of the "
            f"file, and no more are looked through: line {number + 1} is where they end]"
        )
    if number < offset_lines:
        return f"[the file has {number} lines]"
    end = None if limit_lines is None else offset_lines + limit_lines
    kept: list[bytes] = []
    room = READ_BYTES_MAX
    while number != end:
        line = file.readline(room + 1)
        if len(line) > room:
            return _cut_read(file, kept, line, number)
        if not line:
            return _text(kept) or ("[empty]" if number == 0 else f"[the file has {number} lines]")
        kept.append(line)
        room -= len(line)
        number += 1
    more = f"\n[more lines follow; go on with offset_lines={number}]" if file.read(1) else ""
    return _text(kept) + more


def _cut_read(file: BinaryIO, kept: list[bytes], line: bytes, number: int) -> str:
    """What fits when ``line``, the start of line ``number``, does not."""
    if kept:
        return f"{_text(kept)}\n[more lines follow; go on with offset_lines={number}]"
    more = ""
    if not line.endswith(b"\n") and not _skip_rest(file):
        more = f"; where it ends is not within the first {READ_SCAN_BYTES_MAX} bytes of the file"
    elif file.read(1):
        more = f"; go on with offset_lines={number + 1}"
    return f"{_text([line[:-1]])}\n[line {number + 1} is cut at {READ_BYTES_MAX} bytes{more}]"


def _text(lines: list[bytes]) -> str:
    return b"".join(lines).decode(errors="replace")


def _skip_lines(file: BinaryIO, count: int) -> tuple[int, bool]:
    """Move behind that many lines: how many there were, and whether no more are looked through."""
    number, at, ends_open = 0, 0, False
    while number < count:
        if at >= READ_SCAN_BYTES_MAX:
            return number, True
        block = file.read(_SKIP_BYTES)
        if not block:
            return number + ends_open, False
        ends = block.count(b"\n")
        if number + ends >= count:
            end = -1
            for _ in range(count - number):
                end = block.index(b"\n", end + 1)
            file.seek(at + end + 1)
            return count, False
        number += ends
        at += len(block)
        ends_open = not block.endswith(b"\n")
    return number, False


def _skip_rest(file: BinaryIO) -> bool:
    """Read to the end of the line in small parts; False where no more is looked through."""
    part = b"."
    while part and not part.endswith(b"\n"):
        if file.tell() >= READ_SCAN_BYTES_MAX:
            return False
        part = file.readline(_SKIP_BYTES)
    return True


def _entry_line(folder: int, name: str) -> str:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:  # removed since the names were read
        return clean_text(name)
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        return f"{clean_text(name)}/"
    if kind == stat.S_IFLNK:
        return f"{clean_text(name)}@"
    return f"{clean_text(name)}  {status.st_size} bytes"


def _digest_before(place: Place, path: str) -> str:
    """Digest of the file to be replaced, "" for none. Raises ToolError when it must not be."""
    if place.name == "." or path.endswith("/"):
        raise ToolError(f"cannot write {path!r}: it is a folder; name a file in it")
    digest = staging.digest_at(place)
    # A rename asks for no permission on the file it replaces; a file made read-only means it.
    if digest and not os.access(place.name, os.W_OK, dir_fd=place.folder):
        raise ToolError(f"cannot write {place.path!r}: the file is read-only")
    return digest


def _edited(place: Place, content: bytes, old: str, new: str, count: int) -> bytes:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise ToolError(f"cannot edit {place.path!r}: it is no UTF-8 text") from None
    if not old:
        raise ToolError("the old text is empty; give the text to replace, or use write_file")
    found = text.count(old)
    if found == count:
        return text.replace(old, new).encode()
    if found:
        raise ToolError(
            f"the old text occurs {found} times in {place.path!r}, not {count}; give more of the "
            f"text around it, or count={found} to replace all"
        )
    raise ToolError(f"the old text does not occur in {place.path!r}{_near_miss(text, old)}")


def _near_miss(text: str, old: str) -> str:
    """What may be wrong with an old text that was not found."""
    if "\r\n" in text and old.replace("\r\n", "\n").replace("\n", "\r\n") in text:
        return "; the lines of the file end in \\r\\n"
    if old.strip() and old.strip() in text:
        return "; without the blanks around it, it does: give them as they stand in the file"
    if " ".join(old.split()) in " ".join(text.split()):
        return "; with other blanks or line breaks it does: give them as they stand in the file"
    return "; read the file again and give the text exactly as it stands there"


def _replace(call: ToolCall, place: Place, old: str, data: bytes, note: str) -> ToolResult:
    if len(data) > staging.STAGED_BYTES_MAX:
        raise ToolError(
            f"cannot write {place.path!r}: {len(data)} bytes are more than the "
            f"{staging.STAGED_BYTES_MAX} that one call may write"
        )
    record = staging.Record(place.path, old, staging.digest_of(data), note)
    staging.replace_file(call, place, record, data)
    return _written(place, record)


def _written(place: Place, record: staging.Record) -> ToolResult:
    return ToolResult(text=record.note, modified=(place.path,))
