"""``lev run``: start runs and drive them until each has ended or waits for somebody."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from leviath.components.errors import ConfigError, LevError, SpawnError
from leviath.engine.blueprints import MANIFEST_NAME, check_spawnable, load_blueprint
from leviath.engine.callbacks import HttpCallbacks
from leviath.engine.limits import REGION_INPUT_BYTES_MAX, TASK_BYTES_MAX
from leviath.engine.profiles import read_profiles
from leviath.engine.spawn_request import check_yolo
from leviath.engine.world import open_world
from leviath.lev.adapters import providers_of, tools_of
from leviath.lev.budgets import (
    budget_document,
    budget_of,
    fleet_budget_of,
    prices_of,
    tree_budget_of,
)
from leviath.lev.driving import Watch, drive, status_of
from leviath.lev.homes import home_of
from leviath.lev.progress import Teller, tell_report, waiting_text
from leviath.lev.run_parts import read_run
from leviath.lev.text import home_option, many_lines, note, one_line

if TYPE_CHECKING:
    import argparse

    from leviath.components.blueprint import Blueprint
    from leviath.components.people import Profile
    from leviath.components.status import Status
    from leviath.engine.budgets import Budget
    from leviath.engine.run_handle import RunHandle
    from leviath.engine.world import OpenWorld

_FILE_SUFFIX: Final = re.compile(r"\.(md|markdown|txt|text|rst|json|toml|ya?ml)\Z", re.IGNORECASE)
_PATH_START: Final = ("./", "../", "/", "~/")


def run(arguments: argparse.Namespace) -> int:
    """0 when every run completed, else 1."""
    if arguments.count > 1 and arguments.key:
        raise ConfigError("--key names one run; leave out --count, or the key")
    launch = Launch(arguments)
    providers, tools = providers_of(arguments), tools_of(arguments)
    callbacks = HttpCallbacks(allow_private=arguments.allow_private_callbacks)
    prices, fleet_budget = prices_of(arguments), fleet_budget_of(arguments)
    _warn_of_workdir(launch.workdir)

    async def work() -> int:
        async with open_world(
            launch.home,
            providers=providers,
            tools=tools,
            callbacks=callbacks,
            profiles=launch.profiles,
            prices=prices,
            fleet_budget=fleet_budget,
        ) as world:
            tell_report(world.report)
            return await _drive(world, launch)

    code = drive(work)
    if code is None:
        option = home_option(arguments.home)
        note(f"interrupted; the runs stay as they are: `lev host{option}` drives them on")
        return 1
    return code


class Launch:
    """What ``lev run`` was asked for, checked as far as can be without a world."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.home: Path = home_of(arguments.home)
        self.agent: Path = _agent(self.home, arguments.path)
        loaded = load_blueprint(self.agent)
        check_spawnable(loaded.blueprint)
        self.blueprint_path: str = str(loaded.path)
        self.task: str = "" if arguments.task is None else read_task(arguments.task)
        _check_task(loaded.blueprint, self.task)
        self.workdir: str = os.path.realpath(arguments.workdir)
        if not os.path.isdir(self.workdir):
            raise SpawnError(f"the workdir {arguments.workdir!r} is no folder; make it first")
        self.regions: dict[str, str] = _pairs(arguments.region, "--region", files=True)
        self.metadata: dict[str, str] = _pairs(arguments.metadata, "--metadata", files=False)
        self.yolo: bool | str = False if arguments.yolo is None else arguments.yolo or True
        self.profiles: dict[str, Profile] = (
            {} if arguments.profiles is None else read_profiles(arguments.profiles)
        )
        check_yolo(self.yolo, self.profiles)
        self.budget: Budget | None = budget_of(arguments)
        self.tree_budget: Budget | None = tree_budget_of(arguments)

    async def spawn(self, world: OpenWorld) -> RunHandle:
        """Start one run as asked for."""
        arguments = self.arguments
        return await world.spawn(
            self.agent,
            task=self.task,
            workdir=self.workdir,
            key=arguments.key,
            model=arguments.model,
            yolo=self.yolo,
            regions=self.regions,
            metadata=self.metadata,
            allow=arguments.allow,
            budget=self.budget,
            tree_budget=self.tree_budget,
        )


async def _drive(world: OpenWorld, launch: Launch) -> int:
    arguments = launch.arguments
    teller = Teller(quiet=arguments.quiet, only=set(), named=arguments.count > 1)
    watch = Watch(world, teller)
    async with trio.open_nursery() as nursery:
        await nursery.start(watch.follow)
        nursery.start_soon(watch.look_after_storage)
        runs = await _spawn_all(world, launch, teller)
        await watch.until_at_rest(runs)
        for run in runs:
            status = status_of(run)
            if status is None or status.status.is_ended:
                await run.wait()
        nursery.cancel_scope.cancel()
    _tell_results(world, runs, launch)
    return 0 if all(run.row().status == "complete" for run in runs) else 1


async def _spawn_all(world: OpenWorld, launch: Launch, teller: Teller) -> list[RunHandle]:
    count = launch.arguments.count
    runs: list[RunHandle] = []
    for _ in range(count):
        try:
            run = await launch.spawn(world)
        except LevError as error:
            if not runs:
                raise
            raise SpawnError(f"stopped after {len(runs)} of {count}: {error}") from error
        runs.append(run)
        teller.add(run.run_id)
        if not launch.arguments.json:
            print(f"spawned {run.run_id}", flush=True)
    return runs


