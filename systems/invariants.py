"""What holds between two steps, each as a name and one line. Checked over the runs that changed;
over the whole world on load, on close and on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from leviath.components.budget import Reserved
from leviath.components.context import Context
from leviath.components.effects import Effects, Held, Turn
from leviath.components.family import FanOut
from leviath.components.identity import Identity, Imported, Launch, Tree
from leviath.components.marker import TRANSIENT, Marker, pair_is_legal
from leviath.components.outbox import Outbox
from leviath.components.parts import WORLD_OWNER
from leviath.components.people import Prompts
from leviath.components.progress import Clock, Cost, Stage, Visits
from leviath.components.run_status import RunStatus
from leviath.components.status import Position, Status
from leviath.components.world_facts import Counters
from leviath.systems.moves import clock_runs
from leviath.systems.regions import group_end
from leviath.systems.tree_invariants import (
    TREE_INVARIANTS,
    counts_no_worker_at_work,
    sums_agree,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from leviath.systems.world import World

Row: TypeAlias = "dict[type[Any], Any]"


def _legal_pair(world: World, n: int, row: Row) -> bool:
    position = row.get(Position)
    marker = None if position is None else position.marker
    return pair_is_legal(row[Status].status, marker)


def _no_transient(world: World, n: int, row: Row) -> bool:
    return world.marker(n) not in TRANSIENT


def _clock_runs_when_working(world: World, n: int, row: Row) -> bool:
    status = row[Status]
    clock = row[Clock]
    return (clock.since_ms is not None) == clock_runs(status.status, status.waiting)


def _error_with_error_only(world: World, n: int, row: Row) -> bool:
    status = row[Status]
    return (status.error is not None) == (status.status is RunStatus.ERROR)


def _waits_for_something(world: World, n: int, row: Row) -> bool:
    """A run that is not ended is owed something: an outcome, a person, a slot, or a resume."""
    status = row[Status]
    marker = world.marker(n)
    if not world.get(WORLD_OWNER, Counters).driven:
        return True
    effects = row[Effects]
    # What a stage left behind is charged when it comes back, and moves nobody.
    live = [effect for effect in effects.items if effect.live and not effect.superseded]
    if status.status is RunStatus.PAUSED or marker is None:
        return True
    if marker in (Marker.awaiting_inference, Marker.awaiting_transition_choice):
        return any(effect.kind in ("turn", "routing") for effect in live)
    if marker is Marker.awaiting_tools:
        return any(effect.kind == "tool" for effect in live)
    if marker is Marker.preparing:
        return any(effect.kind == "gather" for effect in live)
    if marker is Marker.backoff:
        return any(not effect.live and effect.due_ms for effect in effects.items)
    if marker is Marker.awaiting_person:
        return _can_be_answered(row)
    return True


def _can_be_answered(row: Row) -> bool:
    """A run that rests until a person acts says what is missing, or asks what can be answered."""
    waiting = row[Status].waiting
    if waiting is None or waiting.reason == "needs_setup" or Imported in row:
        return waiting is not None
    asked: Prompts | None = row.get(Prompts)
    turn: Turn | None = row.get(Turn)
    calls = () if turn is None else turn.calls
    return bool(asked is not None and asked.items) or any(
        call.state in ("asked", "unknown") for call in calls
    )


def _calls_have_effects(world: World, n: int, row: Row) -> bool:
    turn = row.get(Turn)
    if turn is None:
        return True
    numbers = {effect.number for effect in row[Effects].items}
    return all(
        call.effect in numbers
        for call in turn.calls
        if call.effect and call.state in ("open", "unknown")
    )


def _turn_only_with_tools(world: World, n: int, row: Row) -> bool:
    status = row[Status].status
    return not status.is_ended or (row.get(Turn) is None and row.get(Held) is None)


def _totals_are_sane(world: World, n: int, row: Row) -> bool:
    cost: Cost = row[Cost]
    return min(cost.prompt, cost.completion, cost.cached, cost.cache_write, cost.unpriced) >= 0


def _regions_add_up(world: World, n: int, row: Row) -> bool:
    for region in row[Context].regions:
        tokens = region.tokens
        for entry in region.entries:
            tokens -= entry.tokens
        if tokens:
            return False
    return True


def _stage_exists(world: World, n: int, row: Row) -> bool:
    stage: Stage | None = row.get(Stage)
    blueprint = world.blueprints.get(row[Launch].blueprint)
    if stage is None or blueprint is None:
        return blueprint is not None
    visits: Visits = row[Visits]
    return stage.index < len(blueprint.stages) == len(visits.counts)


def _deliveries_move(world: World, n: int, row: Row) -> bool:
    """An attempt that is outside is owed an outcome, and one that waits has its time."""
    outbox: Outbox | None = row.get(Outbox)
    counters = world.get(WORLD_OWNER, Counters)
    if outbox is None or not counters.driven:
        return True
    return all(
        item.state != "waiting" or item.due_ms or item.epoch != counters.epoch
        for item in outbox.items
    )


def _calls_are_answered_once(world: World, n: int, row: Row) -> bool:
    """A turn's results stand behind it, one for each of its calls, once the turn is over."""
    turn: Turn | None = row.get(Turn)
    open_calls: set[str] = set() if turn is None else {call.call_id for call in turn.calls}
    for region in row[Context].regions:
        entries = region.entries
        for at, entry in enumerate(entries):
            if not entry.calls:
                continue
            asked = {call.call_id for call in entry.calls}
            end = group_end(entries, at)
            answered = [result.call_id for result in entries[at + 1 : end]]
            is_open = end == len(entries) and not answered and asked <= open_calls
            if len(answered) != len(set(answered)) or (set(answered) != asked and not is_open):
                return False
    return True


