"""Contexts of traces, out of a record's headers and into those of messages (W3C Trace Context)."""

from collections.abc import Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from topology.sink import TraceHeaders, is_of_trace

NO_CONTEXT = Context()

_W3C = TraceContextTextMapPropagator()


def parents_in(headers: Sequence[Any]) -> dict[int, Context]:
    """The contexts that records came with, by place; what is malformed is none."""
    found: dict[int, Context] = {}
    for place, pairs in enumerate(headers):
        if not pairs:
            continue
        carrier = {n.lower(): _text(value) for n, value in pairs if value and is_of_trace(n)}
        if "traceparent" in carrier:
            context = _W3C.extract(carrier, NO_CONTEXT)
            if get_current_span(context).get_span_context().is_valid:
                found[place] = context
    return found


def is_sampled(context: Context) -> bool:
    """Whether the sender has its own span recorded."""
    return get_current_span(context).get_span_context().trace_flags.sampled


def carried(context: Context) -> TraceHeaders:
    """The headers by which a message carries a trace on."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, context)
    return tuple((name, value.encode()) for name, value in carrier.items())


def _text(value: bytes) -> str:
    return value.decode("ascii", "replace")
