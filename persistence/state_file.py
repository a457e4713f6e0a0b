"""``state.lev``: all parts of one run in one file, with every body that they refer to.

From this file alone, in another home or after the loss of ``world.db``, a run comes back as it was
at the file's step, to the last retry counter. Layout: 8 bytes of magic, then big-endian format
(u32), length of the rest (u64) and its crc32 (u32), then msgpack. A file that was cut anywhere,
that has bytes behind its end, or one wrong byte, is refused with what is wrong with it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from leviath.components.base import Component
from leviath.components.context import Context, Entry
from leviath.components.effects import Call, Effects, Held, Inbox, Timers, Turn
from leviath.components.errors import Damaged, NewerFormat
from leviath.components.family import Split
from leviath.components.identity import Identity, Launch
from leviath.components.output import Output
from leviath.components.parts import DECODERS, RUN_PARTS
from leviath.components.progress import Clock, Stage
from leviath.components.text import Text, text_digest

MAGIC: Final = b"LEVSTATE"
FORMAT: Final = 1
_HEAD: Final = struct.Struct(">8sIQI")
_REMEDY: Final = "restore it from a copy"
_NAMES: Final = frozenset(kind.__name__ for kind in RUN_PARTS)


class StateFile(Struct, frozen=True, array_like=True):
    """What a state.lev holds. Fields are appended only, each with a default."""

    run_id: str
    step: int
    epoch: int
    world_ms: int
    """World time of the write: what the parts' world times are relative to."""
    wall_ms: int
    parts: tuple[tuple[str, bytes], ...]
    """(name, msgpack body) in the order of RUN_PARTS."""
    bodies: tuple[tuple[bytes, bytes], ...] = ()
    """(digest, body): the blueprint and all long texts that the parts name."""


_encoder: Final = msgspec.msgpack.Encoder(order="deterministic")
_decoder: Final = msgspec.msgpack.Decoder(StateFile)


def encode_state(
    parts: Mapping[type[Component], Component],
    body: Callable[[bytes], bytes],
    *,
    step: int,
    epoch: int,
    world_ms: int,
    wall_ms: int,
) -> bytes:
    """The bytes of a run's state.lev. ``body`` fetches a body by digest; what it raises passes."""
    identity = parts[Identity]
    assert isinstance(identity, Identity)
    state = StateFile(
        identity.run_id,
        step,
        epoch,
        world_ms,
        wall_ms,
        tuple((kind.__name__, _encoder.encode(parts[kind])) for kind in RUN_PARTS if kind in parts),
        tuple((digest, body(digest)) for digest in digests_of(parts)),
    )
    rest = _encoder.encode(state)
    return _HEAD.pack(MAGIC, FORMAT, len(rest), zlib.crc32(rest)) + rest


def decode_state(data: bytes) -> StateFile:
    """What a state.lev holds, checked. Raises NewerFormat, and Damaged saying what is wrong."""
    if not data.strip(b"\0"):
        what = "is empty" if not data else "is filled with NUL bytes, as after a crash"
        raise Damaged(f"state.lev {what}; {_REMEDY}")
    if len(data) < _HEAD.size:
        raise Damaged(f"state.lev ends after {len(data)} bytes; {_REMEDY}")
    magic, number, length, crc = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise Damaged("state.lev is not a file of leviath; move it away")
    if number > FORMAT:
        raise NewerFormat(f"state.lev has format {number}, this leviath reads {FORMAT}; upgrade")
    rest = memoryview(data)[_HEAD.size :]
    if len(rest) != length:
        raise Damaged(f"state.lev has {len(rest)} bytes where {length} were written; {_REMEDY}")
    if number < 1 or zlib.crc32(rest) != crc:
        raise Damaged(f"state.lev is not what was written (checksum); {_REMEDY}")
    try:
        return _decoder.decode(rest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"state.lev cannot be decoded ({error}); {_REMEDY}") from None


