"""Places for rows and for dead letters."""

from sinks import (
    DeltaSink,
    DiscardSink,
    KafkaSink,
    MemoryDeadLetters,
    MemorySink,
    ParquetSink,
)
from topology.sink import Batch, DeadLetter, DeadLetterSink, RangeNotice, Sink, SinkContext

__all__ = [
    "Batch",
    "DeadLetter",
    "DeadLetterSink",
    "DeltaSink",
    "DiscardSink",
    "KafkaSink",
    "MemoryDeadLetters",
    "MemorySink",
    "ParquetSink",
    "RangeNotice",
    "Sink",
    "SinkContext",
]
