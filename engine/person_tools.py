"""The tools with which a model asks a person, and what their arguments mean.

Arguments enter as JSON text; the step gets them as fields, checked and cut to what it can use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from leviath.components.text import Text, inline
from leviath.engine.limits import (
    CHOICE_CHARS_MAX,
    CHOICES_MAX,
    DOCUMENT_BYTES_MAX,
    QUESTION_BYTES_MAX,
)
from leviath.engine.ports import ToolSpec
from leviath.systems.people import KINDS, OPTION

if TYPE_CHECKING:
    from leviath.engine.texts import Texts

Fields = tuple[tuple[str, Text], ...]
_encode = msgspec.json.Encoder(order="deterministic").encode
_TEXTS: Final = {
    "question": QUESTION_BYTES_MAX,
    "instructions": QUESTION_BYTES_MAX,
    "content": DOCUMENT_BYTES_MAX,
}
_QUESTION: Final[dict[str, Any]] = {"type": "string", "description": "What you want to know."}


def _spec(name: str, description: str, required: list[str], **fields: dict[str, Any]) -> ToolSpec:
    schema = {
        "type": "object",
        "properties": fields,
        "required": required,
        "additionalProperties": False,
    }
    return ToolSpec(name, description, _encode(schema).decode())


PERSON_TOOL_SPECS: Final = (
    _spec(
        "ask_user_text",
        "Ask a person a question and wait for the answer, a text.",
        ["question"],
        question=_QUESTION,
    ),
    _spec(
        "ask_user_choice",
        "Let a person choose one of several options; you get the one that was chosen.",
        ["question", "options"],
        question=_QUESTION,
        options={
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "maxItems": CHOICES_MAX,
            "description": "What can be chosen, each in a few words.",
        },
    ),
    _spec(
        "ask_user_confirm",
        "Ask a person a question that is answered by yes or no.",
        ["question"],
        question=_QUESTION,
    ),
    _spec(
        "present_for_review",
        "Show a person a document and wait until it is approved, or what is wrong with it is said.",
        ["content"],
        content={"type": "string", "description": "The document."},
        question={"type": "string", "description": "What to look at."},
    ),
    _spec(
        "edit_document",
        "Let a person edit a document; you get the new text.",
        ["content"],
        content={"type": "string", "description": "The document as it is."},
        instructions={"type": "string", "description": "What should be edited."},
    ),
)

assert {spec.name for spec in PERSON_TOOL_SPECS} == set(KINDS)
_NEEDS: Final = {
    "ask_user_text": "question",
    "ask_user_choice": "question",
    "ask_user_confirm": "question",
    "present_for_review": "content",
    "edit_document": "content",
}


def person_fields(tool: str, value: dict[Any, Any], texts: Texts) -> tuple[Fields, str]:
    """The arguments of a call as the step takes them, and what is wrong with them; "" for
    nothing."""
    fields: list[tuple[str, Text]] = []
    for name, field in value.items():
        if name == "options" and tool == "ask_user_choice":
            options, fault = _options(field, texts)
            if fault:
                return (), fault
            fields.extend(options)
        elif name in _TEXTS and isinstance(field, str):
            size, most = len(field.encode("utf-8", "replace")), _TEXTS[name]
            if size > most:
                return (), f"too large: {name} has {size:,} bytes, {most:,} are allowed; shorten it"
            fields.append((name, texts.intern(field)))
        elif field is not None:
            return (), f"unusable: {texts.label(str(name))} is unknown or of the wrong type"
    given = dict(fields)
    needed = _NEEDS[tool]
    if needed not in given or (needed == "question" and given[needed].is_empty):
        return (), f"incomplete: {needed} is missing"
    if tool == "ask_user_choice" and f"{OPTION}0" not in given:
        return (), "incomplete: options is missing"
    return tuple(fields), ""


def _options(value: object, texts: Texts) -> tuple[list[tuple[str, Text]], str]:
    options = cast("list[object]", value) if isinstance(value, list) else []
    if not 0 < len(options) <= CHOICES_MAX:
        return [], f"unusable: options is no list of 1 to {CHOICES_MAX} texts"
    found: list[str] = []
    for option in options:
        if not isinstance(option, str) or not 0 < len(option.strip()) <= CHOICE_CHARS_MAX:
            return [], f"unusable: an option has not 1 to {CHOICE_CHARS_MAX} letters"
        found.append(texts.label(option))
    if len(set(found)) < len(found):
        return [], "unusable: two options are the same; a person could not tell them apart"
    return [(f"{OPTION}{index}", inline(option)) for index, option in enumerate(found)], ""
