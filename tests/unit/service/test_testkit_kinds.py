"""The test kit with every kind of bolt, and what happens by itself as time passes."""

import threading
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from typing import Any

import pytest

from headrace import Bolt, InvalidTopology, Record, Reject, Retry, Topology, bolt, reference
from headrace.sinks import MemoryDeadLetters, MemorySink
from headrace.testing import RetryPolicy, topology_test
from tests.support.chaos import chaotic, spoil_all
from tests.support.patience import seconds
from topology.advanced import AdvancedBolt, Collector, Tuple
from topology.bolt import Hooks


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


def test_every_tick_comes_at_its_time_however_far_time_is_stepped():
    keeps = Keeps()
    with topology_test(keeping(keeps)) as kit:
        kit.send(*values(1)).advance(35).advance(10)
        assert keeps.ticked_at == [10, 20, 30, 40]
        assert [e.seconds for e in kit.history(0) if e.what == "resolved"] == [10]


def test_a_drain_asks_for_what_is_kept():
    with topology_test(keeping(Keeps())) as kit:
        kit.send(*values(1, 2)).drain()
        assert (kit.unresolved, len(kit.rows), kit.now) == (0, 2, 0)


def test_a_record_that_is_kept_too_long_expires_and_comes_again():
    keeps = Keeps()
    keeps.answers = False
    retries = RetryPolicy(initial_seconds=1, jitter=0)
    with topology_test(keeping(keeps), retries=retries, message_timeout_seconds=20) as kit:
        kit.send(*values(7)).advance(32)
        read, failed, again = kit.history(0)
        assert (read.what, failed.what, again.what) == ("read", "failed", "retried")
        assert 20 <= failed.seconds <= 30  # the acker counts in ticks
        assert failed.step == "Keeps"
        assert failed.reason == (
            "bolt 'Keeps' neither acked nor failed a tuple in time: message_timeout_seconds=20"
        )
        assert len(keeps.kept) == 2


def test_a_blocking_bolt_runs_as_many_calls_at_once_as_it_has_workers():
    together = threading.Barrier(4)

    @bolt(blocking=True)
    def waits(row: dict[str, int]) -> dict[str, int]:
        together.wait(seconds(20))
        return row

    topology = Topology("blocking")
    stream = topology.source("numbers").then(number).then(waits, workers=4)
    with topology_test(ending(topology, stream)) as kit:
        kit.send(*values(*range(8)))
        assert sorted(row["n"] for row in kit.rows) == list(range(8))


def test_records_of_one_key_wait_for_the_one_that_failed_and_others_go_on():
    tried: list[int] = []

    @bolt(blocking=True)
    def fails_once(row: dict[str, int]) -> dict[str, int]:
        tried.append(row["n"])
        if row["n"] == 10 and tried.count(10) == 1:
            raise Retry("not yet", after_seconds=5)
        return row

    topology = Topology("keyed")
    rows = topology.source("numbers").then(number)
    stream = rows.keyed_by(lambda row: row["n"] % 10).then(fails_once, workers=2)
    with topology_test(ending(topology, stream)) as kit:
        kit.send(*values(10, 20, 1, 30))
        assert [row["n"] for row in kit.rows] == [1]
        assert (kit.retrying, kit.unresolved) == (1, 3)
        kit.advance(5)
        assert [row["n"] for row in kit.rows] == [1, 10, 20, 30]


