"""``lev result``: a run's final output."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from leviath.components.errors import RunConflict
from leviath.components.output import Output
from leviath.lev.homes import home_of, run_in
from leviath.lev.run_parts import read_run
from leviath.lev.text import many_lines

if TYPE_CHECKING:
    import argparse


def result(arguments: argparse.Namespace) -> int:
    """Print the output. Raises RunConflict when the run has submitted none."""
    home = home_of(arguments.home)
    run_id = run_in(home, arguments.run)
    parts = read_run(home, run_id)
    output = parts.find(Output)
    if output is None:
        why = f": {parts.fault}" if parts.fault else ""
        raise RunConflict(f"{run_id} ({parts.row.status}) has no output{why}", run_id=run_id)
    content = parts.text(output.content)
    if arguments.json:
        body = {
            "run_id": run_id,
            "format": output.format,
            "stage": output.stage,
            "submitted_at": output.submitted_ms // 1_000,
            "bytes": output.size_bytes,
            "truncated": output.truncated,
            "content": content,
        }
        print(json.dumps(body, ensure_ascii=False, indent=2))
    elif arguments.raw:
        sys.stdout.flush()
        sys.stdout.buffer.write(content.encode())
    else:
        print(many_lines(content))
    return 0
