"""A script: what a model says, written before it is asked (format: docs/reference/scripted.md).

A script is built from these structs, or read from TOML or from plain dicts with ``parse_script``.
Either way the provider that speaks it is ``leviath.providers.scripted``.
"""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING, Final, TypeVar, cast

import msgspec

from leviath.components.error_kind import ErrorKind
from leviath.components.errors import ConfigError
from leviath.components.money import parse_usd
from leviath.engine.ports import CallRequest, Usage

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

_T = TypeVar("_T")

KINDS: Final = ("turn", "routing", "compaction", "title", "judge")
"""What a call may be for, and so the names of the lists of replies."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that fails."""

    kind: ErrorKind
    message: str = ""
    retry_after_ms: int | None = None
    after_chunks: int = 0
    """Pieces of the text that are streamed before it fails."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of the model, with everything that may go wrong before it comes."""

    text: str = ""
    chunks: tuple[str, ...] = ()
    """How the text is streamed; empty for one piece. Together they are the text."""
    calls: tuple[CallRequest, ...] = ()
    """Tool calls. One with an empty id gets ``call-1`` and so on by its place."""
    usage: Usage = Usage()
    cost_nano_usd: int | None = None
    stop_reason: str = ""
    """Empty: ``tools`` where there are calls, else ``end``."""
    delay_ms: int = 0
    """Before each attempt's answer or failure."""
    chunk_delay_ms: int = 0
    """Between two pieces."""
    failures: tuple[tuple[int, Failure], ...] = ()
    """(attempt, failure); attempt 0 is every attempt that no other row names."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A reply for every call that fits. An empty condition fits all."""

    reply: Reply
    kind: str = ""
    stage: str = ""
    model: str = ""
    contains: str = ""
    """In the text of the last message."""
    tool: str = ""
    """The last message is the result of this tool."""
    is_error: bool | None = None
    """The last message is the result of a tool that failed, or of one that did not."""


class RunScript(msgspec.Struct, frozen=True, kw_only=True):
    """The replies for some runs, by kind and ordinal.

    ``run``, ``key`` and ``agent`` are globs; those that are given must all fit.
    """

    run: str = ""
    key: str = ""
    agent: str = ""
    loop: bool = False
    """After the last reply of a kind comes the first one again."""
    replies: tuple[tuple[str, tuple[tuple[int, Reply], ...]], ...] = ()
    """(kind, ((ordinal from 1, reply), ...)), ordinals ascending."""


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a scripted provider knows."""

    runs: tuple[RunScript, ...] = ()
    """The first one that fits a run is the run's own; the others do not matter to it."""
    rules: tuple[Rule, ...] = ()
    """Asked in order when the run's own replies have none for a call."""
    place: str = "the script"
    """Where it came from, for messages."""


def tool_call(tool: str, /, **arguments: object) -> CallRequest:
    """Return a request to call that tool, for ``Reply.calls``."""
    return CallRequest(id="", name=tool, arguments=_json(arguments))


def sequence(
    replies: tuple[Reply, ...], *, kind: str = "turn", loop: bool = False, place: str = "the script"
) -> Script:
    """Return the script that answers each run's calls of a kind with the same replies in order."""
    lines = tuple(enumerate(replies, start=1))
    return Script(runs=(RunScript(replies=((kind, lines),), loop=loop),), place=place)


def load_script(path: str | os.PathLike[str]) -> Script:
    """Return the script of a TOML file. Raises ConfigError for a file that is not one."""
    place = str(path)
    try:
        with open(path, "rb") as file:
            table = tomllib.load(file)
    except OSError as problem:
        raise ConfigError(
            f"script {place} cannot be read ({problem.strerror}); give the path of a TOML file",
            path=place,
        ) from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise ConfigError(f"script {place} is not TOML: {problem}", path=place) from problem
    return parse_script(table, place=place)


def parse_script(table: Mapping[str, object], *, place: str = "the script") -> Script:
    """Return the script of a table as TOML gives it. Raises ConfigError listing every fault."""
    reader = _Reader()
    script = reader.script(table, place)
    if reader.faults:
        listed = "\n  ".join(reader.faults)
        raise ConfigError(f"{place} has faults:\n  {listed}", faults=tuple(reader.faults))
    return script


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


