"""Concurrent bolts run ahead: what they give is what the executor would have got, or nothing."""

import threading

import pyarrow as pa
import pytest

from headrace import Reject, Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from partition.memory import MemoryMessage
from partition.records import Partition
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
    return [MemoryMessage(PLACE, offset, b"x" * size) for offset, size in enumerate(lengths)]


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


def test_the_executor_goes_on_from_what_was_run_ahead_as_if_it_had_run_all_itself(monkeypatch):
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


def test_ahead_of_its_turn_nothing_runs_but_concurrent_bolts():
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


def test_chunks_are_run_on_threads_of_their_own_two_at_once(prefetcher, source, gate):
    chunks = [messages(*[size] * MANY) for size in (1, 2)]
    prefetcher.prefetch([(source, chunk) for chunk in chunks])
    for _ in chunks:
        assert gate.begun.acquire(timeout=WAIT_SECONDS)  # the first has not ended
    gate.opened.set()
    for size, chunk in zip((1, 2), chunks, strict=True):
        piece = prefetcher.take(chunk).deliveries[0].piece
        assert piece["length"].to_pylist() == [size] * MANY
    assert all(name.startswith("prefetch") for name in gate.threads)


def test_a_chunk_is_begun_once_however_often_it_is_seen(prefetcher, source, gate):
    gate.opened.set()
    chunk, other = messages(*[1] * MANY), messages(1)
    for _ in range(3):
        prefetcher.prefetch([(source, chunk), (source, other)])
    prefetcher.prefetch([(source, chunk)])
    assert prefetcher.take(chunk) is not None
    assert gate.begun.acquire(blocking=False)
    assert not gate.begun.acquire(blocking=False)
    assert prefetcher.take(chunk) is None  # an outcome is changed by whoever takes it


def test_what_does_not_come_any_more_is_forgotten(prefetcher, source, gate):
    gate.opened.set()
    gone, stays = messages(*[1] * MANY), messages(*[2] * MANY)
    prefetcher.prefetch([(source, gone), (source, stays)])
    prefetcher.prefetch([(source, stays), (source, messages(1))])
    assert prefetcher.take(gone) is None
    assert prefetcher.take(stays) is not None


def test_a_chunk_that_is_short_or_comes_alone_is_left_to_the_owner(prefetcher, source):
    short, long = messages(1, 2), messages(*[1] * MANY)
    prefetcher.prefetch([(source, short), (source, short)])
    assert prefetcher.take(short) is None
    prefetcher.prefetch([(source, long)])
    assert prefetcher.take(long) is None


def test_a_chunk_that_was_begun_is_not_taken_for_a_later_one_at_its_place(prefetcher, source, gate):
    """What tells chunks apart is where their lists lie, so a list is kept while it is begun."""
    chunk = messages(*[1] * MANY)
    place = id(chunk)
    prefetcher.prefetch([(source, chunk), (source, messages(1))])
    del chunk
    others = [messages(*[2] * MANY) for _ in range(20)]
    assert place not in {id(other) for other in others}
    gate.opened.set()


def test_what_is_forgotten_before_its_turn_is_never_run(prefetcher, source, gate):
    chunks = [messages(*[1] * MANY) for _ in range(4)]
    prefetcher.prefetch([(source, chunk) for chunk in chunks])
    for _ in range(2):
        assert gate.begun.acquire(timeout=WAIT_SECONDS)
    prefetcher.prefetch([])
    gate.opened.set()
    prefetcher.wait_idle()
    assert not gate.begun.acquire(blocking=False)


def test_when_it_has_settled_no_bolt_is_at_work(prefetcher, source, gate):
    chunks = [messages(*[1] * MANY) for _ in range(2)]
    prefetcher.prefetch([(source, chunk) for chunk in chunks])
    for _ in chunks:
        assert gate.begun.acquire(timeout=WAIT_SECONDS)
    opener = threading.Timer(0.05, gate.opened.set)
    opener.start()
    prefetcher.wait_idle()
    assert len(gate.threads) == 2
    opener.join()


def test_a_bolt_that_does_not_return_holds_up_no_end(source, gate):
    """Promise 16: the exit has a deadline, and the threads are daemons."""
    prefetcher = Prefetcher([source], gate.run)
    prefetcher.open()
    prefetcher.prefetch([(source, messages(*[1] * MANY)) for _ in range(2)])
    assert gate.begun.acquire(timeout=WAIT_SECONDS)
    assert not prefetcher.close(0.0)
    gate.opened.set()
    assert prefetcher.close(WAIT_SECONDS)


def test_a_source_that_no_concurrent_bolt_reads_needs_no_threads():
    source = source_of(lambda stream: stream.then(plain).into(MemorySink()))
    before = threading.active_count()
    executor = Executor([source])
    executor.prefetcher.open()
    executor.prefetcher.prefetch([(source, messages(*[1] * MANY)) for _ in range(2)])
    assert not executor.prefetcher.is_used
    assert threading.active_count() == before
    assert executor.prefetcher.close(WAIT_SECONDS)


def test_what_breaks_a_run_is_raised_where_its_outcome_is_taken(source):
    def broken(_source, _records):
        raise MemoryError("no more")

    prefetcher = Prefetcher([source], broken)
    prefetcher.open()
    chunk = messages(*[1] * MANY)
    prefetcher.prefetch([(source, chunk), (source, messages(1))])
    with pytest.raises(MemoryError, match="no more"):
        prefetcher.take(chunk)
    assert prefetcher.close(WAIT_SECONDS)
