"""Histograms of times, and what is counted into them."""

import asyncio
import time

import pyarrow as pa
import pytest

from headrace import AdvancedBolt, Topology, bolt
from headrace.sinks import DiscardSink, MemoryDeadLetters
from headrace.testing import topology_test
from topology.histogram import BOUNDS, Distribution, Histogram


def places(spread: Distribution) -> dict[float, int]:
    limits = (*BOUNDS, float("inf"))
    return {limit: n for limit, n in zip(limits, spread.counts, strict=True) if n}


def test_a_time_is_counted_below_the_first_bound_that_it_does_not_pass():
    histogram = Histogram()
    for seconds in (0.0, 0.001, 0.0011, 1_000.0):
        histogram.add(seconds)
    assert places(histogram.figures()) == {0.000_001: 1, 0.001: 1, 0.005: 1, float("inf"): 1}
    assert histogram.figures().seconds == pytest.approx(1_000.0021)


def test_several_that_took_so_long_together_count_with_their_mean():
    histogram = Histogram()
    histogram.add(2.0, 1_000)
    histogram.add(2.0, 0)
    assert places(histogram.figures()) == {0.005: 1_000}
    assert histogram.figures().seconds == 2.0


def test_single_times_are_counted_as_one_by_one():
    seconds = [bound * factor for bound in BOUNDS for factor in (0.9, 1.0, 1.1)]
    one_by_one, at_once = Histogram(), Histogram()
    for each in seconds:
        one_by_one.add(each)
    at_once.add_each(seconds)
    assert at_once.figures().counts == one_by_one.figures().counts
    assert at_once.figures().seconds == pytest.approx(one_by_one.figures().seconds)


def test_figures_are_of_their_moment():
    histogram = Histogram()
    histogram.add(0.3, 3)
    before = histogram.figures()
    histogram.add_each([0.1])
    assert before.count == 3
    assert histogram.figures().count == 4


class Slow:
    """Every kind of bolt, each with 20 ms for a value or for a chunk of them."""

    seconds = 0.02


@bolt
def plain(value):
    time.sleep(Slow.seconds)
    return value


@bolt
def many(value):
    time.sleep(Slow.seconds)
    yield value
    yield value


@bolt
async def waiting(value):
    await asyncio.sleep(Slow.seconds)
    return value


@bolt(blocking=True)
def blocking(value):
    time.sleep(Slow.seconds)
    return value


@bolt(vectorised=True)
def columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(Slow.seconds * batch.num_rows)
    return batch


class Advanced(AdvancedBolt):
    def process(self, tuple_, collector):
        time.sleep(Slow.seconds)
        collector.ack(tuple_)


@pytest.mark.parametrize(
    ("step", "is_ordered"),
    [
        (plain, False), (plain, True), (many, False), (waiting, False), (blocking, False),
        (columns, False), (Advanced(), False),
    ],
    ids=["function", "in order", "generator", "async", "blocking", "vectorised", "advanced"],
)  # fmt: skip
def test_calls_of_every_kind_of_bolt_are_counted_with_their_times(step, is_ordered):
    topology = Topology("times")
    stream = topology.source("times")
    if is_ordered:
        stream = stream.ordered()
    stream.then(step, name="step").into(DiscardSink())
    topology.dead_letters.into(MemoryDeadLetters())
    with topology_test(topology) as kit:
        kit.send(b"1", b"2", b"3")
        spread = kit._bench.pipeline.statistics().call_times["step"]
    assert spread.count == 3
    assert 3 * Slow.seconds * 0.9 <= spread.seconds < 10
    assert min(places(spread)) >= 0.01


def test_calls_that_were_not_timed_count_as_those_that_were_and_none_is_missed():
    histogram = Histogram()
    histogram.add_each([0.002, 0.002, 0.2], others=4)
    figures = histogram.figures()
    assert figures.count == 7
    assert figures.counts[BOUNDS.index(0.005)] == 5
    assert figures.counts[BOUNDS.index(0.5)] == 2
    assert figures.seconds == pytest.approx(0.204 * 7 / 3)
    histogram.add_each([0.002], others=0)
    assert histogram.figures().count == 8
