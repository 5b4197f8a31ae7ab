"""The test kit with every kind of bolt, and what happens by itself as time passes."""

from itertools import pairwise
from typing import Any

import pytest

from headrace import InvalidTopology, Record, Topology, bolt, reference
from headrace.sinks import MemoryDeadLetters, MemorySink
from headrace.testing import RetryPolicy, topology_test
from tests.support.chaos import spoil_all
from topology.advanced import AdvancedBolt, Collector, Tuple


@bolt
def number(record: Record) -> dict[str, int]:
    return {"n": int(record.value or b"")}


def ending(topology: Topology, stream: Any, sink: Any = None) -> Topology:
    stream.into(sink or MemorySink("out"))
    topology.dead_letters.into(MemoryDeadLetters())
    return topology


def values(*numbers: int) -> list[bytes]:
    return [str(n).encode() for n in numbers]


class Keeps(AdvancedBolt[dict[str, int], dict[str, int]]):
    """Keeps what it gets until a tick, a drain, or for ever."""

    tick_seconds = 10.0

    def __init__(self) -> None:
        self.kept: list[Tuple[dict[str, int]]] = []
        self.ticked_at: list[float] = []
        self.answers = True

    def process(
        self, tuple_: Tuple[dict[str, int]], collector: Collector[dict[str, int]], /
    ) -> None:
        self.kept.append(tuple_)

    def tick(self, collector: Collector[dict[str, int]], /) -> None:
        self.ticked_at.append(collector.now)
        if self.answers:
            self.drain(collector)

    def drain(self, collector: Collector[dict[str, int]], /) -> None:
        for tuple_ in self.kept:
            collector.emit(tuple_.value, anchors=tuple_)
            collector.ack(tuple_)
        self.kept.clear()


def keeping(keeps: Keeps) -> Topology:
    topology = Topology("keeping")
    return ending(topology, topology.source("numbers").then(number).then(keeps))


def test_a_record_that_a_bolt_keeps_has_settled_and_is_not_resolved():
    keeps = Keeps()
    with topology_test(keeping(keeps)) as kit:
        kit.send(*values(1, 2))
        assert (kit.unresolved, kit.retrying, kit.rows) == (2, 0, [])
        assert [e.what for e in kit.history(0)] == ["read"]
        kit.advance(9.9)
        assert keeps.ticked_at == []
        kit.advance(0.2)
        assert kit.unresolved == 0
        assert [row["n"] for row in kit.rows] == [1, 2]


def test_reference_tables_are_those_that_a_run_would_load():
    airports = reference("airports.csv", key="faa", value="name")
    rows = [{"faa": "JFK", "name": "Kennedy"}]
    topology = Topology("names")
    ending(topology, topology.source("codes").then(number))
    kit = topology_test(topology, references={airports: rows})
    with pytest.raises(InvalidTopology, match=r"reference 'airports'.*a run would not load it"):
        kit.__enter__()
    assert not airports.is_loaded
    topology.uses(airports)
    kit = topology_test(topology)
    with pytest.raises(InvalidTopology, match="'airports' of topology 'names' has no rows"):
        kit.send(b"1")
    airports.load(rows)
    with topology_test(topology) as kit:
        assert kit.send(b"1").unresolved == 0
    airports.unload()


def test_a_rate_limit_is_kept_by_the_tests_time():
    topology = Topology("limited")
    ending(topology, topology.source("numbers", records_per_second=10).then(number))
    with topology_test(topology) as kit:
        kit.send(*values(*range(25)))
        assert (len(kit.rows), kit.unresolved, kit.now) == (2, 23, 0)
        kit.advance(0.5)
        assert len(kit.rows) in (6, 7)
        kit.advance(60)
        assert [row["n"] for row in kit.rows] == list(range(25))
        times = [kit.history(offset)[0].seconds for offset in range(25)]
        assert times[0] == times[1] == 0
        gaps = [after - before for before, after in pairwise(times[2:])]
        assert gaps == [pytest.approx(0.1, abs=0.001)] * 22
        assert kit.send(*values(25)).unresolved == 0


def test_a_rate_limit_holds_no_other_source_and_no_retry_back():
    tried = set()

    @bolt
    def refuses_first(row: dict[str, int]) -> dict[str, int]:
        if row["n"] not in tried:
            tried.add(row["n"])
            raise ValueError("first")
        return row

    topology = Topology("limited")
    slow = topology.source("slow", records_per_second=1).then(number)
    ending(topology, slow.merge(topology.source("fast").then(number)).then(refuses_first))
    retries = RetryPolicy(initial_seconds=0.5, jitter=0)
    with topology_test(topology, retries=retries) as kit:
        kit.send(*values(1, 2, 3)).send(*values(10, 11, 12), topic="fast")
        assert kit.retrying == 4
        kit.advance(0.5)
        assert sorted(row["n"] for row in kit.rows) == [1, 10, 11, 12]
        kit.advance(10)
        assert sorted(row["n"] for row in kit.rows) == [1, 2, 3, 10, 11, 12]


def test_at_most_once_nothing_is_tried_twice():
    @bolt
    def refuses_two(row: dict[str, int]) -> dict[str, int]:
        if row["n"] == 2:
            raise ValueError("two")
        return row

    topology = Topology("once", reliability="at-most-once")
    stream = topology.source("numbers").then(number).then(refuses_two)
    with topology_test(ending(topology, stream, MemorySink("out"))) as kit:
        counts = spoil_all(kit, seed=2, busy=0.3, fail_after=0.4)["out"]
        for n in range(30):
            kit.send(*values(n))
        kit.advance(100)
        written = [row["n"] for row in kit.rows]
        assert len(written) == len(set(written)), "no row twice"
        assert set(written) == set(range(30)) - {2}
        buried = {int(letter.record.value or b"") for letter in kit.rejected}
        assert 2 in buried
        assert len(buried) == 1 + counts["failed_after"]
        assert all(event.what != "retried" for event in kit.timeline)
