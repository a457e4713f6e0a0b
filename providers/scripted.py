"""A provider that says what a script says: for tests, demonstrations and rehearsals of failure.

It keeps nothing about a run. What it answers depends on the request and the script alone, so a call
that is made again after a crash gets the same answer.
"""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from leviath.components.errors import ConfigError
from leviath.engine.ports import (
    CallRequest,
    ErrorKind,
    InferenceReply,
    InferenceRequest,
    Usage,
    provider_error,
)
from leviath.providers.script import (
    KINDS,
    Failure,
    Reply,
    Rule,
    RunScript,
    Script,
    load_script,
    parse_script,
    sequence,
    tool_call,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

__all__ = [
    "CallRequest",
    "ErrorKind",
    "Failure",
    "Reply",
    "Rule",
    "RunScript",
    "Script",
    "Scripted",
    "Usage",
    "load_script",
    "parse_script",
    "tool_call",
]

_GLOB: Final = frozenset("*?[")


class Scripted:
    """A provider whose answers are written down.

    ``source`` is the path of a TOML file, a table as TOML gives it, or a Script. ``models`` are the
    models that it serves; empty for any. ``sleep`` waits for a number of seconds, and is called for
    delays only: trio's own when none is given. Raises ConfigError listing every fault.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Mapping[str, object] | Script,
        *,
        name: str = "scripted",
        models: Iterable[str] = (),
        sleep: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        if isinstance(source, Script):
            script = source
        elif isinstance(source, str | os.PathLike):
            script = load_script(source)
        else:
            script = parse_script(source)
        _check_kinds(script)
        self._name = name
        self.paid = False
        """A script costs nothing, whatever prices it names."""
        self.models: tuple[str, ...] = tuple(models)
        self.script = script
        self._sleep = sleep
        compiled = [_Sequence(entry) for entry in script.runs]
        # A script for named runs may have thousands of sections: those are found by the name.
        self._named: dict[str, int] = {}
        self._patterns: list[tuple[int, _Sequence]] = []
        self._sequences = compiled
        for position, entry in enumerate(compiled):
            if entry.is_named:
                self._named.setdefault(entry.run, position)
            else:
                self._patterns.append((position, entry))
        self._rules = [(rule, _Line(rule.reply)) for rule in script.rules]

    @classmethod
    def of(
        cls,
        *replies: str | Reply | CallRequest | Failure,
        loop: bool = False,
        name: str = "scripted",
        models: Iterable[str] = (),
        sleep: Callable[[float], Awaitable[None]] | None = None,
    ) -> Scripted:
        """Return a provider that answers each run's turns with these replies in order.

        Text stands for a reply of that text, a CallRequest for a reply that asks for the call, a
        Failure for a call whose every attempt fails so. With ``loop`` the first follows the last.
        """
        lines = tuple(_reply_of(entry) for entry in replies)
        script = sequence(lines, loop=loop, place="Scripted.of(...)")
        return cls(script, name=name, models=models, sleep=sleep)

    @property
    def name(self) -> str:
        """The name that blueprints use."""
        return self._name

    async def infer(
        self, request: InferenceRequest, on_text: Callable[[str], None] | None
    ) -> InferenceReply:
        """Answer from the script; a checkpoint only where the reply has a delay.

        Raises ProviderError: what the script says, ``bad_request`` for a model that is not served,
        ``script_exhausted`` for a call without a reply. Cancelled during a delay: nothing happened.
        """
        if self.models and request.model not in self.models:
            raise provider_error(
                ErrorKind.BAD_REQUEST,
                f"{self._name} serves {', '.join(self.models)}, not {request.model!r}",
            )
        line = self._line(request)
        if not line.is_simple:
            await self._perform(line, request, on_text)
        elif on_text is not None and line.reply.text:
            for chunk in line.chunks:
                on_text(chunk)
        return line.reply

    async def _perform(
        self, line: _Line, request: InferenceRequest, on_text: Callable[[str], None] | None
    ) -> None:
        if line.delay_ms:
            await self._pause(line.delay_ms)
        failure = line.failures.get(request.attempt) or line.failures.get(0)
        chunks = line.chunks if failure is None else line.chunks[: failure.after_chunks]
        for position, chunk in enumerate(chunks):
            if position and line.chunk_delay_ms:
                await self._pause(line.chunk_delay_ms)
            if on_text is not None:
                on_text(chunk)
        if failure is not None:
            raise provider_error(
                failure.kind,
                failure.message or f"{failure.kind} from the script (attempt {request.attempt})",
                retry_after_ms=failure.retry_after_ms,
            )

    async def _pause(self, delay_ms: int) -> None:
        if self._sleep is None:
            # Not at the top: a simulator passes a clock of its own and never needs trio.
            import trio

            self._sleep = trio.sleep
        await self._sleep(delay_ms / 1_000)

    def _line(self, request: InferenceRequest) -> _Line:
        own = self._own(request)
        if own is not None:
            line = own.line(request.kind, request.ordinal)
            if line is not None:
                return line
        for rule, line in self._rules:
            if _fits(rule, request):
                return line
        raise self._exhausted(request, own)

    def _own(self, request: InferenceRequest) -> _Sequence | None:
        named = self._named.get(request.run_id)
        for position, entry in self._patterns:
            if named is not None and named < position:
                break
            if entry.fits(request):
                return entry
        return None if named is None else self._sequences[named]

    def _exhausted(self, request: InferenceRequest, own: _Sequence | None) -> Exception:
        count = 0 if own is None else own.length(request.kind)
        has = f"has {count} such replies" if own is not None else "says nothing about this run"
        return provider_error(
            ErrorKind.SCRIPT_EXHAUSTED,
            f"run {request.run_id} asks for {request.kind} {request.ordinal}, and "
            f"{self.script.place} {has}: add the reply, a rule that fits the call, or loop = true",
            run=request.run_id,
            call_kind=request.kind,
            ordinal=request.ordinal,
        )


class _Line:
    """A reply made ready: what does not depend on the attempt is computed once."""

    __slots__ = ("chunk_delay_ms", "chunks", "delay_ms", "failures", "is_simple", "reply")

    def __init__(self, reply: Reply) -> None:
        calls = tuple(
            call if call.id else CallRequest(f"call-{number}", call.name, call.arguments)
            for number, call in enumerate(reply.calls, start=1)
        )
        self.reply = InferenceReply(
            text=reply.text or "".join(reply.chunks),
            calls=calls,
            usage=reply.usage,
            cost_nano_usd=reply.cost_nano_usd,
            stop_reason=reply.stop_reason or ("tools" if calls else "end"),
        )
        self.chunks = reply.chunks or ((reply.text,) if reply.text else ())
        self.delay_ms = reply.delay_ms
        self.chunk_delay_ms = reply.chunk_delay_ms
        self.failures = dict(reply.failures)
        self.is_simple = not (reply.delay_ms or reply.chunk_delay_ms or reply.failures)


class _Sequence:
    """The replies of one RunScript, by kind and ordinal."""

    __slots__ = ("_agent", "_key", "_lines", "_loop", "is_named", "run")

    def __init__(self, script: RunScript) -> None:
        self.run = script.run
        self._key = script.key
        self._agent = script.agent
        self._loop = script.loop
        self._lines = {
            kind: {ordinal: _Line(reply) for ordinal, reply in lines}
            for kind, lines in script.replies
        }
        self.is_named = bool(
            script.run and not script.key and not script.agent and not _GLOB & set(script.run)
        )

    def fits(self, request: InferenceRequest) -> bool:
        return (
            (not self.run or fnmatchcase(request.run_id, self.run))
            and (not self._key or fnmatchcase(request.key, self._key))
            and (not self._agent or fnmatchcase(request.agent, self._agent))
        )

    def line(self, kind: str, ordinal: int) -> _Line | None:
        lines = self._lines.get(kind)
        if lines is None:
            return None
        if self._loop:
            ordinal = (ordinal - 1) % len(lines) + 1
        return lines.get(ordinal)

    def length(self, kind: str) -> int:
        return len(self._lines.get(kind, ()))


def _fits(rule: Rule, request: InferenceRequest) -> bool:
    last = request.messages[-1] if request.messages else None
    return (
        (not rule.kind or rule.kind == request.kind)
        and (not rule.stage or rule.stage == request.stage)
        and (not rule.model or rule.model == request.model)
        and (not rule.contains or (last is not None and rule.contains in last.text))
        and (not rule.tool or (last is not None and rule.tool == last.tool))
        and (
            rule.is_error is None
            or (last is not None and last.role == "tool" and last.is_error is rule.is_error)
        )
    )


def _reply_of(entry: str | Reply | CallRequest | Failure) -> Reply:
    if isinstance(entry, str):
        return Reply(text=entry)
    if isinstance(entry, CallRequest):
        return Reply(calls=(entry,))
    if isinstance(entry, Failure):
        return Reply(failures=((0, entry),))
    return entry


def _check_kinds(script: Script) -> None:
    """Catch in a script that was built in Python what would make a reply unreachable."""
    for number, entry in enumerate(script.runs, start=1):
        for kind, lines in entry.replies:
            if kind not in KINDS:
                raise ConfigError(
                    f"{script.place}, runs #{number}: there are {', '.join(KINDS)}, not {kind!r}"
                )
            ordinals = [ordinal for ordinal, _ in lines]
            if not lines or (entry.loop and sorted(ordinals) != list(range(1, len(lines) + 1))):
                raise ConfigError(
                    f"{script.place}, runs #{number}: {kind} needs a reply for each ordinal "
                    "from 1, at least one"
                )
