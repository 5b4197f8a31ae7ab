import numpy as np
import pytest

from partition.errors import ReplayDiffers
from partition.records import (
    DEAD_LETTERED,
    Chunk,
    OpenTransaction,
    Partition,
    Position,
    Range,
    Resumed,
    Transactions,
)
from tests.support.transactions import process, resume, store
from transactions.transaction import OutOfOrder, RangeDigest, TransactionPolicy

ORDERS = Partition("orders", 3)
POLICY = TransactionPolicy(records=10, plan_records=8, plan_seconds=0.5)
ROOM = 1000


def array(*offsets):
    return np.array(offsets, np.int64)


def offer(line, *offsets, epochs=()):
    lengths = array(*(offset % 5 for offset in offsets))
    line.on_fetched(Chunk(ORDERS, array(*offsets), [], epochs), lengths)


def digest_of(*offsets):
    digest = RangeDigest()
    digest.add(array(*offsets), array(*(offset % 5 for offset in offsets)))
    return digest.hex()


def covers(*offsets, first=None, leader_epoch=None):
    first = offsets[0] if first is None else first
    return Range(first, offsets[-1] + 1, len(offsets), digest_of(*offsets), leader_epoch)


def new_line(policy=POLICY, *, position=100, committed=0, **resumed):
    opened = resumed.pop("opened", ())
    transactions = Transactions(policy.kind, committed, opened)
    goes_on = Resumed(Position(position, 6), transactions, **resumed)
    return resume(ORDERS, goes_on, policy)


def take(line):
    """Let a group have the next one, and be committed; None: it is not ready."""
    found = line.ready()
    if found is None:
        return None
    line.grouped_to = found.txid
    line.take(found.txid)
    return found


def told(transaction):
    return transaction.txid, transaction.attempt, transaction.range


def plan(line, now=0.0, room=ROOM):
    """Plan what waits, and has waited long enough."""
    line.plan(now, room)
    line.plan(now + POLICY.plan_seconds, room)


def ranges(line):
    return [(each.txid, each.range.first, each.range.end) for each in line.to_store().open]


def run(line, *offsets, now=0.0):
    """Plan, store, emit and process records as a transaction of their own."""
    offer(line, *offsets)
    plan(line, now)
    store(line)
    line.on_emitted(len(offsets))
    process(line, *offsets)
    line.close()


def test_idle_partition_plans_at_once():
    line = new_line()
    line.plan(0.0, ROOM)
    assert line.to_store().first is None
    assert line.filling is None
    offer(line, 100, 101)
    line.plan(1.0, ROOM)
    assert ranges(line) == [(1, 100, 102)]
    assert (line.filling.count, line.filling.since) == (2, 1.0)
    assert line.to_store().first is not None


def test_records_are_planned_after_a_wait_or_when_many():
    line = new_line(TransactionPolicy(records=50, plan_records=8, plan_seconds=0.5))
    offer(line, 100)
    line.plan(1.0, ROOM)
    offer(line, 101)
    line.plan(1.2, ROOM)
    line.plan(1.6, ROOM)
    assert line.filling.count == 1
    line.plan(1.7, ROOM)
    assert (line.filling.count, line.filling.since) == (2, 1.0)
    offer(line, *range(102, 110))
    line.plan(1.7, ROOM)
    assert line.filling.count == 10


def test_chunk_that_does_not_fit_fills_the_transaction():
    line = new_line()
    offer(line, *range(100, 106))
    plan(line)
    assert not line.is_full(ROOM)
    offer(line, *range(106, 111))
    assert line.is_full(ROOM)
    plan(line, 9.0)
    assert ranges(line) == [(1, 100, 106)]
    line.close()
    assert line.filling is None
    assert not line.is_full(ROOM)
    plan(line, 9.0)
    assert ranges(line) == [(1, 100, 106), (2, 106, 111)]
    assert line.filling.count == 5


def test_chunk_above_the_limit_is_split_when_nothing_is_open():
    line = new_line()
    offer(line, 100, 101)
    offer(line, *range(102, 109))
    plan(line, room=6)
    assert ranges(line) == [(1, 100, 102)]
    assert line.is_full(6)
    line.close()
    plan(line, room=6)
    assert ranges(line) == [(1, 100, 102)]
    assert not line.accepts_more(6)
    store(line)
    line.on_emitted(2)
    plan(line, room=4)
    assert ranges(line) == [(1, 100, 102)]
    process(line, 100, 101)
    line.done(take(line).txid)
    assert line.accepts_more(6)
    plan(line, room=6)
    assert ranges(line) == [(2, 102, 108)]


