"""Where a test may end the process: what has happened at each place, and what has not."""

from typing import Any

import pytest

from headrace.sinks import MemorySink
from tests.support.consumer import ONE, TWO, Bench
from tests.support.failpoints import PLACES
from tests.support.pipeline import Works, text_unless_bad

STORED = [("offset_before_store", 2, 0), ("offset_after_store", 2, 2), ("offset_stored", 2, 2)]
WRITTEN = [("sink_before_stage", 0, 0), ("sink_before_commit", 0, 0), ("sink_after_commit", 2, 0)]
PLANNED = [("plan_before_store", 0, 0), ("plan_after_store", 0, 0), ("plan_stored", 0, 0)]
FENCED = ["claim_before_write", "claim_after_write", "sink_before_fence", "sink_after_fence"]
LETTERED = ["letter_sent", "letter_durable", *(place for place, _rows, _stored in STORED)]
GUARANTEES = pytest.mark.parametrize("exactly_once", [None, "transactional"])


def journey(*payloads, exactly_once):
    """Each place that is passed once the partition is open, its rows and offset at that moment."""
    sink: MemorySink[Any] = MemorySink("rows")
    passed: list[tuple[str, int, int]] = []

    def at(place):
        assert place in PLACES
        passed.append((place, len(sink.rows), works.stored))

    works = Works(text_unless_bad, sinks=[sink], at=at, exactly_once=exactly_once)
    with works:
        works.turn(5)
        passed.clear()
        works.send(*payloads)
        works.finish()
        works.turn(2)
    return passed


@GUARANTEES
def test_plans_rows_and_offsets_are_stored_in_order(exactly_once):
    """Promises 1 and 14, Storm 42: the plan before it is emitted, its rows before the offset."""
    passed = journey(b"a", b"b", exactly_once=exactly_once)
    assert passed == (PLANNED if exactly_once else []) + WRITTEN + STORED


@GUARANTEES
def test_dead_letter_is_durable_before_the_offset_is_stored(exactly_once):
    """Promise 3."""
    passed = [place for place, _rows, _stored in journey(b"bad", exactly_once=exactly_once)]
    assert [each for each in passed if each.startswith(("letter_", "offset_"))] == LETTERED


def test_sinks_are_fenced_when_the_claim_is_stored():
    passed: list[str] = []
    with Works(text_unless_bad, at=passed.append, exactly_once="transactional"):
        assert passed[:4] == FENCED


@pytest.mark.parametrize(("told", "count"), [(frozenset({ONE, TWO}), 0), (frozenset({TWO}), 1)])
def test_an_offset_of_a_partition_that_leaves_is_told_of(told, count):
    passed: list[str] = []
    bench = Bench(assignment={"shared": True}, at=passed.append)
    bench.reader.open()
    bench.reader.assignment.want({ONE, TWO}, planned_at=0.0, leave_by=60.0)
    bench.poll()
    bench.fill(ONE, 3)
    owners = bench.emit()
    assert len(owners) == 3
    bench.reader.assignment.want(told, planned_at=1.0, leave_by=60.0)
    bench.reader.poll(1.0)
    bench.ack(owners)
    bench.reader.commit(1.0, force=True)
    assert passed.count("leaving_offset_sent") == count
