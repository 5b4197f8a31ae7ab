"""Places for rows and for dead letters."""

from sinks import (
    DeltaSink,
    DiscardSink,
    FencedTarget,
    ForeachSink,
    IcebergSink,
    KafkaDeadLetters,
    KafkaTopicSink,
    MemoryDeadLetters,
    MemorySink,
    PostgresSink,
    SparkSink,
    Target,
    TransactionalForeachSink,
)
from topology.sink import Batch, DeadLetter, DeadLetterSink, RangeNotice, Sink, SinkContext
from topology.transactional import Committed, Fence, Group, Share, Staged, TransactionalSink

__all__ = [
    "Batch",
    "Committed",
    "DeadLetter",
    "DeadLetterSink",
    "DeltaSink",
    "DiscardSink",
    "Fence",
    "FencedTarget",
    "ForeachSink",
    "Group",
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
    "Target",
    "TransactionalForeachSink",
    "TransactionalSink",
]
