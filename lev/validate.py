"""``lev validate``: what is wrong with a blueprint, and what in it has no effect."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from leviath.components.errors import BlueprintError
from leviath.engine.blueprints import lint, load_blueprint
from leviath.lev.text import many_lines, plural

if TYPE_CHECKING:
    import argparse


def validate(arguments: argparse.Namespace) -> int:
    """0 for a sound blueprint, 1 for one with faults, or with warnings and ``--deny-warnings``."""
    warnings: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    about: dict[str, object] = {}
    try:
        loaded = load_blueprint(arguments.path)
    except BlueprintError as error:
        faults = error.faults or (error.message,)
    else:
        warnings = lint(loaded.blueprint)
        stages = [stage.name for stage in loaded.blueprint.stages]
        about = {"name": loaded.blueprint.name, "path": str(loaded.path), "stages": stages}
    failed = bool(faults) or (bool(warnings) and arguments.deny_warnings)
    if arguments.json:
        body = {
            "valid": not failed,
            **about,
            "errors": list(faults),
            "warnings": list(warnings),
        }
        print(json.dumps(body, ensure_ascii=False, indent=2))
        return 1 if failed else 0
    for word, lines in (("error", faults), ("warning", warnings)):
        for line in lines:
            print(many_lines(f"{word}: {line}"), file=sys.stderr if word == "error" else None)
    if failed:
        what = plural(len(faults), "error") if faults else plural(len(warnings), "warning")
        print(f"Error: {many_lines(arguments.path)} has {what}", file=sys.stderr)
        return 1
    print(many_lines(f"{about['name']} is sound"))
    return 0
