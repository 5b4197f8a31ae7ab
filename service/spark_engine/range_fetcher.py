"""A task's ranges: fetched up to their ends, by a client that outlives the task, and read."""

import random
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from partition.assigned_partition import Assigned, PartitionChange, Revoked
from partition.delivery import AtLeastOnce
from partition.errors import KafkaError, OffsetOutOfRange
from partition.interfaces import Fetched, Fetcher
from partition.ledger import Backoff
from partition.manager import FREE, Allowance, InFlightLimits, PartitionManager
from partition.records import (
    Chunk,
    Partition,
    Position,
    RecordIds,
    by_partition,
    offset_of,
    partition_index_of,
    record_ids_of,
)
from service.spark_engine.task import TaskRange, TaskSettings
from transactions.transaction import RangeDigest, RangeRead

_MOST_RECORDS = 20_000  # kept behind a range's end; a client that is paused fetches them again
_MOST_BYTES = 16 * 1024 * 1024  # of payload
_TURN_SECONDS = 0.002  # the owner hears of others so soon when there is nothing to read
_SILENT_SECONDS = 30.0  # longest silence of a range, or of its log's next record: a new leader
_FEW_CHUNKS = 2


class RangeUnreadable(KafkaError):
    """The log does not hold a range, as far as its brokers tell; `cause` says why."""

    def __init__(self, partition: Partition, cause: KafkaError) -> None:
        super().__init__(str(cause))
        self.partition = partition
        self.cause = cause


class RangesSilent(KafkaError):
    """Nothing is heard of some ranges, though they are asked for: nobody leads their logs."""

    def __init__(self, fetched_to: Sequence[tuple[TaskRange, int]]) -> None:
        seconds = min(each.patience for each, _ in fetched_to) * _SILENT_SECONDS
        missing = [f"{first} to {each.end} of {each.partition}" for each, first in fetched_to]
        super().__init__(
            f"nothing was heard for {seconds:g} seconds of offsets {', '.join(missing)}"
        )
        self.partitions = tuple(each.partition for each, _ in fetched_to)


class PartitionQueue:
    """One partition's records between a client and its ranges, which follow one another. Pure.

    The client has brought everything below `fetched_to`. Of that, what lies below `delivered_to`
    was delivered, and the rest waits. Both pass over gaps.
    """

    def __init__(self, position: Position) -> None:
        """A client is to begin to read at `position`."""
        self.fetched_to = self.delivered_to = self.end = position.offset
        self._topic_id = position.topic_id
        self._epoch = -1  # what waits was fetched under this leader or a later one
        self._waiting: deque[Chunk] = deque()
        self._log_end: int | None = None
        self.digest = RangeDigest()
        """Of the records delivered of the range."""
        self.last_epoch: int | None = None
        """The leader epoch of the last record delivered of the range; None: unknown."""
        self.asked_since: float | None = None
        """Since when the client has been asked and has had nothing; None: it is not so.

        On the owner's clock. A bolt that holds the owner up is no silence of the log's.
        """
        self.is_held = False  # nothing is to be delivered
        self.is_paused = False  # the client is told to bring nothing
        self.is_broken = False  # the client brings nothing more

    def is_at(self, position: Position, leader_epoch: int | None = None) -> bool:
        """Whether a range that begins there can go on with what waits here.

        `leader_epoch` is the one that the range was planned in. Under a later leader than that of
        what waits the log may have been cut off, and written anew.
        """
        same_log = self._topic_id == position.topic_id
        same_log = same_log and (leader_epoch is None or leader_epoch <= self._epoch)
        return same_log and self.delivered_to == position.offset and not self.is_broken

    def begin(self, end: int, leader_epoch: int | None = None) -> None:
        """Deliver from `delivered_to` on, up to before `end`; `leader_epoch` as for `is_at`."""
        if leader_epoch is not None:
            self._epoch = max(leader_epoch, self._epoch)
        self.end = end
        self.digest = RangeDigest()
        self.last_epoch = self.asked_since = None
        self.is_held = False
        self._pass_gap()

    def add(self, chunk: Chunk) -> None:
        self.asked_since = self._log_end = None
        known = int(np.searchsorted(chunk.offsets, self.fetched_to))
        if known == len(chunk):
            return
        chunk = _part(chunk, known, len(chunk)) if known else chunk
        self.fetched_to = int(chunk.offsets[-1]) + 1
        if chunk.leader_epochs:
            self._epoch = max(chunk.leader_epochs[-1][1], self._epoch)
        self._waiting.append(chunk)
        self._pass_gap()

    def log_ends(self, end: int) -> None:
        """Note that no record lies before `end` but those that were fetched."""
        self.asked_since = None
        self.fetched_to = self._log_end = max(end, self.fetched_to)
        self._pass_gap()

    def take(self, limit: int) -> Chunk | None:
        """Return the next records of the range, at most `limit`; None if there is none."""
        if not self._waiting:
            return None
        chunk = self._waiting[0]
        count = min(limit, int(np.searchsorted(chunk.offsets, self.end)))
        if not count:
            return None
        if count < len(chunk):
            self._waiting[0] = _part(chunk, count, len(chunk))
            chunk = _part(chunk, 0, count)
        else:
            self._waiting.popleft()
        lengths = np.fromiter(map(len, chunk.messages), np.int64, len(chunk))
        self.digest.add(chunk.offsets, lengths)
        if chunk.leader_epochs:
            self.last_epoch = chunk.leader_epochs[-1][1]
        self.delivered_to = int(chunk.offsets[-1]) + 1
        self._pass_gap()
        return chunk

    @property
    def has_ended(self) -> bool:
        return self.delivered_to >= self.end

    @property
    def is_short(self) -> bool:
        """Whether the log ends before the range does, as far as is known."""
        return self._log_end is not None and self.fetched_to < self.end

    @property
    def has_plenty(self) -> bool:
        """Whether enough waits for the next range, after the end of this one."""
        if not self.has_ended:
            return False
        if sum(map(len, self._waiting)) >= _MOST_RECORDS:
            return True
        return sum(sum(map(len, chunk.messages)) for chunk in self._waiting) >= _MOST_BYTES

    def _pass_gap(self) -> None:
        """Take offsets that hold no record as delivered."""
        known_to = int(self._waiting[0].offsets[0]) if self._waiting else self.fetched_to
        self.delivered_to = max(self.delivered_to, min(known_to, self.end))


