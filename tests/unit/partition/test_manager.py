"""The PartitionManager: what it hands out, holds, and lets be committed."""

import random
from dataclasses import replace

import numpy as np
import pytest

from partition.chunk import Chunk, Partition
from partition.manager import PartitionManager, Window
from partition.position import Position
from partition.retries import RetryPolicy

FLIGHTS = Partition("flights", 0)


def manager(position=0, *, limit=2, **window):
    return PartitionManager(
        FLIGHTS,
        Position(position, leader_epoch=7, topic_id="id"),
        window=Window(**window),
        retry_policy=RetryPolicy(limit=limit, initial_seconds=1, jitter=0),
        rng=random.Random(1),
    )


def chunk(*offsets, size=10):
    return Chunk(FLIGHTS, np.array(offsets, np.int64), [b"x" * size for _ in offsets])


def offsets(*numbers):
    return np.array(numbers, np.int64)


def test_records_are_handed_out_once_and_in_order():
    partition = manager()
    partition.offer(chunk(0, 1, 2, 3, 4), 0.0)
    assert partition.next(0, 3).offsets.tolist() == [0, 1, 2]
    assert partition.next(0, 3).offsets.tolist() == [3, 4]
    assert partition.next(0, 3) is None


def test_a_due_retry_comes_before_new_records_and_from_memory():
    partition = manager()
    messages = [b"a", b"b"]
    partition.offer(Chunk(FLIGHTS, offsets(0, 1), messages), 0.0)
    partition.next(0, 1)
    partition.fail(0, now=0)
    assert partition.next(0.5, 10).offsets.tolist() == [1]
    again = partition.next(1, 10)
    assert again.offsets.tolist() == [0]
    assert again.messages[0] is messages[0]
    assert partition.statistics(0.0).retried == 1


def test_a_stuck_record_stops_its_partition_at_the_windows_end():
    """Promise 10: memory is bounded; the window counts from what is stored."""
    partition = manager(max_pending=100)
    partition.offer(chunk(*range(250)), 0.0)
    given = partition.next(0, 1000)
    assert len(given) == 100
    partition.ack(given.offsets[1:])
    assert partition.is_full
    assert partition.next(0, 1000) is None
    partition.ack(given.offsets[:1])
    stored(partition)
    assert len(partition.next(0, 1000)) == 100


def stored(partition):
    partition.mark_committed(partition.submit().offset)


def test_records_that_are_resolved_and_not_stored_use_the_window_up():
    """Promise 15: with the store away a partition runs on to the window's end, and waits."""
    partition = manager(max_pending=10)
    emitted = []
    for start in range(0, 40, 4):
        partition.offer(chunk(*range(start, start + 4)), 0.0)
    while (given := partition.next(0, 3)) is not None:
        emitted += given.offsets.tolist()
        partition.ack(given.offsets)
    assert emitted == list(range(10))
    assert (partition.frontier, partition.committed, partition.uncommitted) == (10, 0, 10)
    assert partition.is_full
    position = partition.submit()
    assert partition.next(0, 3) is None
    partition.mark_committed(position.offset)
    assert len(partition.next(0, 100)) == 2
    assert partition.uncommitted == 2


def test_gaps_in_the_offsets_use_nothing_of_the_window_up():
    partition = manager(max_pending=10)
    partition.offer(chunk(0, 1_000_000, 2_000_000), 0.0)
    given = partition.next(0, 10)
    partition.ack(given.offsets)
    assert (partition.uncommitted, partition.is_full) == (3, False)
    partition.reached(5_000_000)
    stored(partition)
    assert partition.uncommitted == 0


def test_half_a_window_that_is_not_stored_should_be():
    partition = manager(max_pending=10)
    partition.offer(chunk(*range(10)), 0.0)
    partition.ack(partition.next(0, 4).offsets)
    assert not partition.should_commit
    held = partition.next(0, 2).offsets
    assert partition.should_commit
    stored(partition)
    assert not partition.should_commit  # nothing that could be stored has moved
    partition.ack(held)
    assert partition.uncommitted == 2


