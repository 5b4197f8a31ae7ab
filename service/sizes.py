"""How many records are taken from Kafka at once, and given to the bolts at once."""

from typing import NamedTuple

from topology.bolt import Kind
from topology.topology import Topology


class Sizes(NamedTuple):
    """Records that are fetched at most at once, and emitted to the bolts at most at once."""

    fetch_records: int
    chunk_records: int


# Measured, see ADR 0027. A few thousand records and what functions make of them stay in the
# processor's caches until they are written; an event loop beside them waits while the owner has
# Python's lock; columns have no objects per record, and each call of
# Arrow has its price; at most once each fetch waits for a write to ZooKeeper.
_OBJECTS = Sizes(4_000, 2_000)
_WITH_A_LOOP = Sizes(2_000, 1_000)
_COLUMNS = Sizes(8_000, 8_000)
_STORED_FIRST = Sizes(10_000, 4_000)


def sizes_of(
    topology: Topology, fetch_records: int | None = None, chunk_records: int | None = None
) -> Sizes:
    """What suits a topology, where nothing else is asked for."""
    if topology.reliability == "at-most-once":
        best = _STORED_FIRST
    elif any(source.is_concurrent for source in topology.sources):
        best = _COLUMNS
    elif any(step.kind is Kind.ASYNC for step in topology.bolts()):
        best = _WITH_A_LOOP
    else:
        best = _OBJECTS
    return Sizes(fetch_records or best.fetch_records, chunk_records or best.chunk_records)
