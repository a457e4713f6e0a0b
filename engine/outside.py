"""Carrying out commands: each becomes one outcome input, whatever happens on the way."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from leviath.components.blueprint import StageMode
from leviath.components.clean import cut_utf8
from leviath.components.context import AskedCall
from leviath.components.error_kind import ErrorKind
from leviath.components.errors import LevError, ProviderError
from leviath.components.inputs import InferenceFinished, ToolFinished
from leviath.components.text import Text, inline
from leviath.engine import spending
from leviath.engine.agent_tools import agent_fields, split_reply
from leviath.engine.callbacks import HttpCallbacks
from leviath.engine.limits import (
    ERROR_TEXT_BYTES_MAX,
    FINAL_OUTPUT_BYTES_MAX,
    MODIFIED_PATHS_MAX,
    REPLY_CALLS_MAX,
    ROUTING_REPLY_BYTES_MAX,
    TEXT_INLINE_BYTES_MAX,
)
from leviath.engine.person_tools import person_fields
from leviath.engine.ports import InferenceReply, InferenceRequest
from leviath.engine.prompt import Prompt
from leviath.engine.tools import MayHaveHappened, ToolCall, ToolResult
from leviath.systems.agent_calls import AGENT_TOOLS
from leviath.systems.budgets import ROUTING_OUTPUT_TOKENS
from leviath.systems.inference import CALL_NANO_MAX
from leviath.systems.views import QUESTION_TOOLS

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from leviath.components.blueprint import Blueprint
    from leviath.components.commands import CallTool, Infer
    from leviath.components.identity import Identity
    from leviath.components.inputs import Input
    from leviath.engine.callbacks import CallbackSender
    from leviath.engine.finding import AgentFinder
    from leviath.engine.offering import Offering
    from leviath.engine.ports import CallRequest
    from leviath.engine.texts import Texts
    from leviath.engine.tools import Tool

_log = logging.getLogger("leviath.engine")
_FIELDS_OF: Final = ("submit_output", "context_write")
_decode = msgspec.json.decode
TOKENS_MAX: Final = 10**12
"""Tokens of one call that an adapter may report: a million times the largest window."""
WAIT_MS_MAX: Final = 10**10
"""Longest Retry-After that is kept; the policy caps it far below."""


class Outside:
    """What jobs need: the offering, texts, blueprints, and where outcomes go."""

    def __init__(
        self,
        offering: Offering,
        texts: Texts,
        blueprints: dict[bytes, Blueprint],
        post: Callable[[Input], None],
        spill_dir: Callable[[str], str],
        on_text: Callable[[str, str], None] | None = None,
    ) -> None:
        self.offering = offering
        self.texts = texts
        self.blueprints = blueprints
        self.post = post
        self.spill_dir = spill_dir
        self.on_text = on_text
        self.identity: Callable[[int], Identity] | None = None
        """Looks a run up by its ordinal; set by the host."""
        self.callbacks: CallbackSender = HttpCallbacks()
        """Carries callbacks out; set by whoever opened the world."""
        self.may_not_spend: bool = spending.is_forbidden()
        """Nothing is asked of a provider that may cost money."""
        self.wall_s: Callable[[], int] = int
        """Unix seconds; set by the host."""
        self.read_secret: Callable[[str], str | None] | None = None
        """Reads a secret that an earlier host kept; None in memory."""
        self.finder: AgentFinder | None = None
        """Looks agents up that other agents name; set by who opened the world."""
        self._secrets: list[tuple[str, str]] = []
        self._known: dict[str, str] = {}

    def keep_secret(self, ref: str, value: str) -> None:
        """Make a secret durable with the next batch, under a name that components may carry."""
        self._secrets.append((ref, value))
        self._known[ref] = value

    def secret(self, ref: str) -> str | None:
        """The value of a secret; never log it."""
        value = self._known.get(ref)
        if value is None and self.read_secret is not None:
            return self.read_secret(ref)
        return value

    def take_secrets(self) -> list[tuple[str, str]]:
        """The secrets that the batch being closed must make durable."""
        taken, self._secrets = self._secrets, []
        return taken

    # --- model calls ----------------------------------------------------------------------------

    def request(self, command: Infer) -> InferenceRequest:
        """The whole request of a model call."""
        blueprint = self.blueprints[command.blueprint]
        model = blueprint.stages[command.stage_index].model
        routing = command.purpose == "routing"
        longest = model.max_output_tokens or command.output_tokens_max or None
        identity = None if self.identity is None else self.identity(command.run)
        return InferenceRequest(
            run_id=command.run_id,
            kind=command.purpose,
            ordinal=command.ordinal,
            attempt=command.attempt,
            idempotency_key=f"{command.run_id}:{command.effect}",
            provider=command.provider,
            model=command.model,
            stage=command.stage,
            messages=Prompt(command, blueprint, self.texts.resolve),
            tools=tuple(self.offering.specs[digest] for digest in command.tools),
            max_output_tokens=ROUTING_OUTPUT_TOKENS if routing else longest,
            temperature_milli=0 if routing else model.temperature_milli,
            parameters_json=model.parameters_json,
            timeout_ms=command.timeout_ms,
            agent="" if identity is None else identity.agent_name,
            key="" if identity is None else identity.key,
        )

    def replied(self, command: Infer, reply: InferenceReply) -> InferenceFinished:
        """The outcome of a call that was answered. Raises what an adapter's wrong types lead to."""
        usage = reply.usage
        for count in (usage.prompt, usage.completion, usage.cached, usage.cache_write):
            _check_count(count, TOKENS_MAX)
        if reply.cost_nano_usd is not None:
            _check_count(reply.cost_nano_usd, CALL_NANO_MAX)
        if len(reply.calls) > REPLY_CALLS_MAX:
            raise TypeError(f"{len(reply.calls):,} tool calls in one reply")
        calls = reply.calls
        if not calls and command.purpose == "turn" and self._splits(command):
            split = split_reply(reply.text)
            calls = () if split is None else (split,)
        limit = ROUTING_REPLY_BYTES_MAX if command.purpose == "routing" else TEXT_INLINE_BYTES_MAX
        return InferenceFinished(
            command.run,
            command.effect,
            command.attempt,
            command.epoch,
            self.texts.intern(reply.text, inline_bytes_max=limit),
            tuple(self._asked(call) for call in calls),
            self.texts.clean(reply.stop_reason),
            usage.prompt,
            usage.completion,
            usage.cached,
            usage.cache_write,
            reply.cost_nano_usd,
        )

    def _splits(self, command: Infer) -> bool:
        stage = self.blueprints[command.blueprint].stages[command.stage_index]
        return stage.mode is StageMode.fan_out

    def _asked(self, call: CallRequest) -> AskedCall:
        arguments = self.texts.clean(call.arguments)
        fault = ""
        fields: tuple[tuple[str, Text], ...] = ()
        try:
            value: object = _decode(arguments or "{}")
        except (msgspec.DecodeError, RecursionError):
            fault = "not JSON"
        else:
            if not isinstance(value, dict):
                fault = "not a JSON object"
            elif call.name in _FIELDS_OF:
                fields = self._fields(call.name, value)
            elif call.name in AGENT_TOOLS:
                fields, fault = agent_fields(call.name, value, self.texts)
            elif call.name in QUESTION_TOOLS:
                fields, fault = person_fields(call.name, value, self.texts)
        return AskedCall(
            self.texts.clean(call.id),
            cut_utf8(self.texts.clean(call.name), 256),
            self.texts.intern(arguments),
            fault,
            fields,
        )

    def _fields(self, tool: str, value: dict[object, object]) -> tuple[tuple[str, Text], ...]:
        fields: list[tuple[str, Text]] = []
        for name, field in value.items():
            if isinstance(name, str) and isinstance(field, str):
                text = self.texts.clean(field)
                if tool == "submit_output" and name == "content":
                    cut = cut_utf8(text, FINAL_OUTPUT_BYTES_MAX)
                    if len(cut) < len(text):
                        fields.append(("truncated", inline("yes")))
                    text = cut
                fields.append((self.texts.clean(name), self.texts.intern(text)))
        return tuple(fields)

    def failed(self, command: Infer, kind: ErrorKind, error: BaseException, **more: object) -> None:
        """Post the outcome of a call that was not answered."""
        message = cut_utf8(self.texts.clean(_words(error)), ERROR_TEXT_BYTES_MAX)
        self.post(
            InferenceFinished(
                command.run,
                command.effect,
                command.attempt,
                command.epoch,
                error_kind=kind.value,
                error=message or kind.value,
                **more,  # type: ignore[arg-type]
            )
        )


