"""The words for why a model call failed, and what each one allows.

Providers choose the word, from a status code or an exception type and never from words inside a
message; systems read only the table, so that retry, breaker and failover cannot disagree.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping


class ErrorKind(StrEnum):
    """Why a model call failed; each member equals its wire word."""

    TRANSPORT = "transport"
    """No answer came: name lookup, connection, TLS, or a stream that broke off."""
    RATE_LIMITED = "rate_limited"
    """The provider refused this caller for now (HTTP 429)."""
    OVERLOADED = "overloaded"
    """The provider has no room for anybody (HTTP 503, 529)."""
    SERVER = "server"
    """The provider failed (another HTTP 5xx)."""
    AUTH = "auth"
    """The key is missing, wrong or expired (HTTP 401)."""
    FORBIDDEN = "forbidden"
    """The key is right and does not allow this (HTTP 403)."""
    CREDITS = "credits"
    """The account is out of money (HTTP 402)."""
    BAD_REQUEST = "bad_request"
    """The provider refuses this very request (another HTTP 4xx)."""
    CONTEXT_LENGTH = "context_length"
    """The prompt is longer than the model takes."""
    BAD_RESPONSE = "bad_response"
    """An answer came that is not what the protocol promises."""
    TIMEOUT = "timeout"
    """The call's deadline passed."""
    WORKSPACE_LOST = "workspace_lost"
    """The run's working directory is gone or cannot be read."""
    PROVIDER_MISSING = "provider_missing"
    """The world was opened without the provider that the stage names."""
    SCRIPT_EXHAUSTED = "script_exhausted"
    """A scripted or recorded provider has no reply for this call."""
    ABORTED = "aborted"
    """The engine ended the call: cancelled, superseded or closing."""
    OTHER = "other"
    """Anything else; never retried, because nobody knows what a second call would do."""


class ErrorPolicy(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one kind of error allows."""

    retryable: bool
    """The same call may succeed on the same provider a little later."""
    counts_for_breaker: bool
    """The failure tells about the provider, so that other runs should spare it."""
    allows_failover: bool
    """Another model or provider may succeed where this one failed for good."""


def _policy(*, retry: bool, breaker: bool, failover: bool) -> ErrorPolicy:
    return ErrorPolicy(retryable=retry, counts_for_breaker=breaker, allows_failover=failover)


ERROR_POLICIES: Final[Mapping[ErrorKind, ErrorPolicy]] = MappingProxyType(
    {
        ErrorKind.TRANSPORT: _policy(retry=True, breaker=True, failover=True),
        # Being told to wait is a fact about our rate, not about the provider's health.
        ErrorKind.RATE_LIMITED: _policy(retry=True, breaker=False, failover=True),
        ErrorKind.OVERLOADED: _policy(retry=True, breaker=True, failover=True),
        ErrorKind.SERVER: _policy(retry=True, breaker=True, failover=True),
        # A wrong key or an empty account stays so until a person acts: do not try it run after run.
        ErrorKind.AUTH: _policy(retry=False, breaker=True, failover=True),
        ErrorKind.FORBIDDEN: _policy(retry=False, breaker=True, failover=True),
        ErrorKind.CREDITS: _policy(retry=False, breaker=True, failover=True),
        # The request is at fault. Another model would be paid to refuse it as well.
        ErrorKind.BAD_REQUEST: _policy(retry=False, breaker=False, failover=False),
        # Another model may have a longer window.
        ErrorKind.CONTEXT_LENGTH: _policy(retry=False, breaker=False, failover=True),
        ErrorKind.BAD_RESPONSE: _policy(retry=True, breaker=False, failover=True),
        ErrorKind.TIMEOUT: _policy(retry=True, breaker=True, failover=True),
        ErrorKind.WORKSPACE_LOST: _policy(retry=False, breaker=False, failover=False),
        # The run waits until its provider is back rather than go on with one that nobody chose.
        ErrorKind.PROVIDER_MISSING: _policy(retry=False, breaker=False, failover=False),
        # A script that ran out is a fault of the test; a fallback would hide it.
        ErrorKind.SCRIPT_EXHAUSTED: _policy(retry=False, breaker=False, failover=False),
        ErrorKind.ABORTED: _policy(retry=False, breaker=False, failover=False),
        ErrorKind.OTHER: _policy(retry=False, breaker=False, failover=True),
    }
)
"""One row a kind."""

assert set(ERROR_POLICIES) == set(ErrorKind)


def error_kind(word: str) -> ErrorKind:
    """Return the kind of that wire word; ``OTHER`` for a word that this release does not know."""
    try:
        return ErrorKind(word)
    except ValueError:
        return ErrorKind.OTHER


def error_policy(word: str) -> ErrorPolicy:
    """Return what an error with that wire word allows."""
    return ERROR_POLICIES[error_kind(word)]
