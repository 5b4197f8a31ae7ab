"""The ledger: contiguous, out of order, with gaps, failed in front, drained, at random."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from partition.ledger import Ledger


def offsets(*numbers):
    return np.array(numbers, np.int64)


def emitted_ledger(*numbers, position=0):
    ledger = Ledger(position)
    ledger.fetched(offsets(*numbers))
    ledger.emit(len(numbers))
    return ledger


def test_a_gap_at_the_logs_end_is_passed_later_when_a_record_waits():
    ledger = Ledger(0)
    ledger.fetched(offsets(0, 1))
    ledger.pass_gap(4)
    assert ledger.last_completed_offset == 0
    ledger.emit(2)
    ledger.resolve(offsets(0, 1))
    assert ledger.last_completed_offset == 4


def test_repeated_late_and_unknown_acks_are_counted_and_change_nothing():
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
        self.frontiers = [0]

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
        assert statistics.last_completed_offset >= self.frontiers[-1], (
            "promise 2: it never moves back"
        )
        self.frontiers.append(statistics.last_completed_offset)


TestLedgerAgreesWithItsModel = LedgerMachine.TestCase


def test_all_that_was_emitted_below_an_offset_resolves_at_once_whatever_became_of_it():
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
