"""``lev fork``: a new run that begins where another one was after a step."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from leviath.components.errors import ConfigError
from leviath.components.money import usd_text
from leviath.components.progress import Cost
from leviath.engine.forking import origin_of
from leviath.engine.redaction import Redactor, credentials
from leviath.engine.world import open_world
from leviath.lev.adapters import tools_of
from leviath.lev.homes import home_of
from leviath.lev.text import home_option, note, plural, show
from leviath.persistence.redo import decode_part

if TYPE_CHECKING:
    import argparse

    from leviath.engine.forking import Origin

_GIT_TIMEOUT_S: Final = 600
"""A worktree of a large repository is written within minutes."""


def fork(arguments: argparse.Namespace) -> int:
    """0 once the fork is durable; the next host drives it."""
    home = home_of(arguments.home)
    source = home if arguments.source is None else Path(arguments.source)
    origin = origin_of(source, arguments.run, arguments.at, with_texts=False)
    workdir = _workdir(arguments, Path(origin.launch.workdir))
    run_id = trio.run(_fork, home, source, origin.run_id, workdir, arguments)
    nano, unpriced = _prefix(origin)
    if arguments.json:
        document = {
            "run_id": run_id,
            "forked_from": {"run_id": origin.run_id, "step": arguments.at},
            "workdir": str(workdir),
            "prefix": {"cost_nano_usd": nano, "unpriced_calls": unpriced},
        }
        print(json.dumps(document, ensure_ascii=False, indent=2))
        return 0
    show([run_id])
    unknown = f" + unknown for {plural(unpriced, 'call')}" if unpriced else ""
    option = home_option(arguments.home)
    note(
        f"forked from {origin.run_id} after step {arguments.at}, which had cost "
        f"${usd_text(nano)}{unknown} by then; drive it with `lev host{option}` and what it needs: "
        "--script or --providers, --tools"
    )
    return 0


async def _fork(
    home: Path, source: Path, run_id: str, workdir: Path, arguments: argparse.Namespace
) -> str:
    async with open_world(home, tools=tools_of(arguments), drive=False) as world:
        handle = await world.fork(
            run_id,
            at=arguments.at,
            workdir=workdir,
            source=source,
            blueprint=arguments.blueprint,
            key=arguments.key,
        )
        return handle.run_id


def _prefix(origin: Origin) -> tuple[int, int]:
    for name, body in origin.parts:
        if name == Cost.__name__:
            cost = decode_part(name, body)
            assert isinstance(cost, Cost)
            return cost.priced_nano, cost.unpriced
    return 0, 0


def _workdir(arguments: argparse.Namespace, original: Path) -> Path:
    """The folder that the fork works in, made as it was asked for. Raises ConfigError."""
    if arguments.workdir is not None:
        return Path(arguments.workdir)
    if arguments.same_workdir:
        return original
    target = Path(os.path.abspath(arguments.copy or arguments.worktree))
    if target.exists():
        raise ConfigError(f"{target}: exists already; name a new folder, or use --workdir")
    if not original.is_dir():
        raise ConfigError(f"{original}: the run's workdir is gone; name another with --workdir")
    if arguments.copy is not None:
        if original.resolve() in target.resolve().parents:
            raise ConfigError(f"{target}: lies in the folder that it would copy; name another")
        shutil.copytree(original, target, symlinks=True)
        return target
    argv = ["git", "-C", str(original), "worktree", "add", "--detach", "--", str(target)]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"git worktree add could not be run: {error}") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        shown = Redactor(credentials(os.environ)).redact(said)
        raise ConfigError(f"{original}: git worktree add failed: {shown}")
    return target
