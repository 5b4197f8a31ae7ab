import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from partition.flow_control import Throttle
from partition.ledger import CommitProgress, Ledger, RetryPolicy, RetryQueue
from tests.support.messages import offsets


def test_late_acks_are_counted_and_ignored():
    """Promise 5: late, repeated or unknown acks are counted and ignored."""
    ledger = Ledger(0)
    ledger.fetched(offsets(5, 6, 9))
    ledger.emit(3)
    assert ledger.resolve(offsets(5, 6)) == 2
    assert ledger.resolve(offsets(5)) == 0
    assert ledger.resolve(offsets(7, 8, 100)) == 0
    assert ledger.resolve(offsets(6, 6)) == 0
    assert ledger.statistics().ignored == 6
    assert ledger.last_completed_offset == 9


def test_offsets_fetched_twice_are_refused():
    """Storm 32: what was passed cannot come in again from a fetch."""
    ledger = Ledger(0)
    ledger.fetched(offsets(0, 1))
    ledger.emit(2)
    with pytest.raises(ValueError, match="fetched again"):
        ledger.fetched(offsets(1, 2))


GAPS = st.lists(st.sampled_from([0, 0, 0, 1, 2, 1000]), min_size=1, max_size=30)


class LedgerAndModel(RuleBasedStateMachine):
    """The model keeps each record's state by its offset, and the end of what was fetched."""

    def __init__(self):
        super().__init__()
        self.ledger = Ledger(3)
        self.states = {}
        self.end = 3
        self.last_completed_offset = 3
        self.ignored = 0

    def unresolved(self):
        return [offset for offset, state in self.states.items() if state != "resolved"]

    @rule(gaps=GAPS, times=st.sampled_from([1, 1, 1, 100]))
    def fetch(self, gaps, times):
        offsets = []
        for gap in gaps * times:
            offsets.append(self.end + gap)
            self.end += gap + 1
        self.ledger.fetched(np.array(offsets, np.int64))
        self.states.update(dict.fromkeys(offsets, "waiting"))

    @rule(gap=st.integers(0, 50))
    def reach_the_end_of_the_log(self, gap):
        self.end += gap
        self.ledger.pass_gap(self.end)

    @rule(before=st.integers(1, 5))
    def hear_of_an_end_that_is_passed_already(self, before):
        self.ledger.pass_gap(self.end - before)

    @rule(limit=st.integers(0, 20) | st.integers(0, 5_000))
    def emit(self, limit):
        waiting = [offset for offset, state in self.states.items() if state == "waiting"]
        assert self.ledger.emit(limit).tolist() == waiting[:limit]
        self.states.update(dict.fromkeys(waiting[:limit], "emitted"))

    @rule(
        data=st.data(),
        strangers=st.lists(st.integers(-5, 40), max_size=3),
        count=st.integers(1, 20) | st.integers(1, 5_000),
        step=st.sampled_from([1, 1, -2]),
    )
    def resolve_some_once_or_again_and_some_that_never_were(self, data, strangers, count, step):
        emitted = [offset for offset, state in self.states.items() if state != "waiting"]
        start = data.draw(st.integers(0, len(emitted)))
        strange = [o for o in strangers if o not in self.states]
        asked = sorted({*emitted[start : start + count], *strange})[::step]
        resolved = [o for o in asked if self.states.get(o, "resolved") != "resolved"]
        assert self.ledger.resolve(np.array(asked, np.int64)) == len(resolved)
        self.states.update(dict.fromkeys(resolved, "resolved"))
        self.ignored += len(asked) - len(resolved)

    @rule(data=st.data())
    def process(self, data):
        emitted = [offset for offset, state in self.states.items() if state == "emitted"]
        done = data.draw(st.lists(st.sampled_from(emitted), max_size=20)) if emitted else []
        self.ledger.processed(np.array(sorted(set(done)), np.int64))
        self.states.update(dict.fromkeys(done, "processed"))

    @rule(end=st.integers(0, 80))
    def resolve_all_below(self, end):
        below = [o for o in self.unresolved() if o < end and self.states[o] != "waiting"]
        assert self.ledger.resolve_below(end) == len(below)
        self.states.update(dict.fromkeys(below, "resolved"))

    @rule(offset=st.integers(0, 60))
    def fail(self, offset):
        fails = self.states.get(offset) == "emitted"
        assert self.ledger.fail(offset) is fails
        if fails:
            self.states[offset] = "failed"
        self.ignored += not fails

    @rule(offset=st.integers(0, 60))
    def retry(self, offset):
        again = self.states.get(offset) == "failed"
        assert self.ledger.retry(offset) is again
        if again:
            self.states[offset] = "emitted"
        self.ignored += not again

    @invariant()
    def agrees(self):
        seen = self.ledger.statistics()
        unresolved = self.unresolved()
        assert seen.last_completed_offset == min(unresolved, default=self.end)
        assert seen.last_completed_offset >= self.last_completed_offset
        self.last_completed_offset = seen.last_completed_offset
        states = list(self.states.values())
        assert seen.pending == len(unresolved)
        assert (seen.waiting, seen.failed) == (states.count("waiting"), states.count("failed"))
        assert seen.fetched_to == self.end
        assert seen.ignored == self.ignored
        left = [o for o, state in self.states.items() if state in ("emitted", "failed")]
        assert self.ledger.processed_to == min(left, default=seen.emitted_to)
        emitted = [o for o, state in self.states.items() if state != "waiting"]
        assert seen.emitted_count == sum(offset >= seen.last_completed_offset for offset in emitted)


def test_whatever_happens_the_ledger_agrees_with_a_dictionary():
    """Promises 1, 2, 10 and 11: the offset is the lowest unresolved offset, gaps or not.

    It never moves back, and what counts for the window is all that was emitted from it on.
    """
    run_state_machine_as_test(
        LedgerAndModel, settings=settings(max_examples=60, stateful_step_count=40)
    )


def test_progress_counts_below_the_submitted_offset():
    progress = CommitProgress(5)
    progress.read = 3
    progress.submit(8, behind=1)
    progress.mark(7)
    assert (progress.offset, progress.read_below) == (7, 0)
    progress.mark(8)
    assert (progress.offset, progress.read_below) == (8, 2)


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


def test_a_rate_below_one_a_second_lets_one_pass_now_and_then():
    throttle = Throttle(0.25)
    assert throttle.allows(0.0) == 1
    throttle.take(1)
    assert throttle.allows(3.8) == 0
    assert throttle.seconds_left() == pytest.approx(0.1)
    assert throttle.allows(3.9) == 1


def test_a_rate_of_which_little_is_saved_lets_that_pass():
    throttle = Throttle(1000, saved_seconds=0.004)
    assert throttle.allows(0.0) == 5


def test_a_clock_that_goes_back_gives_nothing():
    throttle = Throttle(100)
    throttle.take(throttle.allows(10.0))
    assert throttle.allows(5.0) == 0
    assert throttle.allows(10.0) == 0


@given(
    rate=st.floats(0.1, 1e6),
    pauses=st.lists(st.floats(0, 0.5), max_size=50),
    wanted=st.integers(1, 10_000),
)
def test_rate_is_never_exceeded_by_more_than_a_burst(rate, pauses, wanted):
    throttle = Throttle(rate)
    now, passed_at = 0.0, []
    for pause in pauses:
        now += pause
        count = min(wanted, throttle.allows(now))
        throttle.take(count)
        passed_at.append((now, count))
    for first, (since, _) in enumerate(passed_at):
        total = 0
        for until, count in passed_at[first:]:
            total += count
            assert total <= rate * (until - since + 0.1) + 1 + 1e-3
