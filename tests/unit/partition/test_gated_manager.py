"""The PartitionManager exactly once: only what lies in a stored transaction is emitted."""

import random

import numpy as np
import pytest

from partition.ledger import RetryPolicy
from partition.manager import InFlightLimits, PartitionManager
from partition.records import Chunk, Partition, Position, Range, Resumed, Transactions
from tests.support.consumer import FakeDelivery

FLIGHTS = Partition("flights", 0)


def manager(position=0, **window):
    start = Position(position, leader_epoch=7, topic_id="id")
    return PartitionManager(
        FLIGHTS,
        start,
        InFlightLimits(**window),
        RetryPolicy(limit=5, initial_seconds=1, jitter=0),
        random.Random(1),
        lambda _partition, *facts: FakeDelivery(*facts, plan_records=100),
        Resumed(start, Transactions("transactional")),
    )


def chunk(*offsets, size=10, epochs=()):
    messages = [b"x" * size for _ in offsets]
    return Chunk(FLIGHTS, np.array(offsets, np.int64), messages, epochs)


def emit(partition, limit=100):
    given = partition.next_chunk(0.0, limit)
    return [] if given is None else given.offsets.tolist()


def store(partition):
    """Store what is to be stored, as `Commits` does."""
    progress = partition.progress()
    progress.transactions.checked(progress.position.offset)
    partition.stored(progress)
    return progress.position


def commit(partition):
    """Let every sink have the lowest transaction."""
    end = partition.delivery.transactions.open[0].range.end
    partition.delivery.done()
    return partition.resolve_below(end)


def test_no_chunk_reaches_beyond_the_end_of_a_transaction():
    partition = manager()
    partition.fetched(chunk(0, 1, 2, 3, 4), 0.0)
    partition.delivery.plan(2, 5)
    store(partition)
    partition.delivery.cut = 2
    assert emit(partition) == [0, 1]
    partition.delivery.cut = 5
    assert emit(partition) == [2, 3, 4]


def test_commit_drops_payloads_and_retries():
    partition = manager()
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
    partition = manager()
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


# What executors read


def test_passed_range_counts_as_read():
    partition = manager(100)
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
    partition = manager(100)
    for first, end in ((99, 110), (101, 110), (100, 99)):
        with pytest.raises(ValueError, match="cannot be passed"):
            partition.passed(Range(first, end, 1))
    partition.fetched(chunk(100), 0.0)
    with pytest.raises(ValueError, match="1 records are pending, 101 is next"):
        partition.passed(Range(101, 110, 1))
