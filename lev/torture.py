"""``lev torture``: crash a scenario everywhere, fail its calls, play random histories, count."""

from __future__ import annotations

import json
import logging
import signal
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

from leviath.components.errors import ConfigError
from leviath.engine.blueprints import check_spawnable, load_blueprint
from leviath.lev.adapters import providers_of, tools_of
from leviath.lev.text import many_lines, note, plural, shell_word, show, table
from leviath.providers.scripted import Scripted
from leviath.simulation.acts import acts_of, told
from leviath.simulation.checkers import INVARIANTS, NAMES
from leviath.simulation.scenario import demo, scenario_of
from leviath.simulation.torture import FaultAt, Phase, Torture, failing_call, history
from leviath.simulation.torture_cast import built_in, cast_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Generator, Iterable, Iterator

    from leviath.simulation.scenario import Scenario
    from leviath.simulation.torture import Case
    from leviath.simulation.torture_cast import Cast

DEMO: Final = "demo"
FAULTS_OF_A_KIND: Final = 16
"""Calls of one kind that fail without ``--thorough``: a demonstration takes half a minute."""
FAILURES_SHOWN_MAX: Final = 20
_AT_ONCE: Final = 200
"""Histories between two lines of ``--forever``."""
_TITLES: Final = {
    "images": "crash images",
    "enospc": "full disk at a call",
    "eio": "I/O error at a call",
    "histories": "random histories",
}


def torture(arguments: argparse.Namespace) -> int:
    """0 when every forbidden column is zero, else 1."""
    if not arguments.verbose:
        # Each planted failure would be logged, and each is what was asked for.
        logging.getLogger("leviath").setLevel(logging.CRITICAL)
    task = _Task(arguments)
    if arguments.acts is not None:
        return task.repeat_history()
    try:
        with _interrupts():
            task.count(task.cases())
    except KeyboardInterrupt:
        if not arguments.forever:
            raise
    return task.tell()


