"""Ports: what the engine asks of the outside, as small protocols, and the values that cross them.

A provider is one method. Values are frozen and made of immutable types, so that a lane, a recorder
and a test may keep one without a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from leviath.components.error_kind import ERROR_POLICIES, ErrorKind, ErrorPolicy, error_policy
from leviath.components.errors import ProviderError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "ERROR_POLICIES",
    "CallRequest",
    "ErrorKind",
    "ErrorPolicy",
    "InferenceReply",
    "InferenceRequest",
    "Message",
    "Provider",
    "ProviderError",
    "Role",
    "ToolSpec",
    "Usage",
    "error_policy",
    "provider_error",
]

Role = Literal["system", "user", "assistant", "tool"]
"""Who speaks in a message."""


class ToolSpec(msgspec.Struct, frozen=True, gc=False):
    """A tool as it is offered to the model."""

    name: str
    description: str
    schema_json: str
    """JSON Schema of the arguments, as text: always an object."""


class CallRequest(msgspec.Struct, frozen=True, gc=False):
    """A tool call that the model asks for."""

    id: str
    """The provider's id for the call; unique within one reply, not beyond."""
    name: str
    arguments: str
    """Raw JSON text from the model: not checked, perhaps not JSON at all."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message of the prompt, oldest first in the request."""

    role: Role
    text: str
    calls: tuple[CallRequest, ...] = ()
    """Calls asked for by an ``assistant`` message."""
    call_id: str = ""
    """Of a ``tool`` message: the ``CallRequest.id`` that it answers."""
    tool: str = ""
    """Of a ``tool`` message: the tool's name."""
    is_error: bool = False
    """Of a ``tool`` message: the call failed and ``text`` says why."""


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts of one call. The four are disjoint: none is contained in another."""

    prompt: int = 0
    """Prompt tokens billed at the full rate."""
    completion: int = 0
    cached: int = 0
    """Prompt tokens read from the provider's cache."""
    cache_write: int = 0
    """Prompt tokens written to the provider's cache."""


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One model call, complete: a provider needs nothing else to make it."""

    run_id: str
    kind: str
    """What the call is for: ``turn``, ``routing``, ``compaction``, ``title`` or ``judge``."""
    ordinal: int
    """Counts this run's calls of that kind from 1; retries of one call keep it."""
    attempt: int
    """Counts the attempts at this call from 1, lost ones included."""
    idempotency_key: str
    """Made of run id and effect: the same for every attempt, unique in a home."""
    provider: str
    model: str
    stage: str
    messages: Sequence[Message]
    """Immutable, oldest first; put together on first use, so read them in the host's thread."""
    tools: tuple[ToolSpec, ...]
    max_output_tokens: int | None
    """None: the model's own cap."""
    temperature_milli: int | None
    """Thousandths; None: the model's own default."""
    parameters_json: str
    """The stage's further parameters for this provider, a JSON object as text; empty for none."""
    timeout_ms: int
    """The engine's deadline for this attempt; it aborts the call itself when that passes."""
    agent: str = ""
    """The run's agent, for providers that answer by it."""
    key: str = ""
    """The key that the run was spawned with; empty for none."""


class InferenceReply(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a model answered."""

    text: str = ""
    calls: tuple[CallRequest, ...] = ()
    usage: Usage = Usage()
    cost_nano_usd: int | None = None
    """The provider's own figure for this call; None when it gives none (unknown, not zero)."""
    stop_reason: str = "end"
    """``end``, ``tools``, ``length``, ``filtered`` or the provider's own word."""


class Provider(Protocol):
    """An adapter to models. All that decides is in the request; no state of a run lives here."""

    @property
    def name(self) -> str:
        """The name that blueprints use: the left side of ``provider/model``."""
        ...

    async def infer(
        self, request: InferenceRequest, on_text: Callable[[str], None] | None
    ) -> InferenceReply:
        """Make one call.

        ``on_text`` takes pieces of text as they come; together they are the reply's text. It never
        blocks. Raises ProviderError with kind, retryable and retry_after_ms; any other exception is
        a defect of the adapter and counts as ``other``. Cancelled: the call may have happened and
        been charged; nothing of it is kept.
        """
        ...


def provider_error(
    kind: ErrorKind, message: str, *, retry_after_ms: int | None = None, **fields: object
) -> ProviderError:
    """Return a ProviderError whose ``retryable`` is what the table says of its kind."""
    return ProviderError(
        message,
        kind=kind.value,
        retryable=ERROR_POLICIES[kind].retryable,
        retry_after_ms=retry_after_ms,
        **fields,
    )
