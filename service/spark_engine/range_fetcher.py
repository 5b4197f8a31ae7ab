"""Fetch a task's ranges to their ends, by a client that is kept from task to task."""

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from partition.errors import KafkaError, OffsetOutOfRange
from partition.interfaces import Fetched, Fetcher
from partition.records import Chunk, Partition, Position
from service.spark_engine.task import TaskRange
from transactions.transaction import RangeDigest, RangeRead

_MOST_RECORDS = 20_000  # kept behind a range's end; a client that is paused fetches them again
_MOST_BYTES = 16 * 1024 * 1024  # of payload
_TURN_SECONDS = 0.002  # how soon the owner hears of others when there is nothing to read
_SHORT_SECONDS = 30.0  # so long a log may end before a range does: its leader has just changed
_SILENT_SECONDS = 30.0  # so long nothing may be heard of a range: its leader is being elected


class RangeUnreadable(KafkaError):
    """The log does not hold a range, as far as its brokers tell; `cause` says why."""

    def __init__(self, partition: Partition, cause: KafkaError) -> None:
        super().__init__(str(cause))
        self.partition = partition
        self.cause = cause


class RangesSilent(KafkaError):
    """Nothing is heard of some ranges, though they are asked for: nobody leads their logs."""

    def __init__(self, ranges: Sequence[TaskRange], fetched_to: Sequence[int]) -> None:
        seconds = min(map(_silence_of, ranges))
        missing = [
            f"{first} to {each.end} of {each.partition}"
            for each, first in zip(ranges, fetched_to, strict=True)
        ]
        super().__init__(
            f"nothing was heard for {seconds:g} seconds of offsets {', '.join(missing)}"
        )
        self.partitions = tuple(each.partition for each in ranges)


class PartitionQueue:
    """One partition's records between a client and its ranges, which follow one another. Pure.

    The client has brought everything below `fetched_to`. Of that, what lies below `delivered_to`
    was delivered, and the rest waits. Both pass over gaps.
    """

    def __init__(self, position: Position) -> None:
        """A client is to begin to read at `position`."""
        self.fetched_to = position.offset
        self.delivered_to = position.offset
        self.end = position.offset  # of the range
        self._topic_id = position.topic_id
        self._epoch = -1  # what waits was fetched under this leader or a later one
        self._waiting: deque[Chunk] = deque()
        self._log_end: int | None = None
        self.digest = RangeDigest()
        """Of what was delivered of the range."""
        self.last_epoch: int | None = None
        """The leader epoch of the last record delivered of the range; None: unknown."""
        self.heard_at = 0.0
        """When something new was heard, on the owner's clock."""
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

    def begin(self, end: int, now: float, leader_epoch: int | None = None) -> None:
        """Deliver from `delivered_to` on, up to before `end`; `leader_epoch` as for `is_at`."""
        if leader_epoch is not None:
            self._epoch = max(leader_epoch, self._epoch)
        self.end = end
        self.digest = RangeDigest()
        self.last_epoch = None
        self.hold(now, is_held=False)
        self._pass_gap()

    def hold(self, now: float, *, is_held: bool) -> None:
        """Deliver nothing, or go on."""
        self.is_held = is_held
        self._heard(now)

    def add(self, chunk: Chunk, now: float) -> None:
        """Take what the client has fetched."""
        self._heard(now)
        self._log_end = None
        known = int(np.searchsorted(chunk.offsets, self.fetched_to))
        if known == len(chunk):
            return
        chunk = _from(chunk, known) if known else chunk
        self.fetched_to = int(chunk.offsets[-1]) + 1
        if chunk.leader_epochs:
            self._epoch = max(chunk.leader_epochs[-1][1], self._epoch)
        self._waiting.append(chunk)
        self._pass_gap()

    def log_ends(self, end: int, now: float) -> None:
        """Learn that no record lies before `end` but those that were fetched."""
        self._heard(now)
        self.fetched_to = self._log_end = max(end, self.fetched_to)
        self._pass_gap()

    def take(self, limit: int) -> Chunk | None:
        """The next records of the range, at most `limit`; None if there is none."""
        if not self._waiting:
            return None
        chunk = self._waiting[0]
        count = min(limit, len(chunk))
        if chunk.offsets[count - 1] >= self.end:
            count = int(np.searchsorted(chunk.offsets[:count], self.end))
        if not count:
            return None
        if count < len(chunk):
            self._waiting[0] = _from(chunk, count)
            chunk = _before(chunk, count)
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
        """Whether the whole range was delivered."""
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

    def _heard(self, now: float) -> None:
        self.heard_at = now
        self.asked_since = None

    def _pass_gap(self) -> None:
        """Take offsets that hold no record as delivered."""
        known_to = int(self._waiting[0].offsets[0]) if self._waiting else self.fetched_to
        self.delivered_to = max(self.delivered_to, min(known_to, self.end))


