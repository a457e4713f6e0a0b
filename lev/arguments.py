"""Every command's arguments. Imports nothing that is slow: ``lev ps`` starts through here."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final, NoReturn

from leviath.lev.text import parse_span

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE_MAX: Final = 1_000
"""Greatest page of a listing: what a person or a script takes in at once."""
COUNT_MAX: Final = 1_000
"""Greatest ``--count``: more runs at once are the work of a program, through ``open_world``."""

_HOME = "the folder of the world (default: $LEVIATH_HOME/.leviath, else ~/.leviath)"

COMMANDS: Final = {
    "run": "leviath.lev.run:run",
    "host": "leviath.lev.hosting:host",
    "ps": "leviath.lev.ps:ps",
    "show": "leviath.lev.show:show",
    "result": "leviath.lev.result:result",
    "pause": "leviath.lev.control:pause",
    "resume": "leviath.lev.control:resume",
    "cancel": "leviath.lev.control:cancel",
    "decide": "leviath.lev.control:decide",
    "respond": "leviath.lev.people:respond",
    "msg": "leviath.lev.people:msg",
    "validate": "leviath.lev.validate:validate",
    "import": "leviath.lev.importing:import_runs",
    "gc": "leviath.lev.gc:gc",
    "sim": "leviath.lev.sim:sim",
    "torture": "leviath.lev.torture:torture",
    "stats": "leviath.lev.stats:stats",
    "replay": "leviath.lev.replaying:replay",
    "export": "leviath.lev.exporting:export",
    "fork": "leviath.lev.forking:fork",
    "at": "leviath.lev.history:at",
    "diff": "leviath.lev.history:diff",
    "why": "leviath.lev.history:why",
}
"""Where each command lives; imported when it is called, and no other is."""


class _Parser(argparse.ArgumentParser):
    """An argparse parser whose usage errors look like all other errors."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"Error: {message}\n")


class _Version(argparse.Action):
    """``--version``, which looks the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: object) -> None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = version("leviath")
        except PackageNotFoundError:
            found = "unknown"
        print(f"lev {found}")
        parser.exit(0)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of one call. Exits with 2 on a usage error, with 0 after ``--help``."""
    return parser().parse_args(["--yolo=" if word == "--yolo" else word for word in argv])


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = _Parser(prog="lev", description="Run, watch and steer fleets of agent runs.")
    top.add_argument("--version", action=_Version, nargs=0, help="print the version")
    _verbose(top, default=False)
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, text: str, *, home: bool = True) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        _verbose(added, default=argparse.SUPPRESS)
        if home:
            added.add_argument("--home", metavar="DIR", help=_HOME)
        return added

    _run(command("run", "start runs of an agent and drive them to their end"))
    _host(command("host", "drive every unfinished run of a home"))
    _ps(command("ps", "list runs"))
    _show(command("show", "tell everything about one run"))
    _result(command("result", "print a run's final output"))
    _control(command("pause", "hold a run, also over restarts"), "why it is held")
    _resume(command("resume", "let a run go on that is held, waits for set-up, or ended early"))
    _control(command("cancel", "end a run"), "why it is ended")
    _decide(command("decide", "settle a tool call that waits for a person"))
    _respond(command("respond", "answer a question of a run"))
    _msg(command("msg", "give a run a message"))
    _validate(command("validate", "check an agent's blueprint", home=False))
    _import(command("import", "take the runs of another home into this one"))
    _gc(command("gc", "remove ended runs by age and count"))
    _sim(command("sim", "play a fleet in virtual time before it is paid for", home=False))
    _torture(command("torture", "crash a scenario everywhere and count what breaks", home=False))
    _stats(command("stats", "tell what runs cost and how often they worked"))
    _replay(command("replay", "run a saved world again and compare every step", home=False))
    _export(command("export", "write a world, or what one run comes from, to a folder"))
    _fork(command("fork", "start a run where another one was after a step"))
    _at(command("at", "tell what the world was after a step"))
    _diff(command("diff", "tell what differs between two steps"))
    _why(command("why", "tell what made a run what it is"))
    return top


def _verbose(to: argparse.ArgumentParser, *, default: bool | str) -> None:
    text = "more on stderr, and a traceback with an error"
    to.add_argument("-v", "--verbose", action="store_true", default=default, help=text)


def _one(to: argparse.ArgumentParser) -> None:
    to.add_argument("run", metavar="RUN", help="a run id, or the start of one")


def _json(to: argparse.ArgumentParser) -> None:
    to.add_argument("--json", action="store_true", help="print one JSON document")


