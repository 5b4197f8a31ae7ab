"""How a partition is opened and mended exactly once: claimed, fenced, resumed, then read."""

import pytest

from partition.errors import (
    Fenced,
    OffsetOutOfRange,
    ReplayDiffers,
    SinkAhead,
    StoreBehind,
)
from partition.records import Position, Range, Resumed, Transactions
from partition.recovery import StartPolicy
from tests.support.consumer import ONE, SKIP_LOSS, TWO, GatedBench, transactions_of
from tests.support.faulty_store import FaultyStore
from transactions.groups import GroupMember, TransactionGroups
from transactions.partition_transactions import PartitionTransactions, TransactionPolicy
from transactions.transaction import resumed


def test_a_partition_is_claimed_then_fenced_and_only_then_read():
    """Promise 9, faults I11: what the owner before commits late is refused, or is seen."""
    bench = GatedBench()
    bench.plan_and_stop(4)
    bench.fencing.holding = True
    bench.start()
    assert bench.of_one() == ["fenced it 2"]
    claimed = bench.store.load(ONE)
    assert claimed.epoch == 2
    assert list(bench.reader.assignment.owned()) == []
    for future in bench.fencing.held:
        future.set_result({"table": 0})
    bench.poll()
    assert bench.of_one() == ["fenced it 2", "reads it 0"]
    assert bench.reader.assignment.at(0).epoch == 2
    assert [place for place, _manager in bench.reader.assignment.owned()] == [0, 1]


def test_takeover_resumes_open_transactions():
    bench = GatedBench()
    bench.plan_and_stop(4, 9)
    bench.fencing.committed = {"table": 1}
    seen = []

    def resume(partition, stored, committed):
        seen.append((partition, stored.transactions, dict(committed)))
        left = Transactions("transactional", 1, stored.transactions.open[1:])
        return Resumed(Position(4, None, None), left)

    bench.fencing.resumes = resume
    bench.start()
    assert seen[0] == (ONE, transactions_of(4, 9), {"table": 1})
    assert bench.modes[ONE].resumed.transactions == transactions_of(9, first=4, committed=1)
    assert "reads t[0] 4" in bench.events
    assert bench.modes[ONE].resumed.position.topic_id
    bench.reader.commit(1.0)
    assert bench.stored() == 4


@pytest.mark.parametrize("begun", [False, True])
def test_sink_ahead_of_the_store_halts_its_partition(begun):
    bench = GatedBench()
    if begun:
        bench.plan_and_stop(4)

    def resume(partition, stored, committed):
        if partition == ONE:
            raise SinkAhead(partition, "table", 7, 1)
        return Resumed(stored.position, stored.transactions)

    bench.fencing.resumes = resume
    bench.start()
    assert "has transaction 7" in bench.reader.assignment.halted[ONE]
    assert [place for place, _manager in bench.reader.assignment.owned()] == [1]
    assert isinstance(bench.loss_of(ONE), SinkAhead)


def test_a_sink_that_knows_a_later_owner_halts_the_partition():
    """Promise 9."""
    bench = GatedBench()
    bench.plan_and_stop(4)
    bench.fencing.holding = True
    bench.start()
    successor = FaultyStore(bench.nodes)
    successor.open()
    successor.claim(ONE).result()
    bench.fencing.held[0].set_exception(Fenced(ONE, "epoch 7"))
    bench.poll()
    assert isinstance(bench.loss_of(ONE), Fenced)
    assert "reads t[0]" not in " ".join(bench.events)


def test_sink_with_a_later_epoch_halts_its_partition():
    """Promise 9, Faults Z13: nobody has raised it in the store, so that was put back."""
    bench = GatedBench()
    bench.fencing.error = Fenced(ONE, "epoch 7")
    with pytest.raises(StoreBehind, match=r"epoch 1 is the newest.*epoch 7"):
        bench.start()
    assert "reads" not in " ".join(bench.events)


LOSSES = {
    "expired": lambda bench: bench.log.delete_before(ONE, 2),
    "cut off within": lambda bench: bench.log.truncate(ONE, 6),
    "cut off below": lambda bench: bench.log.truncate(ONE, 0),
    "recreated": lambda bench: bench.log.recreate_topic("t", 2),
}


@pytest.mark.parametrize("how", LOSSES)
def test_lost_replay_halts_under_every_policy(how):
    bench = GatedBench(start=SKIP_LOSS)
    bench.plan_and_stop(4, 9)
    LOSSES[how](bench)
    bench.start()
    halted = bench.reader.assignment[ONE].error
    assert isinstance(halted, ReplayDiffers)
    within = how == "cut off within"
    assert halted.txid == (2 if within else 1)
    expected = "offsets 4 to 9 (5 records)" if within else "offsets 0 to 4 (4 records)"
    assert halted.expected == expected
    assert bench.stored() == 0
    assert not any(loss.partition == ONE for loss in bench.losses)


def test_foreign_offset_keeps_the_sinks_txids():
    bench = GatedBench()
    bench.plan_and_stop(4)
    bench.names["topology_id"] = "another"
    bench.fencing.committed = {"table": 3, "log": 4}
    start = StartPolicy(ignore_stored_offsets=True)
    bench.restart(start=start, delivery=bench.new_delivery)
    assert bench.of_one()[:2] == ["fenced it 2", "moved it 0 ignore_stored_offsets"]
    assert bench.store.load(ONE).transactions == Transactions("transactional", 4)
    assert bench.modes[ONE].resumed.transactions == Transactions("transactional", 4)


# While it is read


def trouble(bench, error):
    bench.reader.assignment.fail(ONE, error)
    bench.poll()


def gated_records(bench, *ends):
    bench.fill(ONE, 6)
    bench.start()
    bench.reader.fetch(0.0, 0.0)
    bench.modes[ONE].plan(*ends)
    bench.reader.commit(0.0, force=True)
    bench.reader.commit(0.0, force=True)
    bench.emit()


def test_records_lost_within_a_replay_halt():
    bench = GatedBench(start=SKIP_LOSS)
    gated_records(bench, 6)
    bench.modes[ONE].lost = ReplayDiffers(ONE, 1, "offsets 0 to 8", "nothing")
    bench.fill(ONE, 20)
    bench.log.delete_before(ONE, 15)
    trouble(bench, OffsetOutOfRange(ONE, 6))
    assert isinstance(bench.loss_of(ONE), ReplayDiffers)
    assert bench.told.count(f"-{ONE}") == 1
    assert bench.reader.next_chunk(9.0) is None


def test_a_replay_that_differs_halts_the_partition_and_no_other():
    bench = GatedBench()
    bench.start()
    bench.modes[ONE].different = ReplayDiffers(ONE, 1, "offsets 0 to 6", "others")
    bench.fill(ONE, 2)
    bench.fill(TWO, 2)
    bench.reader.fetch(0.0, 0.0)
    bench.poll()
    assert isinstance(bench.loss_of(ONE), ReplayDiffers)
    assert bench.loss_of(TWO) is None
    assert [place for place, _manager in bench.reader.assignment.owned()] == [1]
    bench.reader.commit(1.0, force=True)
    assert bench.reader.offsets.is_done


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
