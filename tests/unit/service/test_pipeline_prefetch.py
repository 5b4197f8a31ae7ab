"""Concurrent bolts see chunks before their turn, and nothing about the records changes by it."""

import random
import threading

import pyarrow as pa
import pytest

from headrace import Topology, bolt
from headrace.payloads import json_columns
from headrace.sinks import MemoryDeadLetters, MemorySink
from partition.ledger import RetryPolicy
from partition.manager import InFlightLimits
from partition.records import Partition
from service.pipeline.build import Sizes, sizes_of
from tests.support.pipeline import Works

PLACE = Partition("t", 0)
CHUNK = 600
NUMBER = pa.schema([pa.field("n", pa.int64(), nullable=False)])


class Seen:
    """Which threads read the columns, and how many rows of each chunk."""

    def __init__(self):
        self.threads = set()
        self.calls = []

    def as_bolt(self):
        @bolt(vectorised=True, concurrent=True)
        def see(batch):
            self.threads.add(threading.current_thread().name)
            self.calls.append(batch.num_rows)
            return batch

        return see


def numbers(sink):
    return [row["n"] for row in sink.rows]


def fill(works, values):
    for value in values:
        works.log.append(PLACE, value)


def run(works):
    for _ in range(2_000):
        moved = works.pipeline.step(flush=True)
        works.now += 0.01
        if not moved and works.pipeline.is_idle and not works.reader.upcoming():
            return
    raise AssertionError("it did not come to an end")


def test_prefetched_chunks_arrive_in_order():
    sink, seen = MemorySink(), Seen()
    count = 10 * CHUNK
    with Works(
        json_columns(NUMBER), seen.as_bolt(), sinks=[sink], fetch_records=CHUNK,
        chunk_records=CHUNK,
    ) as works:  # fmt: skip
        fill(works, (b'{"n": %d}' % n for n in range(count)))
        run(works)
    assert sorted(numbers(sink)) == list(range(count))
    assert any(name.startswith("prefetch") for name in seen.threads)
    assert sum(seen.calls) == count  # nothing was read twice


def test_bad_records_of_a_prefetched_chunk_are_rejected_alone():
    """Promise 13."""
    sink = MemorySink()
    count, bad = 8 * CHUNK, {5, 700, 701, 4_799}
    with Works(
        json_columns(NUMBER), sinks=[sink], fetch_records=CHUNK, chunk_records=CHUNK
    ) as works:
        fill(works, (b"no" if n in bad else b'{"n": %d}' % n for n in range(count)))
        run(works)
        buried = {letter.record.offset for letter in works.letters_sink.letters}
    assert sorted(numbers(sink)) == sorted(set(range(count)) - bad)
    assert buried == bad


@pytest.mark.parametrize("seed", range(10))
def test_every_record_arrives_once_for_any_limits(seed):
    """Promise 10: what waits stays bounded too."""
    rng = random.Random(seed)
    sink, count = MemorySink(), 6_000
    fetch = rng.choice([700, 1_500, 4_000])
    window = InFlightLimits(max_pending=rng.choice([650, 2_000, 50_000]))
    with Works(
        json_columns(NUMBER), sinks=[sink], window=window, fetch_records=fetch,
        chunk_records=rng.choice([500, 650, 4_000]), batch_rows=rng.choice([100, 5_000]),
        retries=RetryPolicy(limit=0),
    ) as works:  # fmt: skip
        fill(works, (b'{"n": %d}' % n for n in range(count)))
        most = 0
        while len(sink.rows) < count:
            works.pipeline.step(flush=True)
            works.now += 0.01
            most = max(most, next(works.reader.statistics(works.now)).ledger.waiting)
    assert sorted(numbers(sink)) == list(range(count))
    assert most <= 4 * fetch  # two wait, one comes ahead, one before a full window is noticed


def test_prefetch_stops_when_the_run_ends():
    """Promise 16."""
    sink, seen = MemorySink(), Seen()
    with Works(
        json_columns(NUMBER), seen.as_bolt(), sinks=[sink], fetch_records=CHUNK,
        chunk_records=CHUNK,
    ) as works:  # fmt: skip
        fill(works, (b'{"n": %d}' % n for n in range(10 * CHUNK)))
        for _ in range(3):
            works.pipeline.step(flush=True)
        works.pipeline.settle()
        rows = sum(seen.calls)
        while not works.pipeline.is_idle:
            works.pipeline.step(fetch=False, flush=True, drain=True)
        assert sum(seen.calls) == rows


def topology_of(*bolts, reliability="at-least-once"):
    topology = Topology("sized", reliability=reliability)
    topology.dead_letters.into(MemoryDeadLetters())
    stream = topology.source("t")
    for each in bolts:
        stream = stream.then(each)
    stream.into(MemorySink())
    return topology


@bolt
def plain(record):
    return record.value


@bolt
async def waits(record):
    return record.value


def test_chunk_size_suits_the_topology():
    assert sizes_of(topology_of(plain)) == Sizes(4_000, 2_000)
    assert sizes_of(topology_of(json_columns(NUMBER))) == Sizes(8_000, 8_000)
    assert sizes_of(topology_of(plain, reliability="at-most-once")) == Sizes(10_000, 4_000)
    assert sizes_of(topology_of(waits)) == Sizes(2_000, 1_000)
    assert sizes_of(topology_of(plain), fetch_records=7) == Sizes(7, 2_000)
    assert sizes_of(topology_of(plain), chunk_records=3) == Sizes(4_000, 3)