def _adapters(to: argparse.ArgumentParser) -> None:
    group = to.add_argument_group("what the runs may use")
    text = "a provider that answers from FILE, called `scripted`"
    group.add_argument("--script", metavar="FILE", help=text)
    for name, what in (("providers", "providers"), ("tools", "tools")):
        text = f"further {what}: an importable name, or a path such as ./mine.py:{name}"
        group.add_argument(
            f"--{name}", metavar="MODULE:ATTR", action="append", default=[], help=text
        )
    text = "callbacks may go to this machine and to private networks"
    group.add_argument("--allow-private-callbacks", action="store_true", help=text)


def _budgets(to: argparse.ArgumentParser) -> None:
    group = to.add_argument_group("what may be spent before the run is stopped")
    text = "at most so many dollars, such as 0.50; needs prices for its models"
    group.add_argument("--budget-usd", metavar="USD", help=text)
    text = "at most so many tokens of prompts and replies"
    group.add_argument("--budget-tokens", metavar="N", type=_whole, help=text)
    text = "at most so many model turns"
    group.add_argument("--budget-turns", metavar="N", type=_whole, help=text)
    text = "at most so long, in time that a host drives it: 90s, 15m, 12h, 30d"
    group.add_argument("--budget-time", metavar="SPAN", type=_span, help=text)
    text = "the same for the run and all runs below it together"
    group.add_argument("--tree-budget-usd", metavar="USD", help=text)
    group.add_argument("--tree-budget-tokens", metavar="N", type=_whole, help=text)
    group.add_argument("--tree-budget-turns", metavar="N", type=_whole, help=text)
    group.add_argument("--tree-budget-time", metavar="SPAN", type=_span, help=text)


def _fleet(to: argparse.ArgumentParser) -> None:
    group = to.add_argument_group("what all runs of the home together may spend")
    text = "at most so many dollars under hosts that say so; needs prices for their models"
    group.add_argument("--fleet-budget-usd", metavar="USD", help=text)
    text = "at most so many tokens of prompts and replies"
    group.add_argument("--fleet-budget-tokens", metavar="N", type=_whole, help=text)


def _prices(to: argparse.ArgumentParser) -> None:
    text = 'a TOML file with [prices."provider/model"] tables, in dollars per million tokens'
    to.add_argument("--prices", metavar="FILE", help=text)


def _resume(to: argparse.ArgumentParser) -> None:
    _one(to)
    _budgets(to)


def _run(to: argparse.ArgumentParser) -> None:
    to.add_argument(
        "path", metavar="PATH", nargs="?", default=".", help="the agent's folder or manifest"
    )
    to.add_argument("-t", "--task", metavar="TEXT", help="the task, or the path of a file with it")
    to.add_argument("--workdir", metavar="DIR", default=".", help="where its tools work")
    to.add_argument("-m", "--model", metavar="MODEL", help="provider/model, or a model")
    to.add_argument(
        "--yolo",
        metavar="PROFILE",
        nargs="?",
        const="",
        help="unattended: nothing is asked; =PROFILE for what that profile of --profiles allows",
    )
    text = "a TOML file with [profiles.NAME] tables for --yolo=NAME"
    to.add_argument("--profiles", metavar="FILE", help=text)
    text = "allow a tool without asking; may be repeated"
    to.add_argument("--allow", metavar="TOOL", action="append", default=[], help=text)
    to.add_argument("--count", metavar="N", type=_count, default=1, help="start N runs alike")
    to.add_argument("--key", default="", help="start nothing if a run with this key exists")
    text = "what a region starts with; NAME=@FILE reads a file"
    to.add_argument("--region", metavar="NAME=TEXT", action="append", default=[], help=text)
    text = "a label of the run; may be repeated"
    to.add_argument("--metadata", metavar="KEY=TEXT", action="append", default=[], help=text)
    to.add_argument("-q", "--quiet", action="store_true", help="no progress on stderr")
    _json(to)
    _prices(to)
    _budgets(to)
    _fleet(to)
    _adapters(to)


def _host(to: argparse.ArgumentParser) -> None:
    text = "keep on when nothing is left to do, until interrupted"
    to.add_argument("--forever", action="store_true", help=text)
    to.add_argument("-q", "--quiet", action="store_true", help="no progress on stderr")
    _prices(to)
    _fleet(to)
    _adapters(to)


def _ps(to: argparse.ArgumentParser) -> None:
    to.add_argument("--all", action="store_true", help="ended runs, too")
    _json(to)
    text = f"most runs of a page (default 50, at most {PAGE_MAX:,})"
    to.add_argument("--limit", metavar="N", type=_limit, default=50, help=text)
    text = "the page after this one: what the page before named"
    to.add_argument("--after", metavar="N", type=_whole, help=text)


def _show(to: argparse.ArgumentParser) -> None:
    _one(to)
    _json(to)


