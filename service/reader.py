"""The Kafka side of a pipeline: partitions, their managers, and the committed offsets."""

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import structlog

from partition.chunk import Chunk, Partition
from partition.fetcher import Fetcher, StartFrom
from partition.manager import PartitionManager, PartitionStatistics, Window
from partition.retries import RetryPolicy
from partition.store import OffsetStore

log = structlog.get_logger()

# An owner names a record to the acker: the manager's place in the high bits, the offset below.
Owners: TypeAlias = npt.NDArray[np.int64]
_OFFSET_BITS = 48
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1


@dataclass(frozen=True, slots=True)
class ReaderPolicy:
    """How topics are read. Seconds are of the owner's monotonic clock."""

    start_from: StartFrom = "earliest"
    window: Window = field(default_factory=Window)
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    commit_interval_seconds: float = 1.0
    fetch_records: int = 10_000
    chunk_records: int = 4_000


class Reader:
    """Reads topics through one PartitionManager per partition and stores their frontiers.

    The owner thread calls everything. Offsets are stored on the store's own thread: with
    ZooKeeper away the reader works on inside its windows (promise 15).
    """

    def __init__(
        self,
        fetcher: Fetcher,
        store: OffsetStore,
        topics: Sequence[str],
        policy: ReaderPolicy,
        rng: random.Random,
    ) -> None:
        self._fetcher = fetcher
        self._store = store
        self._topics = topics
        self._policy = policy
        self._rng = rng
        self._managers: list[PartitionManager] = []
        self._places: dict[Partition, int] = {}
        self._paused: set[Partition] = set()
        self._turn = 0
        self._commit: Future[None] | None = None
        self._committing: dict[Partition, int] = {}
        self._commit_due = 0.0

    def open(self) -> None:
        """Find the partitions and their positions, store first ones, start fetching.

        Promise 7: the first position of a partition is stored before its first record
        is emitted. What partition's fetcher and store raise is passed on.
        """
        self._store.open()
        self._fetcher.open()
        positions: dict[Partition, int] = {}
        for topic in self._topics:
            for partition in self._fetcher.partitions(topic):
                positions[partition] = self._position(partition)
        for partition, position in positions.items():
            self._places[partition] = len(self._managers)
            self._managers.append(
                PartitionManager(
                    partition,
                    position,
                    window=self._policy.window,
                    retry_policy=self._policy.retries,
                    rng=self._rng,
                )
            )
        self._fetcher.assign(positions)

    def _position(self, partition: Partition) -> int:
        stored = self._store.load(partition)
        if stored is not None:
            log.info("partition_resumed", partition=str(partition), offset=stored.offset)
            return stored.offset
        offset = self._fetcher.start_offset(partition, self._policy.start_from)
        self._store.create(partition, offset)
        log.info(
            "partition_started",
            partition=str(partition),
            offset=offset,
            start_from=self._policy.start_from,
        )
        return offset

    def log_ends(self) -> dict[Partition, int]:
        """Where each partition's log ends now."""
        return {m.partition: self._fetcher.log_range(m.partition)[1] for m in self._managers}

    def fetch(self, timeout_seconds: float) -> bool:
        """Take what the fetcher has; True if there was anything."""
        fetched = self._fetcher.fetch(self._policy.fetch_records, timeout_seconds)
        for chunk in fetched.chunks:
            self._manager(chunk.partition).offer(chunk)
        for partition, end in fetched.ends.items():
            self._manager(partition).reached(end)
        for chunk in fetched.chunks:
            self._pause_if_full(chunk.partition)
        return bool(fetched.chunks)

    def next(self, now: float) -> tuple[Chunk, Owners] | None:
        """The next records to emit, with their owners; partitions take turns."""
        count = len(self._managers)
        for turn in range(self._turn, self._turn + count):
            manager = self._managers[turn % count]
            due = manager.next_due()
            if (due is None or due > now) and not manager.has_waiting:
                continue
            chunk = manager.next(now, self._policy.chunk_records)
            if chunk is not None and len(chunk):
                self._turn = turn + 1
                return chunk, chunk.offsets | (turn % count) << _OFFSET_BITS
        return None

    def ack(self, owners: Owners) -> None:
        """Resolve records."""
        places = owners >> _OFFSET_BITS
        offsets = owners & _OFFSET_MASK
        if not len(owners):
            return
        if places[0] == places[-1] and (places == places[0]).all():
            self._managers[int(places[0])].ack(_ascending(offsets))
        else:
            for place in np.flatnonzero(np.bincount(places)).tolist():
                self._managers[place].ack(_ascending(offsets[places == place]))
        self._resume()

    def fail(self, owner: int, now: float, after_seconds: float | None = None) -> bool:
        """Schedule a retry; False when the record's retries are used up."""
        manager = self._managers[owner >> _OFFSET_BITS]
        return manager.fail(owner & _OFFSET_MASK, now, after_seconds)

    def attempts(self, owner: int) -> int:
        """How often the record has been tried."""
        return self._managers[owner >> _OFFSET_BITS].attempts(owner & _OFFSET_MASK)

    def message(self, owner: int) -> Any:
        """The message of a record in flight."""
        return self._managers[owner >> _OFFSET_BITS].message(owner & _OFFSET_MASK)

    def commit(self, now: float, *, force: bool = False) -> None:
        """Store the frontiers that moved, at most once per interval and one write at a time.

        Raises what the last write raised: Fenced when another process owns the offsets.
        """
        if not self._commit_ended():
            return
        if not force and now < self._commit_due:
            return
        self._commit_due = now + self._policy.commit_interval_seconds
        moved = {m.partition: m.frontier for m in self._managers if m.frontier > m.committed}
        if moved:
            self._committing = moved
            self._commit = self._store.commit(moved)

    def _commit_ended(self) -> bool:
        if self._commit is None:
            return True
        if not self._commit.done():
            return False
        ended, self._commit = self._commit, None
        ended.result()
        for partition, offset in self._committing.items():
            self._manager(partition).mark_committed(offset)
        return True

    @property
    def is_committed(self) -> bool:
        """Whether every frontier is stored."""
        return self._commit_ended() and all(m.frontier == m.committed for m in self._managers)

    def has_reached(self, ends: dict[Partition, int]) -> bool:
        """Whether every record below these offsets is resolved."""
        return all(self._manager(p).frontier >= end for p, end in ends.items())

    def has_emitted(self, ends: dict[Partition, int]) -> bool:
        """Whether every record below these offsets is emitted, retries aside."""
        return all(self._manager(p).emitted_to >= end for p, end in ends.items())

    @property
    def is_stuck(self) -> bool:
        """Whether every partition that has records waiting has used up its window."""
        waiting = [m for m in self._managers if m.has_waiting]
        return bool(waiting) and all(m.is_full for m in waiting)

    def statistics(self) -> Iterator[PartitionStatistics]:
        """Where each partition stands."""
        return (manager.statistics() for manager in self._managers)

    def close(self) -> None:
        """Stop fetching and let go of ZooKeeper; what is not committed stays so."""
        self._fetcher.close()
        self._store.close()

    def _manager(self, partition: Partition) -> PartitionManager:
        return self._managers[self._places[partition]]

    def _pause_if_full(self, partition: Partition) -> None:
        manager = self._manager(partition)
        if manager.has_waiting and manager.is_full and partition not in self._paused:
            self._fetcher.pause(partition)
            self._paused.add(partition)
            log.info("partition_paused", partition=str(partition), frontier=manager.frontier)

    def _resume(self) -> None:
        for partition in [p for p in self._paused if not self._manager(p).is_full]:
            self._fetcher.resume(partition)
            self._paused.discard(partition)
            log.info("partition_unpaused", partition=str(partition))


def _ascending(offsets: Owners) -> Owners:
    """The offsets in order: the ledger is fastest on neighbours."""
    in_order = len(offsets) < 2 or bool((offsets[1:] > offsets[:-1]).all())  # noqa: PLR2004
    return offsets if in_order else np.sort(offsets)
