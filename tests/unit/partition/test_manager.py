import random

import numpy as np
import pytest

from partition.delivery import AtLeastOnce, CommitBeforeEmit
from partition.ledger import RetryPolicy
from partition.manager import Allowance, InFlightLimits, PartitionManager
from partition.records import Chunk, Partition, Position, Range, Resumed, Transactions
from tests.support.consumer import FakeDelivery

FLIGHTS = Partition("flights", 0)


def manager(position=0, delivery=AtLeastOnce, **window):
    start = Position(position, leader_epoch=7, topic_id="id")
    return PartitionManager(
        FLIGHTS,
        start,
        InFlightLimits(**window),
        RetryPolicy(limit=2, initial_seconds=1, jitter=0),
        random.Random(1),
        delivery,
        Resumed(start, Transactions("transactional")),
    )


def gated(position=0):
    """Exactly once, where the test says what is planned."""
    return manager(position, lambda *facts: FakeDelivery(*facts, plan_records=100))


def chunk(*offsets, size=10, epochs=()):
    return Chunk(FLIGHTS, np.array(offsets, np.int64), [b"x" * size for _ in offsets], epochs)


def offsets(*numbers):
    return np.array(numbers, np.int64)


def test_a_due_retry_comes_before_new_records_and_from_memory():
    partition = manager()
    messages = [b"a", b"b"]
    partition.fetched(Chunk(FLIGHTS, offsets(0, 1), messages), 0.0)
    partition.next_chunk(0, 1)
    partition.fail(0, now=0)
    assert partition.next_chunk(0.5, 10).offsets.tolist() == [1]
    again = partition.next_chunk(1, 10)
    assert again.offsets.tolist() == [0]
    assert again.messages[0] is messages[0]
    assert partition.statistics(0.0).retried == 1


def test_byte_limit_lets_one_larger_record_pass():
    partition = manager(max_pending_bytes=50)
    partition.fetched(chunk(0, size=100), 0.0)
    partition.fetched(chunk(1, size=100), 0.0)
    assert partition.next_chunk(0, 10).offsets.tolist() == [0]
    assert partition.next_chunk(0, 10) is None
    partition.ack(offsets(0))
    assert partition.next_chunk(0, 10).offsets.tolist() == [1]


def test_a_fail_of_a_record_not_in_flight_changes_nothing():
    """Promise 5: a late fail after the ack is counted and ignored."""
    partition = manager()
    partition.fetched(chunk(0), 0.0)
    partition.next_chunk(0, 1)
    partition.ack(offsets(0))
    assert partition.fail(0, now=0)
    assert partition.retries.due is None
    assert partition.statistics(0.0).ledger.ignored == 1


def test_position_carries_the_previous_leader_epoch():
    """Kafka's KIP-101: an offset is checked with the epoch of the record that was read last."""
    partition = manager()
    assert partition.position == Position(0, 7, "id")
    partition.fetched(chunk(*range(5), epochs=((0, 7), (2, 9))), 0.0)
    partition.fetched(chunk(5, 6, 7, epochs=((5, 9), (7, 12))), 0.0)
    emit(partition)
    emit(partition)
    assert partition.position == Position(0, 7, "id")
    for acked, epoch in enumerate((7, 7, 9, 9, 9, 9, 9, 12)):
        partition.ack(offsets(acked))
        assert partition.position == Position(acked + 1, epoch, "id")


@pytest.mark.parametrize(
    ("payloads", "unusual"),
    [([b"x", b"yy"], False), ([b"x", b""], True), ([b"x", b"y" * 101], True)],
)
def test_a_chunk_with_an_empty_or_a_large_payload_is_marked(payloads, unusual):
    partition = manager(max_record_bytes=100)
    partition.fetched(Chunk(FLIGHTS, offsets(0, 1), payloads), 0.0)
    assert partition.next_chunk(0, 1).unusual is unusual
    assert partition.next_chunk(0, 1).unusual is unusual


def ahead_manager(position=0):
    """At most once; what it may store before it emits it is said with each emission."""
    partition = manager(position, CommitBeforeEmit)
    assert emit(partition, 0) == []
    return partition


def store(partition):
    """Store what is to be stored, as the committer does."""
    progress = partition.progress()
    if progress.transactions is not None:
        progress.transactions.checked(progress.position.offset)
    partition.stored(progress)
    return progress.position


def emit(partition, limit=100, ahead=100):
    given = partition.next_chunk(0.0, limit, Allowance(ahead=ahead))
    return [] if given is None else given.offsets.tolist()


def test_a_commit_from_before_a_restart_lets_nothing_be_emitted():
    partition = ahead_manager(4)
    partition.fetched(chunk(4, 5, 6), 0.0)
    progress = partition.progress()
    partition.restart(Position(0))
    partition.fetched(chunk(*range(10)), 0.0)
    partition.stored(progress)
    assert partition.committed == 0
    assert emit(partition) == []
    assert store(partition).offset == 10
    assert len(emit(partition)) == 10


def test_at_most_once_foresees_nothing():
    partition = ahead_manager()
    partition.fetched(chunk(0, 1), 0.0)
    store(partition)
    assert partition.upcoming(100) == []
    assert emit(partition) == [0, 1]


# Exactly once: only what lies in a stored transaction is emitted


def commit(partition):
    """Let every sink have the lowest transaction."""
    end = partition.delivery.transactions.open[0].range.end
    partition.delivery.done()
    return partition.resolve_below(end)


def test_commit_drops_payloads_and_retries():
    partition = gated()
    partition.fetched(chunk(0, 1, size=100), 0.0)
    partition.delivery.plan(2)
    store(partition)
    emit(partition)
    assert partition.fail(0, 0.0)
    assert commit(partition) == 2
    assert partition.is_idle
    assert partition.statistics(9.0).pending_bytes == 0
    given = partition.next_chunk(5.0, 10)
    assert given is None or not len(given)


def test_restart_makes_a_new_mode_and_keeps_counts():
    partition = gated()
    partition.fetched(chunk(0, 1), 0.0)
    partition.delivery.plan(2)
    store(partition)
    emit(partition)
    commit(partition)
    before = partition.delivery
    start = Position(100, 8, "id")
    partition.restart(start, is_stored=True, resumed=before.resume_state(start))
    assert partition.delivery is not before
    assert partition.delivery.transactions == Transactions("transactional", committed=1)
    partition.fetched(chunk(100, 101), 0.0)
    partition.delivery.plan(102)
    assert store(partition).offset == 100
    assert emit(partition) == [100, 101]


def test_passed_range_counts_as_read():
    partition = gated(100)
    partition.passed(Range(100, 160, 40, leader_epoch=9))
    assert (partition.last_completed_offset, partition.ledger.emitted_to) == (160, 160)
    assert partition.statistics(0.0).read == 40
    assert partition.delivery.in_flight() == 40
    assert store(partition) == Position(160, 9, "id")
    assert (partition.committed, partition.delivery.in_flight()) == (160, 0)
    partition.passed(Range(160, 170, 0))
    assert partition.position == Position(170, 9, "id")
    assert partition.is_idle


def test_pass_is_rejected_out_of_order_or_in_flight():
    partition = gated(100)
    for first, end in ((99, 110), (101, 110), (100, 99)):
        with pytest.raises(ValueError, match="cannot be passed"):
            partition.passed(Range(first, end, 1))
    partition.fetched(chunk(100), 0.0)
    with pytest.raises(ValueError, match="1 records are pending, 101 is next"):
        partition.passed(Range(101, 110, 1))
