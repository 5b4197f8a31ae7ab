"""Concurrent bolts see chunks before their turn, and nothing about the records changes by it."""

import random
import threading

import pyarrow as pa
import pytest

from headrace import Bolt
from headrace.payloads import json_columns
from headrace.sinks import MemorySink
from partition.ledger import RetryPolicy
from partition.manager import InFlightLimits
from service.pipeline.build import Sizes, sizes_of
from tests.support.bolts import new_topology, same, wait
from tests.support.pipeline import Works

CHUNK = 600
NUMBER = pa.schema([pa.field("n", pa.int64(), nullable=False)])


class Sees(Bolt):
    vectorised = concurrent = True

    def __init__(self):
        self.threads, self.calls = set(), []

    def process(self, batch, /):
        self.threads.add(threading.current_thread().name)
        self.calls.append(batch.num_rows)
        return batch


def columns(*bolts, **options):
    sizes = {"fetch_records": CHUNK, "chunk_records": CHUNK} | options
    return Works(json_columns(NUMBER), *bolts, sinks=[MemorySink()], **sizes)


def send(works, count, bad=()):
    works.send(*(b"no" if n in bad else b'{"n": %d}' % n for n in range(count)))


def run(works):
    for _ in range(2_000):
        moved = works.pipeline.step(flush=True)
        works.now += 0.01
        if not moved and works.pipeline.is_idle and not works.reader.upcoming():
            return sorted(row["n"] for row in works.sink.rows)
    raise AssertionError("it did not come to an end")


def test_prefetched_chunks_arrive_once_and_their_bad_records_are_rejected_alone():
    """Promise 13."""
    seen, count, bad = Sees(), 10 * CHUNK, {5, 700, 701, 4_799}
    with columns(seen) as works:
        send(works, count, bad)
        assert run(works) == sorted(set(range(count)) - bad)
        assert {letter.record.offset for letter in works.letters_sink.letters} == bad
    assert any(name.startswith("prefetch") for name in seen.threads)
    assert sum(seen.calls) == count - len(bad)  # nothing was read twice


@pytest.mark.parametrize("seed", range(10))
def test_every_record_arrives_once_for_any_limits(seed):
    """Promise 10: what waits stays bounded too."""
    rng, count = random.Random(seed), 6_000
    fetch = rng.choice([700, 1_500, 4_000])
    with columns(
        window=InFlightLimits(max_pending=rng.choice([650, 2_000, 50_000])), fetch_records=fetch,
        chunk_records=rng.choice([500, 650, 4_000]), batch_rows=rng.choice([100, 5_000]),
        retries=RetryPolicy(limit=0),
    ) as works:  # fmt: skip
        send(works, count)
        most = 0
        while len(works.sink.rows) < count:
            works.advance(0.01, step=0.01)
            most = max(most, works.ledger.waiting)
        assert run(works) == list(range(count))
    assert most <= 4 * fetch  # two wait, one comes ahead, one before a full window is noticed


def test_prefetch_stops_when_the_run_ends():
    """Promise 16."""
    seen = Sees()
    with columns(seen) as works:
        send(works, 10 * CHUNK)
        works.turn(3)
        works.pipeline.settle()
        rows = sum(seen.calls)
        while not works.pipeline.is_idle:
            works.pipeline.step(fetch=False, flush=True, drain=True)
        assert sum(seen.calls) == rows


def sizes(*bolts, reliability="at-least-once", **options):
    topology, stream = new_topology(reliability=reliability)
    for each in bolts:
        stream = stream.then(each)
    stream.into(MemorySink())
    return sizes_of(topology, **options)


def test_chunk_size_suits_the_topology():
    assert sizes(same) == Sizes(4_000, 2_000)
    assert sizes(json_columns(NUMBER)) == Sizes(8_000, 8_000)
    assert sizes(same, reliability="at-most-once") == Sizes(10_000, 4_000)
    assert sizes(wait) == Sizes(2_000, 1_000)
    assert sizes(same, fetch_records=7) == Sizes(7, 2_000)
    assert sizes(same, chunk_records=3) == Sizes(4_000, 3)
