from collections import Counter
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from headrace import Record, Retry, bolt
from headrace.sinks import MemorySink
from headrace.testing import topology_test
from partition.manager import InFlightLimits
from tests.support import pipeline
from tests.support.patience import Limit
from tests.support.spark_engine import HereSink
from topology.errors import SinkBusy

NOT_NOW = [OSError("not now")] * 1_000


def exactly_once(*sinks, kind="transactional", bolt_=pipeline.text_of, **options):
    return pipeline.Works(bolt_, sinks=sinks, exactly_once=kind, **options)


def following(works, **options):
    kind = works.topology.transactions
    return exactly_once(*works.sinks, kind=kind, nodes=works.nodes, log=works.log, **options)


def transactions(works):
    return pipeline.stored_in(works.nodes, pipeline.PLACE).transactions


def numbers(*values):
    return [str(value).encode() for value in values]


def test_rejected_row_has_its_dead_letter_before_the_commit():
    sink = HereSink()
    sink.rejects = {"bad"}
    with exactly_once(sink) as works:
        works.letters_sink.holding = True
        works.send(b"a", b"bad", b"c")
        works.until(lambda: len(works.letters_sink.letters) == 1)
        works.turn(20)
        assert sink.rows == []
        works.letters_sink.holding = False
        works.finish()
        assert sink.rows == ["a", "c"]
        assert len(works.letters_sink.letters) == 1
        counters = works.pipeline.counters
        assert (counters.written, counters.dead_lettered, counters.filtered) == (2, 1, 0)


@pytest.mark.parametrize("kind", ["transactional", "opaque"])
def test_transaction_open_at_a_crash_is_done_once(kind):
    """Storm 39. The first life ends with a record that its async bolt never gave back."""
    door = pipeline.Door()
    with exactly_once(HereSink(), kind=kind, bolt_=door.as_bolt(), workers=4) as first:
        first.send(*numbers(0, 1, 2, 3))
        first.until(lambda: door.answered == 3)
        assert transactions(first).open
        assert first.sink.rows == []
        door.open()
    with following(first) as second:
        second.finish()
        assert sorted(second.sink.rows) == ["0", "1", "2", "3"]


def test_sink_gets_no_transaction_twice():
    """One sink had committed when the process ended, the other had not."""
    left, right = HereSink("left"), HereSink("right")
    right.errors = list(NOT_NOW)
    with exactly_once(left, right, kind="opaque") as first:
        first.send(b"a", b"b")
        first.until(lambda: len(left.rows) == 2)
    right.errors.clear()
    with following(first) as second:
        second.send(b"c")
        second.finish()
        assert left.rows == right.rows == ["a", "b", "c"]
        assert [outlet.rows_pending for outlet in second.pipeline.outlets] == [0, 0]


def test_full_batch_closes_a_transaction():
    sink = HereSink()
    with exactly_once(sink, batch_rows=10, fetch_records=4) as works:
        works.send(*numbers(*range(100)))
        end = Limit(pipeline.PATIENCE_SECONDS)
        while len(sink.rows) < 80:  # without a flush, which would end one at each turn
            assert not end.passed
            works.pipeline.step()
        assert all(rows <= 40 for _line, _txid, rows in sink.shares)
        works.finish()
        assert len(sink.rows) == 100


def test_slow_sink_holds_back_a_fan_out():
    """Promise 10."""

    @bolt
    def spread(record: Record) -> Iterator[int]:
        yield from range(100)

    stuck = HereSink()
    stuck.commit = Mock(side_effect=SinkBusy(0.05))
    sizes = {"fetch_records": 10, "chunk_records": 10, "transaction_records": 100}
    with exactly_once(stuck, bolt_=spread, batch_rows=1_000, max_active=50, **sizes) as works:
        works.send(*[b"x"] * 2_000)
        works.turn(60)
        assert 3_000 < works.pipeline.outlets[0].rows_pending < 3_000 + 2 * 100 * 100
        assert works.ledger.emitted_to < 300


@pytest.mark.parametrize("away", ["nothing", "the sink", "the store"])
def test_waiting_records_stay_bounded_and_all_flow_afterwards(away):
    """Promises 10 and 15."""
    sink = HereSink()
    sizes = {"fetch_records": 10, "chunk_records": 8, "transaction_records": 20}
    window = InFlightLimits(max_pending=200)
    with exactly_once(sink, window=window, **sizes) as works:
        works.send(*numbers(*range(600)))
        sink.errors, works.nodes.away = NOT_NOW * (away == "the sink"), away == "the store"
        most = 0
        for _ in range(100):
            works.turn()
            most = max(most, works.ledger.waiting)
        sink.errors, works.nodes.away = [], False
        works.until(lambda: works.advance(0.1, step=0.1) or works.stored == 600)
        assert most <= 150
        assert sorted(map(int, sink.rows)) == list(range(600))


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_rows_of_a_failed_attempt_are_dropped_and_its_transaction_waits(kind):
    """Promise 4: one branch's rows were ready before the other branch failed."""
    tries: Counter[str] = Counter()

    def stumble(value):
        tries[value] += 1
        if value == "2" and tries[value] == 1:
            raise Retry("once more")
        return value

    def draw(stream):
        stream.into(MemorySink("plain"))
        stream.then(pipeline.as_bolt(kind, stumble)).into(MemorySink("stumbling"))

    topology = pipeline.drawn(draw, first=pipeline.text_of, reliability="exactly-once")
    with topology_test(topology) as test:
        test.send(*numbers(1, 2, 3))
        for later in range(4, 10):
            test.send(*numbers(later))
        assert (test.rows, test.acked, test.retrying, test.unresolved) == ([], [], 1, 9)
        test.send(*numbers(10), partition=1)
        assert test.rows == ["10", "10"], "another partition's transactions do not wait"
        test.advance(10)
        for sink in ("plain", "stumbling"):
            assert sorted(map(int, test.rows_of(sink))) == list(range(1, 11))
        assert (len(test.acked), test.unresolved) == (10, 0)
        assert tries["3"] == 1, "only the record itself is tried again"
