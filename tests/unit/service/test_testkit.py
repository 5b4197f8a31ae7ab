import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import TypedDict

import pyarrow as pa
import pytest

from headrace import (
    SKIP,
    Bolt,
    InvalidTopology,
    Record,
    Reject,
    Retry,
    Skip,
    Topology,
    bolt,
    reference,
)
from headrace.payloads import text
from headrace.sinks import KafkaDeadLetters, MemoryDeadLetters, MemorySink, SparkSink
from headrace.state import MemoryState, State, count
from headrace.testing import Event, RetryPolicy, topology_test
from tests.support.bolts import made, new_topology
from tests.support.pipeline import Keep, drawn, payload, piped, text_of


class Number(TypedDict):
    n: int


@bolt
def parse(record: Record) -> Number | Skip:
    try:
        number: Number = json.loads(record.value or b"")
    except ValueError as error:
        raise Reject("not JSON") from error
    return SKIP if number["n"] == 0 else number


@bolt
def count_down(number: Number) -> Iterator[Number]:
    for n in range(number["n"]):
        if n == 7:
            raise ValueError("seven")
        yield {"n": n}


class Flaky(Bolt[Number, Number]):
    """Fails on each number once."""

    def __init__(self) -> None:
        self.tried: set[int] = set()

    def process(self, number: Number, /) -> Number:
        if number["n"] not in self.tried:
            self.tried.add(number["n"])
            raise Retry("not yet", after_seconds=5)
        return number


def numbers(*bolts, **options):
    sink = SparkSink("numbers", format="parquet", schema=Number)
    return piped(*bolts, first=parse, sink=sink, **options)


def test_a_rejected_record_is_a_dead_letter_with_its_reason_and_origin():
    """Promise 3: complete because its dead letter is durable."""
    with topology_test(numbers()) as kit:
        kit.send(b"{", key=b"k", headers={"h": "1"})
        (letter,) = kit.rejected
        assert (letter.reason, letter.step) == ("not JSON", "parse")
        assert (letter.error_class, letter.attempts) == ("Reject", 1)
        assert (letter.record.value, letter.record.key, letter.record.offset) == (b"{", b"k", 0)
        assert kit.acked == []
        assert kit.rows == []


@pytest.mark.parametrize("kind", ["function", "async", "blocking", "vectorised"])
def test_a_dead_letter_has_the_error_and_the_line_of_the_users_code(kind):
    def helper(value):
        return {}[value]

    def fails(record: Record) -> Number:
        return helper("nokey")

    async def fails_later(record: Record) -> Number:
        return helper("nokey")

    def fails_for_all(batch: pa.RecordBatch) -> pa.RecordBatch:
        return helper("nokey")

    function = {"async": fails_later, "vectorised": fails_for_all}.get(kind, fails)
    topology = piped(first=bolt(function, blocking=kind == "blocking"))
    topology.dead_letters.sink = KafkaDeadLetters("wrong.dead")
    with topology_test(topology, retries=RetryPolicy(limit=0)) as kit:
        kit.send(b"1")
        (letter,) = kit.rejected
        line = helper.__code__.co_firstlineno + 1
        assert letter.error_at == f"tests/unit/service/test_testkit.py:{line}"
        assert (letter.reason, letter.error_class) == ("KeyError: 'nokey'", "KeyError")
        assert isinstance(letter.error, KeyError)
        assert letter.error.__traceback__ is not None


def test_fan_out_writes_all_children_or_none():
    """Promise 4, Storm 3: one failed child fails the record, whatever its siblings do."""
    with topology_test(numbers(count_down), retries=RetryPolicy(limit=0)) as kit:
        kit.send(payload(n=3), payload(n=9), payload(n=2))
        assert [row["n"] for row in kit.rows] == [0, 1, 2, 0, 1]
        (letter,) = kit.rejected
        assert (letter.reason, letter.error_class) == ("seven", "ValueError")


def test_a_row_that_does_not_fit_the_schema_is_dead_lettered_alone():
    with topology_test(numbers()) as kit:
        kit.send(payload(n=1), payload(n="x"), payload(n=2))
        assert [row["n"] for row in kit.rows] == [1, 2]
        (letter,) = kit.rejected
        assert "n" in letter.reason
        assert letter.record.value == payload(n="x")
        assert len(kit.acked) == 2


