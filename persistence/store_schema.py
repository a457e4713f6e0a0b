"""The tables of the run store, in a file of its own and beside a world.

In a file of its own runs and steps are tables. In ``world.db`` they are views of what is there
already, the listing and the ledger, so that no fact lives twice. Summaries are tables in both.
"""

from __future__ import annotations

from typing import Final

from leviath.components.run_outcome import ENDINGS, MOVES, OUTCOMES, SUCCESS

APPLICATION_ID: Final = 0x4C455653
"""``LEVS`` in the header: a run store in a file of its own."""


def _rows(rows: list[tuple[object, ...]]) -> str:
    def value(item: object) -> str:
        return f"'{item}'" if isinstance(item, str) else str(item)

    return ",\n    ".join(f"({', '.join(map(value, row))})" for row in rows)


_OUTCOME: Final = f"""
create table store_outcome (
    name text primary key not null,
    ends integer not null check (ends in (0, 1)),
    success integer not null check (success in (0, 1))
) strict, without rowid;
insert into store_outcome values
    {_rows([(name, int(name in ENDINGS), int(name == SUCCESS)) for name in OUTCOMES])};
"""  # noqa: S608 - the words are ours

_ENDINGS: Final = ", ".join(f"'{name}'" for name in ENDINGS)
_SUMMARY_COLUMNS: Final = f"""
    attempt integer not null check (attempt >= 1),
    outcome text not null references store_outcome(name) check (outcome in ({_ENDINGS})),
    success integer not null generated always as (outcome = 'success') stored,
    steps integer not null check (steps >= 0),
    tokens integer not null check (tokens >= 0),
    duration_ms integer check (duration_ms >= 0),
    finished_ms integer not null,
    cost_nano integer not null check (cost_nano >= 0),
    unpriced integer not null check (unpriced >= 0),
    agent text not null,
    model text not null"""


def _summaries(owner: str) -> str:
    return f"""
create table store_summary (
    run integer primary key{owner},{_SUMMARY_COLUMNS}
) strict;
create index store_summary_by_time on store_summary (finished_ms, run);
create index store_summary_by_outcome on store_summary (outcome, finished_ms, run);
create table store_superseded (
    run integer not null{owner},{_SUMMARY_COLUMNS},
    primary key (run, attempt)
) strict, without rowid;
"""


_FORMAT_1: Final = f"""
{_OUTCOME}
create table store_move (
    was text not null,
    becomes text not null,
    primary key (was, becomes)
) strict, without rowid;
insert into store_move values
    {_rows([(was, to) for was, all_ in MOVES.items() for to in sorted(all_)])};

create table store_run (
    run integer primary key autoincrement,
    goal text not null,
    file text not null,
    agent text not null default '',
    model text not null default '',
    parent integer references store_run(run),
    depth integer not null default 0 check (depth >= 0),
    started_ms integer,
    outcome text references store_outcome(name),
    attempt integer not null default 1 check (attempt >= 1),
    -- Folds of the run's steps, kept so that recording and finishing look at no other row.
    last_step integer not null default 0,
    last_attempt integer not null default 0,
    steps integer not null default 0,
    tokens integer not null default 0 check (tokens >= 0),
    cost_nano integer not null default 0 check (cost_nano >= 0),
    unpriced integer not null default 0 check (unpriced >= 0),
    -- Who may write, and the number that every write carries.
    driver integer not null default 1 check (driver >= 1),
    owner text,
    until_ms integer not null default 0
) strict;
create index store_run_by_parent on store_run (parent) where parent is not null;
create index store_run_by_start on store_run (started_ms);

create table store_step (
    run integer not null references store_run(run) on delete cascade,
    step integer not null check (step >= 1),
    attempt integer not null check (attempt >= 1),
    is_retry integer not null check (is_retry in (0, 1)),
    decision text not null,
    result text not null,
    prompt text not null,
    tool_call text not null,
    tokens integer not null check (tokens >= 0),
    cost_nano integer check (cost_nano >= 0),
    model text not null,
    at_ms integer not null,
    primary key (run, step, attempt)
) strict, without rowid;
{_summaries(" references store_run(run) on delete cascade")}

create trigger store_run_moves before update of outcome on store_run
when old.outcome is not new.outcome and not exists (
    select 1 from store_move
    where was = coalesce(old.outcome, 'running') and becomes = coalesce(new.outcome, 'running')
)
begin
    select raise(abort, 'no such move between outcomes');
end;
create trigger store_step_after_end before insert on store_step
when (select outcome from store_run where run = new.run) is not null
begin
    select raise(abort, 'the run has ended or waits for a person');
end;
create trigger store_summary_of_ended before insert on store_summary
when (select outcome from store_run where run = new.run) is not new.outcome
    or not (select ends from store_outcome where name = new.outcome)
begin
    select raise(abort, 'a summary is that of an ended run');
end;
create trigger store_summary_once before update on store_summary
begin
    select raise(abort, 'a summary is written once');
end;
"""  # noqa: S608 - the words are ours

MIGRATIONS: Final[tuple[str, ...]] = (_FORMAT_1,)
"""The numbered way from one format to the next, each in one transaction; none ever changes."""
FORMAT: Final = len(MIGRATIONS)

IN_WORLD: Final = f"""
{_OUTCOME}
{_summaries("")}
alter table ledger add column turn integer not null default 0;

create view store_run as select
    run.ordinal as run, run.task_head as goal, run.agent_path as file, run.agent_name as agent,
    coalesce(run.model, '') as model, parent.ordinal as parent,
    0 as depth, nullif(run.started_ms, 0) as started_ms,
    case
        when run.status = 'waiting_input' and run.waiting_on = 'tool_approval'
            then 'awaiting_approval'
        when run.status = 'waiting_input' and run.waiting_on in ('user_prompt', 'interaction_point')
            then 'awaiting_answer'
        else summary.outcome
    end as outcome,
    coalesce(summary.attempt, 1) as attempt,
    -- A run that came in from elsewhere has no ledger of what it did there.
    max(
        coalesce(summary.steps, 0),
        (select coalesce(max(turn), 0) from ledger where ledger.run = run.ordinal)
    ) as steps,
    run.prompt_tokens + run.completion_tokens + run.cached_tokens + run.cache_write_tokens
        as tokens,
    run.cost_priced_nano as cost_nano, run.unpriced_calls as unpriced
from run
left join run as parent on parent.run_id = run.parent_run_id
left join store_summary as summary on summary.run = run.ordinal;

create view store_step as select
    run, turn as step,
    row_number() over (partition by run, turn order by effect, attempt) as attempt,
    certainty = 'interrupted' as is_retry, kind as decision, certainty as result, '' as prompt,
    '' as tool_call, prompt + completion + cached + cache_write as tokens,
    nano_usd as cost_nano, provider || '/' || model as model,
    (select wall_ms from journal where journal.step = ledger.step) as at_ms
from ledger where turn > 0;
"""  # noqa: S608 - the words are ours
"""What ``world.db`` gets: the views, and the tables that only the host writes."""
