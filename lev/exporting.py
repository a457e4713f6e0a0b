"""``lev export``: a saved world, or what one run comes from, as a folder to keep and to commit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from leviath.lev.homes import home_of
from leviath.lev.text import plural, show
from leviath.persistence.exporting import export_world
from leviath.persistence.saved import open_saved

if TYPE_CHECKING:
    import argparse


def export(arguments: argparse.Namespace) -> int:
    """0 once the folder is whole."""
    run = None if arguments.run == "all" else arguments.run
    with open_saved(home_of(arguments.home)) as saved:
        done = export_world(saved, Path(arguments.folder), run=run)
    if arguments.json:
        print(json.dumps(asdict(done), ensure_ascii=False, indent=2))
    else:
        what = f"{plural(done.steps, 'step')} and {plural(done.texts, 'text')}"
        show([f"{done.folder}: {plural(len(done.runs), 'run')}, {what}, {done.size_bytes:,} bytes"])
    return 0
