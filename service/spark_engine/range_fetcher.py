"""Fetch a task's ranges to their ends, and emit them."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from partition.errors import KafkaError, OffsetOutOfRange
from partition.interfaces import Fetched, Fetcher
from partition.records import Chunk, Partition, Position
from service.spark_engine.task import RangeRead, TaskRange
from transactions.rows import RangeDigest

_MOST_RECORDS = 20_000  # kept behind a range's end; a client that is paused fetches them again
_MOST_BYTES = 16 * 1024 * 1024  # of payload


class Standing:
    """One partition's records on their way from a client to a range. One owner calls everything.

    The client has brought everything below `known_to`; of that, what lies below `given_to` was
    given out, and the rest waits. Both pass over gaps.
    """

    def __init__(self, position: Position) -> None:
        """A client is to begin to read at `position`."""
        self.known_to = position.offset
        self.given_to = position.offset
        self._topic_id = position.topic_id
        self._epoch = -1  # what waits was brought under this leader or a later one
        self._waiting: deque[Chunk] = deque()
        self._log_end: int | None = None
        self.end = position.offset
        """Where the range ends."""
        self.digest = RangeDigest()
        """Of what was given of the range."""
        self.last_epoch: int | None = None
        """The leader epoch of the last record given of the range; None: it is not known."""
        self.heard_at = 0.0
        """When something new was heard, on the owner's clock."""
        self.asked_since: float | None = None
        """Since when the client has been asked for this and has had nothing; None: it is not so.

        On the owner's clock. A bolt that holds the owner up is no silence of the log's.
        """
        self.is_held = False
        """Whether nothing is to be given out."""
        self.is_paused = False
        """Whether the client is told to bring nothing."""
        self.is_broken = False
        """Whether the client brings nothing more."""

    def is_at(self, position: Position, leader_epoch: int | None = None) -> bool:
        """Whether a range that begins there needs no other client's place.

        `leader_epoch` is the one that the range was planned in. Under a later leader than that of
        what waits the log may have been cut off, and written anew.
        """
        same_log = self._topic_id == position.topic_id
        same_log = same_log and (leader_epoch is None or leader_epoch <= self._epoch)
        return same_log and self.given_to == position.offset and not self.is_broken

    def begin(self, end: int, now: float, leader_epoch: int | None = None) -> None:
        """Give out from `given_to` on, up to before `end`; `leader_epoch` as for `is_at`."""
        if leader_epoch is not None:
            self._epoch = max(leader_epoch, self._epoch)
        self.end = end
        self.digest = RangeDigest()
        self.last_epoch = None
        self.heard_at = now
        self.asked_since = None
        self.is_held = False
        self._pass_gap()

    def add(self, chunk: Chunk, now: float) -> None:
        """Learn what the client has brought."""
        self.heard_at = now
        self.asked_since = None
        self._log_end = None
        known = int(np.searchsorted(chunk.offsets, self.known_to))
        if known == len(chunk):
            return
        chunk = _from(chunk, known) if known else chunk
        self.known_to = int(chunk.offsets[-1]) + 1
        if chunk.leader_epochs:
            self._epoch = max(chunk.leader_epochs[-1][1], self._epoch)
        self._waiting.append(chunk)
        self._pass_gap()

    def log_ends(self, end: int, now: float) -> None:
        """Learn that no record lies before `end` but those that were brought."""
        self.heard_at = now
        self.asked_since = None
        self.known_to = self._log_end = max(end, self.known_to)
        self._pass_gap()

    def take(self, limit: int) -> Chunk | None:
        """Give out the next records of the range, at most `limit`; None if there is none."""
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
        self.given_to = int(chunk.offsets[-1]) + 1
        self._pass_gap()
        return chunk

    @property
    def has_ended(self) -> bool:
        """Whether the whole range was given out."""
        return self.given_to >= self.end

    @property
    def is_short(self) -> bool:
        """Whether the log ends before the range does, as far as it was told."""
        return self._log_end is not None and self.known_to < self.end

    @property
    def has_plenty(self) -> bool:
        """Whether enough waits for the next range, after the end of this one."""
        if not self.has_ended:
            return False
        if sum(map(len, self._waiting)) >= _MOST_RECORDS:
            return True
        return sum(sum(map(len, chunk.messages)) for chunk in self._waiting) >= _MOST_BYTES

    def _pass_gap(self) -> None:
        """Take as given what holds no record."""
        known_to = int(self._waiting[0].offsets[0]) if self._waiting else self.known_to
        self.given_to = max(self.given_to, min(known_to, self.end))


