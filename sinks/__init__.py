"""Micro-batches, the sinks that write them, and the dead letters.

Importing this starts nothing, and imports no client of Spark, Kafka or PostgreSQL: the modules
that need them import them inside their functions, so that a bolt's unit test starts no JVM.
"""

from sinks.kafka.dead_letter_sink import KafkaDeadLetters
from sinks.kafka.sink import KafkaTopicSink
from sinks.memory import DiscardSink, ForeachSink, MemoryDeadLetters, MemorySink
from sinks.postgres.sink import PostgresSink
from sinks.spark.spark_sink import SparkSink
from sinks.tables.delta import DeltaSink
from sinks.tables.iceberg import IcebergSink

__all__ = [
    "DeltaSink",
    "DiscardSink",
    "ForeachSink",
    "IcebergSink",
    "KafkaDeadLetters",
    "KafkaTopicSink",
    "MemoryDeadLetters",
    "MemorySink",
    "PostgresSink",
    "SparkSink",
]