class RangeFetcher:
    """Fetches some ranges at a time, by a `Fetcher`, and delivers nothing beyond their ends.

    Records fetched beyond an end are kept: the next range of the partition begins there, most of
    the time. What is delivered is counted and digested, record by record as `PartitionManager`
    measures them. One thread, the owner's, calls everything.
    """

    def __init__(self, client: Fetcher, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is monotonic, in seconds."""
        self._client = client
        self._clock = clock
        self._ranges: dict[Partition, TaskRange] = {}
        self._queues: dict[Partition, PartitionQueue] = {}
        self._reading: dict[Partition, PartitionQueue] = {}  # whose ends are not told yet

    def begin(self, ranges: Sequence[TaskRange]) -> None:
        """Read these ranges from now on, one of a partition, and forget those before.

        The client goes on where it stands at a range's begin. Raises KafkaMisconfigured.
        """
        self._client.open()
        self._ranges = {each.partition: each for each in ranges}
        gone = [each for each in self._queues if each not in self._ranges]
        self._client.remove(gone)
        for partition in gone:
            del self._queues[partition]
        anew: dict[Partition, Position] = {}
        for partition, each in self._ranges.items():
            queue = self._queues.get(partition)
            if queue is None or not queue.is_at(each.position, each.leader_epoch):
                anew[partition] = each.position
                self._queues[partition] = queue = PartitionQueue(each.position)
            queue.begin(each.end, each.leader_epoch)
        self._reading = {partition: self._queues[partition] for partition in self._ranges}
        if anew:
            self._client.add(anew)
        for partition, queue in self._reading.items():
            self._pause_if_full(partition, queue)

    def read(self) -> tuple[RangeRead, ...]:
        """Return the count and digest of what was delivered of each range, in their order."""
        found = [(each, self._queues[each]) for each in self._ranges]
        return tuple(
            RangeRead(partition, queue.digest.count, queue.digest.hex(), queue.last_epoch)
            for partition, queue in found
        )

    def fetch(
        self, max_records: int, timeout_seconds: float, held: Collection[Partition] = ()
    ) -> Fetched:
        """Return records as soon as there are some, of none that is `held`; see `Fetcher.fetch`.

        Once every range has ended, it waits a moment and returns nothing. Raises
        RangeUnreadable or RangesSilent, after which the ranges can only be begun anew.
        """
        if not self._reading:
            time.sleep(min(timeout_seconds, _TURN_SECONDS))
            return Fetched()
        for partition, queue in self._reading.items():
            if queue.is_held != (partition in held):
                queue.is_held, queue.asked_since = not queue.is_held, None
                self._pause_if_full(partition, queue)
        fetched = self._deliver(max_records)
        if fetched.chunks or fetched.ends:
            return fetched
        fetched = self._client.fetch(max_records, timeout_seconds)
        self._take(fetched)
        self._check_progress(has_more=bool(fetched.chunks))
        return self._deliver(max_records)

    def close(self) -> None:
        self._queues, self._reading, self._ranges = {}, {}, {}
        self._client.close()

    def _deliver(self, max_records: int) -> Fetched:
        chunks: list[Chunk] = []
        ends: dict[Partition, int] = {}
        for partition, queue in list(self._reading.items()):
            if queue.is_held:
                continue
            chunk = queue.take(max_records) if max_records > 0 else None
            if chunk is not None:
                chunks.append(chunk)
                max_records -= len(chunk)
                self._reading[partition] = self._reading.pop(partition)  # the next call's last
            if queue.has_ended:
                ends[partition] = queue.end
                del self._reading[partition]
                self._pause_if_full(partition, queue)
        return Fetched(chunks, ends)

    def _take(self, fetched: Fetched) -> None:
        """Take what the client brought, also of ranges that have ended."""
        for chunk in fetched.chunks:
            queue = self._queues.get(chunk.partition)
            if queue is not None:
                queue.add(chunk)
                self._pause_if_full(chunk.partition, queue)
        for partition, end in fetched.ends.items():
            if partition in self._queues:
                self._queues[partition].log_ends(end)
        for partition, error in fetched.failures.items():
            queue = self._queues.get(partition)
            if queue is not None:
                queue.is_broken = True
                if queue.fetched_to < queue.end:  # else the next range's client is told again
                    raise RangeUnreadable(partition, error)

    def _check_progress(self, *, has_more: bool) -> None:
        """Give up, all at once, the ranges of which nothing new was heard for long.

        Where the client `has_more` of others, theirs may come behind it: its memory is bounded. A
        log that ends before its range is short whatever others bring.
        """
        now = self._clock()
        silent: list[Partition] = []
        for partition, queue in self._reading.items():
            is_short = queue.is_short and self._client.available
            is_excused = has_more and not is_short
            if is_excused or queue.is_held or queue.fetched_to >= queue.end:
                queue.asked_since = None
                continue
            if queue.asked_since is None:
                queue.asked_since = now
            patience = 1 if is_short else self._ranges[partition].patience
            if now - queue.asked_since < patience * _SILENT_SECONDS:
                continue
            queue.is_broken = True
            if is_short:
                reason = f"its log ends there, and the records up to {queue.end} were to be read"
                error = OffsetOutOfRange(partition, queue.fetched_to, reason)
                raise RangeUnreadable(partition, error)
            silent.append(partition)
        if silent:
            raise RangesSilent([(self._ranges[e], self._queues[e].fetched_to) for e in silent])

    def _pause_if_full(self, partition: Partition, queue: PartitionQueue) -> None:
        """Have the client stop where it has fetched too much, and go on where it has not."""
        is_to_pause = queue.is_held or queue.has_plenty
        if is_to_pause and not queue.is_paused:
            self._client.pause(partition)
        elif queue.is_paused and not is_to_pause:
            self._client.resume(partition)
        queue.is_paused = is_to_pause


def _part(chunk: Chunk, start: int, end: int) -> Chunk:
    """Return some of a chunk's records, at least one, under the leader epochs of theirs."""
    offsets, messages = chunk.offsets[start:end], chunk.messages[start:end]
    first, last = int(offsets[0]), int(offsets[-1])
    epochs = {max(begin, first): epoch for begin, epoch in chunk.leader_epochs if begin <= last}
    return replace(chunk, offsets=offsets, messages=messages, leader_epochs=tuple(epochs.items()))


class RangeReader:
    """Reads ranges, each through a PartitionManager: what `Consumer` is to the local engine.

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
        self._ends = [each.end for each in ranges]
        self._assigned: list[PartitionChange] = [
            Assigned(each.partition, index) for index, each in enumerate(ranges)
        ]
        self._turn = 0
        self._held_topics: frozenset[str] = frozenset()
        self._silent_topics: frozenset[str] = frozenset()
        self.topics = {each.partition.topic for each in ranges}

    # Partitions: assigned at first, and revoked in the end

    def poll(self, now: float, *, opens: bool = True) -> list[PartitionChange]:  # noqa: ARG002
        changes, self._assigned = self._assigned, []
        return changes

    def given_up(self, now: float) -> Sequence[int]:  # noqa: ARG002
        return ()

    def commit(self, now: float, *, force: bool = False) -> None:
        """Do nothing: the driver stores offsets."""

    def release(self) -> list[PartitionChange]:
        if self._assigned:  # nobody was told of it
            return []
        return [Revoked(each.partition, index) for index, each in enumerate(self._managers)]

    def hold_back(self, topics: frozenset[str], silent: frozenset[str] = frozenset()) -> None:
        self._held_topics, self._silent_topics = topics | silent, silent

    def topic_at(self, index: int) -> str | None:
        return self._managers[index].partition.topic if self._is_known(index) else None

    def manager(self, index: int) -> PartitionManager[AtLeastOnce]:
        return self._managers[index]

    def _is_known(self, index: int) -> bool:
        return 0 <= index < len(self._managers)

    # Records

    def fetch(self, now: float, timeout_seconds: float) -> bool:
        """Take what the fetcher has; True if there was anything. Raises as RangeFetcher does.

        It waits, and takes nothing, where nothing that comes could be emitted.
        """
        shut = [manager for manager in self._managers if self._is_shut(manager)]
        if all(m in shut or m.fetch_position.offset >= end for m, end in self._with_ends()):
            time.sleep(min(timeout_seconds, _TURN_SECONDS))
            return False
        held = {manager.partition for manager in shut if manager.ledger.waiting}
        fetched = self._fetcher.fetch(self._fetch_records, timeout_seconds, held)
        managers = {manager.partition: manager for manager in self._managers}
        for chunk in fetched.chunks:
            managers[chunk.partition].fetched(chunk, now)
        for partition, end in fetched.ends.items():
            managers[partition].log_end(end)
        return bool(fetched.chunks)

    def next_chunk(self, now: float) -> tuple[Chunk, RecordIds] | None:
        for index in self._in_turn():
            manager = self._managers[index]
            topic = manager.partition.topic
            if topic in self._silent_topics:
                continue
            allowance = Allowance(new=0) if topic in self._held_topics else FREE
            chunk = manager.next_chunk(now, self._chunk_records, allowance)
            if chunk is not None:
                self._turn = index + 1
                return chunk, record_ids_of(index, chunk.offsets)
        return None

    @property
    def foresees(self) -> bool:
        return not self._held_topics

    def upcoming(self) -> list[Chunk]:
        queues = [self._managers[index].upcoming(self._chunk_records) for index in self._in_turn()]
        return [chunk for row in zip_longest(*queues) for chunk in row if chunk is not None]

    @property
    def waits_little(self) -> bool:
        ready = [manager for manager in self._managers if manager.may_emit]
        is_few = sum(manager.waiting_chunks for manager in ready) <= _FEW_CHUNKS
        return is_few and sum(each.ledger.waiting for each in ready) < 2 * self._fetch_records

    @property
    def is_full(self) -> bool:
        """Whether nothing new may be emitted before something that was is staged."""
        left = [manager for manager, end in self._with_ends() if manager.ledger.emitted_to < end]
        return bool(left) and all(map(self._is_shut, left))

    def processed(self, record_ids: RecordIds) -> None:
        for index, offsets in by_partition(record_ids):
            self._managers[index].ledger.processed(offsets)

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
        policy: Backoff | None = None,
    ) -> bool:
        manager = self._managers[partition_index_of(record_id)]
        return manager.fail(offset_of(record_id), now, after_seconds, policy)

    def comes_again(self, record_id: int) -> bool:
        index = partition_index_of(record_id)
        return self._is_known(index) and self._managers[index].ledger.comes_again(
            offset_of(record_id)
        )

    # Progress

    def emitted(self) -> npt.NDArray[np.int64]:
        return np.array([manager.read for manager in self._managers], np.int64)

    def emitted_to(self) -> npt.NDArray[np.int64]:
        return np.array([manager.ledger.emitted_to for manager in self._managers], np.int64)

    @property
    def has_emitted_goals(self) -> bool:
        return all(manager.ledger.emitted_to >= end for manager, end in self._with_ends())

    @property
    def has_reached_goals(self) -> bool:
        return all(manager.last_completed_offset >= end for manager, end in self._with_ends())

    @property
    def retried(self) -> int:
        return sum(manager.retried for manager in self._managers)

    def _with_ends(self) -> Iterator[tuple[PartitionManager[AtLeastOnce], int]]:
        return zip(self._managers, self._ends, strict=True)

    def _in_turn(self) -> Iterator[int]:
        count = len(self._managers)
        return (turn % count for turn in range(self._turn, self._turn + count))

    def _is_shut(self, manager: PartitionManager[AtLeastOnce]) -> bool:
        return manager.is_full or manager.partition.topic in self._held_topics
