"""Spans of what sinks write: many records in each, so they are linked and not its parents."""

from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer

from service.tracing.headers import NO_CONTEXT

MAX_LINKS = 1_000  # of one batch


class Writes:
    """The writes under way that have traced records in them. The owner thread calls everything."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._spans: dict[tuple[str, int], Span] = {}

    def begin(
        self,
        sink: str,
        number: int,
        rows: int,
        records: Sequence[Span],
        said: Mapping[str, Any],
    ) -> None:
        """Begin the span of a batch or group; it and the records' spans tell of each other."""
        links = [Link(span.get_span_context()) for span in records[:MAX_LINKS]]
        about = {
            "headrace.sink": sink,
            "headrace.rows": rows,
            "headrace.records.traced": len(records),
            **said,
        }
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
        self._spans[sink, number] = span

    def end(self, sink: str, number: int, rejected: int, error: str | None) -> None:
        """End its span, if it has one."""
        span = self._spans.pop((sink, number), None)
        if span is not None:
            span.set_attribute("headrace.rows.rejected", rejected)
            if error is not None:
                span.set_status(Status(StatusCode.ERROR, error))
            span.end()

    def close(self, error: str) -> None:
        """End those that are under way."""
        for sink, number in list(self._spans):
            self.end(sink, number, 0, error)
