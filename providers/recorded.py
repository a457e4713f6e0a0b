"""A provider that keeps what a model answered, and gives it back: real calls once, tests for ever.

A recording is found by a digest of what the model was asked, so a changed prompt, tool or parameter
is a miss, and a miss fails with the nearest recording beside it. Nothing of run, time or attempt is
in the digest: the same question asked again by the same run is the next recording of it.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import stat
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from leviath.components.clean import clean_text
from leviath.components.errors import ConfigError, DiskFull, StorageError
from leviath.engine import arguments
from leviath.engine.limits import (
    CASSETTE_BYTES_MAX,
    NEAREST_COMPARED_MAX,
    NEAREST_SHOWN_LINES_MAX,
)
from leviath.engine.ports import (
    CallRequest,
    ErrorKind,
    InferenceReply,
    InferenceRequest,
    Provider,
    Usage,
    provider_error,
)
from leviath.engine.redaction import Redactor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from leviath.components.secret import Secret

__all__ = ["RecordMode", "Recorded"]

RecordMode = Literal["none", "new", "all"]
"""Which calls reach the real provider: none, those without a recording, or all of them."""

FORMAT: Final = 1
_KEY: Final = "leviath_cassette"
_DIGEST_CHARS: Final = 32


class _Asked(Struct, frozen=True, forbid_unknown_fields=True):
    """What decides an answer, of one request."""

    kind: str
    provider: str
    model: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    max_output_tokens: int | None = None
    temperature_milli: int | None = None
    parameters: str = ""


class _Answer(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    text: str = ""
    calls: tuple[CallRequest, ...] = ()
    usage: Usage = Usage()
    cost_nano_usd: int | None = None
    stop_reason: str = "end"


class _Record(Struct, frozen=True, forbid_unknown_fields=True):
    digest: str
    asked: _Asked
    answer: _Answer


class _Head(Struct, frozen=True, rename={"format": _KEY}):
    format: int


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(_Record).decode


class Recorded:
    """A provider in front of another one.

    ``cassette`` is a file of JSON lines, made by the first recording. ``inner`` is the real
    provider; without one nothing can be recorded, and ``name`` says whom the cassette stands for.
    ``mode`` is "none" (recordings only: no call leaves), "new" (calls without a recording are made
    and kept) or "all" (every call is made, and replaces what was recorded). ``replace`` maps texts
    that differ from run to run, such as a temporary folder, to what stands for them in the
    cassette. The values of ``secrets`` are hidden in it.

    Raises ConfigError for a cassette that is missing in mode "none", damaged, too large or of
    another version; nothing was changed then.
    """

    def __init__(
        self,
        cassette: str | os.PathLike[str],
        inner: Provider | None = None,
        *,
        mode: RecordMode = "none",
        name: str = "",
        replace: Mapping[str, str] | None = None,
        secrets: Iterable[str | Secret] = (),
    ) -> None:
        if mode not in get_args(RecordMode):
            modes = ", ".join(get_args(RecordMode))
            raise ConfigError(f"mode must be one of {modes}, not {arguments.shown(mode)}")
        if mode != "none" and inner is None:
            raise ConfigError(f"mode {mode!r} records: pass the provider to record from")
        if inner is None and not name:
            raise ConfigError("pass the provider, or name the one that the cassette stands for")
        self._path = os.fspath(cassette)
        self._inner = inner
        self._mode: RecordMode = mode
        self._name = name or ("" if inner is None else inner.name)
        # The longest first: one path may be the beginning of another.
        self._replace = sorted((replace or {}).items(), key=lambda item: -len(item[0]))
        self._redactor = Redactor(arguments.secrets("secrets", secrets))
        self._takes: dict[str, list[_Record]] = {}
        self._asked: dict[tuple[str, str], list[tuple[str, int]]] = {}
        """By run and digest, the calls (kind, ordinal) that asked it, in order."""
        self._fresh: set[str] = set()
        """Digests that were recorded anew since this object was made."""
        self.misses: list[str] = []
        """What each miss was told, oldest first: a test that has any should fail."""
        self.paid: bool = mode != "none"
        """Whether a call may reach the real provider."""
        self._is_open_ended = False
        """The cassette's last line has no end, as an editor may leave it."""
        if mode != "none" and not os.path.lexists(self._path):
            return
        data = _read(self._path)
        self._is_open_ended = not data.endswith(b"\n")
        for record in _parse(self._path, data):
            self._takes.setdefault(record.digest, []).append(record)

    @property
    def name(self) -> str:
        """The name that blueprints use: that of the provider behind it."""
        return self._name

    @property
    def models(self) -> tuple[str, ...]:
        """The models that the provider behind it serves; empty for any."""
        models: tuple[str, ...] = getattr(self._inner, "models", ())
        return models

    async def infer(
        self, request: InferenceRequest, on_text: Callable[[str], None] | None
    ) -> InferenceReply:
        """Answer from the cassette, or make the call and keep its answer.

        Raises ProviderError: ``script_exhausted`` for a miss, naming the nearest recording, and
        what the real provider raises, which is not kept. Cancelled during a real call: nothing was
        recorded, and it may have been charged.
        """
        asked = self._canonical(request)
        digest = _digest_of(asked)
        place = self._place(request, digest)
        takes = self._takes.get(digest, [])
        is_stale = self._mode == "all" and digest not in self._fresh
        if place < len(takes) and not is_stale:
            reply = _reply_of(takes[place].answer)
            if on_text is not None and reply.text:
                on_text(reply.text)
            return reply
        if self._mode == "none" or self._inner is None:
            raise provider_error(ErrorKind.SCRIPT_EXHAUSTED, self._missed(request, asked, place))
        reply = await self._inner.infer(request, on_text)
        self._keep(_Record(digest, asked, self._answer_of(reply)))
        return reply

    # --- what is asked --------------------------------------------------------------------------

    def _canonical(self, request: InferenceRequest) -> _Asked:
        messages = []
        for message in request.messages:
            fields: dict[str, Any] = {"role": message.role, "text": self._text(message.text)}
            if message.calls:
                fields["calls"] = [
                    {"id": call.id, "name": call.name, "arguments": self._text(call.arguments)}
                    for call in message.calls
                ]
            if message.role == "tool":
                fields["call_id"] = message.call_id
                fields["tool"] = message.tool
                fields["is_error"] = message.is_error
            messages.append(fields)
        return _Asked(
            request.kind,
            request.provider,
            request.model,
            tuple(messages),
            tuple(asdict(tool) for tool in request.tools),
            request.max_output_tokens,
            request.temperature_milli,
            request.parameters_json,
        )

    def _text(self, text: str) -> str:
        for value, stands_for in self._replace:
            text = text.replace(value, stands_for)
        return self._redactor.redact(clean_text(text))

    def _place(self, request: InferenceRequest, digest: str) -> int:
        """Which recording of that digest a call is owed: a retry is owed the same one again."""
        calls = self._asked.setdefault((request.run_id, digest), [])
        call = (request.kind, request.ordinal)
        if call not in calls:
            calls.append(call)
        return calls.index(call)

    # --- keeping --------------------------------------------------------------------------------

    def _answer_of(self, reply: InferenceReply) -> _Answer:
        hide = self._redactor.redact
        calls = tuple(
            CallRequest(call.id, call.name, hide(clean_text(call.arguments)))
            for call in reply.calls
        )
        return _Answer(
            hide(clean_text(reply.text)),
            calls,
            reply.usage,
            reply.cost_nano_usd,
            reply.stop_reason,
        )

    def _keep(self, record: _Record) -> None:
        known = self._takes.setdefault(record.digest, [])
        if self._mode == "all" and record.digest not in self._fresh:
            known.clear()
            self._fresh.add(record.digest)
            known.append(record)
            self._rewrite()
            return
        self._fresh.add(record.digest)
        known.append(record)
        line = _encode(record) + b"\n"
        if not os.path.lexists(self._path):
            line = _head() + line
        elif self._is_open_ended:
            line = b"\n" + line
        self._is_open_ended = False
        _write(self._path, line, append=True)

    def _rewrite(self) -> None:
        """Write the whole cassette beside itself and put it in place: old takes are gone."""
        lines = [_encode(record) + b"\n" for takes in self._takes.values() for record in takes]
        draft = f"{self._path}.new"
        _write(draft, _head() + b"".join(lines), append=False)
        os.replace(draft, self._path)

    # --- missing --------------------------------------------------------------------------------

    def _missed(self, request: InferenceRequest, asked: _Asked, place: int) -> str:
        who = f"run {request.run_id} asks for {request.kind} {request.ordinal}"
        if place:
            what = f"{who} a question that it asked {place} times before, and {self._path} has no "
            told = f"{what}further recording of it"
        else:
            told = f"{who}, and {self._path} has no recording of what it asks"
            told += self._nearest(asked)
        told += f"; record it with Recorded({self._path!r}, provider, mode='new')"
        self.misses.append(told)
        return told

    def _nearest(self, asked: _Asked) -> str:
        wanted = _lines_of(asked)
        records = [takes[0] for takes in self._takes.values()]
        if not records:
            return ": it is empty"
        # Of a long cassette, the ones that have most lines in common: a full comparison of each
        # would take minutes.
        common = set(wanted)
        records.sort(key=lambda record: -len(common.intersection(_lines_of(record.asked))))
        matcher = difflib.SequenceMatcher(autojunk=False)
        matcher.set_seq2(wanted)

        def likeness(record: _Record) -> float:
            matcher.set_seq1(_lines_of(record.asked))
            return matcher.ratio()

        best = max(records[:NEAREST_COMPARED_MAX], key=likeness)
        difference = difflib.unified_diff(
            _lines_of(best.asked), wanted, "nearest recording", "asked now", lineterm="", n=1
        )
        shown = list(difference)
        if len(shown) > NEAREST_SHOWN_LINES_MAX:
            left = len(shown) - NEAREST_SHOWN_LINES_MAX
            shown = [*shown[:NEAREST_SHOWN_LINES_MAX], f"... {left} more lines"]
        return "\n" + "\n".join(shown) + "\n"


