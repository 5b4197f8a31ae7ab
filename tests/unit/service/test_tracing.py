import logging
import socket
import threading
import time
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import ValidationError
from structlog.testing import capture_logs

from headrace import bolt
from headrace.sinks import MemorySink
from partition.ledger import RetryPolicy
from partition.records import Chunk
from service.config.settings import TracingConfig
from service.observability.tracing import Tracing, _SdkWarnings
from sinks.kafka.dead_letter_sink import _content, _Form
from tests.support.bolts import Untold
from tests.support.faulty_store import FaultyStore
from tests.support.patience import seconds, slack, until
from tests.support.pipeline import PLACE, HeldSink, Works, failing_once, text_unless_bad
from topology.calls import Failure
from topology.masking import mask
from topology.record import HeldMessage

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{PARENT}-01".encode()
UNSAMPLED = f"00-{TRACE}-{PARENT}-00".encode()
MESSAGE = HeldMessage(b"x", None, "t", 0, 0, (0, 0), None)


class Spans:
    def __init__(self, ratio):
        self.exporter = InMemorySpanExporter()
        self.tracing = Tracing(
            TracingConfig(endpoint="http://collector:4318", sample_ratio=ratio),
            "works",
            np.random.default_rng(7),
            self.exporter,
            SimpleSpanProcessor,
        )
        self.tracing.open()

    def works(self, *bolts, sinks=(), **options):
        sinks = sinks or [MemorySink("out")]
        return Works(*bolts, sinks=sinks, traces=self.tracing.traces, **options)

    def named(self, name):
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name):
        (span,) = self.named(name)
        return span


@pytest.fixture
def spans(request):
    """The spans of records with a parent; `sampled` adds a share of the others."""
    spans = Spans(getattr(request, "param", 0.0))
    yield spans
    spans.tracing.close(5.0)


def sampled(ratio):
    return pytest.mark.parametrize("spans", [ratio], indirect=True, ids=str)


