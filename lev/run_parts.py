"""Everything about one run, read from ``world.db`` without hosting it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from leviath.components.base import Component
from leviath.components.budget import Allowance, Reserved
from leviath.components.errors import Damaged, RunNotFound
from leviath.components.identity import Identity
from leviath.lev.below import Below, read_below
from leviath.persistence.database import open_database
from leviath.persistence.journal import decode_changes
from leviath.persistence.redo import Owners, apply_changes, decode_part
from leviath.persistence.rows import LedgerRow, RunRow
from leviath.persistence.run_row import run_row
from leviath.systems.reserves import Sums

if TYPE_CHECKING:
    from pathlib import Path

    from leviath.components.text import Text
    from leviath.persistence.reader import Reader

C = TypeVar("C", bound=Component)


class RunParts:
    """One run as of one moment: its row, its ledger, its components."""

    def __init__(
        self,
        row: RunRow,
        ledger: list[LedgerRow],
        parts: dict[type[Component], Component],
        texts: dict[bytes, str],
        *,
        fault: str,
        children: tuple[str, ...],
        below: Below,
        world_ms: int,
        tree_held: Sums,
    ) -> None:
        self.row = row
        self.ledger = ledger
        self.components = parts
        """What the run is made of, as of its newest durable step."""
        self._texts = texts
        self.fault = fault
        """Why its components cannot be read, which is why no host drives it; else empty."""
        self.children = children
        """Ids of the runs that name this one as their parent, oldest first."""
        self.below = below
        """The runs below this one."""
        self.world_ms = world_ms
        """World time of the newest durable step."""
        self.tree_held = tree_held
        """What is set aside for calls of the run and those below it, where they share a budget."""

    def find(self, kind: type[C]) -> C | None:
        """The run's component of that kind."""
        return self.components.get(kind)  # type: ignore[return-value]

    def text(self, text: Text | None) -> str:
        """The whole of a text of this run that was asked for."""
        if text is None:
            return ""
        return self._texts.get(text.digest, "") if text.digest else text.body


def read_run(home: Path, run_id: str) -> RunParts:
    """Read a run of a home that is hosted or not. Raises RunNotFound, Damaged, StorageError."""
    with open_database(home / "world.db", level="full", read_only=True) as reader:
        # One transaction: cut and journal have to fit together while a host goes on writing.
        reader.connection.execute("begin")
        row = reader.run_by_id(run_id)
        if row is None:
            raise RunNotFound(f"no run of {home} is called {run_id!r}", run_id=run_id)
        parts, fault = _parts(reader, row.ordinal)
        if not fault and Identity in parts:
            # The index may be a second behind a busy run; this is as of its newest durable step.
            row = run_row(parts, row.updated_ms)
        texts = _texts(reader, parts)
        children = sorted(reader.run_rows(parent_run_id=run_id), key=lambda child: child.ordinal)
        return RunParts(
            row,
            reader.ledger(row.ordinal),
            parts,
            texts,
            fault=fault,
            children=tuple(child.run_id for child in children),
            below=read_below(reader, run_id),
            world_ms=_world_ms(reader),
            tree_held=_tree_held(reader, row.ordinal, parts),
        )


def _tree_held(reader: Reader, root: int, parts: dict[type[Component], Component]) -> Sums:
    """The sum over the tree, for a root with a budget that it shares."""
    held = Sums()
    allowance = parts.get(Allowance)
    if not isinstance(allowance, Allowance) or allowance.tree is None:
        return held
    row = reader.run_by_ordinal(root)
    todo = [] if row is None else [row.run_id]
    tree = {root}
    while todo:
        for child in reader.run_rows(parent_run_id=todo.pop()):
            if child.ordinal not in tree:
                tree.add(child.ordinal)
                todo.append(child.run_id)
    for own in _owners(reader, tree)[0].values():
        reserved = own.get(Reserved)
        for hold in reserved.holds if isinstance(reserved, Reserved) else ():
            held.add(hold)
    return held


def _world_ms(reader: Reader) -> int:
    world = reader.world()
    newest = None if world is None else next(reader.journal_after(world.step - 1), None)
    return 0 if newest is None else newest.world_ms


def _parts(reader: Reader, ordinal: int) -> tuple[dict[type[Component], Component], str]:
    owners, fault = _owners(reader, {ordinal})
    return owners.get(ordinal, {}), fault


def _owners(reader: Reader, wanted: set[int]) -> tuple[Owners, str]:
    """The newest cut of each run, and what later steps changed of it."""
    world = reader.world()
    owners: Owners = {}
    try:
        for ordinal in sorted(wanted):
            saved = [
                decode_part(state.part, state.body or b"") for state in reader.owner_state(ordinal)
            ]
            owners[ordinal] = {type(part): part for part in saved}
        for step in reader.journal_after(0 if world is None else world.cut):
            changes = [change for change in decode_changes(step) if change.owner in wanted]
            apply_changes(owners, changes)
    except Damaged as error:
        return owners, error.message
    return owners, ""


def _texts(reader: Reader, parts: dict[type[Component], Component]) -> dict[bytes, str]:
    """The long texts that a person is shown: the task, the output, the arguments of calls."""
    from leviath.components.effects import Turn
    from leviath.components.identity import Launch
    from leviath.components.output import Output
    from leviath.components.people import Prompts

    wanted: list[Text] = []
    launch, output, turn = parts.get(Launch), parts.get(Output), parts.get(Turn)
    if isinstance(launch, Launch):
        wanted.append(launch.task)
    if isinstance(output, Output):
        wanted.append(output.content)
    if isinstance(turn, Turn):
        wanted += [call.arguments for call in turn.calls]
    prompts = parts.get(Prompts)
    if isinstance(prompts, Prompts):
        wanted += [text for item in prompts.items for text in (item.text, item.body) if text]
    found = reader.entries([text.digest for text in wanted if text.digest])
    return {digest: body.decode(errors="replace") for digest, body in found.items()}
