"""The PartitionManager: hands out one partition's records and says what may be committed.

Modelled on storm-kafka's PartitionManager (1.2.3). It differs where Storm lost data or
stood still: the payloads of records in flight stay here, so a retry runs from memory
and never seeks; the window bounds what lies between the stored offset and the last emitted
record; nothing is skipped here because it is far behind (`partition.opening` does, when it
is told to, and tells).
"""

import random
from collections import deque
from collections.abc import Mapping, Sized
from dataclasses import dataclass, field, replace

import numpy as np

from partition.chunk import Chunk, Offsets, Partition
from partition.ledger import Ledger, LedgerStatistics
from partition.position import Position
from partition.retries import RetryPolicy, RetryQueue

MAX_PENDING = 200_000
MAX_PENDING_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Window:
    """How far a partition may run ahead of its frontier."""

    max_pending: int = MAX_PENDING  # records
    max_pending_bytes: int = MAX_PENDING_BYTES  # of payload
    max_record_bytes: int | None = None  # of payload; a larger record is no usual one


@dataclass(frozen=True, slots=True)
class PartitionStatistics:
    """What a user may see of a partition. Offsets are the next to read."""

    partition: Partition
    ledger: LedgerStatistics
    committed: int
    read: int  # records emitted for the first time
    retried: int  # emissions after the first
    pending_bytes: int
    oldest_pending_seconds: float  # since the oldest unresolved record was fetched; else 0
    log_start: int | None = None  # None: not heard yet
    log_end: int | None = None
    fetch_latency_seconds: float | None = None  # from the newest record's time stamp to us
    lost: Mapping[str, int] = field(default_factory=dict)  # records the source lost, by reason

    @property
    def lag(self) -> int:
        """Offsets between what is committed and the log's end, as far as it is known."""
        end = self.ledger.fetched_to if self.log_end is None else self.log_end
        return max(0, end - self.committed)


@dataclass(slots=True)
class _Held:
    """A fetched chunk whose payloads stay until the frontier has passed it."""

    chunk: Chunk
    num_bytes: int
    fetched_at: float


