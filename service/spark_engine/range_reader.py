"""A task's ranges, read up to their ends; what a client brings behind these is the next task's."""

import random
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from partition.assigned_partition import Assigned, PartitionChange, Revoked
from partition.delivery import AtLeastOnce
from partition.errors import KafkaError, OffsetOutOfRange
from partition.interfaces import Fetcher
from partition.ledger import Ledger
from partition.manager import FREE, Allowance, PartitionManager
from partition.records import (
    Chunk,
    LeaderEpochs,
    Partition,
    Position,
    RecordIds,
    by_partition,
    record_ids_of,
)
from service.spark_engine.task import Task, TaskRange, TaskSettings
from transactions.transaction import Lengths, RangeDigest, RangeRead, Unplanned

_PART = 8  # of the bytes in flight: the next range needs room to be emitted
_MOST_RECORDS = 20_000  # kept behind a range's end; a client that is paused fetches them again
_TURN_SECONDS = 0.002  # the owner hears of others so soon when there is nothing to read
_SILENT_SECONDS = 30.0  # longest silence of a range, or of its log's next record: a new leader
_FEW_CHUNKS = 2


class RangeUnreadable(KafkaError):
    """The log does not hold a range, as far as its brokers tell; `cause` says why."""

    def __init__(self, partition: Partition, cause: KafkaError) -> None:
        super().__init__(str(cause))
        self.partition = partition
        self.cause = cause


class RangesUnreachable(KafkaError):
    """Nothing is heard of some ranges, though they are asked for: nobody leads their logs."""

    def __init__(self, fetched_to: Sequence[tuple[TaskRange, int]]) -> None:
        seconds = min(each.patience for each, _ in fetched_to) * _SILENT_SECONDS
        missing = [f"{first} to {each.end} of {each.partition}" for each, first in fetched_to]
        super().__init__(
            f"nothing was heard for {seconds:g} seconds of offsets {', '.join(missing)}"
        )
        self.partitions = tuple(each.partition for each, _ in fetched_to)


class RangeMode(AtLeastOnce):
    """Emits a range up to before its `end`, counts and digests it; what comes behind waits."""

    def __init__(self, partition: Partition, ledger: Ledger, *rest: Any) -> None:
        super().__init__(partition, ledger, *rest)
        self.end = ledger.fetched_to
        self.digest = RangeDigest()
        self.asked_since: float | None = None
        """Since when the client has been asked and has had nothing; None: it is not so."""
        self.log_ends = False  # behind what was fetched
        self.is_broken = False  # the client brings nothing more
        self._known_under = -1  # what waits was fetched under this leader or a later one
        self._waiting = Unplanned()
        self._epochs = LeaderEpochs(Position(self.end))

    def goes_on(self, first: int, leader_epoch: int | None) -> bool:
        """Whether a range that begins there can go on with what waits.

        Under a later `leader_epoch` than that of what waits the log may have been cut off, and
        written anew.
        """
        is_known = leader_epoch is None or leader_epoch <= self._known_under
        return is_known and first == self.end and not self.is_broken

    def begin(self, end: int, leader_epoch: int | None) -> None:
        self._epochs.forget_below(self.end)
        self._known_under = max(self._known_under, -1 if leader_epoch is None else leader_epoch)
        self.end = end
        self.digest = RangeDigest()
        self.asked_since = None

    def emit_limit(self, room: int, ahead: int) -> int:  # noqa: ARG002 - see AtLeastOnce
        return min(room, self._ledger.waiting_below(self.end))

    def on_fetched(self, chunk: Chunk, lengths: Lengths) -> None:
        self.asked_since, self.log_ends = None, False
        self._waiting.add(chunk.offsets, lengths)
        self._epochs.fetched(chunk.leader_epochs)
        if chunk.leader_epochs:
            self._known_under = max(self._known_under, chunk.leader_epochs[-1][1])

    def on_log_end(self, end: int) -> None:  # noqa: ARG002 - the ledger has it
        self.asked_since, self.log_ends = None, True

    def on_emitted(self, count: int) -> None:
        self.digest.add(*self._waiting.take(count))  # no more than one chunk

    @property
    def is_fetched(self) -> bool:
        return self._ledger.fetched_to >= self.end

    @property
    def is_emitted(self) -> bool:
        return self._ledger.emitted_to >= self.end

    @property
    def last_epoch(self) -> int | None:
        """The leader epoch of the range's last record; None: unknown, or there is none."""
        return self._epochs.fetched_before(self.end) if self.digest.count else None


