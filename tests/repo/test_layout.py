"""The top-level folders install as leviath.<folder>; every place that lists them agrees."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOT_PACKAGES = frozenset({"src", "tests", "bench", "docs", "examples"})


def packages(root: Path) -> set[str]:
    """Return the top-level folders with Python files, tests and scripts aside."""
    return {
        entry.name
        for entry in root.iterdir()
        if entry.is_dir()
        and not entry.name.startswith(".")
        and entry.name not in NOT_PACKAGES
        and any(entry.glob("*.py"))
    }


def layout_faults(root: Path) -> list[str]:
    """Return what disagrees about the packages of that tree."""
    settings: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    build = settings["tool"]["hatch"]["build"]
    sources = build["targets"]["wheel"]["sources"]
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    layered = {name.strip() for layer in layers for name in layer.split("|")}
    banned = settings["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    faults: list[str] = []
    for name in sorted(packages(root)):
        link = root / "src" / "leviath" / name
        if not (root / name / "__init__.py").is_file():
            faults.append(f"{name}/ has no __init__.py")
        if name not in build["only-include"]:
            faults.append(f"{name} is missing from tool.hatch.build.only-include")
        if sources.get(name) != f"leviath/{name}":
            faults.append(f"{name} is missing from the wheel's sources")
        if name not in layered:
            faults.append(f"{name} has no layer in the import contract")
        if name not in banned:
            faults.append(f"{name} may still be imported under its folder's name (ruff banned-api)")
        if not link.is_symlink() or str(link.readlink()) != f"../../{name}":
            faults.append(f"src/leviath/{name} is not a link to ../../{name}")
    faces = {file.name for file in (root / "src" / "leviath").glob("*.py")} - {"__init__.py"}
    for name in sorted(faces):
        if f"src/leviath/{name}" not in build["only-include"]:
            faults.append(f"src/leviath/{name} is missing from tool.hatch.build.only-include")
        if name.removesuffix(".py") not in layered:
            faults.append(f"src/leviath/{name} has no layer in the import contract")
        tree = ast.parse((root / "src" / "leviath" / name).read_text(encoding="utf-8"))
        if [type(node) for node in tree.body] != [ast.Expr, ast.ImportFrom]:
            faults.append(f"src/leviath/{name} is more than a docstring and one import")
    links = sorted((root / "src" / "leviath").iterdir())
    dangling = [link.name for link in links if link.is_symlink() and not link.exists()]
    return faults + [f"src/leviath/{name} leads nowhere" for name in dangling]


def test_every_place_that_lists_the_packages_agrees() -> None:
    assert layout_faults(ROOT) == []
    assert packages(ROOT) >= {"components", "systems", "persistence", "engine", "providers"}


@pytest.mark.parametrize("entry", sorted(packages(ROOT)))
def test_no_package_is_imported_under_its_folder_name(entry: str) -> None:
    found = sys.modules.get(entry)
    assert found is None or not str(found.__file__).startswith(str(ROOT))


def test_a_planted_package_is_found_everywhere(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "module.py").write_text('"""Planted."""\n', encoding="utf-8")
    links = tmp_path / "src" / "leviath"
    links.mkdir(parents=True)
    (links / "gone").symlink_to("../../gone")
    (links / "face.py").write_text('"""Planted."""\n\nvalue = 1\n', encoding="utf-8")
    assert layout_faults(tmp_path) == [
        "planted/ has no __init__.py",
        "planted is missing from tool.hatch.build.only-include",
        "planted is missing from the wheel's sources",
        "planted has no layer in the import contract",
        "planted may still be imported under its folder's name (ruff banned-api)",
        "src/leviath/planted is not a link to ../../planted",
        "src/leviath/face.py is missing from tool.hatch.build.only-include",
        "src/leviath/face.py has no layer in the import contract",
        "src/leviath/face.py is more than a docstring and one import",
        "src/leviath/gone leads nowhere",
    ]


def test_importing_the_package_imports_nothing_heavy() -> None:
    """A listing pays for no event loop and no store: the public names resolve when used."""
    program = (
        "import sys; sys.path.insert(0, 'src'); import leviath; "
        "print([name for name in ('trio', 'apsw', 'esper', 'msgspec') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], cwd=ROOT, capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == "[]"


@pytest.mark.parametrize("name", ["aio", "blocking", "blueprint", "events", "testing"])
def test_public_modules_can_be_imported_by_their_path(name: str) -> None:
    """In a process of its own: here they have been imported already."""
    program = (
        f"import leviath.{name}, leviath; "
        f"assert leviath.{name}.__name__ == 'leviath.{name}'; "
        f"from leviath.{name} import *"
    )
    subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(ROOT / "src")}, check=True
    )
