"""What is committed is about the product: no place on somebody's machine, no host of an index."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Written so that this file does not find itself.
BANNED = {
    "a path of one machine": re.compile(r"(?<![\w.])/(?:root|work/[m]ain|work/[s]hared)(?=/|\b)"),
    "the host of a package index": re.compile(
        r"[p]ypi\.org|[p]ythonhosted|[n]pmjs\.|--index-[u]rl"
    ),
    "an unfinished thought": re.compile(r"\b(?:[T]ODO|[F]IXME|[X]XX)\b"),
    "a conflict": re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE),
}
PIN = re.compile(
    r"^[a-z0-9-]+==[^ ]+ (?:;[^\\]*)?\\\n(?:    --hash=sha256:[0-9a-f]{64}[ \\]*\n)+", re.MULTILINE
)


def tracked(root: Path) -> list[Path]:
    """Return the files that git knows below root, links aside."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True
    ).stdout.decode()
    files = [root / name for name in listed.split("\0") if name]
    return [file for file in files if file.is_file() and not file.is_symlink()]


def text_faults(root: Path) -> list[str]:
    """Return ``path: what (the words)`` for every banned text of a tracked file."""
    faults: list[str] = []
    for file in tracked(root):
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # data
        for what, pattern in BANNED.items():
            found = pattern.search(text)
            if found and not (file.name == "Makefile" and found[0].startswith("--")):
                faults.append(f"{file.relative_to(root)}: {what} ({found[0]})")
    return faults


def requirement_faults(text: str) -> list[str]:
    """Return the lines of a requirements file that are not a pin with hashes."""
    without = PIN.sub("", text)
    return [line for line in without.splitlines() if line and not line.lstrip().startswith("#")]


def test_tracked_files_are_about_the_product() -> None:
    assert text_faults(ROOT) == []


@pytest.mark.parametrize("name", ["runtime", "test", "dev"])
def test_every_requirement_is_pinned_with_hashes(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    assert requirement_faults(text) == []
    assert len(PIN.findall(text)) >= 4


def test_planted_text_is_found(tmp_path: Path) -> None:
    planted = {
        "path.md": "see /ro" + "ot/x",
        "host.txt": "https://py" + "pi.org/simple",
        "thought.py": "# TO" + "DO later",
        "merge.py": "<<<" + "<<<< ours",
        "fine.md": "/rooted and a TODOs list",
    }
    for name, text in planted.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for command in (["git", "init", "-q"], ["git", "add", "."]):
        subprocess.run(command, cwd=tmp_path, check=True)
    found = [fault.split(":")[0] for fault in text_faults(tmp_path)]
    assert sorted(found) == ["host.txt", "merge.py", "path.md", "thought.py"]


def test_a_planted_requirement_is_found() -> None:
    pin = "a-b==1.0 ; os_name == 'nt' \\\n    --hash=sha256:" + "0" * 64 + "\n    # via c\n"
    assert requirement_faults(pin) == []
    assert requirement_faults(pin + "d==1.0\n") == ["d==1.0"]
    assert requirement_faults("e>=1 \\\n    --hash=sha256:" + "0" * 64 + "\n") != []
