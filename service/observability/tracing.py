"""The spans of traced records: from their Kafka headers to the sink's transaction."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from operator import attrgetter
from typing import Any, cast

import numpy as np
import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from acker.acker import Edges
from partition.records import (
    OFFSET_BITS,
    Chunk,
    Partition,
    RecordIds,
    offset_of,
    partition_index_of,
)
from service.config.settings import TracingConfig
from service.pipeline.context import Observer
from topology.calls import Failure, Outcome, Took
from topology.masking import mask
from topology.monitoring import text_of
from topology.record import HeadersUnreadable, Message, Reject, headers_of
from topology.sink import DeadLetter, RowTraces, Share, TraceHeaders, is_of_trace
from topology.workers.key_queue import Call

NO_CONTEXT = Context()

_W3C = TraceContextTextMapPropagator()


def parents_in(headers: Sequence[Any]) -> dict[int, tuple[Context, bool]]:
    """Return the contexts that records came with, by place, and whether their senders sample them.

    What is malformed is none.
    """
    found = {}
    for place, pairs in enumerate(headers):
        if not pairs:
            continue
        carrier = {
            name.lower(): value.decode("ascii", "replace")
            for name, value in pairs
            if value and is_of_trace(name)
        }
        if "traceparent" in carrier:
            context = _W3C.extract(carrier, NO_CONTEXT)
            sender = trace.get_current_span(context).get_span_context()
            if sender.is_valid:
                found[place] = context, sender.trace_flags.sampled
    return found


def carried(context: Context) -> TraceHeaders:
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, context)
    return tuple((name, value.encode()) for name, value in carrier.items())


MAX_SPANS = 64  # of bolts' calls for one try of a record

_TEXT_LENGTH = 200


@dataclass(slots=True)
class TracedRecord:
    """A record that is traced and has not resolved. The owner thread calls everything."""

    tracer: Tracer
    span: Span
    context: Context  # that of the span
    headers: TraceHeaders  # what carries it on
    attempt: int = 1
    spans: int = 0  # of bolts, in this try
    calls: dict[int, Span] = field(default_factory=dict)  # under way, by the edge of the value
    letters: list[Span] = field(default_factory=list)  # dead letters on their way

    def try_again(self) -> None:
        self.attempt += 1
        self.spans = 0
        self._end_calls()

    def called(self, step: str, edge: int) -> None:
        span = self._bolt(step, 1, None)
        if span is not None:
            self.calls[edge] = span

    def answered(self, edge: int, error: Exception | None) -> None:
        span = self.calls.pop(edge, None)
        if span is not None:
            _record_end(span, error)
            span.end()

    def took(self, took: Took, error: Exception | None, behind_ns: int) -> None:
        """Record a finished call; `behind_ns` is from its clock to the time of day."""
        ended = int(took.ended * 1e9) + behind_ns
        span = self._bolt(took.step, took.calls, ended - int(took.seconds * 1e9))
        if span is not None:
            _record_end(span, error)
            span.end(ended)

    def end(self) -> None:
        self._end_calls()
        for letter in self.letters:  # of a try that failed meanwhile
            letter.end()
        self.span.set_attribute("headrace.attempts", self.attempt)
        self.span.end()

    def _bolt(self, step: str, calls: int, start_ns: int | None) -> Span | None:
        self.spans += 1
        if self.spans > MAX_SPANS:
            return None
        about: dict[str, str | int] = {
            "headrace.step": step,
            "headrace.attempt": self.attempt,
            "headrace.calls": calls,
        }
        return self.tracer.start_span(
            f"bolt {step}", self.context, SpanKind.INTERNAL, about, start_time=start_ns
        )

    def _end_calls(self) -> None:
        """End the calls whose answers no one takes any more."""
        for span in self.calls.values():
            span.set_attribute("headrace.outcome", "void")
            span.end()
        self.calls.clear()


def error_attributes(error: Exception) -> dict[str, str | int]:
    return {"error.type": type(error).__name__, "headrace.reason": shortened(text_of(error))}


def shortened(text: str) -> str:
    """So much of a text as a span has room for, without secrets."""
    return mask(text)[:_TEXT_LENGTH]


def _record_end(span: Span, error: Exception | None) -> None:
    if error is None:
        span.set_attribute("headrace.outcome", "done")
        return
    span.set_attribute("headrace.outcome", "rejected" if isinstance(error, Reject) else "failed")
    span.set_attributes(error_attributes(error))
    span.set_status(StatusCode.ERROR, shortened(text_of(error)))


MAX_LINKS = 1_000  # of one batch
MAX_RECORDS = 4_096  # traced at once; further ones are not

_record_id_of = attrgetter("record_id")
_NO_RECORDS: RecordIds = np.empty(0, np.int64)


class Traces(Observer):
    """Begins and ends spans. The owner thread calls everything, and nothing blocks or raises."""

    def __init__(self, tracer: Tracer, ratio: float, rng: np.random.Generator) -> None:
        """`ratio` is the share of records without a `traceparent` that begin a trace."""
        self._tracer = tracer
        self._ratio = ratio
        self._rng = rng
        self.live: dict[int, TracedRecord] = {}  # by record id
        self._sorted: RecordIds | None = None  # its keys; None: they have changed
        self._writes: dict[tuple[str, int], Span] = {}  # under way, by sink and number
        self.traced = 0
        """Records that were traced so far."""
        self.skipped = 0
        """Records that were to be traced while as many as may be were."""

    # Records

    def chunk_emitted(self, chunk: Chunk, record_ids: RecordIds) -> None:
        """Begin what a chunk has to trace; what comes again goes on."""
        partition = chunk.partition
        messages = cast("Sequence[Message]", chunk.messages)
        for record_id in self._hits(record_ids):
            self.live[record_id].try_again()
        headers = list(map(_headers_or_none, messages))
        chosen: Iterable[int] = ()
        if self._ratio:
            chosen = np.flatnonzero(self._rng.random(len(messages)) < self._ratio).tolist()
        parents = parents_in(headers) if any(headers) else {}
        for place in sorted({*chosen, *parents}):
            record_id = int(record_ids[place])
            context, is_sampled = parents.get(place, (NO_CONTEXT, True))
            if record_id in self.live or not is_sampled:
                continue
            if len(self.live) >= MAX_RECORDS:
                self.skipped += 1
                continue
            self._begin(partition, messages[place], record_id, context)

    def _begin(
        self, partition: Partition, message: Message, record_id: int, context: Context
    ) -> None:
        value = message.value()
        span = self._tracer.start_span(
            f"process {partition.topic}",
            context,
            SpanKind.CONSUMER,
            {
                "messaging.system": "kafka",
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.destination.name": partition.topic,
                "messaging.destination.partition.id": str(partition.number),
                "messaging.kafka.offset": offset_of(record_id),
                "messaging.kafka.message.tombstone": value is None,
                "messaging.message.body.size": len(value or b""),
            },
        )
        inside = trace.set_span_in_context(span, context)
        self.traced += 1
        self._sorted = None
        self.live[record_id] = TracedRecord(self._tracer, span, inside, carried(inside))

    def records_resolved(self, record_ids: RecordIds) -> None:
        for record_id in self._hits(record_ids):
            self._end(record_id)

    def resolved_below(self, index: int, end: int) -> None:
        highest = end | index << OFFSET_BITS
        lowest = index << OFFSET_BITS
        for record_id in [each for each in self.live if lowest <= each < highest]:
            self._end(record_id)

    def partition_lost(self, index: int) -> None:
        for record_id in [each for each in self.live if partition_index_of(each) == index]:
            self._end(record_id, "the partition was lost")

    def close(self) -> None:
        """End what has not resolved: another process goes on with it."""
        why = "the process ended first"
        for record_id in list(self.live):
            self._end(record_id, why)
        for sink, number in list(self._writes):
            self.batch_ended(sink, number, _NO_RECORDS, 0, why)

    def _end(self, record_id: int, error: str | None = None) -> None:
        if error is not None:
            self.live[record_id].span.set_status(StatusCode.ERROR, error)
        self._sorted = None
        self.live.pop(record_id).end()

    # Bolts

    def bolts_ran(self, record_ids: RecordIds, outcome: Outcome) -> None:
        """Record the bolts that ran over a chunk.

        They were called in one go, so each record's span has the time of the whole call.
        """
        behind = time.time_ns() - time.perf_counter_ns()
        for place in self._places(record_ids):
            traced = self.live[int(record_ids[place])]
            failure = outcome.failures.get(place)
            for took in outcome.took:
                if _was_in(took, place):
                    error = failure.error if failure and failure.step == took.step else None
                    traced.took(took, error, behind)

    def calls_started(self, step: str, record_ids: RecordIds, edges: Edges) -> None:
        for place in self._places(record_ids):
            self.live[int(record_ids[place])].called(step, int(edges[place]))

    def calls_ended(self, calls: Sequence[Call]) -> None:
        if not self.live or self.live.keys().isdisjoint(map(_record_id_of, calls)):
            return
        for call in calls:
            traced = self.live.get(call.record_id)
            if traced is not None:
                traced.answered(call.edge, call.error)

    # Failures

    def record_failed(self, record_id: int, failure: Failure) -> None:
        traced = self.live.get(record_id)
        if traced is not None:
            said = error_attributes(failure.error)
            said["headrace.step"] = failure.step
            said["headrace.attempt"] = traced.attempt
            traced.span.add_event("headrace.try_failed", said)

    def dead_letter_sent(
        self, record_id: int, letter: DeadLetter, sink: str
    ) -> TraceHeaders | None:
        """Begin the span of the sending; the letter carries it on."""
        traced = self.live.get(record_id)
        if traced is None:
            return None
        span = self._tracer.start_span(
            f"send {sink}",
            traced.context,
            SpanKind.PRODUCER,
            {
                "messaging.system": "kafka",
                "messaging.operation.name": "send",
                "messaging.operation.type": "send",
                "messaging.destination.name": sink,
                "headrace.step": letter.step,
                "headrace.attempts": letter.attempts,
                "headrace.reason": shortened(letter.reason),
                "error.type": letter.error_class,
            },
        )
        traced.letters.append(span)
        traced.span.set_status(StatusCode.ERROR, f"dead letter: {letter.error_class}")
        return carried(trace.set_span_in_context(span, traced.context))

    def dead_letter_acked(self, record_id: int) -> None:
        traced = self.live.get(record_id)
        if traced is not None and traced.letters:
            traced.letters.pop(0).end()

    # Sinks

    def batch_submitted(
        self,
        sink: str,
        number: int,
        record_ids: RecordIds,
        joined_ids: RecordIds,
        shares: Sequence[Share],
    ) -> RowTraces | None:
        """Begin the span of a write; it and the spans of its records tell of each other."""
        linked = sorted(self._hits(record_ids) | self._hits(joined_ids))
        if not linked:
            return None
        said: dict[str, Any] = {"headrace.batch.sequence": number}
        if shares:
            said = {
                "headrace.txids": [f"{share.line}:{share.txid}" for share in shares],
                "headrace.epochs": [f"{share.line}:{share.epoch}" for share in shares],
            }
        records = [self.live[record_id].span for record_id in linked]
        about = {
            "headrace.sink": sink,
            "headrace.rows": len(record_ids),
            "headrace.records.traced": len(records),
            **said,
        }
        links = [Link(span.get_span_context()) for span in records[:MAX_LINKS]]
        span = self._tracer.start_span(f"write {sink}", NO_CONTEXT, SpanKind.CLIENT, about, links)
        context = span.get_span_context()
        event = {
            "headrace.sink": sink,
            "headrace.write.trace_id": f"{context.trace_id:032x}",
            "headrace.write.span_id": f"{context.span_id:016x}",
            **said,
        }
        for record in records:
            record.add_event("headrace.write", event)
        self._writes[sink, number] = span
        return {row: self.live[int(record_ids[row])].headers for row in self._places(record_ids)}

    def batch_ended(
        self, sink: str, number: int, record_ids: RecordIds, rejected: int, error: str | None
    ) -> None:
        del record_ids
        span = self._writes.pop((sink, number), None)
        if span is not None:
            span.set_attribute("headrace.rows.rejected", rejected)
            if error is not None:
                span.set_status(StatusCode.ERROR, error)
            span.end()

    def _hits(self, record_ids: RecordIds) -> set[int]:
        return {int(record_ids[place]) for place in self._places(record_ids)}

    def _places(self, record_ids: RecordIds) -> list[int]:
        """Return where traced records stand: one may have several tuples, its own and joined ones.

        It is asked of every chunk and batch, so in C.
        """
        if not self.live or not len(record_ids):
            return []
        if self._sorted is None:
            self._sorted = np.sort(np.fromiter(self.live, np.int64, len(self.live)))
        found = np.searchsorted(self._sorted[:-1], record_ids)  # the last is that of all above
        return np.flatnonzero(self._sorted[found] == record_ids).tolist()


def _was_in(took: Took, place: int) -> bool:
    inside = place - took.start
    if took.parents is None:
        return 0 <= inside < took.calls
    return bool((took.parents == inside).any())


def _headers_or_none(message: Message) -> Sequence[tuple[str, bytes | None]] | None:
    """Return the headers; unreadable ones carry no trace."""
    try:
        return headers_of(message)
    except HeadersUnreadable:
        return None


log = structlog.get_logger()

_QUEUE_SPANS = 8_192
_BATCH_SPANS = 512
_DELAY_MS = 1_000
_REQUEST_SECONDS = 5.0
_TELL_SECONDS = 60.0


_batched = partial(
    BatchSpanProcessor,
    max_queue_size=_QUEUE_SPANS,
    schedule_delay_millis=_DELAY_MS,
    max_export_batch_size=_BATCH_SPANS,
)


class Tracing:
    """The traces of a run, and the SDK behind them; `close` waits for a moment at most.

    Spans wait in a queue for a thread of the SDK's. While the collector is away the oldest
    are dropped, and that is logged once a minute.
    """

    def __init__(
        self,
        config: TracingConfig,
        pipeline: str,
        rng: np.random.Generator,
        exporter: SpanExporter | None = None,
        processor: Callable[[SpanExporter], SpanProcessor] = _batched,
    ) -> None:
        """`exporter` and `processor` stand in for those that send to the endpoint."""
        self._config = config
        self._exporter = exporter
        self._processor = processor
        self._warnings = _SdkWarnings()
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,  # what is not to be sampled gets no span at all
            resource=Resource.create(
                {"service.name": config.service_name, "headrace.pipeline": pipeline}
            ),
            shutdown_on_exit=False,  # it would wait for a collector that is away
            span_limits=SpanLimits(max_links=MAX_LINKS),
        )
        tracer = self._provider.get_tracer("headrace", version("headrace"))
        self.traces = Traces(tracer, config.sample_ratio, rng)

    def open(self) -> None:
        """Start the thread that sends. The collector is not asked; spans begun before are lost."""
        self._warnings.listen()
        exporter = self._exporter or OTLPSpanExporter(
            self._config.endpoint, headers=self._config.pairs(), timeout=_REQUEST_SECONDS
        )
        self._provider.add_span_processor(self._processor(exporter))

    def close(self, timeout_seconds: float) -> None:
        """Send what waits, at most so long; what is left then is dropped."""
        self.traces.close()
        closing = threading.Thread(
            target=self._provider.shutdown, name="tracing-close", daemon=True
        )
        closing.start()
        closing.join(timeout_seconds)
        self._warnings.stop()


class _SdkWarnings(logging.Handler):
    """Logs the SDK's warnings, one line a minute. Any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._clock = clock
        self._told_at: float | None = None
        self._untold = 0

    def listen(self) -> None:
        """Take the SDK's log over."""
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self)
        logger.propagate = False

    def stop(self) -> None:
        """Listen no more; what the SDK's threads say from now on goes nowhere."""
        logger = logging.getLogger("opentelemetry")
        logger.removeHandler(self)
        logger.addHandler(logging.NullHandler())

    def emit(self, record: logging.LogRecord) -> None:
        now = self._clock()
        if self._told_at is not None and now - self._told_at < _TELL_SECONDS:
            self._untold += 1
            return
        self._told_at, untold = now, self._untold
        self._untold = 0
        log.warning("tracing_trouble", text=record.getMessage(), others=untold)
