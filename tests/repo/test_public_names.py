"""``leviath`` resolves its names lazily; what it promises, has and shows to checkers agrees."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import leviath

ROOT = Path(__file__).parents[2]


def seen_by_checkers(source: str) -> set[str]:
    """Return the public names that a type checker finds in a module with lazy names."""
    names: set[str] = set()
    for node in ast.parse(source).body:
        guarded = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for inner in node.body if guarded and isinstance(node, ast.If) else [node]:
            if isinstance(inner, ast.ImportFrom) and guarded:
                names |= {alias.asname or alias.name for alias in inner.names}
            elif isinstance(inner, ast.FunctionDef | ast.ClassDef):
                names.add(inner.name)
            elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                names.add(inner.target.id)
            elif isinstance(inner, ast.Assign):
                names |= {target.id for target in inner.targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_")} | (names & {"__version__"})


def name_faults(module: ModuleType, source: str) -> list[str]:
    """Return where ``__all__``, the names that resolve and the names that checkers see differ."""
    promised: list[str] = list(getattr(module, "__all__", ()))
    faults = [f"{name} is promised twice" for name in set(promised) if promised.count(name) > 1]
    if promised != sorted(promised):
        faults.append("__all__ is not sorted")
    for name in promised:
        try:
            getattr(module, name)
        except AttributeError:
            faults.append(f"{name} is promised and does not resolve")
    visible = seen_by_checkers(source)
    faults += [f"{name} is hidden from type checkers" for name in sorted({*promised} - visible)]
    faults += [f"{name} is not in __all__" for name in sorted(visible - {*promised})]
    if promised and not {*promised} <= {*dir(module)}:
        faults.append("dir() leaves names out")
    return faults


def test_the_public_names_agree() -> None:
    source = (ROOT / "src" / "leviath" / "__init__.py").read_text(encoding="utf-8")
    assert name_faults(leviath, source) == []


PLANTED = '''
"""A package with lazy names."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from collections import Counter, OrderedDict
__all__ = ["OrderedDict", "Gone", "deque"]
def __getattr__(name: str) -> object:
    import collections
    return getattr(collections, name)
'''


def test_planted_differences_are_found(tmp_path: Path) -> None:
    file = tmp_path / "planted_names.py"
    file.write_text(PLANTED, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("planted_names", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert "planted_names" not in sys.modules
    assert name_faults(module, PLANTED) == [
        "__all__ is not sorted",
        "Gone is promised and does not resolve",
        "Gone is hidden from type checkers",
        "deque is hidden from type checkers",
        "Counter is not in __all__",
        "dir() leaves names out",
    ]
