"""The test kit, and through it the pipeline: what becomes of records, bolt by bolt."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import TypedDict

import pytest

from headrace import SKIP, Bolt, Record, Reject, Retry, Skip, Topology, bolt
from headrace.sinks import KafkaDeadLetters, MemoryDeadLetters, MemorySink, SparkSink
from headrace.testing import RetryPolicy, topology_test


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
    """Fails a number's first `failures` tries."""

    def __init__(self, failures: int = 1) -> None:
        self.failures = failures
        self.tries: dict[int, int] = {}

    def process(self, number: Number, /) -> Number:
        tried = self.tries[number["n"]] = self.tries.get(number["n"], 0) + 1
        if tried <= self.failures:
            raise Retry("not yet", after_seconds=5)
        return number


def topology(*bolts) -> Topology:
    made = Topology("numbers")
    stream = made.source("numbers")
    for each in bolts:
        stream = stream.then(each)
    stream.into(SparkSink("numbers", format="parquet", schema=Number))
    made.dead_letters.into(KafkaDeadLetters("numbers.dead"))
    return made


def payload(n) -> bytes:
    return json.dumps({"n": n}).encode()


def test_a_rejected_record_is_a_dead_letter_with_its_reason_and_origin():
    """Promise 3: complete because its dead letter is durable."""
    with topology_test(topology(parse)) as kit:
        kit.send(b"{", key=b"k", headers=[("h", b"1")])
        (letter,) = kit.rejected
        assert letter.reason == "not JSON"
        assert letter.step == "parse"
        assert letter.error_class == "Reject"
        assert letter.attempts == 1
        assert (letter.record.value, letter.record.key, letter.record.offset) == (b"{", b"k", 0)
        assert kit.acked == []
        assert kit.rows == []


def test_a_record_out_of_retries_is_dead_lettered_with_its_attempts():
    """Promise 13."""
    with topology_test(topology(parse, Flaky(99)), retries=RetryPolicy(limit=2)) as kit:
        kit.send(payload(3), payload(0))
        for _ in range(5):
            kit.advance(10)
        (letter,) = kit.rejected
        assert (letter.reason, letter.attempts, letter.step) == ("not yet", 3, "Flaky")
        assert kit.retrying == 0


def test_a_failing_record_holds_nobody_else_up():
    with topology_test(topology(parse, Flaky(1))) as kit:
        kit.send(payload(1))
        kit.send(payload(2))
        kit.advance(5)
        kit.send(payload(1))
        assert [row["n"] for row in kit.rows] == [1, 2, 1]


def test_fan_out_writes_all_children_or_none():
    """Promise 4, Storm 3: one failed child fails the record, whatever its siblings do."""
    with topology_test(topology(parse, count_down), retries=RetryPolicy(limit=0)) as kit:
        kit.send(payload(3), payload(9), payload(2))
        assert [row["n"] for row in kit.rows] == [0, 1, 2, 0, 1]
        (letter,) = kit.rejected
        assert (letter.reason, letter.error_class) == ("seven", "ValueError")


def test_a_row_that_does_not_fit_the_schema_is_dead_lettered_alone():
    with topology_test(topology(parse)) as kit:
        kit.send(payload(1), payload("x"), payload(2))
        assert [row["n"] for row in kit.rows] == [1, 2]
        (letter,) = kit.rejected
        assert "n" in letter.reason
        assert letter.record.value == payload("x")
        assert len(kit.acked) == 2


def test_an_async_call_that_outlives_its_timeout_fails_and_is_retried():
    calls = 0

    @bolt
    async def hangs_once(number: Number) -> Number:
        nonlocal calls
        calls += 1
        if calls == 1:
            await asyncio.Event().wait()
        return number

    made = Topology("numbers")
    made.source("numbers").then(parse).then(hangs_once, timeout_seconds=0.05).into(MemorySink())
    made.dead_letters.into(KafkaDeadLetters("numbers.dead"))
    with topology_test(made) as kit:
        kit.send(payload(1))
        assert kit.retrying == 1
        kit.advance(1)
        assert kit.rows == [{"n": 1}]


def test_a_record_gives_all_that_kafka_knows_of_it():
    seen = []

    @bolt
    def look(record: Record) -> Skip:
        seen.append(record)
        return SKIP

    made = Topology("numbers")
    made.source("numbers").then(look).into(MemorySink())
    made.dead_letters.into(KafkaDeadLetters("numbers.dead"))
    with topology_test(made) as kit:
        kit.send(None, key=b"k", headers=[("a", b"1"), ("a", None)], timestamp_ms=77)
    (record,) = seen
    assert (record.value, record.key, record.topic) == (None, b"k", "numbers")
    assert (record.partition, record.offset, record.timestamp_ms) == (0, 0, 77)
    assert record.headers == (("a", b"1"), ("a", None))


