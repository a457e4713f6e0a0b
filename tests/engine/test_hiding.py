"""A run that comes in from its folder brings no secret of its callback into the journal."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from engine_worlds import Counting, in_trio, one, opened

from leviath.components.clean import clean_text
from leviath.engine.redaction import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECRET = 'canary-"of"-the-callback-4711'
LONG = f"{'.' * 5_000}{SECRET}{'.' * 200_000}"
QUOTED = f"it said {SECRET} aloud"


def agent_at(folder: Path) -> str:
    """An agent's manifest in a folder of its own."""
    folder.mkdir(parents=True)
    (folder / "agent.leviath").write_text(
        '[agent]\nname = "one"\n[stages.main]\navailable_tools = []\n'
        '[stages.main.model]\nmodels = [{ provider = "scripted", model = "m" }]\n'
        "[context.regions]\nconversation = {}\n"
    )
    return str(folder)


def documents(home: Path, run_id: str, **changes: Any) -> Path:
    """The folder of a run of another writer, whose texts quote the secret."""
    folder = home / "runs" / run_id
    folder.mkdir(parents=True)
    meta = {
        "run_id": run_id, "agent_name": "one", "agent_path": agent_at(home.parent / run_id),
        "task": LONG, "status": "error", "error": QUOTED, "title": QUOTED, "title_error": QUOTED,
        "metadata": {"label": QUOTED, QUOTED: "label"}, "current_stage": "main", "stage_index": 0,
        "num_stages": 1, "iteration": 1, "prompt_tokens": 1, "completion_tokens": 1,
        "workdir": str(home.parent), "started_at": 1_780_000_000, "updated_at": 1_780_000_600,
        "callback_secret": SECRET, "callback_url": "https://example.org/hook",
        "output_request": {"instructions": QUOTED, "schema": {QUOTED: [QUOTED]}},
        "flags": {"modified_files": [QUOTED]}, "x-new": {QUOTED: [1.50, QUOTED]}, QUOTED: "x",
    } | changes  # fmt: skip
    (folder / "meta.json").write_text(json.dumps(meta))
    entries = [
        {"content": LONG, "tokens": 5, "kind": {"type": "UserMessage"}},
        {
            "content": QUOTED,
            "tokens": 5,
            "kind": {
                "type": "AssistantTurn",
                "tool_calls": [{"id": "1", "name": "look", "arguments": {"at": QUOTED}}],
            },
            "key": QUOTED,
        },
    ]
    context = {
        "stage_name": "main", "total_tokens": 5, "max_tokens": 9,
        "regions": [
            {"name": "conversation", "kind": "temporary", "current_tokens": 5, "max_tokens": 9,
             "entries": entries}
        ],
    }  # fmt: skip
    (folder / "context.json").write_text(json.dumps(context))
    (folder / "final_output").write_text(LONG)
    return folder


def quoting(home: Path) -> Iterator[str]:
    """Tables of the store, but for the one of secrets, that hold the secret in any form."""
    forms = {SECRET.encode(), json.dumps(SECRET)[1:-1].encode()}
    database = apsw.Connection(str(home / "world.db"))
    tables = database.execute("select name from sqlite_schema where type='table'").fetchall()
    for (table,) in tables:
        for row in database.execute(f'select * from "{table}"'):
            for cell in row:
                data = cell.encode() if isinstance(cell, str) else cell
                if isinstance(data, bytes) and any(form in data for form in forms):
                    yield str(table)
    database.close()


@pytest.mark.parametrize("status", ["error", "complete", "running", "paused"])
@in_trio
async def test_no_text_of_a_document_brings_the_secret_in(tmp_path: Path, status: str) -> None:
    home = tmp_path / "home"
    folder = documents(home, "old-1", status=status)
    async with opened(home, [], drive=False) as world:
        assert world.report.unreadable == ()
        assert world.report.imported == ("old-1",)
        assert world.run("old-1").result() == clean_text(LONG).replace(SECRET, HIDDEN)
    assert set(quoting(home)) == {"secret"}
    meta = json.loads((folder / "meta.json").read_bytes())
    assert meta.pop("callback_secret") == SECRET, "its format says so"
    assert SECRET not in json.dumps(meta)
    assert meta["x-new"] == {QUOTED.replace(SECRET, HIDDEN): [1.5, QUOTED.replace(SECRET, HIDDEN)]}
    assert meta["task"] == LONG.replace(SECRET, HIDDEN)
    assert meta["callback_url"] == "https://example.org/hook"


@in_trio
async def test_no_text_of_a_state_brings_the_secret_in(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    async with opened(first, [Counting(LONG, loop=True)]) as world:
        run = await world.spawn(one(), task=QUOTED, workdir=tmp_path, metadata={"label": QUOTED})
        await run.wait()
    run_id = str(run.run_id)
    shutil.copytree(first / "runs" / run_id, second / "runs" / run_id)
    path = second / "runs" / run_id / "meta.json"
    assert (path.parent / "state.lev").exists()
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"callback_secret": SECRET}))
    async with opened(second, [], drive=False) as world:
        assert world.report.imported == (run_id,)
    meta = json.loads(path.read_bytes())
    assert meta["task"] == QUOTED.replace(SECRET, HIDDEN)
    assert meta["metadata"] == {"label": QUOTED.replace(SECRET, HIDDEN)}
    assert set(quoting(second)) == {"secret"}


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"callback_url": f"https://example.org/{SECRET}"}, "Launch"),
        ({"workdir": f"/srv/{SECRET}"}, "Launch"),
        ({"agent_name": SECRET}, "Identity"),
    ],
)
@in_trio
async def test_what_cannot_lose_the_secret_does_not_come_in(
    tmp_path: Path, changes: dict[str, Any], where: str
) -> None:
    home = tmp_path / "home"
    folder = documents(home, "old-1", **changes)
    before = (folder / "meta.json").read_bytes()
    documents(home, "old-2")
    async with opened(home, [], drive=False) as world:
        (refused,) = world.report.unreadable
        assert (refused.folder, where in refused.reason) == ("old-1", True)
        assert SECRET not in refused.reason
        assert world.report.imported == ("old-2",)
    assert set(quoting(home)) == {"secret"}
    assert (folder / "meta.json").read_bytes() == before