class RangeFetcher:
    """Fetches some ranges at a time, by a `Fetcher`, and delivers nothing beyond their ends.

    What the client has fetched beyond an end is kept: if the next range of the partition begins
    there, what was prefetched is of use. What is delivered is counted and digested, record by
    record as `PartitionManager` measures them. One thread, the owner's, calls everything.
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
        now = self._clock()
        self._ranges = {each.partition: each for each in ranges}
        gone = [each for each in self._queues if each not in self._ranges]
        self._client.remove(gone)
        for partition in gone:
            del self._queues[partition]
        anew: dict[Partition, Position] = {}
        for each in ranges:
            partition, epoch = each.partition, each.leader_epoch
            queue = self._queues.get(partition)
            if queue is None or not queue.is_at(each.position, epoch):
                anew[partition] = each.position
                self._queues[partition] = queue = PartitionQueue(each.position)
            queue.begin(each.end, now, epoch)
        self._reading = {each.partition: self._queues[each.partition] for each in ranges}
        if anew:
            self._client.add(anew)
        for partition, queue in self._reading.items():
            self._pause_if_full(partition, queue)

    def read(self) -> tuple[RangeRead, ...]:
        """The count and digest of what was delivered of each range, in their order."""
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
                queue.hold(self._clock(), is_held=partition in held)
                self._pause_if_full(partition, queue)
        fetched = self._deliver(max_records)
        if fetched.chunks or fetched.ends:
            return fetched
        fetched = self._client.fetch(max_records, timeout_seconds)
        self._take(fetched)
        self._check_silent(has_more=bool(fetched.chunks))
        return self._deliver(max_records)

    def close(self) -> None:
        """Close the client, and forget everything; `begin` opens it again. Idempotent."""
        self._queues, self._reading, self._ranges = {}, {}, {}
        self._client.close()

    def _deliver(self, max_records: int) -> Fetched:
        """What is there of the ranges; at most so many records."""
        chunks: list[Chunk] = []
        ends: dict[Partition, int] = {}
        for partition, queue in list(self._reading.items()):
            if queue.is_held:
                continue
            chunk = queue.take(max_records) if max_records > 0 else None
            if chunk is not None:
                chunks.append(chunk)
                max_records -= len(chunk)
            if queue.has_ended:
                ends[partition] = queue.end
                del self._reading[partition]
                self._pause_if_full(partition, queue)
        for chunk in chunks:  # the next call begins with another one
            if chunk.partition in self._reading:
                self._reading[chunk.partition] = self._reading.pop(chunk.partition)
        return Fetched(chunks, ends)

    def _take(self, fetched: Fetched) -> None:
        """Take what the client brought, also of ranges that have ended."""
        now = self._clock()
        for chunk in fetched.chunks:
            queue = self._queues.get(chunk.partition)
            if queue is not None:
                queue.add(chunk, now)
                self._pause_if_full(chunk.partition, queue)
        for partition, end in fetched.ends.items():
            if partition in self._queues:
                self._queues[partition].log_ends(end, now)
        for partition, error in fetched.failures.items():
            queue = self._queues.get(partition)
            if queue is not None:
                queue.is_broken = True
                if queue.fetched_to < queue.end:  # else the next range's client is told again
                    raise RangeUnreadable(partition, error)
        if self._client.available:
            self._check_short(now)

    def _check_short(self, now: float) -> None:
        for partition, queue in self._reading.items():
            if queue.is_held or not queue.is_short or now - queue.heard_at < _SHORT_SECONDS:
                continue
            queue.is_broken = True
            reason = f"its log ends there, and the records up to {queue.end} were to be read"
            error = OffsetOutOfRange(partition, queue.fetched_to, reason)
            raise RangeUnreadable(partition, error)

    def _check_silent(self, *, has_more: bool) -> None:
        """Give up, all at once, the ranges of which nothing was heard for long.

        Where the client `has_more` of others, theirs may come behind it: its memory is bounded.
        """
        now = self._clock()
        silent = []
        for partition, queue in self._reading.items():
            if has_more or queue.is_held or queue.fetched_to >= queue.end:
                queue.asked_since = None
            elif queue.asked_since is None:
                queue.asked_since = now
            elif now - queue.asked_since >= _silence_of(self._ranges[partition]):
                queue.is_broken = True
                silent.append(partition)
        if silent:
            fetched_to = [self._queues[each].fetched_to for each in silent]
            raise RangesSilent([self._ranges[each] for each in silent], fetched_to)

    def _pause_if_full(self, partition: Partition, queue: PartitionQueue) -> None:
        """Have the client stop where it has fetched too much, and go on where it has not."""
        is_to_pause = queue.is_held or queue.has_plenty
        if is_to_pause and not queue.is_paused:
            self._client.pause(partition)
        elif queue.is_paused and not is_to_pause:
            self._client.resume(partition)
        queue.is_paused = is_to_pause


def _silence_of(each: TaskRange) -> float:
    """For how many seconds nothing may be heard of a range."""
    return each.patience * _SILENT_SECONDS


def _before(chunk: Chunk, index: int) -> Chunk:
    """A chunk's records before the one at `index`, which is not its first."""
    last = int(chunk.offsets[index - 1])
    epochs = tuple(run for run in chunk.leader_epochs if run[0] <= last)
    offsets, messages = chunk.offsets[:index], chunk.messages[:index]
    return replace(chunk, offsets=offsets, messages=messages, leader_epochs=epochs)


def _from(chunk: Chunk, index: int) -> Chunk:
    """A chunk's records from the one at `index` on, which is there."""
    first = int(chunk.offsets[index])
    epochs = tuple(run for run in chunk.leader_epochs if run[0] > first)
    led_by = [epoch for start, epoch in chunk.leader_epochs if start <= first]
    if led_by:
        epochs = ((first, led_by[-1]), *epochs)
    offsets, messages = chunk.offsets[index:], chunk.messages[index:]
    return replace(chunk, offsets=offsets, messages=messages, leader_epochs=epochs)