def test_used_up_limit_stops_fetching():
    line = new_line(TransactionPolicy(records=100, plan_records=1))
    offer(line, *range(100, 104))
    assert line.accepts_more(4)
    plan(line, room=4)
    assert line.is_full(4)
    assert not line.accepts_more(4)


def test_range_has_the_leader_epoch_of_its_last_record():
    line = new_line()
    offer(line, 100, 101)
    plan(line)
    line.close()
    offer(line, 102, 103, epochs=((102, 7),))
    offer(line, 104, 105, epochs=((104, 8),))
    plan(line, 9.0)
    line.close()
    offer(line, 106)
    plan(line, 18.0)
    assert [each.range.leader_epoch for each in line.to_store().open] == [None, 8, 8]


def test_transactions_are_done_in_order_only():
    """Promise 14: transactions are committed in txid order.

    Storm 44: not before all of one is processed, nor before its commit was asked for.
    """
    line = new_line()
    offer(line, 100, 101)
    plan(line)
    line.close()
    store(line)
    line.on_emitted(2)
    process(line, 100)
    with pytest.raises(OutOfOrder):
        line.take(1)
    process(line, 101)
    run(line, 102, now=9.0)
    with pytest.raises(OutOfOrder):
        line.done(1)
    assert (take(line).txid, take(line).txid) == (1, 2)
    with pytest.raises(OutOfOrder):
        line.done(2)
    assert line.done(1) == covers(100, 101)
    assert line.committed == 1
    with pytest.raises(OutOfOrder):
        line.done(1)
    line.done(2)
    assert line.to_store() == Transactions("transactional", 2)


def test_record_processed_twice_is_an_error():
    line = new_line()
    offer(line, 100, 101)
    plan(line)
    store(line)
    line.on_emitted(1)
    process(line, 100)
    with pytest.raises(ValueError, match="one came twice"):
        process(line, 100)


OPEN = (
    OpenTransaction(5, 2, covers(100, 101, 104)),
    OpenTransaction(6, 1, covers(110, 111, first=105)),
)


def replay(*offsets, policy=POLICY):
    line = new_line(policy, committed=4, opened=OPEN)
    offer(line, *offsets)
    return line


def test_open_transaction_is_stored_in_its_next_attempt_first():
    """Storm 41: attempts grow over restarts."""
    line = replay(100, 101, 104)
    assert line.open_to == 100
    assert line.to_store().first == 100
    assert line.is_due
    assert [(each.txid, each.attempt, each.range) for each in line.to_store().open] == [
        (5, 3, OPEN[0].range),
        (6, 2, OPEN[1].range),
    ]
    assert (line.transaction_of(5).attempt, line.transaction_of(6).attempt) == (3, 2)
    store(line, Transactions("transactional", 4, OPEN))
    assert line.open_to == 100
    store(line)
    assert line.open_to == 112
    assert line.ends_at == 105
    with pytest.raises(KeyError):
        line.transaction_of(7)


@pytest.mark.parametrize(
    ("offsets", "count"),
    [((100, 101, 105), 2), ((100, 101, 102), 3), ((100, 101, 102, 104), 4)],
    ids=["one is missing", "another one", "one more"],
)
def test_replay_of_other_records_is_an_error_and_never_ready(offsets, count):
    """Storm 14: a batch that is read again is whole, or it fails."""
    line = replay(*offsets)
    error = line.replay_error(log_moved=False)
    assert isinstance(error, ReplayDiffers)
    assert line.replay_error(log_moved=True) is error
    assert error.txid == 5
    assert "orders[3] transaction 5 was of offsets 100 to 105 (3 records), digest" in str(error)
    assert error.found.startswith(f"the log now gives offsets 100 to 105 ({count} records), digest")
    store(line)
    line.on_emitted(count)
    process(line, *offsets)
    assert line.ready() is None
    offer(line, 200)
    plan(line, 9.0)
    assert len(line.to_store().open) == 2


def test_grouped_transaction_is_committed_though_the_next_replay_differs():
    """Its dead letter is durable only after that was found."""
    line = replay(100, 101, 104)
    store(line)
    line.on_emitted(3)
    process(line, 100, 101, 104)
    line.grouped_to = 5
    assert line.awaits(101)
    offer(line, 110, 113)
    assert line.replay_error(log_moved=False).txid == 6
    line.processed(array(101), np.array([DEAD_LETTERED], np.uint8))
    line.take(5)


