"""Reading ``[[stages.<name>.interaction_points]]``: what a stage asks a person before it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from leviath.components.blueprint import PointSpec
from leviath.engine.blueprint_reader import place_of
from leviath.engine.limits import CHOICES_MAX

if TYPE_CHECKING:
    from typing import Literal

    from leviath.components.blueprint import Blueprint, StageSpec
    from leviath.engine.blueprint_reader import Faults, Table


def read_points(table: Table) -> tuple[PointSpec, ...]:
    """The points of a stage, in their order."""
    return tuple(_point(point) for point in table.tables("interaction_points"))


def _point(table: Table) -> PointSpec:
    point = PointSpec(
        name=table.text("name"),
        prompt=table.text("prompt"),
        required=table.flag("required", default=True),
        unattended=cast(
            "Literal['auto_approve', 'ask']",
            table.word("unattended", ("ask", "auto_approve"), "auto_approve"),
        ),
        style=cast(
            "Literal['free_text', 'multiple_choice', 'confirm']",
            table.word("style", ("free_text", "multiple_choice", "confirm"), "free_text"),
        ),
        options=_texts(table, "options", "choices"),
        directives=_texts(table, "directives", "followups"),
        abort_options=table.texts("abort_options"),
        edit_options=table.texts("edit_options"),
        document_region=table.text("document_region"),
    )
    table.done()
    return point


def _texts(table: Table, name: str, alias: str) -> tuple[str, ...]:
    if name in table.data and alias in table.data:
        table.fault(alias, f"is another word for {name}; keep one")
    first, second = table.texts(name), table.texts(alias)
    return first or second


def check_points(blueprint: Blueprint, stage: StageSpec, place: str, faults: Faults) -> None:
    """Check that every point can be answered, and that what it shows is there."""
    known = {region.name for region in blueprint.visible_regions(stage)}
    names: set[str] = set()
    for index, point in enumerate(stage.points):
        spot = place_of(f"{place}.interaction_points", point.name or str(index + 1))
        if point.name in names and point.name:
            faults.add(spot, "is declared twice; rename one")
        names.add(point.name)
        if point.style == "multiple_choice" and not point.choices:
            faults.add(spot, "is a multiple_choice of nothing; give it options")
        if len(point.choices) > CHOICES_MAX:
            faults.add(spot, f"has {len(point.choices)} choices, {CHOICES_MAX} are allowed")
        if point.document_region and point.document_region not in known:
            faults.add(
                f"{spot}.document_region", f"there is no region {point.document_region[:64]!a} here"
            )
