"""One call of ``lev``: arguments in, exit code out.

0 is success, 1 an error or a run that did not complete, 2 a usage error. Everything but output goes
to stderr, so that the stdout of ``--json`` is one document.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING, Protocol, cast

from leviath.components.errors import LevError
from leviath.lev.arguments import COMMANDS, parse
from leviath.lev.text import many_lines

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


class Command(Protocol):
    """What a command is: it takes its arguments and returns the exit code."""

    def __call__(self, arguments: argparse.Namespace, /) -> int:
        """Carry the command out. Raises LevError and OSError for what the user can do about."""
        ...


def run(argv: Sequence[str]) -> int:
    """Carry out one call; its exit code. Nothing is raised but what argparse exits with."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    arguments = parse(argv)
    if arguments.verbose:
        import logging

        logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    try:
        os.getcwd()
    except OSError as error:
        # Paths that are given lead nowhere then, and each command would fail on its own words.
        return _failed(f"the current directory is gone ({error.strerror}); cd to another one first")
    try:
        code = _command(arguments.command)(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _failed("interrupted")
    except BrokenPipeError:
        # The reader had enough. Nothing may be written at exit, either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # noqa: BLE001 - the border: no traceback reaches a person unasked
        if arguments.verbose:
            traceback.print_exc()
        return _failed(_told(error))
    return code


def _command(name: str) -> Command:
    from importlib import import_module

    module, _, attribute = COMMANDS[name].partition(":")
    return cast("Command", getattr(import_module(module), attribute))


def _failed(message: str) -> int:
    sys.stderr.write(f"Error: {many_lines(message)}\n")
    return 1


def _told(error: Exception) -> str:
    if isinstance(error, LevError):
        return error.message
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    return f"{type(error).__name__}: {error} (this is a defect of leviath; -v shows where)"
