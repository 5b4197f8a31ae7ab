import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from partition.ledger import RetryPolicy, RetryQueue


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


POLICY = RetryPolicy(limit=3, initial_seconds=1.0, multiplier=2.0, max_seconds=3.0, jitter=0.25)
LONGEST = (1.0, 2.0, 3.0)
OFFSETS = st.integers(0, 12)


class RetriesAndModel(RuleBasedStateMachine):
    """The model keeps how often each record has failed, and when it is due at the earliest."""

    def __init__(self):
        super().__init__()
        self.queue = RetryQueue(POLICY, random.Random(7))
        self.now = 0.0
        self.failures = {}
        self.waiting = {}  # offset: the bounds of when it is due

    @rule(offset=OFFSETS, after=st.none() | st.floats(0, 10))
    def fail(self, offset, after):
        if offset in self.waiting:
            return  # it is not out, so it cannot fail
        failures = self.failures.get(offset, 0) + 1
        again = self.queue.failed(offset, self.now, after)
        assert again is (failures <= POLICY.limit)
        if not again:
            return
        self.failures[offset] = failures
        longest = LONGEST[failures - 1]
        bounds = (longest * (1 - POLICY.jitter), longest) if after is None else (after, after)
        self.waiting[offset] = (self.now + bounds[0], self.now + bounds[1])

    @rule(seconds=st.floats(0, 4))
    def wait(self, seconds):
        self.now += seconds

    @rule(limit=st.integers(0, 5))
    def take(self, limit):
        taken = self.queue.take_due(self.now, limit)
        assert len(taken) == len(set(taken)) <= limit
        for offset in taken:
            earliest, _latest = self.waiting.pop(offset)
            assert earliest <= self.now
        if len(taken) < limit:
            assert all(latest > self.now for _earliest, latest in self.waiting.values())

    @rule(offset=OFFSETS)
    def pass_with_the_offset(self, offset):
        completed = min([offset, *self.waiting])  # what waits holds it
        self.queue.forget_below(completed)
        self.failures = {o: count for o, count in self.failures.items() if o >= completed}

    @invariant()
    def agrees(self):
        assert len(self.queue) == len(self.waiting)
        due = self.queue.due
        if due is None:
            assert not self.waiting
        else:
            assert due >= min(earliest for earliest, _latest in self.waiting.values())
            assert due <= min(latest for _earliest, latest in self.waiting.values())
        for offset in range(13):
            assert self.queue.attempts(offset) == self.failures.get(offset, 0) + 1


def test_retry_queue_agrees_with_its_model():
    """Promise 13: a record waits its time, longer after each failure, and not beyond the limit."""
    run_state_machine_as_test(
        RetriesAndModel, settings=settings(max_examples=60, stateful_step_count=40)
    )
