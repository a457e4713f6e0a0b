"""Opening and closing a run's questions. Nothing here moves a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from leviath.components.events import QuestionAnswered, QuestionAsked, QuestionClosed
from leviath.components.people import Prompt, Prompts
from leviath.components.progress import Stage
from leviath.components.status import Status

if TYPE_CHECKING:
    from leviath.components.text import Text
    from leviath.systems.run import Run, Tick

APPROVAL = "approval"
UNKNOWN = "unknown"
POINT = "point"


def ask(
    run: Run,
    tick: Tick,
    kind: str,
    text: Text,
    *,
    choices: tuple[Text, ...] = (),
    body: Text | None = None,
    call_id: str = "",
    tool: str = "",
    name: str = "",
    required: bool = True,
) -> None:
    """Open a question under an id that this run never used before."""
    prompts = run.find(Prompts) or Prompts()
    number = prompts.counter + 1
    stage = run.find(Stage)
    prompt = Prompt(
        f"{run.run_id}.q{number}",
        kind,
        text,
        tick.now.wall_ms,
        choices,
        body,
        call_id,
        tool,
        name,
        "" if stage is None else stage.name,
        run.get(Status).attempt,
        required,
    )
    run.put(replace(prompts, counter=number, items=(*prompts.items, prompt)))
    tick.events.append(
        QuestionAsked(tick.next_event, run.run_id, tick.now.wall_ms, prompt.id, kind, call_id, tool)
    )


def find(run: Run, question: str) -> Prompt | None:
    """The open question of that id."""
    prompts = run.find(Prompts)
    for prompt in () if prompts is None else prompts.items:
        if prompt.id == question:
            return prompt
    return None


def of_call(run: Run, call_id: str) -> Prompt | None:
    """The open question that a call waits for."""
    prompts = run.find(Prompts)
    for prompt in () if prompts is None else prompts.items:
        if prompt.call_id == call_id and prompt.kind != POINT:
            return prompt
    return None


def answered(run: Run, tick: Tick, prompt: Prompt, answer: str, actor: str) -> None:
    """Close a question with a person's answer."""
    _drop(run, prompt)
    tick.events.append(
        QuestionAnswered(
            tick.next_event,
            run.run_id,
            tick.now.wall_ms,
            prompt.id,
            prompt.kind,
            answer,
            actor,
        )
    )


def _drop(run: Run, prompt: Prompt) -> None:
    prompts = run.get(Prompts)
    run.put(replace(prompts, items=tuple(item for item in prompts.items if item is not prompt)))


def close_all(run: Run, tick: Tick) -> None:
    """Nobody is to answer any more: the stage or the run is over."""
    prompts = run.find(Prompts)
    if prompts is None or not (prompts.items or prompts.held):
        return
    run.put(replace(prompts, items=(), held=()))
    for prompt in prompts.items:
        tick.events.append(
            QuestionClosed(tick.next_event, run.run_id, tick.now.wall_ms, prompt.id, prompt.kind)
        )
