"""Rules of style that a linter does not know. Each has a planted fault that it must find."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
PACKAGES = ("components", "systems", "persistence", "engine", "providers", "simulation", "lev")
PURE = ("components", "systems")
PRINTING = ("lev", "bench", "examples")
FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 500

Fault = tuple[int, str]
"""Line and what is wrong there."""

OUTSIDE_TIME = frozenset(
    {
        *(f"time.{name}{unit}" for unit in ("", "_ns") for name in (
            "time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime")),
        "time.localtime", "time.gmtime", "time.strftime", "time.ctime",
        "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today",
        "datetime.date.today", "trio.current_time", "trio.lowlevel.current_clock",
    }
)  # fmt: skip
IMPURE_MODULES = frozenset(
    {"asyncio", "glob", "os", "random", "secrets", "shutil", "signal", "socket", "sqlite3", "apsw",
     "subprocess", "sys", "tempfile", "threading", "time", "trio", "unicodedata", "uuid"}
)  # fmt: skip
# Their answers depend on the hash seed, on an address or on the Python version's Unicode tables.
UNSTABLE_CALLS = frozenset({"hash", "id", "open", "input", "eval", "exec"})
UNSTABLE_METHODS = frozenset({"isalnum", "isalpha", "isidentifier", "isprintable", "casefold"})
SLEEPS = frozenset({"time.sleep", "asyncio.sleep", "trio.sleep", "trio.sleep_until"})


def folder(path: str) -> str:
    return path.split("/", 1)[0]


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of everything imported (``from a import b`` gives ``a.b``)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def references(tree: ast.Module) -> Iterator[tuple[ast.expr, str]]:
    """Yield every use of an imported name with its full dotted name, whatever its alias."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                known[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            name = dotted(node)
            head, _, rest = name.partition(".")
            if head in known:
                yield node, f"{known[head]}.{rest}" if rest else known[head]


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def esper_stays_in_the_world(path: str, tree: ast.Module) -> Iterator[Fault]:
    if path == "systems/world.py" or folder(path) not in PACKAGES:
        return
    for line, name in imported(tree):
        if name.split(".")[0] == "esper":
            yield line, "imports esper, which only systems/world.py may"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and any(
            isinstance(argument, ast.Constant) and argument.value == "esper"
            for argument in node.args
        ):
            yield node.lineno, "names esper in a call; only systems/world.py may load it"


def time_comes_through_the_clock(path: str, tree: ast.Module) -> Iterator[Fault]:
    if path == "engine/clock.py" or folder(path) not in PACKAGES:
        return
    for node, name in references(tree):
        if name in OUTSIDE_TIME:
            yield node.lineno, f"reads outside time ({name}), which only engine/clock.py may"


def pure_layers_read_nothing(path: str, tree: ast.Module) -> Iterator[Fault]:
    if folder(path) not in PURE:
        return
    for line, name in imported(tree):
        # The world loads its own instance of esper without a trace in sys.modules.
        allowed = path == "systems/world.py" and name.split(".")[0] in {"sys", "threading"}
        if name.split(".")[0] in IMPURE_MODULES and not allowed:
            yield line, f"imports {name}: what decides enters a step as an input"
    hashing = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "__hash__"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Await | ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith):
            yield node.lineno, "is asynchronous; a step has no await"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in UNSTABLE_CALLS and id(node) not in hashing:
                yield node.lineno, f"calls {node.func.id}(), whose answer is not part of the state"
        elif isinstance(node, ast.Attribute) and node.attr in UNSTABLE_METHODS:
            yield node.lineno, f"uses .{node.attr}, which differs between Python versions"


def only_the_front_end_prints(path: str, tree: ast.Module) -> Iterator[Fault]:
    if folder(path) in PRINTING or folder(path) == "tests":
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and dotted(node.func) == "print":
            yield node.lineno, "prints; log with logging, or return it to lev"


def functions_fit_a_screen(path: str, tree: ast.Module) -> Iterator[Fault]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield node.lineno, f"{node.name} has {lines} lines; {FUNCTION_LINES_MAX} at most"


def modules_stay_small(path: str, tree: ast.Module) -> Iterator[Fault]:
    last = max((getattr(node, "end_lineno", None) or 0 for node in tree.body), default=0)
    if last > MODULE_LINES_MAX:
        yield 1, f"the module has {last} lines; {MODULE_LINES_MAX} at most"


def public_names_are_documented(path: str, tree: ast.Module) -> Iterator[Fault]:
    if folder(path) not in PACKAGES:
        return
    if ast.get_docstring(tree) is None:
        yield 1, "the module has no docstring"
    yield from _undocumented(tree.body, "")


def _undocumented(body: list[ast.stmt], inside: str) -> Iterator[Fault]:
    for node in body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        # Properties and overrides are documented by their class and by what they override.
        exempt = {"overload", "override", "property", "cached_property", "setter"}
        decorators = {dotted(entry).rpartition(".")[2] for entry in node.decorator_list}
        if node.name.startswith("_") or decorators & exempt:
            continue
        if ast.get_docstring(node) is None:
            yield node.lineno, f"{inside}{node.name} is public and has no docstring"
        if isinstance(node, ast.ClassDef):
            yield from _undocumented(node.body, f"{node.name}.")


