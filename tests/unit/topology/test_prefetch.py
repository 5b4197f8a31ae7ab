"""Prefetch of concurrent bolts: the same results, before their turn."""

import threading

import pyarrow as pa
import pytest

from headrace import Reject, Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from partition.records import Partition
from tests.support.messages import message
from tests.support.patience import seconds
from topology import executor as executing
from topology.executor import Executor, Prefetcher

PLACE = Partition("in", 0)
MANY = 600
WAIT_SECONDS = seconds(10.0)


@bolt(vectorised=True, columns=["value"], concurrent=True)
def lengths(batch):
    sizes = pa.array([len(value) for value in batch["value"].to_pylist()])
    if 13 in sizes.to_pylist():
        raise Reject("thirteen")
    names = ["length" if name == "value" else name for name in batch.schema.names]
    columns = [sizes if name == "value" else batch[name] for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(columns, names=names)


@bolt(vectorised=True, concurrent=True)
def even(batch):
    keep = pa.array([length % 2 == 0 for length in batch["length"].to_pylist()])
    return batch.filter(keep)


@bolt(vectorised=True)
def plain(batch):
    return batch


@bolt
def text(record):
    return record.value.decode()


def messages(*lengths):
    return [message(PLACE, offset, b"x" * size) for offset, size in enumerate(lengths)]


def source_of(draw):
    topology = Topology("drawn")
    topology.dead_letters.into(MemoryDeadLetters())
    stream = topology.source("in")
    draw(stream)
    topology.validate()
    return topology.sources[0]


def found(outcome):
    """What is delivered where, from which inputs, and what failed."""
    deliveries = sorted(
        (
            each.boundary.name,
            each.piece.to_pylist() if isinstance(each.piece, pa.RecordBatch) else each.piece,
            None if each.parents is None else each.parents.tolist(),
            each.tasks,
        )
        for each in outcome.deliveries
    )
    return deliveries, {place: str(each.error) for place, each in outcome.failures.items()}


def draw_branches(stream):
    """Concurrent bolts in a row and side by side, before sinks and plain bolts."""
    measured = stream.then(lengths)
    measured.then(even).into(MemorySink("evens"))
    measured.then(plain).into(MemorySink("all"))
    stream.then(text).into(MemorySink("texts"))


def test_prefetched_chunk_gives_the_same(monkeypatch):
    monkeypatch.setattr(executing, "_LEAST_RECORDS", 1)
    source = source_of(draw_branches)
    records = messages(1, 2, 13, 4)
    executor = Executor([source])
    executor.prefetcher.open()
    executor.prefetcher.prefetch([(source, records), (source, messages(1))])
    monkeypatch.setattr(executor, "run_concurrent", None)  # it is not called again
    together = found(executor.run_source(source, records))
    assert executor.prefetcher.close(WAIT_SECONDS)
    assert together == found(Executor().run_source(source, records))
    assert together == (
        [
            ("all", [{"length": 1}, {"length": 2}, {"length": 4}], [0, 1, 3], None),
            ("evens", [{"length": 2}, {"length": 4}], [1, 3], None),
            ("texts", ["x", "xx", "xxxx"], [0, 1, 3], None),
        ],
        {2: "thirteen"},
    )


def test_prefetch_stops_before_other_bolts():
    source = source_of(draw_branches)
    reached = [
        d.boundary.name for d in Executor().run_concurrent(source, messages(1, 2)).deliveries
    ]
    assert sorted(reached) == ["evens", "plain"]


class Gate:
    """Runs chunks when it is opened, and counts them."""

    def __init__(self):
        self.opened = threading.Event()
        self.begun = threading.Semaphore(0)
        self.threads = set()

    def run(self, source, records):
        self.begun.release()
        assert self.opened.wait(WAIT_SECONDS)
        self.threads.add(threading.current_thread().name)
        return Executor().run_concurrent(source, records)


@pytest.fixture
def source():
    return source_of(lambda stream: stream.then(lengths).into(MemorySink()))


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture
def prefetcher(source, gate):
    prefetcher = Prefetcher([source], gate.run)
    prefetcher.open()
    yield prefetcher
    gate.opened.set()
    assert prefetcher.close(WAIT_SECONDS)


def long_chunks(count):
    return [messages(*[1 + n] * MANY) for n in range(count)]


def test_two_chunks_run_at_once_and_once_each(prefetcher, source, gate):
    chunks = long_chunks(2)
    for _ in range(3):
        prefetcher.prefetch([(source, chunk) for chunk in chunks])
    for _ in chunks:
        assert gate.begun.acquire(timeout=WAIT_SECONDS)  # the first has not ended
    gate.opened.set()
    for size, chunk in enumerate(chunks, start=1):
        piece = prefetcher.take(chunk).deliveries[0].piece
        assert piece["length"].to_pylist() == [size] * MANY
        assert prefetcher.take(chunk) is None  # the caller may change an outcome
    assert not gate.begun.acquire(blocking=False)
    assert all(name.startswith("prefetch") for name in gate.threads)


def test_chunks_that_are_missing_next_time_are_forgotten(prefetcher, source, gate):
    """A list is kept while it is begun, so that its id stays its own."""
    chunks = long_chunks(4)
    ids = {id(chunk) for chunk in chunks}
    prefetcher.prefetch([(source, chunk) for chunk in chunks])
    del chunks
    assert ids.isdisjoint({id(chunk) for chunk in long_chunks(20)})
    for _ in range(2):
        assert gate.begun.acquire(timeout=WAIT_SECONDS)
    prefetcher.prefetch([])
    opener = threading.Timer(0.05, gate.opened.set)
    opener.start()
    prefetcher.wait_idle()
    assert len(gate.threads) == 2, "no bolt runs any more"
    assert not gate.begun.acquire(blocking=False), "and the other chunks never did"
    opener.join()


def test_short_and_single_chunks_are_left_to_the_owner(prefetcher, source):
    short, (long,) = messages(1, 2), long_chunks(1)
    prefetcher.prefetch([(source, short), (source, short)])
    assert prefetcher.take(short) is None
    prefetcher.prefetch([(source, long)])
    assert prefetcher.take(long) is None


def test_a_bolt_that_does_not_return_holds_up_no_end(source, gate):
    """Promise 16: the exit has a deadline, and the threads are daemons."""
    prefetcher = Prefetcher([source], gate.run)
    prefetcher.open()
    prefetcher.prefetch([(source, chunk) for chunk in long_chunks(2)])
    assert gate.begun.acquire(timeout=WAIT_SECONDS)
    assert not prefetcher.close(0.0)
    gate.opened.set()
    assert prefetcher.close(WAIT_SECONDS)


def test_source_without_concurrent_bolts_needs_no_threads():
    source = source_of(lambda stream: stream.then(plain).into(MemorySink()))
    before = threading.active_count()
    executor = Executor([source])
    executor.prefetcher.open()
    executor.prefetcher.prefetch([(source, chunk) for chunk in long_chunks(2)])
    assert (executor.prefetcher.is_used, threading.active_count()) == (False, before)
    assert executor.prefetcher.close(WAIT_SECONDS)


def test_error_of_a_run_is_raised_by_take(source):
    def broken(_source, _records):
        raise MemoryError("no more")

    prefetcher = Prefetcher([source], broken)
    prefetcher.open()
    chunks = long_chunks(2)
    prefetcher.prefetch([(source, chunk) for chunk in chunks])
    with pytest.raises(MemoryError, match="no more"):
        prefetcher.take(chunks[0])
    assert prefetcher.close(WAIT_SECONDS)