def _before(chunk: Chunk, place: int) -> Chunk:
    """A chunk's records before the one at a place, which is not its first."""
    last = int(chunk.offsets[place - 1])
    epochs = tuple(run for run in chunk.leader_epochs if run[0] <= last)
    offsets, messages = chunk.offsets[:place], chunk.messages[:place]
    return replace(chunk, offsets=offsets, messages=messages, leader_epochs=epochs)


def _from(chunk: Chunk, place: int) -> Chunk:
    """A chunk's records from the one at a place on, which is there."""
    first = int(chunk.offsets[place])
    epochs = tuple(run for run in chunk.leader_epochs if run[0] > first)
    led_by = [epoch for start, epoch in chunk.leader_epochs if start <= first]
    if led_by:
        epochs = ((first, led_by[-1]), *epochs)
    offsets, messages = chunk.offsets[place:], chunk.messages[place:]
    return replace(chunk, offsets=offsets, messages=messages, leader_epochs=epochs)


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

    def __init__(self, ranges: Sequence[TaskRange], known_to: Sequence[int]) -> None:
        """`known_to` has, of each range, up to where its records were brought."""
        seconds = min(map(_silence_of, ranges))
        missing = [
            f"{known} to {each.end} of {each.partition}"
            for each, known in zip(ranges, known_to, strict=True)
        ]
        super().__init__(
            f"nothing was heard for {seconds:g} seconds of offsets {', '.join(missing)}"
        )
        self.partitions = tuple(each.partition for each in ranges)


