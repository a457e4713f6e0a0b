"""Every invariant of torture can be broken: a fault for each, seen by its own name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hand_agents import ONE, TOOLS
from msgspec.structs import replace

from leviath.components.commands import CallTool, Infer
from leviath.components.context import AskedCall, Context
from leviath.components.effects import Effects, Turn
from leviath.components.identity import Tree
from leviath.components.inputs import InferenceFinished, Spawn
from leviath.components.marker import Marker
from leviath.components.progress import Clock, Cost
from leviath.components.status import Position
from leviath.components.text import inline
from leviath.simulation.acts import Act
from leviath.simulation.checkers import (
    NAMES,
    Breached,
    check_caches,
    check_runs,
    check_totals,
    totals_of,
)
from leviath.simulation.hand import Hand
from leviath.simulation.histories import play
from leviath.simulation.model_host import ModelHost, Plants
from leviath.simulation.torture_cast import built_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from leviath.components.base import Component

CAST = built_in()


def breach_of(check: Callable[[], object]) -> str:
    with pytest.raises(Breached) as caught:
        check()
    assert str(caught.value.breach).startswith(f"{caught.value.breach.invariant}: ")
    return caught.value.breach.invariant


def asking() -> tuple[Hand, int]:
    """A run whose model asked for one call of each of two tools."""
    hand = Hand(tools=TOOLS, check=False)
    run = hand.spawn(ONE)
    hand.reply("", ("a", "look", "{}"), ("b", "send", "{}"))
    return hand, run


def changed(kind: type[Any], **fields: object) -> Callable[[Hand, int], None]:
    def change(hand: Hand, run: int) -> None:
        part: Component = hand.world.get(run, kind)
        hand.world.put(run, replace(part, **fields))

    return change


def twice_answered(hand: Hand, run: int) -> None:
    hand.tool()
    hand.tool()
    context = hand.world.get(run, Context)
    index = context.index("conversation")
    hand.world.splice(run, index, 0, context.regions[index].entries[-1:])


def half_done(hand: Hand, run: int) -> None:
    turn = hand.world.get(run, Turn)
    calls = (replace(turn.calls[0], state="done"), turn.calls[1])
    hand.world.put(run, replace(turn, calls=calls))


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (changed(Position, marker=Marker.preparing), "markers"),
        (changed(Position, marker=Marker.ready_for_tools), "markers"),
        (changed(Effects, items=()), "stuck"),
        (changed(Position, marker=Marker.awaiting_inference), "stuck"),
        (twice_answered, "calls"),
        (half_done, "calls"),
        (changed(Tree, parent=1), "tree"),
        (changed(Tree, depth=2), "tree"),
        (changed(Clock, since_ms=None), "rules"),
    ],
)
def test_a_fault_in_a_run_is_counted_where_it_belongs(
    fault: Callable[[Hand, int], None], name: str
) -> None:
    hand, run = asking()
    check_runs(hand.world, [run])
    fault(hand, run)
    assert name in NAMES
    assert breach_of(lambda: check_runs(hand.world, [run])) == name


def test_a_cache_that_a_load_would_not_build_is_seen() -> None:
    hand, _ = asking()
    check_caches(hand.world, hand.caches)
    hand.caches.in_use["scripted", "m"] = 7
    assert breach_of(lambda: check_caches(hand.world, hand.caches)) == "caches"


def test_totals_are_those_of_the_ledger() -> None:
    hand, run = asking()
    facts = [fact for result in hand.results for fact in result.facts]
    check_totals(hand.world, [run], {run: facts})
    assert totals_of(facts) == (10, 2, 0, 0, 1_000, 0)
    assert breach_of(lambda: check_totals(hand.world, [run], {run: facts * 2})) == "totals"
    hand.world.put(run, replace(hand.world.get(run, Cost), unpriced=1))
    assert breach_of(lambda: check_totals(hand.world, [run], {run: facts})) == "totals"


def model_host(plants: Plants | None = None) -> ModelHost:
    """A host with one run that was sent a `once` call."""
    host = ModelHost(
        CAST.offer, CAST.shelf, seed=1, policy=CAST.policy, prices=CAST.prices, plants=plants
    )
    digest = next(digest for digest, blueprint in CAST.shelf.items() if blueprint.name == "one")
    launch = Hand(check=False)
    launch.spawn(CAST.shelf[digest])
    (spawn,) = [item for item in launch.results[-1].inputs if isinstance(item, Spawn)]
    host.post(spawn)
    host.commit()
    (infer,) = [command for command in host.commands if isinstance(command, Infer)]
    calls = (AskedCall("a", "send", inline("{}")),)
    host.post(
        InferenceFinished(
            infer.run, infer.effect, infer.attempt, infer.epoch, calls=calls, prompt=1
        )
    )
    host.commit()
    return host


def test_a_once_call_that_leaves_twice_is_seen() -> None:
    host = model_host()
    (call,) = [command for command in host.commands if isinstance(command, CallTool)]
    host.crash()
    host.commit()
    assert call not in host.commands, "somebody is asked about it"
    assert breach_of(lambda: host._release(call)) == "once"


def test_steps_and_files_are_held_against_what_was_said() -> None:
    host = model_host()
    host.store.rows.pop()
    assert breach_of(host.crash) == "steps"
    host = model_host()
    host.store.rows[0] = replace(host.store.rows[0], inputs=b"other")
    assert breach_of(host.crash) == "steps"
    host = model_host()
    host.store.files[1] = 99
    assert breach_of(host.crash) == "files"


def test_a_run_that_nothing_moves_is_stuck() -> None:
    """Offered neither models nor tools for good, which the ending of a history gives back."""
    nobody = replace(CAST, offer=replace(CAST.offer, providers=()))
    played = play(nobody, 1, [Act("spawn", 0, 1, 1)])
    assert played.breach is not None
    assert played.breach.invariant == "stuck"
