import numpy as np
import pytest

from partition import assignment
from partition.errors import Fenced, OwnershipLost, PartitionError
from partition.interfaces import Progress
from partition.records import Position, partition_index_of
from tests.support.consumer import ONE, TWO, Bench
from tests.support.faulty_store import FaultyStore


class Shared(Bench):
    """A reader on fakes that opens what it is told to."""

    def __init__(self, **policy):
        super().__init__(assignment={"shared": True}, **policy)
        self.fill(ONE, 4)
        self.fill(TWO, 4)
        self.reader.open()

    def want(self, *partitions, planned_at=0.0, leave_by=1e9, now=0.0):
        self.reader.assignment.want(partitions, planned_at=planned_at, leave_by=leave_by)
        self.poll(now)

    def take(self, now=0.0):
        """Fetch, and emit all that may be emitted."""
        self.reader.fetch(now, 0.0)
        return list(iter(lambda: self.reader.next_chunk(now), None))


@pytest.fixture
def bench():
    return Shared()


@pytest.fixture
def owners(bench):
    """The records of ONE, in flight."""
    bench.want(ONE)
    ((_, owners),) = bench.take()
    return owners


def test_leaving_partition_is_released_once_it_is_stored(bench):
    """Promises 1 and 3: what was in flight is neither lost nor repeated."""
    bench.want(ONE, TWO)
    owners = np.concatenate([owners for _, owners in bench.take()])
    bench.want(TWO)
    assert bench.reader.assignment.holds == {ONE, TWO}
    assert bench.reader.leaving
    bench.fill(ONE, 3)
    assert bench.take() == []  # nothing new of it
    bench.reader.ack(owners)
    bench.reader.poll(0.0)
    assert bench.reader.assignment.holds == {ONE, TWO}  # resolved, and not stored yet
    bench.commit(0.0)
    bench.reader.poll(0.0)
    assert bench.reader.assignment.holds == {TWO}
    assert bench.stored(ONE) == 4
    assert bench.told[-1] == f"-{ONE}"
    assert bench.reader.assignment.departed.read == 4
    assert bench.reader.assignment.departed.given_up == 0


def test_partition_is_given_up_at_the_deadline(bench, owners):
    """Promise 16: a hand-over has one deadline."""
    bench.want(leave_by=6.0)
    bench.reader.poll(5.9)
    assert bench.reader.assignment.holds == {ONE}
    bench.reader.poll(6.0)
    assert bench.reader.assignment.holds == frozenset()
    assert bench.told[-1] == f"-{ONE}"
    assert bench.reader.assignment.departed.given_up == 4
    bench.reader.ack(owners)  # late: it stores nothing
    bench.reader.commit(7.0, force=True)
    assert bench.stored(ONE) == 0


def test_run_ends_when_all_partition_indexes_are_used(bench, monkeypatch):
    monkeypatch.setattr(assignment, "MAX_PARTITION_INDEX", 2)
    bench.want(ONE)
    assert bench.take()
    bench.want(leave_by=1.0)
    with pytest.raises(PartitionError, match=r"t\[0\] cannot be opened"):
        bench.reader.poll(1.0)


def test_returning_partition_starts_at_its_stored_offset(bench, owners):
    bench.reader.ack(owners[:2])
    bench.commit(0.0)
    bench.want(leave_by=1.0)
    bench.reader.poll(1.0)
    bench.want(ONE, planned_at=2.0, now=2.0)
    ((chunk, again),) = bench.take(2.0)
    assert chunk.offsets.tolist() == [2, 3]
    assert set(again.tolist()).isdisjoint(owners.tolist())  # late answers are not taken for these
    bench.reader.ack(again)
    bench.commit(3.0)
    assert bench.stored(ONE) == 4


@pytest.mark.parametrize("is_shared", [True, False])
def test_nothing_is_emitted_between_a_wait_and_the_next_poll(is_shared):
    """Promise 9: a process that was frozen in the wait goes on there, and has lost its session."""
    bench = Shared() if is_shared else Bench()
    if is_shared:
        bench.want(ONE)
    else:
        bench.fill(ONE, 4)
        bench.start()
    assert bench.reader.fetch(0.0, 0.02)
    assert (bench.reader.next_chunk(0.0) is None) is is_shared
    bench.reader.poll(0.0)
    bench.fill(ONE, 4)
    assert bench.reader.fetch(0.0, 0.0)  # it did not wait
    assert bench.reader.next_chunk(0.0) is not None


def test_fenced_partition_waits_for_a_newer_plan(bench):
    """Promise 9: else two replicas that read plans at different times would take turns."""
    bench.want(ONE, TWO, planned_at=1.0, now=1.0)
    bench.take(1.0)
    place = bench.reader.assignment[ONE].index
    bench.reader.assignment.refuse(ONE, Fenced(ONE, "epoch 9"), index=place)
    bench.want(ONE, TWO, planned_at=1.0, now=2.0)  # what was asked before
    assert bench.reader.assignment.holds == {TWO}
    assert bench.reader.assignment.halted == {}
    bench.want(ONE, TWO, planned_at=3.0, now=3.0)
    assert bench.reader.assignment.holds == {ONE, TWO}


