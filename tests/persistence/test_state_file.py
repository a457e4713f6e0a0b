"""state.lev brings a run back whole, or says what is wrong with it."""

from __future__ import annotations

import struct
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leviath.components.base import Component
from leviath.components.blueprint import Blueprint, StageSpec, canonical_bytes, digest
from leviath.components.context import AskedCall, Context, Entry, Region
from leviath.components.effects import Call, Effect, Effects, Held, Inbox, Message, Timers, Turn
from leviath.components.errors import Damaged, NewerFormat
from leviath.components.identity import Identity, Launch
from leviath.components.output import Output
from leviath.components.progress import Clock, Stage
from leviath.components.run_status import RunStatus
from leviath.components.status import Status
from leviath.components.text import Text, inline, text_digest
from leviath.persistence.state_file import (
    FORMAT,
    MAGIC,
    decode_state,
    digests_of,
    encode_state,
    parts_of_state,
    rebased,
)

BLUEPRINT = Blueprint(stages=(StageSpec(name="main"),))
BODIES: dict[bytes, bytes] = {digest(BLUEPRINT): canonical_bytes(BLUEPRINT)}


def long(name: str) -> Text:
    """A text by digest, which the file has to bring along."""
    body = name.encode() * 400
    BODIES[text_digest(body)] = body
    return Text("", text_digest(body), len(body))


def run_parts() -> dict[type[Component], Component]:
    call = Call("c", "t", long("arguments"), result=long("result"), fields=(("p", long("field")),))
    asked = AskedCall("c", "t", long("asked"), fields=(("p", long("asked field")),))
    entries = (Entry(long("entry"), 1, "assistant", (asked,)), Entry(inline("short"), 1))
    components: tuple[Component, ...] = (
        Identity("run-1", 4, "a", "/a"),
        Launch(long("task"), "/w", digest(BLUEPRINT), 1, region_inputs=(("r", long("input")),)),
        Status(RunStatus.RUNNING),
        Clock(active_ms=1_000, since_ms=5_000),
        Stage(0, "main", entered_ms=4_000),
        Context((Region("conversation", 100, 2, entries),)),
        Effects(3, 1, 0, (Effect(3, "turn", 2, epoch=7, due_ms=9_000, started_ms=5_500),)),
        Turn(long("turn"), (call,)),
        Held(2, long("held"), (call,)),
        Timers(stall_ms=8_000),
        Inbox((Message(long("message")),)),
        Output(long("output"), "main", 1, 2),
    )
    return {type(part): part for part in components}


def encoded() -> bytes:
    return encode_state(
        run_parts(), BODIES.__getitem__, step=12, epoch=7, world_ms=6_000, wall_ms=1_790_000_000_000
    )


def test_a_run_comes_back_whole_with_all_its_texts() -> None:
    state = decode_state(encoded())
    assert parts_of_state(state) == run_parts()
    assert (state.run_id, state.step, state.epoch, state.world_ms) == ("run-1", 12, 7, 6_000)
    bodies = dict(state.bodies)
    assert len(bodies) == 13
    assert bodies == {key: BODIES[key] for key in digests_of(run_parts())}


def test_equal_state_has_equal_bytes() -> None:
    assert encoded() == encoded()


def test_a_file_cut_at_any_byte_is_noticed() -> None:
    whole = encoded()
    for length in range(len(whole)):
        with pytest.raises(Damaged):
            decode_state(whole[:length])


@given(st.data())
def test_one_wrong_byte_or_more_bytes_are_noticed(data: st.DataObject) -> None:
    whole = bytearray(encoded())
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises((Damaged, NewerFormat)):
        decode_state(bytes(whole))
    with pytest.raises(Damaged):
        decode_state(encoded() + b"\0")


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(Damaged):
        decode_state(data)


def test_each_damage_is_named() -> None:
    head = struct.Struct(">8sIQI")
    with pytest.raises(Damaged, match="is empty"):
        decode_state(b"")
    with pytest.raises(Damaged, match="filled with NUL bytes"):
        decode_state(bytes(5_000))
    with pytest.raises(Damaged, match="not a file of leviath"):
        decode_state(b"{" * 100)
    with pytest.raises(NewerFormat, match=f"format {FORMAT + 1}, this leviath reads {FORMAT}"):
        decode_state(head.pack(MAGIC, FORMAT + 1, 0, 0))
    rest = msgspec.msgpack.encode(["run-1", "no step"])
    with pytest.raises(Damaged, match="cannot be decoded"):
        decode_state(head.pack(MAGIC, FORMAT, len(rest), zlib.crc32(rest)) + rest)


def test_parts_that_do_not_belong_together_are_refused() -> None:
    state = decode_state(encoded())
    with pytest.raises(Damaged, match="lacks the text"):
        parts_of_state(msgspec.structs.replace(state, bodies=state.bodies[1:]))
    with pytest.raises(Damaged, match="does not hold the run"):
        parts_of_state(msgspec.structs.replace(state, run_id="other"))
    with pytest.raises(Damaged, match="'Newer'"):
        parts_of_state(msgspec.structs.replace(state, parts=(("Newer", b"\x90"),)))
    with pytest.raises(Damaged, match="Status cannot be decoded"):
        parts_of_state(msgspec.structs.replace(state, parts=(("Status", b"\x90"),)))
    wrong = ((state.bodies[0][0], b"other"), *state.bodies[1:])
    with pytest.raises(Damaged, match="is not what was written"):
        parts_of_state(msgspec.structs.replace(state, bodies=wrong))


def test_times_of_another_world_keep_their_distance() -> None:
    state = decode_state(encoded())
    moved = rebased(run_parts(), state, 100)
    clock, effects, stage = moved[Clock], moved[Effects], moved[Stage]
    assert isinstance(clock, Clock)
    assert isinstance(effects, Effects)
    assert isinstance(stage, Stage)
    assert (clock.since_ms, clock.active_ms) == (None, 2_000)
    effect = effects.items[0]
    assert (effect.epoch, effect.due_ms, effect.started_ms) == (0, 3_100, -400)
    assert stage.entered_ms == -1_900
    assert moved[Timers] == Timers(stall_ms=2_100)
