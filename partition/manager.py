"""The PartitionManager: hands out one partition's records and says what may be committed.

Modelled on storm-kafka's PartitionManager (1.2.3). It differs where Storm lost data or
stood still: the payloads of records in flight stay here, so a retry runs from memory
and never seeks; the window bounds what lies between the stored offset and the last emitted
record; nothing is skipped here because it is far behind (`partition.opening` does, when it
is told to, and tells).
"""

import random
from collections import deque
from collections.abc import Sized
from dataclasses import dataclass, replace

import numpy as np

from partition.chunk import Chunk, Offsets, Partition
from partition.ledger import Ledger
from partition.position import LeaderEpochs, Position
from partition.retries import Retries, RetryPolicy, RetryQueue
from partition.statistics import PartitionStatistics

MAX_PENDING = 200_000
MAX_PENDING_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Window:
    """How far a partition may run ahead of its frontier."""

    max_pending: int = MAX_PENDING  # records
    max_pending_bytes: int = MAX_PENDING_BYTES  # of payload
    max_record_bytes: int | None = None  # of payload; a larger record is no usual one


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

    With `commit_ahead` (at most once) the place behind some of the records that wait, as many
    as `allow_ahead` says, is stored before they are emitted, and only what lies below the
    stored offset is. A crash repeats nothing then, and loses what was stored and not
    processed: at most the window, which reaches from the frontier. Nothing is tried twice.
    """

    def __init__(
        self,
        partition: Partition,
        position: Position,
        *,
        window: Window,
        retry_policy: RetryPolicy,
        rng: random.Random,
        commit_ahead: bool = False,
    ) -> None:
        self.partition = partition
        self._commit_ahead = commit_ahead
        self._ahead = 0
        self._is_ending = False
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
        if self._commit_ahead:  # what is on its way to the store is of the place before
            self._submitted = (position.offset, 0)
        self._epochs = LeaderEpochs(position)

    @property
    def frontier(self) -> int:
        """The next offset to read after a crash if nothing may be lost."""
        return self._ledger.frontier

    @property
    def storable(self) -> int:
        """The offset that may be stored now: the frontier, or with `commit_ahead` beyond it.

        That is what is allowed ahead, and the window has room for, of the records that wait; it
        never goes back.
        """
        frontier = self._ledger.frontier
        if not self._commit_ahead:
            return frontier
        known = max(frontier, self._stored_to)
        if self._is_ending or self.is_full:
            return known
        return max(known, self._ledger.emitted_after(min(self._ahead, self._room)))

    @property
    def position(self) -> Position:
        """The frontier with its resume key."""
        return self._epochs.at(self._ledger.frontier)

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
    def waiting_chunks(self) -> int:
        """Chunks that wait to be emitted, or a part of which does."""
        return len(self._waiting)

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
        if self._room <= 0:
            return True
        return self._ledger.window > 0 and self._held_bytes >= self._window.max_pending_bytes

    @property
    def _stored_to(self) -> int:
        """The offset that is stored, or on its way to the store."""
        return max(self._committed, self._submitted[0])

    @property
    def _room(self) -> int:
        """Records that may be emitted until the window is used up."""
        used = self._ledger.window if self._commit_ahead else self.uncommitted
        return self._window.max_pending - used

    @property
    def may_emit(self) -> bool:
        """Whether a record waits that may be emitted now for the first time."""
        if self._commit_ahead:
            return self.has_waiting and self.emitted_to < self._committed
        return self.has_waiting and not self.is_full

    @property
    def has_stored_waiting(self) -> bool:
        """Whether records wait that are stored as read, or about to be (at most once).

        A crash would lose them, and so would an end that does not wait for them.
        """
        return self._commit_ahead and self.has_waiting and self.emitted_to < self._stored_to

    @property
    def should_commit(self) -> bool:
        """Whether waiting for the interval may stall: half of the window is not stored.

        With `commit_ahead`: at most half of what is allowed ahead is stored, and more could be.
        """
        if self._commit_ahead:
            if not self.has_waiting or self.storable <= self._committed:
                return False
            return 2 * self._ledger.waiting_below(self._stored_to) <= self._ahead
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
        self._epochs.fetched(chunk.leader_epochs)

    def reached(self, end: int) -> None:
        """Learn that the log ends at `end`: gaps before it hold nothing back."""
        self._ledger.pass_gap(end)

    def allow_ahead(self, count: int) -> None:
        """With `commit_ahead`: store so many records more than are emitted; none at first.

        What is stored ahead already stays so.
        """
        self._ahead = count

    def end(self) -> None:
        """Store nothing more ahead: what is stored already is the last that is emitted."""
        self._is_ending = True

    def next(self, now: float, limit: int) -> Chunk | None:
        """Hand out at most `limit` records: due retries, else new ones, else None."""
        return self.next_retries(now, limit) or self.next_new(limit)

    def next_retries(self, now: float, limit: int) -> Chunk | None:
        """Hand out at most `limit` retries that are due, or None."""
        due = self._retries.take_due(now, limit)
        if not due:
            return None
        offsets = np.sort(np.array([o for o in due if self._ledger.retry(o)], np.int64))
        self._retried += len(offsets)
        messages = [self.message(int(o)) for o in offsets]
        return Chunk(self.partition, offsets, messages, unusual=True)

    def next_new(self, limit: int) -> Chunk | None:
        """Hand out at most `limit` records for the first time, or None."""
        if not self.may_emit:
            return None
        # What is stored ahead had room when it was stored.
        ahead = self._commit_ahead
        room = self._ledger.waiting_below(self._committed) if ahead else self._room
        chunk = self._waiting[0]
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

    def upcoming(self, limit: int) -> list[Chunk]:
        """The chunks of at most `limit` records that, as things stand, are handed out whole next.

        `next_new` then gives the same list of messages. At most once nothing is foreseen.
        """
        chunks: list[Chunk] = []
        if self._commit_ahead or self.is_full:
            return chunks
        room = self._room + self._taken  # so much of the first chunk has had its room
        for chunk in self._waiting:
            room -= len(chunk)
            if room < 0 or len(chunk) > limit:
                break
            chunks.append(chunk)
        return chunks[1:] if self._taken else chunks

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
        self._epochs.forget_below(frontier)
        return resolved

    def fail(
        self,
        offset: int,
        now: float,
        after_seconds: float | None = None,
        policy: Retries | None = None,
    ) -> bool:
        """Schedule a retry of a failed record; see `RetryQueue.failed`.

        Returns False when its retries are used up: the record stays pending, and the
        caller writes its dead letter and acks it when that is durable (promise 13). With
        `commit_ahead` there are none: a second try may be a second effect.
        """
        if not self._ledger.fail(offset):
            return True
        again = not self._commit_ahead
        if again and self._retries.failed(offset, now, after_seconds, policy):
            return True
        self._ledger.retry(offset)
        return False

    def is_pending(self, offset: int) -> bool:
        """Whether a record was fetched and is not resolved."""
        return self._ledger.is_pending(offset)

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
        position = self._epochs.at(self.storable) if self._commit_ahead else self.position
        self._submitted = (position.offset, self._read - self._ledger.window)
        return position

    def mark_committed(self, offset: int) -> None:
        """Learn that `offset` is stored."""
        if self._commit_ahead and offset != self._submitted[0]:
            return  # it was submitted before a restart
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
