"""The tools with which agents start and steer other agents, and what their arguments mean.

Arguments enter as JSON text; the step gets them as fields, checked and cut to what it can use.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from leviath.components.text import Text, inline
from leviath.engine.limits import FAN_OUT_ITEMS_MAX, ITEM_ID_CHARS_MAX, TASK_BYTES_MAX
from leviath.engine.ports import CallRequest, ToolSpec
from leviath.systems.agent_calls import AGENT_TOOLS, FAN_OUT, ITEM

if TYPE_CHECKING:
    from leviath.engine.texts import Texts

Fields = tuple[tuple[str, Text], ...]
_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.decode
_ID: Final = re.compile(r"[ -~]+", re.ASCII)
_NUMBERS: Final = ("quorum", "max_workers")
_FENCE: Final = re.compile(r"```[a-z]*\n(.*)\n```", re.DOTALL)


def _spec(name: str, description: str, required: list[str], **fields: dict[str, Any]) -> ToolSpec:
    schema = {
        "type": "object",
        "properties": fields,
        "required": required,
        "additionalProperties": False,
    }
    return ToolSpec(name, description, _encode(schema).decode())


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


_JOIN: Final[dict[str, Any]] = {
    "type": "string",
    "enum": ["all", "fail_all", "first", "quorum"],
    "description": "When to go on: with all, with the first failure too, the first success, or "
    "as many successes as quorum says.",
}
_QUORUM: Final[dict[str, Any]] = {"type": "integer", "minimum": 1}
_AGENT_ID: Final = _text("The id that spawn_agent returned.")

AGENT_TOOL_SPECS: Final = (
    _spec(
        "spawn_agent",
        "Start another agent on a task. It works on its own; you get its id.",
        ["agent", "task"],
        agent=_text("Name of an installed agent, or a path outside of the working directory."),
        task=_text("Everything it has to know: it sees nothing else of yours."),
        wait={"type": "boolean", "description": "Wait for its result. Default: false."},
    ),
    _spec(
        "wait_for_agent",
        "Wait until an agent of yours has ended, and get its result.",
        ["agent_id"],
        agent_id=_AGENT_ID,
    ),
    _spec(
        "wait_for_agents",
        "Wait for several agents of yours, and get their results.",
        [],
        agent_ids={
            "type": "array",
            "items": {"type": "string"},
            "description": "Default: all that are at work.",
        },
        join=_JOIN,
        quorum=_QUORUM,
    ),
    _spec(
        "check_agent",
        "See how far an agent of yours is, without waiting.",
        ["agent_id"],
        agent_id=_AGENT_ID,
    ),
    _spec(
        "send_to_agent",
        "Send a message to an agent of yours. It reads it before its next turn.",
        ["agent_id", "message"],
        agent_id=_AGENT_ID,
        message=_text("What to tell it."),
    ),
    _spec(
        "kill_agent",
        "End an agent of yours, and all that it started.",
        ["agent_id"],
        agent_id=_AGENT_ID,
        why=_text("For the record."),
    ),
    _spec(
        FAN_OUT,
        "Split work into items. One worker is started for each; you go on with their results. "
        "Must be the only call of its turn.",
        ["items"],
        items={
            "type": "array",
            "items": {
                "anyOf": [
                    {"type": "string"},
                    {
                        "type": "object",
                        "properties": {"id": {"type": "string"}, "task": {"type": "string"}},
                        "required": ["task"],
                    },
                ]
            },
            "description": "Tasks, each complete in itself; ids name them in the results.",
        },
        agent=_text("The agent that works on the items; not in a fan-out stage, which knows."),
        max_workers={"type": "integer", "minimum": 1, "description": "At work at once."},
        join=_JOIN,
        quorum=_QUORUM,
    ),
)

assert {spec.name for spec in AGENT_TOOL_SPECS} == AGENT_TOOLS


def agent_fields(tool: str, value: dict[Any, Any], texts: Texts) -> tuple[Fields, str]:
    """The arguments of a call as the step takes them, and what is wrong with them; "" for
    nothing."""
    fields: list[tuple[str, Text]] = []
    for name, field in value.items():
        if name == "items" and tool == FAN_OUT:
            items, fault = _items(field, texts)
            if fault:
                return (), fault
            fields.extend(items)
        elif isinstance(field, bool) and name == "wait":
            fields.append((str(name), inline("true" if field else "false")))
        elif isinstance(field, int) and not isinstance(field, bool) and name in _NUMBERS:
            if not 0 <= field <= FAN_OUT_ITEMS_MAX:
                return (), f"unusable: {name} is not from 0 to {FAN_OUT_ITEMS_MAX}"
            fields.append((str(name), inline(str(field))))
        elif isinstance(field, list) and name == "agent_ids":
            given = cast("list[object]", field)
            ids = [texts.label(item) for item in given if isinstance(item, str)]
            if len(ids) != len(given) or len(ids) > FAN_OUT_ITEMS_MAX:
                return (), f"unusable: {name} is no list of ids"
            # Whole: the step itself reads them.
            fields.append((str(name), inline("\n".join(ids))))
        elif isinstance(field, str):
            fault = _too_large(str(name), field)
            if fault:
                return (), fault
            is_content = name in ("task", "message")
            text = texts.intern(field) if is_content else inline(texts.label(field))
            fields.append((str(name), text))
        elif field is not None:
            return (), f"unusable: {name} has a value of the wrong type"
    for name in _NUMBERS:
        number = dict(fields).get(name)
        if number is not None and not number.body.isdecimal():
            return (), f"unusable: {name} is no whole number"
    if tool == FAN_OUT and "items" not in value:
        return (), "incomplete: items is missing"
    return tuple(fields), ""


def _too_large(name: str, text: str) -> str:
    size = len(text.encode("utf-8", "replace"))
    if size <= TASK_BYTES_MAX:
        return ""
    return f"too large: {name} has {size:,} bytes, {TASK_BYTES_MAX:,} are allowed; use a file"


def _items(value: object, texts: Texts) -> tuple[list[tuple[str, Text]], str]:
    if not isinstance(value, list):
        return [], "unusable: items is no list"
    items = cast("list[object]", value)
    if len(items) > FAN_OUT_ITEMS_MAX:
        return [], f"too large: {len(items):,} items, {FAN_OUT_ITEMS_MAX:,} are allowed"
    found: dict[str, Text] = {}
    for number, item in enumerate(items, 1):
        item_id: object = str(number)
        task = item
        if isinstance(item, dict):
            fields = cast("dict[object, object]", item)
            task, item_id = fields.get("task"), fields.get("id", item_id)
        if not isinstance(task, str) or not task.strip():
            return [], f"unusable: item {number} has no task; give a text, or {{id, task}}"
        if not isinstance(item_id, str) or not 0 < len(item_id) <= ITEM_ID_CHARS_MAX:
            return [], f"unusable: the id of item {number} has not 1 to {ITEM_ID_CHARS_MAX} letters"
        if _ID.fullmatch(item_id) is None:
            return [], f"unusable: the id of item {number} has more than plain ASCII"
        if item_id in found:
            return [], f"unusable: two items have the id {item_id!r}; give each its own"
        fault = _too_large(f"item {item_id!r}", task)
        if fault:
            return [], fault
        found[item_id] = texts.intern(task)
    return [(ITEM + texts.label(item_id), task) for item_id, task in found.items()], ""


def split_reply(text: str) -> CallRequest | None:
    """The fan-out that a reply stands for which is nothing but a JSON list; None for another."""
    body = text.strip()
    fenced = _FENCE.fullmatch(body)
    if fenced is not None:
        body = fenced.group(1).strip()
    if not (body.startswith("[") and body.endswith("]")):
        return None
    try:
        items: object = _decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(items, list):
        return None
    return CallRequest("", FAN_OUT, '{"items":' + body + "}")
