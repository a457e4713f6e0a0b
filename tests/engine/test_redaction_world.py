"""No known secret value gets into anything that a world keeps or says, whoever echoes it."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import apsw
import pytest
import trio
from callback_receiver import Kept
from engine_worlds import heard, in_trio, one, opened

from leviath.components.error_kind import ErrorKind
from leviath.components.errors import ConfigError, RunConflict, SpawnError, ToolError
from leviath.components.events import CallFailed
from leviath.components.secret import Secret
from leviath.engine.ports import CallRequest, InferenceReply, provider_error
from leviath.engine.redaction import HIDDEN
from leviath.engine.tools import ToolCall, ToolResult, tool

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from leviath.engine.ports import InferenceRequest

ENV = "canary-of-the-environment-4711"
QUOTED = 'canary "of" the\nconfiguration \\ 4711'
WIDE = "canary-für-4711-🐤"
CALLBACK = "canary-of-the-callback-4711"
KNOWN = (ENV, QUOTED, WIDE, CALLBACK)
LEAK = f"<{'|'.join(KNOWN)}>"
LEAK_HIDDEN = f"<{'|'.join([HIDDEN] * len(KNOWN))}>"
LONG = f"{'.' * 1021}{LEAK}\n" * 200
"""Longer than what stays inline."""


def forms(value: str) -> set[str]:
    """A value as it may stand in a file."""
    return {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}


def canaries(data: str | bytes) -> list[str]:
    """The known values in a text or in bytes."""
    data = data.encode(errors="replace") if isinstance(data, str) else data
    return [value for value in KNOWN if any(form.encode() in data for form in forms(value))]


class Echo:
    """A provider that says what it was told to say, or fails so; it keeps what it was asked."""

    name = "scripted"

    def __init__(self, *says: InferenceReply | BaseException) -> None:
        self.says = list(says)
        self.asked: list[InferenceRequest] = []

    async def infer(
        self, request: InferenceRequest, on_text: Callable[[str], None] | None
    ) -> InferenceReply:
        await trio.lowlevel.checkpoint()
        self.asked.append(request)
        said = self.says.pop(0) if self.says else InferenceReply(text=LEAK)
        if isinstance(said, BaseException):
            raise said
        return said


def echoing(given: list[str]) -> list[Any]:
    """Tools that give away what they know, in every way there is."""

    @tool(effect="pure")
    async def soon(text: str) -> str:
        "Async."
        given.append(text)
        await trio.lowlevel.checkpoint()
        return LEAK

    @tool(effect="pure")
    def plain(text: str) -> dict[str, str]:
        "Plain, as JSON."
        given.append(text)
        return {LEAK: LEAK}

    @tool(effect="pure")
    async def long_soon() -> str:
        "Async, more than stays inline."
        await trio.lowlevel.checkpoint()
        return LONG

    @tool(effect="pure")
    def long_plain() -> str:
        "Plain, more than stays inline."
        return LONG

    @tool(effect="pure")
    def refuses() -> str:
        "Fails on purpose."
        raise ToolError(LONG)

    @tool(effect="pure")
    async def breaks() -> str:
        "Fails by mistake."
        raise ValueError(LEAK)

    @tool(effect="idempotent", modifies=True)
    def writes() -> ToolResult:
        "Says what it wrote."
        return ToolResult(text="x", modified=(LEAK,))

    @tool(effect="pure")
    def shows(call: ToolCall) -> str:
        "Shows its call."
        return repr(call)

    return [soon, plain, long_soon, long_plain, refuses, breaks, writes, shows]


def asks(at: int, name: str, **arguments: str) -> CallRequest:
    return CallRequest(f"{LEAK}{at}", name, json.dumps(arguments))


def script(names: list[str]) -> list[InferenceReply | BaseException]:
    """A model that calls every tool, shell too, and submits."""
    # Written piece by piece, and more than stays inline.
    pieces = "cut -c 1-30 leak.txt | tr -d '\\n'; cut -c 31- leak.txt"
    commands = ("cat leak.txt", 'yes "$(cat leak.txt)" | head -n 8000', pieces)
    calls = [asks(at, name) for at, name in enumerate(names) if name not in ("soon", "plain")]
    calls += [asks(50, "soon", text=LEAK), asks(51, "plain", text=LEAK)]
    calls += [asks(60 + at, "shell", command=command) for at, command in enumerate(commands)]
    calls += [CallRequest("70", "soon", f"no JSON {LEAK}"), CallRequest("71", LEAK, "{}")]
    submit = asks(80, "submit_output", content=LEAK)
    return [
        InferenceReply(text=LEAK, calls=tuple(calls), stop_reason=LEAK),
        InferenceReply(calls=(submit,)),
        InferenceReply(text=LONG),
    ]


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def check_home(home: Path) -> None:
    """No canary in any byte, but for the callback's secret in its two places."""
    found = {name: canaries(data) for name, data in files(home).items()}
    for name, values in found.items():
        allowed = [CALLBACK] if name.startswith("world.db") or name.endswith("/meta.json") else []
        assert set(values) <= set(allowed), (name, values)
    for name in found:
        if name.endswith("/meta.json"):
            meta = json.loads((home / name).read_bytes())
            meta.pop("callback_secret")
            assert canaries(json.dumps(meta)) == []
    with_it: list[str] = []
    database = apsw.Connection(str(home / "world.db"))
    for (table,) in database.execute(
        "select name from sqlite_schema where type='table'"
    ).fetchall():
        for row in database.execute(f'select * from "{table}"'):
            cells = [c.encode(errors="replace") if isinstance(c, str) else c for c in row]
            if canaries(b"\0".join(cell for cell in cells if isinstance(cell, bytes))):
                with_it.append(str(table))
    database.close()
    assert with_it == ["secret"]


