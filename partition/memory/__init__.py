"""Kafka and the offset store in memory, for the test kit and for tests."""

from partition.memory.memory_log import MemoryCatalogue, MemoryFetcher, MemoryLog, MemoryMessage
from partition.memory.memory_store import MemoryNodes, MemoryStore

__all__ = [
    "MemoryCatalogue",
    "MemoryFetcher",
    "MemoryLog",
    "MemoryMessage",
    "MemoryNodes",
    "MemoryStore",
]
