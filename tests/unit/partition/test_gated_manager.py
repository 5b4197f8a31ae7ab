"""The PartitionManager exactly once: only what lies in a stored transaction is emitted."""

import random

import numpy as np
import pytest

from partition.manager import InFlightLimits, PartitionManager
from partition.records import Chunk, Partition, Position, Range, Resumed, Transactions
from partition.retry import RetryPolicy
from tests.worlds.gating import FakeDelivery

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


def test_the_mode_hears_of_records_that_are_new_and_of_no_others():
    partition = manager()
    partition.fetched(chunk(0, 1, size=3, epochs=((0, 7),)), 0.0)
    partition.fetched(chunk(0, 1, 4, size=5, epochs=((4, 8),)), 0.0)
    partition.fetched(chunk(0, 1, 4), 0.0)
    partition.log_end(9)
    assert partition.delivery.heard == [([0, 1], [3, 3], ((0, 7),)), ([4], [5], ((4, 8),)), 9]


def test_nothing_is_emitted_before_its_transaction_is_stored():
    partition = manager()
    partition.fetched(chunk(0, 1, 2, 3), 0.0)
    assert emit(partition) == []
    partition.delivery.plan(3)
    assert partition.is_urgent
    assert emit(partition) == []
    store(partition)
    assert not partition.is_urgent
    assert emit(partition, 2) == [0, 1]
    assert emit(partition) == [2]
    assert emit(partition) == []
    assert partition.delivery.heard[1:] == ["emitted 2", "emitted 1"]


def test_no_chunk_reaches_beyond_the_end_of_a_transaction():
    partition = manager()
    partition.fetched(chunk(0, 1, 2, 3, 4), 0.0)
    partition.delivery.plan(2, 5)
    store(partition)
    partition.delivery.cut = 2
    assert emit(partition) == [0, 1]
    partition.delivery.cut = 5
    assert emit(partition) == [2, 3, 4]


def test_the_offset_to_store_is_where_the_lowest_open_transaction_begins():
    """Promise 2: it moves when a transaction is committed in every sink, and not before."""
    partition = manager(10)
    partition.fetched(chunk(10, 11, 12, 13, 14, epochs=((10, 8), (13, 9))), 0.0)
    partition.delivery.plan(12, 14)
    assert store(partition) == Position(10, 7, "id")
    emit(partition)
    assert partition.position.offset == 10
    assert commit(partition) == 2
    assert store(partition) == Position(12, 8, "id")
    assert commit(partition) == 2
    assert store(partition) == Position(14, 9, "id")
    assert partition.last_completed_offset == 14


def test_a_transaction_behind_a_gap_begins_where_the_last_one_ends():
    partition = manager()
    partition.fetched(chunk(0, 1, epochs=((0, 8),)), 0.0)
    partition.fetched(chunk(50, 51), 0.0)
    partition.delivery.plan(2, 52)
    store(partition)
    emit(partition)
    commit(partition)
    assert partition.last_completed_offset == 50
    assert store(partition) == Position(2, 8, "id")


def test_a_gap_at_the_log_s_end_is_stored_when_nothing_is_open():
    """Promise 11."""
    partition = manager()
    partition.fetched(chunk(0, 1), 0.0)
    partition.delivery.plan(2)
    store(partition)
    emit(partition)
    partition.log_end(7)
    assert partition.position.offset == 0
    commit(partition)
    assert partition.position.offset == 7


def test_a_committed_transaction_takes_payloads_and_retries_with_it():
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


def test_a_retry_is_emitted_whether_more_may_be_planned_or_not():
    """Promise 10: retries are exempt from the limit."""
    partition = manager()
    partition.fetched(chunk(0, 1), 0.0)
    partition.delivery.plan(1)
    store(partition)
    emit(partition)
    partition.fail(0, 0.0)
    partition.delivery.is_shut = True
    assert partition.next_chunk(1.0, 10).offsets.tolist() == [0]


def test_the_mode_is_told_how_many_records_have_room():
    partition = manager(max_pending=10)
    partition.fetched(chunk(*range(20)), 0.0)
    assert partition.room == 10
    partition.delivery.plan(4)
    store(partition)
    assert partition.room == 10  # what is planned and not emitted is the mode's to count
    emit(partition)
    assert partition.room == 6
    commit(partition)
    assert partition.room == 6  # the window reaches from what is stored
    store(partition)
    assert partition.room == 10


