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
