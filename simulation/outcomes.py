"""What may come of a command in a random history: the good outcome, and all kinds of bad ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from leviath.components.commands import CallTool, Deliver, FindAgent, Gather, Infer
from leviath.components.context import AskedCall
from leviath.components.error_kind import ErrorKind
from leviath.components.inputs import (
    AgentFound,
    Answered,
    Delivered,
    Gathered,
    InferenceFinished,
    ToolFinished,
)
from leviath.components.text import inline
from leviath.engine.agent_tools import agent_fields
from leviath.engine.person_tools import person_fields
from leviath.engine.texts import Texts
from leviath.systems.agent_calls import AGENT_TOOLS
from leviath.systems.draw import splitmix64
from leviath.systems.prompts import APPROVAL
from leviath.systems.views import QUESTION_TOOLS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leviath.components.blueprint import Blueprint
    from leviath.components.commands import Command
    from leviath.components.inputs import Input
    from leviath.components.people import Prompt

TEXTS: Final = ("", "done", "DONE", "first", "go to LAST-ONE", "\u0130\u1e9e\U0001fae8", "x" * 300)
"""What models, tools and people say: endings, names of stages, odd characters, a long one."""
_KINDS: Final = tuple(ErrorKind)


_CALL_IDS: Final = ("", "a", "b", "c" * 200)
_ARGUMENTS: Final = ("{}", '{"a": 1}', "[", "\u2028")
_FIELDS: Final = (
    (),
    (("content", inline("result")),),
    (("region", inline("notes")), ("content", inline("note"))),
)
_TEXTS_ALONE: Final = Texts(lambda digest: None)
_OF_DOCUMENTS: Final = ("present_for_review", "edit_document")
_JOINS: Final = ("all", "fail_all", "first", "quorum")


class Known(Struct, frozen=True):
    """What a model may have heard of."""

    run_ids: tuple[str, ...]
    agents: tuple[str, ...]


def answered(
    infer: Infer, more: int, flag: int, tools: Sequence[str], known: Known
) -> InferenceFinished:
    """A model's reply: text, and up to three calls of these tools."""
    bits = splitmix64(more << 16 | flag)
    calls: list[AskedCall] = []
    for _ in range(more % 4):
        bits = splitmix64(bits)
        tool = tools[(bits >> 8) % len(tools)]
        calls.append(_asked(tool, _CALL_IDS[bits % 4], bits >> 16, known))
    return InferenceFinished(
        infer.run,
        infer.effect,
        infer.attempt,
        infer.epoch,
        text=inline(TEXTS[flag % len(TEXTS)]),
        calls=tuple(calls),
        prompt=3 + more % 5,
        completion=flag % 7,
        cached=more % 2,
        cost_nano_usd=None if flag % 3 == 0 else more,
    )


def _asked(tool: str, call_id: str, bits: int, known: Known) -> AskedCall:
    """A call as the border makes it of a model's JSON."""
    if tool in QUESTION_TOOLS:
        fields, fault = person_fields(tool, _question(tool), _TEXTS_ALONE)
        return AskedCall(call_id, tool, inline("{}"), fault, fields)
    if tool in AGENT_TOOLS:
        fields, fault = agent_fields(tool, _arguments(tool, bits, known), _TEXTS_ALONE)
        return AskedCall(call_id, tool, inline("{}"), fault, fields)
    fault = "" if bits % 4 else "not JSON"
    arguments = _ARGUMENTS[(bits >> 8) % 4]
    return AskedCall(call_id, tool, inline(arguments), fault, _FIELDS[(bits >> 16) % 3])


def _question(tool: str) -> dict[str, object]:
    asked: dict[str, object] = {"content" if tool in _OF_DOCUMENTS else "question": "what?"}
    return asked | ({"options": ["this", "that"]} if tool == "ask_user_choice" else {})


def _arguments(tool: str, bits: int, known: Known) -> dict[str, object]:
    agent = known.agents[bits % len(known.agents)]
    run_id = known.run_ids[(bits >> 8) % len(known.run_ids)] if known.run_ids else "none"
    join = _JOINS[(bits >> 16) % 4]
    given: dict[str, object] = {"join": join} if bits >> 18 & 1 else {}
    if join == "quorum" and given:
        given["quorum"] = 1 + (bits >> 20) % 2
    match tool:
        case "spawn_agent":
            return {"agent": agent, "task": "go", "wait": bool(bits >> 24 & 1)}
        case "fan_out":
            items = [f"item {number}" for number in range((bits >> 24) % 4)]
            return given | {"items": items} | ({"agent": agent} if bits >> 26 & 1 else {})
        case "wait_for_agents":
            return given
        case "send_to_agent":
            return {"agent_id": run_id, "message": "listen"}
        case _:
            return {"agent_id": run_id}


def good(command: Command, agent: tuple[bytes, Blueprint]) -> Input | None:
    """The outcome that lets a run go on; None for a command that has none."""
    match command:
        case Infer():
            return InferenceFinished(
                command.run,
                command.effect,
                command.attempt,
                command.epoch,
                text=inline("DONE"),
                prompt=1,
            )
        case CallTool():
            return ToolFinished(
                command.run, command.effect, command.attempt, command.epoch, result=inline("ok")
            )
        case Gather():
            return Gathered(command.run, command.effect, command.attempt)
        case FindAgent():
            digest, blueprint = agent
            return AgentFound(command.run, command.effect, command.attempt, digest, blueprint.name)
        case Deliver():
            return delivered(command, accepted=True, retryable=False)
        case _:
            return None


def failure(infer: Infer, more: int, flag: int) -> InferenceFinished:
    """A model call that failed, in any way."""
    return InferenceFinished(
        infer.run,
        infer.effect,
        infer.attempt,
        infer.epoch,
        error_kind=_KINDS[more % len(_KINDS)].value,
        error="no \U0001fae8",
        retry_after_ms=(None, 0, 5_000)[flag % 3],
        charged=flag % 2 == 0,
    )


def tooled(call: CallTool, more: int, flag: int) -> ToolFinished:
    """What a tool call came to."""
    return ToolFinished(
        call.run,
        call.effect,
        call.attempt,
        call.epoch,
        result=inline(TEXTS[more % len(TEXTS)]),
        is_error=flag % 4 == 0,
        unknown=flag % 5 == 0,
        workspace_lost=flag % 16 == 0,
        modified=("a",) if call.tool == "edit" else (),
    )


def told_by_person(run: int, prompt: Prompt, flag: int) -> Answered:
    """What a person says to a question: mostly what it asks for."""
    verdict = ("yes", "no")[flag >> 4 & 1]
    answer = Answered(run, prompt.id, actor="someone")
    if flag % 8 == 0:
        return answer
    if prompt.kind in ("text", "edit"):
        return replace(answer, text=inline("words"))
    if prompt.kind == "choice":
        return replace(answer, choice=flag % 2)
    scope = "run" if prompt.kind == APPROVAL and verdict == "yes" and flag % 3 == 0 else "once"
    return replace(answer, verdict=verdict, scope=scope)


def delivered(deliver: Deliver, *, accepted: bool, retryable: bool) -> Delivered:
    """What the receiver of a callback said."""
    delivery = deliver.delivery
    return Delivered(
        deliver.run,
        delivery.number,
        delivery.attempt,
        delivery.epoch,
        "200 OK" if accepted else "503 Busy",
        accepted=accepted,
        retryable=retryable,
    )
