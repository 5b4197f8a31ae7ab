"""The PartitionManager exactly once: only what lies in a stored transaction is emitted."""

import random

import numpy as np
import pytest

from partition.chunk import Chunk, Partition
from partition.manager import PartitionManager, Window
from partition.position import Position
from partition.retries import RetryPolicy
from partition.transaction import Resumed, Transactions
from tests.worlds.gating import FakeGate

FLIGHTS = Partition("flights", 0)


def manager(position=0, **window):
    start = Position(position, leader_epoch=7, topic_id="id")
    return PartitionManager(
        FLIGHTS,
        start,
        window=Window(**window),
        retry_policy=RetryPolicy(limit=5, initial_seconds=1, jitter=0),
        rng=random.Random(1),
        make_gate=lambda _partition, resumed, room: FakeGate(resumed, room),
        resumed=Resumed(start, Transactions("transactional")),
    )


def chunk(*offsets, size=10, epochs=()):
    messages = [b"x" * size for _ in offsets]
    return Chunk(FLIGHTS, np.array(offsets, np.int64), messages, epochs)


def emit(partition, limit=100):
    given = partition.next(0.0, limit)
    return [] if given is None else given.offsets.tolist()


def store(partition):
    """Store what is to be stored, as `Commits` does."""
    position, transactions = partition.submit(), partition.gate.to_store()
    transactions.checked(position.offset)
    partition.gate.stored(transactions)
    partition.mark_committed(position.offset)
    return position


def commit(partition):
    """Let every sink have the lowest transaction."""
    end = partition.gate.transactions.open[0].range.end
    partition.gate.done()
    return partition.resolve_to(end)


def test_the_gate_hears_of_records_that_are_new_and_of_no_others():
    partition = manager()
    partition.offer(chunk(0, 1, size=3, epochs=((0, 7),)), 0.0)
    partition.offer(chunk(0, 1, 4, size=5, epochs=((4, 8),)), 0.0)
    partition.offer(chunk(0, 1, 4), 0.0)
    partition.reached(9)
    assert partition.gate.heard == [([0, 1], [3, 3], ((0, 7),)), ([4], [5], ((4, 8),)), 9]


def test_nothing_is_emitted_before_its_transaction_is_stored():
    partition = manager()
    partition.offer(chunk(0, 1, 2, 3), 0.0)
    assert emit(partition) == []
    partition.gate.plan(3)
    assert partition.should_commit
    assert emit(partition) == []
    store(partition)
    assert not partition.should_commit
    assert emit(partition, 2) == [0, 1]
    assert emit(partition) == [2]
    assert emit(partition) == []
    assert partition.gate.heard[1:] == ["emitted 2", "emitted 1"]


def test_no_chunk_reaches_beyond_the_end_of_a_transaction():
    partition = manager()
    partition.offer(chunk(0, 1, 2, 3, 4), 0.0)
    partition.gate.plan(2, 5)
    store(partition)
    partition.gate.cut = 2
    assert emit(partition) == [0, 1]
    partition.gate.cut = 5
    assert emit(partition) == [2, 3, 4]


def test_the_offset_to_store_is_where_the_lowest_open_transaction_begins():
    """Promise 2: it moves when a transaction is committed in every sink, and not before."""
    partition = manager(10)
    partition.offer(chunk(10, 11, 12, 13, 14, epochs=((10, 8), (13, 9))), 0.0)
    partition.gate.plan(12, 14)
    assert store(partition) == Position(10, 7, "id")
    emit(partition)
    assert partition.storable == 10
    assert commit(partition) == 2
    assert store(partition) == Position(12, 8, "id")
    assert commit(partition) == 2
    assert store(partition) == Position(14, 9, "id")
    assert partition.frontier == 14


def test_a_transaction_behind_a_gap_begins_where_the_last_one_ends():
    partition = manager()
    partition.offer(chunk(0, 1, epochs=((0, 8),)), 0.0)
    partition.offer(chunk(50, 51), 0.0)
    partition.gate.plan(2, 52)
    store(partition)
    emit(partition)
    commit(partition)
    assert partition.frontier == 50
    assert store(partition) == Position(2, 8, "id")


def test_a_gap_at_the_log_s_end_is_stored_when_nothing_is_open():
    """Promise 11."""
    partition = manager()
    partition.offer(chunk(0, 1), 0.0)
    partition.gate.plan(2)
    store(partition)
    emit(partition)
    partition.reached(7)
    assert partition.storable == 0
    commit(partition)
    assert partition.storable == 7


def test_a_committed_transaction_takes_payloads_and_retries_with_it():
    partition = manager()
    partition.offer(chunk(0, 1, size=100), 0.0)
    partition.gate.plan(2)
    store(partition)
    emit(partition)
    assert partition.fail(0, 0.0)
    assert commit(partition) == 2
    assert partition.is_idle
    assert partition.statistics(9.0).pending_bytes == 0
    given = partition.next(5.0, 10)
    assert given is None or not len(given)


def test_a_retry_is_emitted_whether_the_gate_is_shut_or_not():
    """Promise 10: retries are exempt from the limit."""
    partition = manager()
    partition.offer(chunk(0, 1), 0.0)
    partition.gate.plan(1)
    store(partition)
    emit(partition)
    partition.fail(0, 0.0)
    partition.gate.is_shut = True
    assert partition.next(1.0, 10).offsets.tolist() == [0]


