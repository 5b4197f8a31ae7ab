"""Kafka and the offset store in memory, for the test kit and for tests."""

from partition.memory.catalogue import MemoryCatalogue
from partition.memory.fetcher import MemoryFetcher
from partition.memory.log import MemoryLog, MemoryMessage
from partition.memory.registry import MemoryRegistry
from partition.memory.store import MemoryNodes, MemoryStore

__all__ = [
    "MemoryCatalogue",
    "MemoryFetcher",
    "MemoryLog",
    "MemoryMessage",
    "MemoryNodes",
    "MemoryRegistry",
    "MemoryStore",
]
