"""What RunMeta and its parts say about a run."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies_run_meta import run_metas

from leviath.components.address import shown_url
from leviath.components.run_status import RunStatus
from leviath.components.secret import Secret
from leviath.persistence.run_meta import RunMeta
from leviath.persistence.run_meta_parts import ActiveClock, RunFlags, WaitReason

NOW = 1_790_000_000
seconds = st.integers(0, 2**40)


def a_run(**changes: object) -> RunMeta:
    meta = RunMeta.new("scout-1-a", "scout", "/agents/scout", "t", None, "/w", 3, now=NOW)
    return msgspec.structs.replace(meta, **changes)


def test_a_new_run_is_starting_and_knows_that_it_cost_nothing() -> None:
    meta = a_run()
    assert (meta.status, meta.num_stages, meta.model, meta.pid) == (RunStatus.STARTING, 3, None, 0)
    assert (meta.started_at, meta.updated_at, meta.last_progress_at) == (NOW, NOW, None)
    assert (meta.cost_usd, meta.cost_is_exact, meta.cost_priced_usd) == (0.0, True, 0.0)
    assert (meta.active, meta.current_stage, meta.iteration) == (None, "", 0)
    assert meta.flags == RunFlags()
    assert b'"cost_usd": 0.0,' in meta.to_json()


def test_new_flags_accuse_nobody() -> None:
    flags = json.loads(a_run().to_json())["flags"]
    assert len(flags) == 13
    assert not any(flags.values())


def test_a_time_that_is_no_whole_second_is_refused() -> None:
    with pytest.raises(TypeError):
        RunMeta.new("r", "a", "/a", "t", None, "/w", 1, now=1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        a_run().touch(now=1.5)  # type: ignore[arg-type]


@given(run_metas, seconds)
def test_touch_moves_the_time_of_writing_and_nothing_else(meta: RunMeta, now: int) -> None:
    touched = meta.touch(now=now)
    assert touched.updated_at == now
    assert msgspec.structs.replace(touched, updated_at=meta.updated_at) == meta


@given(run_metas)
def test_redacting_takes_the_secret_and_nothing_else(meta: RunMeta) -> None:
    secret, url = meta.callback_secret, meta.callback_url
    redacted = meta.redacted()
    assert redacted.callback_secret is None
    assert redacted.callback_url == (None if url is None else shown_url(url))
    assert msgspec.structs.replace(redacted, callback_secret=secret, callback_url=url) == meta
    assert meta.callback_secret is secret


def test_the_file_has_the_secret_and_no_reader_does() -> None:
    meta = RunMeta.from_json(
        a_run(callback_secret=Secret("hunter2")).to_json()[:-1] + b', "next_secret": "hunter2"}'
    )
    assert b'"callback_secret": "hunter2"' in meta.to_json()
    assert b'"next_secret": "hunter2"' in meta.to_json()
    public = meta.public_dict()
    assert public["callback_secret"] is None
    for shown in (repr(meta), str(meta), repr(public), meta.to_public_json().decode()):
        assert "hunter2" not in shown
    with pytest.raises(TypeError):
        msgspec.json.encode(meta)
    with pytest.raises(TypeError):
        msgspec.to_builtins(meta)


@given(run_metas)
def test_the_public_form_is_the_redacted_one_without_unknown_keys(meta: RunMeta) -> None:
    own = msgspec.structs.replace(meta, callback_secret=None)
    public = json.loads(meta.to_public_json())
    assert public == json.loads(msgspec.json.encode(meta.public_dict()))
    assert public.keys() == json.loads(own.to_json()).keys() - {name for name, _ in meta.unknown}
    assert public["status"] == meta.status.wire()


@pytest.mark.parametrize(("now", "age"), [(NOW - 5, 0), (NOW, 0), (NOW + 90, 90)])
def test_age_counts_from_the_launch_and_never_below_zero(now: int, age: int) -> None:
    assert a_run().age_secs(now) == age


@pytest.mark.parametrize(
    ("clock", "now", "worked"),
    [
        (ActiveClock(), NOW + 999, 0),
        (ActiveClock(banked_secs=40), NOW + 999, 40),
        (ActiveClock(banked_secs=40, since=NOW), NOW + 7, 47),
        (ActiveClock(banked_secs=40, since=NOW), NOW - 7, 40),
        (None, NOW + 999, 30),
        (None, 0, 30),
    ],
)
def test_working_time_is_the_clock_or_the_span_that_was_written(
    clock: ActiveClock | None, now: int, worked: int
) -> None:
    assert a_run(active=clock, updated_at=NOW + 30).active_runtime_secs(now) == worked


def test_a_span_that_ran_backwards_is_nothing() -> None:
    assert a_run(updated_at=NOW - 30).active_runtime_secs(NOW) == 0


def test_a_paused_night_counts_as_age_and_not_as_work() -> None:
    clock = ActiveClock().observe(NOW, True).observe(NOW + 60, False)
    meta = a_run(active=clock, updated_at=NOW + 60)
    morning = NOW + 8 * 3600
    assert (meta.age_secs(morning), meta.active_runtime_secs(morning)) == (8 * 3600, 60)


@given(st.lists(st.tuples(seconds, st.booleans()), max_size=8), seconds)
def test_a_clock_adds_up_the_spans_it_saw(seen: list[tuple[int, bool]], end: int) -> None:
    clock = ActiveClock()
    total, since = 0, None
    for now, running in seen:
        clock = clock.observe(now, running)
        if running and since is None:
            since = now
        elif not running and since is not None:
            total, since = total + max(0, now - since), None
        assert clock == ActiveClock(banked_secs=total, since=since)
    settled = clock.settle(end)
    assert settled.since is None
    assert settled.banked_secs == clock.total_secs(end) == settled.total_secs(2**41)
    assert settled.settle(end) is settled


@pytest.mark.parametrize(
    ("reason", "label", "needs_person"),
    [
        (WaitReason(reason="tool_approval"), "tool approval", True),
        (WaitReason(reason="user_prompt"), "user prompt", True),
        (WaitReason(reason="taint_gate"), "taint gate", True),
        (WaitReason(reason="interaction_point"), "checkpoint", True),
        (WaitReason.fan_out_workers(2), "workers(2)", False),
        (WaitReason.children(0), "children(0)", False),
        (WaitReason.needs_setup("provider_missing", "add it"), "needs provider", True),
        (WaitReason.needs_setup("credits_exhausted", "pay"), "needs credits", True),
        (WaitReason.needs_setup("auth_failed", "renew"), "needs key", True),
        (WaitReason.needs_setup("forbidden", "ask"), "needs access", True),
        (WaitReason.needs_setup("providers_unavailable", "wait"), "needs providers", True),
    ],
)
def test_every_reason_has_a_label_and_says_whom_it_needs(
    reason: WaitReason, label: str, needs_person: bool
) -> None:
    assert (reason.label, reason.needs_person) == (label, needs_person)
    meta = a_run(waiting_on=reason)
    assert RunMeta.from_json(meta.to_json()).waiting_on == reason


def test_a_reason_is_made_with_what_goes_with_it() -> None:
    with pytest.raises(ValueError, match="children goes with outstanding"):
        WaitReason(reason="children")
    with pytest.raises(ValueError, match="needs_setup goes with blocker, remedy"):
        WaitReason(reason="needs_setup", blocker="forbidden")
    with pytest.raises(ValueError, match="taint_gate goes with no other key"):
        WaitReason(reason="taint_gate", outstanding=1)


def test_a_run_that_waits_for_nothing_writes_no_reason() -> None:
    assert b"waiting_on" not in a_run().to_json()
