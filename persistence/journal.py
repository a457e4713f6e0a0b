"""The journal's bytes: inputs, redo list and events of a step, and the digest that chains them.

digest(n) = H(digest(n-1), step, times, inputs, changes): a missing or altered row cannot pass.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

from leviath.components.changes import Change
from leviath.components.errors import Damaged
from leviath.components.events import WorldEvent
from leviath.components.inputs import Input
from leviath.persistence.rows import JournalRow

if TYPE_CHECKING:
    from collections.abc import Sequence

DIGEST_BYTES: Final = 32
ORIGIN: Final = bytes(DIGEST_BYTES)
"""The digest before the first step."""

_encoder = msgspec.msgpack.Encoder(order="deterministic")
_inputs = msgspec.msgpack.Decoder(tuple[Input, ...])
_changes = msgspec.msgpack.Decoder(list[Change])
_events = msgspec.msgpack.Decoder(tuple[WorldEvent, ...])
_times = struct.Struct(">QqqQQ")


def chain(
    before: bytes, step: int, world_ms: int, wall_ms: int, inputs: bytes, changes: bytes
) -> bytes:
    """The digest after a step."""
    digest = blake2b(before, digest_size=DIGEST_BYTES)
    digest.update(_times.pack(step, world_ms, wall_ms, len(inputs), len(changes)))
    digest.update(inputs)
    digest.update(changes)
    return digest.digest()


def encode_step(
    before: bytes,
    *,
    step: int,
    epoch: int,
    world_ms: int,
    wall_ms: int,
    inputs: Sequence[Input],
    changes: Sequence[Change],
    events: Sequence[WorldEvent],
) -> JournalRow:
    """The row of one step, chained to the row before it."""
    taken = _encoder.encode(inputs)
    changed = _encoder.encode(changes)
    return JournalRow(
        step,
        epoch,
        world_ms,
        wall_ms,
        taken,
        changed,
        _encoder.encode(events) if events else b"",
        chain(before, step, world_ms, wall_ms, taken, changed),
    )


def check_chain(before: bytes, row: JournalRow) -> bytes:
    """The digest after ``row``. Raises Damaged when the row is not what was written."""
    digest = chain(before, row.step, row.world_ms, row.wall_ms, row.inputs, row.changes)
    if digest != row.digest:
        raise Damaged(
            f"step {row.step} of the journal is not what was written; restore the home from a copy",
            step=row.step,
        )
    return digest


def decode_inputs(row: JournalRow) -> tuple[Input, ...]:
    """The inputs of a step. Raises Damaged."""
    try:
        return _inputs.decode(row.inputs)
    except msgspec.DecodeError as error:
        raise Damaged(f"step {row.step}: its inputs cannot be decoded ({error})") from None


def decode_changes(row: JournalRow) -> list[Change]:
    """The redo list of a step. Raises Damaged."""
    try:
        return _changes.decode(row.changes)
    except msgspec.DecodeError as error:
        raise Damaged(f"step {row.step}: its changes cannot be decoded ({error})") from None


def decode_events(row: JournalRow) -> tuple[WorldEvent, ...]:
    """The events of a step. Raises Damaged."""
    if not row.events:
        return ()
    try:
        return _events.decode(row.events)
    except msgspec.DecodeError as error:
        raise Damaged(f"step {row.step}: its events cannot be decoded ({error})") from None
