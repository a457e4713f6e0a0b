"""A host whose disk is a list and whose outside is a book, for a hundred histories a second.

It takes the same turns as the real one: inputs are stepped, steps are committed, and only then do
acknowledgements and commands leave. What a crash takes is what was not committed; what comes back
is loaded by redo lists from a cut, and every promise made before is held against it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field, msgpack
from msgspec.structs import replace

from leviath.components.commands import CallTool, Command
from leviath.components.effects import Effects, Turn
from leviath.components.errors import LevError
from leviath.components.inputs import Configured, Decide, HostOpened, InferenceFinished, Settle
from leviath.components.parts import WORLD_OWNER
from leviath.components.world_facts import Counters, Seed
from leviath.engine.step import Stepper, StepResult
from leviath.persistence.journal import ORIGIN, check_chain, decode_changes, encode_step
from leviath.persistence.redo import Owners, apply_changes, decode_part
from leviath.simulation.checkers import (
    Breached,
    check_caches,
    check_queues,
    check_runs,
    check_totals,
)
from leviath.systems.caches import Caches
from leviath.systems.run import Now
from leviath.systems.schedule import RULES
from leviath.systems.world import World

if TYPE_CHECKING:
    from leviath.components.base import Component
    from leviath.components.blueprint import Blueprint
    from leviath.components.inputs import Input
    from leviath.components.world_facts import Offer, Policy, Prices
    from leviath.persistence.rows import JournalRow
    from leviath.systems.run import LedgerFact

START_MS = 1_790_000_000_000
LedgerKey = tuple[int, int, int]
"""(run, effect, attempt)"""
_DRAIN_MAX = 1_000
_encode = msgpack.encode


class Store(Struct):
    """What is durable: a cut, the journal, the ledger, and the run files' newest steps."""

    cut_step: int = 0
    cut_digest: bytes = ORIGIN
    cut: dict[tuple[int, str], bytes] = field(default_factory=dict[tuple[int, str], bytes])
    rows: list[JournalRow] = field(default_factory=list["JournalRow"])
    ledger: dict[LedgerKey, LedgerFact] = field(default_factory=dict[LedgerKey, "LedgerFact"])
    files: dict[int, int] = field(default_factory=dict[int, int])
    """By run: the step of which its newest file tells."""

    def load(self) -> tuple[Owners, int, bytes]:
        """Components of all owners, the newest step and its digest. Raises LevError."""
        owners: Owners = {}
        for (owner, part), body in self.cut.items():
            component = decode_part(part, body)
            owners.setdefault(owner, {})[type(component)] = component
        step, digest = self.cut_step, self.cut_digest
        for row in self.rows:
            if row.step > self.cut_step:
                digest = check_chain(digest, row)
                apply_changes(owners, decode_changes(row))
                step = row.step
        return owners, step, digest


class Plants(Struct):
    """Faults to plant, at which opportunity counted from 1; 0 plants none."""

    lost_commit: int = 0
    """A commit is answered and not there: a sync that was skipped."""
    lost_row: int = 0
    """The journal loses a row."""
    early_file: int = 0
    """Run files are written before their steps are durable, each time."""
    twice: int = 0
    """The outcome of a model call is applied a second time."""

    def strikes(self, name: str) -> bool:
        """Count an opportunity; True for the one."""
        left: int = getattr(self, name)
        if left:
            setattr(self, name, left - 1)
        return left == 1