def test_a_record_gives_all_that_kafka_knows_of_it():
    with topology_test(piped(first=bolt(lambda record: record))) as kit:
        kit.send(None, key=b"k", headers=[("a", "1"), ("a", None)], timestamp_ms=77)
        kit.send({"n": 1}, "text", key="k")
        record, *others = kit.rows
    assert [(each.value, each.key) for each in others] == [(b'{"n":1}', b"k"), (b"text", b"k")]
    assert (record.value, record.key, record.topic) == (None, b"k", "in")
    assert (record.partition, record.offset, record.timestamp_ms) == (0, 0, 77)
    assert record.headers == (("a", b"1"), ("a", None))


def test_topics_and_partitions_are_made_when_they_are_sent_to():
    first, topic = bolt(lambda record: record.topic), re.compile("orders-.*")
    topology = drawn(lambda s: s.into(MemorySink()), topic=topic, first=first)
    with topology_test(topology) as kit:
        kit.send(b"1", topic="orders-eu").send(b"2", b"3", topic="orders-us", partition=2)
        kit.send(b"3", topic="orders-eu")
        assert kit.rows == ["orders-eu", "orders-us", "orders-us", "orders-eu"]
        places = {(record.topic[-2:], record.partition, record.offset) for record in kit.acked}
        assert places == {("eu", 0, 0), ("eu", 0, 1), ("us", 2, 0), ("us", 2, 1)}
        for wrong, message in (
            ({"topic": "flights"}, "found topic 'flights', expected /orders-"),
            ({}, "pattern"),
            ({"topic": "orders-eu", "partition": -1}, "partition: found -1"),
        ):
            with pytest.raises(ValueError, match=message):
                kit.send(b"1", **wrong)


def test_reference_tables_are_those_that_a_run_would_load():
    airports = reference("airports.csv", key="faa", value="name")
    rows = [{"faa": "JFK", "name": "Kennedy"}]
    topology = piped()
    kit = topology_test(topology, references={airports: rows})
    with pytest.raises(InvalidTopology, match=r"reference 'airports'.*a run would not load it"):
        kit.__enter__()
    assert not airports.is_loaded
    topology.uses(airports)
    kit = topology_test(topology)
    with pytest.raises(InvalidTopology, match="'airports' of topology 'runtime' has no rows"):
        kit.send(b"1")
    airports.load(rows)
    with topology_test(topology) as kit:
        assert kit.send(b"1").unresolved == 0
    airports.unload()


def test_a_record_that_a_bolt_keeps_has_settled_and_is_not_resolved():
    with topology_test(piped(made(Keep, tick_seconds=10.0, tick=Keep.drain))) as kit:
        kit.send(b"1", b"2")
        assert (kit.unresolved, kit.retrying, kit.rows) == (2, 0, [])
        assert [e.what for e in kit.history(0)] == ["read"]
        assert kit.advance(9.9).rows == []
        assert kit.advance(0.2).rows == ["1", "2"]
        assert kit.unresolved == 0


def test_the_history_of_a_record_tells_its_whole_life():
    with topology_test(numbers(Flaky()), retries=RetryPolicy(jitter=0)) as kit:
        kit.send(payload(n=3), b"{", payload(n=0))
        kit.send(payload(n=4), partition=1).advance(100)
        assert kit.now == 100
        assert [(e.what, e.seconds, e.attempt, e.step, e.reason) for e in kit.history(0)] == [
            ("read", 0, 1, None, None),
            ("failed", 0, 1, "Flaky", "not yet"),
            ("retried", 5, 2, None, None),
            ("written", 5, 2, "numbers", None),
            ("resolved", 5, 2, None, None),
        ]
        rejected = kit.history(1)
        assert [e.what for e in rejected] == ["read", "rejected", "resolved"]
        assert (rejected[1].step, rejected[1].reason) == ("parse", "not JSON")
        assert [e.what for e in kit.history(2)] == ["read", "resolved"], "filtered"
        assert [e.what for e in kit.history(0, partition=1)][-1] == "resolved"
        assert kit.history(99) == []
        assert [e for e in kit.timeline if (e.partition, e.offset) == (0, 0)] == kit.history(0)


def test_an_event_can_be_read_by_a_person():
    place = "orders", 1, 7, 1
    assert str(Event(1.5, "read", *place)) == "1.5 s orders[1]@7 read (attempt 1)"
    failed = Event(1.5, "failed", *place, "parse", "not yet")
    assert str(failed) == "1.5 s orders[1]@7 failed in parse (attempt 1): not yet"


def test_the_figures_are_those_of_the_metrics_endpoint():
    with topology_test(numbers(Flaky())) as kit:
        kit.send(payload(n=3), payload(n=0), b"{")
        metrics = kit.metrics
        assert metrics["headrace_service_filtered_records_total"] == 1
        assert metrics["headrace_service_dead_lettered_records_total"] == 1
        assert metrics['headrace_topology_failed_tuples_total{step="Flaky"}'] == 1
        assert metrics['headrace_partition_failed_records{topic="in",partition="0"}'] == 1
        kit.advance(5)
        assert kit.metrics['headrace_sinks_written_rows_total{sink="numbers"}'] == 1
        assert kit.metrics["headrace_service_written_records_total"] == 1


