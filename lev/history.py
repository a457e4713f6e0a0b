"""``lev at``, ``lev diff`` and ``lev why``: what a saved world was, and how it came to that."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec

from leviath.components.money import usd_text
from leviath.components.progress import Cost, Stage
from leviath.components.status import Status
from leviath.lev.homes import home_of
from leviath.lev.replaying import value_text
from leviath.lev.text import clip, one_line, plural, show, table
from leviath.persistence.history import History, facts
from leviath.persistence.saved import open_saved

if TYPE_CHECKING:
    import argparse

    from leviath.components.base import Component
    from leviath.components.inputs import Input
    from leviath.persistence.history import Cause, WorldState

_INPUT_COLUMNS = 160


def at(arguments: argparse.Namespace) -> int:
    """0; the runs of the world as a step left them."""
    with open_saved(home_of(arguments.home)) as saved:
        history = History(saved)
        only = None if arguments.run is None else history.find(arguments.run)[1]
        state = history.at(arguments.step)
    owners = sorted(owner for owner in state.owners if only in (None, owner))
    if arguments.json:
        document = {
            "step": state.step,
            "world_ms": state.world_ms,
            "wall_ms": state.wall_ms,
            "owners": [
                {"owner": n, "run_id": state.run_id(n) or None, "parts": _parts(state, n)}
                for n in owners
            ],
        }
        print(json.dumps(document, ensure_ascii=False, indent=2))
    elif only is None:
        show(_listing(state))
    else:
        row = state.owners.get(only, {})
        show(f"{kind.__name__}: {value_text(part)}" for kind, part in row.items())
        if not row:
            show([f"the run is not there at step {state.step}"])
    return 0


def _parts(state: WorldState, owner: int) -> dict[str, object]:
    row = state.owners[owner]
    return {kind.__name__: facts(row[kind]) for kind in sorted(row, key=lambda kind: kind.__name__)}


def _listing(state: WorldState) -> list[str]:
    rows = [["RUN", "STATUS", "STAGE", "TURN", "COST"]]
    for owner in sorted(state.owners):
        row = state.owners[owner]
        status, stage, cost = row.get(Status), row.get(Stage), row.get(Cost)
        if isinstance(status, Status):
            at_stage = stage if isinstance(stage, Stage) else None
            nano = cost.priced_nano if isinstance(cost, Cost) else 0
            rows.append(
                [
                    state.run_id(owner),
                    status.status.value,
                    "-" if at_stage is None else at_stage.name,
                    "-" if at_stage is None else str(at_stage.iteration),
                    f"${usd_text(nano)}",
                ]
            )
    head = f"step {state.step} at {state.world_ms:,} ms: {plural(len(rows) - 1, 'run')}"
    return [head, *(table(rows, right=(3, 4)) if len(rows) > 1 else [])]


def diff(arguments: argparse.Namespace) -> int:
    """0; every component that two steps left differently."""
    with open_saved(home_of(arguments.home)) as saved:
        found = History(saved).diff(arguments.first, arguments.second)
    if arguments.json:
        rows = [
            {
                "owner": one.owner,
                "run_id": one.run_id or None,
                "component": one.component,
                "old": facts(one.old),
                "new": facts(one.new),
            }
            for one in found
        ]
        print(json.dumps(rows, ensure_ascii=False, indent=2))
        return 0
    lines: list[str] = []
    for one in found:
        lines.append(f"{one.run_id or 'the world'}  {one.component}")
        lines += (f"  {field}" for field in _fields(one.old, one.new))
    show(lines or ["nothing differs"])
    return 0


def _fields(old: Component | None, new: Component | None) -> list[str]:
    """The fields that differ; the whole component where one side has none."""
    if old is None or new is None:
        return [f"{value_text(old)} -> {value_text(new)}"]
    return [
        f"{name}: {value_text(getattr(old, name))} -> {value_text(getattr(new, name))}"
        for name in old.__struct_fields__
        if getattr(old, name) != getattr(new, name)
    ]


def why(arguments: argparse.Namespace) -> int:
    """0; the inputs and moves that made a run what it is."""
    with open_saved(home_of(arguments.home)) as saved:
        history = History(saved)
        run_id = history.find(arguments.run)[0]
        causes = history.why(run_id, upto=arguments.upto)
    if arguments.json:
        document = {"run_id": run_id, "causes": [_cause(cause) for cause in causes]}
        print(json.dumps(document, ensure_ascii=False, indent=2))
    else:
        show(line for cause in causes for line in _cause_lines(cause))
    return 0


def _cause(cause: Cause) -> dict[str, object]:
    return {
        "step": cause.step,
        "world_ms": cause.world_ms,
        "wall_ms": cause.wall_ms,
        "inputs": [facts(item) for item in cause.inputs],
        "moves": list(cause.moves),
    }


def _cause_lines(cause: Cause) -> list[str]:
    lines = [f"step {cause.step} at {cause.world_ms:,} ms"]
    lines += (f"  < {_input_line(item)}" for item in cause.inputs)
    lines += (f"  {one_line(move)}" for move in cause.moves)
    return lines


def _input_line(item: Input) -> str:
    """An input with what of it is not as usual."""
    said = {
        field.name: getattr(item, field.name)
        for field in _described(item)
        if getattr(item, field.name) != field.default
    }
    shown = ", ".join(f"{name} {value_text(value)}" for name, value in said.items())
    return clip(one_line(f"{type(item).__name__}: {shown}"), _INPUT_COLUMNS)


def _described(item: Input) -> list[msgspec.structs.FieldInfo]:
    known = ("run", "ticket", "effect", "attempt", "epoch", "launch", "parts", "ordinals")
    return [field for field in msgspec.structs.fields(item) if field.name not in known]
