"""What an error allows is one table, complete and without contradictions."""

from __future__ import annotations

import pickle

import pytest

from leviath.components.error_kind import ERROR_POLICIES, ErrorKind, error_kind, error_policy
from leviath.engine.ports import ProviderError, provider_error


def test_every_kind_has_a_row_and_a_word_of_its_own() -> None:
    assert set(ERROR_POLICIES) == set(ErrorKind)
    assert [error_kind(str(kind)) for kind in ErrorKind] == list(ErrorKind)


def test_an_unknown_word_is_other_and_never_retried() -> None:
    assert error_kind("quantum") is ErrorKind.OTHER
    assert not error_policy("quantum").retryable


@pytest.mark.parametrize("kind", ErrorKind)
def test_what_is_retried_may_also_fail_over(kind: ErrorKind) -> None:
    """Attempts run out; then another provider is asked, for 429 and 5xx as well."""
    policy = ERROR_POLICIES[kind]
    assert policy.allows_failover or not policy.retryable


def test_faults_of_ours_neither_trip_a_breaker_nor_spend_on_a_fallback() -> None:
    for kind in (
        ErrorKind.BAD_REQUEST,
        ErrorKind.WORKSPACE_LOST,
        ErrorKind.PROVIDER_MISSING,
        ErrorKind.SCRIPT_EXHAUSTED,
        ErrorKind.ABORTED,
    ):
        policy = ERROR_POLICIES[kind]
        assert not (policy.retryable or policy.counts_for_breaker or policy.allows_failover), kind


def test_a_provider_error_takes_retryable_from_the_table_and_survives_pickling() -> None:
    problem = provider_error(ErrorKind.RATE_LIMITED, "slow down", retry_after_ms=5, region="north")
    again = pickle.loads(pickle.dumps(problem))
    assert isinstance(again, ProviderError)
    for error in (problem, again):
        assert str(error) == "slow down"
        assert (error.kind, error.retryable, error.retry_after_ms) == ("rate_limited", True, 5)
        assert error.fields["region"] == "north"
    assert type(problem.kind) is str
