"""What a bolt raises, returns or asks for by mistake costs its own record, and no other (B01)."""

import json

import pyarrow as pa
import pytest

from headrace import (
    AdvancedBolt,
    Record,
    Reject,
    Retry,
    RetryPolicy,
    Skip,
    To,
    Topology,
    bolt,
)
from headrace.sinks import MemoryDeadLetters, MemorySink
from headrace.testing import topology_test

ONCE = RetryPolicy(limit=1, initial_seconds=1, jitter=0)
NUMBERS = [b'{"n":%d}' % n for n in range(4)]
OTHERS = [{"n": 0}, {"n": 2}, {"n": 3}]


@bolt
def parse(record: Record) -> dict:
    return json.loads(record.value or b"")


def drawn(draw) -> Topology:
    made = Topology("t")
    draw(made.source("a").then(parse))
    made.dead_letters.into(MemoryDeadLetters())
    return made


def through(made, **options) -> Topology:
    return drawn(lambda stream: stream.then(made, **options).into(MemorySink("s")))


def test_column_named_like_the_lineage_is_kept():
    @bolt(vectorised=True)
    def same(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    with topology_test(through(same)) as kit:
        kit.send(*NUMBERS, b'{"n":9,"__parent":1,"__parent_":2}')
        assert [row["n"] for row in kit.rows] == [0, 1, 2, 3, 9]
        assert kit.rows[-1] == {"n": 9, "__parent": 1, "__parent_": 2}


@pytest.mark.parametrize("after", [float("nan"), float("inf"), -1, "5"])
def test_invalid_retry_pause_fails_its_record_alone(after):
    @bolt
    def waits(value: dict) -> dict:
        if value["n"] == 1:
            raise Retry("odd", after_seconds=after)
        if value["n"] == 2 and kit.now < 1:
            raise Retry("soon", after_seconds=1)
        return value

    with topology_test(through(waits), retries=ONCE) as kit:
        kit.send(*NUMBERS).advance(1000)
        assert sorted(kit.rows, key=str) == OTHERS
        (letter,) = kit.rejected
        assert "expected a finite number >= 0" in letter.reason


def test_error_without_a_text_fails_its_record_alone():
    class Untold(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    @bolt
    def fails(value: dict) -> dict:
        if value["n"] == 1:
            raise Untold
        return value

    with topology_test(through(fails), retries=ONCE) as kit:
        kit.send(*NUMBERS).advance(60)
        assert kit.rows == OTHERS
        assert [letter.reason for letter in kit.rejected] == ["Untold"]


@pytest.mark.parametrize("signal", [Reject("no"), Retry("later"), Skip, To("default", Reject("x"))])
@pytest.mark.parametrize("kind", ["function", "generator", "async", "emit"])
def test_signal_in_place_of_a_value_is_an_error(kind, signal):
    def function(_value):
        return signal

    def generator(_value):
        yield signal

    async def later(_value):
        return signal

    class Emits(AdvancedBolt):
        def process(self, tuple_, collector):
            collector.emit(signal, anchors=tuple_)
            collector.ack(tuple_)

    made = {"function": bolt(function), "generator": bolt(generator), "async": bolt(later)}
    with topology_test(through(made.get(kind, Emits))) as kit:
        kit.send(b'{"n":1}')
        assert kit.rows == []
        assert len(kit.rejected) == 1


def test_skip_is_one_however_it_is_made():
    assert Skip() is Skip()


@pytest.mark.parametrize("asked", ["reset_timeout", "fail"])
def test_invalid_collector_call_fails_its_tuple_alone(asked):
    class Asks(AdvancedBolt):
        def process(self, tuple_, collector):
            if tuple_.value["n"] == 1:
                if asked == "fail":
                    collector.fail(tuple_, "text")
                collector.reset_timeout("x")
            collector.emit(tuple_.value, anchors=tuple_)
            collector.ack(tuple_)

    with topology_test(through(Asks), retries=ONCE) as kit:
        kit.send(*NUMBERS).advance(60)
        assert kit.rows == OTHERS
        (letter,) = kit.rejected
        assert ", expected " in letter.reason
