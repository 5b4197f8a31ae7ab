"""The PartitionManager at most once: what is stored first, and what is emitted only then."""

import random

import numpy as np

from partition.delivery import CommitBeforeEmit
from partition.manager import Allowance, InFlightLimits, PartitionManager
from partition.records import Chunk, Partition, Position
from partition.retry import RetryPolicy

FLIGHTS = Partition("flights", 0)


def manager(position=0, ahead=100, **window):
    partition = PartitionManager(
        FLIGHTS,
        Position(position, leader_epoch=7, topic_id="id"),
        InFlightLimits(**window),
        RetryPolicy(limit=5),
        random.Random(1),
        CommitBeforeEmit,
    )
    allow_ahead(partition, ahead)
    return partition


def allow_ahead(partition, count):
    """Let so many records be stored before they are emitted; emit none."""
    assert partition.next_chunk(0.0, 0, Allowance(ahead=count)) is None


def chunk(*offsets, size=10, epochs=()):
    messages = [b"x" * size for _ in offsets]
    return Chunk(FLIGHTS, np.array(offsets, np.int64), messages, epochs)


def stored(partition):
    progress = partition.progress()
    partition.stored(progress)
    return progress.position


def emit(partition, limit=100, ahead=100):
    given = partition.next_chunk(0.0, limit, Allowance(ahead=ahead))
    return [] if given is None else given.offsets.tolist()


def test_nothing_is_emitted_before_the_place_behind_it_is_stored():
    partition = manager()
    partition.fetched(chunk(0, 1, 2), 0.0)
    assert partition.is_urgent
    assert emit(partition) == []
    progress = partition.progress()
    assert progress.position.offset == 3
    assert emit(partition) == []
    partition.stored(progress)
    assert (partition.committed, partition.last_completed_offset) == (3, 0)
    assert not partition.is_urgent
    assert emit(partition) == [0, 1, 2]


def test_no_more_is_stored_ahead_of_what_is_emitted_than_is_allowed():
    partition = manager(ahead=4)
    partition.fetched(chunk(*range(20)), 0.0)
    assert stored(partition).offset == 4
    assert emit(partition, 2, ahead=4) == [0, 1]
    assert stored(partition).offset == 6
    assert emit(partition, 2, ahead=0) == [2, 3]
    assert partition.progress() is None
    assert emit(partition, ahead=0) == [4, 5]
    assert not partition.is_urgent
    allow_ahead(partition, 1)
    assert partition.is_urgent
    assert stored(partition).offset == 7


def test_more_is_stored_once_half_of_what_is_allowed_is_emitted():
    partition = manager(ahead=10)
    partition.fetched(chunk(*range(40)), 0.0)
    stored(partition)
    emit(partition, 4, ahead=10)
    assert not partition.is_urgent
    emit(partition, 1, ahead=10)
    assert partition.is_urgent
    progress = partition.progress()
    assert not partition.is_urgent
    partition.stored(progress)
    assert not partition.is_urgent


def test_records_that_came_later_wait_for_the_next_commit():
    partition = manager()
    partition.fetched(chunk(0, 1), 0.0)
    stored(partition)
    partition.fetched(chunk(2, 3), 0.0)
    assert emit(partition, 1) == [0]
    assert partition.delivery.owes_emission()
    assert emit(partition) == [1]
    assert not partition.delivery.owes_emission()
    assert emit(partition) == []
    stored(partition)
    assert emit(partition) == [2, 3]


def test_the_window_reaches_from_the_frontier_and_bounds_what_a_crash_may_lose():
    partition = manager(max_pending=3)
    partition.fetched(chunk(*range(10)), 0.0)
    assert stored(partition).offset == 3
    assert emit(partition) == [0, 1, 2]
    assert partition.is_full
    assert partition.progress() is None
    partition.ack(np.array([1, 2]))
    assert partition.progress() is None
    partition.ack(np.array([0]))
    assert stored(partition).offset == 6
    assert emit(partition) == [3, 4, 5]


def test_a_window_full_of_bytes_stores_nothing_more_but_emits_what_is_stored():
    partition = manager(max_pending_bytes=25)
    partition.fetched(chunk(0, 1), 0.0)
    stored(partition)
    assert emit(partition, 1) == [0]
    partition.fetched(chunk(2, 3), 0.0)
    assert not partition.accepts_more
    assert partition.progress() is None
    assert emit(partition) == [1]
    assert partition.is_full
    partition.ack(np.array([0, 1]))
    assert stored(partition).offset == 4


def test_a_record_that_failed_is_never_tried_again():
    partition = manager()
    partition.fetched(chunk(0, 1), 0.0)
    stored(partition)
    emit(partition)
    assert not partition.fail(0, 0.0)
    assert not partition.fail(1, 0.0, after_seconds=1.0, policy=RetryPolicy(limit=9))
    assert partition.next_due() is None
    assert partition.attempts(0) == 1
    assert partition.message(0)
    assert partition.last_completed_offset == 0
    partition.ack(np.array([0, 1]))
    assert partition.last_completed_offset == 2


def test_when_the_run_ends_what_is_stored_is_emitted_and_nothing_more_is_stored():
    partition = manager()
    partition.fetched(chunk(0, 1), 0.0)
    stored(partition)
    partition.fetched(chunk(2, 3), 0.0)
    partition.stop()
    assert partition.progress() is None
    assert emit(partition) == [0, 1]
    partition.ack(np.array([0, 1]))
    assert not partition.delivery.owes_emission()
    assert partition.position.offset == partition.committed == 2


def test_what_is_on_its_way_to_the_store_when_the_run_ends_counts_as_stored():
    partition = manager()
    partition.fetched(chunk(0, 1), 0.0)
    assert not partition.delivery.owes_emission()
    progress = partition.progress()
    partition.stop()
    assert partition.position.offset == 2
    assert partition.delivery.owes_emission()
    assert not partition.may_emit
    partition.stored(progress)
    assert emit(partition) == [0, 1]


def test_gaps_at_the_log_s_end_are_stored_too():
    """Promise 11."""
    partition = manager()
    partition.fetched(chunk(0), 0.0)
    partition.log_end(3)
    assert stored(partition).offset == 3
    assert emit(partition) == [0]
    partition.log_end(5)
    assert partition.position.offset == 5


def test_a_position_ahead_carries_the_leader_epoch_of_the_record_before_it():
    partition = manager(max_pending=2)
    partition.fetched(chunk(0, 1, 2, epochs=((0, 8), (1, 9), (2, 10))), 0.0)
    assert stored(partition) == Position(2, 9, "id")
    emit(partition)
    partition.ack(np.array([0]))
    assert stored(partition) == Position(3, 10, "id")


def test_a_commit_from_before_a_restart_lets_nothing_be_emitted():
    partition = manager(4)
    partition.fetched(chunk(4, 5, 6), 0.0)
    progress = partition.progress()
    partition.restart(Position(0))
    partition.fetched(chunk(*range(10)), 0.0)
    partition.stored(progress)
    assert partition.committed == 0
    assert emit(partition) == []
    assert stored(partition).offset == 10
    assert len(emit(partition)) == 10


def test_nothing_is_foreseen_since_a_call_ahead_of_the_stored_offset_may_come_twice():
    partition = manager()
    partition.fetched(chunk(0, 1), 0.0)
    stored(partition)
    assert partition.upcoming(100) == []
    assert emit(partition) == [0, 1]
