from dataclasses import replace

import numpy as np
import pytest

from partition.consumer import CommitAges
from partition.latency import CommitLatency, Latencies, UncommittedChunk
from partition.ledger import Ledger
from partition.manager import PartitionStatistics
from partition.records import Chunk, Partition, Position
from tests.support.consumer import ONE, Bench
from tests.unit.partition.test_manager import FLIGHTS, manager, offsets


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
        chunk = Chunk(FLIGHTS, np.arange(first, first + 10), [b"x"] * 10)
        partition.fetched(chunk, float(first), (2.0, 1.0))
    assert partition.next_chunk(0.0, 100) is not None
    assert partition.next_chunk(0.0, 100) is not None
    partition.ack(offsets(*range(15)))
    (covered,) = partition.stored(partition.progress())
    assert covered == UncommittedChunk(9, 10, 0.0, (2.0, 1.0))
    partition.ack(offsets(*range(15, 20)))
    assert [each.last_offset for each in partition.stored(partition.progress())] == [19]


def test_restart_drops_the_chunks_before_it():
    partition = manager()
    partition.fetched(Chunk(FLIGHTS, np.arange(3), [b"x"] * 3), 0.0)
    partition.restart(Position(0))
    partition.fetched(Chunk(FLIGHTS, np.arange(3), [b"x"] * 3), 9.0)
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


def standing(committed, log_end):
    return PartitionStatistics(
        Partition("orders", 0),
        Ledger(committed).statistics(),
        committed=committed,
        read=0,
        retried=0,
        pending_bytes=0,
        oldest_pending_seconds=0.0,
        log_end=log_end,
    )


def age(ages, now, committed, log_end):
    (part,) = ages.of([standing(committed, log_end)], now)
    assert replace(part, commit_age_seconds=0.0) == standing(committed, log_end)
    return part.commit_age_seconds


def test_commit_age_grows_while_the_offset_stands_short_of_the_logs_end():
    ages = CommitAges()
    assert [age(ages, now, 5, 9) for now in (10.0, 11.0, 14.0)] == [0, 1, 4]


def test_commit_age_of_a_partition_that_was_away_begins_anew():
    ages = CommitAges()
    assert age(ages, 10.0, 5, 9) == 0
    assert list(ages.of([], 20.0)) == []
    assert age(ages, 30.0, 5, 9) == 0