class InferJob:
    """One attempt at a model call."""

    __slots__ = ("command", "done", "key", "outside")

    def __init__(self, outside: Outside, command: Infer) -> None:
        self.outside: Outside = outside
        self.command: Infer = command
        self.done: bool = False
        """Its one outcome was posted."""
        self.key: Hashable = (command.run, command.effect)

    async def perform(self) -> None:
        """Make the call and post its outcome, whatever it is."""
        outside, command = self.outside, self.command
        provider = outside.offering.providers.get(command.provider)
        if provider is None:
            error = LookupError(f"no provider called {command.provider!r} is open here")
            self._failed(ErrorKind.PROVIDER_MISSING, error, charged=False)
            return
        if outside.may_not_spend and spending.may_cost(provider):
            told = spending.refusal(command.provider, command.run_id)
            self._failed(ErrorKind.BAD_REQUEST, PermissionError(told), charged=False)
            return
        if not os.path.isdir(command.workdir):  # noqa: ASYNC240 - one stat, a few microseconds
            gone = FileNotFoundError(f"the working directory {command.workdir} is gone")
            self._failed(ErrorKind.WORKSPACE_LOST, gone, charged=False)
            return
        on_text = None
        if outside.on_text is not None:
            hear, run_id = outside.on_text, command.run_id
            on_text = lambda piece: hear(run_id, piece)  # noqa: E731
        try:
            reply = await provider.infer(outside.request(command), on_text)
            outcome = outside.replied(command, reply)
        except ProviderError as error:
            kind = error_kind_of(error)
            retry_after = _whole_ms(error.retry_after_ms)
            charged = error.fields.get("charged") is True
            self._failed(kind, error, retry_after_ms=retry_after, charged=charged)
        except trio.Cancelled:
            self.abandoned()
            raise
        except BaseException as error:
            if passes(error):
                self.abandoned()
                raise
            # A defect of an adapter, SystemExit included, must not stop the host.
            trace = outside.texts.redactor.traceback(error)
            told = "run %s: provider %s failed\n%s"
            _log.error(told, command.run_id, command.provider, trace)
            wrapped = RuntimeError(
                f"provider {command.provider} failed with {type(error).__name__}"
            )
            self._failed(ErrorKind.OTHER, wrapped)
        else:
            if not self.done:
                self.done = True
                outside.post(outcome)

    def abandoned(self) -> None:
        """Broken off: it may have been charged, nobody knows how much."""
        error = TimeoutError(
            f"the call was given up after {self.command.timeout_ms} ms or cancelled"
        )
        self._failed(ErrorKind.TIMEOUT, error)

    def _failed(self, kind: ErrorKind, error: BaseException, **more: object) -> None:
        if not self.done:
            self.done = True
            self.outside.failed(self.command, kind, error, **more)


