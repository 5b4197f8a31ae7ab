"""The spans of traced records: from their headers to the sink's transaction.

Of a record that is not traced nothing is done but a look at its headers, and that in C. What
is kept of a traced one is kept until it resolves; there is a most of everything.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, cast

import numpy as np
from opentelemetry.context import Context
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    set_span_in_context,
)

from acker.acker import Edges
from partition.records import (
    OFFSET_BITS,
    Chunk,
    Partition,
    RecordIds,
    offset_of,
    partition_index_of,
)
from service.pipeline.context import Observer
from service.pipeline.sink_buffer import PendingBatch
from service.pipeline.trees import TreeTracker
from service.tracing.headers import NO_CONTEXT, carried, is_sampled, parents_in
from service.tracing.record import TracedRecord, error_attributes, shortened
from service.tracing.writes import Writes
from topology.calls import Failure, Outcome, Took
from topology.record import HeadersUnreadable, Message, headers_of
from topology.sink import DeadLetter, RowTraces, Share, TraceHeaders
from topology.workers.call import Call

MAX_RECORDS = 4_096  # traced at once; further ones are not

_record_id_of = attrgetter("record_id")


class Traces(Observer):
    """Begins and ends spans. The owner thread calls everything, and nothing blocks or raises."""

    def __init__(
        self,
        tracer: Tracer,
        ratio: float,
        rng: np.random.Generator,
        *,
        max_records: int = MAX_RECORDS,
    ) -> None:
        """`ratio` is the share of records without a `traceparent` that begin a trace."""
        self._tracer = tracer
        self._ratio = ratio
        self._rng = rng
        self._max_records = max_records
        self._live: dict[int, TracedRecord] = {}
        self._sorted: RecordIds | None = None  # its keys; None: they have changed
        self._writes = Writes(tracer)
        self.traced = 0
        """Records that were traced so far."""
        self.skipped = 0
        """Records that were to be traced while as many as may be were."""

    @property
    def num_live(self) -> int:
        """Records that are traced now."""
        return len(self._live)

    # Records

    def chunk_emitted(self, chunk: Chunk, record_ids: RecordIds) -> None:
        """Begin what a chunk has to trace; what comes again goes on."""
        partition = chunk.partition
        messages = cast("Sequence[Message]", chunk.messages)
        for record_id in self._hits(record_ids):
            self._live[record_id].try_again()
        headers = list(map(_headers_or_none, messages))
        chosen: Iterable[int] = ()
        if self._ratio:
            chosen = np.flatnonzero(self._rng.random(len(messages)) < self._ratio).tolist()
        parents = parents_in(headers) if any(headers) else {}
        for place in sorted({*chosen, *parents}):
            record_id = int(record_ids[place])
            context = parents.get(place)
            if record_id in self._live or (context is not None and not is_sampled(context)):
                continue
            if len(self._live) >= self._max_records:
                self.skipped += 1
                continue
            self._begin(partition, messages[place], record_id, context or NO_CONTEXT)

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
        inside = set_span_in_context(span, context)
        self.traced += 1
        self._sorted = None
        self._live[record_id] = TracedRecord(self._tracer, span, inside, carried(inside))

    def records_resolved(self, record_ids: RecordIds) -> None:
        """End the spans of records that are complete."""
        for record_id in self._hits(record_ids):
            self._end(record_id)

    def resolved_below(self, index: int, end: int) -> None:
        """End those of a partition below an offset: their transaction is committed."""
        highest = end | index << OFFSET_BITS
        lowest = index << OFFSET_BITS
        for record_id in [each for each in self._live if lowest <= each < highest]:
            self._end(record_id)

    def partition_lost(self, index: int) -> None:
        """End those of a partition that is not ours any more."""
        for record_id in [each for each in self._live if partition_index_of(each) == index]:
            self._live[record_id].span.set_status(
                Status(StatusCode.ERROR, "the partition was lost")
            )
            self._end(record_id)

    def close(self) -> None:
        """End what has not resolved: another process goes on with it."""
        for record_id in list(self._live):
            self._live[record_id].span.set_status(
                Status(StatusCode.ERROR, "the process ended first")
            )
            self._end(record_id)
        self._writes.close("the process ended first")

    def _end(self, record_id: int) -> None:
        self._sorted = None
        self._live.pop(record_id).end()

    # Bolts

    def bolts_ran(self, record_ids: RecordIds, outcome: Outcome) -> None:
        """Tell of the bolts that were run over a chunk.

        They were called in one go, so each record's span has the time of the whole call.
        """
        hits = self._hits(record_ids)
        if not hits:
            return
        behind = time.time_ns() - time.perf_counter_ns()
        # A record may stand at several places: tuples of one, and of joined ones.
        for place in np.flatnonzero(np.isin(record_ids, list(hits))).tolist():
            traced = self._live[int(record_ids[place])]
            failure = outcome.failures.get(place)
            for took in outcome.took:
                if _was_in(took, place):
                    error = failure.error if failure and failure.step == took.step else None
                    traced.took(took, error, behind)

    def calls_started(self, step: str, record_ids: RecordIds, edges: Edges) -> None:
        """Begin the calls of a bolt that end later."""
        hits = self._hits(record_ids)
        for place in np.flatnonzero(np.isin(record_ids, list(hits))).tolist() if hits else ():
            self._live[int(record_ids[place])].called(step, int(edges[place]))

    def calls_ended(self, calls: Sequence[Call]) -> None:
        """End the calls that have ended."""
        if not self._live or self._live.keys().isdisjoint(map(_record_id_of, calls)):
            return
        for call in calls:
            traced = self._live.get(call.record_id)
            if traced is not None:
                traced.answered(call.edge, call.error)

    def advanced_ran(self, step: str, record_ids: RecordIds, seconds: float) -> None:
        """Tell of an advanced bolt that was just run."""
        behind = time.time_ns() - time.perf_counter_ns()
        took = Took(step, len(record_ids), seconds, time.perf_counter(), None)
        for record_id in self._hits(record_ids):
            self._live[record_id].took(took, None, behind)

    # Failures

    def record_failed(self, record_id: int, failure: Failure) -> None:
        """Tell of a try that has failed."""
        traced = self._live.get(record_id)
        if traced is not None:
            said: dict[str, str | int] = {
                "headrace.attempt": traced.attempt,
                "headrace.step": failure.step,
                **error_attributes(failure.error),
            }
            traced.span.add_event("headrace.try_failed", said)

    def letter(
        self, record_id: int, letter: DeadLetter, topic: str
    ) -> tuple[DeadLetter, Span | None]:
        """Begin the sending of a dead letter; it carries the trace on."""
        traced = self._live.get(record_id)
        if traced is None:
            return letter, None
        span = self._tracer.start_span(
            f"send {topic}",
            traced.context,
            SpanKind.PRODUCER,
            {
                "messaging.system": "kafka",
                "messaging.operation.name": "send",
                "messaging.operation.type": "send",
                "messaging.destination.name": topic,
                "headrace.step": letter.step,
                "headrace.attempts": letter.attempts,
                "headrace.reason": shortened(letter.reason),
                "error.type": letter.error_class,
            },
        )
        traced.span.set_status(Status(StatusCode.ERROR, f"dead letter: {letter.error_class}"))
        return replace(letter, trace=carried(set_span_in_context(span, traced.context))), span

    # Sinks

    def batch(self, sink: str, pending: PendingBatch, tracker: TreeTracker) -> PendingBatch:
        """Begin a batch's write; its rows learn of the traces that they belong to."""
        if not self._live:
            return pending
        record_ids = tracker.record_ids(pending.trees)
        hits = self._hits(record_ids)
        linked = hits | self._hits(tracker.records_of(pending.trees))
        if not linked:
            return pending
        batch = pending.batch
        said = {"headrace.batch.sequence": batch.sequence}
        self._write(sink, batch.sequence, batch.num_rows, linked, said)
        return replace(pending, batch=replace(batch, traces=self._rows(record_ids, hits)))

    def group(
        self, sink: str, number: int, shares: Sequence[Share], record_ids: RecordIds
    ) -> RowTraces:
        """Begin the staging and commit of some transactions; what the rows carry on."""
        hits = self._hits(record_ids)
        if not hits:
            return {}
        said = {
            "headrace.txids": [f"{share.line}:{share.txid}" for share in shares],
            "headrace.epochs": [f"{share.line}:{share.epoch}" for share in shares],
        }
        self._write(sink, number, len(record_ids), hits, said)
        return self._rows(record_ids, hits)

    def written(self, sink: str, number: int, rejected: int, error: str | None = None) -> None:
        """End a batch's or group's span."""
        self._writes.end(sink, number, rejected, error)

    def _write(
        self,
        sink: str,
        number: int,
        rows: int,
        record_ids: Collection[int],
        said: Mapping[str, Any],
    ) -> None:
        spans = [self._live[record_id].span for record_id in sorted(record_ids)]
        self._writes.begin(sink, number, rows, spans, said)

    def _rows(self, record_ids: RecordIds, hits: Collection[int]) -> dict[int, TraceHeaders]:
        rows = np.flatnonzero(np.isin(record_ids, list(hits))).tolist() if hits else []
        return {row: self._live[int(record_ids[row])].headers for row in rows}

    def _hits(self, record_ids: RecordIds) -> set[int]:
        """Those of the records that are traced. It is asked of every chunk and batch, so in C."""
        if not self._live or not len(record_ids):
            return set()
        if self._sorted is None:
            self._sorted = np.sort(np.fromiter(self._live, np.int64, len(self._live)))
        found = np.searchsorted(
            self._sorted[:-1], record_ids
        )  # the last place is that of all above
        return set(record_ids[self._sorted[found] == record_ids].tolist())


def _was_in(took: Took, place: int) -> bool:
    inside = place - took.start
    if took.parents is None:
        return 0 <= inside < took.calls
    return bool((took.parents == inside).any())


def _headers_or_none(message: Message) -> Sequence[tuple[str, bytes | None]] | None:
    """What cannot be read carries no trace."""
    try:
        return headers_of(message)
    except HeadersUnreadable:
        return None