def said(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def span_id(span: ReadableSpan) -> str:
    return f"{span.context.span_id:016x}"


def parent_of(span: ReadableSpan) -> str:
    return f"{span.parent.span_id:016x}" if span.parent else ""


@bolt
def upper(word: str) -> str:
    return word.upper()


def send(works, value, *headers):
    works.log.append(PLACE, value, headers=headers)


def test_record_with_a_parent_is_traced_into_its_batch(spans):
    sink = MemorySink("out")
    sink.stage = Mock(wraps=sink.stage)
    with spans.works(text_unless_bad, sinks=[sink]) as works:
        send(works, b"plain")
        send(works, b"traced", ("traceparent", SAMPLED), ("tracestate", b"vendor=1"))
        send(works, b"unsampled", ("traceparent", UNSAMPLED))
        send(works, b"broken", ("traceparent", b"\xff no trace"))
        works.finish()
    record, write = spans.one("process t"), spans.one("write out")
    assert (f"{record.context.trace_id:032x}", parent_of(record)) == (TRACE, PARENT)
    expected = {
        "messaging.system": "kafka", "messaging.destination.name": "t",
        "messaging.destination.partition.id": "0", "messaging.kafka.offset": 1,
        "headrace.attempts": 1,
    }  # fmt: skip
    assert expected.items() <= said(record).items()
    assert [link.context.span_id for link in write.links] == [record.context.span_id]
    assert said(write)["headrace.batch.sequence"] == 1
    (event,) = record.events
    assert (event.attributes or {})["headrace.write.span_id"] == span_id(write)
    ((batch,), _) = sink.stage.call_args
    assert sink.stage.call_count == 1
    assert list(batch.traces) == [1]
    assert dict(batch.traces[1]) == {
        "traceparent": f"00-{TRACE}-{span_id(record)}-01".encode(), "tracestate": b"vendor=1",
    }  # fmt: skip


@sampled(1.0)
def test_each_bolt_has_a_span_below_the_records(spans):
    with spans.works(text_unless_bad, upper) as works:
        works.send(*(b"%d" % number for number in range(600)))  # several blocks of a chunk
        works.finish()
    records = set(map(span_id, spans.named("process t")))
    assert len(records) == 600
    for step in ("text_unless_bad", "upper"):
        calls = spans.named(f"bolt {step}")
        assert set(map(parent_of, calls)) == records
        assert [said(span)["headrace.outcome"] for span in calls] == ["done"] * 600


def test_a_retry_is_told_of_with_its_attempts(spans):
    moody = failing_once(OSError("away"), "async")
    retries = RetryPolicy(limit=3, initial_seconds=1.0, jitter=0)
    with spans.works(moody, retries=retries) as works:
        send(works, b"traced", ("traceparent", SAMPLED))
        works.until(lambda: works.ledger.failed == 1)
        works.advance(2.0)
        works.finish()
    record, calls = spans.one("process t"), list(map(said, spans.named("bolt Async")))
    assert said(record)["headrace.attempts"] == 2
    assert [event.name for event in record.events] == ["headrace.try_failed", "headrace.write"]
    outcomes = [(call["headrace.attempt"], call["headrace.outcome"]) for call in calls]
    assert outcomes == [(1, "failed"), (2, "done")]
    assert calls[0]["error.type"] == "OSError"


def test_dead_letter_span_ends_when_durable(spans):
    with spans.works(text_unless_bad, sinks=[HeldSink()]) as works:
        works.letters_sink.holding = True
        send(works, b"bad", ("traceparent", SAMPLED), ("own", b"kept"))
        works.until(lambda: bool(works.letters.pending))
        sending = f"send {works.letters.name}"
        assert not spans.named(sending)
        letter = next(iter(works.letters._sent.values())).letter
        works.letters_sink.holding = False
        works.finish()
    headers = _content(letter, "works", _Form.WHOLE)["headers"]
    expected = f"00-{TRACE}-{span_id(spans.one(sending))}-01".encode()
    assert [value for name, value in headers if name == "traceparent"] == [expected]
    assert ("own", b"kept") in headers
    assert said(spans.one("bolt text_unless_bad"))["headrace.outcome"] == "rejected"


def test_under_exactly_once_the_write_has_the_txid(spans):
    with spans.works(text_unless_bad, exactly_once="transactional") as works:
        send(works, b"traced", ("traceparent", SAMPLED))
        works.finish()
    (event,) = spans.one("process t").events
    write = spans.one("write out")
    assert said(write)["headrace.txids"] == ("t[0]:1",)
    assert (event.attributes or {})["headrace.txids"] == ("t[0]:1",)
    assert (len(write.links), len(spans.tracing.traces.live)) == (1, 0)


@sampled(0.1)
def test_a_share_of_the_records_without_a_parent_is_sampled(spans):
    with spans.works(text_unless_bad) as works:
        works.send(*[b"x"] * 5_000)
        works.finish()
    assert 350 < len(spans.named("process t")) < 650
    assert spans.tracing.traces.skipped == 0


@pytest.fixture
def begin(spans):
    def begin(count):
        traces = spans.tracing.traces
        offsets = np.arange(count)
        traces.chunk_emitted(Chunk(PLACE, offsets, [MESSAGE] * count), offsets)
        return traces

    return begin


@sampled(1.0)
def test_no_more_records_are_traced_at_once_than_may_be(begin, monkeypatch):
    monkeypatch.setattr("service.observability.tracing.MAX_RECORDS", 3)
    traces = begin(10)
    assert (len(traces.live), traces.traced, traces.skipped) == (3, 3, 7)
    traces.records_resolved(np.arange(10))
    assert len(traces.live) == 0


@sampled(1.0)
def test_trace_ends_with_the_session_of_its_partition(spans):
    """It stayed open, as only a partition that was ours until its loss was told."""
    sink = HeldSink()
    sink.gate.clear()
    with spans.works(text_unless_bad, sinks=[sink], shared=True) as works:
        works.want(0)
        send(works, b"x")
        works.until(lambda: len(spans.tracing.traces.live) == 1)
        other = FaultyStore(works.nodes)
        other.open()
        other.claim(PLACE).result(0)
        works.store.end_session()
        works.until(lambda: len(spans.tracing.traces.live) == 0)
    assert spans.one("process t").status.description == "the partition was lost"


@sampled(1.0)
@pytest.mark.parametrize("error", [OSError("it was canary-4711"), Untold()], ids=["s", "u"])
def test_an_errors_text_is_masked_and_need_not_be_tellable(spans, begin, error):
    mask.learn(["canary-4711"])
    traces = begin(1)
    traces.record_failed(0, Failure("parse", error))
    traces.records_resolved(np.array([0]))
    (event,) = spans.one("process t").events
    assert (event.attributes or {})["error.type"] == type(error).__name__
    assert "4711" not in str(event.attributes)


@pytest.mark.slow
def test_silent_collector_delays_nothing():
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes a connection, and that is all
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces"
        config = TracingConfig(endpoint=endpoint, sample_ratio=1.0)
        exporter = OTLPSpanExporter(endpoint, timeout=seconds(5.0))
        tracing = Tracing(config, "orders", np.random.default_rng(1), exporter)
        tracing.open()
        started = time.monotonic()
        for first in range(0, 10_000, 1_000):  # more than the queue holds
            record_ids = np.arange(first, first + 1_000)
            chunk = Chunk(PLACE, record_ids, [MESSAGE] * 1_000)
            tracing.traces.chunk_emitted(chunk, record_ids)
            tracing.traces.records_resolved(record_ids)
        assert time.monotonic() - started < slack(4.0)  # before the first request's deadline
        started = time.monotonic()
        tracing.close(0.2)
        assert time.monotonic() - started < slack(3.0)
    exporter.shutdown()  # else it tries for half a minute, beside other tests
    threads = ("tracing-close", "OtelBatchSpanRecordProcessor")
    until("its threads end", lambda: not any(t.name in threads for t in threading.enumerate()))


def test_what_the_sdk_complains_of_is_told_once_a_minute():
    now = [0.0]
    failure_log = _SdkWarnings(lambda: now[0])
    # an exporter that another test closed may still be trying
    failure_log.addFilter(lambda record: record.name == "opentelemetry.sdk.test")
    failure_log.listen()
    try:
        with capture_logs() as logs:
            for second in range(0, 90, 1):
                now[0] = float(second)
                logging.getLogger("opentelemetry.sdk.test").warning("failed %s", second)
    finally:
        failure_log.stop()
    assert [(line["event"], line["text"], line["others"]) for line in logs] == [
        ("tracing_trouble", "failed 0", 0),
        ("tracing_trouble", "failed 60", 59),
    ]


def test_the_headers_are_read_in_pairs_and_are_secrets():
    config = TracingConfig.model_validate({"headers": "x-token=canary-4711, x-tenant=me=you"})
    assert config.pairs() == {"x-token": "canary-4711", "x-tenant": "me=you"}
    assert "canary-4711" in config.secrets()
    assert "canary-4711" not in repr(config)


WRONG = [
    {"endpoint": "collector:4318"}, {"endpoint": "http://user:pass@collector:4318"},
    {"sample_ratio": 1.5}, {"headers": "=x"},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(ValidationError):
        TracingConfig.model_validate(wrong)