def _result(to: argparse.ArgumentParser) -> None:
    _one(to)
    form = to.add_mutually_exclusive_group()
    form.add_argument("--raw", action="store_true", help="byte for byte")
    form.add_argument("--json", action="store_true", help="print one JSON document")


def _control(to: argparse.ArgumentParser, why: str) -> None:
    _one(to)
    to.add_argument("--why", metavar="TEXT", default="", help=f"{why}, kept with the run")


def _decide(to: argparse.ArgumentParser) -> None:
    _one(to)
    to.add_argument("call", metavar="CALL", help="the call's id, as `lev show` names it")
    verdict = to.add_mutually_exclusive_group(required=True)
    for name, text in (
        ("again", "it may have happened: make it again"),
        ("done", "it may have happened: take it as done"),
        ("stop", "end the run"),
        ("allow", "it asks: let it be made"),
        ("deny", "it asks: refuse it"),
    ):
        verdict.add_argument(
            f"--{name}", dest="verdict", action="store_const", const=name, help=text
        )


def _respond(to: argparse.ArgumentParser) -> None:
    _one(to)
    text = "the question's id or its end, such as q3; left out: the run's only one"
    to.add_argument("question", metavar="QUESTION", nargs="?", help=text)
    words = to.add_mutually_exclusive_group()
    words.add_argument("--text", metavar="TEXT", help="the answer, or words beside it")
    words.add_argument("--file", metavar="FILE", help="the same from a file")
    text = "the number of a choice, as `lev show` lists them"
    to.add_argument("--choice", metavar="N", type=_whole, help=text)
    verdict = to.add_mutually_exclusive_group()
    verdict.add_argument("--yes", dest="approved", action="store_true", help="yes, or allow")
    verdict.add_argument("--no", dest="approved", action="store_false", help="no, or deny")
    to.set_defaults(approved=None)
    text = "how far a yes to a call goes (default: once)"
    to.add_argument("--scope", choices=("once", "stage", "run"), default="once", help=text)


def _msg(to: argparse.ArgumentParser) -> None:
    _one(to)
    to.add_argument("text", metavar="TEXT", help="what it reads before its next request")


def _validate(to: argparse.ArgumentParser) -> None:
    to.add_argument(
        "path", metavar="PATH", nargs="?", default=".", help="the agent's folder or manifest"
    )
    to.add_argument("--deny-warnings", action="store_true", help="fail on warnings, too")
    _json(to)


def _import(to: argparse.ArgumentParser) -> None:
    text = "a run's folder, a folder of them, or a home"
    to.add_argument("folder", metavar="DIR", help=text)


def _gc(to: argparse.ArgumentParser) -> None:
    text = "only runs that ended at least so long ago: 90s, 15m, 12h, 30d, 2w"
    to.add_argument("--older-than", metavar="SPAN", type=_span, help=text)
    text = "keep the N runs that ended last"
    to.add_argument("--keep", metavar="N", type=_whole, help=text)
    text = "keep the newest so many steps of history (at least 1,000), and let go of the rest"
    to.add_argument("--history", metavar="STEPS", type=_whole, help=text)
    to.add_argument("--dry-run", action="store_true", help="say what would go, remove nothing")


def _torture(to: argparse.ArgumentParser) -> None:
    text = "`demo`, or an agent's folder or manifest (default: demo)"
    to.add_argument("scenario", metavar="SCENARIO", nargs="?", default="demo", help=text)
    to.add_argument("-t", "--task", metavar="TEXT", default="", help="the task of an agent")
    to.add_argument("--workdir", metavar="DIR", help="what its tools find, copied for every crash")
    text = "the first random history (default 0)"
    to.add_argument("--seed", metavar="N", type=_whole, default=0, help=text)
    text = "so many random histories (default 1,000)"
    to.add_argument("--histories", metavar="N", type=_whole, default=1_000, help=text)
    text = "random histories until interrupted, telling their seeds"
    to.add_argument("--forever", action="store_true", help=text)
    text = "fail every call, not a choice of each kind"
    to.add_argument("--thorough", action="store_true", help=text)
    only = ("images", "faults", "histories")
    to.add_argument("--only", choices=only, help="one part of it")
    text = "plant a fault, to see it found"
    plants = ("sync", "journal", "file", "outcome")
    to.add_argument("--plant", choices=plants, default="", help=text)
    again = to.add_argument_group("what a failure prints, to repeat it")
    text = "fail the nth call of a kind: write:17:eio"
    again.add_argument("--fault", metavar="KIND:N:FAILURE", help=text)
    text = "play these acts of the history of --seed alone"
    again.add_argument("--acts", metavar="N,N,...", type=_numbers, help=text)
    to.add_argument("-q", "--quiet", action="store_true", help="no progress on stderr")
    _json(to)
    _adapters(to)


