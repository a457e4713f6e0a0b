"""What the documents show is run: their Python blocks, with the files they show beside them.

A fenced block whose info string names a file (```` ```toml replies.toml ````) becomes that file.
The Python blocks of a document run as one program. A ``text`` block after one is what it prints.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^]]*\]\((?!\w+:|#)([^)#\s]+)")
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = ("tutorial", "how-to", "reference", "design")
EXECUTED = [
    ROOT / "README.md",
    *(file for folder in FOLDERS for file in sorted((ROOT / "docs" / folder).glob("*.md"))),
]


def run_document(text: str, directory: Path) -> tuple[str, str]:
    """Return what a document says its program prints, and what it prints in that directory."""
    program: list[str] = []
    expected: list[str] = []
    previous = ""
    for language, name, body in BLOCK.findall(text):
        if name:
            file = directory / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(body, encoding="utf-8")
        elif language == "python":
            program.append(body)
        elif language == "text" and previous == "python":
            expected.append(body)
        previous = language
    if not program:
        return "", ""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(program)],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()
    return "".join(expected), done.stdout.decode()


@pytest.mark.parametrize("document", EXECUTED, ids=lambda path: path.name)
def test_a_document_does_what_it_shows(document: Path, tmp_path: Path) -> None:
    expected, printed = run_document(document.read_text(encoding="utf-8"), tmp_path)
    if expected:
        assert printed == expected


def broken_links(document: Path) -> list[str]:
    """Return the relative links of a document that lead nowhere."""
    text = BLOCK.sub("", document.read_text(encoding="utf-8"))
    return [link for link in LINK.findall(text) if not (document.parent / link).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_links_of_a_document_lead_somewhere(document: Path) -> None:
    assert broken_links(document) == []


def test_planted_faults_are_found(tmp_path: Path) -> None:
    shown = "```toml a.toml\nx = 1\n```\n```python\nprint(open('a.toml').read(), end='')\n```\n"
    assert run_document(shown + "```text\nx = 2\n```\n", tmp_path) == ("x = 2\n", "x = 1\n")
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run_document("```python\n1 / 0\n```\n", tmp_path)
    document = tmp_path / "a.md"
    document.write_text("[a](a.md) [b](gone.md#x) [c](https://example.org) [d](#d)\n")
    assert broken_links(document) == ["gone.md"]