def test_a_rate_limit_holds_over_all_partitions_by_the_tests_time():
    topology = drawn(lambda s: s.into(MemorySink()), first=text_of, records_per_second=10)
    with topology_test(topology) as kit:
        for n in range(25):
            kit.send(b"%d" % n, partition=n % 2)
        assert (len(kit.rows), kit.unresolved, kit.now) == (2, 23, 0)
        assert len(kit.advance(0.5).rows) in (6, 7)
        kit.advance(60)
        rows = sorted(map(int, kit.rows), key=lambda n: n % 2)  # which keeps the partitions' order
        assert rows == [*range(0, 25, 2), *range(1, 25, 2)]
        times = sorted(kit.history(n // 2, partition=n % 2)[0].seconds for n in range(25))
        assert times[0] == times[1] == 0
        gaps = [after - before for before, after in pairwise(times[2:])]
        assert gaps == [pytest.approx(0.1, abs=0.001)] * 22
        assert kit.send(b"25").unresolved == 0


def test_a_rate_limit_holds_no_other_source_and_no_retry_back():
    tried = set()

    @bolt
    def refuses_first(value: str) -> str:
        if value not in tried:
            tried.add(value)
            raise ValueError("first")
        return value

    topology = drawn(lambda s: s.into(MemorySink()), first=text_of)
    slow = topology.source("slow", records_per_second=1).then(text_of, name="slow")
    fast = topology.source("fast").then(text_of, name="fast")
    slow.merge(fast).then(refuses_first).into(MemorySink("out"))
    retries = RetryPolicy(initial_seconds=0.5, jitter=0)
    with topology_test(topology, retries=retries) as kit:
        kit.send(b"1", b"2", b"3", topic="slow").send(b"10", b"11", b"12", topic="fast")
        assert kit.retrying == 4
        assert sorted(kit.advance(0.5).rows) == ["1", "10", "11", "12"]
        assert sorted(kit.advance(10).rows) == ["1", "10", "11", "12", "2", "3"]


def words_of(word):
    yield from ({"word": each} for each in word.split())


def counted(**options):
    words = State("words", key={"word": str}, into=MemoryState(), **options)
    topology = Topology("t")
    split = topology.source("in").then(text()).flat_map(words_of)
    split.aggregate(words, n=count())
    split.map(lambda row: {"seen": words.get(row["word"])}).into(MemorySink("seen"))
    topology.dead_letters.into(MemoryDeadLetters())
    return topology, words


def test_state_that_the_topology_aggregates_can_be_looked_up():
    topology, words = counted(value="n")
    topology.uses(words)
    with topology_test(topology) as kit:
        kit.send(b"to be", b"or").send(b"to")
        assert dict(words) == {"to": 2, "be": 1, "or": 1}
        assert [row["seen"] for row in kit.rows_of("seen")] == [None, None, None, 1]
        assert [row["word"] for row in kit.rows_of("words")] == ["to", "be", "or", "to"]
    assert not words.is_loaded
    with topology_test(topology, references={words: {"to": 5}}) as kit:
        kit.send(b"to be")
        assert dict(words) == {"to": 6, "be": 1}
    topology, words = counted(layout="opaque")
    with topology_test(topology, references={words: [{"word": "to", "n": 5}]}) as kit:
        assert kit.send(b"to").unresolved == 0
        assert words["to"] == {"n": 6}


def test_row_without_the_key_of_a_state_is_a_dead_letter():
    words = State("words", key={"word": str}, into=MemoryState())
    topology, stream = new_topology(reliability="exactly-once")
    stream.map(lambda record: {"wort": record.value}).aggregate(words, n=count())
    with topology_test(topology) as kit:
        kit.send(b"to")
        assert "found None" in kit.rejected[0].reason
        assert (kit.rows, dict(words)) == ([], {})


def test_reference_is_given_by_the_values_that_look_ups_return():
    for value, key, given in (
        ("name", "faa", {"JFK": "Kennedy"}),
        (None, "faa", {"JFK": {"name": "Kennedy", "country": "US"}}),
        ("name", ("faa", "country"), {("JFK", "US"): "Kennedy"}),
    ):
        airports = reference("airports.csv", key=key, value=value)
        topology = piped()
        topology.uses(airports)
        with topology_test(topology, references={airports: given}):
            assert dict(airports) == given
