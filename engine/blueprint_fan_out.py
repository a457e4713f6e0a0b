"""Reading and checking what a stage says about splitting its work among workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from leviath.components.blueprint import Blueprint, FanOutSpec, Join, StageMode, StageSpec
from leviath.engine.blueprint_reader import Faults, Table, place_of

if TYPE_CHECKING:
    from collections.abc import Iterable

SOURCES: Final = ("worker_agent", "worker_stage", "worker_query")
JOINS: Final = ("all", "fail_all", "first", "quorum")
KEYS: Final = (
    *SOURCES,
    "merge_stage",
    "results_region",
    "split_prompt",
    "max_workers",
    "max_items",
    "max_attempts",
    "on_worker_failure",
    "join",
    "quorum",
)


def read_fan_out(table: Table, mode: StageMode) -> FanOutSpec | None:
    """Return what the stage of ``table`` says about its workers; None for other modes."""
    if mode is not StageMode.fan_out:
        for key in KEYS:
            if key in table.data:
                table.raw(key)
                table.fault(key, 'belongs to stages with mode = "fan_out"; remove it')
        return None
    given = {key: table.text(key) for key in SOURCES}
    failure = table.word("on_worker_failure", ("continue", "fail_all"), "continue")
    join = table.word("join", JOINS, "fail_all" if failure == "fail_all" else "all")
    if "join" in table.data and "on_worker_failure" in table.data:
        table.fault("on_worker_failure", "stands beside join; keep join, which says more")
    return FanOutSpec(
        worker_agent=given["worker_agent"],
        worker_stage=given["worker_stage"],
        worker_query=given["worker_query"],
        merge_stage=table.text("merge_stage"),
        results_region=table.text("results_region"),
        split_prompt=table.text("split_prompt"),
        max_workers=table.whole("max_workers", 30),
        max_items=table.maybe_whole("max_items", least=0) or None,
        max_attempts=table.whole("max_attempts", 3),
        join=cast("Join", join),
        quorum=table.whole("quorum", 0),
    )


def check_fan_out(blueprint: Blueprint, stage: StageSpec, place: str, faults: Faults) -> None:
    """Check the stages, regions and numbers that a fan-out stage names."""
    spec = stage.fan_out
    if stage.mode is not StageMode.fan_out:
        if spec is not None:
            faults.add(place, 'fan_out belongs to stages with mode = "fan_out"; leave it out')
        return
    spec = spec or FanOutSpec()
    given = [key for key in SOURCES if getattr(spec, key)]
    if len(given) != 1:
        found = " and ".join(given) if given else "none"
        faults.add(
            place_of(place, "mode"),
            f"fan_out needs exactly one of {', '.join(SOURCES)}, has {found}",
        )
    stages = {known.name: known for known in blueprint.stages}
    for key in ("worker_stage", "merge_stage"):
        name = getattr(spec, key)
        if name and name not in stages:
            advice = faults.suggest(name, tuple(stages))
            faults.add(place_of(place, key), f"there is no stage {name[:64]!a}; {advice}")
    worker = stages.get(spec.worker_stage)
    if worker is not None and not worker.allow_as_worker:
        faults.add(
            place_of(place, "worker_stage"),
            f"stage {worker.name} does not let itself be used so; give it allow_as_worker = true",
        )
    visible = [region.name for region in blueprint.visible_regions(stage)]
    if spec.results_region and spec.results_region not in visible:
        advice = faults.suggest(spec.results_region, tuple(visible))
        faults.add(
            place_of(place, "results_region"),
            f"the stage sees no region {spec.results_region[:64]!a}; {advice}",
        )
    if (spec.join == "quorum") != bool(spec.quorum):
        faults.add(
            place_of(place, "quorum"),
            'goes with join = "quorum", and is how many workers must succeed: 1 or more',
        )


def next_stages(stage: StageSpec) -> Iterable[str]:
    """The stages that a fan-out leads to without an edge: its merge and its workers' stage."""
    spec = stage.fan_out
    if spec is not None:
        yield from filter(None, (spec.merge_stage, spec.worker_stage))
