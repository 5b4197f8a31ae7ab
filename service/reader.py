"""The Kafka side of a pipeline: what is emitted of its partitions, and what is committed."""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import structlog

from partition.assignment import Assignment, AssignmentPolicy, Held
from partition.catalogue import Catalogue
from partition.chunk import Chunk, Partition
from partition.discovery import TopicName
from partition.errors import StoreError
from partition.fetcher import Fetcher
from partition.loss import Loss
from partition.manager import PartitionManager, PartitionStatistics
from partition.opening import Ways
from partition.position import Position
from partition.store import OffsetStore

log = structlog.get_logger()

# An owner names a record to the acker: the partition's place in the high bits, the offset below.
Owners: TypeAlias = npt.NDArray[np.int64]
_OFFSET_BITS = 48
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1


@dataclass(frozen=True, slots=True)
class ReaderPolicy:
    """How topics are read. Seconds are of the owner's monotonic clock."""

    assignment: AssignmentPolicy = field(default_factory=AssignmentPolicy)
    commit_interval_seconds: float = 1.0
    fetch_records: int = 10_000
    chunk_records: int = 4_000
    mirror: bool = False  # commit to the consumer group too


class Reader:
    """Reads topics through one PartitionManager per partition and stores their frontiers.

    The owner thread calls everything, and nothing waits. With ZooKeeper away the reader
    works on inside its windows (promise 15).
    """

    def __init__(
        self,
        fetcher: Fetcher,
        store: OffsetStore,
        catalogue: Catalogue,
        notify: Callable[[Loss], Future[None]],
        sources: Sequence[TopicName],
        policy: ReaderPolicy,
        rng: random.Random,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`notify` makes a range that is skipped known; its future ends when that is durable."""
        self._fetcher = fetcher
        self._store = store
        self._catalogue = catalogue
        self._policy = policy
        self._wall_clock = wall_clock
        ways = Ways(store, catalogue, notify)
        self._assignment = Assignment(fetcher, ways, sources, policy.assignment, rng)
        self._latency: dict[Partition, float] = {}
        self._turn = 0
        self._commit: Future[Mapping[Partition, StoreError]] | None = None
        self._committing: dict[Partition, Position] = {}
        self._commit_due = 0.0

    def open(self) -> None:
        """Open the store, the fetcher and the catalogue. Raises what they raise.

        `poll` then finds the partitions and opens each; nothing is read before.
        """
        self._store.open()
        self._fetcher.open()
        self._catalogue.open()

    def poll(self, now: float, *, opens: bool = True) -> None:
        """Find, open, mend and halt partitions; see `Assignment.poll`."""
        self._assignment.poll(now, opens=opens)
        self._resume()

    @property
    def is_settled(self) -> bool:
        """Whether every partition that is known is open or halted."""
        return self._assignment.is_settled

    def goals(self) -> dict[Partition, int]:
        """Where each partition's log ended when it was opened."""
        known = [(held.partition, held.goal) for held in self._assignment]
        return {partition: goal for partition, goal in known if goal is not None}

    # Records

    def fetch(self, now: float, timeout_seconds: float) -> bool:
        """Take what the fetcher has; True if there was anything."""
        fetched = self._fetcher.fetch(self._policy.fetch_records, timeout_seconds)
        for chunk in fetched.chunks:
            self._offer(chunk, now)
        for partition, end in fetched.ends.items():
            held = self._assignment[partition]
            if held.manager is not None:
                held.manager.reached(end)
                held.goal = end if held.goal is None else held.goal
                held.in_vain = (-1, 0)  # the place was read
        for chunk in fetched.chunks:
            self._pause_if_full(self._assignment[chunk.partition])
        for partition, trouble in fetched.failures.items():
            self._assignment.fail(partition, trouble)
        return bool(fetched.chunks)

    def _offer(self, chunk: Chunk, now: float) -> None:
        manager = self._assignment[chunk.partition].manager
        if manager is None:
            return
        manager.offer(chunk, now)
        newest: Any = chunk.messages[-1]
        written_ms = newest.timestamp()[1]
        if written_ms > 0:
            latency = self._wall_clock() - written_ms / 1000
            self._latency[chunk.partition] = max(0.0, latency)

    def next(self, now: float) -> tuple[Chunk, Owners] | None:
        """The next records to emit, with their owners; partitions take turns."""
        count = len(self._assignment)
        for turn in range(self._turn, self._turn + count):
            held = self._assignment.at(turn % count)
            manager = held.manager
            if manager is None or not held.is_owned:
                continue
            due = manager.next_due()
            if (due is None or due > now) and not manager.has_waiting:
                continue
            chunk = manager.next(now, self._policy.chunk_records)
            if chunk is not None and len(chunk):
                self._turn = turn + 1
                return chunk, chunk.offsets | held.place << _OFFSET_BITS
        return None

    def ack(self, owners: Owners) -> None:
        """Resolve records."""
        places = owners >> _OFFSET_BITS
        offsets = owners & _OFFSET_MASK
        if not len(owners):
            return
        if places[0] == places[-1] and (places == places[0]).all():
            self._manager(int(places[0])).ack(_ascending(offsets))
        else:
            for place in np.flatnonzero(np.bincount(places)).tolist():
                self._manager(place).ack(_ascending(offsets[places == place]))
        self._resume()

    def fail(self, owner: int, now: float, after_seconds: float | None = None) -> bool:
        """Schedule a retry; False when the record's retries are used up."""
        manager = self._manager(owner >> _OFFSET_BITS)
        return manager.fail(owner & _OFFSET_MASK, now, after_seconds)

    def attempts(self, owner: int) -> int:
        """How often the record has been tried."""
        return self._manager(owner >> _OFFSET_BITS).attempts(owner & _OFFSET_MASK)

    def message(self, owner: int) -> Any:
        """The message of a record in flight."""
        return self._manager(owner >> _OFFSET_BITS).message(owner & _OFFSET_MASK)

    def _manager(self, place: int) -> PartitionManager:
        manager = self._assignment.at(place).manager
        if manager is None:
            raise KeyError(place)
        return manager

    # Offsets

    def commit(self, now: float, *, force: bool = False) -> None:
        """Store the frontiers that moved, at most once per interval and one write at a time.

        A partition that the store refuses is halted, or claimed again if only the session
        has ended. Raises StoreError when the store refuses everything.
        """
        if not self._commit_ended():
            return
        if not force and now < self._commit_due and not self._is_commit_urgent():
            return
        self._commit_due = now + self._policy.commit_interval_seconds
        moved = {held.partition: manager.submit() for held, manager in self._moved()}
        if moved:
            self._committing = moved
            self._commit = self._store.commit(moved)

    def _is_commit_urgent(self) -> bool:
        return any(manager.should_commit for _held, manager in self._moved())

    def _moved(self) -> Iterator[tuple[Held, PartitionManager]]:
        for held in self._assignment:
            manager = held.manager
            if manager is None or not held.is_owned or held.is_moving:
                continue
            if manager.frontier > manager.committed:
                yield held, manager

    def _commit_ended(self) -> bool:
        if self._commit is None:
            return True
        if not self._commit.done():
            return False
        ended, self._commit = self._commit, None
        refused = ended.result()
        stored = {p: at for p, at in self._committing.items() if p not in refused}
        for partition, position in stored.items():
            manager = self._assignment[partition].manager
            # One that has started anew since then stands where its offset was moved to.
            if manager is not None and position.offset <= manager.frontier:
                manager.mark_committed(position.offset)
        if self._policy.mirror and stored:
            self._fetcher.mirror(stored)
        for partition, error in refused.items():
            self._assignment.refuse(partition, error)
        return True

    @property
    def is_committed(self) -> bool:
        """Whether every frontier that can be stored is stored."""
        if not self._commit_ended() or any(True for _ in self._moved()):
            return False
        # One whose session has ended is ours again in a moment, unless the store refuses it.
        managers = [
            held.manager
            for held in self._assignment
            if not held.is_owned and not isinstance(held.halted, StoreError)
        ]
        return all(each is None or each.frontier <= each.committed for each in managers)

    @property
    def has_reached_goals(self) -> bool:
        """Whether every record below the goals is resolved, halted partitions aside."""
        return self.is_settled and all(held.has_resolved_goal for held in self._assignment)

    @property
    def has_emitted_goals(self) -> bool:
        """Whether every record below the goals is emitted, halted partitions aside."""
        return self.is_settled and all(held.has_emitted_goal for held in self._assignment)

    @property
    def is_stuck(self) -> bool:
        """Whether every partition that has records waiting has used up its window."""
        managers = [held.manager for held in self._assignment]
        waiting = [manager for manager in managers if manager is not None and manager.has_waiting]
        return bool(waiting) and all(manager.is_full for manager in waiting)

    def statistics(self, now: float) -> Iterator[PartitionStatistics]:
        """Where each partition stands that was opened."""
        for held in self._assignment:
            if held.manager is None:
                continue
            start, end = self._fetcher.log_range(held.partition) or (None, None)
            yield replace(
                held.manager.statistics(now),
                log_start=start,
                log_end=end,
                fetch_latency_seconds=self._latency.get(held.partition),
                lost=dict(held.lost),
            )

    def halted(self) -> dict[Partition, str]:
        """The partitions of which nothing more is read, and why."""
        halted = [held for held in self._assignment if held.halted is not None]
        return {held.partition: str(held.halted) for held in halted}

    def close(self) -> None:
        """Stop fetching and let go of ZooKeeper; what is not committed stays so."""
        self._fetcher.close()
        self._catalogue.close()
        self._store.close()

    def _pause_if_full(self, held: Held) -> None:
        manager = held.manager
        if manager is None or not held.is_read or held.is_paused:
            return
        if manager.has_waiting and (manager.is_full or not held.is_owned):
            self._fetcher.pause(held.partition)
            held.is_paused = True
            log.info("partition_paused", partition=str(held.partition), frontier=manager.frontier)

    def _resume(self) -> None:
        for held in self._assignment:
            manager = held.manager
            if not held.is_paused or not held.is_owned or manager is None or manager.is_full:
                continue
            # With more, a session that ends again and again would let them grow each time.
            if manager.waiting < self._policy.fetch_records:
                self._fetcher.resume(held.partition)
                held.is_paused = False
                log.info("partition_unpaused", partition=str(held.partition))


def _ascending(offsets: Owners) -> Owners:
    """The offsets in order: the ledger is fastest on neighbours."""
    in_order = len(offsets) < 2 or bool((offsets[1:] > offsets[:-1]).all())  # noqa: PLR2004
    return offsets if in_order else np.sort(offsets)