@pytest.mark.parametrize("durability", ["process", "memory"])
@in_trio
async def test_no_known_value_is_kept_or_said(
    tmp_path: Path,
    durability: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", ENV)
    caplog.set_level(logging.DEBUG)
    work, home, given = tmp_path / "work", tmp_path / "home", list[str]()
    work.mkdir()
    (work / "leak.txt").write_text(LEAK)
    tools = echoing(given)
    names = [made.name for made in tools]
    agent = one(
        *names,
        "shell",
        "submit_output",
        more='[context.regions]\ntask = {}\nseen = { seed = { files = ["leak.txt"] } }\n'
        'told = { seed = "input" }\n',
    )
    provider = Echo(*script(names))
    said: list[str] = []
    options: Any = {"tools": tools, "secrets": [QUOTED, Secret(WIDE)], "durability": durability}
    options["callbacks"] = sender = Kept()
    async with opened(home, [provider], **options) as world:
        run = await world.spawn(
            agent,
            task=LEAK,
            workdir=work,
            metadata={"label": LEAK, LEAK: "label"},
            regions={"told": LEAK},
            allow=["shell"],
            callback_url="https://example.org/hook",
            callback_secret=CALLBACK,
        )
        await run.message(LEAK, sender=LEAK)
        with pytest.raises(SpawnError) as refused:
            await world.spawn(agent, workdir=work, regions={"told": "x"}, allow=[LEAK])
        said.append(str(refused.value))
        await run.wait()
        said += [repr(event) async for event in run.events()]
        assert run.result() == LEAK_HIDDEN
        errors = provider_error(ErrorKind.BAD_REQUEST, LEAK), ValueError(LEAK)
        for error in errors:
            provider.says[:] = [error]
            run = await world.spawn(agent, task="fail", workdir=work, regions={"told": "x"})
            said.append(repr(await heard(run.events(), CallFailed)))
            with suppress(RunConflict):
                await run.cancel()
            said += [repr(event) async for event in run.events()]
        run = await world.spawn(agent, task="stop", workdir=work, regions={"told": "x"})
        await run.cancel(why=LEAK, actor=LEAK)
        said += [repr(event) async for event in run.events()]
        asked = [repr(list(request.messages)) for request in provider.asked]
    assert given == [LEAK_HIDDEN] * 2
    assert any(HIDDEN in text for text in said)
    assert any(HIDDEN in text for text in asked)
    for text in (*said, *asked, *(repr(request) for request in sender.sent)):
        assert canaries(text) == []
    records = [record.getMessage() for record in caplog.records if record.name != "root"]
    assert any(HIDDEN in text for text in records)
    assert all(record.exc_info is None for record in caplog.records)
    assert canaries(caplog.text + "".join(records)) == []
    if durability != "memory":
        spilled = [data for name, data in files(home).items() if "/spill/" in name]
        assert len(spilled) == 4
        assert all(HIDDEN.encode() in data for data in spilled)
        check_home(home)


@in_trio
async def test_a_home_opened_again_still_hides_the_secrets_of_its_callbacks(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with opened(home, [Echo()]) as world:
        await (await world.spawn(one(), workdir=tmp_path, callback_secret=CALLBACK)).wait()
    async with opened(home, [Echo()]) as world:
        run = await world.spawn(one(), task=CALLBACK, workdir=tmp_path)
        await run.wait()
    with apsw.Connection(str(home / "world.db")) as database:
        for (body,) in database.execute("select inputs from journal"):
            assert CALLBACK.encode() not in body


@pytest.mark.parametrize(
    "what",
    [
        {"key": ENV},
        {"run_id": ENV},
        {"callback_url": f"https://example.org/{ENV}"},
        {"callback_url": f"https://example.org/{CALLBACK}", "callback_secret": CALLBACK},
        {"workdir": ENV},
        {"agent": one(head=f'description = "{ENV}"')},
    ],
)
@in_trio
async def test_what_cannot_lose_a_secret_is_refused(tmp_path: Path, what: dict[str, Any]) -> None:
    (tmp_path / ENV).mkdir()
    if "workdir" in what:
        what = {"workdir": tmp_path / ENV}
    async with opened(tmp_path / "home", [Echo()], secrets=[ENV], secret_env=False) as world:
        with pytest.raises(SpawnError, match="has the value of a known secret") as caught:
            await world.spawn(**{"agent": one(), "workdir": tmp_path, **what})
        assert canaries(str(caught.value)) == []
        assert world.runs() == []


@in_trio
async def test_a_tool_with_a_secret_in_its_schema_is_refused(tmp_path: Path) -> None:
    @tool(effect="pure")
    def keyed(key: str = ENV) -> str:
        "Has a default."
        return key

    with pytest.raises(ConfigError, match="tool 'keyed' has the value of a known secret"):
        async with opened(tmp_path / "home", [Echo()], tools=[keyed], secrets=[ENV]):
            pass
    assert not (tmp_path / "home").exists()


@in_trio
async def test_the_environment_is_left_alone_when_it_is_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", ENV)
    async with opened(tmp_path / "home", [Echo()], secret_env=False) as world:
        run = await world.spawn(one(), task=ENV, key=ENV, workdir=tmp_path)
        await run.wait()
    assert ENV.encode() in (tmp_path / "home" / "world.db").read_bytes()
