from functools import partial

import pytest

from partition.errors import Fenced, OffsetOutOfRange, ReplayDiffers, SinkAhead, StoreBehind
from partition.records import Range, Resumed, Transactions
from partition.recovery import StartPolicy
from tests.support.consumer import ONE, SKIP_LOSS, TWO, GatedBench
from transactions.partition_transactions import PartitionTransactions, TransactionPolicy
from transactions.transaction import resumed


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
    bench.successor()
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


def test_records_lost_within_a_replay_halt():
    bench = GatedBench(start=SKIP_LOSS)
    bench.fill(ONE, 6)
    bench.start()
    bench.reader.fetch(0.0, 0.0)
    bench.modes[ONE].plan(6)
    bench.commit()
    bench.emit()
    bench.modes[ONE].lost = ReplayDiffers(ONE, 1, "offsets 0 to 8", "nothing")
    bench.fill(ONE, 20)
    bench.log.delete_before(ONE, 15)
    bench.reader.assignment.fail(ONE, OffsetOutOfRange(ONE, 6))
    bench.poll()
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


@pytest.mark.parametrize("is_running", [True, False])
def test_unread_ranges_are_planned_again_after_a_loss(is_running):
    """Promise 12: as records that were not read here, by policy."""

    def new_delivery(partition, *facts):
        made = PartitionTransactions(partition, *facts, TransactionPolicy(by_executors=True))
        bench.modes[partition] = made
        return made

    bench = GatedBench(start=SKIP_LOSS, assignment={"delivery": new_delivery})
    bench.fencing.resumes = partial(resumed, kind="transactional")
    bench.fill(ONE, 10)
    bench.start()
    before = bench.modes[ONE]
    before.begin(6)
    before.begin(9)
    bench.commit()
    bench.fill(ONE, 20)
    bench.log.delete_before(ONE, 15)
    if is_running:
        bench.reader.assignment.fail(ONE, OffsetOutOfRange(ONE, 0))
        bench.poll()
    else:
        bench.restart()
    line = bench.modes[ONE]
    assert line is not before
    assert bench.reasons() == [("expired", 0, 15)]
    assert bench.stored() == 15
    assert line.planned_to == 15
    line.begin(20)
    bench.commit()
    [found] = bench.store.load(ONE).transactions.open
    assert (found.txid, found.attempt, found.range) == (1, 2, Range(15, 20))