def test_the_window_counts_the_bytes_of_keys_too():
    """Promise 10: else keys are held without a bound."""
    partition = manager(max_pending_bytes=100)
    for offset in range(5):
        partition.offer(replace(chunk(offset), other_bytes=40), 0.0)
    assert [len(partition.next(0, 1) or ()) for _ in range(3)] == [1, 0, 0]
    assert partition.statistics(0.0).pending_bytes == 250


def test_a_retry_is_exempt_from_the_window():
    """Promise 10: retries are exempt from the limit."""
    partition = manager(max_pending=2)
    partition.offer(chunk(0, 1, 2), 0.0)
    partition.next(0, 10)
    partition.fail(0, now=0)
    assert partition.is_full
    assert partition.next(5, 10).offsets.tolist() == [0]


def test_the_window_is_bounded_in_bytes_and_one_larger_record_passes_alone():
    partition = manager(max_pending_bytes=50)
    partition.offer(chunk(0, size=100), 0.0)
    partition.offer(chunk(1, size=100), 0.0)
    assert partition.next(0, 10).offsets.tolist() == [0]
    assert partition.next(0, 10) is None
    partition.ack(offsets(0))
    assert partition.next(0, 10).offsets.tolist() == [1]


def test_payloads_are_let_go_when_the_frontier_has_passed_them():
    partition = manager()
    partition.offer(chunk(0, 1), 0.0)
    partition.offer(chunk(2, 3), 0.0)
    partition.next(0, 2), partition.next(0, 2)
    partition.ack(offsets(0, 1))
    assert partition.statistics(0.0).pending_bytes == 20
    with pytest.raises(KeyError):
        partition.message(0)
    assert partition.message(3) == b"x" * 10


def test_a_record_out_of_retries_stays_pending_until_it_is_acked():
    """Promise 13: its dead letter is written before its offset may pass."""
    partition = manager(limit=1)
    partition.offer(chunk(0, 1), 0.0)
    partition.next(0, 10)
    partition.ack(offsets(1))
    assert partition.fail(0, now=0)
    partition.next(1, 10)
    assert not partition.fail(0, now=1)
    assert partition.attempts(0) == 2
    assert partition.frontier == 0
    assert partition.next(1000, 10) is None
    partition.ack(offsets(0))
    assert partition.frontier == 2


def test_a_fail_of_a_record_not_in_flight_changes_nothing():
    """Promise 5: a late fail after the ack is counted and ignored."""
    partition = manager()
    partition.offer(chunk(0), 0.0)
    partition.next(0, 1)
    partition.ack(offsets(0))
    assert partition.fail(0, now=0)
    assert partition.next_due() is None
    assert partition.statistics(0.0).ledger.ignored == 1


def test_the_end_of_a_transactional_log_leaves_no_lag():
    """Promise 11: the frontier passes the markers when nothing is pending."""
    partition = manager()
    partition.offer(chunk(0, 1), 0.0)
    partition.reached(3)
    partition.next(0, 10)
    partition.ack(offsets(0, 1))
    assert partition.frontier == 3


def test_committed_never_moves_back():
    """Promise 2."""
    partition = manager(5)
    partition.mark_committed(9)
    partition.mark_committed(7)
    assert partition.committed == 9


def led(*runs, start=0, size=10):
    """A chunk whose records were written under these (leader epoch, count) runs."""
    numbers, epochs, at = [], [], start
    for epoch, count in runs:
        epochs.append((at, epoch))
        numbers += range(at, at + count)
        at += count
    payloads = [b"x" * size for _ in numbers]
    return Chunk(FLIGHTS, np.array(numbers, np.int64), payloads, tuple(epochs))


def test_the_position_carries_the_leader_epoch_of_the_record_before_the_frontier():
    """Kafka's KIP-101: an offset is checked with the epoch of the record that was read last."""
    partition = manager()
    assert partition.position == Position(0, 7, "id")
    partition.offer(led((7, 2), (9, 3)), 0.0)
    partition.offer(led((9, 2), (12, 1), start=5), 0.0)
    partition.next(0, 10)
    partition.next(0, 10)
    assert partition.position == Position(0, 7, "id")
    for acked, epoch in enumerate((7, 7, 9, 9, 9, 9, 9, 12)):
        partition.ack(offsets(acked))
        assert partition.position == Position(acked + 1, epoch, "id")


