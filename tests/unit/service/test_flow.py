"""The reader's flow: rate limits and backpressure of each source, and what waits meanwhile."""

import re

from partition.records import Partition
from tests.support.consumer import ONE, RETRY_SECONDS, TWO, Bench

OTHER = Partition("u", 0)


def bench_of_two(**policy):
    bench = Bench(sources=("t", "u"), **policy)
    bench.log.create_topic("u", 1)
    bench.start()
    return bench


def emitted(bench, now):
    """How many records each topic emits at one moment, fetching as the pipeline does."""
    counts = {"t": 0, "u": 0}
    for _ in range(200):
        emission = bench.reader.next_chunk(now)
        if emission is not None:
            counts[emission[0].partition.topic] += len(emission[0])
            bench.ack(emission[1].tolist())
        elif not bench.reader.fetch(now, 0.0):
            return counts
    raise AssertionError(counts)


def test_held_back_source_emits_nothing():
    bench = bench_of_two()
    bench.fill(ONE, 5)
    bench.fill(OTHER, 5)
    bench.reader.hold_back(frozenset({"t"}))
    assert emitted(bench, 0.0) == {"t": 0, "u": 5}
    bench.reader.hold_back(frozenset())
    assert emitted(bench, 0.0) == {"t": 5, "u": 0}


def test_held_back_source_retries_unless_silent():
    bench = Bench()
    bench.start()
    bench.fill(ONE, 1)
    (record_id,) = bench.emit()
    bench.reader.fail(record_id, 0.0)
    bench.fill(ONE, 1)
    bench.reader.fetch(0.0, 0.0)
    bench.reader.hold_back(frozenset({"t"}), silent=frozenset({"t"}))
    assert bench.reader.next_chunk(RETRY_SECONDS) is None
    bench.reader.hold_back(frozenset({"t"}))
    assert bench.emit(RETRY_SECONDS) == [record_id]
    assert bench.reader.next_chunk(RETRY_SECONDS) is None
    bench.reader.hold_back(frozenset())
    assert bench.emit(RETRY_SECONDS) == [record_id + 1]


def test_a_rate_limit_holds_over_all_partitions_of_its_source():
    bench = bench_of_two(records_per_second={"t": 100.0})
    bench.fill(ONE, 300)
    bench.fill(TWO, 300)
    bench.fill(OTHER, 300)
    assert emitted(bench, 0.0) == {"t": 11, "u": 300}
    counts = [emitted(bench, now / 50)["t"] for now in range(1, 101)]
    assert sum(counts) == 200
    assert max(counts) == 2


def test_pattern_rate_limit_covers_its_topics():
    patterns = re.compile("[tu]")
    bench = Bench(sources=("t", patterns), records_per_second={patterns: 10.0})
    bench.log.create_topic("u", 1)
    bench.start()
    bench.fill(ONE, 50)
    bench.fill(OTHER, 50)
    assert emitted(bench, 0.0) == {"t": 50, "u": 2}


def test_partitions_take_turns():
    bench = Bench(chunk_records=2, fetch_records=100)
    bench.start()
    bench.fill(ONE, 6)
    bench.fill(TWO, 6)
    while bench.reader.fetch(0.0, 0.0):
        pass
    turns = []
    while (emission := bench.reader.next_chunk(0.0)) is not None:
        turns.append(emission[0].partition)
    assert turns == [ONE, TWO] * 3


def test_little_waits_until_two_fetches_or_three_chunks_wait():
    bench = Bench(fetch_records=10)
    bench.start()
    bench.fill(ONE, 25)
    waits = []
    while bench.reader.fetch(0.0, 0.0):
        waits.append(bench.reader.waits_little)
    assert waits == [True, False, False]
    bench.emit()
    for _ in range(3):
        assert bench.reader.waits_little
        bench.fill(ONE, 1)
        bench.reader.fetch(0.0, 0.0)
    assert not bench.reader.waits_little