def test_late_fence_of_a_sink_harms_no_later_ownership(bench):
    bench.want(ONE)
    place = bench.reader.assignment[ONE].index
    bench.take()
    bench.want(leave_by=1.0)
    bench.reader.poll(1.0)
    bench.want(ONE, planned_at=2.0, now=2.0)
    bench.reader.assignment.refuse(ONE, Fenced(ONE, "epoch 2"), index=place)
    assert bench.reader.assignment.holds == {ONE}


def test_partition_wanted_again_is_released_first(bench, owners):
    bench.want(planned_at=1.0, now=1.0)
    bench.want(ONE, planned_at=2.0, now=2.0)
    assert bench.reader.leaving
    bench.reader.ack(owners)
    bench.commit(2.0)
    bench.reader.poll(2.0)
    bench.want(ONE, planned_at=3.0, now=3.0)
    assert bench.told == [f"+{ONE}", f"-{ONE}", f"+{ONE}"]


def test_a_pause_emits_nothing_new_and_ends(bench):
    bench.want(ONE)
    bench.reader.assignment.is_paused = True
    assert bench.take() == []
    bench.reader.assignment.is_paused = False
    assert len(bench.take()) == 1


def test_stale_claim_takes_nothing_from_the_new_owner(bench):
    """Promise 9: the plan by which it was asked may be old; only a later one opens it."""
    bench.want(ONE)
    bench.restart()  # without a plan yet
    epoch = bench.store.load(ONE).epoch
    bench.nodes.away = True
    bench.want(ONE, planned_at=1.0, now=1.0)
    bench.store.end_session()
    bench.nodes.away = False
    bench.want(ONE, planned_at=1.0, now=2.0)
    assert bench.store.load(ONE).epoch == epoch
    assert bench.reader.assignment.holds == set()
    bench.want(ONE, planned_at=3.0, now=3.0)
    assert bench.reader.assignment.holds == {ONE}
    assert bench.store.load(ONE).epoch == epoch + 1


# R02: a partition is revoked while a write of its offset is under way, whose answer comes late


class Amid(Shared):
    """A reader that has all of both partitions resolved, and ONE's commit under way."""

    def __init__(self):
        super().__init__()
        self.want(ONE, TWO)
        record_ids, second = self.emit(), self.reader.assignment[TWO].index
        self.of_two = [each for each in record_ids if partition_index_of(each) == second]
        self.ack([each for each in record_ids if each not in self.of_two])
        self.store.holding = True
        self.reader.commit(0.0, force=True)
        assert self.store.commits == [{ONE: 4}]

    def land(self):
        """Let the write take effect, and its answer come."""
        self.store.holding = False
        FaultyStore.commit(self.store, {ONE: Progress(Position(4))}).result()
        (under_way,) = self.store.open_commits
        under_way.set_result({})

    def turn(self, now):
        """Turn as the loop does."""
        for _ in range(5):
            self.reader.poll(now)
            self.reader.commit(now, force=True)


def test_release_waits_for_the_commit_under_way():
    bench = Amid()
    bench.want(TWO, planned_at=1.0, now=1.0)
    bench.turn(1.0)
    assert bench.reader.assignment.holds == {ONE, TWO}
    assert f"-{ONE}" not in bench.told
    bench.land()
    bench.turn(2.0)
    assert bench.reader.assignment.holds == {TWO}
    assert bench.stored(ONE) == 4
    assert bench.told[-1] == f"-{ONE}"
    assert bench.reader.assignment.departed.given_up == 0


def test_unanswered_commit_ends_at_the_deadline():
    bench = Amid()
    bench.want(TWO, planned_at=1.0, leave_by=6.0, now=1.0)
    bench.turn(6.0)
    assert bench.reader.assignment.holds == {TWO}
    assert bench.told[-1] == f"-{ONE}"
    bench.land()
    bench.turn(7.0)
    assert bench.reader.assignment.holds == {TWO}
    assert bench.reader.assignment.halted == {}
    assert bench.stored(ONE) == 4  # its write had landed, and the next owner reads from there
    bench.ack(bench.of_two)
    bench.turn(8.0)
    assert bench.stored(TWO) == 4


@pytest.mark.parametrize("refused", [{ONE: Fenced(ONE, "epoch 9")}, {ONE: OwnershipLost(ONE)}, {}])
def test_late_answer_counts_for_no_later_ownership(refused):
    """What was given up and came back is another ownership than the one that wrote.

    Else it would think more stored than is, and let go of what it must read again.
    """
    bench = Amid()
    bench.want(TWO, planned_at=1.0, leave_by=6.0, now=1.0)
    bench.turn(6.0)
    bench.store.holding = False
    bench.want(ONE, TWO, planned_at=7.0, now=7.0)
    bench.poll(7.0)
    again = bench.emit(7.0)
    assert len(again) == 4  # nothing was stored
    told = list(bench.told)
    (under_way,) = bench.store.open_commits
    under_way.set_result(refused)
    bench.turn(8.0)
    assert bench.reader.assignment.holds == {ONE, TWO}
    assert bench.told == told
    assert bench.reader.assignment.halted == {}
    bench.ack(again)
    bench.turn(9.0)
    assert bench.stored(ONE) == 4
