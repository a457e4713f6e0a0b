"""What a run asks people, what they answered, and what they allowed.

A question is data: it keeps its id over pauses and restarts, and no id is used twice, so that an
answer can never reach another question than the one it was given to.
"""

from __future__ import annotations

from leviath.components.base import Component, Part
from leviath.components.text import Text


class Prompt(Part):
    """One open question."""

    id: str
    """The run's id and the number of the question, such as ``fix-1790000000-0123456789ab.q3``."""
    kind: str
    """text, choice, confirm, review, edit (a tool of the model asks); approval (a call needs to be
    allowed); unknown (a call may have happened); point (a stage of the blueprint asks)."""
    text: Text
    """What is asked. Of an approval and an unknown call, the call's arguments."""
    asked_ms: int
    """Unix milliseconds."""
    choices: tuple[Text, ...] = ()
    body: Text | None = None
    """The document that is reviewed or edited; None for none."""
    call_id: str = ""
    """The call that waits for the answer; "" for a point of the blueprint."""
    tool: str = ""
    name: str = ""
    """Of a point, its name."""
    stage: str = ""
    attempt: int = 1
    """Of the run, when it asked."""
    required: bool = True
    """Of a point, for screens: whether an answer is more than a courtesy."""


class Reply(Part):
    """An answer that was taken while the run was paused; used on resume."""

    question: str
    verdict: str = ""
    """yes, no or ""."""
    choice: int = -1
    """Index of the choice; -1 for none."""
    text: Text = Text()
    actor: str = ""


class Grant(Part):
    """A person's word that later calls need not be asked about."""

    tool: str
    arguments: Text | None = None
    """The only arguments that are meant; None for any."""
    stage: int = -1
    """Index of the stage that it is for; -1 for the whole run."""
    visit: int = 0
    """The visit of that stage."""
    attempt: int = 1
    """The attempt of the run: one that is started again asks again."""


class Prompts(Component):
    """Open questions of a run, oldest first. Present from its first question on."""

    counter: int = 0
    """Counts the run's questions from 1, over all attempts."""
    items: tuple[Prompt, ...] = ()
    held: tuple[Reply, ...] = ()
    grants: tuple[Grant, ...] = ()


class Profile(Part):
    """What an unattended run may do that was launched under a name. Frozen into the run at its
    spawn: whatever the host calls by that name later, a restart allows no more than this."""

    allow: tuple[str, ...] = ()
    """Tools that are carried out where the blueprint would ask."""
    deny: tuple[str, ...] = ()
    """Tools that are refused, whatever the blueprint says."""
    otherwise: str = "ask"
    """ask or deny: what becomes of a call where the blueprint would ask."""
    attended: bool = True
    """Somebody answers. False: questions get no answer and a call that may have happened is told to
    the model, as in a run without a profile."""
