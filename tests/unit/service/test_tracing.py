"""Spans of records: which are traced, what they tell, and what is bounded."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace import Record, Reject, bolt
from headrace.sinks import MemorySink, Staged
from partition.ledger import RetryPolicy
from partition.records import Chunk, Partition
from service.config.settings import TracingConfig
from service.observability.tracing import Tracing
from sinks.kafka.dead_letter_sink import _content, _Form
from tests.support.faulty_store import FaultyStore
from tests.support.pipeline import PLACE, HeldSink, Works
from topology.calls import Failure
from topology.masking import mask
from topology.record import HeldMessage
from topology.sink import Batch, DeadLetter

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{PARENT}-01".encode()
UNSAMPLED = f"00-{TRACE}-{PARENT}-00".encode()


class Spans:
    """A run's spans, kept in memory."""

    def __init__(self, ratio: float) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracing = Tracing(
            TracingConfig(endpoint="http://collector:4318", sample_ratio=ratio),
            "works",
            np.random.default_rng(7),
            self.exporter,
            SimpleSpanProcessor,
        )
        self.tracing.open()

    @property
    def all(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@pytest.fixture
def none_sampled() -> Iterator[Spans]:
    spans = Spans(0.0)
    yield spans
    spans.tracing.close(5.0)


@pytest.fixture
def all_sampled() -> Iterator[Spans]:
    spans = Spans(1.0)
    yield spans
    spans.tracing.close(5.0)


@bolt
def text(record: Record) -> str:
    if record.value == b"bad":
        raise Reject("it is bad")
    return (record.value or b"").decode()


@bolt
def upper(word: str) -> str:
    return word.upper()


def send(works: Works, value: bytes, *headers: tuple[str, bytes | None]) -> None:
    works.log.append(Partition("t", 0), value, headers=headers)


def test_traceparent_header_is_the_parent_span(
    none_sampled: Spans,
) -> None:
    sink = MemorySink[Any]("out")
    with Works(text, sinks=[sink], traces=none_sampled.tracing.traces) as works:
        send(works, b"plain")
        send(works, b"traced", ("traceparent", SAMPLED), ("tracestate", b"vendor=1"))
        send(works, b"unsampled", ("traceparent", UNSAMPLED))
        send(works, b"broken", ("traceparent", b"\xff no trace"))
        works.finish()
    record = none_sampled.one("process t")
    assert record.context is not None
    assert record.parent is not None
    assert f"{record.context.trace_id:032x}" == TRACE
    assert f"{record.parent.span_id:016x}" == PARENT
    said = dict(record.attributes or {})
    assert said["messaging.system"] == "kafka"
    assert said["messaging.destination.name"] == "t"
    assert said["messaging.destination.partition.id"] == "0"
    assert said["messaging.kafka.offset"] == 1
    assert said["headrace.attempts"] == 1


def test_batch_and_record_link_to_each_other(
    none_sampled: Spans,
) -> None:
    with Works(text, sinks=[MemorySink[Any]("out")], traces=none_sampled.tracing.traces) as works:
        send(works, b"plain")
        send(works, b"traced", ("traceparent", SAMPLED))
        works.finish()
    record, write = none_sampled.one("process t"), none_sampled.one("write out")
    assert record.context is not None
    assert write.context is not None
    assert [link.context.span_id for link in write.links] == [record.context.span_id]
    assert (write.attributes or {})["headrace.batch.sequence"] == 1
    (event,) = record.events
    assert (event.attributes or {})["headrace.write.span_id"] == f"{write.context.span_id:016x}"


def test_each_bolt_has_a_span_below_the_records(all_sampled: Spans) -> None:
    sink = MemorySink[Any]("out")
    with Works(text, upper, sinks=[sink], traces=all_sampled.tracing.traces) as works:
        works.send(*(b"%d" % number for number in range(600)))  # several blocks of a chunk
        works.finish()
    records = {span.context.span_id for span in all_sampled.named("process t") if span.context}
    assert len(records) == 600
    for step in ("text", "upper"):
        calls = all_sampled.named(f"bolt {step}")
        assert {span.parent.span_id for span in calls if span.parent} == records
        assert len(calls) == 600
        assert {(span.attributes or {})["headrace.outcome"] for span in calls} == {"done"}


def test_a_retry_is_told_of_with_its_attempts(none_sampled: Spans) -> None:
    tries: list[int] = []

    @bolt
    async def moody(record: Record) -> str:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("away")
        return "well"

    with Works(
        moody,
        sinks=[MemorySink[Any]("out")],
        retries=RetryPolicy(limit=3, initial_seconds=1.0, jitter=0),
        traces=none_sampled.tracing.traces,
    ) as works:
        send(works, b"traced", ("traceparent", SAMPLED))
        works.until(lambda: works.ledger.failed == 1)
        works.advance(2.0)
        works.finish()
    record = none_sampled.one("process t")
    assert (record.attributes or {})["headrace.attempts"] == 2
    assert [event.name for event in record.events] == ["headrace.try_failed", "headrace.write"]
    calls = none_sampled.named("bolt moody")
    outcomes = [
        ((c.attributes or {})["headrace.attempt"], (c.attributes or {})["headrace.outcome"])
        for c in calls
    ]
    assert outcomes == [(1, "failed"), (2, "done")]
    assert (calls[0].attributes or {})["error.type"] == "OSError"


def test_dead_letter_span_ends_when_durable(
    none_sampled: Spans,
) -> None:
    with Works(text, sinks=[HeldSink()], traces=none_sampled.tracing.traces) as works:
        works.letters_sink.holding = True
        send(works, b"bad", ("traceparent", SAMPLED), ("own", b"kept"))
        works.until(lambda: bool(works.letters.pending))
        assert not none_sampled.named(f"send {works.letters.name}")
        letter = next(iter(works.letters._sent.values())).letter
        works.letters_sink.holding = False
        works.finish()
    span = none_sampled.one(f"send {works.letters.name}")
    assert isinstance(letter, DeadLetter)
    assert span.context is not None
    headers = _content(letter, "works", _Form.WHOLE)["headers"]
    expected = f"00-{TRACE}-{span.context.span_id:016x}-01".encode()
    assert [value for name, value in headers if name == "traceparent"] == [expected]
    assert ("own", b"kept") in headers
    assert none_sampled.one("bolt text").attributes is not None
    assert (none_sampled.one("bolt text").attributes or {})["headrace.outcome"] == "rejected"


def test_under_exactly_once_the_write_has_the_txid(none_sampled: Spans) -> None:
    with Works(
        text,
        sinks=[MemorySink[Any]("out")],
        exactly_once="transactional",
        traces=none_sampled.tracing.traces,
    ) as works:
        send(works, b"traced", ("traceparent", SAMPLED))
        works.finish()
    write = none_sampled.one("write out")
    assert (write.attributes or {})["headrace.txids"] == ("t[0]:1",)
    (event,) = none_sampled.one("process t").events
    assert (event.attributes or {})["headrace.txids"] == ("t[0]:1",)
    assert len(write.links) == 1
    assert none_sampled.tracing.traces.num_live == 0


def test_a_share_of_the_records_without_a_parent_is_sampled() -> None:
    spans = Spans(0.1)
    with Works(text, sinks=[MemorySink[Any]("out")], traces=spans.tracing.traces) as works:
        works.send(*[b"x"] * 5_000)
        works.finish()
    assert 350 < len(spans.named("process t")) < 650
    assert spans.tracing.traces.skipped == 0
    spans.tracing.close(5.0)


def test_rows_carry_the_headers_of_the_record_they_came_of(none_sampled: Spans) -> None:
    batches: list[Batch] = []

    class Watched(MemorySink[Any]):
        def stage(self, batch: Batch) -> Staged:
            batches.append(batch)
            return super().stage(batch)

    with Works(text, sinks=[Watched("out")], traces=none_sampled.tracing.traces) as works:
        send(works, b"plain")
        send(works, b"traced", ("traceparent", SAMPLED), ("tracestate", b"vendor=1"))
        works.finish()
    (batch,) = batches
    assert list(batch.traces) == [1]
    headers = dict(batch.traces[1])
    assert headers["traceparent"].startswith(f"00-{TRACE}-".encode())
    assert headers["tracestate"] == b"vendor=1"


def test_no_more_records_are_traced_at_once_than_may_be(
    all_sampled: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = all_sampled.tracing.traces
    monkeypatch.setattr("service.observability.tracing.MAX_RECORDS", 3)
    message = HeldMessage(b"x", None, "t", 0, 0, (0, 0), None)
    traces.chunk_emitted(Chunk(Partition("t", 0), np.arange(10), [message] * 10), np.arange(10))
    assert traces.num_live == traces.traced == 3
    assert traces.skipped == 7
    traces.records_resolved(np.arange(10))
    assert traces.num_live == 0


def test_records_of_a_partition_that_is_lost_are_let_go(all_sampled: Spans) -> None:
    traces = all_sampled.tracing.traces
    message = HeldMessage(b"x", None, "t", 0, 0, (0, 0), None)
    traces.chunk_emitted(Chunk(Partition("t", 0), np.array([5]), [message]), np.array([5]))
    traces.partition_lost(0)
    assert traces.num_live == 0
    assert all_sampled.one("process t").status.description == "the partition was lost"


def test_trace_ends_with_the_session_of_its_partition(all_sampled: Spans) -> None:
    """It stayed open, as only a partition that was ours until its loss was told."""
    sink = HeldSink()
    sink.gate.clear()
    with Works(text, sinks=[sink], traces=all_sampled.tracing.traces, shared=True) as works:
        works.want(0)
        send(works, b"x")
        works.until(lambda: all_sampled.tracing.traces.num_live == 1)
        other = FaultyStore(works.nodes)
        other.open()
        other.claim(PLACE).result(0)
        works.store.end_session()
        works.until(lambda: all_sampled.tracing.traces.num_live == 0)
    assert all_sampled.one("process t").status.description == "the partition was lost"


class Untellable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [OSError("it was canary-4711"), Untellable()], ids=["s", "u"])
def test_an_errors_text_is_masked_and_need_not_be_tellable(
    all_sampled: Spans, error: Exception
) -> None:
    mask.learn(["canary-4711"])
    traces = all_sampled.tracing.traces
    message = HeldMessage(b"x", None, "t", 0, 0, (0, 0), None)
    try:
        traces.chunk_emitted(Chunk(Partition("t", 0), np.array([5]), [message]), np.array([5]))
        traces.record_failed(5, Failure("parse", error))
        traces.records_resolved(np.array([5]))
    finally:
        mask.learn([])
    (event,) = all_sampled.one("process t").events
    assert (event.attributes or {})["error.type"] == type(error).__name__
    assert "4711" not in str(event.attributes)