class PartitionManager:
    """One partition's records from fetched to resolved. The owner thread calls everything.

    `next` gives due retries first, then new records; retries are exempt from the
    window. Every record handed out is answered by one `ack` or `fail`; late, repeated
    and unknown answers are counted and change nothing.
    """

    def __init__(
        self,
        partition: Partition,
        position: Position,
        *,
        window: Window,
        retry_policy: RetryPolicy,
        rng: random.Random,
    ) -> None:
        self.partition = partition
        self._window = window
        self._retry_policy = retry_policy
        self._rng = rng
        self._read = 0
        self._retried = 0
        self._committed = position.offset
        self._committed_read = 0  # how many of the records read lie below `committed`
        self._submitted = (position.offset, 0)  # a frontier on its way, and the same of it
        self.restart(position)

    def restart(self, position: Position, *, stored: bool = True) -> None:
        """Forget what is in flight, and go on from `position`. The counts stay.

        `stored` says that the position is what the store holds now.
        """
        self._ledger = Ledger(position.offset)
        self._retries = RetryQueue(self._retry_policy, self._rng)
        self._held: deque[_Held] = deque()
        self._held_bytes = 0
        self._taken = 0  # records of the first waiting chunk that are already emitted
        self._waiting: deque[Chunk] = deque()
        if stored:
            self._committed = position.offset
            self._committed_read = self._read
        self._start = position
        self._leader_epochs: deque[tuple[int, int]] = deque()  # from which offset on, which

    @property
    def frontier(self) -> int:
        """The next offset to read after a crash: what may be committed now."""
        return self._ledger.frontier

    @property
    def position(self) -> Position:
        """The frontier with its resume key: the leader epoch of the record before it."""
        frontier = self._ledger.frontier
        epochs = self._leader_epochs
        while len(epochs) > 1 and epochs[1][0] < frontier:
            epochs.popleft()
        known = bool(epochs) and epochs[0][0] < frontier
        epoch = epochs[0][1] if known else self._start.leader_epoch
        return Position(frontier, epoch, self._start.topic_id)

    @property
    def emitted_to(self) -> int:
        """The next offset to emit."""
        return self._ledger.emitted_to

    @property
    def committed(self) -> int:
        """The frontier that was stored last."""
        return self._committed

    @property
    def has_waiting(self) -> bool:
        """Whether fetched records wait to be emitted."""
        return self._ledger.waiting > 0

    @property
    def waiting(self) -> int:
        """Fetched records that wait to be emitted."""
        return self._ledger.waiting

    @property
    def uncommitted(self) -> int:
        """Records emitted behind what is stored: what a crash would repeat."""
        return self._read - self._committed_read

    @property
    def is_full(self) -> bool:
        """Whether the window is used up, so that only retries may be emitted (promise 10).

        It reaches from what is stored, not only from the frontier: with the store away a
        partition runs on to the window's end and then waits (promise 15). With nothing
        emitted it is not full of bytes: one record larger than that passes, alone.
        """
        if self.uncommitted >= self._window.max_pending:
            return True
        return self._ledger.window > 0 and self._held_bytes >= self._window.max_pending_bytes

    @property
    def should_commit(self) -> bool:
        """Whether half of the window is not stored, so that waiting for the interval may stall."""
        moved = self._ledger.frontier > self._committed
        return moved and 2 * self.uncommitted >= self._window.max_pending

    @property
    def is_idle(self) -> bool:
        """Whether no record is unresolved."""
        return self._ledger.pending == 0

    def next_due(self) -> float | None:
        """When the next retry is due, or None."""
        return self._retries.next_due()

    def offer(self, chunk: Chunk, now: float) -> None:
        """Take fetched records; they wait until `next` hands them out.

        Those that were fetched before are dropped: a client may deliver records again.
        """
        known = int(np.searchsorted(chunk.offsets, self._ledger.fetched_to))
        if known == len(chunk):
            return
        if known:
            offsets, messages = chunk.offsets[known:], chunk.messages[known:]
            chunk = replace(chunk, offsets=offsets, messages=messages)
        self._ledger.fetched(chunk.offsets)
        lengths = np.fromiter(map(len, chunk.messages), np.int64, len(chunk))
        limit = self._window.max_record_bytes
        if not lengths.all() or (limit is not None and lengths.max() > limit):
            chunk = replace(chunk, unusual=True)
        num_bytes = int(lengths.sum())
        self._held.append(_Held(chunk, num_bytes, now))
        self._held_bytes += num_bytes
        self._waiting.append(chunk)
        for first, epoch in chunk.leader_epochs:
            if not self._leader_epochs or self._leader_epochs[-1][1] != epoch:
                self._leader_epochs.append((first, epoch))

    def reached(self, end: int) -> None:
        """Learn that the log ends at `end`: gaps before it hold nothing back."""
        self._ledger.pass_gap(end)

    def next(self, now: float, limit: int) -> Chunk | None:
        """Hand out at most `limit` records: due retries, else new ones, else None."""
        due = self._retries.take_due(now, limit)
        if due:
            offsets = np.sort(np.array([o for o in due if self._ledger.retry(o)], np.int64))
            self._retried += len(offsets)
            messages = [self.message(int(o)) for o in offsets]
            return Chunk(self.partition, offsets, messages, unusual=True)
        if not self._waiting or self.is_full:
            return None
        chunk = self._waiting[0]
        room = self._window.max_pending - self.uncommitted
        end = min(len(chunk), self._taken + min(limit, room))
        offsets = self._ledger.emit(end - self._taken)
        messages = chunk.messages
        if len(offsets) < len(chunk):
            messages = messages[self._taken : end]
        self._taken = end
        if end == len(chunk):
            self._waiting.popleft()
            self._taken = 0
        self._read += len(offsets)
        return Chunk(self.partition, offsets, messages, unusual=chunk.unusual)

    def ack(self, offsets: Offsets) -> int:
        """Resolve records; return how many were in flight."""
        before = self._ledger.frontier
        resolved = self._ledger.resolve(offsets)
        frontier = self._ledger.frontier
        if frontier == before:
            return resolved
        while self._held and self._held[0].chunk.offsets[-1] < frontier:
            self._held_bytes -= self._held.popleft().num_bytes
        self._retries.forget_below(frontier)
        return resolved

    def fail(self, offset: int, now: float, after_seconds: float | None = None) -> bool:
        """Schedule a retry of a failed record.

        Returns False when its retries are used up: the record stays pending, and the
        caller writes its dead letter and acks it when that is durable (promise 13).
        """
        if not self._ledger.fail(offset):
            return True
        if self._retries.failed(offset, now, after_seconds):
            return True
        self._ledger.retry(offset)
        return False

    def attempts(self, offset: int) -> int:
        """How often the record has been tried, this time included."""
        return self._retries.attempts(offset)

    def message(self, offset: int) -> Sized:
        """The message of a record in flight. Raises KeyError when it is not."""
        for held in self._held:
            if offset <= held.chunk.offsets[-1]:
                place = int(np.searchsorted(held.chunk.offsets, offset))
                if held.chunk.offsets[place] == offset:
                    return held.chunk.messages[place]
                break
        raise KeyError(offset)

    def submit(self) -> Position:
        """The position to store now; `mark_committed` tells when it is stored."""
        position = self.position
        self._submitted = (position.offset, self._read - self._ledger.window)
        return position

    def mark_committed(self, offset: int) -> None:
        """Learn that `offset` is stored."""
        self._committed = max(self._committed, offset)
        if offset == self._submitted[0]:
            self._committed_read = max(self._committed_read, self._submitted[1])

    def statistics(self, now: float) -> PartitionStatistics:
        """What a user may see of this partition; the log's side is the reader's to add."""
        oldest = self._held[0].fetched_at if self._held and not self.is_idle else now
        return PartitionStatistics(
            partition=self.partition,
            ledger=self._ledger.statistics(),
            committed=self._committed,
            read=self._read,
            retried=self._retried,
            pending_bytes=self._held_bytes,
            oldest_pending_seconds=max(0.0, now - oldest),
        )
