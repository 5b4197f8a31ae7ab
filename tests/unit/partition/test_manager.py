import random
from dataclasses import replace

import pytest

from partition.consumer import CommitAges
from partition.delivery import AtLeastOnce, CommitBeforeEmit
from partition.latency import CommitLatency, Latencies, UncommittedChunk
from partition.ledger import RetryPolicy
from partition.manager import Allowance, InFlightLimits, PartitionManager
from partition.records import Chunk, Partition, Position, Range, Resumed, Transactions
from tests.support.consumer import ONE, Bench, FakeDelivery
from tests.support.messages import offsets

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


def gated(position):
    """Exactly once, where the test says what is planned."""
    return manager(position, lambda *facts: FakeDelivery(*facts, plan_records=100))


def chunk(*numbers, size=10, epochs=()):
    return Chunk(FLIGHTS, offsets(*numbers), [b"x" * size for _ in numbers], epochs)


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
    partition = manager(4, CommitBeforeEmit)
    assert emit(partition, 0) == []  # so it knows what it may store ahead
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
    partition = manager(delivery=CommitBeforeEmit)
    assert emit(partition, 0) == []
    partition.fetched(chunk(0, 1), 0.0)
    store(partition)
    assert partition.upcoming(100) == []
    assert emit(partition) == [0, 1]


# Exactly once: only what lies in a stored transaction is emitted


@pytest.fixture
def planned():
    """A partition whose two records are emitted in one transaction."""
    partition = gated(0)
    partition.fetched(chunk(0, 1, size=100), 0.0)
    partition.delivery.plan(2)
    store(partition)
    assert emit(partition) == [0, 1]
    return partition


def test_commit_drops_payloads_and_retries(planned):
    assert planned.fail(0, 0.0)
    planned.delivery.done()  # every sink has the transaction
    assert planned.resolve_below(2) == 2
    assert planned.is_idle
    assert planned.statistics(9.0).pending_bytes == 0
    given = planned.next_chunk(5.0, 10)
    assert given is None or not len(given)


def test_restart_makes_a_new_mode_and_keeps_counts(planned):
    planned.delivery.done()
    planned.resolve_below(2)
    before = planned.delivery
    start = Position(100, 8, "id")
    planned.restart(start, is_stored=True, resumed=before.resume_state(start))
    assert planned.delivery is not before
    assert planned.delivery.transactions == Transactions("transactional", committed=1)
    planned.fetched(chunk(100, 101), 0.0)
    planned.delivery.plan(102)
    assert store(planned).offset == 100
    assert emit(planned) == [100, 101]


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


def test_latency_counts_when_the_offset_is_acknowledged():
    bench = Bench()
    bench.start()
    bench.fill(ONE, 4)  # each was written 10 s before it is fetched
    bench.ack(bench.emit(5.0))
    bench.reader.commit(7.0, force=True)  # sent, not acknowledged
    assert bench.reader.offsets.latencies == {}
    bench.reader.commit(8.0)
    latency = bench.reader.offsets.latencies["t"]
    assert (latency.processing.count, latency.processing.seconds) == (4, 4 * 3.0)
    assert (latency.end_to_end.count, latency.end_to_end.seconds) == (4, 4 * 13.0)


def test_record_that_blocks_the_offset_keeps_its_chunk_uncounted():
    bench = Bench()
    bench.start()
    bench.fill(ONE, 4)
    records = bench.emit(0.0)
    bench.ack([records[0], *records[2:]])
    bench.commit(1.0)
    assert bench.stored() == 1
    assert bench.reader.offsets.latencies == {}
    bench.ack(records[1:2])
    bench.commit(60.0)
    assert bench.reader.offsets.latencies["t"].processing.seconds == 4 * 60.0


def test_record_without_a_time_stamp_has_no_end_to_end_latency():
    bench = Bench()
    bench.start()
    bench.log.append(ONE, b"x")
    bench.drain(1.0)
    latency = bench.reader.offsets.latencies["t"]
    assert (latency.end_to_end.count, latency.processing.count) == (0, 1)


def test_commit_returns_the_chunks_it_covers_once():
    partition = manager()
    for first in (0, 10, 20):
        partition.fetched(chunk(*range(first, first + 10)), float(first), (2.0, 1.0))
    assert partition.next_chunk(0.0, 100) is not None
    assert partition.next_chunk(0.0, 100) is not None
    partition.ack(offsets(*range(15)))
    (covered,) = partition.stored(partition.progress())
    assert covered == UncommittedChunk(9, 10, 0.0, (2.0, 1.0))
    partition.ack(offsets(*range(15, 20)))
    assert [each.last_offset for each in partition.stored(partition.progress())] == [19]


def test_restart_drops_the_chunks_before_it():
    partition = manager()
    partition.fetched(chunk(0, 1, 2), 0.0)
    partition.restart(Position(0))
    partition.fetched(chunk(0, 1, 2), 9.0)
    partition.next_chunk(0.0, 100)
    partition.ack(offsets(0, 1, 2))
    assert [each.fetched_at for each in partition.stored(partition.progress())] == [9.0]


def test_half_of_a_chunk_has_the_age_of_its_first_record():
    latency = CommitLatency().with_chunk(UncommittedChunk(9, 5, 1.0, (8.0, 2.0)), now=1.5)
    assert latency.end_to_end == Latencies().plus(8.5, 2).plus(2.5, 3)
    assert latency.processing == Latencies().plus(0.5, 5)


@pytest.mark.parametrize(
    ("counted", "share", "seconds"),
    [
        ([], 0.5, None),
        ([(2.0, 100)], 0.5, 2.0),  # in the middle of 1.5 to 2.5
        ([(0.005, 99), (40.0, 1)], 0.99, 0.01),
        ([(0.005, 98), (40.0, 2)], 0.99, 45.0),  # in the middle of 30 to 60
        ([(1e9, 1)], 0.5, 86_400.0),  # longer than the last bound
    ],
)
def test_quantile_is_linear_in_a_bucket(counted, share, seconds):
    latencies = Latencies()
    for taken, count in counted:
        latencies = latencies.plus(taken, count)
    found = latencies.quantile(share)
    assert found == (None if seconds is None else pytest.approx(seconds))


def test_difference_of_two_moments_is_what_came_between():
    before = Latencies().plus(1.0, 3)
    between = Latencies().plus(100.0, 2)
    assert (before + between) - before == between


def age(ages, now):
    """Of a partition that stands short of the end of its log."""
    standing = replace(manager(5).statistics(0.0), log_end=9)
    (part,) = ages.of([standing], now)
    assert replace(part, commit_age_seconds=0.0) == standing
    return part.commit_age_seconds


def test_commit_age_grows_while_the_offset_stands_short_of_the_logs_end():
    ages = CommitAges()
    assert [age(ages, now) for now in (10.0, 11.0, 14.0)] == [0, 1, 4]


def test_commit_age_of_a_partition_that_was_away_begins_anew():
    ages = CommitAges()
    assert age(ages, 10.0) == 0
    assert list(ages.of([], 20.0)) == []
    assert age(ages, 30.0) == 0