class RangeFetcher:
    """Fetches some ranges at a time; nothing at or beyond their ends is delivered.

    What the inner fetcher has brought beyond an end is kept, and so is its place: if the next
    range of the partition begins there, what was prefetched is of use. `begin` says which ranges
    come next; the inner fetcher reads no other partitions. One thread, the owner's, calls
    everything.

    It counts and digests what it delivers, record by record as `PartitionManager` measures them.
    """

    def __init__(self, inner: Fetcher, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is monotonic, in seconds."""
        self._inner = inner
        self._clock = clock
        self._ranges: dict[Partition, TaskRange] = {}
        self._standing: dict[Partition, Standing] = {}
        self._reading: dict[Partition, Standing] = {}  # whose ends are not told yet

    def begin(self, ranges: Sequence[TaskRange]) -> None:
        """Forget the ranges before; these may be added from now on, one of a partition."""
        self._ranges = {each.partition: each for each in ranges}
        self._reading = {}
        self.remove([each for each in self._standing if each not in self._ranges])

    def read(self) -> tuple[RangeRead, ...]:
        """What the ranges have turned out to hold so far, in their order."""
        return tuple(
            RangeRead(partition, standing.digest.count, standing.digest.hex(), standing.last_epoch)
            for partition in self._ranges
            if (standing := self._standing.get(partition)) is not None
        )

    def open(self) -> None:
        """Make the inner fetcher's client, if it has none. Raises KafkaMisconfigured."""
        self._inner.open()

    def add(self, positions: Mapping[Partition, Position]) -> None:
        """Read these ranges, each from its position on; their client goes on if it stands there.

        Raises KeyError for a partition that has no range.
        """
        now = self._clock()
        anew: dict[Partition, Position] = {}
        for partition, position in positions.items():
            standing = self._standing.get(partition)
            epoch = self._ranges[partition].leader_epoch
            if standing is None or not standing.is_at(position, epoch):
                anew[partition] = position
                self._standing[partition] = standing = Standing(position)
            standing.begin(self._ranges[partition].end, now, epoch)
            self._reading[partition] = standing
        if anew:
            self._inner.add(anew)
        for partition in positions:
            self._pause_if(partition, self._standing[partition])

    def remove(self, partitions: Iterable[Partition]) -> None:
        """Read these no more, and forget where they stand."""
        known = [each for each in partitions if each in self._standing]
        self._inner.remove(known)
        for partition in known:
            del self._standing[partition]
            self._reading.pop(partition, None)

    def fetch(self, max_records: int, timeout_seconds: float) -> Fetched:
        """Return records as soon as there are some; see `Fetcher.fetch`.

        Once every range has ended, it waits a moment and returns nothing. Raises
        RangeUnreadable or RangesSilent, after which the ranges can only be begun anew.
        """
        if not self._reading:
            time.sleep(min(timeout_seconds, _TURN_SECONDS))
            return Fetched()
        fetched = self._given(max_records)
        if fetched.chunks or fetched.ends:
            return fetched
        fetched = self._inner.fetch(max_records, timeout_seconds)
        self._take(fetched)
        self._check_silent(has_more=bool(fetched.chunks))
        return self._given(max_records)

    def pause(self, partition: Partition) -> None:
        """Stop delivering a partition's records, without losing its place."""
        self._hold(partition, held=True)

    def resume(self, partition: Partition) -> None:
        """Deliver a paused partition's records again."""
        self._hold(partition, held=False)

    def let_go(self) -> None:
        """Close the inner fetcher, and forget everything. Idempotent."""
        self._standing, self._reading, self._ranges = {}, {}, {}
        self._inner.close()

    def _given(self, max_records: int) -> Fetched:
        """What is there of the ranges; at most so many records."""
        chunks: list[Chunk] = []
        ends: dict[Partition, int] = {}
        for partition, standing in list(self._reading.items()):
            if standing.is_held:
                continue
            chunk = standing.take(max_records) if max_records > 0 else None
            if chunk is not None:
                chunks.append(chunk)
                max_records -= len(chunk)
            if standing.has_ended:
                ends[partition] = standing.end
                del self._reading[partition]
                self._pause_if(partition, standing)
        for chunk in chunks:  # the next call begins with another one
            if chunk.partition in self._reading:
                self._reading[chunk.partition] = self._reading.pop(chunk.partition)
        return Fetched(chunks, ends)

    def _take(self, fetched: Fetched) -> None:
        """Learn what the inner fetcher brought, also of ranges that have ended."""
        now = self._clock()
        for chunk in fetched.chunks:
            standing = self._standing.get(chunk.partition)
            if standing is not None:
                standing.add(chunk, now)
                self._pause_if(chunk.partition, standing)
        for partition, end in fetched.ends.items():
            if partition in self._standing:
                self._standing[partition].log_ends(end, now)
        for partition, error in fetched.failures.items():
            self._failed(partition, error)
        if self._inner.available:
            self._check_short(now)

    def _failed(self, partition: Partition, error: KafkaError) -> None:
        """A range cannot be read; or what comes behind it cannot, which the next one hears of."""
        standing = self._standing.get(partition)
        if standing is None:
            return
        standing.is_broken = True
        if standing.known_to < standing.end:
            raise RangeUnreadable(partition, error)

    def _check_short(self, now: float) -> None:
        for partition, standing in self._reading.items():
            if standing.is_held or not standing.is_short:
                continue
            if now - standing.heard_at >= _SHORT_SECONDS:
                known, end = standing.known_to, standing.end
                standing.is_broken = True
                reason = f"its log ends there, and the records up to {end} were to be read"
                raise RangeUnreadable(partition, OffsetOutOfRange(partition, known, reason))

    def _check_silent(self, *, has_more: bool) -> None:
        """Give up, all at once, the ranges of which nothing was heard for long.

        Where the client `has_more` of others, theirs may come behind it: its memory is bounded.
        """
        now = self._clock()
        silent = []
        for partition, standing in self._reading.items():
            if has_more or standing.is_held or standing.known_to >= standing.end:
                standing.asked_since = None
            elif standing.asked_since is None:
                standing.asked_since = now
            elif now - standing.asked_since >= _silence_of(self._ranges[partition]):
                silent.append(partition)
        for partition in silent:
            self._standing[partition].is_broken = True
        if silent:
            known_to = [self._standing[each].known_to for each in silent]
            raise RangesSilent([self._ranges[each] for each in silent], known_to)

    def _hold(self, partition: Partition, *, held: bool) -> None:
        standing = self._standing.get(partition)
        if standing is not None:
            standing.is_held = held
            standing.heard_at = self._clock()
            standing.asked_since = None
            self._pause_if(partition, standing)

    def _pause_if(self, partition: Partition, standing: Standing) -> None:
        """Have the client stop where it has brought too much, and go on where it has not."""
        is_to_pause = standing.is_held or standing.has_plenty
        if is_to_pause and not standing.is_paused:
            self._inner.pause(partition)
        elif standing.is_paused and not is_to_pause:
            self._inner.resume(partition)
        standing.is_paused = is_to_pause


def _silence_of(each: TaskRange) -> float:
    """For how many seconds nothing may be heard of a range."""
    return each.patience * _SILENT_SECONDS
