"""``lev``, and ``python -m leviath.lev``."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line of this process; its exit code."""
    from leviath.lev.cli import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    if not sys.flags.safe_path:
        # ``-m`` puts the current folder first, where a file of a workdir could pose as a module.
        del sys.path[0]
    sys.exit(main())