def test_there_is_no_room_once_the_bytes_are_used_up_and_something_is_in_flight():
    partition = manager(max_pending_bytes=50)
    partition.fetched(chunk(*range(10)), 0.0)
    assert partition.room > 0
    assert partition.has_enough(1000)
    partition.delivery.plan(1)
    store(partition)
    emit(partition)
    assert partition.room == 0


def test_what_is_planned_is_emitted_though_the_window_is_used_up():
    """Or a transaction that is replayed and larger than the window could never end."""
    partition = manager(max_pending=3)
    partition.fetched(chunk(*range(8)), 0.0)
    partition.delivery.plan(8)
    store(partition)
    assert emit(partition) == list(range(8))
    assert partition.room == 0


def test_a_partition_is_full_when_nothing_can_be_planned_and_nothing_that_is_planned_waits():
    partition = manager()
    partition.fetched(chunk(0, 1, 2, 3), 0.0)
    partition.delivery.plan(2)
    partition.delivery.is_shut = True
    assert partition.is_full
    assert not partition.accepts_more
    store(partition)
    assert not partition.is_full
    emit(partition)
    assert partition.is_full
    partition.delivery.is_shut = False
    assert not partition.is_full
    assert partition.accepts_more


def test_a_drain_emits_what_is_planned_and_nothing_else():
    partition = manager()
    partition.fetched(chunk(0, 1, 2, 3), 0.0)
    assert not partition.delivery.owes_emission()
    partition.delivery.plan(2)
    assert partition.delivery.owes_emission()
    store(partition)
    assert partition.delivery.owes_emission()
    emit(partition)
    assert not partition.delivery.owes_emission()


def test_chunks_are_foreseen_before_they_are_planned_but_those_that_are_cut():
    partition = manager()
    chunks = [chunk(0, 1), chunk(2, 3), chunk(4, 5)]
    for each in chunks:
        partition.fetched(each, 0.0)
    assert [each.messages for each in partition.upcoming(10)] == [c.messages for c in chunks]
    partition.delivery.plan(3)
    store(partition)
    partition.delivery.is_shut = True
    foreseen = [id(each.messages) for each in partition.upcoming(10)]
    assert foreseen == [id(chunks[0].messages), id(chunks[2].messages)]
    assert emit(partition) == [0, 1]
    assert emit(partition) == [2]
    assert [id(each.messages) for each in partition.upcoming(10)] == [id(chunks[2].messages)]


def test_a_log_that_goes_on_elsewhere_has_a_new_mode_and_the_numbers_go_on():
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


def test_without_a_stored_transaction_the_interval_is_enough():
    partition = manager(max_pending=10)
    partition.fetched(chunk(*range(4)), 0.0)
    partition.delivery.plan(4)
    store(partition)
    emit(partition)
    commit(partition)
    assert partition.has_to_store
    assert not partition.is_urgent


def test_half_a_window_that_is_not_stored_should_be():
    partition = manager(max_pending=8)
    partition.fetched(chunk(*range(4)), 0.0)
    partition.delivery.plan(4)
    store(partition)
    emit(partition)
    assert not partition.is_urgent
    commit(partition)
    assert partition.is_urgent


# What executors read


def test_what_is_done_elsewhere_moves_the_frontier_and_counts_as_read():
    partition = manager(100)
    partition.passed(Range(100, 160, 40, leader_epoch=9))
    assert (partition.last_completed_offset, partition.emitted_to) == (160, 160)
    assert partition.statistics(0.0).read == 40
    assert partition.delivery.in_flight() == 40
    assert store(partition) == Position(160, 9, "id")
    assert (partition.committed, partition.delivery.in_flight()) == (160, 0)
    partition.passed(Range(160, 170, 0))
    assert partition.position == Position(170, 9, "id")
    assert partition.is_idle


def test_only_the_next_offsets_can_be_passed_and_nothing_may_be_in_flight():
    partition = manager(100)
    for first, end in ((99, 110), (101, 110), (100, 99)):
        with pytest.raises(ValueError, match="cannot be passed"):
            partition.passed(Range(first, end, 1))
    partition.fetched(chunk(100), 0.0)
    with pytest.raises(ValueError, match="1 records are pending, 101 is next"):
        partition.passed(Range(101, 110, 1))


def test_a_partition_is_not_idle_while_what_others_have_read_awaits_its_commit():
    partition = manager()
    assert partition.is_idle
    partition.delivery.awaits_commit = True
    assert not partition.is_idle
