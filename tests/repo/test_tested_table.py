"""The table of what is tested names tests that exist, and misses no line that it should have."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "design" / "what-is-tested.md"
LINE = re.compile(r"^\| ([UERGB]\d+) \| (.+?) \| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"`([^`:]+)::([^`]+)`")
LABELS = {
    "U": (1, 2, 5, 6, 7, 8, 9, 11, 14, 15, 16, 19, 20, 21, 22, 27, 32, 34, 35, 37, 40, 41, 42, 44,
          46, 48, 50, 51, 52, 54, 55, 57, 59, 61, 63, 64, 67, 68, 69, 71),
    "E": (1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 14, 16, 17, 18, 20, 22, 23, 25, 26, 28, 29, 30, 32, 34,
          37, 38, 39, 41, 42),
    "R": (1, 2, 3, 4, 5, 8, 9, 10, 11, 13, 15),
    "G": (1, 2, 3, 5, 7, 9, 10, 11, 12, 19, 21, 23, 24),
    "B": tuple(range(1, 18)),
}  # fmt: skip
"""The lines that the table must have. A line is added here with its row; none is taken away."""


def defined_in(file: Path) -> set[str]:
    """Names of the tests that a file defines."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, kinds)}


def faults(text: str, root: Path, expected: set[str]) -> list[str]:
    """What is wrong with a table: lines that are missing or twice, tests that are not there."""
    found: list[str] = []
    seen: list[str] = []
    for label, _, named in LINE.findall(text):
        seen.append(label)
        tests = NAMED.findall(named)
        if not tests or NAMED.sub("", named).strip():
            found.append(f"{label} does not name its tests as `path::name`")
        for path, name in tests:
            file = root / path
            if not file.is_file():
                found.append(f"{label}: there is no {path}")
            elif not name.startswith("test_") or name not in defined_in(file):
                found.append(f"{label}: {path} has no {name}")
    found += [f"{label} stands twice" for label in sorted({x for x in seen if seen.count(x) > 1})]
    found += [f"{label} is missing" for label in sorted(expected - set(seen))]
    found += [f"{label} is not expected" for label in sorted(set(seen) - expected)]
    return found


def test_every_line_of_the_table_names_tests_that_exist() -> None:
    expected = {f"{kind}{number}" for kind, numbers in LABELS.items() for number in numbers}
    assert faults(TABLE.read_text(encoding="utf-8"), ROOT, expected) == []


def test_planted_faults_are_found(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_one(): ...\nasync def test_two(): ...\n")
    sound = "| U1 | it does | `test_a.py::test_one` `test_a.py::test_two` |\n"
    assert faults(sound, tmp_path, {"U1"}) == []
    planted = sound + (
        "| U1 | again | `test_a.py::test_one` |\n"
        "| U2 | no such test | `test_a.py::test_three` |\n"
        "| U3 | no such file | `test_b.py::test_one` |\n"
        "| U4 | no test | by looking at it |\n"
    )
    assert faults(planted, tmp_path, {"U1", "U2", "U3", "U5"}) == [
        "U2: test_a.py has no test_three",
        "U3: there is no test_b.py",
        "U4 does not name its tests as `path::name`",
        "U1 stands twice",
        "U5 is missing",
        "U4 is not expected",
    ]