def _lines_of(asked: _Asked) -> list[str]:
    """A request as lines for a person."""
    lines = [f"{asked.kind} of {asked.provider}/{asked.model}"]
    lines += [
        f"{name} = {value}"
        for name, value in (
            ("max_output_tokens", asked.max_output_tokens),
            ("temperature_milli", asked.temperature_milli),
            ("parameters", asked.parameters or None),
        )
        if value is not None
    ]
    lines += [f"tool {msgspec.json.encode(tool).decode()}" for tool in asked.tools]
    for message in asked.messages:
        role = message["role"]
        lines += [f"{role}: {line}" for line in str(message["text"]).splitlines()]
        for call in message.get("calls", ()):
            lines.append(f"{role} calls {call['name']} {call['arguments']}")
    return lines


def _digest_of(asked: _Asked) -> str:
    return blake2b(_encode(asked)).hexdigest()[:_DIGEST_CHARS]


def _reply_of(answer: _Answer) -> InferenceReply:
    return InferenceReply(
        text=answer.text,
        calls=answer.calls,
        usage=answer.usage,
        cost_nano_usd=answer.cost_nano_usd,
        stop_reason=answer.stop_reason,
    )


def _head() -> bytes:
    return _encode({_KEY: FORMAT}) + b"\n"


def _parse(path: str, data: bytes) -> list[_Record]:
    head, _, rest = data.partition(b"\n")
    try:
        version = msgspec.json.decode(head, type=_Head).format
    except (msgspec.DecodeError, msgspec.ValidationError):
        raise ConfigError(
            f"{path} is no cassette of leviath: its first line does not say so", path=path
        ) from None
    if version != FORMAT:
        raise ConfigError(
            f"{path} is a cassette of version {version}, and this leviath reads version {FORMAT}; "
            "record it again, or use the leviath that wrote it",
            path=path,
        )
    records: list[_Record] = []
    for number, line in enumerate(rest.splitlines(), 2):
        try:
            record = _decode(line)
        except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
            raise ConfigError(
                f"{path}, line {number}, is no recording ({error}); take the line out", path=path
            ) from None
        if _digest_of(record.asked) != record.digest:
            raise ConfigError(
                f"{path}, line {number}: the digest is not that of what was asked; a recording is "
                "not edited by hand: take the line out and record it again",
                path=path,
            )
        records.append(record)
    return records


def _read(path: str) -> bytes:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{path} is no file; name a cassette", path=path)
            if status.st_size > CASSETTE_BYTES_MAX:
                raise ConfigError(
                    f"{path} has {status.st_size:,} bytes, and a cassette has at most "
                    f"{CASSETTE_BYTES_MAX:,}; record into several",
                    path=path,
                )
            return file.read(CASSETTE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise ConfigError(
            f"there is no cassette at {path}; record it with Recorded({path!r}, provider, "
            "mode='new')",
            path=path,
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", path=path) from error


def _write(path: str, data: bytes, *, append: bool) -> None:
    """Write the whole of ``data``, or raise StorageError; a full disk leaves no half line."""
    how = os.O_APPEND if append else os.O_TRUNC
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o600)
        try:
            before = os.fstat(descriptor).st_size
            done = 0
            try:
                while done < len(data):
                    done += os.write(descriptor, data[done:])
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)
    except OSError as error:
        kind = DiskFull if error.errno in (28, 122) else StorageError
        raise kind(f"{path} cannot be written: {error.strerror}", path=path) from error
