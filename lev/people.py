"""``lev respond`` and ``lev msg``: what people say to runs of a home that nobody hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leviath.components.errors import ConfigError, RunConflict
from leviath.components.people import Prompts
from leviath.engine.limits import DOCUMENT_BYTES_MAX
from leviath.lev.control import OPERATOR, ask_run
from leviath.lev.homes import home_of, run_in
from leviath.lev.run_parts import read_run
from leviath.lev.text import one_line

if TYPE_CHECKING:
    import argparse

    from leviath.components.people import Prompt
    from leviath.lev.run_parts import RunParts


def respond(arguments: argparse.Namespace) -> int:
    """Answer a question of a run."""
    home = home_of(arguments.home)
    parts = read_run(home, run_in(home, arguments.run))
    prompt = _prompt(parts, arguments.question)
    text = arguments.text if arguments.file is None else _read(arguments.file)
    choice = None if arguments.choice is None else arguments.choice - 1
    if choice is not None and not 0 <= choice < len(prompt.choices):
        most = len(prompt.choices)
        raise RunConflict(f"{prompt.id} has {most} choices, and none is number {choice + 1}")
    if text is None and choice is None and arguments.approved is None:
        raise ConfigError("an answer is missing; give --text, --file, --choice, --yes or --no")
    return ask_run(
        arguments,
        "answered",
        lambda run: run.answer(
            prompt.id,
            text=text,
            choice=choice,
            approved=arguments.approved,
            scope=arguments.scope,
            actor=OPERATOR,
        ),
    )


def msg(arguments: argparse.Namespace) -> int:
    """Give a run a message, which it reads before its next request."""
    return ask_run(arguments, "sent", lambda run: run.message(arguments.text, sender=OPERATOR))


def _read(path: str) -> str:
    with open(path, "rb") as file:
        data = file.read(DOCUMENT_BYTES_MAX + 1)
    if len(data) > DOCUMENT_BYTES_MAX:
        raise ConfigError(f"{path} has over {DOCUMENT_BYTES_MAX:,} bytes; shorten it")
    return data.decode(errors="replace")


def _prompt(parts: RunParts, given: str | None) -> Prompt:
    """The open question that is meant: by its id, by its end such as ``q3``, or the only one."""
    found = parts.find(Prompts)
    items: tuple[Prompt, ...] = () if found is None else found.items
    run_id = parts.row.run_id
    if not items:
        raise RunConflict(f"{run_id} asks nobody anything at the moment", run_id=run_id)
    names = ", ".join(short(prompt) for prompt in items)
    if given is None:
        if len(items) > 1:
            raise RunConflict(f"{run_id} has {len(items)} questions; name one of {names}")
        return items[0]
    for prompt in items:
        if given in (prompt.id, short(prompt)):
            return prompt
    raise RunConflict(f"{run_id} has no open question {one_line(given)!r}; these are open: {names}")


def short(prompt: Prompt) -> str:
    """The end of a question's id, which tells it from the others of its run."""
    return prompt.id.rpartition(".")[2]
