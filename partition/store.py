"""Where the next offset to read is kept between two lives of the process."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from partition.chunk import Partition


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """A partition's stored offset (the next to read) and the topology that stored it."""

    offset: int
    topology_id: str
    topology_name: str = ""


class OffsetStore(Protocol):
    """Keeps one offset per partition, and lets only one writer at a time move it.

    Every write is a compare-and-set on what this store read or wrote last (promise 9);
    offsets never move back (promise 2); no answer never looks like no offset (promise 8).
    """

    @property
    def available(self) -> bool:
        """Whether the store answered when it was last heard of."""

    def open(self) -> None:
        """Connect. Raises StoreUnavailable; may then be called again."""

    def load(self, partition: Partition) -> StoredOffset | None:
        """Return the stored offset; None only when there certainly is none.

        Raises StoreUnavailable within a bounded time, and StoreCorrupt.
        """

    def create(self, partition: Partition, offset: int) -> None:
        """Store a partition's first offset (promise 7).

        Raises StoreConflict when there is one already, and StoreUnavailable.
        """

    def commit(self, offsets: Mapping[Partition, int]) -> Future[None]:
        """Store the partitions' offsets, all of them or none (up to 500 partitions).

        Partitions whose offset is stored already are skipped. While the store is away the
        commit waits and tries again, until `close`. The caller keeps one future
        outstanding. It raises Fenced, OffsetWouldMoveBack, StoreCorrupt, StoreUnavailable
        (after `close`), or StoreError when the store refuses for another reason.
        """

    def close(self) -> None:
        """Disconnect in bounded time; unfinished commits fail. Idempotent."""
