"""A chunk, in blocks or whole, gives what its records give one by one."""

import threading
from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import SKIP, Reject, To, Topology, bolt, custom, direct
from headrace.sinks import MemorySink
from partition.records import Partition
from tests.support.bolts import Own, columns
from tests.support.messages import message
from tests.support.patience import seconds
from topology import executor as executing
from topology.bolt import Kind
from topology.executor import Executor, Prefetcher
from topology.steps import BatchPolicy, BoltStep, SinkStep, Source, is_direct

PLACE = Partition("in", 0)
STREAMS = ("default", "side")


def number_of(value):
    return value.offset if hasattr(value, "offset") else value["n"]


def filters(salt):
    def function(value):
        n = number_of(value) + salt
        if n % 7 == 0:
            raise ValueError(n)
        return SKIP if n % 5 == 0 else {"n": n}

    return function


def fans_out(salt):
    def fan_out(value):
        n = number_of(value) + salt
        for each in range(n % 3):
            yield {"n": n + each} if each or n % 2 else To("side", {"n": n}, n % 3)
        if n % 11 == 0:
            raise Reject(str(n))

    return fan_out


def sorts_out(salt):
    def named(value):
        n = number_of(value) + salt
        stream = "unknown" if n % 10 == 0 else STREAMS[n % 2]
        return To(stream, {"n": n}, None if n % 13 == 0 else n % 3 + (n % 19 == 0))

    return named


def converts(salt):
    def columns(batch):
        names = ["n" if name == "offset" else name for name in batch.schema.names]
        made = dict(zip(names, batch.columns, strict=True))
        numbers = np.array(made["n"]) + salt
        if (numbers % 17 == 0).any():
            raise ValueError(numbers)
        out = pa.RecordBatch.from_pydict(made | {"n": pa.array(numbers)})
        return {
            stream: out.filter(pa.array(numbers % 2 == odd)) for odd, stream in enumerate(STREAMS)
        }

    return bolt(vectorised=True, columns=["offset"])(columns)


MAKERS = {
    Kind.FUNCTION: lambda salt: bolt((filters, sorts_out)[salt % 2](salt)),
    Kind.FAN_OUT: lambda salt: bolt(fans_out(salt)),
    Kind.VECTORISED: converts,
}


def made(kind, name, salt=0):
    if kind == "sink":
        return SinkStep(name, MemorySink(name), BatchPolicy())
    if kind in ("tasks", "direct"):
        by_number = custom(lambda value, count: number_of(value) % count)
        grouping = direct() if kind == "direct" else by_number
        return BoltStep(name, (Own(), Own(), Own()), Kind.FUNCTION, grouping=grouping)
    return BoltStep(name, (MAKERS[kind](salt),), kind)


@st.composite
def sources(draw):
    """A source and any steps behind it; columns go to columns and sinks only."""
    source, steps = Source("in"), []
    for place in range(draw(st.integers(1, 7))):
        kind = draw(st.sampled_from([*MAKERS, "sink", "tasks", "direct"]))
        ends = [
            step.streams.setdefault(stream, [])
            for step in steps
            if step.kind is not Kind.VECTORISED or kind in (Kind.VECTORISED, "sink")
            for stream in STREAMS
            if not step.streams.get(stream)
            or (kind == "direct") == any(map(is_direct, step.streams[stream]))
        ]
        if kind not in ("sink", "direct"):
            ends.append(source.children)
        if not ends:
            continue
        step = made(kind, f"s{place}", draw(st.integers(0, 40)))
        for end in draw(st.lists(st.sampled_from(ends), min_size=1, max_size=3)):
            if step not in end:
                end.append(step)
        steps += [step] if kind != "sink" else []
    for step in steps:
        for stream in STREAMS:
            if not step.streams.get(stream) and draw(st.integers(0, 7)):
                step.streams[stream] = [made("sink", f"{step.name}-{stream}")]
    return source


def found(outcomes):
    """All values by step and origin, the inputs that failed, and the calls of each step.

    `outcomes` has each with the index of its first input.
    """
    values, failed, calls = defaultdict(Counter), set(), Counter()
    for first, outcome in outcomes:
        for each in outcome.deliveries:
            piece = each.piece if isinstance(each.piece, list) else each.piece.to_pylist()
            parents = range(len(piece)) if each.parents is None else each.parents.tolist()
            tasks = each.tasks or [None] * len(piece)
            for value, parent, task in zip(piece, parents, tasks, strict=True):
                values[each.boundary.name, each.origin][first + parent, number_of(value), task] += 1
        failed |= {first + index for index in outcome.failures}
        for took in outcome.took:
            calls[took.step] += took.calls
    return values, failed, calls


@given(sources(), st.integers(1, 40), st.integers(1, 50))
def test_records_of_a_chunk_give_what_they_give_alone(source, count, size):
    messages = [message(PLACE, offset, b"") for offset in range(count)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executing, "BLOCK_RECORDS", size)
        together = Executor().run_source(source, messages)
        alone = [(n, Executor().run_source(source, [each])) for n, each in enumerate(messages)]
    assert found([(0, together)]) == found(alone)


@given(sources(), st.lists(st.integers(0, 9), max_size=9).map(sorted))
def test_results_of_calls_give_what_they_give_alone(source, parents):
    values = [{"n": 3 * place} for place in range(len(parents))]
    calls = {parent: [v for v, at in zip(values, parents, strict=True) if at == parent]
             for parent in parents}  # fmt: skip
    for step in source.children:
        if isinstance(step, BoltStep) and step.kind is not Kind.VECTORISED:
            together = Executor().run_after(step, values, np.array(parents, np.int64))
            alone = [
                (parent, Executor().run_after(step, its, np.zeros(len(its), np.int64)))
                for parent, its in calls.items()
            ]
            assert found([(0, together)]) == found(alone)


@pytest.mark.parametrize(
    ("behind", "is_whole"),
    [
        (lambda stream: stream, False),
        (lambda stream: stream.then(converts(0), streams=("side",)), True),
        (lambda stream: stream.then(Own, tasks=2).then(converts(0), streams=("side",)), False),
    ],
)
def test_only_a_chunk_before_a_vectorised_bolt_runs_whole(behind, is_whole, monkeypatch):
    monkeypatch.setattr(executing, "BLOCK_RECORDS", 2)
    seen = []
    topology = Topology("t")
    stream = topology.source("in")
    for name in "ab":
        stream = stream.then(bolt(lambda value, name=name: seen.append(name) or {"n": 1}))
    behind(stream).into(MemorySink())
    Executor().run_source(topology.sources[0], [message(PLACE, n, b"") for n in range(4)])
    assert "".join(seen) == ("aaaabbbb" if is_whole else "aabbaabb")


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


def messages(*lengths):
    return [message(PLACE, offset, b"x" * size) for offset, size in enumerate(lengths)]


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
        stream.map(lambda record: record.value.decode()).into(MemorySink("texts"))

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
