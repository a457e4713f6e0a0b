"""The tables of ``world.db`` and the numbered way from one format to the next.

Format n is what MIGRATIONS[:n] make of an empty file; a released migration never changes, a new
format appends one. A change of format runs in rollback-journal mode as one transaction, so the
version in the first page of the main file is never behind and can be read without SQLite.

This module imports neither msgspec nor trio: quick readers such as a listing use it as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from leviath.persistence.sqlite import Connection
from leviath.persistence.store_schema import IN_WORLD

APPLICATION_ID: Final = 0x4C455657
"""``LEVW`` in the header of the file: tells our databases from other programs' ones."""

_FORMAT_1: Final = """
create table world (
    one integer primary key check (one = 1),
    world_id text not null,
    seed integer not null,
    format integer not null,
    epoch integer not null,
    cut integer not null,
    step integer not null,
    check (cut <= step)
) strict;

create table opening (
    epoch integer primary key,
    wall_ms integer not null,
    rules text not null,
    loading integer,
    loaded integer not null default 0,
    clean integer not null default 0
) strict;

create table liveness (
    one integer primary key check (one = 1),
    epoch integer not null,
    wall_ms integer not null
) strict;

create table journal (
    step integer primary key,
    epoch integer not null,
    world_ms integer not null,
    wall_ms integer not null,
    inputs blob not null,
    changes blob not null,
    events blob not null,
    digest blob not null
) strict;

-- Clustered by owner, so that a load reads the file front to back and a page-in reads a few pages.
create table state (
    owner integer not null,
    part text not null,
    cut integer not null,
    crc integer not null,
    body blob,
    primary key (owner, part, cut)
) strict, without rowid;
create index state_by_cut on state (cut);

-- Bodies are large, so the tree of digests stays apart from them.
create table entry (
    digest blob primary key not null,
    crc integer not null,
    body blob not null
) strict;

create table run (
    ordinal integer primary key,
    run_id text not null unique,
    key text unique,
    status text not null,
    waiting_on text,
    agent_name text not null,
    agent_path text not null,
    task_head text not null,
    model text,
    stage text not null,
    stage_index integer not null,
    num_stages integer not null,
    iteration integer not null,
    tool_calls integer not null,
    cost_priced_nano integer not null,
    unpriced_calls integer not null,
    cost_exact integer not null,
    prompt_tokens integer not null,
    completion_tokens integer not null,
    cached_tokens integer not null,
    cache_write_tokens integer not null,
    started_ms integer not null,
    updated_ms integer not null,
    progress_ms integer,
    ended_ms integer,
    parent_run_id text,
    title text,
    error text,
    yolo integer not null,
    has_output integer not null,
    empty_output integer not null,
    workdir text not null
) strict;
create index run_by_status on run (status, updated_ms);
create index run_by_update on run (updated_ms);
create index run_by_parent on run (parent_run_id) where parent_run_id is not null;

-- Runs that were deleted at a step; the next cut at or after it drops their state.
create table gone (
    ordinal integer primary key,
    step integer not null
) strict;

create table ledger (
    run integer not null,
    effect integer not null,
    attempt integer not null,
    kind text not null,
    provider text not null,
    model text not null,
    prompt integer not null,
    completion integer not null,
    cached integer not null,
    cache_write integer not null,
    nano_usd integer,
    certainty text not null,
    step integer not null,
    primary key (run, effect, attempt)
) strict, without rowid;

create table mirror (
    run integer not null,
    file text not null,
    step integer not null,
    length integer not null,
    before blob not null,
    after blob not null,
    primary key (run, file)
) strict, without rowid;

create table secret (
    ref text primary key not null,
    value text not null
) strict, without rowid;
"""

_FORMAT_2: Final = f"""
-- Ended runs with something outside yet, a call or word of their ending: loaded like others.
create table owing (
    run integer primary key
) strict;

-- Runs that the newest host left out, and why.
create table quarantine (
    run integer primary key,
    reason text not null
) strict;

-- The state that the kept history begins with: what the steps before its first row came to.
create table base (
    owner integer not null,
    part text not null,
    crc integer not null,
    body blob not null,
    primary key (owner, part)
) strict, without rowid;
{IN_WORLD}
"""

MIGRATIONS: Final[tuple[str, ...]] = (_FORMAT_1, _FORMAT_2)
FORMAT: Final = len(MIGRATIONS)

TABLES: Final = frozenset(
    (
        *("world", "opening", "liveness", "journal", "state", "entry"),
        *("run", "gone", "ledger", "mirror", "secret", "owing", "quarantine", "base"),
        *("store_outcome", "store_summary", "store_superseded"),
    )
)
"""What a database of this format has at least; one that lacks a table is damaged."""

RUN_COLUMNS: Final = (
    "ordinal, run_id, key, status, waiting_on, agent_name, agent_path, task_head, model, stage, "
    "stage_index, num_stages, iteration, tool_calls, cost_priced_nano, unpriced_calls, cost_exact, "
    "prompt_tokens, completion_tokens, cached_tokens, cache_write_tokens, started_ms, updated_ms, "
    "progress_ms, ended_ms, parent_run_id, title, error, yolo, has_output, empty_output, workdir"
)


def format_of(db: Connection) -> int:
    """The format number an open database carries; 0 for an empty file."""
    return int(db.pragma("user_version"))


def migrate(
    db: Connection,
    migrations: Sequence[str] = MIGRATIONS,
    *,
    keep_copy: Callable[[int], None] | None = None,
) -> None:
    """Bring ``db`` to format ``len(migrations)``: all missing steps, or none of them.

    ``keep_copy(old_format)`` is called before the first change of a database that has a format
    already. Ends in WAL mode. Raises apsw errors as they are.
    """
    have = format_of(db)
    if have < len(migrations):
        db.pragma("journal_mode", "delete")
        synchronous = db.pragma("synchronous")
        # Whatever the level: a power cut must neither tear a change nor bring its journal back.
        db.pragma("synchronous", "extra")
        if have and keep_copy is not None:
            keep_copy(have)
        db.execute("begin exclusive")
        try:
            for number in range(have, len(migrations)):
                db.execute(migrations[number])
            db.pragma("application_id", APPLICATION_ID)
            db.pragma("user_version", len(migrations))
            if have:
                db.execute("update world set format = ?", (len(migrations),))
            db.execute("commit")
        finally:
            if db.in_transaction:
                db.execute("rollback")
            db.pragma("synchronous", synchronous)
    db.pragma("journal_mode", "wal")
