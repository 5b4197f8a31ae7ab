"""From when to when a run is measured: the partitions' opening is not part of it."""

import pytest

from benchmarks.bench import medians, opened
from benchmarks.measured import Memory, Moment, Opening, figures
from headrace import Bolt, Record, Topology
from headrace.sinks import DiscardSink, MemoryDeadLetters
from headrace.testing import topology_test


def test_what_was_read_before_all_partitions_were_open_counts_for_nothing():
    start = Moment(at=100.0, cpu=3.0, read=1_000)
    end = Moment(at=104.0, cpu=9.0, read=5_000)
    found = figures(start, end, Memory(5_000))
    assert found["records"] == 5_000
    assert found["per_second"] == pytest.approx(1_000)
    assert found["cpu_us"] == pytest.approx(1_500)


def test_the_opening_ends_with_the_first_partition_for_then_the_client_fetches():
    read = iter([0, 10])
    opening = Opening(lambda: next(read))
    assert opening.moment is None
    opening.partition_assigned("t", 0)
    opening.partition_assigned("t", 1)
    assert opening.moment is not None
    assert opening.moment.read == 0


def test_the_opening_is_noted_before_the_first_record_is_emitted():
    class Notes(Bolt[Record, Record]):
        def __init__(self) -> None:
            self.moments: list[Moment | None] = []

        def process(self, record: Record, /) -> Record:
            self.moments.append(opening.moment)
            return record

    opening, notes = Opening(lambda: 0), Notes()
    topology = Topology("measured")
    topology.source("numbers").then(notes).into(DiscardSink())
    topology.dead_letters.into(MemoryDeadLetters())
    topology.hooks(opening)
    with topology_test(topology) as test:
        test.send(b"1", b"2")
    assert opening.moment is not None
    assert notes.moments == [opening.moment] * 2


def test_how_long_the_opening_took_is_told_of_those_that_open_something():
    runs = {
        "raw": [{"records": 10}],
        "noop": [{"records": 10, "open_seconds": seconds} for seconds in (0.7, 0.41239, 0.2)],
    }
    assert opened({name: medians(each) for name, each in runs.items()}) == {"noop": 0.412}
