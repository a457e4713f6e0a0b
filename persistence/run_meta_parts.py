"""The objects inside a run's meta.json, generation B."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from leviath.persistence.document import Count, Document, DocumentTypes, UnixSeconds, Variant


class ActiveClock(Document, frozen=True, kw_only=True):
    """How long something has been working: whole seconds banked, plus the span that still runs.

    An all-zero clock means no time at all, which is not the same as no clock. A clock does not
    change; the helpers return the next one.
    """

    banked_secs: Count = 0
    since: UnixSeconds | None = None
    """Unix second at which the running span began; None while the clock stands."""

    def observe(self, now: int, running: bool) -> ActiveClock:  # noqa: FBT001 - reads as a pair
        """The clock at ``now``: started, stopped with its span banked, or unchanged.

        A stop before the start (the wall clock went back) banks nothing.
        """
        if running == (self.since is not None):
            return self
        if running:
            return msgspec.structs.replace(self, since=now)
        return msgspec.structs.replace(self, banked_secs=self.total_secs(now), since=None)

    def settle(self, as_of: int) -> ActiveClock:
        """The clock stopped at ``as_of``: what a reload does with the time of the last write."""
        return self.observe(as_of, running=False)

    def total_secs(self, now: int) -> int:
        """Seconds worked at ``now``, the running span included; a span never counts below zero."""
        running = 0 if self.since is None else max(0, now - self.since)
        return self.banked_secs + running


class RunFlags(Document, frozen=True, kw_only=True):
    """Why a run may have produced nothing useful."""

    SKIPPED_EMPTY: ClassVar[tuple[str, ...]] = ("broken_scripts",)

    modified_files: tuple[str, ...] = ()
    """Distinct paths, in the order of their first change; capped by the writer."""
    modified_file_count: Count = 0
    """Successful changing calls: neither capped nor distinct."""
    empty_output: bool = False
    """Ended with nothing modified and no answer, although it could have modified something."""
    no_output_tools: bool = False
    searches_run: Count = 0
    searches_empty: Count = 0
    max_iterations_hit: Count = 0
    gates_forced: Count = 0
    required_regions_abandoned: tuple[str, ...] = ()
    """Only the regions that are still empty."""
    workspace_lost: bool = False
    produced_output: bool = False
    output_forced: Count = 0
    splits_degraded: Count = 0
    broken_scripts: tuple[str, ...] = ()


class ReadPathGrantCounts(Document, frozen=True, kw_only=True):
    """How many of the blueprint's read paths the configuration granted, fixed at spawn."""

    declared: Count
    granted: Count


class Artifact(Document, frozen=True, kw_only=True):
    """A file that belongs to a final output."""

    SKIPPED_EMPTY: ClassVar[tuple[str, ...]] = ("sha256",)

    name: str
    path: str
    """Relative to the workdir."""
    mime_type: str
    size: Count = 0
    sha256: str = ""

    @classmethod
    def from_bare(cls, text: str) -> Artifact:
        """Generation A wrote only the path."""
        name = text.rsplit("/", 1)[-1] or text
        return cls(name=name, path=text, mime_type="application/octet-stream")


class FinalOutputDescriptor(Document, frozen=True, kw_only=True):
    """Everything about a run's answer but its bytes, which are in the file ``final_output``."""

    SKIPPED_NULL: ClassVar[tuple[str, ...]] = ("format",)
    SKIPPED_EMPTY: ClassVar[tuple[str, ...]] = ("artifacts",)
    NESTED_LISTS: ClassVar[DocumentTypes] = {"artifacts": Artifact}

    format: str | None = None
    stage: str
    submitted_at: UnixSeconds
    bytes: Count = 0
    """Length of the answer as kept."""
    truncated: bool = False
    artifacts: tuple[Artifact, ...] = ()


class ArtifactRequest(Document, frozen=True, kw_only=True):
    """A file that a run is asked to hand back."""

    SKIPPED_NULL: ClassVar[tuple[str, ...]] = ("description",)

    name: str
    type: str
    required: bool = False
    description: str | None = None


class OutputSpec(Document, frozen=True, kw_only=True):
    """The shape of output that the caller asked for at launch."""

    SKIPPED_NULL: ClassVar[tuple[str, ...]] = (
        "format",
        "instructions",
        "example",
        "schema",
        "validator",
        "on_validator_error",
    )
    SKIPPED_EMPTY: ClassVar[tuple[str, ...]] = ("artifacts",)
    NESTED_LISTS: ClassVar[DocumentTypes] = {"artifacts": ArtifactRequest}

    format: str | None = None
    instructions: str | None = None
    example: str | None = None
    schema: object = None
    """Any JSON value."""
    validator: str | None = None
    on_validator_error: str | None = None
    """``reject`` (which None means too) or ``accept``; another word is kept as it is."""
    artifacts: tuple[ArtifactRequest, ...] = ()


_LABELS = {
    "tool_approval": "tool approval",
    "user_prompt": "user prompt",
    "taint_gate": "taint gate",
    "interaction_point": "checkpoint",
    "fan_out_workers": "workers",
    "children": "children",
}
_BLOCKER_LABELS = {
    "provider_missing": "provider",
    "credits_exhausted": "credits",
    "auth_failed": "key",
    "forbidden": "access",
    "providers_unavailable": "providers",
}


class WaitReason(Variant, frozen=True, kw_only=True):
    """Why a run is parked, told by ``reason``; the other keys go with some reasons only.

    ``tool_approval``, ``user_prompt``, ``taint_gate`` and ``interaction_point`` stand alone,
    ``fan_out_workers`` and ``children`` carry ``outstanding``, ``needs_setup`` carries ``blocker``
    and ``remedy``. A reason or blocker of a newer writer is kept with whatever came with it.
    """

    TAG: ClassVar[str] = "reason"
    COMPANIONS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "fan_out_workers": ("outstanding",),
        "children": ("outstanding",),
        "needs_setup": ("blocker", "remedy"),
    }
    SKIPPED_NULL: ClassVar[tuple[str, ...]] = ("outstanding", "blocker", "remedy")

    reason: str
    outstanding: Count | None = None
    """How many workers or children are not done."""
    blocker: str | None = None
    """``provider_missing``, ``credits_exhausted``, ``auth_failed``, ``forbidden`` or
    ``providers_unavailable``."""
    remedy: str | None = None
    """What a person has to do, in words."""

    @classmethod
    def fan_out_workers(cls, outstanding: int) -> WaitReason:
        """Parked until ``outstanding`` workers, running or queued, are done."""
        return cls(reason="fan_out_workers", outstanding=outstanding)

    @classmethod
    def children(cls, outstanding: int) -> WaitReason:
        """Parked until children are done."""
        return cls(reason="children", outstanding=outstanding)

    @classmethod
    def needs_setup(cls, blocker: str, remedy: str) -> WaitReason:
        """Parked until somebody does what ``remedy`` says."""
        return cls(reason="needs_setup", blocker=blocker, remedy=remedy)

    @property
    def needs_person(self) -> bool:
        """Whether a person has to act. An unknown reason does: nothing here will end it."""
        return self.outstanding is None

    @property
    def label(self) -> str:
        """The reason for a table, such as ``workers(2)`` or ``needs credits``."""
        if self.blocker is not None:
            return f"needs {_BLOCKER_LABELS.get(self.blocker, self.blocker)}"
        label = _LABELS.get(self.reason, self.reason)
        return label if self.outstanding is None else f"{label}({self.outstanding})"
