"""Calls of ``lev`` for tests: in this process where that is enough, else in one of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from leviath.lev import cli
from leviath.persistence.rows import RunRow

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

SRC = Path(__file__).parents[1] / "src"
LIMIT_S = 60
"""A call that hangs fails after this."""

ROW = RunRow(
    ordinal=1,
    run_id="run-1",
    key=None,
    status="running",
    waiting_on=None,
    agent_name="small",
    agent_path="",
    task_head="",
    model=None,
    stage="main",
    stage_index=0,
    num_stages=1,
    iteration=1,
    tool_calls=2,
    cost_priced_nano=0,
    unpriced_calls=0,
    cost_exact=True,
    prompt_tokens=0,
    completion_tokens=0,
    cached_tokens=0,
    cache_write_tokens=0,
    started_ms=1_000,
    updated_ms=2_000,
    progress_ms=2_000,
    ended_ms=None,
    parent_run_id=None,
    title=None,
    error=None,
    yolo=False,
    has_output=False,
    empty_output=False,
    workdir="/w",
)
"""A row to change."""

AGENT = """
[agent]
name = "small"
[tool_permissions]
{permissions}
[context.regions]
task = {{ kind = "pinned", max_tokens = 1000 }}
[stages.main]
available_tools = [{tools}]
[stages.main.model]
models = [{{ provider = "scripted", model = "m" }}]
"""

REPLIES = """
[[turn]]
text = "I look."
usage = { prompt = 812, completion = 31, cached = 640 }
cost_usd = "0.0012"
calls = [{ name = "submit_output", arguments = { content = "two notes" } }]
[[turn]]
text = "done"
cost_usd = "0.0005"
"""

HANGS = """
[[turn]]
delay_ms = 600000
text = "never"
"""


class Answer(NamedTuple):
    """What one call left."""

    code: int
    out: str
    err: str

    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)


class Place:
    """A folder with a home, an agent, scripts and tools."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self.home = path / "home"
        self._capsys = capsys
        self.agent()
        self.write("replies.toml", REPLIES)
        self.write("hangs.toml", HANGS)

    def write(self, name: str, text: str) -> Path:
        """A file of this folder."""
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def agent(self, *tools: str, ask: str = "") -> Path:
        """The agent, which may use these tools and asks before one of them."""
        listed = ", ".join(f'"{tool}"' for tool in (*tools, "submit_output"))
        permissions = f'{ask} = "ask"' if ask else ""
        text = AGENT.format(tools=listed, permissions=permissions)
        return self.write("agent/agent.leviath", text).parent

    def lev(self, *words: str) -> Answer:
        """One call in this process, on this home."""
        self._capsys.readouterr()
        try:
            code = cli.run(self._words(words))
        except SystemExit as error:
            code = int(error.code or 0)
        said = self._capsys.readouterr()
        return Answer(code, said.out, said.err)

    def _words(self, words: tuple[str, ...]) -> list[str]:
        first, *rest = words
        return [first, "--home", str(self.home), *rest] if first != "validate" else [*words]

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A call in a process of its own, in this folder."""
        return subprocess.Popen(
            [sys.executable, "-m", "leviath.lev", *self._words(words)],
            cwd=self.path,
            env=os.environ | {"PYTHONPATH": str(SRC)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def spawn(self, *words: str, script: str = "replies.toml", task: str = "Look.") -> Answer:
        """``lev run`` of the agent, in this process."""
        return self.lev(
            *("run", str(self.path / "agent"), "--task", task, "--workdir", str(self.path)),
            *("--script", str(self.path / script), *words),
        )

    def ids(self) -> list[str]:
        """The ids of all runs, newest first."""
        listing = self.lev("ps", "--all", "--json").document()
        entries = [*listing["runs"], *listing["finished"], *listing["not_running"]]
        return [entry["run_id"] for entry in entries]


def finish(process: subprocess.Popen[str]) -> Answer:
    """What a process left."""
    out, err = process.communicate(timeout=LIMIT_S)
    return Answer(process.returncode, out, err)


def lines_until(process: subprocess.Popen[str], word: str) -> Iterator[str]:
    """The lines of its stderr up to the first that holds ``word``."""
    assert process.stderr is not None
    for line in process.stderr:
        yield line
        if word in line:
            return
    raise AssertionError(f"stderr ended without {word!r}")