def _turn_results_are_settled(world: World, n: int, row: Row) -> bool:
    turn: Turn | None = row.get(Turn)
    return turn is None or all(
        (call.result is not None) == (call.state == "done") for call in turn.calls
    )


def _parent_agrees(world: World, n: int, row: Row) -> bool:
    """As far as the parent is hosted: one that has ended may have left memory."""
    tree: Tree = row[Tree]
    if not tree.parent:
        return tree.depth == 0 or tree.parent_run_id is not None
    above: Tree | None = world.find(tree.parent, Tree)
    if above is None:
        return tree.parent != n
    return (
        world.run_id(tree.parent) == tree.parent_run_id
        and tree.depth == above.depth + 1
        and tree.root == above.root
    )


def _holds_are_for_calls(world: World, n: int, row: Row) -> bool:
    """What is set aside is for a call that is outside; a turn, also for a reply that waits."""
    reserved: Reserved | None = row.get(Reserved)
    if reserved is None:
        return True
    live = {(one.number, one.attempt) for one in row[Effects].items if one.live and one.provider}
    held: Held | None = row.get(Held)
    waits = 0 if held is None else held.effect
    return all(
        (hold.effect, hold.attempt) in live
        or (hold.effect == waits and not hold.nano_usd and not hold.tokens)
        for hold in reserved.holds
    )


def _indexed(world: World, n: int, row: Row) -> bool:
    identity: Identity = row[Identity]
    return identity.ordinal == n and world.by_run_id.get(identity.run_id) == n


INVARIANTS: tuple[tuple[str, Callable[[World, int, Row], bool]], ...] = (
    ("status and marker are a legal pair", _legal_pair),
    ("no transient marker outlives its step", _no_transient),
    ("the clock runs exactly while the run works", _clock_runs_when_working),
    ("an error text stands exactly with status error", _error_with_error_only),
    ("every run that has not ended is owed something", _waits_for_something),
    ("every open call has its effect", _calls_have_effects),
    ("an ended run has no turn under way", _turn_only_with_tools),
    ("no total is negative", _totals_are_sane),
    ("a region's tokens are those of its entries", _regions_add_up),
    ("a run's stage is one of its blueprint's", _stage_exists),
    ("a run is found by its id and ordinal", _indexed),
    ("every saved call has one result or is open", _calls_are_answered_once),
    ("a call of the turn has a result when it is done", _turn_results_are_settled),
    ("parent and child agree", _parent_agrees),
    ("every open delivery goes out", _deliveries_move),
    ("what is set aside is for a call", _holds_are_for_calls),
    *TREE_INVARIANTS,
    ("what the runs below a run cost is their sum", sums_agree),
    ("no worker at work counts as ended", counts_no_worker_at_work),
)
_LONG = (_regions_add_up, _calls_are_answered_once, sums_agree, counts_no_worker_at_work)


_SHALLOW = tuple(check for check in INVARIANTS if check[1] not in _LONG)
"""Without what costs as much as a run's context is long: that is looked at with the whole world."""


def _plainly(world: World, n: int, row: Row) -> bool:
    """Whether a run is in one of the two states of a turn, or parked, and all of ``_SHALLOW``
    holds, at a quarter of its price: nine of ten looks end here. False says nothing; then each one
    is looked at."""
    status: Status = row[Status]
    items = row[Effects].items
    turn = row.get(Turn)
    marker = row[Position].marker
    works = status.status is RunStatus.RUNNING and status.waiting is None
    if works and len(items) == 1 and items[0].live and not items[0].superseded:
        number, kind = items[0].number, items[0].kind
        if marker is Marker.awaiting_inference and kind == "turn":
            if turn is not None:
                return False
        elif marker is Marker.awaiting_tools and kind == "tool" and turn is not None:
            for call in turn.calls:
                is_done = call.state == "done"
                if (call.effect != number and not is_done) or (call.result is None) is is_done:
                    return False
        else:
            return False
    elif (
        works
        or items
        or turn is not None
        or marker is not Marker.awaiting_person
        or status.status is not RunStatus.WAITING_INPUT
        or status.waiting is None
        or clock_runs(status.status, status.waiting)
    ):
        return False
    tree: Tree = row[Tree]
    if tree.parent or tree.depth or row.get(Outbox) is not None:
        return False
    cost: Cost = row[Cost]
    stage: Stage = row[Stage]
    identity: Identity = row[Identity]
    stages = world.blueprints[row[Launch].blueprint].stages
    return (
        (row[Clock].since_ms is not None) is works
        and status.error is None
        and cost.prompt >= 0
        and cost.completion >= 0
        and cost.cached >= 0
        and cost.cache_write >= 0
        and cost.unpriced >= 0
        and stage.index < len(stages) == len(row[Visits].counts)
        and identity.ordinal == n
        and world.by_run_id.get(identity.run_id) == n
        and FanOut not in row
        and Reserved not in row
    )


def broken(world: World, owners: Iterable[int], *, deep: bool = True) -> list[tuple[int, str]]:
    """(run, invariant) for each one that does not hold."""
    rows = world.live_rows
    checks = INVARIANTS if deep else _SHALLOW
    found: list[tuple[int, str]] = []
    for n in owners:
        row = rows.get(n)
        if not n or row is None:
            continue
        try:
            if _plainly(world, n, row) and (
                not deep or all(holds(world, n, row) for holds in _LONG)
            ):
                continue
        except KeyError:
            pass  # a part is missing: the checks below say for which of them
        for name, holds in checks:
            try:
                if not holds(world, n, row):
                    found.append((n, name))
            except KeyError:
                found.append((n, f"{name} (a part is missing)"))
    return found
