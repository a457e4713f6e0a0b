"""Small agents and tools for tests that drive a world by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from leviath.components.commands import Infer
from leviath.components.context import Context
from leviath.components.progress import Stage
from leviath.components.world_facts import OfferedTool
from leviath.engine.blueprints import parse_blueprint
from leviath.simulation.hand import Hand

if TYPE_CHECKING:
    from leviath.components.blueprint import Blueprint

T = TypeVar("T")
LOOK = OfferedTool("look", "pure", 60_000, b"look")
FIND = OfferedTool("find", "pure", 60_000, b"find", searches=True)
EDIT = OfferedTool("edit", "idempotent", 60_000, b"edit", modifies=True)
SEND = OfferedTool("send", "once", 60_000, b"send")
SUBMIT = OfferedTool("submit_output", "step", 0, b"submit")
WRITE = OfferedTool("context_write", "step", 0, b"write")
TOOLS = (LOOK, FIND, EDIT, SEND, SUBMIT, WRITE)
ALL = '["look", "find", "edit", "send", "submit_output", "context_write"]'

MODEL = 'models = [{ provider = "scripted", model = "m" }]'
TWO_MODELS = (
    'models = [{ provider = "scripted", model = "m" }, { provider = "spare", model = "s" }]'
)


def agent(body: str, *, head: str = "", models: str = MODEL) -> Blueprint:
    """A blueprint of ``[stages.*]`` tables; every stage gets the same models."""
    text = f'[agent]\nname = "small"\n{head}\n{body}'
    names = [
        line[len("[stages.") : -1]
        for line in text.splitlines()
        if line.startswith("[stages.") and "." not in line[len("[stages.") : -1]
    ]
    for name in names:
        if f"[stages.{name}.model]" not in text:
            text += f"\n[stages.{name}.model]\n{models}\n"
    return parse_blueprint(text, where="small")


ONE = agent(f"[stages.main]\navailable_tools = {ALL}\n")
"""One stage with every tool."""
TALK = agent("[stages.main]\n")
"""One stage without tools: any reply ends it."""


def word(hand: Hand, run: int) -> str:
    """The run's status in its wire word, and what it waits for."""
    status = hand.status(run)
    waits = status.waiting
    return status.status.wire() + (f" {waits.blocker or waits.reason}" if waits else "")


def stage(hand: Hand, run: int) -> str:
    """Name of the stage that the run is in."""
    return hand.world.get(run, Stage).name


def texts(hand: Hand, run: int, region: str = "conversation") -> list[str]:
    """Texts of a region's entries."""
    found = hand.world.get(run, Context).region(region)
    return [] if found is None else [entry.text.body for entry in found.entries]


def asked(hand: Hand) -> Infer:
    """The one model call that is wanted; it stays wanted."""
    (infer,) = [command for command in hand.commands if isinstance(command, Infer)]
    return infer


def wanted(hand: Hand, kind: type[T]) -> list[T]:
    """Commands of one kind that nobody has answered."""
    return [command for command in hand.commands if isinstance(command, kind)]


def start(body: str, **more: str) -> tuple[Hand, int]:
    """A world with that agent, and its run."""
    hand = Hand(tools=TOOLS)
    return hand, hand.spawn(agent(body, **more))


def edges(*tables: str, to: str = "b", rest: str = "") -> str:
    """Stage a with these edge tables, and stages b and c that end the run."""
    body = "[stages.a]\n" + rest
    for table in tables:
        body += f"[[stages.a.edges]]\n{table}\n"
    for name in ("b", "c"):
        body += f"[stages.{name}]\n[stages.{name}.transitions]\n"
    return body
