"""Everything about one run, read from ``world.db`` without hosting it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from leviath.components.base import Component
from leviath.components.errors import Damaged, RunNotFound
from leviath.components.identity import Identity
from leviath.lev.below import Below, read_below
from leviath.persistence.database import open_database
from leviath.persistence.journal import decode_changes
from leviath.persistence.redo import Owners, apply_changes, decode_part
from leviath.persistence.rows import LedgerRow, RunRow
from leviath.persistence.run_row import run_row

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
        )


def _world_ms(reader: Reader) -> int:
    world = reader.world()
    newest = None if world is None else next(reader.journal_after(world.step - 1), None)
    return 0 if newest is None else newest.world_ms


def _parts(reader: Reader, ordinal: int) -> tuple[dict[type[Component], Component], str]:
    """The newest cut of the run, and what later steps changed of it."""
    world = reader.world()
    owners: Owners = {}
    try:
        saved = [
            decode_part(state.part, state.body or b"") for state in reader.owner_state(ordinal)
        ]
        owners[ordinal] = {type(part): part for part in saved}
        for step in reader.journal_after(0 if world is None else world.cut):
            changes = [change for change in decode_changes(step) if change.owner == ordinal]
            apply_changes(owners, changes)
    except Damaged as error:
        return owners.get(ordinal, {}), error.message
    return owners.get(ordinal, {}), ""


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
