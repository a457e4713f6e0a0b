"""Carrying a delivery out: one POST, and one outcome input, whatever happens on the way."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from leviath.components.address import shown_url
from leviath.components.clean import cut_utf8
from leviath.components.errors import LevError
from leviath.components.inputs import Delivered
from leviath.components.outbox import delivery_id
from leviath.engine.callbacks import CallbackAnswer, CallbackRefused, signature
from leviath.engine.limits import CALLBACK_ANSWER_BYTES_MAX, CALLBACK_TIMEOUT_MS
from leviath.engine.outside import passes
from leviath.persistence.callback_body import callback_body

if TYPE_CHECKING:
    from collections.abc import Hashable

    from leviath.components.commands import Deliver
    from leviath.engine.outside import Outside

_log = logging.getLogger("leviath.engine")
_RETRYABLE = (408, 429)
"""Client errors that pass by themselves; all of 5xx do (leviath-run-files 7)."""


class DeliverJob:
    """One attempt at a delivery."""

    __slots__ = ("command", "done", "key", "outside", "url")

    def __init__(self, outside: Outside, command: Deliver) -> None:
        self.outside: Outside = outside
        self.command: Deliver = command
        self.url: str = command.launch.callback_url or ""
        """The whole of it once it is sent there; never log it."""
        self.done: bool = False
        """Its one outcome was posted."""
        self.key: Hashable = (command.run, command.delivery.number)

    async def perform(self) -> None:
        """Send it and post what became of it."""
        try:
            self.url = self._address()
            headers, body = self._message()
        except LevError as error:
            self._post(f"cannot be sent: {error}")
            return
        try:
            with trio.fail_after(CALLBACK_TIMEOUT_MS / 1_000):
                answer = await self.outside.callbacks.post(self.url, headers, body)
        except CallbackRefused as error:
            # Another host may be allowed to: it stays owed.
            self._post(str(error), refused=True)
        except trio.TooSlowError:
            self._post(f"no answer within {CALLBACK_TIMEOUT_MS:,} ms", retryable=True)
        except BaseException as error:
            if passes(error):
                self.abandoned()
                raise
            said = str(error) if isinstance(error, OSError) else ""
            self._post(said or type(error).__name__, retryable=True)
        else:
            self._answered(answer)

    def _address(self) -> str:
        """Where it goes. Raises LevError when the store has lost the hidden part of that."""
        ref = self.command.launch.callback_url_ref
        whole = self.url if ref is None else self.outside.secret(ref)
        if whole is None:
            raise LevError("the query of its address is lost; spawn the run with it again")
        return whole

    def _message(self) -> tuple[dict[str, str], bytes]:
        """Headers and body. Raises LevError when the store has lost what they are made of."""
        command = self.command
        body = callback_body(command, self.outside.texts.resolve)
        name = delivery_id(command.identity.run_id, command.delivery.generation)
        now_s = self.outside.wall_s()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "leviath",
            "X-Leviath-Delivery": name,
            "X-Leviath-Attempt": str(command.delivery.attempt),
            "X-Leviath-Timestamp": str(now_s),
        }
        ref = command.launch.callback_secret_ref
        if ref is not None:
            secret = self.outside.secret(ref)
            if secret is None:
                # Never sent without the signature that the receiver was promised.
                raise LevError("the secret that signs it is lost; spawn the run with it again")
            headers["X-Leviath-Signature"] = f"sha256={signature(secret, body)}"
            timed = signature(secret, body, timestamp_s=now_s)
            headers["X-Leviath-Signature-Timestamped"] = f"sha256={timed}"
        return headers, body

    def _answered(self, answer: CallbackAnswer) -> None:
        status = answer.status
        self._post(
            f"{status} {answer.reason}".rstrip(),
            accepted=200 <= status <= 299,
            retryable=status >= 500 or status in _RETRYABLE,
            retry_after_ms=answer.retry_after_ms,
        )

    def abandoned(self) -> None:
        """Broken off: the receiver may have it."""
        self._post("the attempt was broken off", retryable=True)

    def _post(self, answer: str, **more: object) -> None:
        if self.done:
            return
        self.done = True
        command = self.command
        delivery = command.delivery
        # An error of somebody else's sender may quote the address that it was given.
        answer = answer.replace(self.url, shown_url(self.url)) if self.url else answer
        answer = cut_utf8(self.outside.texts.clean(answer), CALLBACK_ANSWER_BYTES_MAX)
        if not more.get("accepted"):
            where = shown_url(self.url)
            told = "run %s: callback to %s failed (attempt %d): %s"
            run_id = command.identity.run_id
            _log.warning(told, run_id, where, delivery.attempt, answer)
        self.outside.post(
            Delivered(
                command.run,
                delivery.number,
                delivery.attempt,
                delivery.epoch,
                answer,
                **more,  # type: ignore[arg-type]
            )
        )
