"""The PartitionManager: hands out one partition's records and says what may be committed.

Modelled on storm-kafka's PartitionManager (1.2.3). It differs where Storm lost data or
stood still: the payloads of records in flight stay here, so a retry runs from memory
and never seeks; the window bounds what lies between the stored offset and the last emitted
record; nothing is skipped here because it is far behind (`partition.opening` does, when it
is told to, and tells).
"""

import random
from collections.abc import Sized
from dataclasses import dataclass, replace

import numpy as np

from partition.ahead import Ahead
from partition.chunk import Chunk, Offsets, Partition
from partition.gate import Gate, MakeGate
from partition.ledger import Ledger
from partition.payloads import Payloads
from partition.position import LeaderEpochs, Position
from partition.queue import ChunkQueue
from partition.retries import Retries, RetryPolicy, RetryQueue
from partition.statistics import PartitionStatistics
from partition.transaction import Resumed
from partition.unstored import Unstored

MAX_PENDING = 200_000
MAX_PENDING_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Window:
    """How far a partition may run ahead of its frontier."""

    max_pending: int = MAX_PENDING  # records
    max_pending_bytes: int = MAX_PENDING_BYTES  # of values and keys
    max_record_bytes: int | None = None  # of a value; a larger record is no usual one


class PartitionManager:
    """One partition's records from fetched to resolved. The owner thread calls everything.

    `next` gives due retries first, then new records; retries are exempt from the
    window. Every record handed out is answered by one `ack` or `fail`; late, repeated
    and unknown answers are counted and change nothing.

    With `commit_ahead` (at most once) the place behind some of the records that wait, as many
    as `allow_ahead` says, is stored before they are emitted, and only what lies below the
    stored offset is. A crash repeats nothing then, and loses what was stored and not
    processed: at most the window, which reaches from the frontier. Nothing is tried twice.

    With a gate (exactly once) only what it has opened is emitted, which lies in a stored
    transaction; records are resolved by `resolve_to` once theirs is committed, and the offset
    that is stored is where the lowest open transaction begins.
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
        make_gate: MakeGate | None = None,
        resumed: Resumed | None = None,
    ) -> None:
        """With `make_gate`, `resumed` says how the partition's transactions go on."""
        self.partition = partition
        self.gate: Gate | None = None
        self.is_moving: bool
        """Whether the stored offset may be about to jump: nothing of it is stored then."""
        self._make_gate = make_gate
        self._ahead = Ahead() if commit_ahead else None
        self._window = window
        self._retry_policy = retry_policy
        self._rng = rng
        self._stored = Unstored(position.offset)
        self._retried = 0
        self.restart(position, resumed=resumed)

    def restart(
        self, position: Position, *, stored: bool = True, resumed: Resumed | None = None
    ) -> None:
        """Forget what is in flight, and go on from `position`. The counts stay.

        `stored` says that the position is what the store holds now; `resumed` is for the gate.
        """
        self.is_moving = False
        self._ledger = Ledger(position.offset)
        self._retries = RetryQueue(self._retry_policy, self._rng)
        self._payloads = Payloads()
        self._queue = ChunkQueue()
        if stored:
            self._stored.restart(position.offset)
        if self._ahead is not None:  # what is on its way to the store is of the place before
            self._stored.forget_submitted(position.offset)
        self._epochs = LeaderEpochs(position)
        if self._make_gate is not None and resumed is not None:
            self.gate = self._make_gate(self.partition, resumed, lambda: self.room)

    @property
    def frontier(self) -> int:
        """The next offset to read after a crash if nothing may be lost."""
        return self._ledger.frontier

    @property
    def storable(self) -> int:
        """The offset that may be stored now: the frontier, or with `commit_ahead` beyond it.

        With a gate it is where the lowest open transaction begins; gaps may lie behind it.
        """
        if self._ahead is not None:
            return self._ahead.storable(self._ledger, self._stored_to, self.room)
        begins_at = None if self.gate is None else self.gate.begins_at
        return self._ledger.frontier if begins_at is None else begins_at

    @property
    def position(self) -> Position:
        """The frontier with its resume key; with a gate it may lie before the frontier's gap."""
        position = self._epochs.at(self._ledger.frontier)
        return position if self.gate is None else replace(position, offset=self.storable)

    @property
    def fetch_position(self) -> Position:
        """The next offset to fetch, with its resume key."""
        return self._epochs.at(self._ledger.fetched_to)

    @property
    def emitted_to(self) -> int:
        """The next offset to emit."""
        return self._ledger.emitted_to

    @property
    def committed(self) -> int:
        """The frontier that was stored last."""
        return self._stored.offset

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
        return len(self._queue)

    @property
    def uncommitted(self) -> int:
        """Records emitted behind what is stored: what a crash would repeat."""
        return self._stored.unstored

    @property
    def is_full(self) -> bool:
        """Whether the window is used up, so that only retries may be emitted (promise 10).

        It reaches from what is stored, not only from the frontier: with the store away a
        partition runs on to the window's end and then waits (promise 15). With nothing
        emitted it is not full of bytes: one record larger than that passes, alone.

        With a gate: whether nothing may be emitted before a transaction is committed.
        """
        if self.gate is not None:
            return self.gate.is_shut and not self.may_emit
        return self.room == 0

    @property
    def takes_more(self) -> bool:
        """Whether more records are of use before others are resolved."""
        return not (self.is_full if self.gate is None else self.gate.is_shut)

    def has_enough(self, count: int) -> bool:
        """Whether so many records wait, or, with a gate, as many bytes as the window allows."""
        if self._ledger.waiting >= count:
            return True
        is_large = self._payloads.num_bytes >= self._window.max_pending_bytes
        return self.gate is not None and self.has_waiting and is_large

    @property
    def read(self) -> int:
        """Records emitted for the first time."""
        return self._stored.read

    @property
    def retried(self) -> int:
        """Emissions after the first."""
        return self._retried

    @property
    def in_flight(self) -> int:
        """Records emitted and not resolved, those included that wait for their retry."""
        return self._ledger.pending - self._ledger.waiting

    @property
    def has_to_store(self) -> bool:
        """Whether what is stored is not what could be."""
        if self.gate is not None and self.gate.has_to_store:
            return True
        return self.storable > self._stored.offset

    @property
    def room(self) -> int:
        """Records that may be emitted until the window is used up, by records or by bytes."""
        used_bytes = self._payloads.num_bytes if self._ledger.window > 0 else 0
        if used_bytes >= self._window.max_pending_bytes:
            return 0
        used = self.uncommitted if self._ahead is None else self._ledger.window
        return max(0, self._window.max_pending - used)

    @property
    def _emits_to(self) -> int | None:
        """Only records below it may be emitted; None: as many as the window has room for."""
        if self._ahead is not None:
            return self._stored.offset
        return None if self.gate is None else min(self.gate.open_to, self.gate.ends_at)

    @property
    def _stored_to(self) -> int:
        """What waits below it is stored as read or planned, or on its way to the store."""
        if self._ahead is not None:
            return max(self._stored.offset, self._stored.submitted)
        planned = () if self.gate is None else self.gate.to_store().open
        return planned[-1].range.end if planned else 0

    @property
    def may_emit(self) -> bool:
        """Whether a record waits that may be emitted now for the first time."""
        emits_to = self._emits_to
        if emits_to is None:
            return self.has_waiting and not self.is_full
        return self.has_waiting and self.emitted_to < emits_to

    @property
    def has_stored_waiting(self) -> bool:
        """Whether records wait that are stored as read, or planned, or about to be.

        At most once a crash would lose them, and so would an end that does not wait for them;
        with a gate their transaction could not be committed.
        """
        return self.has_waiting and self.emitted_to < self._stored_to

    @property
    def should_commit(self) -> bool:
        """Whether waiting for the interval may stall: half of the window is not stored.

        With `commit_ahead`: at most half of what is allowed ahead is stored, and more could be.
        With a gate also: something is planned.
        """
        moved = self.storable > self._stored.offset
        if self._ahead is not None:
            more = self.has_waiting and moved
            return more and self._ahead.should_store(self._ledger, self._stored_to)
        if self.gate is not None and self.gate.is_due:
            return True
        return moved and 2 * self.uncommitted >= self._window.max_pending

    @property
    def is_idle(self) -> bool:
        """Whether no record is unresolved, nor any that others have read awaits its commit."""
        is_read = self.gate is not None and self.gate.awaits_commit
        return self._ledger.pending == 0 and not is_read

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
        # Of a chunk that was cut all keys count: it is known by their sum only.
        self._payloads.keep(chunk, int(lengths.sum()) + chunk.other_bytes, now)
        self._queue.add(chunk)
        self._epochs.fetched(chunk.leader_epochs)
        if self.gate is not None:
            self.gate.offered(chunk.offsets, lengths, chunk.leader_epochs)

    def reached(self, end: int) -> None:
        """Learn that the log ends at `end`: gaps before it hold nothing back."""
        self._ledger.pass_gap(end)
        if self.gate is not None:
            self.gate.reached(end)

    def allow_ahead(self, count: int) -> None:
        """With `commit_ahead`: store so many records more than are emitted; none at first.

        What is stored ahead already stays so.
        """
        if self._ahead is not None:
            self._ahead.count = count

    def end(self) -> None:
        """Store nothing more ahead: what is stored already is the last that is emitted."""
        if self._ahead is not None:
            self._ahead.is_ending = True

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
        emits_to = self._emits_to  # what lies below it had room when it was stored
        room = self.room if emits_to is None else self._ledger.waiting_below(emits_to)
        offsets = self._ledger.emit(min(limit, room, self._queue.first))
        messages, unusual = self._queue.take(len(offsets))
        self._stored.read += len(offsets)
        if self.gate is not None:
            self.gate.emitted(len(offsets))
        return Chunk(self.partition, offsets, messages, unusual=unusual)

    def upcoming(self, limit: int) -> list[Chunk]:
        """The chunks of at most `limit` records that, as things stand, are handed out whole next.

        `next_new` then gives the same list of messages. At most once nothing is foreseen; with
        a gate also what is not planned yet, as it is planned whole.
        """
        if self._ahead is not None or (self.gate is None and self.is_full):
            return []
        return self._queue.upcoming(limit, self.room, self._emits_to)

    def ack(self, offsets: Offsets) -> int:
        """Resolve records; return how many were in flight."""
        before = self._ledger.frontier
        resolved = self._ledger.resolve(offsets)
        if self._ledger.frontier != before:
            self._forget_resolved()
        return resolved

    def resolve_to(self, end: int) -> int:
        """Resolve what was emitted below `end`: its transaction is committed. Return how many."""
        resolved = self._ledger.resolve_below(end)
        self._forget_resolved()
        return resolved

    def passed(self, first: int, end: int, count: int, leader_epoch: int | None) -> None:
        """Learn that the next offsets are done elsewhere: `count` records, none fetched here.

        `leader_epoch` is that of the last of them. Raises ValueError unless `first` is the next
        offset to fetch, and nothing is in flight.
        """
        if self._ledger.pending or first != self._ledger.fetched_to or end < first:
            found = f"{self._ledger.pending} records are pending, {self._ledger.fetched_to} is next"
            raise ValueError(f"{self.partition}: {first} to {end} cannot be passed: {found}")
        self._ledger.pass_gap(end)
        self._stored.read += count
        if leader_epoch is not None:
            self._epochs.fetched([(first, leader_epoch)])
        self._forget_resolved()

    def _forget_resolved(self) -> None:
        """Let go of what is kept of the records below the frontier."""
        frontier = self._ledger.frontier
        self._payloads.forget_below(frontier)
        self._retries.forget_below(frontier)
        self._epochs.forget_below(frontier)

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
        again = self._ahead is None
        if again and self._retries.failed(offset, now, after_seconds, policy):
            return True
        self._ledger.retry(offset)
        return False

    def processed(self, offsets: Offsets) -> None:
        """Learn that records are done, but for the transaction they are in."""
        self._ledger.processed(offsets)

    def comes_again(self, offset: int) -> bool:
        """Whether a record is, or may yet be, tried."""
        return self._ledger.comes_again(offset)

    def attempts(self, offset: int) -> int:
        """How often the record has been tried, this time included."""
        return self._retries.attempts(offset)

    def message(self, offset: int) -> Sized:
        """The message of a record in flight. Raises KeyError when it is not."""
        return self._payloads.message(offset)

    def submit(self) -> Position:
        """The position to store now; `mark_committed` tells when it is stored."""
        position = self.position if self._ahead is None else self._epochs.at(self.storable)
        self._stored.submit(position.offset, behind=self._ledger.window)
        return position

    def mark_committed(self, offset: int) -> None:
        """Learn that `offset` is stored."""
        if self._ahead is None or offset == self._stored.submitted:  # not before a restart
            self._stored.mark(offset)

    def statistics(self, now: float) -> PartitionStatistics:
        """What a user may see of this partition; the log's side is the reader's to add."""
        oldest = None if self.is_idle else self._payloads.oldest_at
        transactions = None if self.gate is None else self.gate.to_store()
        return PartitionStatistics(
            partition=self.partition,
            ledger=self._ledger.statistics(),
            committed=self._stored.offset,
            read=self._stored.read,
            retried=self._retried,
            pending_bytes=self._payloads.num_bytes,
            oldest_pending_seconds=0.0 if oldest is None else max(0.0, now - oldest),
            committed_txid=None if transactions is None else transactions.committed,
            open_transactions=None if transactions is None else len(transactions.open),
        )
