"""Reads the ranges of one task: in place of the local engine's reader, and without its store."""

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
    """One PartitionManager for each range; partitions take turns. The owner calls everything.

    Nothing is claimed, stored or planned: the driver owns the partitions, and what a task has
    done counts once the driver has committed it. `resolve_below` says that records are staged.
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
        window = InFlightLimits(
            settings.max_pending, settings.max_pending_bytes, settings.screen.max_record_bytes
        )
        self._managers = [
            PartitionManager(
                each.partition,
                each.position,
                window,
                settings.retries,
                random.SystemRandom(),
                AtLeastOnce,
            )
            for each in ranges
        ]
        self._places = {each.partition: place for place, each in enumerate(ranges)}
        self._is_assigned = False
        self._turn = 0
        self._held_topics: frozenset[str] = frozenset()
        self._silent_topics: frozenset[str] = frozenset()
        self.topics = {each.partition.topic for each in ranges}
        """The topics of the ranges."""
        self.emitted = np.zeros(len(ranges), np.int64)
        """How many records of each range were emitted for the first time."""

    def poll(self, now: float, *, opens: bool = True) -> list[PartitionChange]:  # noqa: ARG002 - as Reader
        """Assign every range at first: the partitions are the driver's to open and mend."""
        return self._changes(Assigned, is_assigned=True)

    def given_up(self, now: float) -> Sequence[int]:  # noqa: ARG002 - as Reader
        """None: what is lost ends the task."""
        return ()

    def commit(self, now: float, *, force: bool = False) -> None:
        """Do nothing: offsets are the driver's to store."""

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

    def topic_at(self, place: int) -> str | None:
        """The topic of a partition by its index; None if it is no partition's."""
        is_known = 0 <= place < len(self._ranges)
        return self._ranges[place].partition.topic if is_known else None

    # Records

    def fetch(self, now: float, timeout_seconds: float) -> bool:
        """Take what the fetcher has; True if there was anything. Raises as RangeFetcher does.

        It waits, and takes nothing, where nothing that comes could be emitted.
        """
        shut = {place for place in range(len(self._ranges)) if self._is_shut(place)}
        if all(place in shut or self._is_fetched(place) for place in range(len(self._ranges))):
            time.sleep(min(timeout_seconds, _TURN_SECONDS))
            return False
        held = {self._ranges[place].partition for place in shut if self._managers[place].waiting}
        fetched = self._fetcher.fetch(self._fetch_records, timeout_seconds, held)
        for chunk in fetched.chunks:
            self._managers[self._places[chunk.partition]].fetched(chunk, now)
        for partition, end in fetched.ends.items():
            self._managers[self._places[partition]].log_end(end)
        return bool(fetched.chunks)

    def next_chunk(self, now: float) -> tuple[Chunk, RecordIds] | None:
        """The next records to emit, with their ids: due retries, else new ones."""
        for place in self._in_turn():
            manager, topic = self._managers[place], self._ranges[place].partition.topic
            if topic in self._silent_topics:
                continue
            before = manager.read
            allowance = Allowance(new=0) if topic in self._held_topics else FREE
            chunk = manager.next_chunk(now, self._chunk_records, allowance)
            self.emitted[place] += manager.read - before
            if chunk is not None:
                self._turn = place + 1
                return chunk, record_ids_of(place, chunk.offsets)
        return None

    @property
    def foresees(self) -> bool:
        """Whether `upcoming` can tell: nothing is held back."""
        return not self._held_topics

    def upcoming(self) -> list[Chunk]:
        """The chunks that, as things stand, `next_chunk` gives whole, in turn."""
        queues = [self._managers[place].upcoming(self._chunk_records) for place in self._in_turn()]
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
        left = [
            place
            for place, each in enumerate(self._ranges)
            if self._managers[place].emitted_to < each.end
        ]
        return bool(left) and all(map(self._is_shut, left))

    def processed(self, record_ids: RecordIds) -> None:
        """Learn that records are done, but not staged yet."""
        for place, offsets in by_partition(record_ids):
            self._managers[place].processed(offsets)

    def resolve_below(self, place: int, end: int) -> None:
        """Resolve what was emitted of a range below `end`: it is staged."""
        manager = self._managers[place]
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
        return self._manager(record_id).fail(offset_of(record_id), now, after_seconds, policy)

    def comes_again(self, record_id: int) -> bool:
        """Whether a record is not done, and is, or may yet be, emitted again."""
        is_known = 0 <= partition_index_of(record_id) < len(self._managers)
        return is_known and self._manager(record_id).comes_again(offset_of(record_id))

    def manager(self, index: int) -> PartitionManager[AtLeastOnce]:
        """Return the records of a range."""
        return self._managers[index]

    # How far it is

    def emitted_to(self) -> npt.NDArray[np.int64]:
        """Where the next record to emit lies, of each range."""
        return np.array([manager.emitted_to for manager in self._managers], np.int64)

    @property
    def has_emitted_goals(self) -> bool:
        """Whether every record of the ranges is emitted, retries aside."""
        pairs = zip(self._managers, self._ranges, strict=True)
        return all(manager.emitted_to >= each.end for manager, each in pairs)

    @property
    def has_reached_goals(self) -> bool:
        """Whether every record of the ranges is resolved."""
        pairs = zip(self._managers, self._ranges, strict=True)
        return all(manager.last_completed_offset >= each.end for manager, each in pairs)

    @property
    def retried(self) -> int:
        """Emissions after the first."""
        return sum(manager.retried for manager in self._managers)

    def _manager(self, record_id: int) -> PartitionManager[AtLeastOnce]:
        return self._managers[partition_index_of(record_id)]

    def _in_turn(self) -> Iterator[int]:
        count = len(self._ranges)
        return (turn % count for turn in range(self._turn, self._turn + count))

    def _is_shut(self, place: int) -> bool:
        """Whether nothing new of a range may be emitted now."""
        topic = self._ranges[place].partition.topic
        return self._managers[place].is_full or topic in self._held_topics

    def _is_fetched(self, place: int) -> bool:
        return self._managers[place].fetch_position.offset >= self._ranges[place].end
