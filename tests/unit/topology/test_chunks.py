"""A chunk, in blocks or whole, gives what its records give one by one."""

from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import SKIP, Reject, To, Topology, bolt, custom, direct
from headrace.sinks import MemorySink
from partition.records import Partition
from tests.support.bolts import Own
from tests.support.messages import message
from topology import executor as executing
from topology.bolt import Kind
from topology.executor import Executor
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
