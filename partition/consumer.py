"""The Consumer: reads the partitions that are ours, and stores how far each is done."""

import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice, zip_longest
from typing import Any, NamedTuple

from partition.assigned_partition import AssignedPartition, PartitionChange
from partition.assignment import Assignment, AssignmentPolicy
from partition.errors import KafkaError, StoreError
from partition.flow_control import FlowControl
from partition.interfaces import Catalogue, Fetcher, LogEnd, LogReader, Progress, TopicName
from partition.latency import CommitLatency
from partition.manager import PartitionManager, PartitionStatistics
from partition.offsets.offset_store import OffsetStore
from partition.records import (
    Chunk,
    Partition,
    RecordIds,
    by_partition,
    record_ids_of,
)
from partition.recovery import Ways

_FEW_CHUNKS = 2
_ASK_SECONDS = 2.0
_PAUSE = 4  # times as long as the last answer took


@dataclass(frozen=True, slots=True)
class ConsumerPolicy:
    """Settings of a Consumer. Seconds are of the owner's monotonic clock."""

    assignment: AssignmentPolicy = field(default_factory=AssignmentPolicy)
    commit_interval_seconds: float = 1.0
    fetch_records: int = 4_000  # a fetch brings at most so many
    chunk_records: int = 2_000  # a chunk has at most so many
    mirror: bool = False  # commit to the consumer group too
    # Of a source, by what it reads; a source that is not there has no limit. First emissions
    # count, retries do not.
    records_per_second: Mapping[TopicName, float] = field(default_factory=dict)


class Time(NamedTuple):
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time  # what records are stamped by
    sleep: Callable[[float], object] = time.sleep


REAL_TIME = Time()


class SourceHealth(NamedTuple):
    kafka_available: bool
    store_available: bool
    mirror_failures: int  # commits of a partition to the consumer group
    commit_seconds: float  # of the last write of offsets, or the one under way if that is longer