def test_siblings_that_all_fail_fail_their_record_once():
    """Promise 5: a tree resolves exactly once, however many of its tuples fail."""

    @bolt
    async def refuse(number: Number) -> Number:
        raise ValueError(number["n"])

    made = Topology("numbers")
    made.source("numbers").then(parse).then(count_down).then(refuse, workers=4).into(MemorySink())
    made.dead_letters.into(KafkaDeadLetters("numbers.dead"))
    with topology_test(made, retries=RetryPolicy(limit=1, jitter=0)) as kit:
        kit.send(payload(5))
        assert (kit.retrying, kit.rejected) == (1, [])
        kit.advance(1)
        (letter,) = kit.rejected
        assert (letter.step, letter.error_class, letter.attempts) == ("refuse", "ValueError", 2)
        assert kit.retrying == 0


def test_a_topic_that_matches_a_pattern_is_made_when_it_is_sent_to():
    topology = Topology("any")
    topology.source(re.compile("orders-.*")).then(topic_of).into(MemorySink())
    topology.dead_letters.into(MemoryDeadLetters())
    with topology_test(topology) as kit:
        kit.send(b"1", topic="orders-eu").send(b"2", topic="orders-us").send(
            b"3", topic="orders-eu"
        )
        assert [row["topic"] for row in kit.rows] == ["orders-eu", "orders-us", "orders-eu"]
        with pytest.raises(ValueError, match="found topic 'flights', expected /orders-"):
            kit.send(b"1", topic="flights")
        with pytest.raises(ValueError, match="pattern"):
            kit.send(b"1")


@bolt
def topic_of(record):
    return {"topic": record.topic}


def test_a_call_that_is_cancelled_from_within_fails_like_any_other():
    calls = []

    @bolt
    async def cancelled_once(record: Record) -> dict[str, int]:
        calls.append(record.offset)
        if calls.count(record.offset) == 1:
            raise asyncio.CancelledError
        return {"n": record.offset}

    topology = Topology("cancelled")
    topology.source("numbers").then(cancelled_once, workers=2).into(MemorySink())
    topology.dead_letters.into(MemoryDeadLetters())
    with topology_test(topology) as kit:
        kit.send(b"1", b"2", b"3")
        kit.advance(60)
        assert sorted(row["n"] for row in kit.rows) == [0, 1, 2]
        assert kit.rejected == []


def test_a_partition_is_made_when_it_is_sent_to_and_has_offsets_of_its_own():
    with topology_test(topology(parse)) as kit:
        kit.send(payload(1)).send(payload(2), payload(3), partition=2).send(payload(4))
        assert sorted(row["n"] for row in kit.rows) == [1, 2, 3, 4]
        places = {(record.partition, record.offset) for record in kit.acked}
        assert places == {(0, 0), (0, 1), (2, 0), (2, 1)}
        with pytest.raises(ValueError, match="partition: found -1"):
            kit.send(payload(1), partition=-1)


def test_what_falls_due_while_time_passes_happens_at_its_time():
    with topology_test(topology(parse, Flaky(2)), retries=RetryPolicy(jitter=0)) as kit:
        kit.send(payload(3)).advance(100)
        assert kit.now == 100
        assert kit.rows == [{"n": 3}]
        read = [e.seconds for e in kit.history(0) if e.what in ("read", "retried")]
        assert read == [0, 5, 10]


def test_the_history_of_a_record_tells_its_whole_life():
    with topology_test(topology(parse, Flaky(1)), retries=RetryPolicy(jitter=0)) as kit:
        kit.send(payload(3), b"{", payload(0))
        kit.send(payload(4), partition=1).advance(5)
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


def test_the_figures_are_those_of_the_metrics_endpoint():
    with topology_test(topology(parse, Flaky(1))) as kit:
        kit.send(payload(3), payload(0), b"{")
        metrics = kit.metrics
        assert metrics["headrace_service_filtered_records_total"] == 1
        assert metrics["headrace_service_dead_lettered_records_total"] == 1
        assert metrics['headrace_topology_failed_tuples_total{step="Flaky"}'] == 1
        assert metrics['headrace_partition_failed_records{topic="numbers",partition="0"}'] == 1
        kit.advance(5)
        assert kit.metrics['headrace_sinks_written_rows_total{sink="numbers"}'] == 1
        assert kit.metrics["headrace_service_written_records_total"] == 1
