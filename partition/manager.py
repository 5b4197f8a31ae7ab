"""The PartitionManager: one partition's records from fetched to resolved.

Modelled on storm-kafka's PartitionManager (1.2.3). It differs where Storm lost data or stood
still: a retry runs from the payload in memory and never seeks; a limit bounds what lies between
the stored offset and the last emitted record; nothing is skipped because it is far behind
(`partition.recovery` does, if configured, and logs it).
"""

import random
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple

import numpy as np

from partition.delivery import D, DeliveryFactory
from partition.interfaces import Progress
from partition.latency import UncommittedChunk
from partition.ledger import (
    Backoff,
    CommitProgress,
    Ledger,
    LedgerStatistics,
    RetryPolicy,
    RetryQueue,
)
from partition.records import (
    Chunk,
    LeaderEpochs,
    Offsets,
    OpenTransaction,
    Partition,
    Position,
    Range,
    Resumed,
    Transactions,
)

MAX_PENDING = 200_000
MAX_PENDING_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class InFlightLimits:
    max_pending: int = MAX_PENDING  # records
    max_pending_bytes: int = MAX_PENDING_BYTES  # of values and keys
    max_record_bytes: int | None = None  # of a value; a larger record is no usual one


@dataclass(frozen=True, slots=True)
class PartitionStatistics:
    """A partition's figures at one moment. Offsets are the next to read."""

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
    transaction_wait_seconds: float = 0.0  # held up by one that a producer has not ended
    lost: Mapping[str, int] = field(default_factory=dict)  # records the source lost, by reason
    committed_txid: int | None = None  # None, and below: no transactions are kept
    open_transactions: int | None = None
    epoch: int = 0  # under which it is ours; 0: it never was
    commit_age_seconds: float = 0.0  # `committed` has stood still so long short of the log's end

    @property
    def lag(self) -> int:
        """Offsets between what is committed and the log's end, as far as it is known."""
        end = self.ledger.fetched_to if self.log_end is None else self.log_end
        return max(0, end - self.committed)


class Allowance(NamedTuple):
    """Limits on what a partition may emit now, beside its own."""

    retries: bool = True
    new: int | None = None  # records; None: any number
    ahead: int = 0  # records that may be stored as read before they are emitted


FREE = Allowance()


class _FetchedChunk(NamedTuple):
    chunk: Chunk
    num_bytes: int
    fetched_at: float


