"""Runs that come in from elsewhere with calls in flight: settled when driven, at rest when held."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from leviath.components.commands import Infer
from leviath.components.effects import Effects, Turn
from leviath.components.identity import Launch
from leviath.components.inputs import Import, Resume
from leviath.components.marker import Marker
from leviath.components.progress import Cost
from leviath.components.run_status import RunStatus
from leviath.components.world_facts import OfferedTool
from leviath.engine.blueprints import parse_blueprint
from leviath.simulation.hand import Hand

AGENT = """
[agent]
name = "one"
[stages.main]
available_tools = ["look", "send"]
[stages.main.model]
models = [{ provider = "scripted", model = "m" }]
"""
TOOLS = (
    OfferedTool("look", "pure", 1000, b"look"),
    OfferedTool("send", "once", 1000, b"send"),
)


def attempts(hand: Hand) -> list[int]:
    return [command.attempt for command in hand.commands if isinstance(command, Infer)]


def moved(*calls: tuple[str, str, str], hold: bool) -> tuple[Hand, int]:
    """A run whose model call (or tool calls) was in flight, taken over into another world."""
    blueprint = parse_blueprint(AGENT, where="one")
    there = Hand(tools=TOOLS)
    run = there.spawn(blueprint)
    if calls:
        there.reply("", *calls)
    parts: list[tuple[str, bytes]] = []
    for part in there.world.parts_of(run):
        body = msgspec.msgpack.encode(part)
        if isinstance(part, Effects):
            items = tuple(replace(effect, epoch=0) for effect in part.items)
            body = msgspec.msgpack.encode(replace(part, items=items))
        parts.append((type(part).__name__, body))
    here = Hand(tools=TOOLS)
    digest = there.world.get(run, Launch).blueprint
    here.world.blueprints[digest] = there.world.blueprints[digest]
    ack = here.post(Import(1, tuple(parts), hold)).acks[0]
    assert not ack.code, ack.message
    return here, ack.run


def test_a_driven_import_makes_its_model_call_again_and_counts_the_lost_one() -> None:
    here, run = moved(hold=False)
    assert attempts(here) == [2]
    assert here.world.get(run, Cost).unpriced == 1


def test_a_held_import_sends_nothing_until_it_is_resumed() -> None:
    here, run = moved(hold=True)
    assert here.status(run).status is RunStatus.PAUSED
    assert not here.commands
    here.restart()
    assert not here.commands, "the next host does not send it either"
    here.post(Resume(run, 2))
    assert attempts(here) == [2]


def test_a_held_import_keeps_safe_calls_open_and_asks_about_the_others() -> None:
    here, run = moved(("a", "look", "{}"), ("b", "send", "{}"), hold=True)
    assert not here.commands
    states = {call.call_id: call.state for call in here.world.get(run, Turn).calls}
    assert states == {"a": "open", "b": "unknown"}
    here.post(Resume(run, 2))
    assert here.status(run).status is RunStatus.WAITING_INPUT
    assert here.world.marker(run) is Marker.awaiting_person


@pytest.mark.parametrize("hold", [True, False])
def test_an_import_whose_id_is_taken_is_refused_and_leaves_nothing(hold: bool) -> None:
    here, run = moved(hold=hold)
    parts = tuple(
        (type(part).__name__, msgspec.msgpack.encode(part)) for part in here.world.parts_of(run)
    )
    ack = here.post(Import(5, parts, hold)).acks[0]
    assert ack.code == "run_conflict"
    assert list(here.world.owners()) == [run]
