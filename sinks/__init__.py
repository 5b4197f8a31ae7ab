"""Micro-batches, the sinks that write them, and the dead letters.

Importing this starts and imports neither Spark nor a Kafka client: the modules that need
them import them inside their functions, so that a bolt's unit test starts no JVM.
"""

from sinks.kafka import KafkaSink
from sinks.memory import DiscardSink, MemoryDeadLetters, MemorySink
from sinks.spark.table import DeltaSink, ParquetSink

__all__ = [
    "DeltaSink",
    "DiscardSink",
    "KafkaSink",
    "MemoryDeadLetters",
    "MemorySink",
    "ParquetSink",
]