def _check_count(count: object, most: int) -> None:
    """A count that the ledger can hold: an unknown one is no zero."""
    if type(count) is not int or not 0 <= count <= most:
        raise TypeError(f"{count!r} is no count")


def error_kind_of(error: ProviderError) -> ErrorKind:
    """The kind that an adapter gave its error; ``OTHER`` for a word that is none."""
    try:
        return ErrorKind(error.kind)
    except (ValueError, TypeError):
        return ErrorKind.OTHER


def passes(error: BaseException) -> bool:
    """Whether an exception belongs to the host's own task: a cancellation, or a person's Ctrl-C."""
    own = (trio.Cancelled, KeyboardInterrupt)
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(own) is not None
    return isinstance(error, own)


def _words(error: BaseException) -> str:
    """What an exception says; its type for one that cannot say anything."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - written by whoever wrote the adapter
        return type(error).__name__


def _whole_ms(span: object) -> int | None:
    """An adapter's span as whole milliseconds; None for one that is no span."""
    if isinstance(span, bool) or not isinstance(span, int | float) or not span >= 0:
        return None
    return int(min(span, WAIT_MS_MAX))


# --- tool calls ---------------------------------------------------------------------------------


class ToolJob:
    """One attempt at a tool call: awaited when the tool is async, in a thread when it is not."""

    __slots__ = ("command", "done", "key", "outside", "prepared", "tool")

    def __init__(self, outside: Outside, command: CallTool) -> None:
        self.outside: Outside = outside
        self.command: CallTool = command
        self.key: Hashable = (command.run, command.effect)
        self.tool: Tool | None = outside.offering.tools.get(command.tool)
        self.done: bool = False
        self.prepared: tuple[ToolCall, dict[str, object]] | None = None

    def _prepare(self) -> tuple[ToolCall, dict[str, object]]:
        command = self.command
        call = ToolCall(
            run_id=command.run_id,
            call_id=command.call_id,
            tool=command.tool,
            attempt=command.attempt,
            idempotency_key=f"{command.run_id}:{command.effect}",
            deadline_ms=command.timeout_ms,
            workdir=command.workdir,
            spill_dir=self.outside.spill_dir(command.run_id),
            redactor=self.outside.texts.redactor,
        )
        arguments = self.outside.texts.resolve(command.arguments)
        return call, _decode(arguments or "{}")

    def refused(self) -> bool:
        """Answer a call that cannot be made here; True when it was. Else it is ready to be made."""
        if self.tool is None:
            self._post(f"[error] tool {self.command.tool} is not open in this host", is_error=True)
        elif not os.path.isdir(self.command.workdir):
            text = f"[error] the working directory {self.command.workdir} is gone"
            self._post(text, is_error=True, workspace_lost=True)
        else:
            try:
                self.prepared = self._prepare()
            except (LevError, msgspec.DecodeError) as error:
                text = f"[error] this call of {self.command.tool} cannot be made: {error}"
                self._post(text, is_error=True)
            else:
                return False
        return True

    async def perform(self) -> None:
        """Await an async tool."""
        assert self.tool is not None
        assert self.prepared is not None
        try:
            result = await self.tool.call(*self.prepared)
        except MayHaveHappened:
            self.unknown()
        except BaseException as error:
            if passes(error):
                self.abandoned()
                raise
            text = f"tool {self.command.tool} failed with {type(error).__name__}"
            self.finished(ToolResult(text=text, is_error=True))
        else:
            self.finished(result)

    def perform_sync(self) -> Callable[[], None]:
        """Run a plain tool in this thread; returns what to do on the loop."""
        assert self.tool is not None
        assert self.prepared is not None
        try:
            result = self.tool.call_sync(*self.prepared)
        except MayHaveHappened:
            return self.unknown
        except BaseException as error:  # noqa: BLE001 - the thread must post an outcome
            text = f"tool {self.command.tool} failed with {type(error).__name__}"
            failed = ToolResult(text=text, is_error=True)
            return lambda: self.finished(failed)
        return lambda: self.finished(result)

    def finished(self, result: ToolResult) -> None:
        """Post the tool's result."""
        paths = result.modified[:MODIFIED_PATHS_MAX]
        modified = tuple(self.outside.texts.clean(str(path)) for path in paths)
        self._post(result.text, is_error=result.is_error, modified=modified)

    def unknown(self) -> None:
        """Post that nobody can tell whether the call happened."""
        self._post("", unknown=True)

    def abandoned(self) -> None:
        """Given up: its deadline passed, or the run ended."""
        command = self.command
        text = (
            f"[error] {command.tool} did not finish within {command.timeout_ms} ms and was given up"
        )
        if self.tool is not None and self.tool.effect != "pure":
            text += "; it may have taken effect, so check before doing it again"
        self._post(text, is_error=True)

    def _post(self, text: str, **more: object) -> None:
        if self.done:
            return
        self.done = True
        command = self.command
        # Before the cut, which might go through a secret.
        text = cut_middle(self.outside.texts.clean(text), command.result_bytes_max)
        self.outside.post(
            ToolFinished(
                command.run,
                command.effect,
                command.attempt,
                command.epoch,
                self.outside.texts.intern(text),
                empty=not text.strip(),
                **more,  # type: ignore[arg-type]
            )
        )


def cut_middle(text: str, bytes_max: int) -> str:
    """Head and tail of a text that is longer than the model is to see of it."""
    if len(text) * 4 <= bytes_max:
        return text
    size = len(text.encode())
    if size <= bytes_max:
        return text
    half = max(0, bytes_max - 64) // 2
    head = cut_utf8(text, half)
    tail = text.encode()[-half:].decode("utf-8", "ignore") if half else ""
    return f"{head}\n[... {size - 2 * half} bytes left out ...]\n{tail}"