class ModelHost:
    """One world over one store. Every method raises Breached for what must not be.

    ``commands`` are those that left and were not answered; ``lost`` those of hosts that died.
    """

    def __init__(
        self,
        offer: Offer,
        shelf: dict[bytes, Blueprint],
        *,
        seed: int,
        policy: Policy,
        prices: Prices,
        plants: Plants | None = None,
    ) -> None:
        self.offer = offer
        self.shelf = shelf
        self.seed: Seed = Seed("model", seed)
        self.configured: Configured = Configured(policy, offer, prices)
        self.plants: Plants = plants or Plants()
        self.store: Store = Store()
        self.world_ms: int = 0
        self.wall_ms: int = START_MS
        self.commands: list[Command] = []
        self.lost: list[Command] = []
        self.steps: int = 0
        self._once = {tool.name for tool in offer.tools if tool.effect_class == "once"}
        self._sent: set[tuple[int, int]] = set()
        """(run, effect) of calls of `once` tools that left."""
        self._again: set[tuple[int, int]] = set()
        """Those of them that somebody asked to be made again."""
        self._heard = (0, ORIGIN)
        """Newest step that was acknowledged, and its digest."""
        self._epoch = 0
        self._open()

    # --- opening --------------------------------------------------------------------------------

    def _open(self, *, drive: bool = True, away_ms: int = 0) -> None:
        try:
            owners, step, digest = self.store.load()
        except LevError as error:
            raise Breached("steps", f"the store does not load: {error}") from error
        heard, known = self._heard
        if step < heard:
            raise Breached("steps", f"step {heard} was acknowledged, and {step} is the newest")
        if step == heard and digest != known:
            raise Breached("steps", f"step {step} is not the one that was acknowledged")
        for n, of in self.store.files.items():
            if of > step:
                raise Breached("files", f"run {n}: its file tells of step {of}, after {step}")
        self.redone = owners
        self.world: World = World()
        self.caches: Caches = Caches(self.world)
        self.world.blueprints.update(self.shelf)
        owners.setdefault(WORLD_OWNER, {})[Seed] = self.seed
        self.world.load(WORLD_OWNER, owners[WORLD_OWNER].values())
        for owner in sorted(owners):
            if owner != WORLD_OWNER:
                self.world.load(owner, owners[owner].values())
        counters = self.world.find(WORLD_OWNER, Counters)
        self.world.sequence = 0 if counters is None else counters.sequence
        self.world.sort_queues()
        self.caches.rebuild_order()
        self.stepper: Stepper = Stepper(self.world, self.caches)
        self.digest: bytes = digest
        self.ledger: dict[LedgerKey, LedgerFact] = dict(self.store.ledger)
        self._pending: list[tuple[StepResult, JournalRow]] = []
        check_runs(self.world, list(self.world.owners()))
        # An epoch that was claimed is used up, even if nothing of it became durable.
        self._epoch += 1
        opened = HostOpened(self._epoch, RULES, away_ms, clean=False, drive=drive)
        if not drive:
            self.post(opened)
            return
        self.post(opened, self.configured, Settle(tuple(sorted(self.world.owners()))))

    def crash(self, *, before_release: bool = False, drive: bool = True, away_ms: int = 0) -> None:
        """The host dies, and another takes the home. With ``before_release`` it dies right after a
        commit: the steps are there, and nobody heard of them."""
        if before_release:
            self._commit()
        self.lost += self.commands
        self.commands = []
        self.wall_ms += away_ms
        self._open(drive=drive, away_ms=away_ms)

    # --- stepping -------------------------------------------------------------------------------

    def post(self, *inputs: Input) -> StepResult:
        """Take the inputs in one step, and hold it to everything that can be seen at once."""
        before = self._effects_of(inputs)
        result = self._step(inputs)
        for n, old in before.items():
            self._apply_again(n, old, inputs)
        return result

    def _step(self, inputs: tuple[Input, ...]) -> StepResult:
        result = self.stepper.step(inputs, Now(self.world_ms, self.wall_ms))
        if result.is_empty:
            return result
        self.steps += 1
        row = encode_step(
            self.digest,
            step=result.step,
            epoch=self._epoch,
            world_ms=self.world_ms,
            wall_ms=self.wall_ms,
            inputs=result.inputs,
            changes=result.changes,
            events=result.events,
        )
        self.digest = row.digest
        self._pending.append((result, row))
        for fact in result.facts:
            self.ledger[fact.run, fact.effect, fact.attempt] = fact
        if result.mirror and self.plants.early_file:
            self.store.files.update(dict.fromkeys(result.mirror, result.step))
        self._check(result, row)
        return result

    def _check(self, result: StepResult, row: JournalRow) -> None:
        world = self.world
        if result.failures:
            raise Breached("rules", f"a rule failed: {result.failures}")
        self._check_acks(result)
        apply_changes(self.redone, decode_changes(row))
        owners = {WORLD_OWNER, *world.owners()}
        if owners != set(self.redone):
            raise Breached("steps", "the redo list leads to other runs than there are")
        for owner in sorted(result.touched & owners):
            if dict(world.live_row(owner)) != self.redone[owner]:
                raise Breached("steps", f"the redo list leads to another state of run {owner}")
        touched = sorted(result.touched & owners - {WORLD_OWNER})
        check_runs(world, touched)
        check_caches(world, self.caches)
        check_queues(world, self.caches, self.world_ms)
        by_run: dict[int, list[LedgerFact]] = {n: [] for n in touched}
        for (n, _, _), fact in self.ledger.items():
            if n in by_run:
                by_run[n].append(fact)
        check_totals(world, touched, by_run)

    def _check_acks(self, result: StepResult) -> None:
        asked = sorted(filter(None, (getattr(item, "ticket", 0) for item in result.inputs)))
        answered = sorted(ack.ticket for ack in result.acks)
        if asked != answered:
            raise Breached("rules", f"tickets {asked} were answered as {answered}")

    def sleep(self, span_ms: int) -> StepResult:
        """Let time pass, then take what is due."""
        self.world_ms += span_ms
        self.wall_ms += span_ms
        return self.post()

    def drain(self) -> None:
        """Take the steps that the world wants at once, as a host's loop does."""
        for _ in range(_DRAIN_MAX):
            due = self.stepper.next_due_ms(self.world_ms)
            if due is None or due > self.world_ms:
                return
            self.post()
        raise Breached("stuck", "the world wants another step at once, for ever")

    # --- becoming durable -----------------------------------------------------------------------

    def commit(self) -> None:
        """Everything that was stepped becomes durable, is acknowledged, and its commands leave."""
        committed = self._commit()
        if committed:
            self._heard = (committed[-1].step, self.digest)
        for result in committed:
            for command in result.commands:
                self._release(command)
            for n in result.mirror:
                self.store.files[n] = result.step

    def _commit(self) -> list[StepResult]:
        pending, self._pending = self._pending, []
        if pending and self.plants.strikes("lost_commit"):
            return [result for result, _ in pending]
        rows = [row for _, row in pending]
        if rows and self.plants.strikes("lost_row"):
            rows.pop()
        self.store.rows += rows
        self.store.ledger = dict(self.ledger)
        return [result for result, _ in pending]

    def cut(self) -> None:
        """Commit, and write the whole state: a load begins there from now on."""
        self.commit()
        rows: dict[tuple[int, str], bytes] = {}
        for owner in (WORLD_OWNER, *self.world.owners()):
            for component in self.world.parts_of(owner):
                if not isinstance(component, Seed):
                    rows[owner, type(component).__name__] = _encode(component)
        self.store.cut = rows
        self.store.cut_step = self.world.get(WORLD_OWNER, Counters).step
        self.store.cut_digest = self.digest

    # --- the outside ----------------------------------------------------------------------------

    def _release(self, command: Command) -> None:
        if isinstance(command, CallTool) and command.tool in self._once:
            key = (command.run, command.effect)
            if key in self._sent and key not in self._again:
                raise Breached("once", f"run {command.run}: {command.tool} was sent twice")
            self._again.discard(key)
            self._sent.add(key)
        self.commands.append(command)

    def decide(self, decision: Decide) -> None:
        """Post a person's word; `again` allows one call to be made once more."""
        if decision.verdict == "again":
            self.lets_repeat(decision.run, decision.call_id)
        self.post(decision)

    def lets_repeat(self, run: int, call_id: str) -> None:
        """Somebody is about to say that a call may be made once more."""
        turn = self.world.find(run, Turn) if run in self.world else None
        for call in () if turn is None else turn.calls:
            if call.call_id == call_id and call.effect:
                self._again.add((run, call.effect))

    # --- a planted fault ------------------------------------------------------------------------

    def _effects_of(self, inputs: tuple[Input, ...]) -> dict[int, Component]:
        """Effects of the runs whose outcome shall be applied again."""
        if not self.plants.twice:
            return {}
        return {
            item.run: self.world.get(item.run, Effects)
            for item in inputs
            if isinstance(item, InferenceFinished) and item.run in self.world
        }

    def _apply_again(self, n: int, old: Component, inputs: tuple[Input, ...]) -> None:
        now = self.world.find(n, Effects)
        assert isinstance(old, Effects)
        if now is None or now == old or not self.plants.strikes("twice"):
            return
        again = [item for item in inputs if isinstance(item, InferenceFinished) and item.run == n]
        numbers = {item.effect for item in again}
        kept = tuple(effect for effect in now.items if effect.number not in numbers)
        back = tuple(effect for effect in old.items if effect.number in numbers)
        self.world.put(n, replace(now, items=back + kept))
        self._step(tuple(again))

    def wanted(self, kind: type[Command]) -> list[Command]:
        """Commands of a kind that left and were not answered, oldest first."""
        return [command for command in self.commands if isinstance(command, kind)]
