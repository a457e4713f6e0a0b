"""Trees of runs on real homes: agents that split, and a provider that answers what it is asked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import trio
from engine_worlds import MODEL

from leviath.engine.blueprints import parse_blueprint
from leviath.engine.ports import CallRequest, InferenceReply, Usage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from leviath.components.blueprint import Blueprint
    from leviath.engine.ports import InferenceRequest


def stages(body: str, name: str) -> Blueprint:
    """A blueprint in which every stage has the scripted model."""
    text = f'[agent]\nname = "{name}"\n{body}'
    for line in body.splitlines():
        if line.startswith("[stages.") and "." not in line[len("[stages.") : -1]:
            text += f"\n[stages.{line[len('[stages.') : -1]}.model]\n{MODEL}\n"
    return parse_blueprint(text, where=name)


def splitter(keys: str = "") -> Blueprint:
    """Splits, lets workers of its own work, merges."""
    return stages(
        f"""
[stages.split]
mode = "fan_out"
worker_stage = "work"
merge_stage = "merge"
{keys}
[stages.work]
allow_as_worker = true
[stages.merge]
mode = "output"
[stages.merge.transitions]
""",
        "splitter",
    )


BOSS = stages(
    """
[stages.main]
available_tools = ["spawn_agent", "wait_for_agents", "submit_output"]
""",
    "boss",
)
READER = stages("[stages.main]\n", "reader")


class Answers:
    """A provider that answers a stage's turns in order, or by a function of the request.

    ``asked`` holds every request that was made.
    """

    name = "scripted"

    def __init__(self, **by_stage: Callable[[InferenceRequest], InferenceReply]) -> None:
        self.by_stage = by_stage
        self.asked: list[InferenceRequest] = []

    async def infer(
        self, request: InferenceRequest, on_text: Callable[[str], None] | None
    ) -> InferenceReply:
        self.asked.append(request)
        return self.by_stage[request.stage](request)


def text(body: str) -> InferenceReply:
    """A reply of text, with its price."""
    return InferenceReply(text=body, usage=Usage(prompt=10, completion=2), cost_nano_usd=1_000)


def calls(*asked: tuple[str, dict[str, object]]) -> InferenceReply:
    """A reply of tool calls, with its price."""
    return InferenceReply(
        calls=tuple(
            CallRequest(f"c{number}", name, json.dumps(arguments))
            for number, (name, arguments) in enumerate(asked)
        ),
        usage=Usage(prompt=10, completion=2),
        cost_nano_usd=1_000,
    )


def task_of(request: InferenceRequest) -> str:
    """What the run was asked to do: its first user message."""
    return next(message.text for message in request.messages if message.role == "user")


def answers(items: int = 10, *, size: int = 1_500) -> Answers:
    """For ``splitter``: a JSON list of so many items, results that are kept by digest, and a final
    output that has them all."""

    def work(request: InferenceRequest) -> InferenceReply:
        task = task_of(request)
        return text(f"result of {task} " + "x" * size)

    def merge(request: InferenceRequest) -> InferenceReply:
        found = request.messages[-1].text.split("\n\n## ")[1:]
        heads = [part.replace("\n", " ")[:40] for part in found]
        if any(
            message.role == "tool" and message.tool == "submit_output"
            for message in request.messages
        ):
            return text("done")
        return calls(("submit_output", {"content": "; ".join(heads)}))

    return Answers(
        split=lambda request: text(json.dumps([f"task {n}" for n in range(items)])),
        work=work,
        merge=merge,
    )


class Stops(Answers):
    """``answers`` for so many calls, then none; says when it is asked for one more."""

    def __init__(self, items: int, most: int) -> None:
        super().__init__(**answers(items).by_stage)
        self.left = most
        self.stopped = trio.Event()

    async def infer(
        self, request: InferenceRequest, on_text: Callable[[str], None] | None
    ) -> InferenceReply:
        if not self.left:
            self.stopped.set()
            await trio.sleep_forever()
        self.left -= 1
        return await super().infer(request, on_text)


def expected(items: int = 10) -> str:
    """The final output that ``answers`` leads to."""
    return "; ".join(
        f"{n + 1} result of task {n} xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"[:40] for n in range(items)
    )


def agent_folder(folder: Path, name: str, description: str = "") -> Path:
    """A blueprint of one stage, written into a folder."""
    place = folder / name
    place.mkdir(parents=True)
    (place / "agent.leviath").write_text(
        f'[agent]\nname = "{name}"\ndescription = "{description}"\n[stages.main]\n'
        f"[stages.main.model]\n{MODEL}\n"
    )
    return place
