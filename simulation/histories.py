"""Random histories: what a person, a model, a tool, a clock and a crash may do, in any order.

A history is a row of acts. What happens is held to every invariant, and in the end every run has to
end. A failing history is shrunk to the acts that it needs: it is told as the seed and their places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from leviath.components.commands import CallTool, Deliver, FindAgent, Gather, Infer
from leviath.components.effects import Turn
from leviath.components.identity import Launch
from leviath.components.inputs import (
    AgentFound,
    Cancel,
    Configured,
    Decide,
    Gathered,
    InferenceFinished,
    Pause,
    Post,
    Release,
    Resume,
    Spawn,
)
from leviath.components.parts import WORLD_OWNER
from leviath.components.people import Prompts
from leviath.components.run_status import RunStatus
from leviath.components.status import Status
from leviath.components.text import inline
from leviath.components.world_facts import Counters, Offer
from leviath.simulation.acts import acts_of
from leviath.simulation.checkers import Breach, Breached, check_runs
from leviath.simulation.model_host import ModelHost, Plants
from leviath.simulation.outcomes import (
    TEXTS,
    Known,
    answered,
    delivered,
    failure,
    good,
    told_by_person,
    tooled,
)
from leviath.systems.prompts import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leviath.components.inputs import Input
    from leviath.components.people import Prompt
    from leviath.simulation.acts import Act
    from leviath.simulation.torture_cast import Cast

T = TypeVar("T")
RUNS_MAX: Final = 6
_ENDING_ROUNDS_MAX: Final = 400
_LATE_MS: Final = (1, 1_000, 61_000, 700_000)
_VERDICTS: Final = ("again", "done", "stop", "allow", "deny", "?")


class Played(Struct, frozen=True):
    """What came of one history."""

    steps: int
    digest: bytes
    """Of all steps: equal histories have equal ones."""
    breach: Breach | None


class Failure(Struct, frozen=True):
    """A history that broke an invariant, and the acts of it that are enough for that."""

    seed: int
    places: tuple[int, ...]
    """Of ``acts_of(seed)``."""
    breach: Breach


def search(cast: Cast, seed: int, plants: Plants | None = None) -> tuple[Played, Failure | None]:
    """Play the history of a seed; when it breaks an invariant, shrink it to what breaks it."""
    acts = acts_of(seed)
    played = play(cast, seed, acts, plants)
    breach = played.breach
    if breach is None:
        return played, None

    def fails(places: Sequence[int]) -> bool:
        again = play(cast, seed, [acts[place] for place in places], plants).breach
        return again is not None and again.invariant == breach.invariant

    places = shrunk(fails, range(len(acts)))
    least = play(cast, seed, [acts[place] for place in places], plants).breach
    assert least is not None, "a history is the same each time"
    return played, Failure(seed, places, least)


def play(cast: Cast, seed: int, acts: Sequence[Act], plants: Plants | None = None) -> Played:
    """Play acts over a world of that seed, then let every run end. Never raises for a breach."""
    stage = _Stage()
    try:
        stage.begin(cast, seed, plants)
        for act in acts:
            stage.play(act)
        stage.end(crash=seed % 2 == 0)
    except Breached as error:
        return Played(stage.steps, stage.digest, error.breach)
    return Played(stage.steps, stage.digest, None)


def shrunk(fails: Callable[[Sequence[int]], bool], places: Sequence[int]) -> tuple[int, ...]:
    """The fewest of ``places`` with which it ``fails`` still, as far as leaving out finds them."""
    kept = list(places)
    size = max(1, len(kept) // 2)
    while True:
        at, found = 0, False
        while at < len(kept):
            fewer = kept[:at] + kept[at + size :]
            if fails(fewer):
                kept, found = fewer, True
            else:
                at += size
        if size == 1 and not found:
            return tuple(kept)
        size = max(1, size // 2)


class _Stage:
    """A world, and who acts on it."""

    def __init__(self) -> None:
        self._host: ModelHost | None = None
        self._runs: list[int] = []
        """All that there ever were, oldest first: they can be asked about when they are gone."""
        self._seen: set[int] = set()
        self._ticket = 0
        self._queue: list[Input] = []
        """Inputs of the next step, while there is room for more in it."""
        self._room = 0

    @property
    def host(self) -> ModelHost:
        assert self._host is not None
        return self._host

    @property
    def steps(self) -> int:
        return 0 if self._host is None else self._host.steps

    @property
    def digest(self) -> bytes:
        return b"" if self._host is None else self._host.digest

    def begin(self, cast: Cast, seed: int, plants: Plants | None) -> None:
        """Open the world."""
        self._cast = cast
        self._shelf = list(cast.shelf.items())
        self._tools = [tool.name for tool in cast.offer.tools]
        self._by_spec = {tool.spec: tool.name for tool in cast.offer.tools}
        self._host = ModelHost(
            cast.offer,
            cast.shelf,
            seed=seed,
            policy=cast.policy,
            prices=cast.prices,
            # Counted down: the caller's are for another history, too.
            plants=None if plants is None else Plants(*_fields(plants)),
        )
        self.host.commit()

    def play(self, act: Act) -> None:
        """Let an act happen, if there is anything for it to happen to."""
        getattr(self, f"_{act.word}")(act.pick, act.more, act.flag)
        if act.word not in ("crash", "commit", "cut") and act.flag % 5 and not self._queue:
            self.host.drain()
            self.host.commit()
        self._see_runs()

    def _see_runs(self) -> None:
        for n in sorted(self.host.world.owners()):
            if n not in self._seen:
                self._seen.add(n)
                self._runs.append(n)

    def _post(self, item: Input) -> None:
        self._queue.append(item)
        if len(self._queue) >= self._room:
            self._flush()

    def _flush(self) -> None:
        inputs, self._queue, self._room = self._queue, [], 0
        if inputs:
            self.host.post(*inputs)

    # --- picking --------------------------------------------------------------------------------

    def _run(self, pick: int) -> int | None:
        return self._runs[pick % len(self._runs)] if self._runs else None

    def _take(self, kind: type[T], pick: int) -> T | None:
        wanted: list[Any] = [item for item in self.host.commands if isinstance(item, kind)]
        if not wanted:
            return None
        command = wanted[pick % len(wanted)]
        self.host.commands.remove(command)
        return command  # type: ignore[no-any-return]

    def _next_ticket(self) -> int:
        self._ticket += 1
        return self._ticket

    # --- acts -----------------------------------------------------------------------------------

    def _spawn(self, pick: int, more: int, flag: int) -> None:
        if len(self._runs) >= RUNS_MAX:
            return
        digest, blueprint = self._shelf[pick % len(self._shelf)]
        above = [n for n in self._runs if n in self.host.world]
        parent = above[more % len(above)] if above and more % 3 == 0 else 0
        launch = Launch(
            task=inline("a task"),
            workdir="/w",
            blueprint=digest,
            started_ms=self.host.wall_ms,
            num_stages=len(blueprint.stages),
            yolo=flag % 3 == 0,
            callback_url="https://example.org/hook" if flag % 4 == 1 else None,
        )
        key = "k" if more % 5 == 0 else ""
        spawn = Spawn(self._next_ticket(), blueprint.name, "", launch, key=key, parent=parent)
        self._post(spawn)

    def _reply(self, pick: int, more: int, flag: int) -> None:
        infer = self._take(Infer, pick)
        if infer is not None:
            self._post(self._replied(infer, more, flag))

    def _replied(self, infer: Infer, more: int, flag: int) -> InferenceFinished:
        names = [self._by_spec[spec] for spec in infer.tools if spec in self._by_spec]
        return answered(infer, more, flag, [*(names or self._tools), "n\u00f6 tool"], self._known())

    def _known(self) -> Known:
        world = self.host.world
        ids = tuple(world.run_id(n) for n in sorted(world.owners()))
        return Known(ids, tuple(blueprint.name for blueprint in self._cast.blueprints))

    def _fail(self, pick: int, more: int, flag: int) -> None:
        infer = self._take(Infer, pick)
        if infer is not None:
            self._post(failure(infer, more, flag))

    def _tool(self, pick: int, more: int, flag: int) -> None:
        call = self._take(CallTool, pick)
        if call is not None:
            self._post(tooled(call, more, flag))

    def _gather(self, pick: int, more: int, flag: int) -> None:
        gather = self._take(Gather, pick)
        if gather is not None:
            files = tuple((name, (inline("text"),)) for name, _, _ in gather.seeds)
            error = "no such folder" if flag % 3 == 0 else ""
            self._post(Gathered(gather.run, gather.effect, gather.attempt, files, error))

    def _find(self, pick: int, more: int, flag: int) -> None:
        find = self._take(FindAgent, pick)
        if find is not None:
            digest, blueprint = self._shelf[more % len(self._shelf)]
            error = "there is none" if flag % 5 == 0 else ""
            found = AgentFound(find.run, find.effect, find.attempt, digest, blueprint.name)
            self._post(replace(found, error=error))

    def _deliver(self, pick: int, more: int, flag: int) -> None:
        deliver = self._take(Deliver, pick)
        if deliver is not None:
            self._post(delivered(deliver, accepted=flag % 3 != 0, retryable=more % 2 == 0))

    def _late(self, pick: int, more: int, flag: int) -> None:
        """The outcome of an attempt that a dead host had made."""
        if not self.host.lost:
            return
        command = self.host.lost.pop(pick % len(self.host.lost))
        if isinstance(command, Infer):
            self._post(self._replied(command, more, flag))
        elif isinstance(command, CallTool):
            self._post(tooled(command, more, flag))

    def _control(self, pick: int, more: int, flag: int) -> None:
        run = self._run(pick)
        if run is not None:
            kind = (Pause, Resume, Resume, Cancel)[more % 4]
            self._post(kind(run, self._next_ticket()))

    def _message(self, pick: int, more: int, flag: int) -> None:
        run = self._run(pick)
        if run is not None:
            region = ("", "notes", "none")[flag % 3]
            text = inline(TEXTS[more % len(TEXTS)])
            self._post(Post(run, text, self._next_ticket(), "someone", region))

    def _decide(self, pick: int, more: int, flag: int) -> None:
        run = self._run(pick)
        if run is None:
            return
        turn = self.host.world.find(run, Turn) if run in self.host.world else None
        parked = [
            call.call_id
            for call in (() if turn is None else turn.calls)
            if call.state in ("asked", "unknown") or flag % 4 == 0
        ]
        call_id = parked[more % len(parked)] if parked else "none"
        verdict = _VERDICTS[flag % len(_VERDICTS)]
        if verdict == "again":
            self.host.lets_repeat(run, call_id)
        self._post(Decide(run, call_id, verdict, self._next_ticket()))

    def _respond(self, pick: int, more: int, flag: int) -> None:
        run = self._run(pick)
        if run is None or run not in self.host.world:
            return
        asked = self.host.world.find(run, Prompts)
        for prompt in () if asked is None else asked.items[more % 3 :]:
            self._answer(run, prompt, flag)

    def _answer(self, run: int, prompt: Prompt, flag: int) -> None:
        answer = told_by_person(run, prompt, flag)
        if prompt.kind == UNKNOWN and answer.verdict == "yes":
            self.host.lets_repeat(run, prompt.call_id)
        self._post(replace(answer, ticket=self._next_ticket()))

    def _release(self, pick: int, more: int, flag: int) -> None:
        run = self._run(pick)
        if run is not None:
            self._post(Release(run, self._next_ticket()))

    def _sleep(self, pick: int, more: int, flag: int) -> None:
        self._flush()
        self.host.sleep(_LATE_MS[pick % 4])

    def _offer(self, pick: int, more: int, flag: int) -> None:
        given = self._cast.offer
        some = (given.providers, given.providers[:1], given.providers[1:], ())[pick % 4]
        tools = given.tools if more % 3 else given.tools[more % max(1, len(given.tools)) :]
        offer = Offer(some, tools, given.contexts)
        self._post(Configured(None, offer))

    def _slots(self, pick: int, more: int, flag: int) -> None:
        policy = self._cast.policy
        narrow = replace(policy, slots_default=pick % 3)
        self._post(Configured(narrow if more % 2 else policy, None))

    def _crash(self, pick: int, more: int, flag: int) -> None:
        self._queue.clear()
        drive = flag % 4 != 0
        self.host.crash(before_release=pick % 3 == 0, drive=drive, away_ms=more)
        if more % 2:
            self.host.commit()

    def _together(self, pick: int, more: int, flag: int) -> None:
        """The next inputs come so fast that one step takes them all."""
        self._flush()
        self._room = 2 + pick % 4

    def _commit(self, pick: int, more: int, flag: int) -> None:
        self._flush()
        self.host.commit()

    def _cut(self, pick: int, more: int, flag: int) -> None:
        self._flush()
        self.host.cut()

    # --- the ending -----------------------------------------------------------------------------

    def end(self, *, crash: bool) -> None:
        """Whatever happened: once everything is answered, each run ends. A new host drives every
        run afresh, so half of the histories end under the one that is there."""
        host = self.host
        self._flush()
        if crash or not host.world.get(WORLD_OWNER, Counters).driven:
            host.crash()
        else:
            host.post(host.configured)
        host.commit()
        left: list[int] = []
        for _ in range(_ENDING_ROUNDS_MAX):
            host.drain()
            left = [n for n in sorted(host.world.owners()) if not self._status(n).is_ended]
            before = host.digest
            for n in left:
                self._help(n)
            host.commit()
            answered = self._answer_all()
            if not left and not answered and host.caches.next_due_ms() is None:
                break
            # Alone, the passing of time changes nothing but the counters.
            moved = answered or host.digest != before
            due = host.sleep(400_000).changes
            host.commit()
            if left and not moved and not due and not host.commands:
                marker = host.world.marker(left[0])
                raise Breached("stuck", f"run {left[0]}: {self._status(left[0]).wire()}, {marker}")
        else:
            raise Breached("stuck", f"runs {left} go on for ever")
        held = {key: value for key, value in host.caches.snapshot().items() if key in _OVER}
        if any(held.values()):
            raise Breached("stuck", f"nothing runs, and there is left {held}")
        check_runs(host.world, list(host.world.owners()))

    def _status(self, n: int) -> RunStatus:
        return self.host.world.get(n, Status).status

    def _answer_all(self) -> bool:
        host = self.host
        commands, host.commands = host.commands, []
        answers: list[Input] = []
        for command in commands:
            answer = good(command, self._shelf[0])
            if answer is not None:
                answers.append(answer)
        for answer in answers:
            host.post(answer)
            host.drain()
        host.commit()
        return bool(answers)

    def _help(self, n: int) -> None:
        host = self.host
        status = host.world.get(n, Status)
        if status.status is RunStatus.PAUSED:
            host.post(Resume(n, self._next_ticket()))
            status = host.world.get(n, Status)
        if status.status is not RunStatus.WAITING_INPUT or status.waiting is None:
            return
        if status.waiting.reason == "needs_setup":
            host.post(Resume(n, self._next_ticket()))
        turn = host.world.find(n, Turn)
        for call in () if turn is None else turn.calls:
            if call.state in ("asked", "unknown"):
                verdict = "deny" if call.state == "asked" else "done"
                host.decide(Decide(n, call.call_id, verdict, self._next_ticket()))
        asked = host.world.find(n, Prompts)
        for prompt in () if asked is None else asked.items:
            self._answer(n, prompt, 1)


_OVER: Final = ("in_use", "waiting", "due")
"""Caches that are empty when every run has ended."""


def _fields(plants: Plants) -> tuple[int, ...]:
    return tuple(getattr(plants, name) for name in plants.__struct_fields__)
