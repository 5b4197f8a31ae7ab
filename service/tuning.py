"""Measured settings of the hot path: chunk sizes, and how rarely the garbage collector runs."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
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


NET_CONTAINERS = 500_000


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the collector run after half a million more containers than before, not 700.

    The threshold counts containers made less containers freed, and without cycles all of
    them are freed when their batch is written. The default would walk every record in
    flight over and over: measured, 0.7 of 2.3 µs CPU per record. Cycles in a user's code
    are still collected, after at most so many containers.
    """
    before = gc.get_threshold()
    gc.freeze()  # modules, classes and look-up tables need no second look
    gc.set_threshold(NET_CONTAINERS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