def _tell_results(world: OpenWorld, runs: list[RunHandle], launch: Launch) -> None:
    option = home_option(launch.arguments.home)
    for run in runs:
        status = status_of(run)
        if status is not None and not status.status.is_ended:
            note(f"{run.run_id} {_unfinished(status, run.run_id, option)}")
    if launch.arguments.json:
        found = [_document(run, launch) for run in runs]
        body = found[0] if launch.arguments.count == 1 else found
        print(json.dumps(body, ensure_ascii=False, indent=2))
        return
    for run in runs:
        row = run.row()
        if row.status == "error":
            note(f"{run.run_id} ended in error: {row.error}")
        output = run.result()
        if output is not None and len(runs) == 1:
            print(many_lines(output))
        elif output is not None:
            note(f"{run.run_id} has an output: lev result{option} {run.run_id}")


def _unfinished(status: Status, run_id: str, option: str) -> str:
    word = status.status.wire()
    if word == "paused":
        return f"is paused: lev resume{option} {run_id}"
    if word != "waiting_input":
        return f"is {word}"
    text = f"waits for {waiting_text(status.waiting)}"
    if status.waiting is not None and status.waiting.blocker == "provider_missing":
        return f"{text}; `lev host{option}` with --script FILE or --providers MODULE:ATTR brings it"
    return f"{text}; see: lev show{option} {run_id}"


def _document(run: RunHandle, launch: Launch) -> dict[str, object]:
    row = run.row()
    priced = row.cost_priced_nano / 1_000_000_000
    return {
        "run_id": run.run_id,
        "blueprint_path": launch.blueprint_path,
        "workdir": row.workdir,
        "yolo": row.yolo,
        "status": row.status,
        "error": row.error,
        "wait_reason": row.waiting_on,
        "cost_usd": None if row.unpriced_calls else priced,
        "cost_priced_usd": priced,
        "unpriced_calls": row.unpriced_calls,
        "prompt_tokens": row.prompt_tokens,
        "completion_tokens": row.completion_tokens,
        "cached_tokens": row.cached_tokens,
        "cache_write_tokens": row.cache_write_tokens,
        "tool_calls": row.tool_calls,
        "output": run.result(),
        **_budgets(run, launch),
    }


def _budgets(run: RunHandle, launch: Launch) -> dict[str, object]:
    if launch.budget is None and launch.tree_budget is None and not launch.arguments.key:
        return {"budget": None, "tree_budget": None}
    return budget_document(read_run(launch.home, run.run_id))


# --- arguments ----------------------------------------------------------------------------------


def _agent(home: Path, given: str) -> Path:
    """A folder, a manifest, or the name of an agent below ``<home>/agents``."""
    if "\x00" in given:
        raise ConfigError("the path of the agent contains NUL")
    if not os.path.exists(given) and re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", given):
        installed = home / "agents" / given
        if os.path.exists(installed / MANIFEST_NAME):
            return installed
    return Path(given)


def _check_task(blueprint: Blueprint, task: str) -> None:
    layouts = [blueprint.regions, *(stage.regions or () for stage in blueprint.stages)]
    takes_task = any(
        region.seed is not None and region.seed.kind == "task_input"
        for layout in layouts
        for region in layout
    )
    if takes_task and not task:
        raise SpawnError(f"{blueprint.name} needs a task; give --task TEXT or --task FILE")


def read_task(given: str) -> str:
    """The task: the text of an existing file, trimmed, else ``given`` itself.

    Raises ConfigError for what looks like a path and leads nowhere: a typing error must not become
    an agent's task.
    """
    path = os.path.expanduser(given)
    if "\x00" not in given and "\n" not in given and len(given) < 4_096 and os.path.isfile(path):
        return _read(path, TASK_BYTES_MAX, "the task").strip()
    if not re.search(r"\s", given) and (
        given.startswith(_PATH_START) or "/" in given or _FILE_SUFFIX.search(given)
    ):
        raise ConfigError(
            f"the task {one_line(given)!r} looks like a path, and there is no such file; "
            "as a text, write it with a blank"
        )
    return given


def _read(path: str, bytes_max: int, what: str) -> str:
    with open(path, "rb") as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise SpawnError(f"{path} has over {bytes_max:,} bytes, too many for {what}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8; save it as UTF-8") from None


def _pairs(given: list[str], option: str, *, files: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in given:
        name, sign, text = pair.partition("=")
        if not name or not sign:
            raise ConfigError(f"{option} {one_line(pair)!r} is no NAME=TEXT")
        if name in found:
            raise ConfigError(f"{option} gives {one_line(name)!r} twice; give it once")
        if files and text.startswith("@"):
            text = _read(text[1:], REGION_INPUT_BYTES_MAX, f"region {name}")
        found[name] = text
    return found


def _warn_of_workdir(workdir: str) -> None:
    if workdir in ("/", os.path.realpath(os.path.expanduser("~"))):
        note(f"careful: the run's tools work in {workdir}")