class LogEnds:
    """Ask for the ends of logs that are not fetched, every two seconds: of stuck ones lag counts.

    Where an answer takes long (a leader is away) it asks more rarely: other questions wait behind
    it.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._due = 0.0
        self._asked_at = 0.0
        self._asked: Future[Mapping[Partition, LogEnd]] | None = None
        self._ends: Mapping[Partition, LogEnd] = {}

    def poll(self, now: float, unfetched: Iterable[Partition]) -> None:
        if self._asked is not None and self._asked.done():
            asked, self._asked = self._asked, None
            self._due = max(self._due, now + _PAUSE * (now - self._asked_at))
            with suppress(KafkaError):  # what was known is the best that is known
                self._ends = asked.result()
        if self._asked is not None or now < self._due:
            return
        self._due, self._asked_at = now + _ASK_SECONDS, now
        asked_of = list(unfetched)
        if asked_of:
            self._asked = self._catalogue.ends(asked_of)
        else:
            self._ends = {}

    def later(self, partition: Partition, known: int | None) -> int | None:
        """Return the later of the end known by fetching and the one that was asked for."""
        asked = self._ends.get(partition)
        return known if asked is None else max(asked.offset, known or 0)


class _Submitted(NamedTuple):
    manager: PartitionManager[Any]
    progress: Progress


class OffsetCommitter:
    """Store the progress of all partitions. The owner thread calls everything.

    A second write beside the first would race it for the nodes' versions. A partition's open
    transactions are stored with its offset: what is planned at once, as it is emitted only then.
    """

    def __init__(
        self,
        store: OffsetStore,
        assignment: Assignment,
        interval_seconds: float,
        mirror: Fetcher | None,
    ) -> None:
        self._store = store
        self._assignment = assignment
        self._interval_seconds = interval_seconds
        self._mirror = mirror
        self._commit: Future[Mapping[Partition, StoreError]] | None = None
        self._committing: dict[Partition, _Submitted] = {}
        self._begun_at = 0.0
        self._took = 0.0
        self._due = 0.0
        self._now = 0.0  # when `commit` was called last
        self._changed: set[PartitionManager[Any]] = set()  # that may be urgent
        self.latencies: dict[str, CommitLatency] = {}  # by topic

    def note(self, manager: PartitionManager[Any]) -> None:
        self._changed.add(manager)

    def seconds_in_flight(self, now: float) -> float | None:
        return None if self._commit is None else now - self._begun_at

    def seconds(self, now: float) -> float:
        return max(self._took, self.seconds_in_flight(now) or 0.0)

    def commit(self, now: float, *, force: bool = False) -> None:
        """Store what moved, at most once per interval unless it is urgent or forced.

        A partition that the store refuses is halted, or claimed again if only the session
        has ended. Raises StoreError when the store refuses everything.
        """
        self._now = now
        under_way = self.seconds_in_flight(now)
        if not self._ended():
            return
        self._took = self._took if under_way is None else under_way
        self._changed = {manager for manager in self._changed if manager.is_urgent}
        if not force and now < self._due and not self._changed:
            return
        self._due = now + self._interval_seconds
        self._changed.clear()
        moved = {
            assigned.partition: _Submitted(manager, progress)
            for assigned, manager in self._storing()
            if (progress := manager.progress()) is not None
        }
        if moved:
            self._committing = moved
            self._begun_at = now
            self._commit = self._store.commit({p: each.progress for p, each in moved.items()})

    @property
    def is_done(self) -> bool:
        if not self._ended() or any(manager.has_to_store for _, manager in self._storing()):
            return False
        # One whose session has ended is ours again in a moment, unless the store refuses it.
        return not any(
            assigned.manager.has_to_store
            for assigned in self._assignment
            if assigned.manager is not None and not assigned.is_owned and assigned.loss is None
        )

    def _storing(self) -> Iterator[tuple[AssignedPartition, PartitionManager[Any]]]:
        for assigned in self._assignment:
            if assigned.manager is not None and assigned.is_owned and not assigned.is_moving:
                yield assigned, assigned.manager

    def _ended(self) -> bool:
        if self._commit is None:
            return True
        if not self._commit.done():
            return False
        ended, self._commit = self._commit, None
        refused = ended.result()
        stored = {p: each for p, each in self._committing.items() if p not in refused}
        for partition, submitted in stored.items():
            if self._assignment[partition].manager is not submitted.manager:
                continue  # given up since then; if it is ours again, then by another claim
            for chunk in submitted.manager.stored(submitted.progress):
                latency = self.latencies.get(partition.topic, CommitLatency())
                self.latencies[partition.topic] = latency.with_chunk(chunk, self._now)
            self.note(submitted.manager)
        if self._mirror is not None and stored:
            self._mirror.mirror({p: each.progress.position for p, each in stored.items()})
        for partition, error in refused.items():
            if self._assignment[partition].manager is self._committing[partition].manager:
                self._assignment.refuse(partition, error)
        return True


class CommitAges:
    """Remember when each partition's stored offset last moved, or was at the log's end.

    The ages are as exact as snapshots are frequent. A partition that was away begins anew.
    """

    def __init__(self) -> None:
        self._since: dict[Partition, tuple[int, float]] = {}

    def of(
        self, partitions: Iterable[PartitionStatistics], now: float
    ) -> Iterator[PartitionStatistics]:
        known, self._since = self._since, {}
        for part in partitions:
            committed, since = known.get(part.partition, (part.committed, now))
            if committed != part.committed or not part.lag:
                since = now
            self._since[part.partition] = part.committed, since
            yield replace(part, commit_age_seconds=max(0.0, now - since))


class PartitionOwner(ABC):
    """Claims and recovers partitions, and stores how far each is done. The owner calls everything.

    What both engines do: the local one reads the partitions as well (`Consumer`).
    """

    def __init__(
        self,
        logs: LogReader,
        client: Fetcher,
        ways: Ways,
        sources: Sequence[TopicName],
        policy: ConsumerPolicy,
        rng: random.Random,
    ) -> None:
        """`client` commits to the consumer group, if the policy says so."""
        self.assignment = Assignment(logs, ways, sources, policy.assignment, rng)
        mirror, seconds = client if policy.mirror else None, policy.commit_interval_seconds
        self.offsets = OffsetCommitter(ways.store, self.assignment, seconds, mirror)
        self._client = client
        self._ways = ways

    def open(self) -> None:
        self._ways.store.open()
        self._client.open()
        self._ways.catalogue.open()

    def close(self) -> None:
        self._client.close()
        self._ways.catalogue.close()
        self._ways.store.close()

    def commit(self, now: float, *, force: bool = False) -> None:
        self.offsets.commit(now, force=force)

    def health(self, now: float) -> SourceHealth:
        return SourceHealth(
            kafka_available=self._client.available,
            store_available=self._ways.store.available,
            mirror_failures=self._client.mirror_failures,
            commit_seconds=self.offsets.seconds(now),
        )

    def statistics(self, now: float) -> Iterator[PartitionStatistics]:
        for assigned in self.assignment:
            if assigned.manager is not None:
                of_log = self._log_statistics(assigned.partition)
                lost, epoch = dict(assigned.lost), assigned.epoch
                yield replace(assigned.manager.statistics(now), lost=lost, epoch=epoch, **of_log)

    @abstractmethod
    def _log_statistics(self, partition: Partition) -> dict[str, Any]:
        """Return what is known of its log, by the fields of PartitionStatistics."""


class Consumer(PartitionOwner):
    """Reads topics through one PartitionManager per partition, and stores how far each is done.

    It knows no bolts, trees or sinks. The owner thread calls everything, and nothing waits but
    `fetch`. With ZooKeeper away it works on inside the partitions' limits (promise 15).
    """

    def __init__(
        self,
        fetcher: Fetcher,
        ways: Ways,
        sources: Sequence[TopicName],
        policy: ConsumerPolicy,
        rng: random.Random,
        real: Time = REAL_TIME,
    ) -> None:
        """`ways` has a fencing if transactions are kept, and only then (exactly once)."""
        super().__init__(fetcher, fetcher, ways, sources, policy, rng)
        self._policy = policy
        self._time = real
        self.flow = FlowControl(
            fetcher,
            self.assignment,
            sources,
            policy.records_per_second,
            policy.fetch_records,
        )
        self._ends = LogEnds(ways.catalogue)
        self._latency: dict[Partition, float] = {}
        self._turn = 0
        self._has_waited = False

    # Partitions

    def poll(self, now: float, *, opens: bool = True) -> list[PartitionChange]:
        """See `Assignment.poll`. Without `opens`, at most once, nothing more is stored ahead."""
        self._has_waited = False
        changes = self.assignment.poll(now, opens=opens)
        self._ends.poll(
            now, (each.partition for each in self.assignment if self._is_unfetched(each))
        )
        for assigned in () if opens else self.assignment:
            if assigned.manager is not None:
                assigned.manager.stop()
        self.flow.resume()
        return changes

    def release(self) -> list[PartitionChange]:
        return self.assignment.release()

    def hold_back(self, topics: frozenset[str], silent: frozenset[str] = frozenset()) -> None:
        self.flow.hold_back(topics, silent)

    def manager(self, index: int) -> PartitionManager[Any]:
        """Return the manager of a partition. Raises KeyError if it is not open."""
        manager = self.assignment.at(index).manager
        if manager is None:
            raise KeyError(index)
        return manager

    def living(self, index: int) -> PartitionManager[Any] | None:
        """Return a partition's manager unless it is lost; None too for what is no partition."""
        if not 0 <= index < len(self.assignment):
            return None
        assigned = self.assignment.at(index)
        return assigned.manager if assigned.loss is None else None

    @property
    def topics(self) -> set[str]:
        return {each.partition.topic for each in self.assignment}

    @property
    def leaving(self) -> list[int]:
        return self.assignment.leaving

    @property
    def has_emitted_goals(self) -> bool:
        return self.assignment.has_emitted_goals

    # Records come

    def fetch(self, now: float, timeout_seconds: float) -> bool:
        """Take what the fetcher has; True if there was anything.

        It only waits if enough records wait already for every partition.
        """
        timeout_seconds = min(timeout_seconds, max(0.0, self.flow.wake - now))
        if not self.flow.may_fetch(now):
            self._time.sleep(timeout_seconds)
            return False
        # A frozen process goes on after a wait: first it is asked what is ours yet.
        self._has_waited = timeout_seconds > 0 and self._policy.assignment.shared
        fetched = self._client.fetch(self._policy.fetch_records, timeout_seconds)
        for chunk in fetched.chunks:
            assigned = self.assignment[chunk.partition]
            if assigned.manager is None:
                continue
            ages = self._ages(chunk.messages)
            assigned.manager.fetched(chunk, now, ages)
            self._check_replay(assigned, assigned.manager)
            if ages:
                self._latency[chunk.partition] = ages[-1]
            self.offsets.note(assigned.manager)
        for partition, end in fetched.ends.items():
            assigned = self.assignment[partition]
            if assigned.manager is not None:
                assigned.manager.log_end(end)
                self._check_replay(assigned, assigned.manager)
                self.assignment.log_end(assigned, end)
        for chunk in fetched.chunks:
            self.flow.pause_if_full(self.assignment[chunk.partition])
        for partition, trouble in fetched.failures.items():
            self.assignment.fail(partition, trouble)
        return bool(fetched.chunks)

    def _ages(self, messages: Sequence[Any]) -> tuple[float, ...]:
        """Return the ages of the first and the last message; () where one has no time stamp."""
        now = self._time.wall_clock()
        first_ms, last_ms = messages[0].timestamp()[1], messages[-1].timestamp()[1]
        if first_ms <= 0 or last_ms <= 0:
            return ()
        return max(0.0, now - first_ms / 1000), max(0.0, now - last_ms / 1000)

    def _check_replay(self, assigned: AssignedPartition, manager: PartitionManager[Any]) -> None:
        error = manager.delivery.replay_error(log_moved=False)
        if error is not None and assigned.error is None:
            self.assignment.halt(assigned.partition, error)

    def next_chunk(self, now: float) -> tuple[Chunk, RecordIds] | None:
        """Return the next records to emit, with their ids; partitions take turns, a chunk each.

        None, whatever waits, once the partitions may be another's (`Assignment.trusted_until`):
        also after a `fetch` that waited, until the next `poll`.
        """
        if self._has_waited or not self._is_trusted:
            return None
        self.flow.wake = math.inf
        for turns, assigned in enumerate(self._in_turn(), start=1):
            manager = assigned.manager
            if manager is None or not assigned.is_owned:
                continue
            due = manager.retries.due
            if (due is None or due > now) and not manager.ledger.waiting:
                continue
            allowance = self.flow.allowance(assigned, now)
            before = manager.read
            chunk = manager.next_chunk(now, self._policy.chunk_records, allowance)
            if chunk is not None:
                self.offsets.note(manager)
                self.flow.emitted(assigned.partition.topic, manager.read - before)
                self._turn += turns
                return chunk, record_ids_of(assigned.index, chunk.offsets)
            if manager.delivery.stores_first:
                self.offsets.note(manager)
                if allowance.new != 0:
                    self.flow.await_commit(manager, now, self.offsets.seconds_in_flight(now))
        return None

    @property
    def owes_emission(self) -> bool:
        """Whether records wait that are stored as read, or planned, or about to be.

        A drain emits them: else they are lost (at most once), or their transactions stay open.
        """
        return any(manager.delivery.owes_emission() for _, manager in self.assignment.owned())

    @property
    def is_full(self) -> bool:
        """Whether every partition that has records waiting has used up its limit."""
        managers = [assigned.manager for assigned in self.assignment]
        waiting = [
            manager for manager in managers if manager is not None and manager.ledger.waiting
        ]
        return bool(waiting) and all(manager.is_full for manager in waiting)

    # What comes next, for bolts that run ahead

    @property
    def can_prefetch(self) -> bool:
        """Whether `upcoming` can tell: no rate, and nothing that is held back, has a say."""
        return self.flow.is_free and self._is_trusted

    def upcoming(self) -> list[Chunk]:
        """Return the chunks that, as things stand, `next_chunk` gives whole, in turn."""
        queues = [
            assigned.manager.upcoming(self._policy.chunk_records)
            for assigned in ([] if self.assignment.is_paused else self._in_turn())
            if assigned.is_owned and assigned.manager is not None and not assigned.is_leaving
        ]
        return [chunk for row in zip_longest(*queues) for chunk in row if chunk is not None]

    @property
    def waits_little(self) -> bool:
        """Whether few chunks and fewer records than two fetches wait that may be emitted soon.

        With records alone, short chunks that come fast would pile up, one emitted a turn.
        """
        chunks = records = 0
        for _, manager in self.assignment.owned():
            # What waits for its plan counts: it comes in a moment.
            if manager.may_emit or manager.accepts_more:
                chunks += manager.waiting_chunks
                records += manager.ledger.waiting
        return chunks <= _FEW_CHUNKS and records < 2 * self._policy.fetch_records

    def _in_turn(self) -> Iterator[AssignedPartition]:
        first = self._turn % max(1, len(self.assignment))
        yield from islice(self.assignment, first, None)
        yield from islice(self.assignment, first)

    @property
    def _is_trusted(self) -> bool:
        return self._time.clock() <= self.assignment.trusted_until

    # What comes of records

    def ack(self, record_ids: RecordIds) -> None:
        for manager, offsets in self._by_manager(record_ids):
            manager.ack(offsets)
            self.offsets.note(manager)
        self.flow.resume()

    def processed(self, record_ids: RecordIds) -> None:
        for manager, offsets in self._by_manager(record_ids):
            manager.ledger.processed(offsets)

    def resolve_below(self, index: int, end: int) -> None:
        """Resolve what was emitted of a partition below `end`: its transaction is committed."""
        manager = self.manager(index)
        manager.resolve_below(end)
        self.offsets.note(manager)
        self.flow.resume()

    def _by_manager(
        self, record_ids: RecordIds
    ) -> Iterator[tuple[PartitionManager[Any], RecordIds]]:
        for index, offsets, _places in by_partition(record_ids):
            manager = self.assignment.at(index).manager
            if manager is not None:
                yield manager, offsets

    # Figures

    def _log_statistics(self, partition: Partition) -> dict[str, Any]:
        start, end = self._client.log_range(partition) or (None, None)
        return {
            "log_start": start,
            "log_end": self._ends.later(partition, end),
            "fetch_latency_seconds": self._latency.get(partition),
            "transaction_wait_seconds": self._client.transaction_wait_seconds(partition),
        }

    def _is_unfetched(self, assigned: AssignedPartition) -> bool:
        """Whether a partition is not fetched now, or perhaps not: records of it wait."""
        manager = assigned.manager
        is_idle = not assigned.is_read or assigned.is_paused
        return manager is not None and (is_idle or manager.ledger.waiting > 0)
