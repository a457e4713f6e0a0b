"""Paths that a model names, held below the workdir whatever symlinks say or become.

A path is walked one name at a time with folder descriptors, each opened without following links.
Links are read and walked by hand, so ``..`` and absolute targets are judged where they really
lead, and a folder swapped for a link between check and use is an error, not a way out. What is
opened is what was walked. Hard links and mounts made by someone with access to the workdir are
outside of this.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Final

from msgspec import Struct

from leviath.components.clean import clean_text
from leviath.components.errors import ToolError

LINKS_MAX: Final = 40
"""Links followed for one path: what Linux allows."""
PATH_BYTES_MAX: Final = 4096
FOLDERS_MAX: Final = 128
"""Each folder on the way holds a descriptor while a path is walked."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MEANINGS: Final = {
    errno.ENOENT: "does not exist",
    errno.ENOTDIR: "is not a folder",
    errno.EISDIR: "is a folder",
    errno.EACCES: "permission denied",
    errno.EPERM: "not permitted",
    errno.EROFS: "the file system is read-only",
    errno.ENOSPC: "no space is left on the disk",
    errno.EDQUOT: "the disk quota is used up",
    errno.ELOOP: "was replaced by a link while it was opened",
    errno.ENAMETOOLONG: "the name is too long",
}


class Place(Struct, frozen=True):
    """Where a path leads: a name in an open folder. The name itself is no link, or nothing."""

    folder: int
    """Descriptor of the folder; open as long as the ``locate`` block that gave it."""
    name: str
    """A single name; ``.`` for the workdir itself."""
    path: str
    """The path below the workdir without links and dots; ``.`` for the workdir itself."""


def tool_error(action: str, path: str, error: OSError) -> ToolError:
    """Says why ``action`` failed on ``path``, in words that are the same on each platform."""
    code = errno.errorcode.get(error.errno or 0, "EIO")
    meaning = _MEANINGS.get(error.errno or 0, "the system refused")
    return ToolError(f"cannot {action} {path!r}: {meaning} ({code})", errno=error.errno)


@contextmanager
def locate(workdir: str, path: str, *, make_folders: bool = False) -> Generator[Place]:
    """Walk ``path``, relative or absolute, and give the place it leads to below ``workdir``.

    The last name need not exist. With ``make_folders`` missing folders on the way are made. Raises
    ToolError when the path leaves the workdir, is no path, or cannot be walked.
    """
    names = _names(path)
    try:
        root = os.open(workdir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise tool_error("open the working folder", workdir, error) from None
    walk = _Walk(root, workdir, path, make_folders=make_folders)
    try:
        yield walk.to(names)
    finally:
        walk.close()


def open_file(place: Place) -> int:
    """Descriptor for reading the regular file at ``place``.

    Raises ToolError for what is no regular file, without waiting for a pipe's other end.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(place.name, flags, dir_fd=place.folder)
    except OSError as error:
        raise tool_error("read", place.path, error) from None
    kind = stat.S_IFMT(os.fstat(fd).st_mode)
    if kind != stat.S_IFREG:
        os.close(fd)
        what = "a folder; use list_dir" if kind == stat.S_IFDIR else "not a regular file"
        raise ToolError(f"cannot read {place.path!r}: it is {what}")
    return fd


def open_folder(place: Place) -> int:
    """Descriptor of the folder at ``place``. Raises ToolError."""
    try:
        return os.open(place.name, _FOLDER, dir_fd=place.folder)
    except OSError as error:
        raise tool_error("list", place.path, error) from None


def _names(path: str) -> list[str]:
    try:
        size_bytes = len(path.encode())
    except UnicodeEncodeError:
        raise ToolError(f"{path!r} is no path: it holds half a character") from None
    if not path or "\0" in path or size_bytes > PATH_BYTES_MAX:
        raise ToolError(
            f"{path[:80]!r} is no path: it must have 1 to {PATH_BYTES_MAX} bytes and no NUL"
        )
    return path.split("/")


class _Walk:
    """One walk. ``_folders`` are the open folders from the workdir down, ``_trail`` their names."""

    def __init__(self, root: int, workdir: str, path: str, *, make_folders: bool) -> None:
        self._folders = [root]
        self._trail: list[str] = []
        self._workdir = workdir
        self._path = path
        self._make_folders = make_folders
        self._links_left = LINKS_MAX

    def close(self) -> None:
        for fd in self._folders:
            os.close(fd)
        self._folders.clear()

    def to(self, names: list[str]) -> Place:
        """Walk ``names``; the first is empty when they start at the file system's root."""
        pending = self._from_start(names)
        while pending:
            name = pending.pop()
            if name in ("", "."):
                continue
            if name == "..":
                self._up()
                continue
            target = self._link_target(name)
            if target is not None:
                pending.extend(self._from_start(target.split("/")))
            elif any(rest not in ("", ".") for rest in pending):
                self._down(name)
            else:
                return Place(self._folders[-1], name, "/".join([*self._trail, name]))
        return self._here()

    def _here(self) -> Place:
        return Place(self._folders[-1], ".", "/".join(self._trail) or ".")

    def _from_start(self, names: list[str]) -> list[str]:
        """``names`` as a stack, last name first; an absolute path is cut to what is below."""
        if names[0] or len(names) == 1:
            return names[::-1]
        roots = (os.path.abspath(self._workdir), os.path.realpath(self._workdir))
        for start in dict.fromkeys(roots):
            above = [part for part in start.split("/") if part]
            below = _after(above, names)
            if below is not None:
                while len(self._folders) > 1:
                    self._up()
                return below[::-1]
        raise self._outside()

    def _up(self) -> None:
        if not self._trail:
            raise self._outside()
        os.close(self._folders.pop())
        self._trail.pop()

    def _down(self, name: str) -> None:
        if len(self._folders) > FOLDERS_MAX:
            raise ToolError(
                f"cannot open {self._path[:80]!r}: more than {FOLDERS_MAX} folders deep"
            )
        try:
            self._folders.append(self._open_folder(name))
        except OSError as error:
            raise tool_error("open", "/".join([*self._trail, name]), error) from None
        self._trail.append(name)

    def _open_folder(self, name: str) -> int:
        above = self._folders[-1]
        try:
            return os.open(name, _FOLDER, dir_fd=above)
        except FileNotFoundError:
            if not self._make_folders:
                raise
        with suppress(FileExistsError):  # another call of the same run may have made it just now
            os.mkdir(name, dir_fd=above)
        return os.open(name, _FOLDER, dir_fd=above)

    def _link_target(self, name: str) -> str | None:
        """What the link ``name`` says, or None when it is no link or nothing at all."""
        try:
            target = os.readlink(name, dir_fd=self._folders[-1])
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return None
            raise tool_error("open", "/".join([*self._trail, name]), error) from None
        self._links_left -= 1
        if self._links_left < 0:
            raise ToolError(f"cannot open {self._path!r}: more than {LINKS_MAX} links on the way")
        if clean_text(target) != target:
            raise ToolError(f"cannot open {self._path!r}: a link on the way is not in UTF-8")
        return target

    def _outside(self) -> ToolError:
        return ToolError(
            f"{self._path!r} leads outside of the working folder; name a path inside of it"
        )


def _after(above: list[str], names: list[str]) -> list[str] | None:
    """What follows the names ``above`` in ``names``, or None when they are not its start."""
    rest = iter(range(len(names)))
    for part in above:
        index = next((i for i in rest if names[i] not in ("", ".")), None)
        if index is None or names[index] != part:
            return None
    return names[next(rest, len(names)) :]
