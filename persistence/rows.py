"""The rows that cross the border of ``world.db``: structs whose fields are the columns.

Bodies are opaque bytes here; what is inside them belongs to whoever encodes them. ``_ms`` is
Unix milliseconds except in ``world_ms``, which is the clock of the world.
"""

from __future__ import annotations

from msgspec import Struct, field

from leviath.persistence.store_endings import StoreRow


class WorldRow(Struct, frozen=True, gc=False):
    """The one row that names the world. ``step`` is the last committed step."""

    world_id: str
    seed: int  # 0 .. 2**64 - 1
    format: int
    epoch: int  # of the newest host; 0 before the first
    cut: int  # the step of the newest finished cut; 0 before the first
    step: int


class OpeningRow(Struct, frozen=True, gc=False):
    """One host that had this home. ``loading`` is the run it was decoding, if it marked that."""

    epoch: int
    wall_ms: int
    rules: str
    loading: int | None
    loaded: bool
    clean: bool


class JournalRow(Struct, frozen=True, gc=False):
    """One step: what went in, what it changed, what it tells, and the digest of all up to here."""

    step: int
    epoch: int
    world_ms: int  # monotonic milliseconds of the world, not Unix time
    wall_ms: int
    inputs: bytes
    changes: bytes
    events: bytes
    digest: bytes


class RunRow(Struct, frozen=True, gc=False):
    """What listings filter, sort and show of a run, so that no run file is opened for them."""

    ordinal: int
    run_id: str
    key: str | None
    status: str
    waiting_on: str | None
    agent_name: str
    agent_path: str
    task_head: str
    model: str | None
    stage: str
    stage_index: int
    num_stages: int
    iteration: int
    tool_calls: int
    cost_priced_nano: int
    unpriced_calls: int
    cost_exact: bool
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    started_ms: int
    updated_ms: int
    progress_ms: int | None
    ended_ms: int | None
    parent_run_id: str | None
    title: str | None
    error: str | None
    yolo: bool
    has_output: bool
    empty_output: bool
    workdir: str


class LedgerRow(Struct, frozen=True, gc=False):
    """One provider call: (run, effect, attempt) names it. ``nano_usd`` None means unpriced."""

    run: int
    effect: int
    attempt: int
    kind: str
    provider: str
    model: str
    prompt: int
    completion: int
    cached: int
    cache_write: int
    nano_usd: int | None
    certainty: str
    step: int
    turn: int = 0
    """The turn of the run, over all stages, that it belongs to."""


class MirrorRow(Struct, frozen=True, gc=False):
    """The newest write of a run's file: digests of the bytes before and after it."""

    run: int
    file: str
    step: int
    length: int
    """In bytes; -1 when a newer version is owed than the one that the row vouches for."""
    before: bytes
    after: bytes


class StateRow(Struct, frozen=True, gc=False):
    """One part of one owner as of the step ``cut``; ``body`` None says the part was removed."""

    owner: int  # 0 is the world itself, n the run with ordinal n
    part: str
    cut: int
    crc: int  # zlib.crc32 of the body, 0 when there is none
    body: bytes | None


class LivenessRow(Struct, frozen=True, gc=False):
    """The newest sign of life of a host."""

    epoch: int
    wall_ms: int


class Batch(Struct):
    """What one commit makes durable together. ``gone`` holds ordinals of deleted runs."""

    entries: list[tuple[bytes, bytes]] = field(default_factory=list[tuple[bytes, bytes]])
    journal: list[JournalRow] = field(default_factory=list[JournalRow])
    runs: list[RunRow] = field(default_factory=list[RunRow])
    ledger: list[LedgerRow] = field(default_factory=list[LedgerRow])
    mirror: list[MirrorRow] = field(default_factory=list[MirrorRow])
    secrets: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    gone: list[int] = field(default_factory=list[int])
    let_go: list[int] = field(default_factory=list[int])
    """Runs of earlier batches' ``gone`` whose folders are removed by now."""
    endings: list[StoreRow] = field(default_factory=list[StoreRow])
    owing: dict[int, bool] = field(default_factory=dict[int, bool])
    """Ended runs, and whether something of them is outside yet."""
    behind: list[int] = field(default_factory=list[int])
    """Runs whose files do not tell what their row of the listing tells, and will with a later
    commit."""
