"""Open questions as a host sees them, and answers as it gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from leviath.components.errors import ConfigError
from leviath.components.identity import Identity
from leviath.components.inputs import Answered
from leviath.components.marker import Marker
from leviath.components.people import Prompts
from leviath.components.status import Status
from leviath.engine import arguments
from leviath.engine.limits import DOCUMENT_BYTES_MAX, REASON_BYTES_MAX
from leviath.systems.answers import SCOPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from leviath.components.people import Prompt
    from leviath.components.text import Text
    from leviath.engine.host import Host
    from leviath.engine.texts import Texts
    from leviath.systems.world import World


class Question(Struct, frozen=True, kw_only=True):
    """What a run waits for a person to say."""

    id: str
    """Used once, and kept over restarts: what an answer names."""
    run_id: str
    kind: str
    """text, choice, confirm, review, edit: the model asks. approval: a call needs to be allowed.
    unknown: a call may have happened. point: a stage of the blueprint asks."""
    text: str
    """What is asked; of approval and unknown the call's arguments."""
    choices: tuple[str, ...]
    asked_ms: int
    """Unix milliseconds."""
    document: str | None
    """What is to be reviewed or edited; None for none."""
    tool: str
    call_id: str
    """The tool call that waits; "" for a point."""
    name: str
    """Of a point, its name."""
    stage: str
    is_held: bool
    """The run is paused: an answer is kept, and used when it is resumed."""


_ASKING: Final = (Marker.awaiting_person, Marker.awaiting_tools)
"""Where runs with open questions rest: the second while paused with a call in doubt."""


def open_questions(host: Host) -> list[Question]:
    """All open questions whose asking is durable, oldest first."""
    world = host.world
    world.check_thread()
    found: list[Question] = []
    for marker in _ASKING:
        for n in world.runs_with(marker):
            found.extend(_of_run(host, n))
    return sorted(found, key=lambda question: (question.asked_ms, question.id))


def _of_run(host: Host, n: int) -> Iterator[Question]:
    world: World = host.world
    prompts = world.find(n, Prompts)
    if prompts is None or not prompts.items or host.is_pending(n, Prompts):
        # An id that a crash could give to another question must not be seen.
        return
    status = world.get(n, Status).status
    run_id = world.get(n, Identity).run_id
    is_held = status.wire() == "paused"
    for prompt in prompts.items:
        yield question_of(prompt, run_id, host.texts.resolve, is_held=is_held)


def question_of(
    prompt: Prompt, run_id: str, resolve: Callable[[Text], str], *, is_held: bool
) -> Question:
    """A prompt with its texts."""
    return Question(
        id=prompt.id,
        run_id=run_id,
        kind=prompt.kind,
        text=resolve(prompt.text),
        choices=tuple(map(resolve, prompt.choices)),
        asked_ms=prompt.asked_ms,
        document=None if prompt.body is None else resolve(prompt.body),
        tool=prompt.tool,
        call_id=prompt.call_id,
        name=prompt.name,
        stage=prompt.stage,
        is_held=is_held,
    )


def answer_input(
    texts: Texts,
    n: int,
    question: str,
    *,
    text: str | None,
    choice: int | None,
    approved: bool | None,
    scope: str,
    actor: str,
) -> Callable[[int], Answered]:
    """The input of an answer. Raises ConfigError for a value that could be none."""
    name = arguments.text("question", question, bytes_max=512, remedy="pass the question's id")
    if text is None and choice is None and approved is None:
        raise ConfigError("an answer needs text, choice or approved; pass one of them")
    if text is not None:
        arguments.text("text", text, bytes_max=DOCUMENT_BYTES_MAX)
        if not text:
            raise ConfigError("the text of an answer is empty; leave it out, or say something")
    if choice is not None:
        arguments.number("choice", choice, 0, 2**31 - 1)
    if approved is not None:
        arguments.flag("approved", approved)
    word = arguments.one_of("scope", scope, SCOPES)
    verdict = "" if approved is None else ("yes" if approved else "no")
    index = -1 if choice is None else choice
    given: dict[str, Text] = {}
    if text is not None:
        given["text"] = _words(texts, text, approved=approved)
    label = texts.label(name)
    return lambda ticket: Answered(
        n, label, verdict, index, scope=word, ticket=ticket, actor=actor, **given
    )


def _words(texts: Texts, text: str, *, approved: bool | None) -> Text:
    """The text of an answer. Beside a verdict it is kept within the record, where the step can put
    it into one sentence with that. Raises ConfigError for a reason that is too long for that."""
    if approved is None:
        return texts.intern(text)
    size = len(text.encode("utf-8", "replace"))
    if not approved and size > REASON_BYTES_MAX:
        raise ConfigError(
            f"the reason of a no has {size:,} bytes, {REASON_BYTES_MAX:,} are allowed; shorten it"
        )
    return texts.intern(text, inline_bytes_max=REASON_BYTES_MAX)