def _numbers(text: str) -> list[int]:
    return [_whole(word) for word in text.split(",")] if text else []


def _stats(to: argparse.ArgumentParser) -> None:
    text = "only runs that ended within that time: 90s, 15m, 12h, 7d, 2w"
    to.add_argument("--since", metavar="SPAN", type=_span, help=text)
    text = "one row for each agent, outcome or model"
    to.add_argument("--by", choices=("agent", "outcome", "model"), help=text)
    _json(to)
    text = "draw it, too: a file that ends in .png or .svg"
    to.add_argument("--plot", metavar="FILE", help=text)


def _replay(to: argparse.ArgumentParser) -> None:
    to.add_argument("path", metavar="PATH", help="a home, or a folder that `lev export` wrote")
    text = "make what the present rules do the new expectation of an exported folder"
    what = to.add_mutually_exclusive_group()
    what.add_argument("--accept", action="store_true", help=text)
    what.add_argument("--upto", metavar="STEP", type=_whole, help="stop after that step")
    _json(to)


def _export(to: argparse.ArgumentParser) -> None:
    to.add_argument("run", metavar="RUN|all", help="a run id, the start of one, or `all`")
    to.add_argument("folder", metavar="DIR", help="a new or empty folder, or an older export")
    _json(to)


def _fork(to: argparse.ArgumentParser) -> None:
    _one(to)
    text = "the step that it begins after, as `lev why` numbers them"
    to.add_argument("--at", metavar="STEP", type=_whole, required=True, help=text)
    where = to.add_mutually_exclusive_group(required=True)
    where.add_argument("--workdir", metavar="DIR", help="work in that folder")
    where.add_argument("--copy", metavar="DIR", help="work in a copy of the run's folder")
    text = "work in a new git worktree of the run's folder"
    where.add_argument("--worktree", metavar="DIR", help=text)
    text = "work in the run's own folder"
    where.add_argument("--same-workdir", action="store_true", help=text)
    text = "the home or exported folder that RUN is in (default: the home itself)"
    to.add_argument("--source", metavar="PATH", help=text)
    text = "go on with the blueprint of that folder or manifest"
    to.add_argument("--blueprint", metavar="PATH", help=text)
    text = "tools that the blueprint of --blueprint names, as for `lev host`; may be repeated"
    to.add_argument("--tools", metavar="MODULE:ATTR", action="append", default=[], help=text)
    to.add_argument("--key", default="", help="fork nothing if a run with this key exists")
    _json(to)


def _at(to: argparse.ArgumentParser) -> None:
    to.add_argument("step", metavar="STEP", type=_whole, help="the number of a step")
    text = "only that run, with all of its components"
    to.add_argument("run", metavar="RUN", nargs="?", help=text)
    _json(to)


def _diff(to: argparse.ArgumentParser) -> None:
    to.add_argument("first", metavar="STEP", type=_whole, help="the number of a step")
    to.add_argument("second", metavar="STEP", type=_whole, help="the number of a later one")
    _json(to)


def _why(to: argparse.ArgumentParser) -> None:
    _one(to)
    to.add_argument("--upto", metavar="STEP", type=_whole, help="only what came up to that step")
    _json(to)


def _sim(to: argparse.ArgumentParser) -> None:
    text = "a scenario's TOML file, or the name of one that comes with leviath"
    to.add_argument("scenario", metavar="SCENARIO", nargs="?", help=text)
    to.add_argument("--list", action="store_true", help="name the scenarios that come with leviath")
    to.add_argument("--seed", metavar="N", type=_whole, help="instead of the scenario's own")
    text = "replace a value, such as policy.slots_default=64; may be repeated"
    to.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help=text)
    text = "play every value; several make a grid, whose last key changes fastest"
    to.add_argument("--sweep", metavar="KEY=A,B,C", action="append", default=[], help=text)
    text = "processes of a sweep (default: one a processor)"
    to.add_argument("--processes", metavar="N", type=_limit, help=text)
    text = "draw it into a .png or .svg file (needs matplotlib)"
    to.add_argument("--plot", metavar="FILE", help=text)
    to.add_argument("--digest", action="store_true", help="print the digest of all steps")
    to.add_argument("--check", action="store_true", help="hold every step to the invariants")
    _json(to)


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def _between(text: str, most: int) -> int:
    number = _whole(text)
    if not 1 <= number <= most:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and {most:,}")
    return number


def _count(text: str) -> int:
    return _between(text, COUNT_MAX)


def _limit(text: str) -> int:
    return _between(text, PAGE_MAX)


def _span(text: str) -> int:
    try:
        return parse_span(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
