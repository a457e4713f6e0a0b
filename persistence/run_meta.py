"""RunMeta: what other programs read about a run, in ``runs/<run_id>/meta.json``.

A frozen projection of the run's facts in the format called generation B: 43 keys in a fixed order,
pretty JSON without a final newline. Generation A and older documents load with defaults that never
escalate: unknown cost is not zero, an unknown launch mode is attended.
"""

from __future__ import annotations

import os
from operator import index
from typing import ClassVar

import msgspec

from leviath.components.address import shown_url
from leviath.components.clean import clean_text
from leviath.components.errors import DocumentError
from leviath.components.run_status import RunStatus
from leviath.components.secret import Secret
from leviath.persistence import json_text
from leviath.persistence.document import (
    Count,
    Document,
    DocumentTypes,
    UnixSeconds,
    Unsigned32,
    decode_document,
    encode_document,
    public_body,
)
from leviath.persistence.run_meta_parts import (
    ActiveClock,
    FinalOutputDescriptor,
    OutputSpec,
    ReadPathGrantCounts,
    RunFlags,
    WaitReason,
)


class RunMeta(Document, frozen=True, kw_only=True):
    """One run as its file tells it. Times are Unix seconds, tokens and calls are totals.

    Fields without a default are required in a document, too. ``metadata`` is not to be edited in
    place; ``msgspec.structs.replace`` makes a changed copy of any of this.
    """

    SKIPPED_NULL: ClassVar[tuple[str, ...]] = (
        "yolo_profile",
        "read_paths",
        "final_output",
        "waiting_on",
        "output_request",
        "model_override",
    )
    DOLLARS: ClassVar[tuple[str, ...]] = ("cost_usd", "cost_priced_usd")
    NESTED: ClassVar[DocumentTypes] = {
        "active": ActiveClock,
        "flags": RunFlags,
        "read_paths": ReadPathGrantCounts,
        "final_output": FinalOutputDescriptor,
        "waiting_on": WaitReason,
        "output_request": OutputSpec,
    }

    run_id: str
    """Identifies the run everywhere and names its folder."""
    agent_name: str
    agent_path: str
    task: str
    """Verbatim."""
    model: str | None = None
    """``provider/model`` of the entry stage once resolved; not rewritten for later stages."""
    pid: Unsigned32 = 0
    """Always 0, and no sign of life or death."""
    status: RunStatus
    current_stage: str
    """Empty before the first stage is entered."""
    stage_index: Count
    """Place in the blueprint's list, from 0. Stages loop, so this is no measure of progress."""
    num_stages: Count
    iteration: Count
    """Turns in the current stage; starts anew on entry."""
    prompt_tokens: Count
    completion_tokens: Count
    cached_tokens: Count = 0
    cache_write_tokens: Count = 0
    tool_calls: Count = 0
    cost_usd: float | None = None
    """US dollars; None means unknown, never free."""
    unpriced_calls: Count = 0
    """Calls without any price. More than none makes ``cost_usd`` None."""
    cost_is_exact: bool = False
    """Whether every priced call carried the provider's own figure."""
    cost_priced_usd: float = 0.0
    """The sum of what has a price, kept while the total is unknown."""
    workdir: str
    started_at: UnixSeconds
    updated_at: UnixSeconds
    """Of the last write. Fresh means that somebody writes, and nothing about the run."""
    last_progress_at: UnixSeconds | None = None
    """When stage, iteration or status last changed."""
    active: ActiveClock | None = None
    """Read it through ``active_runtime_secs``. None means that no clock was kept."""
    error: str | None = None
    title: str | None = None
    title_error: str | None = None
    metadata: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """The caller's labels, in the caller's order."""
    callback_url: str | None = None
    callback_secret: Secret | None = None
    """Signs the webhook. In clear in the private file, nowhere else."""
    parent_run_id: str | None = None
    children: tuple[str, ...] = ()
    """Ids of direct children."""
    depth: Count = 0
    """In the tree of runs; 0 is a root."""
    max_child_depth: Count = 0
    """Cap on the depth of own children; 0 when there is none."""
    flags: RunFlags = RunFlags()
    yolo: bool = False
    """Whether the run was launched unattended."""
    yolo_profile: str | None = None
    read_paths: ReadPathGrantCounts | None = None
    final_output: FinalOutputDescriptor | None = None
    waiting_on: WaitReason | None = None
    output_request: OutputSpec | None = None
    model_override: str | None = None
    """The model asked for at launch, verbatim; a reload asks for this one, not for ``model``."""

    @classmethod
    def new(
        cls,
        run_id: str,
        agent_name: str,
        agent_path: str,
        task: str,
        model: str | None,
        workdir: str,
        num_stages: int,
        *,
        now: int,
    ) -> RunMeta:
        """A run just accepted at ``now``: starting, nothing counted, a cost of exactly nothing."""
        return cls(
            run_id=run_id,
            agent_name=clean_text(agent_name),
            agent_path=clean_text(agent_path),
            task=clean_text(task),
            model=None if model is None else clean_text(model),
            status=RunStatus.STARTING,
            current_stage="",
            stage_index=0,
            num_stages=num_stages,
            iteration=0,
            prompt_tokens=0,
            completion_tokens=0,
            cost_usd=0.0,
            cost_is_exact=True,
            workdir=clean_text(workdir),
            started_at=index(now),
            updated_at=index(now),
        )

    @classmethod
    def from_json(cls, text: bytes | str) -> RunMeta:
        """The run that ``text`` tells of; unknown keys and unknown optional words are kept.

        Raises DocumentError, whose ``field`` is the key at fault; for a status that is no word of
        ours, ``fields["status_word"]`` is that word, so that a listing can show it.
        """
        try:
            return decode_document(cls, text)
        except DocumentError as error:
            word = error.fields.get("word")
            if error.field == "status" and word is not None:
                error.fields["status_word"] = word
            raise json_text.named(error, "run document") from error.__cause__

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RunMeta:
        """``from_json`` of the file at ``path``; a file that is missing is a DocumentError too."""
        try:
            return cls.from_json(json_text.read_bounded(path))
        except DocumentError as error:
            error.fields["path"] = os.fspath(path)
            raise json_text.named(error, os.fspath(path)) from error.__cause__

    def to_json(self) -> bytes:
        """The text of ``meta.json``, callback secret and address in clear: for the private file.

        Readers outside get ``to_public_json``. Raises DocumentError for a cost without a number.
        """
        return encode_document(self)

    def public_dict(self) -> dict[str, object]:
        """What a reader outside may see, as plain JSON values: redacted, and own keys only."""
        return public_body(self.redacted())

    def to_public_json(self) -> bytes:
        """``public_dict`` as compact JSON."""
        return msgspec.json.encode(self.public_dict())

    def redacted(self) -> RunMeta:
        """A copy without the callback secret and what a callback address hides, all else equal."""
        url = None if self.callback_url is None else shown_url(self.callback_url)
        return msgspec.structs.replace(self, callback_secret=None, callback_url=url)

    def touch(self, *, now: int) -> RunMeta:
        """A copy written at ``now``. Progress is another matter: ``last_progress_at`` stays."""
        return msgspec.structs.replace(self, updated_at=index(now))

    def age_secs(self, now: int) -> int:
        """Seconds since the launch, not below 0; says nothing about work done."""
        return max(0, now - self.started_at)

    def active_runtime_secs(self, now: int) -> int:
        """Seconds spent working, at ``now``: the number to show as a run's duration.

        Without a clock (older documents) the span from start to last write, whatever ``now`` is.
        """
        if self.active is None:
            return max(0, self.updated_at - self.started_at)
        return self.active.total_secs(now)