class _Reader:
    """Turns tables into structs. Faults are gathered, and a faulty value is read as its default."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def script(self, table: Mapping[str, object], place: str) -> Script:
        fields = _Fields(self, table, "")
        runs = [
            self._run(_Fields(self, entry, f"runs #{number}."))
            for number, entry in enumerate(fields.tables("runs"), start=1)
        ]
        # Replies outside of any [[runs]] are for the runs that have none of their own: last.
        rest = self._run(fields, selects=False)
        if rest.replies:
            runs.append(rest)
        rules = tuple(
            self._rule(_Fields(self, entry, f"rules #{number}."))
            for number, entry in enumerate(fields.tables("rules"), start=1)
        )
        fields.done()
        return Script(runs=tuple(runs), rules=rules, place=place)

    def _run(self, fields: _Fields, *, selects: bool = True) -> RunScript:
        loop = fields.flag("loop")
        replies: list[tuple[str, tuple[tuple[int, Reply], ...]]] = []
        for kind in KINDS:
            lines = self._lines(fields, kind, loop=bool(loop))
            if lines:
                replies.append((kind, lines))
        script = RunScript(loop=bool(loop), replies=tuple(replies))
        if selects:
            script = msgspec.structs.replace(
                script, run=fields.text("run"), key=fields.text("key"), agent=fields.text("agent")
            )
            if not (script.run or script.key or script.agent):
                fields.fault("run", "say whose replies these are: run, key or agent, as a glob")
            fields.done()
        return script

    def _lines(self, fields: _Fields, kind: str, *, loop: bool) -> tuple[tuple[int, Reply], ...]:
        lines: dict[int, Reply] = {}
        ordinal = 0
        for number, entry in enumerate(fields.tables(kind), start=1):
            inner = _Fields(self, entry, f"{fields.place}{kind} #{number}.")
            ordinal = inner.number("ordinal", ordinal + 1, least=1)
            if ordinal in lines:
                inner.fault("ordinal", f"{ordinal} already has a reply")
            lines[ordinal] = self._reply(inner)
            inner.done()
        if loop and lines and max(lines) != len(lines):
            fields.fault(kind, f"a loop needs a reply for each ordinal from 1 to {max(lines)}")
        return tuple(sorted(lines.items()))

    def _rule(self, fields: _Fields) -> Rule:
        when = fields.table("when")
        rule = Rule(
            reply=self._reply(fields),
            kind=when.text("kind"),
            stage=when.text("stage"),
            model=when.text("model"),
            contains=when.text("contains"),
            tool=when.text("tool"),
            is_error=when.flag("is_error"),
        )
        if rule.kind and rule.kind not in KINDS:
            when.fault("kind", f"there are {', '.join(KINDS)}, not {rule.kind!r}")
        when.done()
        fields.done()
        return rule

    def _reply(self, fields: _Fields) -> Reply:
        chunks = fields.texts("chunks")
        text = fields.text("text") or "".join(chunks)
        if chunks and "".join(chunks) != text:
            fields.fault("chunks", "put together they are not the text; leave the text out")
        return Reply(
            text=text,
            chunks=chunks,
            calls=tuple(
                self._call(_Fields(self, entry, f"{fields.place}calls #{number}."))
                for number, entry in enumerate(fields.tables("calls"), start=1)
            ),
            usage=self._usage(fields.table("usage")),
            cost_nano_usd=fields.dollars("cost_usd"),
            stop_reason=fields.text("stop_reason"),
            delay_ms=fields.number("delay_ms", 0),
            chunk_delay_ms=fields.number("chunk_delay_ms", 0),
            failures=self._failures(fields),
        )

    def _usage(self, fields: _Fields) -> Usage:
        usage = Usage(
            prompt=fields.number("prompt", 0),
            completion=fields.number("completion", 0),
            cached=fields.number("cached", 0),
            cache_write=fields.number("cache_write", 0),
        )
        fields.done()
        return usage

    def _call(self, fields: _Fields) -> CallRequest:
        name = fields.text("name")
        if not name:
            fields.fault("name", "name the tool")
        call = CallRequest(id=fields.text("id"), name=name, arguments=fields.json("arguments"))
        fields.done()
        return call

    def _failures(self, fields: _Fields) -> tuple[tuple[int, Failure], ...]:
        rows: dict[int, Failure] = {}
        for number, entry in enumerate(fields.tables("errors"), start=1):
            inner = _Fields(self, entry, f"{fields.place}errors #{number}.")
            attempt = inner.number("attempt", number, least=1)
            if attempt in rows:
                inner.fault("attempt", f"{attempt} already fails")
            rows[attempt] = self._failure(inner)
        if fields.has("error"):
            rows[0] = self._failure(fields.table("error"))
        return tuple(sorted(rows.items()))

    def _failure(self, fields: _Fields) -> Failure:
        word = fields.text("kind")
        kind = ErrorKind.OTHER
        try:
            kind = ErrorKind(word)
        except ValueError:
            fields.fault("kind", f"there are {', '.join(ErrorKind)}, not {word!r}")
        failure = Failure(
            kind=kind,
            message=fields.text("message"),
            retry_after_ms=fields.number("retry_after_ms", 0)
            if fields.has("retry_after_ms")
            else None,
            after_chunks=fields.number("after_chunks", 0),
        )
        fields.done()
        return failure


class _Fields:
    """One table while it is read: takes fields by type, and reports those that nobody took."""

    def __init__(self, reader: _Reader, table: object, place: str) -> None:
        self.place = place
        self._reader = reader
        self._taken: set[str] = set()
        self._table: Mapping[str, object] = {}
        if isinstance(table, dict):
            self._table = cast("dict[str, object]", table)
        else:
            reader.faults.append(f"{place.rstrip('.')}: must be a table")

    def fault(self, field: str, what: str) -> None:
        self._reader.faults.append(f"{self.place}{field}: {what}")

    def has(self, field: str) -> bool:
        return field in self._table

    def done(self) -> None:
        for field in self._table:
            if field not in self._taken:
                self.fault(str(field), f"is not known; known are {', '.join(sorted(self._taken))}")

    def text(self, field: str) -> str:
        return self._take(field, lambda value: isinstance(value, str), "a string", "")

    def flag(self, field: str) -> bool | None:
        return self._take(field, lambda value: isinstance(value, bool), "true or false", None)

    def number(self, field: str, default: int, *, least: int = 0) -> int:
        def fits(value: object) -> bool:
            return isinstance(value, int) and not isinstance(value, bool) and value >= least

        return self._take(field, fits, f"a whole number, {least} or more", default)

    def dollars(self, field: str) -> int | None:
        text = self.text(field)
        if not text:
            return None
        try:
            return parse_usd(text)
        except ValueError as problem:
            self.fault(field, str(problem))
            return None

    def texts(self, field: str) -> tuple[str, ...]:
        found: list[object] = self._take(field, _is_list, "a list of strings", [])
        if all(isinstance(entry, str) for entry in found):
            return tuple(cast("list[str]", found))
        self.fault(field, "must be a list of strings")
        return ()

    def tables(self, field: str) -> list[object]:
        return self._take(field, _is_list, "a list of tables", [])

    def table(self, field: str) -> _Fields:
        self._taken.add(field)
        return _Fields(self._reader, self._table.get(field, {}), f"{self.place}{field}.")

    def json(self, field: str) -> str:
        """Take a table as the JSON it stands for, or a string as it is, which need not be JSON."""
        self._taken.add(field)
        value = self._table.get(field, {})
        if isinstance(value, str):
            return value
        try:
            return _json(value)
        except (TypeError, ValueError):
            self.fault(field, "holds what JSON does not have (a date, nan or inf)")
            return "{}"

    def _take(self, field: str, fits: Callable[[object], bool], must: str, default: _T) -> _T:
        self._taken.add(field)
        if field not in self._table:
            return default
        value = self._table[field]
        if not fits(value):
            self.fault(field, f"must be {must}")
            return default
        return cast("_T", value)


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)
