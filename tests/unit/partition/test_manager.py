"""The PartitionManager: what it hands out, holds, and lets be committed."""

import random
from typing import Any

import numpy as np
import pytest

from partition.delivery import AtLeastOnce, CommitBeforeEmit
from partition.ledger import RetryPolicy
from partition.manager import Allowance, InFlightLimits, PartitionManager
from partition.records import Chunk, Partition, Position

FLIGHTS = Partition("flights", 0)


def manager(position=0, *, limit=2, **window):
    return PartitionManager(
        FLIGHTS,
        Position(position, leader_epoch=7, topic_id="id"),
        InFlightLimits(**window),
        RetryPolicy(limit=limit, initial_seconds=1, jitter=0),
        random.Random(1),
        AtLeastOnce,
    )


def chunk(*offsets, size=10, epochs=()):
    messages = [b"x" * size for _ in offsets]
    return Chunk(FLIGHTS, np.array(offsets, np.int64), messages, epochs)


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


def stored(partition):
    partition.stored(partition.progress())


def test_byte_limit_lets_one_larger_record_pass():
    partition = manager(max_pending_bytes=50)
    partition.fetched(chunk(0, size=100), 0.0)
    partition.fetched(chunk(1, size=100), 0.0)
    assert partition.next_chunk(0, 10).offsets.tolist() == [0]
    assert partition.next_chunk(0, 10) is None
    partition.ack(offsets(0))
    assert partition.next_chunk(0, 10).offsets.tolist() == [1]


def test_payloads_are_let_go_when_the_offset_has_passed_them():
    partition = manager()
    partition.fetched(chunk(0, 1), 0.0)
    partition.fetched(chunk(2, 3), 0.0)
    partition.next_chunk(0, 2), partition.next_chunk(0, 2)
    partition.ack(offsets(0, 1))
    assert partition.statistics(0.0).pending_bytes == 20
    with pytest.raises(KeyError):
        partition.message(0)
    assert partition.message(3) == b"x" * 10


def test_a_fail_of_a_record_not_in_flight_changes_nothing():
    """Promise 5: a late fail after the ack is counted and ignored."""
    partition = manager()
    partition.fetched(chunk(0), 0.0)
    partition.next_chunk(0, 1)
    partition.ack(offsets(0))
    assert partition.fail(0, now=0)
    assert partition.retries.due is None
    assert partition.statistics(0.0).ledger.ignored == 1


def led(*runs, start=0, size=10):
    """A chunk whose records were written under these (leader epoch, count) runs."""
    numbers, epochs, at = [], [], start
    for epoch, count in runs:
        epochs.append((at, epoch))
        numbers += range(at, at + count)
        at += count
    payloads = [b"x" * size for _ in numbers]
    return Chunk(FLIGHTS, np.array(numbers, np.int64), payloads, tuple(epochs))


def test_position_carries_the_previous_leader_epoch():
    """Kafka's KIP-101: an offset is checked with the epoch of the record that was read last."""
    partition = manager()
    assert partition.position == Position(0, 7, "id")
    partition.fetched(led((7, 2), (9, 3)), 0.0)
    partition.fetched(led((9, 2), (12, 1), start=5), 0.0)
    partition.next_chunk(0, 10)
    partition.next_chunk(0, 10)
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


def test_records_that_are_delivered_again_are_dropped():
    """Storm 32: nothing is emitted twice because the client delivered it twice."""
    partition = manager()
    partition.fetched(chunk(0, 1, 2), 0.0)
    partition.fetched(chunk(0, 1, 2), 0.0)
    partition.fetched(chunk(1, 2, 3), 0.0)
    assert partition.next_chunk(0, 10).offsets.tolist() == [0, 1, 2]
    assert partition.next_chunk(0, 10).offsets.tolist() == [3]


class Looked(np.ndarray[Any, Any]):
    """Offsets that count how often one is looked at."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        Looked.looks += 1
        return super().__getitem__(place)


@pytest.mark.parametrize("completed", range(14))
def test_messages_in_flight_are_found(completed):
    partition = manager()
    chunks = [[0, 1], [4], [6, 9], [12]]
    for numbers in chunks:
        partition.fetched(Chunk(FLIGHTS, offsets(*numbers), [str(o) for o in numbers]), 0.0)
        partition.next_chunk(0, 10)
    partition.resolve_below(completed)
    there = {o for numbers in chunks if numbers[-1] >= completed for o in numbers}
    for offset in range(-1, 14):
        if offset in there:
            assert partition.message(offset) == str(offset)
        else:
            with pytest.raises(KeyError):
                partition.message(offset)


def ahead_manager(position=0, ahead=100, **window):
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


def store(partition):
    progress = partition.progress()
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