def test_a_bolt_ticks_and_hears_of_its_partitions():
    class Hears(Bolt[dict[str, int], dict[str, int]]):
        tick_seconds = 2.0

        def __init__(self) -> None:
            self.heard: list[str] = []

        def process(self, row: dict[str, int], /) -> dict[str, int]:
            self.heard.append(f"{row['n']}")
            return row

        def tick(self) -> None:
            self.heard.append("tick")

        def partition_assigned(self, topic: str, partition: int) -> None:
            self.heard.append(f"+{topic}[{partition}]")

        def partition_revoked(self, topic: str, partition: int) -> None:
            self.heard.append(f"-{topic}[{partition}]")

    class Watches(Hooks):
        def started(self) -> None:
            bolt_.heard.append("start")

        def stopped(self) -> None:
            bolt_.heard.append("stop")

    bolt_ = Hears()
    topology = Topology("hooks")
    topology.hooks(Watches())
    stream = topology.source("numbers").then(number).then(bolt_)
    with topology_test(ending(topology, stream)) as kit:
        kit.send(*values(1)).advance(5)
        kit.send(*values(2), partition=1)
    assert bolt_.heard == [
        "start", "+numbers[0]", "1", "tick", "tick", "+numbers[1]", "2",
        "-numbers[0]", "-numbers[1]", "stop",
    ]  # fmt: skip


def test_reference_tables_are_given_by_hand_and_forgotten_at_the_end():
    airports = reference("airports.csv", key="faa", value="name")

    @bolt
    def name(record: Record) -> dict[str, str]:
        return {"name": airports[(record.value or b"").decode()]}

    topology = Topology("names")
    topology.uses(airports)
    ending(topology, topology.source("codes").then(name))
    rows = [{"faa": "JFK", "name": "Kennedy"}]
    with topology_test(topology, references={airports: rows}) as kit:
        kit.send(b"JFK")
        assert kit.rows == [{"name": "Kennedy"}]
    assert not airports.is_loaded


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


def test_an_async_generator_may_fail_and_then_gives_all_its_values():
    @bolt
    async def twice(record: Record) -> AsyncIterator[int]:
        yield record.offset
        yield record.offset

    topology = Topology("streamed")
    stream = topology.source("numbers").then(chaotic(twice, seed=3, fail=0.5))
    with topology_test(ending(topology, stream), retries=RetryPolicy(limit=20)) as kit:
        kit.send(*[b"x"] * 20).advance(5000)
        assert len(kit.rows) == 40
        assert kit.rejected == []
        assert any(event.what == "failed" for event in kit.timeline)


def test_named_streams_and_siblings_are_in_one_history():
    @bolt
    def parts(row: dict[str, int]) -> Iterator[dict[str, int]]:
        yield row
        yield row

    topology = Topology("siblings")
    rows = topology.source("numbers").then(number)
    rows.then(parts).into(MemorySink("twice"))
    rows.into(MemorySink("once"))
    topology.dead_letters.into(MemoryDeadLetters())
    with topology_test(topology) as kit:
        kit.send(*values(1))
        assert len(kit.rows_of("twice")) == 2
        history = kit.history(0)
        assert [e.what for e in history] == ["read", "written", "written", "resolved"]
        assert {e.step for e in history[1:3]} == {"once", "twice"}


def test_each_record_of_a_join_is_rejected_when_its_result_is():
    class Sums(AdvancedBolt[dict[str, int], dict[str, int]]):
        def __init__(self) -> None:
            self.kept: list[Tuple[dict[str, int]]] = []

        def process(
            self, tuple_: Tuple[dict[str, int]], collector: Collector[dict[str, int]], /
        ) -> None:
            self.kept.append(tuple_)
            if len(self.kept) == 3:
                total = sum(each.value["n"] for each in self.kept)
                collector.emit({"n": total}, anchors=self.kept)
                for each in self.kept:
                    collector.ack(each)
                self.kept = []

    @bolt
    def refuses(row: dict[str, int]) -> dict[str, int]:
        raise Reject(f"{row['n']} is too much")

    topology = Topology("sums")
    stream = topology.source("numbers").then(number).then(Sums).then(refuses)
    with topology_test(ending(topology, stream)) as kit:
        kit.send(*values(1, 2, 3))
        assert [letter.reason for letter in kit.rejected] == ["6 is too much"] * 3
        for offset in range(3):
            assert [e.what for e in kit.history(offset)] == ["read", "rejected", "resolved"]
