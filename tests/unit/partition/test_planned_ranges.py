"""Partitions of which only offsets are known here: opened, mended, committed by ranges."""

import pytest

from partition.errors import OffsetOutOfRange, ReplayDiffers
from partition.records import Range, Transactions
from tests.support.consumer import ONE, SKIP_LOSS, GatedBench
from transactions.groups import GroupMember, TransactionGroups
from transactions.partition_transactions import PartitionTransactions
from transactions.transaction import TransactionPolicy, resumed

DIGEST = "ab" * 16


class RangeBench(GatedBench):
    """Every partition has a line of ranges, and nothing is fetched."""

    def __init__(self, kind="transactional", **policy):
        self.kind = kind
        super().__init__(**policy)
        self.fencing.resumes = lambda partition, stored, committed: resumed(
            partition, stored, {"table": self.sink} if stored.transactions else committed, kind
        )
        self.sink = 0
        self.groups = TransactionGroups(99)

    def new_delivery(self, partition, ledger, progress, resumed):
        policy = TransactionPolicy(self.kind, by_executors=True)
        self.modes[partition] = PartitionTransactions(partition, ledger, progress, resumed, policy)
        return self.modes[partition]

    @property
    def line(self):
        return self.modes[ONE]

    def open(self, records):
        self.fill(ONE, records)
        self.start()

    def plan(self, *ends):
        for end in ends:
            self.group(self.line.begin(end).txid)
        self.commit()

    def commit(self, now=0.0):
        for _each in range(2):
            self.reader.commit(now, force=True)

    def group(self, txid):
        self.groups.plan([GroupMember(0, self.line, txid)])

    def read(self, txid, count):
        found = self.line.transaction_of(txid)
        assert self.line.read(txid, found.attempt, count, DIGEST, 0)
        self.reader.offsets.note(self.reader.manager(0))

    def done(self, txid):
        """Let the sink have it, as soon as its seal is stored."""
        self.commit()
        line = self.line
        line.take(txid)
        self.sink = txid
        covers = line.done(txid)
        manager = self.reader.assignment[ONE].manager
        manager.passed(covers)
        self.commit()

    def trouble(self, error):
        self.reader.assignment.fail(ONE, error)
        self.poll()

    def again(self):
        """The next life of the process."""
        self.reader.close()
        self.events.clear()
        self.reader = self.another()
        self.start()

    @property
    def node(self):
        return self.store.load(ONE)


def test_range_is_planned_then_sealed_then_committed():
    bench = RangeBench()
    bench.open(10)
    bench.plan(6, 9)
    assert [each.range for each in bench.node.transactions.open] == [Range(0, 6), Range(6, 9)]
    bench.read(1, 6)
    bench.reader.commit(0.0)
    bench.reader.commit(0.0)
    sealed = bench.node.transactions.open[0].range
    assert sealed == Range(0, 6, 6, DIGEST, 0), "a seal does not wait for the interval"
    assert bench.stored() == 0
    bench.done(1)
    assert bench.stored() == 6
    assert bench.node.transactions.open[0].range == Range(6, 9)
    bench.read(2, 3)
    bench.done(2)
    assert bench.node.transactions == Transactions("transactional", 2)
    assert bench.stored() == 9
    bench.plan(10)
    bench.read(3, 1)
    bench.done(3)
    assert bench.reader.assignment.has_reached_goals


def lose(bench):
    bench.fill(ONE, 20)
    bench.log.delete_before(ONE, 15)


@pytest.mark.parametrize("is_running", [True, False])
def test_unread_ranges_are_planned_again_after_a_loss(is_running):
    """Promise 12: as records that were not read here, by policy."""
    bench = RangeBench(start=SKIP_LOSS)
    bench.open(10)
    bench.plan(6, 9)
    lose(bench)
    before = bench.line
    if is_running:
        bench.trouble(OffsetOutOfRange(ONE, 0))
    else:
        bench.again()
    assert bench.line is not before
    assert bench.reasons() == [("expired", 0, 15)]
    assert bench.stored() == 15
    assert bench.line.planned_to == 15
    bench.plan(20)
    [found] = bench.node.transactions.open
    assert (found.txid, found.attempt, found.range) == (1, 2, Range(15, 20))


@pytest.mark.parametrize("is_running", [True, False])
def test_a_sealed_range_that_is_lost_before_it_ran_again_halts_the_partition(is_running):
    bench = RangeBench(start=SKIP_LOSS)
    bench.open(10)
    bench.plan(6, 9)
    bench.read(1, 6)
    bench.commit()
    lose(bench)
    if is_running:
        bench.groups.drop(0)
        bench.trouble(OffsetOutOfRange(ONE, 0))
    else:
        bench.again()
    assert isinstance(bench.loss_of(ONE), ReplayDiffers)
    assert "offsets 0 to 6 (6 records)" in bench.reader.assignment.halted[ONE]
    assert bench.stored() == 0


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("kind", ["transactional", "opaque"])
def test_ranges_that_no_sink_has_are_planned_anew_where_their_log_was_cut_off_within_them(
    kind, is_running
):
    """Promise 12: nothing is lost that was read, and the log goes on from its end."""
    bench = RangeBench(kind)
    bench.open(10)
    bench.plan(6, 9)
    before = bench.line
    if kind == "opaque":
        bench.read(1, 6)
        bench.commit()
        bench.groups.drop(0)
    bench.log.truncate(ONE, 8)
    if is_running:
        for _turn in range(3):
            bench.trouble(OffsetOutOfRange(ONE, 0))
            assert bench.line is before, "the end may be told too low"
        bench.trouble(OffsetOutOfRange(ONE, 0))
    else:
        bench.again()
    assert bench.reader.assignment.halted == {}
    assert bench.losses == []
    assert bench.line is not before
    assert (bench.stored(), bench.line.planned_to) == (0, 0)
    bench.plan(8)
    [found] = bench.node.transactions.open
    assert (found.txid, found.range) == (1, Range(0, 8))
    assert found.attempt > 1
    bench.read(1, 8)
    bench.done(1)
    assert bench.stored() == 8


def test_of_an_open_range_a_good_end_tells_nothing_but_its_run_does():
    bench = RangeBench()
    bench.open(10)
    bench.plan(6)
    bench.trouble(OffsetOutOfRange(ONE, 0))
    bench.reader.assignment.log_end(bench.reader.partition(0), 10, is_read=False)
    held = bench.reader.assignment[ONE]
    assert held.in_vain == (0, 1)
    bench.read(1, 6)
    bench.commit()
    bench.line.take(1)
    bench.reader.assignment.passed(0, bench.line.done(1))
    assert held.in_vain == (-1, 0)
