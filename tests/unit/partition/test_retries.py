"""The retry queue: when a failed record is due, and when it has failed too often."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partition.retry import RetryPolicy, RetryQueue

STEADY = RetryPolicy(limit=3, initial_seconds=1, multiplier=2, max_seconds=60, jitter=0)


def queue(policy=STEADY):
    return RetryQueue(policy, random.Random(1))


def test_a_failed_record_is_due_after_its_delay_and_not_before():
    retries = queue()
    assert retries.failed(7, now=100)
    assert retries.due == 101
    assert retries.take_due(100.9, 10) == []
    assert retries.take_due(101, 10) == [7]
    assert len(retries) == 0


def test_delays_double_up_to_the_longest():
    policy = RetryPolicy(limit=20, initial_seconds=1, multiplier=2, max_seconds=60, jitter=0)
    delays = [policy.delay_seconds(n, random.Random(1)) for n in range(1, 9)]
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60]


def test_the_limit_counts_retries_so_a_record_is_tried_once_more_than_it():
    """Promise 13: up to a limit, and then to the dead letters."""
    retries = queue()
    assert [retries.failed(7, now) for now in range(4)] == [True, True, True, False]
    assert retries.attempts(7) == 4


def test_a_limit_of_zero_means_no_retry():
    assert not queue(RetryPolicy(limit=0)).failed(7, 0)


def test_records_come_in_the_order_they_fall_due():
    retries = queue()
    retries.failed(1, now=10)
    retries.failed(2, now=5)
    retries.failed(3, now=0, after_seconds=20)
    assert retries.take_due(100, 2) == [2, 1]
    assert retries.take_due(100, 2) == [3]


def test_a_delay_asked_for_replaces_the_policys():
    retries = queue()
    retries.failed(1, now=0, after_seconds=0.5)
    assert retries.due == 0.5


def test_counts_below_the_frontier_are_forgotten():
    retries = queue()
    retries.failed(1, 0)
    retries.failed(9, 0)
    retries.forget_below(9)
    assert retries.attempts(1) == 1
    assert retries.attempts(9) == 2


@given(
    st.integers(1, 10_000),
    st.floats(0.001, 100),
    st.floats(1, 1e9),
    st.floats(0.001, 1e6),
    st.floats(0, 1),
)
def test_a_delay_never_overflows_nor_passes_the_longest(failures, first, factor, longest, jitter):
    """Promise 13; Storm 49: its delay wrapped to 0 after 58 failures, ours saturates."""
    policy = RetryPolicy(10, first, factor, longest, jitter)
    delay = policy.delay_seconds(failures, random.Random(failures))
    assert 0 <= delay <= longest
    assert delay >= min(first, longest) * (1 - jitter) * 0.999


def test_jitter_spreads_delays():
    policy = RetryPolicy(jitter=0.5, initial_seconds=10, max_seconds=100)
    rng = random.Random(3)
    delays = {policy.delay_seconds(1, rng) for _ in range(100)}
    assert len(delays) > 90
    assert min(delays) == pytest.approx(5, abs=0.5)


def test_the_policy_of_the_step_that_failed_decides():
    retries = queue()
    often = RetryPolicy(limit=5, initial_seconds=10, multiplier=1, jitter=0)
    assert retries.failed(7, now=0, policy=often)
    assert retries.take_due(10, 1) == [7]
    assert retries.failed(7, now=10)
    assert retries.take_due(12, 1) == [7]
    assert [retries.failed(7, 20, policy=often) for _ in range(4)] == [True, True, True, False]


def test_failures_in_several_steps_are_counted_together():
    """Promise 13: else a record that fails here and there would be tried without end."""
    retries = queue()
    assert retries.failed(7, now=0)
    assert retries.failed(7, now=5)
    assert not retries.failed(7, now=9, policy=RetryPolicy(limit=2))
