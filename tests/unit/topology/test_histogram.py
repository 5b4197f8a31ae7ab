"""Histograms of durations, and the call times of every kind of bolt."""

import asyncio
import time

import pyarrow as pa
import pytest

from headrace import AdvancedBolt, Topology, bolt
from headrace.sinks import DiscardSink, MemoryDeadLetters
from headrace.testing import topology_test
from topology.monitoring import BOUNDS, Histogram


def buckets(spread):
    limits = (*BOUNDS, float("inf"))
    return {limit: n for limit, n in zip(limits, spread.counts, strict=True) if n}


def test_duration_is_counted_below_its_bound_and_several_with_their_mean():
    histogram = Histogram()
    for seconds in (0.0, 0.001, 0.0011, 1_000.0):
        histogram.add(seconds)
    before = histogram.distribution()
    assert buckets(before) == {0.000_001: 1, 0.001: 1, 0.005: 1, float("inf"): 1}
    assert before.seconds == pytest.approx(1_000.0021)
    histogram.add(2.0, 1_000)
    histogram.add(2.0, 0)
    assert buckets(histogram.distribution())[0.005] == 1_001
    assert before.count == 4, "a snapshot"


def test_durations_together_count_as_one_by_one():
    seconds = [bound * factor for bound in BOUNDS for factor in (0.9, 1.0, 1.1)]
    one_by_one, at_once = Histogram(), Histogram()
    for each in seconds:
        one_by_one.add(each)
    at_once.add_each(seconds)
    assert at_once.distribution().counts == one_by_one.distribution().counts
    assert at_once.distribution().seconds == pytest.approx(one_by_one.distribution().seconds)


def test_calls_that_were_not_timed_count_like_the_others():
    histogram = Histogram()
    histogram.add_each([0.002, 0.002, 0.2], others=4)
    assert buckets(histogram.distribution()) == {0.005: 5, 0.5: 2}
    assert histogram.distribution().seconds == pytest.approx(0.204 * 7 / 3)


SECONDS = 0.02  # of a call, or per row


@bolt
def plain(value):
    time.sleep(SECONDS)
    return value


@bolt
def many(value):
    time.sleep(SECONDS)
    yield value
    yield value


@bolt
async def waiting(value):
    await asyncio.sleep(SECONDS)
    return value


@bolt(vectorised=True)
def columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(SECONDS * batch.num_rows)
    return batch


class Advanced(AdvancedBolt):
    def process(self, tuple_, collector):
        time.sleep(SECONDS)
        collector.ack(tuple_)


BLOCKING = bolt(blocking=True)(plain.function)


@pytest.mark.parametrize("step", [plain, "ordered", many, waiting, BLOCKING, columns, Advanced])
def test_calls_of_every_kind_of_bolt_are_timed(step):
    topology = Topology("times")
    stream = topology.source("times")
    stream = stream.ordered() if step == "ordered" else stream
    stream.then(plain if step == "ordered" else step, name="step").into(DiscardSink())
    topology.dead_letters.into(MemoryDeadLetters())
    with topology_test(topology) as kit:
        kit.send(b"1", b"2", b"3")
        spread = kit._pipeline.statistics().call_times["step"]
    assert spread.count == 3
    assert 3 * SECONDS * 0.9 <= spread.seconds < 10
    assert min(buckets(spread)) >= 0.01
