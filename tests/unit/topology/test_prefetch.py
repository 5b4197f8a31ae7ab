import threading

import pyarrow as pa
import pytest

from headrace import Reject, Topology, bolt
from headrace.sinks import MemorySink
from partition.records import Partition
from tests.support.bolts import columns
from tests.support.messages import message
from tests.support.patience import seconds
from topology import executor as executing
from topology.executor import Executor, Prefetcher

MANY = 600
WAIT_SECONDS = seconds(10.0)


@bolt(vectorised=True, columns=["value"], concurrent=True)
def lengths(batch):
    sizes = [len(value) for value in batch["value"].to_pylist()]
    if 13 in sizes:
        raise Reject("thirteen")
    return batch.append_column("length", pa.array(sizes)).drop_columns(["value"])


@bolt(vectorised=True, concurrent=True)
def even(batch):
    return batch.filter(pa.array([length % 2 == 0 for length in batch["length"].to_pylist()]))


@bolt
def text(record):
    return record.value.decode()


def messages(*lengths):
    place = Partition("in", 0)
    return [message(place, offset, b"x" * size) for offset, size in enumerate(lengths)]


def long_chunks(count):
    return [messages(*[1 + n] * MANY) for n in range(count)]


def source_of(draw):
    topology = Topology("drawn")
    draw(topology.source("in"))
    return topology.sources[0]


def test_prefetched_chunk_gives_the_same(monkeypatch):
    """Concurrent bolts run ahead, in a row and side by side, and no others."""

    def draw(stream):
        measured = stream.then(lengths)
        measured.then(even).into(MemorySink("evens"))
        measured.then(columns).into(MemorySink("all"))
        stream.then(text).into(MemorySink("texts"))

    monkeypatch.setattr(executing, "_LEAST_RECORDS", 1)
    source, records = source_of(draw), messages(1, 2, 13, 4)
    ahead = Executor().run_concurrent(source, records)
    assert sorted(each.boundary.name for each in ahead.deliveries) == ["columns", "evens"]
    executor = Executor([source])
    executor.prefetcher.open()
    executor.prefetcher.prefetch([(source, records), (source, messages(1))])
    monkeypatch.setattr(executor, "run_concurrent", None)  # it is not called again
    prefetched = executor.run_source(source, records)
    assert executor.prefetcher.close(WAIT_SECONDS)
    for outcome in (prefetched, Executor().run_source(source, records)):
        assert {index: str(each.error) for index, each in outcome.failures.items()} == {
            2: "thirteen"
        }
        found = {
            each.boundary.name: (
                each.piece if isinstance(each.piece, list) else each.piece["length"].to_pylist(),
                each.parents.tolist(),
            )
            for each in outcome.deliveries
        }
        assert found == {
            "all": ([1, 2, 4], [0, 1, 3]),
            "evens": ([2, 4], [1, 3]),
            "texts": (["x", "xx", "xxxx"], [0, 1, 3]),
        }


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

    def await_runs(self, count):
        """Wait until so many run, and no more."""
        for _ in range(count):
            assert self.begun.acquire(timeout=WAIT_SECONDS)
        assert not self.begun.acquire(blocking=False)


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


def test_two_chunks_run_at_once_and_once_each(prefetcher, source, gate):
    chunks = long_chunks(2)
    for _ in range(3):
        prefetcher.prefetch([(source, chunk) for chunk in chunks])
    gate.await_runs(2)  # the first has not ended
    gate.opened.set()
    for size, chunk in enumerate(chunks, start=1):
        piece = prefetcher.take(chunk).deliveries[0].piece
        assert piece["length"].to_pylist() == [size] * MANY
        assert prefetcher.take(chunk) is None  # the caller may change an outcome
    assert all(name.startswith("prefetch") for name in gate.threads)


def test_chunks_that_are_missing_next_time_are_forgotten(prefetcher, source, gate):
    """A list is kept while it is begun, so that its id stays its own."""
    chunks = long_chunks(4)
    ids = {id(chunk) for chunk in chunks}
    prefetcher.prefetch([(source, chunk) for chunk in chunks])
    del chunks
    assert ids.isdisjoint({id(chunk) for chunk in long_chunks(20)})
    gate.await_runs(2)
    prefetcher.prefetch([])
    opener = threading.Timer(0.05, gate.opened.set)
    opener.start()
    prefetcher.wait_idle()
    assert len(gate.threads) == 2, "no bolt runs any more"
    gate.await_runs(0)  # the other chunks never did
    opener.join()


def test_short_and_single_chunks_are_left_to_the_owner(prefetcher, source):
    short, (long,) = messages(1, 2), long_chunks(1)
    for upcoming in ([short, short], [long]):
        prefetcher.prefetch([(source, chunk) for chunk in upcoming])
        assert prefetcher.take(upcoming[0]) is None


def test_a_bolt_that_does_not_return_holds_up_no_end(prefetcher, source, gate):
    """Promise 16: the exit has a deadline, and the threads are daemons."""
    prefetcher.prefetch([(source, chunk) for chunk in long_chunks(2)])
    gate.await_runs(2)
    assert not prefetcher.close(0.0)


def test_source_without_concurrent_bolts_needs_no_threads():
    source = source_of(lambda stream: stream.then(columns).into(MemorySink()))
    before = threading.active_count()
    prefetcher = Executor([source]).prefetcher
    prefetcher.open()
    prefetcher.prefetch([(source, chunk) for chunk in long_chunks(2)])
    assert (prefetcher.is_used, threading.active_count()) == (False, before)


def test_error_of_a_run_is_raised_by_take(prefetcher, source, gate):
    gate.opened = None  # so that `run` raises
    chunks = long_chunks(2)
    prefetcher.prefetch([(source, chunk) for chunk in chunks])
    with pytest.raises(AttributeError, match="wait"):
        prefetcher.take(chunks[0])
    gate.opened = threading.Event()