def test_a_position_before_any_record_keeps_the_epoch_it_was_given():
    partition = manager(5)
    partition.reached(9)
    assert partition.position == Position(9, 7, "id")


def test_the_age_of_the_oldest_pending_record_counts_from_its_fetch():
    partition = manager()
    assert partition.statistics(100.0).oldest_pending_seconds == 0
    partition.offer(chunk(0, 1), 10.0)
    partition.offer(chunk(2), 14.0)
    partition.next(14, 10)
    partition.next(14, 10)
    assert partition.statistics(20.0).oldest_pending_seconds == 10
    partition.ack(offsets(0, 1))
    assert partition.statistics(20.0).oldest_pending_seconds == 6
    partition.ack(offsets(2))
    assert partition.statistics(20.0).oldest_pending_seconds == 0


@pytest.mark.parametrize(
    ("payloads", "unusual"),
    [([b"x", b"yy"], False), ([b"x", b""], True), ([b"x", b"y" * 101], True)],
)
def test_a_chunk_with_an_empty_or_a_large_payload_is_marked(payloads, unusual):
    partition = manager(max_record_bytes=100)
    partition.offer(Chunk(FLIGHTS, offsets(0, 1), payloads), 0.0)
    assert partition.next(0, 1).unusual is unusual
    assert partition.next(0, 1).unusual is unusual


def test_a_manager_that_starts_anew_keeps_its_counts_and_nothing_in_flight():
    partition = manager()
    partition.offer(chunk(0, 1), 0.0)
    partition.next(0, 1)
    partition.restart(Position(50, 3, "other"))
    assert partition.position == Position(50, 3, "other")
    assert partition.committed == 50
    assert partition.is_idle
    assert partition.next(0, 10) is None
    assert partition.ack(offsets(0)) == 0
    assert partition.statistics(0.0).read == 1


def test_records_that_are_delivered_again_are_dropped():
    """Storm 32: nothing is emitted twice because the client delivered it twice."""
    partition = manager()
    partition.offer(chunk(0, 1, 2), 0.0)
    partition.offer(chunk(0, 1, 2), 0.0)
    partition.offer(chunk(1, 2, 3), 0.0)
    assert partition.next(0, 10).offsets.tolist() == [0, 1, 2]
    assert partition.next(0, 10).offsets.tolist() == [3]


def test_a_restart_without_a_store_leaves_what_was_committed():
    """Promise 16: else the frontier reached before would never be stored."""
    partition = manager()
    partition.offer(chunk(0, 1, 2), 0.0)
    partition.next(0, 10)
    partition.ack(offsets(0, 1, 2))
    partition.restart(partition.position, stored=False)
    assert (partition.committed, partition.frontier) == (0, 3)
    partition.restart(Position(9), stored=True)
    assert (partition.committed, partition.frontier) == (9, 9)


def test_the_chunks_foreseen_are_those_that_are_handed_out_whole_next():
    partition = manager()
    for numbers in ((0, 1, 2), (3, 4), (5,)):
        partition.offer(chunk(*numbers), 0.0)
    foreseen = partition.upcoming(10)
    assert [each.offsets.tolist() for each in foreseen] == [[0, 1, 2], [3, 4], [5]]
    for each in foreseen:
        assert partition.next(0, 10).messages is each.messages
    assert partition.upcoming(10) == []


def test_nothing_is_foreseen_of_a_window_that_is_full_of_bytes():
    partition = manager(max_pending_bytes=25)
    partition.offer(chunk(0, 1, 2), 0.0)
    partition.offer(chunk(3, 4), 0.0)
    assert len(partition.upcoming(10)) == 2
    partition.next(0, 2)
    assert partition.is_full
    assert partition.upcoming(10) == []


def test_no_chunk_is_foreseen_that_the_window_or_the_limit_would_part():
    partition = manager(max_pending=4)
    for numbers in ((0, 1, 2), (3, 4), (5,)):
        partition.offer(chunk(*numbers), 0.0)
    assert [len(each) for each in partition.upcoming(10)] == [3]
    assert partition.upcoming(2) == []
    partition.next(0, 2)
    assert partition.upcoming(10) == []  # of the first one record is left, of the next one fits
    partition.next(0, 10)
    partition.next(0, 10)
    assert partition.upcoming(10) == []
    assert partition.is_full