def test_the_gate_is_told_how_many_records_have_room():
    partition = manager(max_pending=10)
    room = partition.gate.room
    partition.offer(chunk(*range(20)), 0.0)
    assert room() == 10
    partition.gate.plan(4)
    store(partition)
    assert room() == 10  # what is planned and not emitted is the gate's to count
    emit(partition)
    assert room() == 6
    commit(partition)
    assert room() == 6  # the window reaches from what is stored
    store(partition)
    assert room() == 10


def test_there_is_no_room_once_the_bytes_are_used_up_and_something_is_in_flight():
    partition = manager(max_pending_bytes=50)
    partition.offer(chunk(*range(10)), 0.0)
    assert partition.gate.room() > 0
    assert partition.has_enough(1000)
    partition.gate.plan(1)
    store(partition)
    emit(partition)
    assert partition.gate.room() == 0


def test_what_is_planned_is_emitted_though_the_window_is_used_up():
    """Or a transaction that is replayed and larger than the window could never end."""
    partition = manager(max_pending=3)
    partition.offer(chunk(*range(8)), 0.0)
    partition.gate.plan(8)
    store(partition)
    assert emit(partition) == list(range(8))
    assert partition.gate.room() == 0


def test_a_partition_is_full_when_its_gate_is_shut_and_nothing_that_is_planned_waits():
    partition = manager()
    partition.offer(chunk(0, 1, 2, 3), 0.0)
    partition.gate.plan(2)
    partition.gate.is_shut = True
    assert partition.is_full
    assert not partition.takes_more
    store(partition)
    assert not partition.is_full
    emit(partition)
    assert partition.is_full
    partition.gate.is_shut = False
    assert not partition.is_full
    assert partition.takes_more


def test_a_drain_emits_what_is_planned_and_nothing_else():
    partition = manager()
    partition.offer(chunk(0, 1, 2, 3), 0.0)
    assert not partition.has_stored_waiting
    partition.gate.plan(2)
    assert partition.has_stored_waiting
    store(partition)
    assert partition.has_stored_waiting
    emit(partition)
    assert not partition.has_stored_waiting


def test_chunks_are_foreseen_before_they_are_planned_but_those_that_are_cut():
    partition = manager()
    chunks = [chunk(0, 1), chunk(2, 3), chunk(4, 5)]
    for each in chunks:
        partition.offer(each, 0.0)
    assert [each.messages for each in partition.upcoming(10)] == [c.messages for c in chunks]
    partition.gate.plan(3)
    store(partition)
    partition.gate.is_shut = True
    foreseen = [id(each.messages) for each in partition.upcoming(10)]
    assert foreseen == [id(chunks[0].messages), id(chunks[2].messages)]
    assert emit(partition) == [0, 1]
    assert emit(partition) == [2]
    assert [id(each.messages) for each in partition.upcoming(10)] == [id(chunks[2].messages)]


def test_a_log_that_goes_on_elsewhere_has_a_new_gate_and_the_numbers_go_on():
    partition = manager()
    partition.offer(chunk(0, 1), 0.0)
    partition.gate.plan(2)
    store(partition)
    emit(partition)
    commit(partition)
    before = partition.gate
    start = Position(100, 8, "id")
    partition.restart(start, stored=True, resumed=before.resumed_at(start))
    assert partition.gate is not before
    assert partition.gate.to_store() == Transactions("transactional", committed=1)
    partition.offer(chunk(100, 101), 0.0)
    partition.gate.plan(102)
    assert store(partition).offset == 100
    assert emit(partition) == [100, 101]


def test_without_a_stored_transaction_the_interval_is_enough():
    partition = manager(max_pending=10)
    partition.offer(chunk(*range(4)), 0.0)
    partition.gate.plan(4)
    store(partition)
    emit(partition)
    commit(partition)
    assert partition.gate.has_to_store
    assert not partition.should_commit


def test_half_a_window_that_is_not_stored_should_be():
    partition = manager(max_pending=8)
    partition.offer(chunk(*range(4)), 0.0)
    partition.gate.plan(4)
    store(partition)
    emit(partition)
    assert not partition.should_commit
    commit(partition)
    assert partition.should_commit


# What executors read


def test_what_is_done_elsewhere_moves_the_frontier_and_counts_as_read():
    partition = manager(100)
    partition.passed(100, 160, 40, 9)
    assert (partition.frontier, partition.emitted_to) == (160, 160)
    assert partition.statistics(0.0).read == 40
    assert partition.uncommitted == 40
    assert store(partition) == Position(160, 9, "id")
    assert (partition.committed, partition.uncommitted) == (160, 0)
    partition.passed(160, 170, 0, None)
    assert partition.position == Position(170, 9, "id")
    assert partition.is_idle


def test_only_the_next_offsets_can_be_passed_and_nothing_may_be_in_flight():
    partition = manager(100)
    for first, end in ((99, 110), (101, 110), (100, 99)):
        with pytest.raises(ValueError, match="cannot be passed"):
            partition.passed(first, end, 1, None)
    partition.offer(chunk(100), 0.0)
    with pytest.raises(ValueError, match="1 records are pending, 101 is next"):
        partition.passed(101, 110, 1, None)


def test_a_partition_is_not_idle_while_what_others_have_read_awaits_its_commit():
    partition = manager()
    assert partition.is_idle
    partition.gate.awaits_commit = True
    assert not partition.is_idle
