"""The executor's stack runs any steps as recursion did, in the same order."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import SKIP, Bolt, Reject, To, bolt, direct
from headrace.sinks import MemorySink
from partition.records import Partition
from tests.oracles.recursive_executor import RecursiveExecutor
from tests.support.messages import message
from topology import executor as executing
from topology.bolt import Kind
from topology.executor import Executor
from topology.grouping import shuffle
from topology.steps import BatchPolicy, BoltStep, SinkStep, Source, is_direct

PLACE = Partition("in", 0)


def number_of(value):
    return value.offset if hasattr(value, "offset") else value["n"]


def plain(salt):
    @bolt
    def function(value):
        n = number_of(value) + salt
        if n % 7 == 0:
            raise ValueError(n)
        return SKIP if n % 5 == 0 else {"n": n}

    return function


def many(salt):
    @bolt
    def fan_out(value):
        n = number_of(value) + salt
        for each in range(n % 3):
            yield {"n": n + each} if each or n % 2 else To("side", {"n": n}, n % 3)
        if n % 11 == 0:
            raise Reject(str(n))

    return fan_out


def sorted_out(salt):
    @bolt
    def named(value):
        n = number_of(value) + salt
        stream = "unknown" if n % 10 == 0 else STREAMS[n % 2]
        return To(stream, {"n": n}, None if n % 13 == 0 else n % 3 + (n % 19 == 0))

    return named


def columns(salt):
    @bolt(vectorised=True, columns=["offset"])
    def vectorised(batch):
        names = ["n" if name == "offset" else name for name in batch.schema.names]
        numbers = [n + salt for n in batch.column(names.index("n")).to_pylist()]
        if any(n % 17 == 0 for n in numbers):
            raise ValueError(numbers)
        arrays = [
            pa.array(numbers) if name == "n" else batch.column(place)
            for place, name in enumerate(names)
        ]
        made = pa.RecordBatch.from_arrays(arrays, names=names)
        odd = pa.array([n % 2 == 1 for n in numbers])
        even = pa.array([n % 2 == 0 for n in numbers])
        return {"default": made.filter(odd), "side": made.filter(even)}

    return vectorised


class Own(Bolt):
    def process(self, value, /):
        return value


MAKERS = {
    Kind.FUNCTION: (plain, sorted_out),
    Kind.FAN_OUT: (many,),
    Kind.VECTORISED: (columns,),
}
STREAMS = ("default", "side")


@st.composite
def any_steps(draw):
    """A source and the steps behind it; columns go to columns and sinks only."""
    source, steps = Source("in"), []
    for place in range(draw(st.integers(1, 7))):
        kind = draw(st.sampled_from([*MAKERS, "sink", "tasks", "direct"]))
        ends = [
            (step, stream)
            for step in steps
            if isinstance(step, BoltStep)
            for stream in STREAMS
            if not step.streams.get(stream)
            or (kind == "direct") == any(map(is_direct, step.streams[stream]))
            if step.kind is not Kind.VECTORISED or kind in (Kind.VECTORISED, "sink")
        ]
        if kind not in ("sink", "direct"):
            ends.append((source, None))
        if not ends:
            continue
        step = made(kind, place, draw(st.integers(0, 40)), draw)
        for end, stream in draw(st.lists(st.sampled_from(ends), min_size=1, max_size=3)):
            children = source.children if end is source else end.streams.setdefault(stream, [])
            if step not in children:
                children.append(step)
        steps.append(step)
    for step in steps:
        for stream in STREAMS if isinstance(step, BoltStep) else ():
            if not step.streams.get(stream) and draw(st.integers(0, 7)):
                end = made("sink", f"{step.name}-{stream}", 0, draw)
                step.streams.setdefault(stream, []).append(end)
    return source


def made(kind, place, salt, draw):
    name = f"s{place}"
    if kind == "sink":
        return SinkStep(name, MemorySink(name), BatchPolicy())
    if kind in ("tasks", "direct"):
        grouping = direct() if kind == "direct" else shuffle()
        return BoltStep(name, tuple(Own() for _ in range(3)), Kind.FUNCTION, grouping=grouping)
    return BoltStep(name, (draw(st.sampled_from(MAKERS[kind]))(salt),), kind)


def found(outcome):
    """All deliveries and failures, in order, and the order of the calls."""
    delivered = [
        (
            each.boundary.name,
            each.origin,
            [number_of(v) for v in each.piece]
            if isinstance(each.piece, list)
            else each.piece.to_pylist(),
            list(range(len(each.piece))) if each.parents is None else each.parents.tolist(),
            each.tasks,
        )
        for each in outcome.deliveries
    ]
    failed = [(place, each.step, repr(each.error)) for place, each in outcome.failures.items()]
    return delivered, failed, [(took.step, took.calls) for took in outcome.took]


@given(any_steps(), st.integers(1, 40))
def test_any_chunk_comes_to_the_same_in_the_same_order(source, count):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executing, "BLOCK_RECORDS", 100)
        new, old = Executor(), RecursiveExecutor()
        for start in (0, count):  # the second goes on with the tasks' turns
            messages = [message(PLACE, start + each, b"") for each in range(count)]
            assert found(new.run_source(source, messages)) == found(
                old.run_source(source, messages)
            )


@given(any_steps(), st.lists(st.integers(0, 9), max_size=9).map(sorted))
def test_what_calls_gave_goes_on_in_the_same_order(source, parents):
    values = [{"n": 3 * place} for place in range(len(parents))]
    at = np.array(parents, np.int64)
    for step in source.children:
        if isinstance(step, BoltStep) and step.kind is not Kind.VECTORISED:
            assert found(Executor().run_after(step, values, at)) == found(
                RecursiveExecutor().run_after(step, values, at)
            )
