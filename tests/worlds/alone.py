"""A replica that is the only one, on an offset store in memory."""

from partition.consumer import Consumer
from partition.memory import MemoryRegistry, MemoryStore
from partition.replicas.heartbeat import Mine
from service.sharing import Sharing, SharingPolicy


def alone(store: MemoryStore, reader: Consumer) -> Sharing:
    """It shares its partitions with nobody."""
    mine = Mine("one", "process")
    registry = MemoryRegistry(store, root="/headrace", pipeline="memory", mine=mine)
    return Sharing(registry, reader.assignment, SharingPolicy("one"))