@contextmanager
def _interrupts() -> Generator[None]:
    """SIGTERM ends the block as SIGINT does, so that what was made is removed; also where a shell
    that put the command into the background has it ignore SIGINT."""
    wanted = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.default_int_handler) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Task:
    """One call of the command."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._phases = {name: Phase(name) for name in _TITLES}
        self._failures: list[Case] = []
        self._continued = 0
        self._own = arguments.scenario != DEMO

    # --- what is played -------------------------------------------------------------------------

    def _scenario(self) -> Scenario:
        given = self._arguments
        if not self._own:
            return demo(Scripted)
        if given.script is None and not given.providers:
            raise ConfigError(
                f"{given.scenario}: no model answers; give --script FILE, or --providers "
                "MODULE:ATTR with one that answers alike each time"
            )
        return scenario_of(
            str(load_blueprint(given.scenario).path),
            task=given.task,
            work=given.workdir,
            providers=lambda: providers_of(given),
            tools=tools_of(given),
        )

    def _cast(self) -> Cast:
        if not self._own:
            return built_in()
        blueprint = load_blueprint(self._arguments.scenario).blueprint
        check_spawnable(blueprint)
        return cast_of([blueprint], tools_of(self._arguments))

    def cases(self) -> Iterator[Case]:
        """Everything that was asked for, one by one."""
        given = self._arguments
        if given.fault is not None:
            with closing(Torture(self._scenario(), plant=given.plant)) as played:
                yield played.fault(failing_call(given.fault))
            return
        only = given.only
        if only in (None, "images", "faults") and not given.forever:
            with closing(Torture(self._scenario(), plant=given.plant)) as played:
                if only != "faults":
                    yield from played.images()
                    self._continued = played.continued
                if only != "images":
                    for at in self._faults(played):
                        yield played.fault(at)
        if only in (None, "histories") or given.forever:
            yield from self._histories()

    def _faults(self, played: Torture) -> list[FaultAt]:
        most = None if self._arguments.thorough else FAULTS_OF_A_KIND
        return played.faults(most=most)

    def _histories(self) -> Iterator[Case]:
        given, cast = self._arguments, self._cast()
        seed, left = given.seed, given.histories
        while left > 0 or given.forever:
            first, some = seed, _AT_ONCE if given.forever else min(_AT_ONCE, left)
            broken = 0
            for seed in range(first, first + some):
                case = history(cast, seed, plant=given.plant)
                broken += case.breach is not None
                yield case
            seed += 1
            left -= some
            if given.forever:
                what = plural(broken, "failure") if broken else "nothing broken"
                note(f"seeds {first:,} to {seed - 1:,}: {what}")

    # --- counting -------------------------------------------------------------------------------

    def count(self, cases: Iterable[Case]) -> None:
        """Take in the cases, telling of progress and of the first failures as they are found."""
        phase = ""
        for case in cases:
            if case.phase != phase and not self._arguments.quiet:
                if {phase, case.phase} != {"enospc", "eio"}:
                    note(f"{_TITLES[case.phase]} ...")
                phase = case.phase
            self._phases[case.phase].count(case)
            if case.breach is not None:
                self._failures.append(case)
                if len(self._failures) <= FAILURES_SHOWN_MAX and not self._arguments.json:
                    show(self._story(case))

    def _story(self, case: Case) -> list[str]:
        lines = [f"{_TITLES[case.phase]}, {case.name}: {case.breach}"]
        lines += [f"    {line}" for line in case.note]
        lines.append(f"    again: {self._command(case)}")
        return [many_lines(line) for line in lines]

    def _command(self, case: Case) -> str:
        """The one command that repeats a case."""
        given = self._arguments
        words = ["lev", "torture"]
        if self._own:
            words.append(given.scenario)
            words += ["--task", given.task] if given.task else []
            words += ["--workdir", given.workdir] if given.workdir else []
            words += ["--script", given.script] if given.script else []
            for name in ("providers", "tools"):
                for value in getattr(given, name):
                    words += [f"--{name}", value]
        words += case.repeat
        words += ["--plant", given.plant] if given.plant else []
        return " ".join(map(shell_word, words))

    # --- telling --------------------------------------------------------------------------------

    def tell(self) -> int:
        """Print what was counted; the exit code."""
        played = [phase for phase in self._phases.values() if phase.cases]
        if self._arguments.json:
            print(json.dumps(self._document(played), ensure_ascii=False, indent=2))
        else:
            self._print_table(played)
        return 1 if self._failures else 0

    def _document(self, played: list[Phase]) -> dict[str, object]:
        return {
            "scenario": self._arguments.scenario,
            "invariants": {invariant.name: invariant.line for invariant in INVARIANTS},
            "phases": [
                {"name": phase.name, "cases": phase.cases, "breaches": phase.breaches}
                for phase in played
            ],
            "driven_on": self._continued,
            "failures": [
                {
                    "phase": case.phase,
                    "case": case.name,
                    "invariant": "" if case.breach is None else case.breach.invariant,
                    "what": "" if case.breach is None else case.breach.what,
                    "acts": list(case.note),
                    "again": self._command(case),
                }
                for case in self._failures
            ],
        }

    def _print_table(self, played: list[Phase]) -> None:
        rows = [["", "cases", *NAMES]]
        for phase in played:
            counts = [f"{phase.breaches[name]:,}" for name in NAMES]
            rows.append([_TITLES[phase.name], f"{phase.cases:,}", *counts])
        show(table(rows, right=range(1, len(NAMES) + 2)))
        hidden = len(self._failures) - FAILURES_SHOWN_MAX
        if hidden > 0:
            print(f"+{hidden:,} more failures: --json has them all")
        if self._continued:
            print(
                f"{plural(self._continued, 'image')} that differ in what counts driven to the end"
            )
        broken = {case.breach.invariant for case in self._failures if case.breach is not None}
        for invariant in INVARIANTS:
            if invariant.name in broken:
                print(f"{invariant.name}: broken is that {invariant.line}")

    # --- one history ----------------------------------------------------------------------------

    def repeat_history(self) -> int:
        """``--acts``: play the named acts of one seed, and tell each of them."""
        given = self._arguments
        acts = acts_of(given.seed)
        asked: list[int] = given.acts
        places = [place for place in asked if place < len(acts)]
        case = history(self._cast(), given.seed, plant=given.plant, places=places)
        for place in places:
            print(f"{place}: {told(acts[place])}")
        if case.breach is None:
            print("nothing broken")
            return 0
        print(many_lines(str(case.breach)))
        return 1
