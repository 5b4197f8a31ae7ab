"""Chunks that run in blocks: the result is that of the whole chunk."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import SKIP, Bolt, Reject, To, Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from partition.records import Partition
from tests.support.messages import message
from topology import executor as executing
from topology.executor import Executor

PLACE = Partition("in", 0)


@bolt
def number(record):
    return int(record.value)


@bolt
def some(value):
    if value % 7 == 3:
        raise Reject("three")
    return SKIP if value % 5 == 0 else value


@bolt
def twice(value):
    yield value
    if value % 11 == 4:
        raise ValueError(value)
    yield -value


@bolt
def parted(value):
    return To("odd", value) if value % 2 else value


@bolt(vectorised=True)
def columns(batch):
    return batch


class Own(Bolt):
    def process(self, value, /):
        return value


def draw_all(stream):
    """Filters, fan-out, named streams, tasks, and one sink reached on two ways from one step."""
    read = stream.then(number)
    kept = read.then(some)
    kept.then(twice).into(MemorySink("twice"))
    odd = kept.then(parted, streams=("odd",))
    odd.into(MemorySink("even"))
    odd["odd"].then(Own, tasks=3).into(MemorySink("tasks"))
    read.into(MemorySink("read"))


def source_of(draw):
    topology = Topology("drawn")
    topology.dead_letters.into(MemoryDeadLetters())
    draw(topology.source("in"))
    topology.validate()
    return topology.sources[0]


def found(outcome):
    """(boundary, origin, input, value, task) of all that is delivered, in order; what failed."""
    delivered = [
        (each.boundary.name, each.origin, int(parent), value, task)
        for each in outcome.deliveries
        for value, parent, task in zip(
            each.piece,
            np.arange(len(each.piece)) if each.parents is None else each.parents,
            each.tasks or [None] * len(each.piece),
            strict=True,
        )
    ]
    failed = {place: (each.step, str(each.error)) for place, each in outcome.failures.items()}
    return sorted(delivered, key=lambda each: each[:2]), failed


def ran(source, values, *, size=None):
    """What comes of the values, in blocks of `size`, or as a whole."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executing, "BLOCK_RECORDS", size or len(values) + 1)
        messages = [message(PLACE, n, b"%d" % value) for n, value in enumerate(values)]
        return Executor().run_source(source, messages)


@given(st.lists(st.integers(0, 60), max_size=40), st.integers(1, 9))
def test_blocks_of_any_size_give_the_same(values, size):
    source = source_of(draw_all)
    assert found(ran(source, values, size=size)) == found(ran(source, values))


def test_blocks_without_drops_need_no_parents():
    source = source_of(lambda stream: stream.then(number).into(MemorySink()))
    (delivery,) = ran(source, range(10), size=3).deliveries
    assert (delivery.parents, delivery.piece) == (None, list(range(10)))


@pytest.mark.parametrize(
    ("behind", "is_whole"),
    [
        (lambda stream: stream, False),
        (lambda stream: stream.then(columns), True),
        (lambda stream: stream.then(Own, tasks=2).then(columns), False),
    ],
)
def test_chunk_runs_whole_before_a_vectorised_bolt(behind, is_whole):
    seen = []

    def noting(name):
        return bolt(lambda value: (seen.append(name), {"n": 1})[1])

    def draw(stream):
        read = stream.then(noting("a"), name="a").then(noting("b"), name="b")
        behind(read).into(MemorySink())

    ran(source_of(draw), range(4), size=2)
    assert "".join(seen) == ("aaaabbbb" if is_whole else "aabbaabb")