class PartitionManager(Generic[D]):
    """One partition's records from fetched to resolved. The owner thread calls everything.

    Every record handed out is answered by one `ack` or `fail`, or by `resolve_below`; late,
    repeated and unknown answers are counted and change nothing.
    """

    def __init__(
        self,
        partition: Partition,
        position: Position,
        limits: InFlightLimits,
        retry_policy: RetryPolicy,
        rng: random.Random,
        delivery: DeliveryFactory[D],
        resumed: Resumed | None = None,
    ) -> None:
        """`resumed` says how the partition's transactions go on, if any are kept."""
        self.partition = partition
        self.delivery: D
        self.is_moving: bool  # the stored offset may be about to jump: nothing is stored then
        self._new_delivery = delivery
        self._limits = limits
        self._retry_policy = retry_policy
        self._rng = rng
        self._committed = CommitProgress(position.offset)
        self.retried = 0
        self._ahead = 0
        self._restarts = 0
        self._is_stopped = False
        self.restart(position, resumed=resumed)

    def restart(
        self, position: Position, *, is_stored: bool = True, resumed: Resumed | None = None
    ) -> None:
        """Drop in-flight records and restart at `position`. Counters are kept.

        `is_stored` says that the position is what the store holds now.
        """
        self._restarts += 1
        self.is_moving = False
        self.ledger = Ledger(position.offset)
        self.retries = RetryQueue(self._retry_policy, self._rng)
        # Each until the last completed offset has passed it.
        self._kept: deque[_FetchedChunk] = deque()
        self._num_bytes = 0  # of them
        self._emitted = 0  # how many of them are emitted as a whole
        self._taken = 0  # records emitted of the one after these
        self._uncommitted: deque[UncommittedChunk] = deque()
        self._epochs = LeaderEpochs(position)
        self._committed.restart(position.offset, is_stored=is_stored)
        self._transactions: Transactions | None = None  # those that are stored
        self.delivery = self._new_delivery(self.partition, self.ledger, self._committed, resumed)
        if self._is_stopped:
            self.delivery.stop()

    @property
    def last_completed_offset(self) -> int:
        """Storm's lastCompletedOffset: the lowest pending offset, or the next to emit if none."""
        return self.ledger.last_completed_offset

    @property
    def position(self) -> Position:
        return self._epochs.at(self.delivery.progress(self.room)[0])

    @property
    def fetch_position(self) -> Position:
        return self._epochs.at(self.ledger.fetched_to)

    @property
    def committed(self) -> int:
        return self._committed.offset

    @property
    def waiting_chunks(self) -> int:
        return len(self._kept) - self._emitted

    @property
    def room(self) -> int:
        """Records that may be emitted until a limit is reached.

        With nothing emitted there is room whatever the bytes: one larger record passes, alone.
        """
        if self._num_bytes >= self._limits.max_pending_bytes and self.ledger.emitted_count > 0:
            return 0
        return max(0, self._limits.max_pending - self.delivery.in_flight())

    @property
    def may_emit(self) -> bool:
        """Whether a record waits that may be emitted now for the first time."""
        return self.ledger.waiting > 0 and self.delivery.emit_limit(self.room, self._ahead) > 0

    @property
    def accepts_more(self) -> bool:
        return self.delivery.accepts_more(self.room)

    @property
    def is_full(self) -> bool:
        """Whether only retries may be emitted before something is resolved or stored."""
        return not self.accepts_more and not self.may_emit

    def has_enough(self, count: int, part: int = 1) -> bool:
        """Whether `count` records wait, or a `part`-th of the bytes in flight allowed are kept."""
        waiting = self.ledger.waiting
        return waiting >= count or (
            waiting > 0 and self._num_bytes * part >= self._limits.max_pending_bytes
        )

    @property
    def read(self) -> int:
        return self._committed.read

    @property
    def in_flight(self) -> int:
        """Records emitted and not resolved, those included that wait for their retry."""
        return self.ledger.pending - self.ledger.waiting

    @property
    def is_idle(self) -> bool:
        """Whether no record is unresolved, nor any that others have read awaits its commit."""
        return self.ledger.pending == 0 and not self.delivery.awaits_commit

    @property
    def has_to_store(self) -> bool:
        offset, transactions = self.delivery.progress(self.room)
        return offset > self._committed.offset or transactions != self._transactions

    @property
    def is_urgent(self) -> bool:
        return self.delivery.is_urgent(self.room, self._limits.max_pending)

    @property
    def open_transactions(self) -> Sequence[OpenTransaction]:
        transactions = self.delivery.progress(self.room)[1]
        return () if transactions is None else transactions.open

    def fetched(self, chunk: Chunk, now: float, ages: tuple[float, ...] = ()) -> None:
        """Take fetched records, without those delivered before; `UncommittedChunk` has `ages`."""
        known = int(np.searchsorted(chunk.offsets, self.ledger.fetched_to))
        if known == len(chunk):
            return
        if known:
            offsets, messages = chunk.offsets[known:], chunk.messages[known:]
            chunk = replace(chunk, offsets=offsets, messages=messages)
        self.ledger.fetched(chunk.offsets)
        lengths = np.fromiter(map(len, chunk.messages), np.int64, len(chunk))
        limit = self._limits.max_record_bytes
        if not lengths.all() or (limit is not None and lengths.max() > limit):
            chunk = replace(chunk, unusual=True)
        # Of a chunk that was cut all keys count: it is known by their sum only.
        num_bytes = int(lengths.sum()) + chunk.other_bytes
        self._kept.append(_FetchedChunk(chunk, num_bytes, now))
        last = self.ledger.fetched_to - 1
        self._uncommitted.append(UncommittedChunk(last, len(chunk), now, ages))
        self._num_bytes += num_bytes
        self._epochs.fetched(chunk.leader_epochs)
        self.delivery.on_fetched(chunk, lengths)

    def log_end(self, end: int) -> None:
        """Note the log's end: gaps before it do not block the offset (promise 11)."""
        self.ledger.pass_gap(end)
        self.delivery.on_log_end(end)

    def stop(self) -> None:
        self._is_stopped = True
        self.delivery.stop()

    def next_chunk(self, now: float, limit: int, allowance: Allowance = FREE) -> Chunk | None:
        """Hand out at most `limit` records: due retries, else new ones, else None."""
        self._ahead = allowance.ahead
        due = self.retries.due
        if due is not None and due <= now and allowance.retries:
            again = self._again(now, limit)
            if again is not None:
                return again
        allowed = min(limit, self.delivery.emit_limit(self.room, allowance.ahead))
        if allowance.new is not None:
            allowed = min(allowed, allowance.new)
        if allowed <= 0:
            return None
        chunk = self._kept[self._emitted].chunk
        messages, begin = chunk.messages, self._taken
        count = min(allowed, len(chunk) - begin)
        offsets = self.ledger.emit(count)
        if count < len(chunk):  # else its own list: what was made of it ahead is known by that
            messages = messages[begin : begin + count]
        self._taken += count
        if self._taken == len(chunk):
            self._emitted += 1
            self._taken = 0
        self._committed.read += count
        self.delivery.on_emitted(count)
        return Chunk(self.partition, offsets, messages, unusual=chunk.unusual)

    def _again(self, now: float, limit: int) -> Chunk | None:
        due = self.retries.take_due(now, limit)
        offsets = np.sort(np.array([o for o in due if self.ledger.retry(o)], np.int64))
        if not len(offsets):
            return None
        self.retried += len(offsets)
        messages = [self.message(int(o)) for o in offsets]
        return Chunk(self.partition, offsets, messages, unusual=True)

    def upcoming(self, limit: int) -> list[Chunk]:
        """Return the chunks of at most `limit` records that are likely to be emitted whole next.

        `next_chunk` then gives the same list of messages. Empty where nothing is retried: a call
        ahead is an attempt. Unplanned records are included, as they are planned whole.
        """
        if not self.delivery.retries:
            return []
        chunks: list[Chunk] = []
        room = self.room
        cut = self.delivery.emit_limit(room, self._ahead)  # no chunk reaches across it
        begin = -self._taken
        for index in range(self._emitted, len(self._kept)):
            chunk = self._kept[index].chunk
            end = begin + len(chunk)
            if end > room or len(chunk) > limit:
                break
            if begin >= 0 and not begin < cut < end:
                chunks.append(chunk)
            begin = end
        return chunks

    def ack(self, offsets: Offsets) -> int:
        before = self.ledger.last_completed_offset
        resolved = self.ledger.resolve(offsets)
        if self.ledger.last_completed_offset != before:
            self._forget_resolved()
        return resolved

    def resolve_below(self, end: int) -> int:
        """Resolve what was emitted below `end`: its transaction is committed. Return how many."""
        resolved = self.ledger.resolve_below(end)
        self._forget_resolved()
        return resolved

    def passed(self, covers: Range) -> None:
        """Go on behind a range that others have read. No record of it was fetched here.

        Raises ValueError unless it begins at the next offset to fetch, and nothing is in flight.
        """
        if (
            self.ledger.pending
            or covers.first != self.ledger.fetched_to
            or covers.end < covers.first
        ):
            found = f"{self.ledger.pending} records are pending, {self.ledger.fetched_to} is next"
            raise ValueError(f"{self.partition}: {covers} cannot be passed: {found}")
        self.ledger.pass_gap(covers.end)
        self._committed.read += covers.count or 0
        if covers.leader_epoch is not None:
            self._epochs.fetched([(covers.first, covers.leader_epoch)])
        self._forget_resolved()

    def _forget_resolved(self) -> None:
        completed = self.ledger.last_completed_offset
        while self._kept and self._kept[0].chunk.offsets[-1] < completed:
            self._num_bytes -= self._kept.popleft().num_bytes
            self._emitted -= 1
        if self.retries.failures:
            self.retries.forget_below(completed)
        self._epochs.forget_below(completed)

    def fail(
        self,
        offset: int,
        now: float,
        after_seconds: float | None = None,
        policy: Backoff | None = None,
    ) -> bool:
        """Schedule a retry of a failed record; see `RetryQueue.failed`.

        Returns False when its retries are used up: the record stays pending, and the
        caller writes its dead letter and acks it when that is durable (promise 13).
        """
        if not self.ledger.fail(offset):
            return True
        again = self.delivery.retries
        if again and self.retries.failed(offset, now, after_seconds, policy):
            return True
        self.ledger.retry(offset)
        return False

    def message(self, offset: int) -> Sized:
        """Raises KeyError unless the record is in flight."""
        found = bisect_left(self._kept, offset, key=lambda kept: kept.chunk.offsets[-1])
        if found < len(self._kept):
            chunk = self._kept[found].chunk
            index = int(np.searchsorted(chunk.offsets, offset))
            if chunk.offsets[index] == offset:
                return chunk.messages[index]
        raise KeyError(offset)

    def progress(self) -> Progress | None:
        """Return the progress to store now, or None. `stored` must be called when it is stored."""
        offset, transactions = self.delivery.progress(self.room)
        if offset <= self._committed.offset and transactions == self._transactions:
            return None
        self._committed.submit(offset, behind=self.ledger.emitted_count)
        return Progress(self._epochs.at(offset), transactions, self._restarts)

    def stored(self, progress: Progress) -> list[UncommittedChunk]:
        """Note what is stored, unless it is from before a restart; return the chunks it covers."""
        if progress.restarts != self._restarts:
            return []
        self._committed.mark(progress.position.offset)
        self._transactions = progress.transactions
        self.delivery.on_stored(progress)
        chunks = []
        while self._uncommitted and self._uncommitted[0].last_offset < self._committed.offset:
            chunks.append(self._uncommitted.popleft())
        return chunks

    def statistics(self, now: float) -> PartitionStatistics:
        oldest = self._kept[0].fetched_at if self._kept and not self.is_idle else now
        transactions = self.delivery.progress(self.room)[1]
        return PartitionStatistics(
            partition=self.partition,
            ledger=self.ledger.statistics(),
            committed=self._committed.offset,
            read=self._committed.read,
            retried=self.retried,
            pending_bytes=self._num_bytes,
            oldest_pending_seconds=max(0.0, now - oldest),
            committed_txid=None if transactions is None else transactions.committed,
            open_transactions=None if transactions is None else len(transactions.open),
        )