def test_replay_written_by_a_later_leader_is_an_error():
    """Storm 14. Simulated seed 3057: the log was cut off before it, and written anew."""
    opened = (OpenTransaction(5, 2, covers(100, 101, 104, leader_epoch=7)),)
    line = new_line(committed=4, opened=opened)
    offer(line, 100, 101, epochs=((100, 7),))
    offer(line, 104, epochs=((104, 8),))
    assert line.replay_error(log_moved=False).expected.endswith(" under leader epoch 7")
    assert line.replay_error(log_moved=False).found.endswith(" under leader epoch 8")
    assert line.replay_error(log_moved=True) is line.replay_error(log_moved=False)


@pytest.mark.parametrize(
    ("sealed_by", "led_by"), [(7, 6), (None, 8), (5, None)], ids=["earlier", "unsealed", "unknown"]
)
def test_replay_is_the_same_unless_a_later_leader_wrote_it(sealed_by, led_by):
    """A range planned by the spark engine knows the leader of that time."""
    opened = (OpenTransaction(5, 2, covers(100, 101, leader_epoch=sealed_by)),)
    line = new_line(committed=4, opened=opened)
    offer(line, 100, 101, 102, epochs=() if led_by is None else ((100, led_by), (102, 9)))
    assert line.replay_error(log_moved=False) is None


def test_replay_without_its_last_record_is_an_error_at_log_end():
    """Storm 14."""
    line = replay(100, 101)
    line.on_log_end(104)
    assert line.replay_error(log_moved=False) is None
    line.on_log_end(112)
    assert line.replay_error(log_moved=False).txid == 5


def test_moved_log_is_an_error_until_the_replay_is_whole():
    line = replay(100, 101, 104, 110)
    assert line.replay_error(log_moved=False) is None
    assert line.replay_error(log_moved=True) is None, "the lowest needs nothing more of it"
    store(line)
    line.on_emitted(3)
    process(line, 100, 101, 104)
    line.done(take(line).txid)
    assert line.replay_error(log_moved=True).txid == 6
    offer(line, 111)
    assert line.replay_error(log_moved=True) is None
    assert new_line().replay_error(log_moved=True) is None


# After the spark engine, which plans ranges before it reads them

PLANNED = (OpenTransaction(5, 2, Range(100, 110)), OpenTransaction(6, 1, Range(110, 120)))


def replay_planned(*offsets, opened=PLANNED):
    line = new_line(committed=4, opened=opened)
    offer(line, *offsets, epochs=((100, 7),))
    store(line)
    return line


def test_log_end_seals_planned_ranges():
    line = replay_planned()
    assert line.ends_at == 110
    assert line.replay_error(log_moved=True) is not None, "its records are still to come"
    assert not line.awaits_commit
    line.on_log_end(120)
    assert line.awaits_commit
    assert line.replay_error(log_moved=True) is None
    first, second = line.to_store().open
    assert (first.range.count, second.range.count) == (0, 0)
    assert line.to_store().checked(100)
    store(line)
    assert (take(line).txid, take(line).txid) == (5, 6)
    assert line.done(5).end == 110
    assert line.done(6).end == 120
    assert not line.awaits_commit


@pytest.mark.parametrize(("planned", "sealed"), [(None, 7), (6, 7), (7, 7), (8, 8)])
def test_seal_has_the_latest_known_leader_epoch(planned, sealed):
    """Of the record before its end; where none is, of who told its end: a gap may be its."""
    line = replay_planned(
        100, opened=(OpenTransaction(5, 2, Range(100, 110, None, None, planned)),)
    )
    line.on_log_end(110)
    assert line.to_store().open[0].range.leader_epoch == sealed


def test_empty_replay_is_ready_once_the_log_shows_it():
    empty = (OpenTransaction(5, 2, Range(100, 110, 0, RangeDigest().hex())),)
    line = replay_planned(opened=empty)
    assert line.ready() is None
    assert not line.awaits_commit
    offer(line, 111)
    assert take(line).txid == 5
    differing = replay_planned(105, opened=empty)
    assert isinstance(differing.replay_error(log_moved=False), ReplayDiffers)
    assert differing.ready() is None