def parts_of_state(state: StateFile) -> dict[type[Component], Component]:
    """The components. Raises Damaged for a part that cannot be decoded or that we do not know, for
    one that every run has and that is missing, and for a body that is not the one it is named for.
    """
    parts: dict[type[Component], Component] = {}
    for name, body in state.parts:
        if name not in _NAMES:
            raise Damaged(f"state.lev names a part {name!r}; use the newer leviath that wrote it")
        try:
            component: Component = DECODERS[name].decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Damaged(f"state.lev: its {name} cannot be decoded ({error})") from None
        parts[type(component)] = component
    identity = parts.get(Identity)
    if not isinstance(identity, Identity) or identity.run_id != state.run_id:
        raise Damaged(f"state.lev does not hold the run {state.run_id[:128]!r}; {_REMEDY}")
    known = {digest for digest, _ in state.bodies}
    for digest in digests_of(parts):
        if digest not in known:
            raise Damaged(f"state.lev lacks the text {digest.hex()}; {_REMEDY}")
    for digest, data in state.bodies:
        if text_digest(data) != digest:
            raise Damaged(f"state.lev: the text {digest.hex()} is not what was written")
    return parts


def digests_of(parts: Mapping[type[Component], Component]) -> list[bytes]:
    """Digests of all bodies that the parts refer to, each once, the blueprint's first."""
    found: dict[bytes, None] = {}
    launch = parts.get(Launch)
    if isinstance(launch, Launch) and launch.blueprint:
        found[launch.blueprint] = None
    split = parts.get(Split)
    if isinstance(split, Split):
        found[split.blueprint] = None
    for text in _texts(parts):
        if text.digest:
            found[text.digest] = None
    return list(found)


def _texts(parts: Mapping[type[Component], Component]) -> Iterator[Text]:
    for component in parts.values():
        match component:
            case Launch():
                yield component.task
                yield from (text for _, text in component.region_inputs)
            case Context():
                for region in component.regions:
                    yield from _entry_texts(region.entries)
            case Turn() | Held():
                yield component.text
                yield from _call_texts(component.calls)
            case Inbox():
                yield from (message.text for message in component.messages)
            case Output():
                yield component.content
            case Split():
                yield from (item.task for item in component.items)
            case _:
                pass


def _entry_texts(entries: Iterable[Entry]) -> Iterator[Text]:
    for entry in entries:
        yield entry.text
        yield from (reference.text for reference in entry.references)
        for call in entry.calls:
            yield call.arguments
            yield from (text for _, text in call.fields)


def _call_texts(calls: Iterable[Call]) -> Iterator[Text]:
    for call in calls:
        yield call.arguments
        if call.result is not None:
            yield call.result
        yield from (reference.text for reference in call.references)
        yield from (text for _, text in call.fields)


def rebased(
    parts: Mapping[type[Component], Component], state: StateFile, world_ms: int
) -> dict[type[Component], Component]:
    """The parts as a world at ``world_ms`` may take them in.

    Deadlines keep their distance, the open span of the clock is banked, and effects belong to
    epoch 0, which no host has: a Settle makes them again or calls them unknown.
    """
    moved = dict(parts)
    shift = world_ms - state.world_ms
    clock, effects = parts.get(Clock), parts.get(Effects)
    stage, timers = parts.get(Stage), parts.get(Timers)
    if isinstance(clock, Clock) and clock.since_ms is not None:
        span = max(0, state.world_ms - clock.since_ms)
        moved[Clock] = replace(clock, since_ms=None, active_ms=clock.active_ms + span)
    if isinstance(effects, Effects):
        items = tuple(
            replace(
                effect,
                epoch=0,
                due_ms=effect.due_ms + shift if effect.due_ms else 0,
                started_ms=effect.started_ms + shift,
            )
            for effect in effects.items
        )
        moved[Effects] = replace(effects, items=items)
    if isinstance(stage, Stage):
        moved[Stage] = replace(stage, entered_ms=stage.entered_ms + shift)
    if isinstance(timers, Timers):
        moved[Timers] = Timers(_shifted(timers.stall_ms, shift), _shifted(timers.stuck_ms, shift))
    return moved


def _shifted(ms: int | None, shift: int) -> int | None:
    return None if ms is None else ms + shift
