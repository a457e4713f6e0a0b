"""Requests to a provider, and asking it without an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leviath.engine.ports import InferenceReply, InferenceRequest, Message

if TYPE_CHECKING:
    from leviath.engine.ports import Provider


def request(ordinal: int = 1, attempt: int = 1, **changes: Any) -> InferenceRequest:
    fields: dict[str, Any] = {
        "run_id": "run-a",
        "kind": "turn",
        "idempotency_key": f"run-a/{ordinal}",
        "provider": "scripted",
        "model": "small",
        "stage": "work",
        "messages": (Message("user", "Do it."),),
        "tools": (),
        "max_output_tokens": None,
        "temperature_milli": None,
        "parameters_json": "",
        "timeout_ms": 1_000,
    }
    return InferenceRequest(ordinal=ordinal, attempt=attempt, **(fields | changes))


def ask(provider: Provider, asked: InferenceRequest) -> tuple[InferenceReply, list[str]]:
    """Make the call without an event loop: a reply without delay never waits."""
    pieces: list[str] = []
    call = provider.infer(asked, pieces.append)
    try:
        call.send(None)
    except StopIteration as done:
        return done.value, pieces
    raise AssertionError("the provider waited")
