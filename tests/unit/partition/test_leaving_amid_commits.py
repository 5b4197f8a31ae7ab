"""R02: a partition is revoked while a write of its offset is under way, whose answer comes late."""

from concurrent.futures import Future
from typing import Any

import pytest

from partition.errors import Fenced, OwnershipLost
from partition.interfaces import Progress
from partition.records import Position, partition_index_of
from tests.support.consumer import ONE, TWO, Bench
from tests.support.faulty_store import FaultyStore

FOREVER = 1e9


class Amid(Bench):
    """A reader that has all of both partitions resolved, and ONE's commit under way."""

    def __init__(self) -> None:
        super().__init__(assignment={"shared": True})
        self.fill(ONE, 4)
        self.fill(TWO, 4)
        self.reader.open()
        self.want(ONE, TWO)
        record_ids = self.emit()
        self.of_two = [
            record_id
            for record_id in record_ids
            if partition_index_of(record_id) == self.reader.assignment[TWO].index
        ]
        self.ack([record_id for record_id in record_ids if record_id not in self.of_two])
        self.store.holding = True
        self.reader.commit(0.0, force=True)
        assert self.store.commits == [{ONE: 4}]

    def want(self, *partitions, planned_at=0.0, leave_by=FOREVER, now=0.0):
        self.reader.assignment.want(partitions, planned_at=planned_at, leave_by=leave_by)
        self.poll(now)

    @property
    def under_way(self) -> Future[Any]:
        (future,) = self.store.open_commits
        return future

    def land(self) -> None:
        """Let the write take effect, and its answer come."""
        self.store.holding = False
        FaultyStore.commit(self.store, {ONE: Progress(Position(4))}).result()
        self.under_way.set_result({})

    def turn(self, now: float, times: int = 5) -> None:
        """Turn as the loop does."""
        for _ in range(times):
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


@pytest.mark.parametrize("error", [Fenced(ONE, "epoch 9"), OwnershipLost(ONE)])
def test_a_refusal_that_comes_late_harms_no_later_ownership(error):
    """What was given up and came back is another ownership than the one that wrote."""
    bench = Amid()
    bench.want(TWO, planned_at=1.0, leave_by=6.0, now=1.0)
    bench.turn(6.0)
    bench.store.holding = False
    bench.want(ONE, TWO, planned_at=7.0, now=7.0)
    bench.poll(7.0)
    assert bench.reader.assignment.holds == {ONE, TWO}
    told = list(bench.told)
    bench.under_way.set_result({ONE: error})
    bench.turn(8.0)
    assert bench.reader.assignment.holds == {ONE, TWO}
    assert bench.told == told
    assert bench.reader.assignment.halted == {}
    bench.ack(bench.emit(8.0))
    bench.turn(9.0)
    assert bench.stored(ONE) == 4


def test_late_answer_counts_for_no_later_ownership():
    """Else it would think more stored than is, and let go of what it must read again."""
    bench = Amid()
    bench.want(TWO, planned_at=1.0, leave_by=6.0, now=1.0)
    bench.turn(6.0)
    bench.store.holding = False
    bench.want(ONE, TWO, planned_at=7.0, now=7.0)
    bench.poll(7.0)
    again = bench.emit(7.0)
    assert len(again) == 4  # nothing was stored
    bench.under_way.set_result({})  # as if it had, to somebody else's node
    bench.turn(8.0)
    bench.ack(again)
    bench.turn(9.0)
    assert bench.stored(ONE) == 4
