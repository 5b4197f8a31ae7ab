"""The coordinator against a dictionary, by any calls in any order."""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from transactions.coordinator import Attempt, Coordinator, Phase
from transactions.errors import OutcomePending, OutOfOrder, TooManyActive

MAX_ACTIVE = 3
PICK = st.integers(0, 9)


@dataclass
class Open:
    """What the model knows of an open transaction."""

    number: int
    covers: int
    phase: Phase = Phase.PLANNED
    is_replay: bool = False


class CoordinatorAndModel(RuleBasedStateMachine):
    """Promise 14, by a model that does the simplest thing; `store` is what a crash leaves."""

    def __init__(self):
        super().__init__()
        self.coordinator = Coordinator[int](max_active=MAX_ACTIVE)
        self.live = {}  # txid: Open
        self.committed = 0
        self.tries = {}  # txid: the last attempt that was given
        self.store = {}  # txid: (attempt, covers) of what was recorded last
        self.in_store = 0  # the last txid that it says is committed
        self.highest_recorded = {}
        self.in_sink = []  # txids, as they were committed
        self.given = [Attempt(1, 1)]

    def pick(self, at):
        """A live attempt, more often than a stale one."""
        live = [Attempt(txid, each.number) for txid, each in self.live.items()]
        choices = [*live, *live, *self.given[-4:]]
        return choices[at % len(choices)]

    def found(self, attempt, *phases):
        each = self.live.get(attempt.txid)
        fits = each is not None and each.number == attempt.number and each.phase in phases
        return each if fits else None

    def from_(self, txid):
        return [number for number in sorted(self.live) if number >= txid]

    def next_attempt(self, txid):
        self.tries[txid] = self.tries.get(txid, 0) + 1
        self.given.append(Attempt(txid, self.tries[txid]))
        return self.tries[txid]

    @rule(covers=st.integers(0, 99))
    def begin(self, covers):
        if len(self.live) >= MAX_ACTIVE:
            with pytest.raises(TooManyActive):
                self.coordinator.begin(covers)
            return
        txid = self.committed + len(self.live) + 1
        number = self.next_attempt(txid)
        self.live[txid] = Open(number, covers)
        assert self.coordinator.begin(covers) == (txid, number)

    @rule(at=PICK, covers=st.integers(100, 199))
    def grow(self, at, covers):
        attempt = self.pick(at)
        each = self.found(attempt, Phase.PLANNED, Phase.PROCESSING)
        grows = each is not None and attempt.txid == max(self.live) and not each.is_replay
        assert self.coordinator.grow(attempt, covers) is grows
        if grows:
            each.covers = covers

    @rule(at=PICK)
    def record(self, at):
        attempt = self.pick(at)
        each = self.found(attempt, Phase.PLANNED)
        assert self.coordinator.recorded(attempt) is (each is not None)
        if each:
            assert attempt.number > self.highest_recorded.get(attempt.txid, 0)
            self.highest_recorded[attempt.txid] = attempt.number
            each.phase = Phase.PROCESSING
        self.put_down()

    def put_down(self):
        """One write: what is recorded, without what is committed."""
        self.in_store = self.committed
        self.store = {
            txid: (Attempt(txid, each.number), each.covers)
            if each.phase is not Phase.PLANNED
            else self.store[txid]
            for txid, each in self.live.items()
            if each.phase is not Phase.PLANNED or txid in self.store
        }

    @rule(at=PICK)
    def process(self, at):
        attempt = self.pick(at)
        each = self.found(attempt, Phase.PROCESSING)
        assert self.coordinator.processed(attempt) is (each is not None)
        if each:
            each.phase = Phase.PROCESSED

    @rule()
    def next_commit(self):
        waiting = [txid for txid, each in self.live.items() if each.phase is not Phase.COMMITTING]
        lowest = min(waiting, default=None)
        found = self.coordinator.next_commit()
        if lowest is None or self.live[lowest].phase is not Phase.PROCESSED:
            assert found is None
            return
        self.live[lowest].phase = Phase.COMMITTING
        assert found.attempt == (lowest, self.live[lowest].number)
        assert found.covers == self.live[lowest].covers

    @rule(at=PICK)
    def done(self, at):
        attempt = self.pick(at)
        each = self.found(attempt, Phase.COMMITTING)
        if each and attempt.txid != min(self.live):
            with pytest.raises(OutOfOrder):
                self.coordinator.done(attempt)
            return
        assert self.coordinator.done(attempt) is (each is not None)
        if each:
            del self.live[attempt.txid]
            self.committed = attempt.txid
            self.in_sink.append(attempt.txid)

    @rule(at=PICK)
    def not_done(self, at):
        attempt = self.pick(at)
        each = self.found(attempt, Phase.COMMITTING)
        assert self.coordinator.not_done(attempt) is (each is not None)
        for txid in self.from_(attempt.txid) if each else []:
            if self.live[txid].phase is Phase.COMMITTING:
                self.live[txid].phase = Phase.PROCESSED

    @rule(at=PICK)
    def fail(self, at):
        attempt = self.pick(at)
        later = self.from_(attempt.txid) if self.found(attempt, *Phase) else []
        if any(self.live[txid].phase is Phase.COMMITTING for txid in later):
            with pytest.raises(OutcomePending):
                self.coordinator.fail(attempt)
            return
        for txid in later:
            covers = self.live[txid].covers
            self.live[txid] = Open(self.next_attempt(txid), covers, is_replay=True)
        expected = [(txid, self.live[txid].number) for txid in later]
        assert list(self.coordinator.fail(attempt)) == expected

    @rule(back=st.integers(0, 3))
    def forget(self, back):
        after = self.committed + len(self.live) - back
        later = self.from_(after + 1)
        if any(self.live[txid].phase is Phase.COMMITTING for txid in later):
            with pytest.raises(OutcomePending):
                self.coordinator.forget_after(after)
            return
        assert [each.txid for each in self.coordinator.forget_after(after)] == later
        for txid in later:
            del self.live[txid]

    @rule()
    def restart(self):
        """A crash: what the sinks have is committed, what was recorded is replayed."""
        assert self.in_store <= self.committed
        recorded = []  # what is behind a hole was never emitted, and is planned anew
        while (txid := self.committed + 1 + len(recorded)) in self.store:
            recorded.append(self.store[txid])
        self.tries = {attempt.txid: attempt.number for attempt, _covers in recorded}
        anew = {
            txid: number
            for txid, number in self.highest_recorded.items()
            if txid > self.committed + len(recorded)
        }
        self.tries |= anew
        self.coordinator = Coordinator[int](
            max_active=MAX_ACTIVE, committed=self.committed, recorded=recorded, attempts=anew
        )
        self.live = {
            attempt.txid: Open(self.next_attempt(attempt.txid), covers, is_replay=True)
            for attempt, covers in recorded
        }
        self.given = [Attempt(txid, each.number) for txid, each in self.live.items()] or self.given

    @invariant()
    def they_agree(self):
        found = self.coordinator.active
        assert [each.txid for each in found] == sorted(self.live)
        assert [each.txid for each in found] == list(
            range(self.committed + 1, self.committed + 1 + len(found))
        )
        for each in found:
            model = self.live[each.txid]
            assert each.attempt.number == model.number
            assert (each.phase, each.covers) == (model.phase, model.covers)
        assert self.coordinator.committed == self.committed
        assert len(found) <= MAX_ACTIVE
        assert self.coordinator.may_begin is (len(found) < MAX_ACTIVE)

    @invariant()
    def the_sink_has_each_once_in_order(self):
        assert self.in_sink == list(range(1, len(self.in_sink) + 1))

    @invariant()
    def nothing_is_committed_that_was_not_recorded(self):
        for txid, each in self.live.items():
            if each.phase is not Phase.PLANNED:
                assert self.highest_recorded[txid] >= each.number


def test_the_coordinator_and_the_model_agree_whatever_is_called():
    run_state_machine_as_test(
        CoordinatorAndModel, settings=settings(max_examples=150, stateful_step_count=40)
    )
