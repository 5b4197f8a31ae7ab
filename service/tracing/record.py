"""The span of one traced record, and those of the bolts that are called for it."""

from dataclasses import dataclass, field

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from topology.calls import Took
from topology.complaints import text_of
from topology.masking import mask
from topology.record import Reject
from topology.sink import TraceHeaders

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

    def try_again(self) -> None:
        """Learn that the record comes again."""
        self.attempt += 1
        self.spans = 0
        self._end_calls()

    def called(self, step: str, edge: int) -> None:
        """Begin the span of a call that ends later."""
        span = self._bolt(step, 1, None)
        if span is not None:
            self.calls[edge] = span

    def answered(self, edge: int, error: Exception | None) -> None:
        """End the span of a call, if it has one."""
        span = self.calls.pop(edge, None)
        if span is not None:
            _tell_end(span, error)
            span.end()

    def took(self, took: Took, error: Exception | None, behind_ns: int) -> None:
        """Tell of a call that is over; `behind_ns` is from its clock to the time of day."""
        ended = int(took.ended * 1e9) + behind_ns
        span = self._bolt(took.step, took.calls, ended - int(took.seconds * 1e9))
        if span is not None:
            _tell_end(span, error)
            span.end(ended)

    def end(self) -> None:
        """End the record's span."""
        self._end_calls()
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


def error_attributes(error: Exception) -> dict[str, str]:
    """What spans and events say of an error."""
    return {"error.type": type(error).__name__, "headrace.reason": shortened(text_of(error))}


def shortened(text: str) -> str:
    """So much of a text as a span has room for, without secrets."""
    return mask(text)[:_TEXT_LENGTH]


def _tell_end(span: Span, error: Exception | None) -> None:
    if error is None:
        span.set_attribute("headrace.outcome", "done")
        return
    span.set_attribute("headrace.outcome", "rejected" if isinstance(error, Reject) else "failed")
    span.set_attributes(error_attributes(error))
    span.set_status(Status(StatusCode.ERROR, shortened(text_of(error))))