def imports_name_the_package(path: str, tree: ast.Module) -> Iterator[Fault]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level > 0:
            yield node.lineno, "imports relatively; name leviath.<folder>.<module>"
    for line, name in imported(tree):
        if name.split(".")[0] in PACKAGES:
            yield line, f"imports {name}, a second copy of leviath.{name}"


def no_test_sleeps(path: str, tree: ast.Module) -> Iterator[Fault]:
    if folder(path) != "tests":
        return
    sleeps = {id(node) for node, name in references(tree) if name in SLEEPS}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and id(node.func) in sleeps:
            yields_only = node.args and ast.unparse(node.args[0]) == "0"
            if not yields_only:
                yield node.lineno, "sleeps; wait for the event, or pass a clock"


def nothing_is_left_unfinished(path: str, tree: ast.Module) -> Iterator[Fault]:
    if folder(path) not in PACKAGES:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "NotImplementedError":
            yield node.lineno, "is not implemented"


RULES: tuple[Callable[[str, ast.Module], Iterator[Fault]], ...] = (
    esper_stays_in_the_world,
    functions_fit_a_screen,
    imports_name_the_package,
    modules_stay_small,
    nothing_is_left_unfinished,
    only_the_front_end_prints,
    public_names_are_documented,
    pure_layers_read_nothing,
    no_test_sleeps,
    time_comes_through_the_clock,
)


def check(root: Path) -> list[str]:
    """Return every fault of the tree as ``path:line: what``."""
    faults: list[str] = []
    for top in (*PACKAGES, "src", "tests", "bench", "examples"):
        for file in sorted((root / top).rglob("*.py")):
            path = file.relative_to(root).as_posix()
            if path.startswith("src/leviath/") and path.count("/") > 2:
                continue  # a link into one of the folders
            tree = ast.parse(file.read_text(encoding="utf-8"))
            faults += [
                f"{path}:{line}: {what}" for rule in RULES for line, what in rule(path, tree)
            ]
    return faults


def test_the_repository_keeps_the_rules() -> None:
    faults = check(ROOT)
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


PLANTED = [
    ("engine/a.py", '"""A."""\nimport esper\n', "imports esper"),
    ("engine/a.py", '"""A."""\nimport importlib as i\ni.import_module("esper")\n', "names esper"),
    ("engine/a.py", '"""A."""\nfrom time import monotonic as m\nx = m()\n', "time.monotonic"),
    ("lev/a.py", '"""A."""\nimport datetime\nx = datetime.datetime.now(None)\n', "outside time"),
    ("lev/a.py", '"""A."""\nfrom datetime import datetime as d\nx = d.now(None)\n', "outside time"),
    ("providers/a.py", '"""A."""\nimport trio\nx = trio.current_time\n', "outside time"),
    ("systems/a.py", '"""A."""\nimport random\n', "imports random"),
    ("systems/a.py", '"""A."""\nfrom os import environ\n', "imports os.environ"),
    ("components/a.py", '"""A."""\nimport uuid\n', "imports uuid"),
    ("components/a.py", '"""A."""\nx = open("y")\n', "calls open"),
    ("components/a.py", '"""A."""\nx = hash("y")\n', "calls hash"),
    ("components/a.py", '"""A."""\nx = "y".isalnum()\n', "isalnum"),
    ("systems/a.py", '"""A."""\nasync def f():\n    "F."\n', "asynchronous"),
    ("engine/a.py", '"""A."""\nprint(1)\n', "prints"),
    ("engine/a.py", '"""A."""\ndef f():\n    "F."\n' + "    x = 1\n" * 70, "f has 72 lines"),
    ("tests/a.py", "x = 1\n" * 501, "the module has 501 lines"),
    ("engine/a.py", "x = 1\n", "no docstring"),
    ("engine/a.py", '"""A."""\ndef f():\n    pass\n', "f is public"),
    ("engine/a.py", '"""A."""\nclass C:\n    "C."\n    def f(self):\n        pass\n', "C.f is"),
    ("engine/a.py", '"""A."""\nfrom . import b\n', "relatively"),
    ("engine/a.py", '"""A."""\nfrom systems.world import World\n', "second copy"),
    ("tests/a.py", "import time\ntime.sleep(1)\n", "sleeps"),
    ("tests/a.py", "from trio import sleep\nasync def f():\n    await sleep(0.1)\n", "sleeps"),
    ("engine/a.py", '"""A."""\ndef f():\n    "F."\n    raise NotImplementedError\n', "implemented"),
]


@pytest.mark.parametrize(("path", "source", "expected"), PLANTED)
def test_a_planted_fault_is_found(tmp_path: Path, path: str, source: str, expected: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(source, encoding="utf-8")
    faults = check(tmp_path)
    assert len(faults) == 1, faults
    assert faults[0].startswith(f"{path}:")
    assert expected in faults[0]


def test_what_is_allowed_passes(tmp_path: Path) -> None:
    allowed = {
        "engine/clock.py": '"""A."""\nimport time\nx = time.monotonic_ns()\n',
        "systems/world.py": '"""A."""\nimport importlib.util\nimportlib.util.find_spec("esper")\n',
        "lev/a.py": '"""A."""\nprint(1)\n',
        "components/a.py": '"""A."""\nclass _C:\n    def __hash__(self):\n        return hash(1)\n',
        "engine/a.py": '"""A."""\ndef _f():\n    pass\n',
        "tests/a.py": "import trio\nasync def f():\n    await trio.sleep(0)\n",
    }
    for path, source in allowed.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(source, encoding="utf-8")
    assert check(tmp_path) == []
