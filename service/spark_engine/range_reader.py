"""Read the ranges of one task: what `Consumer` is to the local engine, without a store."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from partition.assigned_partition import Assigned, PartitionChange, Revoked
from partition.delivery import AtLeastOnce
from partition.manager import FREE, Allowance, InFlightLimits, PartitionManager
from partition.records import (
    Chunk,
    Partition,
    RecordIds,
    by_partition,
    offset_of,
    partition_index_of,
    record_ids_of,
)
from partition.retry import Retries
from service.spark_engine.range_fetcher import RangeFetcher
from service.spark_engine.task import TaskRange, TaskSettings

_TURN_SECONDS = 0.002  # so long the owner waits where nothing more can be fetched
_FEW_CHUNKS = 2


class RangeReader:
    """Reads ranges, each through a PartitionManager; partitions take turns.

    Nothing is claimed, stored or planned: the driver owns the partitions, and what a task has
    done counts once the driver has committed it. `resolve_below` says that records are staged.
    The owner thread calls everything.
    """

    leaving: Sequence[int] = ()
    owes_emission = False

    def __init__(
        self, fetcher: RangeFetcher, ranges: Sequence[TaskRange], settings: TaskSettings
    ) -> None:
        """`fetcher` has begun these ranges."""
        self._fetcher = fetcher
        self._ranges = ranges
        self._fetch_records = settings.fetch_records
        self._chunk_records = settings.chunk_records
        limits = InFlightLimits(
            settings.max_pending, settings.max_pending_bytes, settings.screen.max_record_bytes
        )
        rng = random.SystemRandom()
        self._managers = [
            PartitionManager(e.partition, e.position, limits, settings.retries, rng, AtLeastOnce)
            for e in ranges
        ]
        self._by_partition = {each.partition: each for each in self._managers}
        self._is_assigned = False
        self._turn = 0
        self._held_topics: frozenset[str] = frozenset()
        self._silent_topics: frozenset[str] = frozenset()
        self.topics = {each.partition.topic for each in ranges}
        self.emitted = np.zeros(len(ranges), np.int64)
        """How many records of each range were emitted for the first time."""

    def poll(self, now: float, *, opens: bool = True) -> list[PartitionChange]:  # noqa: ARG002 - as Consumer
        """Assign every range at first: the driver opens and recovers the partitions."""
        return self._changes(Assigned, is_assigned=True)

    def given_up(self, now: float) -> Sequence[int]:  # noqa: ARG002 - as Consumer
        """None: a partition that is lost ends the task."""
        return ()

    def commit(self, now: float, *, force: bool = False) -> None:
        """Do nothing: the driver stores offsets."""

    def release(self) -> list[PartitionChange]:
        """Revoke every range that was assigned."""
        return self._changes(Revoked, is_assigned=False)

    def _changes(
        self, change: Callable[[Partition, int], PartitionChange], *, is_assigned: bool
    ) -> list[PartitionChange]:
        if self._is_assigned == is_assigned:
            return []
        self._is_assigned = is_assigned
        return [change(each.partition, index) for index, each in enumerate(self._ranges)]

    def hold_back(self, topics: frozenset[str], silent: frozenset[str] = frozenset()) -> None:
        """Emit nothing new of these topics, and of those that are `silent` no retries either."""
        self._held_topics, self._silent_topics = topics | silent, silent

    def topic_at(self, index: int) -> str | None:
        """The topic of a partition's index, or None for any other number."""
        is_known = 0 <= index < len(self._ranges)
        return self._ranges[index].partition.topic if is_known else None

    def manager(self, index: int) -> PartitionManager[AtLeastOnce]:
        """The records of a range."""
        return self._managers[index]

    # Records

    def fetch(self, now: float, timeout_seconds: float) -> bool:
        """Take what the fetcher has; True if there was anything. Raises as RangeFetcher does.

        It waits, and takes nothing, where nothing that comes could be emitted.
        """
        shut = {manager for manager in self._managers if self._is_shut(manager)}
        if all(m in shut or m.fetch_position.offset >= end for m, end in self._ends()):
            time.sleep(min(timeout_seconds, _TURN_SECONDS))
            return False
        held = {manager.partition for manager in shut if manager.waiting}
        fetched = self._fetcher.fetch(self._fetch_records, timeout_seconds, held)
        for chunk in fetched.chunks:
            self._by_partition[chunk.partition].fetched(chunk, now)
        for partition, end in fetched.ends.items():
            self._by_partition[partition].log_end(end)
        return bool(fetched.chunks)

    def next_chunk(self, now: float) -> tuple[Chunk, RecordIds] | None:
        """The next records to emit, with their ids: due retries, else new ones."""
        for index in self._in_turn():
            manager = self._managers[index]
            topic = manager.partition.topic
            if topic in self._silent_topics:
                continue
            before = manager.read
            allowance = Allowance(new=0) if topic in self._held_topics else FREE
            chunk = manager.next_chunk(now, self._chunk_records, allowance)
            self.emitted[index] += manager.read - before
            if chunk is not None:
                self._turn = index + 1
                return chunk, record_ids_of(index, chunk.offsets)
        return None

    @property
    def foresees(self) -> bool:
        """Whether `upcoming` can tell: nothing is held back."""
        return not self._held_topics

    def upcoming(self) -> list[Chunk]:
        """The chunks that, as things stand, `next_chunk` gives whole, in turn."""
        queues = [self._managers[index].upcoming(self._chunk_records) for index in self._in_turn()]
        return [chunk for row in zip_longest(*queues) for chunk in row if chunk is not None]

    @property
    def waits_little(self) -> bool:
        """Whether few chunks, and fewer records than two fetches, wait that may be emitted."""
        ready = [manager for manager in self._managers if manager.may_emit]
        is_few = sum(manager.waiting_chunks for manager in ready) <= _FEW_CHUNKS
        return is_few and sum(each.waiting for each in ready) < 2 * self._fetch_records

    @property
    def is_full(self) -> bool:
        """Whether nothing new may be emitted before something that was is staged."""
        left = [manager for manager, end in self._ends() if manager.emitted_to < end]
        return bool(left) and all(map(self._is_shut, left))

    def processed(self, record_ids: RecordIds) -> None:
        """Mark records as done, but not staged yet."""
        for index, offsets in by_partition(record_ids):
            self._managers[index].processed(offsets)

    def resolve_below(self, index: int, end: int) -> None:
        """Resolve what was emitted of a range below `end`: it is staged."""
        manager = self._managers[index]
        manager.resolve_below(end)
        progress = manager.progress()
        if progress is not None:
            manager.stored(progress)

    def fail(
        self,
        record_id: int,
        now: float,
        after_seconds: float | None = None,
        policy: Retries | None = None,
    ) -> bool:
        """Schedule a retry; False when the record's retries are used up."""
        manager = self._managers[partition_index_of(record_id)]
        return manager.fail(offset_of(record_id), now, after_seconds, policy)

    def comes_again(self, record_id: int) -> bool:
        """Whether a record is not done, and is, or may yet be, emitted again."""
        index = partition_index_of(record_id)
        is_known = 0 <= index < len(self._managers)
        return is_known and self._managers[index].comes_again(offset_of(record_id))

    # Progress

    def emitted_to(self) -> npt.NDArray[np.int64]:
        """The next offset to emit of each range."""
        return np.array([manager.emitted_to for manager in self._managers], np.int64)

    @property
    def has_emitted_goals(self) -> bool:
        """Whether every record of the ranges is emitted, retries aside."""
        return all(manager.emitted_to >= end for manager, end in self._ends())

    @property
    def has_reached_goals(self) -> bool:
        """Whether every record of the ranges is resolved."""
        return all(manager.last_completed_offset >= end for manager, end in self._ends())

    @property
    def retried(self) -> int:
        """Emissions after the first."""
        return sum(manager.retried for manager in self._managers)

    def _ends(self) -> Iterator[tuple[PartitionManager[AtLeastOnce], int]]:
        return ((m, each.end) for m, each in zip(self._managers, self._ranges, strict=True))

    def _in_turn(self) -> Iterator[int]:
        count = len(self._ranges)
        return (turn % count for turn in range(self._turn, self._turn + count))

    def _is_shut(self, manager: PartitionManager[AtLeastOnce]) -> bool:
        """Whether nothing new of a range may be emitted now."""
        return manager.is_full or manager.partition.topic in self._held_topics
