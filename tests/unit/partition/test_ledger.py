"""The ledger: contiguous, out of order, with gaps, failed in front, drained, at random."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from partition.ledger import CommitProgress, Ledger


def offsets(*numbers):
    return np.array(numbers, np.int64)


def emitted_ledger(*numbers, position=0):
    ledger = Ledger(position)
    ledger.fetched(offsets(*numbers))
    ledger.emit(len(numbers))
    return ledger


def test_late_acks_are_counted_and_ignored():
    """Promise 5: late, repeated or unknown acks are counted and ignored."""
    ledger = emitted_ledger(5, 6, 9)
    assert ledger.resolve(offsets(5, 6)) == 2
    assert ledger.resolve(offsets(5)) == 0
    assert ledger.resolve(offsets(7, 8, 100)) == 0
    assert ledger.resolve(offsets(6, 6)) == 0
    assert ledger.statistics().ignored == 6
    assert ledger.last_completed_offset == 9


def test_offsets_fetched_twice_are_refused():
    """Storm 32: what was passed cannot come in again from a fetch."""
    ledger = emitted_ledger(0, 1)
    with pytest.raises(ValueError, match="fetched again"):
        ledger.fetched(offsets(1, 2))


class LedgerMachine(RuleBasedStateMachine):
    """A dictionary as the model of the ledger, driven at random."""

    def __init__(self):
        super().__init__()
        self.ledger = Ledger(0)
        self.states = {}
        self.next = 0
        self.completed = [0]

    @rule(gaps=st.lists(st.integers(0, 3), min_size=1, max_size=2000))
    def fetch(self, gaps):
        found = []
        for gap in gaps:
            self.next += gap
            found.append(self.next)
            self.next += 1
        self.ledger.fetched(offsets(*found))
        self.states.update(dict.fromkeys(found, "waiting"))

    @rule(limit=st.integers(1, 1500))
    def emit(self, limit):
        expected = [o for o, s in self.states.items() if s == "waiting"][:limit]
        assert self.ledger.emit(limit).tolist() == expected
        for offset in expected:
            self.states[offset] = "emitted"

    @rule(data=st.data(), shuffled=st.booleans())
    def resolve(self, data, shuffled):
        candidates = [o for o, s in self.states.items() if s != "waiting"]
        if not candidates:
            return
        start = data.draw(st.integers(0, len(candidates) - 1))
        chosen = candidates[start : start + data.draw(st.integers(1, 500))]
        if shuffled:
            chosen = chosen[::-2]
        known = [o for o in chosen if self.states[o] != "resolved"]
        assert self.ledger.resolve(offsets(*chosen)) == len(known)
        for offset in known:
            self.states[offset] = "resolved"

    @rule(data=st.data())
    def fail_or_retry(self, data):
        candidates = [o for o, s in self.states.items() if s in ("emitted", "failed")]
        if not candidates:
            return
        offset = data.draw(st.sampled_from(candidates))
        if self.states[offset] == "emitted":
            assert self.ledger.fail(offset)
            assert not self.ledger.fail(offset)
            self.states[offset] = "failed"
        else:
            assert self.ledger.retry(offset)
            self.states[offset] = "emitted"

    @precondition(lambda self: self.states)
    @invariant()
    def agrees_with_the_model(self):
        pending = [o for o, s in self.states.items() if s != "resolved"]
        statistics = self.ledger.statistics()
        assert statistics.last_completed_offset == (min(pending) if pending else self.next)
        assert statistics.pending == len(pending)
        assert statistics.waiting == sum(s == "waiting" for s in self.states.values())
        assert statistics.failed == sum(s == "failed" for s in self.states.values())
        assert statistics.last_completed_offset >= self.completed[-1], (
            "promise 2: it never moves back"
        )
        self.completed.append(statistics.last_completed_offset)


TestLedgerAgreesWithItsModel = LedgerMachine.TestCase


def test_resolve_below_resolves_every_emitted_record():
    ledger = emitted_ledger(0, 1, 5, 6, 9)
    ledger.fetched(offsets(12))
    ledger.fail(1)
    ledger.resolve(offsets(5))
    assert ledger.resolve_below(7) == 3
    assert (ledger.last_completed_offset, ledger.statistics().failed, ledger.emitted_count) == (
        9,
        0,
        1,
    )
    assert ledger.resolve_below(7) == 0
    assert ledger.resolve_below(100) == 1
    assert (ledger.last_completed_offset, ledger.waiting) == (12, 1)


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

    @rule(gaps=GAPS)
    def fetch(self, gaps):
        offsets = []
        for gap in gaps:
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

    @rule(limit=st.integers(0, 20))
    def emit(self, limit):
        waiting = [offset for offset, state in self.states.items() if state == "waiting"]
        assert self.ledger.emit(limit).tolist() == waiting[:limit]
        self.states.update(dict.fromkeys(waiting[:limit], "emitted"))

    @rule(data=st.data(), strangers=st.lists(st.integers(-5, 40), max_size=3))
    def resolve_some_once_or_again_and_some_that_never_were(self, data, strangers):
        emitted = [offset for offset, state in self.states.items() if state != "waiting"]
        known = data.draw(st.lists(st.sampled_from(emitted), max_size=20)) if emitted else []
        strange = [o for o in strangers if o not in self.states]
        asked = sorted({*known, *strange})
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


def test_progress_counts_below_the_submitted_offset() -> None:
    progress = CommitProgress(5)
    progress.read = 3
    progress.submit(8, behind=1)
    progress.mark(7)
    assert (progress.offset, progress.read_below) == (7, 0)
    progress.mark(8)
    assert (progress.offset, progress.read_below) == (8, 2)
