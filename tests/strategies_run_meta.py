"""Strategies for whole run documents, for every test that needs one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import strategies as st

from leviath.components.run_status import RunStatus
from leviath.components.secret import Secret
from leviath.persistence.document import NO_UNKNOWN_KEYS, UnknownKeys
from leviath.persistence.run_meta import RunMeta
from leviath.persistence.run_meta_parts import (
    ActiveClock,
    Artifact,
    ArtifactRequest,
    FinalOutputDescriptor,
    OutputSpec,
    ReadPathGrantCounts,
    RunFlags,
    WaitReason,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

texts = st.text(max_size=12)
counts = st.integers(0, 2**53) | st.just(2**64 - 1)
seconds = st.integers(-(2**63), 2**63 - 1) | st.integers(1_700_000_000, 1_900_000_000)
usd = st.floats(allow_nan=False, allow_infinity=False) | st.just(0.0)

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | usd | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)

_names = texts.map("x-{}".format) | st.sampled_from(["unknown", "(unknown keys)", "stage_models"])
unknown_keys = st.just(NO_UNKNOWN_KEYS) | st.lists(
    st.tuples(_names, json_values.map(msgspec.json.encode)),
    min_size=1,
    max_size=3,
    unique_by=lambda pair: pair[0],
).map(UnknownKeys)


def _tuples(items: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, max_size=3).map(tuple)


def _words(known: Sequence[str]) -> st.SearchStrategy[str]:
    return st.sampled_from(known) | texts


active_clocks = st.builds(
    ActiveClock, banked_secs=counts, since=st.none() | seconds, unknown=unknown_keys
)
run_flags = st.builds(
    RunFlags,
    modified_files=_tuples(texts),
    modified_file_count=counts,
    empty_output=st.booleans(),
    no_output_tools=st.booleans(),
    searches_run=counts,
    searches_empty=counts,
    max_iterations_hit=counts,
    gates_forced=counts,
    required_regions_abandoned=_tuples(texts),
    workspace_lost=st.booleans(),
    produced_output=st.booleans(),
    output_forced=counts,
    splits_degraded=counts,
    broken_scripts=_tuples(texts),
    unknown=unknown_keys,
)
artifacts = st.builds(
    Artifact,
    name=texts,
    path=texts,
    mime_type=texts,
    size=counts,
    sha256=texts,
    unknown=unknown_keys,
)
final_outputs = st.builds(
    FinalOutputDescriptor,
    format=st.none() | texts,
    stage=texts,
    submitted_at=seconds,
    bytes=counts,
    truncated=st.booleans(),
    artifacts=_tuples(artifacts),
    unknown=unknown_keys,
)
artifact_requests = st.builds(
    ArtifactRequest,
    name=texts,
    type=texts,
    required=st.booleans(),
    description=st.none() | texts,
    unknown=unknown_keys,
)
output_specs = st.builds(
    OutputSpec,
    format=st.none() | texts,
    instructions=st.none() | texts,
    example=st.none() | texts,
    schema=json_values,
    validator=st.none() | texts,
    on_validator_error=st.none() | _words(["reject", "accept"]),
    artifacts=_tuples(artifact_requests),
    unknown=unknown_keys,
)
_BLOCKERS = (
    "provider_missing",
    "credits_exhausted",
    "auth_failed",
    "forbidden",
    "providers_unavailable",
)
wait_reasons = st.one_of(
    st.builds(
        WaitReason,
        reason=st.sampled_from(["tool_approval", "user_prompt", "taint_gate", "interaction_point"])
        | texts.map("x-{}".format),
        unknown=unknown_keys,
    ),
    st.builds(
        WaitReason,
        reason=st.sampled_from(["fan_out_workers", "children"]),
        outstanding=counts,
        unknown=unknown_keys,
    ),
    st.builds(
        WaitReason,
        reason=st.just("needs_setup"),
        blocker=_words(_BLOCKERS),
        remedy=texts,
        unknown=unknown_keys,
    ),
)

run_metas = st.builds(
    RunMeta,
    run_id=texts,
    agent_name=texts,
    agent_path=texts,
    task=texts,
    model=st.none() | texts,
    pid=st.integers(0, 2**32 - 1),
    status=st.sampled_from(RunStatus),
    current_stage=texts,
    stage_index=counts,
    num_stages=counts,
    iteration=counts,
    prompt_tokens=counts,
    completion_tokens=counts,
    cached_tokens=counts,
    cache_write_tokens=counts,
    tool_calls=counts,
    cost_usd=st.none() | usd,
    unpriced_calls=counts,
    cost_is_exact=st.booleans(),
    cost_priced_usd=usd,
    workdir=texts,
    started_at=seconds,
    updated_at=seconds,
    last_progress_at=st.none() | seconds,
    active=st.none() | active_clocks,
    error=st.none() | texts,
    title=st.none() | texts,
    title_error=st.none() | texts,
    metadata=st.dictionaries(texts, texts, max_size=3),
    callback_url=st.none() | texts,
    callback_secret=st.none() | texts.map(Secret),
    parent_run_id=st.none() | texts,
    children=_tuples(texts),
    depth=counts,
    max_child_depth=counts,
    flags=run_flags,
    yolo=st.booleans(),
    yolo_profile=st.none() | texts,
    read_paths=st.none()
    | st.builds(ReadPathGrantCounts, declared=counts, granted=counts, unknown=unknown_keys),
    final_output=st.none() | final_outputs,
    waiting_on=st.none() | wait_reasons,
    output_request=st.none() | output_specs,
    model_override=st.none() | texts,
    unknown=unknown_keys,
)
"""Any RunMeta that a document can hold, unknown keys and words included."""
