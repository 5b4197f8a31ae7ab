"""The reader with real lines: everything flows, whatever is shut meanwhile, and over restarts."""

import random
from itertools import pairwise

import numpy as np
import pytest

from partition.manager import InFlightLimits
from partition.records import Resumed, offsets_of, partition_indexes_of
from tests.support.consumer import ONE, TWO, GatedBench
from tests.support.transactions import process
from transactions.groups import GroupMember, GroupPhase, TransactionGroups
from transactions.partition_transactions import PartitionTransactions
from transactions.transaction import TransactionPolicy, resumed


class LinedBench(GatedBench):
    """A bench with real lines and one sink, that has what `table` says."""

    def __init__(self, kind="transactional", window=200, **policy):
        self.line_policy = TransactionPolicy(kind=kind, records=60, plan_records=20)
        self.table = {}  # by partition: its rows by txid
        super().__init__(
            assignment={"limits": InFlightLimits(max_pending=window)},
            fetch_records=10,
            chunk_records=8,
            plan_records=20,
            **policy,
        )
        self.fencing.resumes = self.resume
        self.emitted = {}  # by (place, offset): times

    def new_delivery(self, partition, ledger, progress, resumed):
        """Make a line."""
        assert isinstance(resumed, Resumed)
        self.modes[partition] = PartitionTransactions(
            partition, ledger, progress, resumed, self.line_policy
        )
        return self.modes[partition]

    def resume(self, partition, stored, _committed):
        has = {"table": max(self.table.get(partition, {0: None}))}
        return resumed(partition, stored, has, self.line_policy.kind)

    def turn(self, now, *, commits=True):
        """One turn as the pipeline does it; True if anything was emitted."""
        self.reader.poll(now)
        emission = self.reader.next_chunk(now)
        if emission is None and self.reader.fetch(now, 0.0):
            emission = self.reader.next_chunk(now)
        if emission is not None:
            _chunk, owners = emission
            for place in np.unique(partition_indexes_of(owners)).tolist():
                line = dict(self.reader.assignment.owned())[place].delivery
                process(line, *offsets_of(owners[partition_indexes_of(owners) == place]))
        for place, manager in self.reader.assignment.owned():
            line = manager.delivery
            line.plan(now, manager.room)
            line.close()
            while commits and (ready := line.ready()) is not None:
                groups = TransactionGroups(1)
                groups.plan([GroupMember(place, line, ready.txid)], GroupPhase.PROCESSED)
                assert groups.next_commit() is groups.lowest
                rows = self.table.setdefault(line.partition, {})
                assert ready.txid not in rows
                rows[ready.txid] = ready.range
                groups.done(1)
                self.reader.resolve_below(place, ready.range.end)
        self.reader.commit(now)
        return emission is not None

    def rows(self, partition):
        """How many records are in the table."""
        ranges = [each for _txid, each in sorted(self.table.get(partition, {}).items())]
        assert all(a.end <= b.first for a, b in pairwise(ranges))
        return sum(each.count for each in ranges)


def waiting(bench):
    return sum(part.ledger.waiting for part in bench.reader.statistics(0.0))


@pytest.mark.parametrize("away", ["nothing", "the sink", "the store"])
def test_waiting_records_stay_bounded_and_all_flow_afterwards(away):
    """Promises 10 and 15."""
    bench = LinedBench()
    bench.fill(ONE, 1000)
    bench.fill(TWO, 300)
    bench.start()
    bench.nodes.away = away == "the store"
    most = 0
    for turns in range(500):
        bench.turn(turns * 0.005, commits=away != "the sink")
        most = max(most, waiting(bench))
    bench.nodes.away = False
    for turns in range(500, 3000):
        bench.turn(turns * 0.005)
    assert most <= 150
    assert (bench.rows(ONE), bench.rows(TWO)) == (1000, 300)
    assert (bench.stored(ONE), bench.stored(TWO)) == (1000, 300)


@pytest.mark.parametrize("kind", ["transactional", "opaque"])
@pytest.mark.parametrize("seed", range(6))
def test_restarts_leave_each_record_in_one_transaction(kind, seed):
    """Storm 39: under one txid come the same records, or under opaque others nobody has."""
    rng = random.Random(seed)
    bench = LinedBench(kind)
    bench.fill(ONE, 700)
    bench.start()
    now = 0.0
    for _ in range(15):
        for _ in range(rng.randrange(1, 60)):
            now += 0.005
            bench.turn(now, commits=rng.random() < 0.3)
        bench.reader.close()
        bench.reader = bench.another()
        bench.start(now)
        assert not bench.reader.assignment.halted
    for _ in range(1500):
        now += 0.005
        bench.turn(now)
    assert bench.rows(ONE) == 700
    assert sorted(bench.table[ONE]) == list(range(1, len(bench.table[ONE]) + 1))