class RangeReader:
    """Reads ranges, each through a PartitionManager: what `Consumer` is to the local engine.

    Nothing is claimed, stored or planned: the driver owns the partitions, and commits what a task
    has done. `resolve_below` says that records are staged. From one task to the next the client
    stays, and the managers with what it brought behind the ranges' ends: most of the time the next
    ranges begin there. The owner thread calls everything.
    """

    leaving: Sequence[int] = ()
    owes_emission = False

    def __init__(self, client: Fetcher) -> None:
        self._client = client
        self._settings: TaskSettings
        self._ranges: Sequence[TaskRange] = ()
        self._managers: list[PartitionManager[RangeMode]] = []  # of these, in their order
        self._assigned: list[PartitionChange] = []
        self._paused: set[Partition] = set()
        self._turn = 0
        self._held_topics: frozenset[str] = frozenset()
        self._silent_topics: frozenset[str] = frozenset()

    def begin(self, task: Task) -> None:
        """Read a task's ranges from now on, one of a partition. Raises KafkaMisconfigured.

        The task before was done: one that failed leaves a reader that can only be closed.
        """
        self._client.open()
        self._settings, self._ranges = task.settings, task.ranges
        known = {manager.partition: manager for manager in self._managers}
        kept = {e.partition: known[e.partition] for e in task.ranges if self._goes_on(known, e)}
        gone = known.keys() - kept.keys()
        self._client.remove(gone)
        self._paused -= gone
        anew = {e.partition: e.position for e in task.ranges if e.partition not in kept}
        if anew:
            self._client.add(anew)
        self._managers = [kept.get(e.partition) or self._manager_of(e) for e in task.ranges]
        for manager, each in zip(self._managers, task.ranges, strict=True):
            manager.delivery.begin(each.end, each.leader_epoch)
            manager.retried = 0
        self._assigned = [Assigned(each.partition, n) for n, each in enumerate(task.ranges)]
        self.hold_back(frozenset())

    @staticmethod
    def _goes_on(known: Mapping[Partition, PartitionManager[RangeMode]], each: TaskRange) -> bool:
        manager = known.get(each.partition)
        if manager is None or manager.position.topic_id != each.position.topic_id:
            return False
        return manager.delivery.goes_on(each.position.offset, each.leader_epoch)

    def _manager_of(self, each: TaskRange) -> PartitionManager[RangeMode]:
        limits, retries, rng = self._settings.limits, self._settings.retries, random.SystemRandom()
        return PartitionManager(each.partition, each.position, limits, retries, rng, RangeMode)

    def read(self) -> tuple[RangeRead, ...]:
        """Return the count and digest of what was emitted of each range, in their order."""
        found = [(manager.partition, manager.delivery) for manager in self._managers]
        return tuple(
            RangeRead(partition, mode.digest.count, mode.digest.hex(), mode.last_epoch)
            for partition, mode in found
        )

    def close(self) -> None:
        self._managers, self._ranges, self._paused = [], (), set()
        self._client.close()

    # Partitions: assigned at first, and revoked in the end

    def poll(self, now: float, *, opens: bool = True) -> list[PartitionChange]:  # noqa: ARG002
        changes, self._assigned = self._assigned, []
        return changes

    def commit(self, now: float, *, force: bool = False) -> None:
        """Do nothing: the driver stores offsets."""

    def release(self) -> list[PartitionChange]:
        if self._assigned:  # nobody was told of it
            return []
        return [Revoked(each.partition, index) for index, each in enumerate(self._managers)]

    def hold_back(self, topics: frozenset[str], silent: frozenset[str] = frozenset()) -> None:
        self._held_topics, self._silent_topics = topics | silent, silent

    @property
    def topics(self) -> set[str]:
        return {manager.partition.topic for manager in self._managers}

    def manager(self, index: int) -> PartitionManager[RangeMode]:
        return self._managers[index]

    def living(self, index: int) -> PartitionManager[RangeMode] | None:
        return self._managers[index] if 0 <= index < len(self._managers) else None

    # Records

    def fetch(self, now: float, timeout_seconds: float) -> bool:
        """Take what the client has; True if there was anything.

        It waits, and takes nothing, where nothing that comes could be emitted. Raises
        RangeUnreadable and RangesUnreachable.
        """
        shut = {manager.partition for manager in self._managers if self._is_shut(manager)}
        if all(m.delivery.is_fetched or m.partition in shut for m in self._managers):
            time.sleep(min(timeout_seconds, _TURN_SECONDS))
            return False
        held = {m.partition for m in self._managers if m.partition in shut and m.ledger.waiting}
        for manager in self._managers:
            is_sated = manager.delivery.is_emitted and manager.has_enough(_MOST_RECORDS, _PART)
            self._pause(manager.partition, is_to_pause=is_sated or manager.partition in held)
        fetched = self._client.fetch(self._settings.fetch_records, timeout_seconds)
        managers = {manager.partition: manager for manager in self._managers}
        for chunk in fetched.chunks:
            managers[chunk.partition].fetched(chunk, now)
        for partition, end in fetched.ends.items():
            managers[partition].log_end(end)
        for partition, error in fetched.failures.items():
            mode = managers[partition].delivery
            mode.is_broken = True
            if not mode.is_fetched:  # else the next range's client is told again
                raise RangeUnreadable(partition, error)
        self._check_progress(now, held, has_more=bool(fetched.chunks))
        return bool(fetched.chunks)

    def _pause(self, partition: Partition, *, is_to_pause: bool) -> None:
        if is_to_pause and partition not in self._paused:
            self._client.pause(partition)
            self._paused.add(partition)
        elif partition in self._paused and not is_to_pause:
            self._client.resume(partition)
            self._paused.discard(partition)

    def _check_progress(self, now: float, held: Collection[Partition], *, has_more: bool) -> None:
        """Give up, all at once, the ranges of which nothing new was heard for long.

        Where the client `has_more` of others, theirs may come behind it: its memory is bounded. A
        log that ends before its range is short whatever others bring.
        """
        silent: list[tuple[TaskRange, int]] = []
        for manager, each in zip(self._managers, self._ranges, strict=True):
            mode, fetched_to = manager.delivery, manager.ledger.fetched_to
            is_short = mode.log_ends and self._client.available
            is_excused = has_more and not is_short
            if is_excused or mode.is_fetched or each.partition in held:
                mode.asked_since = None
                continue
            if mode.asked_since is None:
                mode.asked_since = now
            patience = 1 if is_short else each.patience
            if now - mode.asked_since < patience * _SILENT_SECONDS:
                continue
            if is_short:
                reason = f"its log ends there, and the records up to {each.end} were to be read"
                error = OffsetOutOfRange(each.partition, fetched_to, reason)
                raise RangeUnreadable(each.partition, error)
            silent.append((each, fetched_to))
        if silent:
            raise RangesUnreachable(silent)

    def next_chunk(self, now: float) -> tuple[Chunk, RecordIds] | None:
        for index in self._in_turn():
            manager = self._managers[index]
            topic = manager.partition.topic
            if topic in self._silent_topics:
                continue
            allowance = Allowance(new=0) if topic in self._held_topics else FREE
            chunk = manager.next_chunk(now, self._settings.chunk_records, allowance)
            if chunk is not None:
                self._turn = index + 1
                return chunk, record_ids_of(index, chunk.offsets)
        return None

    @property
    def can_prefetch(self) -> bool:
        return not self._held_topics

    def upcoming(self) -> list[Chunk]:
        queues = [self._upcoming_of(self._managers[index]) for index in self._in_turn()]
        return [chunk for row in zip_longest(*queues) for chunk in row if chunk is not None]

    def _upcoming_of(self, manager: PartitionManager[RangeMode]) -> list[Chunk]:
        coming = manager.upcoming(self._settings.chunk_records)
        return [chunk for chunk in coming if chunk.offsets[-1] < manager.delivery.end]

    @property
    def waits_little(self) -> bool:
        ready = [manager for manager in self._managers if manager.may_emit]
        is_few = sum(manager.waiting_chunks for manager in ready) <= _FEW_CHUNKS
        return is_few and sum(m.ledger.waiting for m in ready) < 2 * self._settings.fetch_records

    @property
    def is_full(self) -> bool:
        left = [manager for manager in self._managers if not manager.delivery.is_emitted]
        return bool(left) and all(map(self._is_shut, left))

    def processed(self, record_ids: RecordIds) -> None:
        for index, offsets, _places in by_partition(record_ids):
            self._managers[index].ledger.processed(offsets)

    def processed_to(self) -> list[int]:
        return [manager.ledger.processed_to for manager in self._managers]

    def resolve_below(self, index: int, end: int) -> None:
        manager = self._managers[index]
        manager.resolve_below(end)
        progress = manager.progress()
        if progress is not None:
            manager.stored(progress)

    # Progress

    def emitted_to(self) -> list[int]:
        return [manager.ledger.emitted_to for manager in self._managers]

    @property
    def has_emitted_goals(self) -> bool:
        return all(manager.delivery.is_emitted for manager in self._managers)

    @property
    def has_reached_goals(self) -> bool:
        return all(m.last_completed_offset >= m.delivery.end for m in self._managers)

    @property
    def retried(self) -> int:
        return sum(manager.retried for manager in self._managers)

    def _in_turn(self) -> Iterator[int]:
        count = len(self._managers)
        return (turn % count for turn in range(self._turn, self._turn + count))

    def _is_shut(self, manager: PartitionManager[RangeMode]) -> bool:
        return manager.is_full or manager.partition.topic in self._held_topics
