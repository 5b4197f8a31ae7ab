"""What a trace leaves in messages: headers by W3C's Trace Context."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

TRACE_HEADERS = ("traceparent", "tracestate")

TraceHeaders: TypeAlias = tuple[tuple[str, bytes], ...]
RowTraces: TypeAlias = Mapping[int, TraceHeaders]
"""By row: the headers of the one record that it came of, if that is traced."""

NO_TRACES: RowTraces = MappingProxyType({})


def is_of_trace(name: str) -> bool:
    """Whether a header of this name tells of a trace; names have no case."""
    return name.lower() in TRACE_HEADERS
