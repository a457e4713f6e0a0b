"""Who answers in a simulation: models of providers, tools and people, each a pure function of time,
seed and request, but for the count of calls within a provider's window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leviath.components.context import AskedCall
from leviath.components.inputs import InferenceFinished, ToolFinished
from leviath.components.text import Text, inline, text_digest
from leviath.simulation.chances import PERMILLE, Dice, Wheel, draw, happens, subject_key
from leviath.simulation.fleet_scenario import START_MS

if TYPE_CHECKING:
    from leviath.components.commands import CallTool, Infer
    from leviath.simulation.fleet_scenario import AgentModel, People, ProviderModel, ToolModel

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
_CAPACITY: Final = ("rate_limited", "overloaded")
_DONE: Final = inline("done")


def counter_of(effect: int, attempt: int) -> int:
    """The counter of what happens to one attempt at one effect of a run."""
    return effect << 20 | attempt


def text_of(size: int, inline_max: int) -> Text:
    """A text of that many bytes, which nobody reads: by digest where a host would keep it so."""
    if size > inline_max:
        return Text("", text_digest(b"." * size), size)
    return inline("." * size)


class RunPart:
    """What one run does: drawn once, from its id."""

    __slots__ = ("agent", "growth", "key", "prompt", "turns")

    def __init__(self, agent: AgentPart, seed: int, run_id: str) -> None:
        self.agent: AgentPart = agent
        self.key: int = subject_key(seed, run_id)
        key = self.key
        self.turns: int = agent.turns(key, "turns", 0)
        self.prompt: int = agent.prompt(key, "prompt", 0)
        self.growth: int = agent.growth(key, "growth", 0)


class AgentPart:
    """What runs of one agent do."""

    def __init__(self, model: AgentModel) -> None:
        self.model = model
        self.turns: Dice = model.turns.dice()
        self.prompt: Dice = model.prompt_tokens.dice()
        self.growth: Dice = model.growth_tokens.dice()
        self.completion: Dice = model.completion_tokens.dice()
        self._calls = model.calls.dice()
        self._wheel = Wheel(model.tools) if model.tools else None

    def calls(self, run: RunPart, command: Infer) -> tuple[AskedCall, ...]:
        """The tool calls of a reply; none in the last turn."""
        turn = command.ordinal
        if self._wheel is None or turn >= run.turns or command.purpose != "turn":
            return ()
        arguments = inline(f'{{"turn": {turn}}}')
        if self._calls(run.key, "calls", turn) == 1:
            return (AskedCall(f"c{turn}", self._wheel(run.key, "tool", turn << 8), arguments),)
        count = self._calls(run.key, "calls", turn)
        return tuple(
            AskedCall(f"c{turn}-{at}", self._wheel(run.key, "tool", turn << 8 | at), arguments)
            for at in range(count)
        )


class ProviderPart:
    """How one provider answers. Keeps the counts of its present window."""

    def __init__(self, model: ProviderModel) -> None:
        self.model = model
        self._latency = model.latency_ms.dice()
        self._error_latency = model.error_latency_ms.dice()
        self._retry_after = None if model.retry_after_ms is None else model.retry_after_ms.dice()
        self._errors = model.errors_permille
        self._window = -1
        self._calls = 0
        self._tokens = 0

    def answer(
        self, now_ms: int, command: Infer, run: RunPart, asking: tuple[str, ...]
    ) -> tuple[int, InferenceFinished]:
        """How long a call takes that begins now, and what comes of it."""
        key, counter = run.key, counter_of(command.effect, command.attempt)
        prompt = run.prompt + run.growth * (command.ordinal - 1)
        completion = run.agent.completion(key, "completion", counter)
        refused = self._refused(now_ms, prompt + completion, key, counter)
        if refused is not None:
            kind, retry_after_ms = refused
            wait_ms = self._error_latency(key, "error latency", counter)
            return wait_ms, failure(command, kind, retry_after_ms)
        text, calls = _DONE, run.agent.calls(run, command)
        if asking:
            # A question which edge to take: any of them.
            text = inline(asking[draw(key, "edge", counter) * len(asking) >> 32])
        cached = prompt * self.model.cached_permille // PERMILLE
        latency_ms = self._latency(key, "latency", counter)
        latency_ms += completion * self.model.token_us // 1_000
        return latency_ms, InferenceFinished(
            command.run,
            command.effect,
            command.attempt,
            command.epoch,
            text,
            calls,
            "tools" if calls else "end",
            prompt - cached,
            completion,
            cached,
        )

    def _refused(
        self, now_ms: int, tokens: int, key: int, counter: int
    ) -> tuple[str, int | None] | None:
        for outage in self.model.outages:
            if outage.at_ms <= now_ms < outage.at_ms + outage.for_ms and (
                outage.permille == PERMILLE or happens(key, "outage", counter, outage.permille)
            ):
                return self._with_retry_after(outage.kind, key, counter)
        limit = self.model.limit
        if limit is not None:
            window, since = divmod(now_ms, limit.window_ms)
            if window != self._window:
                self._window, self._calls, self._tokens = window, 0, 0
            if (limit.calls is not None and self._calls >= limit.calls) or (
                limit.tokens is not None and self._tokens + tokens > limit.tokens and self._calls
            ):
                return "rate_limited", limit.window_ms - since
            self._calls += 1
            self._tokens += tokens
        if self._errors:
            at = draw(key, "error", counter) * PERMILLE >> 32
            for kind, permille in self._errors:
                at -= permille
                if at < 0:
                    return self._with_retry_after(kind, key, counter)
        return None

    def _with_retry_after(self, kind: str, key: int, counter: int) -> tuple[str, int | None]:
        if self._retry_after is None or kind not in _CAPACITY:
            return kind, None
        return kind, self._retry_after(key, "retry after", counter)


def failure(
    command: Infer, kind: str, retry_after_ms: int | None = None, *, charged: bool = False
) -> InferenceFinished:
    """A model call that failed."""
    return InferenceFinished(
        command.run,
        command.effect,
        command.attempt,
        command.epoch,
        error_kind=kind,
        error=f"simulated: {kind}",
        retry_after_ms=retry_after_ms,
        charged=charged,
    )


class ToolPart:
    """How one tool behaves."""

    def __init__(self, model: ToolModel, inline_max: int) -> None:
        self.model = model
        self._latency = model.latency_ms.dice()
        self._size = model.result_bytes.dice()
        self._inline_max = inline_max
        self._texts: dict[int, Text] = {}

    def answer(self, command: CallTool, key: int) -> tuple[int, ToolFinished]:
        """How long a call takes, and what comes of it."""
        model = self.model
        counter = counter_of(command.effect, command.attempt)
        latency_ms = self._latency(key, "tool latency", counter)
        size = min(self._size(key, "result", counter), command.result_bytes_max)
        failed = unknown = False
        if model.failures_permille or model.unknown_permille:
            at = draw(key, "tool failure", counter) * PERMILLE >> 32
            failed = at < model.failures_permille
            unknown = not failed and at < model.failures_permille + model.unknown_permille
        text = self._texts.get(size)
        if text is None:
            if len(self._texts) > 4_096:
                self._texts.clear()
            text = self._texts[size] = text_of(size, self._inline_max)
        return latency_ms, ToolFinished(
            command.run,
            command.effect,
            command.attempt,
            command.epoch,
            Text() if unknown else text,
            failed,
            unknown=unknown,
            empty=not unknown and not size,
        )


def given_up(command: CallTool) -> ToolFinished:
    """A tool call that was aborted."""
    return ToolFinished(
        command.run,
        command.effect,
        command.attempt,
        command.epoch,
        inline(f"[error] {command.tool} did not finish and was given up"),
        is_error=True,
    )


class PeoplePart:
    """When people answer and what they say."""

    def __init__(self, model: People) -> None:
        self.model = model
        self.answer: Dice | None = None if model.answer_ms is None else model.answer_ms.dice()
        self.fix: Dice | None = None if model.fix_ms is None else model.fix_ms.dice()

    def at_work(self, at_ms: int) -> int:
        """That time, or when they next come to work."""
        begin, end = (hour * HOUR_MS for hour in self.model.hours)
        day, time = divmod(START_MS + at_ms, DAY_MS)
        if time < begin:
            return at_ms + begin - time
        if time >= end:
            return (day + 1) * DAY_MS + begin - START_MS
        return at_ms

    def verdict(self, state: str, key: int, counter: int) -> str:
        """What they say about a call that asks, or that may have happened."""
        if state == "unknown":
            again = happens(key, "again", counter, self.model.again_permille)
            return "again" if again else "done"
        return "deny" if happens(key, "deny", counter, self.model.deny_permille) else "allow"
