"""The retry queue: when a failed record is due, and when it has failed too often."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partition.retry import RetryPolicy, RetryQueue

STEADY = RetryPolicy(limit=3, initial_seconds=1, multiplier=2, max_seconds=60, jitter=0)


def queue(policy=STEADY):
    return RetryQueue(policy, random.Random(1))


def test_the_limit_counts_retries_so_a_record_is_tried_once_more_than_it():
    """Promise 13: up to a limit, and then to the dead letters."""
    retries = queue()
    assert [retries.failed(7, now) for now in range(4)] == [True, True, True, False]
    assert retries.attempts(7) == 4


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
