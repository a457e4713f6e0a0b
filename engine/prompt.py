"""From regions to messages: what the model sees of a run, in the order that caches like best.

System blocks first, sorted by how seldom they change (stable, grows, rewritten), each under its
region's name; then the conversation. A tool result without its call, or a call without its result,
would be refused by every provider: such halves are left out. The prompt ends with a user's or a
tool's turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

from leviath.engine.ports import CallRequest, Message
from leviath.persistence.references import whole_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from leviath.components.blueprint import Blueprint, RegionSpec
    from leviath.components.commands import Infer
    from leviath.components.context import Entry, Region
    from leviath.components.text import Text

_ORDER = {"stable": 0, "grows": 1, "rewritten": 2}
_CONVERSATION = "conversation"
_GO_ON = "Go on."


class Prompt(Sequence[Message]):
    """The messages of one call, put together when somebody looks at them.

    What they are made of is immutable, so it does not matter when that is; a provider that answers
    without them, as a scripted one does, does not pay for them.
    """

    __slots__ = ("_blueprint", "_command", "_messages", "_resolve")

    def __init__(
        self, command: Infer, blueprint: Blueprint, resolve: Callable[[Text], str]
    ) -> None:
        self._command = command
        self._blueprint = blueprint
        self._resolve = resolve
        self._messages: tuple[Message, ...] | None = None

    def _all(self) -> tuple[Message, ...]:
        if self._messages is None:
            self._messages = assemble(self._command, self._blueprint, self._resolve)
        return self._messages

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...

    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        return self._all()[index]

    def __len__(self) -> int:
        return len(self._all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all() == tuple(other)

    def __hash__(self) -> int:
        return hash(self._all())

    def __repr__(self) -> str:
        return repr(self._all())


def assemble(
    command: Infer, blueprint: Blueprint, resolve: Callable[[Text], str]
) -> tuple[Message, ...]:
    """All messages of one model call, oldest first."""
    spec = blueprint.stages[command.stage_index]
    specs = {region.name: region for region in blueprint.visible_regions(spec)}
    blocks: list[tuple[int, int, Message]] = []
    talk: list[Message] = []
    for index, region in enumerate(command.regions):
        if not region.entries:
            continue
        if region.name == _CONVERSATION:
            talk = _conversation(region.entries, resolve)
            continue
        known = specs.get(region.name)
        rank = 3 if region.name == "stage_instructions" else _rank(known)
        block = _block(region, known, resolve)
        blocks.append((rank, index, Message("system", block)))
    blocks.sort(key=lambda item: item[:2])
    messages = [message for _, _, message in blocks]
    messages.extend(talk)
    if command.question:
        messages.append(Message("user", command.question))
    elif not messages or messages[-1].role in ("system", "assistant"):
        messages.append(Message("user", _GO_ON))
    return tuple(messages)


def _rank(spec: RegionSpec | None) -> int:
    return 2 if spec is None else _ORDER[spec.volatility]


def _block(region: Region, spec: RegionSpec | None, resolve: Callable[[Text], str]) -> str:
    lines: list[str] = []
    if region.name != "stage_instructions":
        lines.append(f"# {region.name}")
        if spec is not None and spec.describe_in_prompt and spec.description:
            lines.append(spec.description)
    for entry in region.entries:
        body = whole_text(entry, resolve)
        if entry.kind in ("open", "done"):
            body = f"[{'x' if entry.kind == 'done' else ' '}] {entry.key}: {body}"
        elif entry.key:
            body = f"{entry.key}: {body}"
        lines.append(body)
    return "\n".join(lines)


def _conversation(entries: tuple[Entry, ...], resolve: Callable[[Text], str]) -> list[Message]:
    messages: list[Message] = []
    index, count = 0, len(entries)
    while index < count:
        entry = entries[index]
        index += 1
        if entry.kind == "assistant":
            results: list[Entry] = []
            while index < count and entries[index].kind == "tool_result":
                results.append(entries[index])
                index += 1
            _turn(messages, entry, results, resolve)
        elif entry.kind != "tool_result":
            messages.append(Message("user", whole_text(entry, resolve)))
    return messages


def _turn(
    messages: list[Message],
    entry: Entry,
    results: list[Entry],
    resolve: Callable[[Text], str],
) -> None:
    answered = {result.call_id for result in results}
    asked = {call.call_id for call in entry.calls}
    calls = tuple(
        CallRequest(call.call_id, call.tool, resolve(call.arguments))
        for call in entry.calls
        if call.call_id in answered
    )
    text = resolve(entry.text)
    if text or calls:
        messages.append(Message("assistant", text, calls))
    messages.extend(
        Message(
            "tool",
            whole_text(result, resolve),
            call_id=result.call_id,
            tool=result.tool,
            is_error=result.is_error,
        )
        for result in results
        if result.call_id in asked
    )
