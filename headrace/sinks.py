"""Places for rows and for dead letters."""

from sinks import (
    DeltaSink,
    DiscardSink,
    ForeachSink,
    IcebergSink,
    KafkaDeadLetters,
    KafkaTopicSink,
    MemoryDeadLetters,
    MemorySink,
    PostgresSink,
    SparkSink,
)
from sinks.columns import fitting_rows
from sinks.shares import check_fences, is_to_commit
from topology.sink import (
    BOTH_KINDS,
    Batch,
    Committed,
    DeadLetter,
    DeadLetterSink,
    Fence,
    RangeNotice,
    Share,
    Sink,
    SinkContext,
    Staged,
)

__all__ = [
    "BOTH_KINDS",
    "Batch",
    "Committed",
    "DeadLetter",
    "DeadLetterSink",
    "DeltaSink",
    "DiscardSink",
    "Fence",
    "ForeachSink",
    "IcebergSink",
    "KafkaDeadLetters",
    "KafkaTopicSink",
    "MemoryDeadLetters",
    "MemorySink",
    "PostgresSink",
    "RangeNotice",
    "Share",
    "Sink",
    "SinkContext",
    "SparkSink",
    "Staged",
    "check_fences",
    "fitting_rows",
    "is_to_commit",
]
