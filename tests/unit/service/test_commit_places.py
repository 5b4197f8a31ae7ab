"""Where a test may end the process: what has happened at each place, and what has not."""

from typing import Any

import pytest

from headrace import Record, Reject, bolt
from headrace.sinks import MemorySink
from service.failpoints import PLACES
from tests.support.consumer import ONE, TWO, Bench
from tests.support.pipeline import Works


@bolt
def text(record: Record) -> str:
    value = (record.value or b"").decode()
    if value == "bad":
        raise Reject("it is bad")
    return value


class Journey:
    """Notes each place that is passed, and what is there at that moment."""

    def __init__(self) -> None:
        self.sink: MemorySink[Any] = MemorySink("rows")
        self.passed: list[tuple[str, int, int]] = []
        self.works: Works | None = None

    def __call__(self, place: str) -> None:
        stored = -1 if self.works is None else self.works.stored
        self.passed.append((place, len(self.sink.rows), stored))

    def places(self) -> list[str]:
        """The places that were passed since the partition was open."""
        return [place for place, _, _ in self.passed]

    def run(self, *payloads: bytes, **options: Any) -> None:
        """Process records, from the moment on when the partition is open."""
        self.works = Works(text, sinks=[self.sink], at=self, **options)
        with self.works as works:
            self.passed.clear()
            works.send(*payloads)
            works.finish()
            works.turn(2)


@pytest.fixture
def journey() -> Journey:
    return Journey()


def test_exactly_once_stores_the_plan_first(
    journey: Journey,
) -> None:
    """Promise 14: nothing of it is emitted before; promise 1: no offset is stored before."""
    journey.run(b"a", b"b", exactly_once="transactional")
    assert journey.passed == [
        ("plan_before_store", 0, 0),
        ("plan_after_store", 0, 0),
        ("plan_stored", 0, 0),
        ("sink_before_stage", 0, 0),
        ("sink_before_commit", 0, 0),
        ("sink_after_commit", 2, 0),
        ("offset_before_store", 2, 0),
        ("offset_after_store", 2, 2),
        ("offset_stored", 2, 2),
    ]


def test_rows_are_durable_before_the_offset_is_stored(journey: Journey) -> None:
    """Promise 1: at no place is an offset stored whose row is not durable."""
    journey.run(b"a", b"b")
    assert [each for each in journey.passed if not each[0].endswith("_fence")] == [
        ("sink_before_stage", 0, 0),
        ("sink_before_commit", 0, 0),
        ("sink_after_commit", 2, 0),
        ("offset_before_store", 2, 0),
        ("offset_after_store", 2, 2),
        ("offset_stored", 2, 2),
    ]


@pytest.mark.parametrize("options", [{}, {"exactly_once": "transactional"}])
def test_dead_letter_is_durable_before_the_offset_is_stored(
    journey: Journey, options: dict[str, Any]
) -> None:
    """Promise 3."""
    journey.run(b"bad", **options)
    places = [place for place in journey.places() if place.startswith(("letter_", "offset_"))]
    assert places == [
        "letter_sent",
        "letter_durable",
        "offset_before_store",
        "offset_after_store",
        "offset_stored",
    ]


def test_every_place_that_is_passed_is_known(journey: Journey) -> None:
    journey.run(b"a", b"bad", exactly_once="opaque")
    assert set(journey.places()) <= set(PLACES)


@pytest.mark.parametrize(("told", "count"), [(frozenset({ONE, TWO}), 0), (frozenset({TWO}), 1)])
def test_an_offset_of_a_partition_that_leaves_is_told_of(told: frozenset[Any], count: int) -> None:
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
