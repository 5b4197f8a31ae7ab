"""A transaction, its digest, the records that wait for one, and how it resumes. Pure."""

import hashlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from partition.errors import KindChanged, SinkAhead, SinkStateLost
from partition.interfaces import StoredOffset
from partition.records import (
    Offsets,
    Partition,
    Position,
    Range,
    Resumed,
    TransactionKind,
    Transactions,
)

Lengths = npt.NDArray[np.int64]


class RangeDigest:
    """A digest by which a replay is known to have the same records: of offsets and lengths. Pure.

    BLAKE2b of 128 bits over (offset, length) pairs, little-endian, 64 bits each, however the
    records were cut into chunks. It finds compaction, retention, another log of the same name; not
    a payload changed in place, which Kafka's own checksums find.
    """

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.count = 0
        """Records that were added."""

    def add(self, offsets: Offsets, lengths: Lengths) -> None:
        pairs = np.empty((len(offsets), 2), dtype="<i8")
        pairs[:, 0] = offsets
        pairs[:, 1] = lengths
        self._hash.update(pairs.data)
        self.count += len(offsets)

    def hex(self) -> str:
        return self._hash.hexdigest()


class Unplanned:
    """Records that wait for a transaction, in the chunks in which they were fetched. Pure."""

    def __init__(self) -> None:
        self._chunks: deque[tuple[Offsets, Lengths]] = deque()
        self._num_records = 0
        self._since: float | None = None

    def __len__(self) -> int:
        return self._num_records

    def add(self, offsets: Offsets, lengths: Lengths) -> None:
        if len(offsets):
            self._chunks.append((offsets, lengths))
            self._num_records += len(offsets)

    @property
    def first(self) -> int:
        return int(self._chunks[0][0][0])

    @property
    def chunk_records(self) -> int:
        return len(self._chunks[0][0]) if self._chunks else 0

    def waited(self, now: float) -> float:
        if not self._num_records:
            return 0.0
        if self._since is None:
            self._since = now
        return now - self._since

    def fits(self, most: int, space: int, count: int, *, splits: bool) -> int:
        """Return how many records of the first chunk fit into a transaction that has `count`.

        All of them, or none. A new one takes a part of a chunk that is larger than it may be
        (`most`), and with `splits`, where no open transaction can make more room by its commit.
        """
        if count:
            return self.chunk_records if self.chunk_records <= min(most - count, space) else 0
        part = min(self.chunk_records, most)
        return max(0, min(part, space)) if part <= space or splits else 0

    def take(self, count: int) -> tuple[Offsets, Lengths]:
        offsets, lengths = self._chunks.popleft()
        if count < len(offsets):
            self._chunks.appendleft((offsets[count:], lengths[count:]))
            offsets, lengths = offsets[:count], lengths[:count]
        self._num_records -= len(offsets)
        if not self._num_records:
            self._since = None
        return offsets, lengths


@dataclass(frozen=True, slots=True)
class TransactionPolicy:
    """Size and number of one partition's transactions."""

    kind: TransactionKind = "transactional"
    max_active: int = 3  # one is committed, one is being processed to its end, one fills
    records: int = 66_000  # in a full transaction
    plan_records: int = 16_000  # as many waiting records are planned at once
    plan_seconds: float = 0.05  # or fewer that have waited so long
    by_executors: bool = False  # they read the records, of ranges planned from offsets alone


class Phase(Enum):
    FILLING = "filling"  # it takes the records that come next
    PLANNED = "planned"  # its range is fixed, and was not read to its end in this attempt
    PROCESSING = "processing"  # its records are all here, and not all of them are processed
    PROCESSED = "processed"  # its rows are ready
    COMMITTING = "committing"  # it may be committed by now, and cannot fail


@dataclass(slots=True, eq=False)
class Transaction:
    txid: int  # from 1
    attempt: int  # from 1; grows with each attempt, over restarts too
    range: Range
    phase: Phase
    stored: Range | None = None  # the range that is stored under this attempt
    cut_under: int | None = None  # leader epoch, see `is_outdated`
    # Of records that pass through here; each counts once:
    since: float = 0.0  # when the first was planned
    digest: RangeDigest = field(default_factory=RangeDigest)
    emitted: int = 0
    processed: int = 0
    by_flags: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(4, np.int64))
    """The number of processed records by their flags."""
    dead_lettered: set[int] = field(default_factory=set)  # offsets
    awaited: set[int] = field(default_factory=set)
    """Those of them whose dead letters are not durable: see `PartitionTransactions.awaits`."""

    @property
    def count(self) -> int:
        """Its records; of one that was only planned before, those that have come so far."""
        return self.digest.count if self.range.count is None else self.range.count

    @property
    def is_stored(self) -> bool:
        return self.stored is self.range or self.stored == self.range


class OutOfOrder(Exception):
    """A transaction or a group cannot be begun, committed, or failed now."""


@dataclass(frozen=True, slots=True)
class RangeRead:
    partition: Partition
    count: int
    digest: str
    leader_epoch: int | None  # None: no later one than the range is known to have


def resumed(
    partition: object,
    stored: StoredOffset,
    committed: Mapping[str, int],
    kind: TransactionKind,
) -> Resumed:
    """Return where a partition resumes, from its stored state and the txid of each sink.

    Every sink must have been fenced before `committed` was read, or a late commit of the owner
    before may still land. What every sink has is done. What one sink has and another not is
    replayed exactly, in both kinds, or the sinks would part; so is what none has if `kind` is
    transactional. If it is opaque, that is planned anew, under the same txids. Transactions of
    another kind may be stored as long as none is open. A range that is only planned is committed
    by nobody: a sink that has it is ahead of the store.

    Raises SinkAhead, SinkStateLost, KindChanged: the partition must halt.
    """
    found = stored.transactions or Transactions(kind)
    first = found.committed
    last = first + sum(1 for _ in takewhile(lambda each: each.range.is_sealed, found.open))
    for sink, txid in committed.items():
        if txid > last:
            raise SinkAhead(partition, sink, txid, last)
        if txid < first:
            raise SinkStateLost(partition, sink, txid, first)
    every = min(committed.values(), default=first)
    some = max(committed.values(), default=first)
    position = stored.position
    for each in found.open[: every - first]:
        epoch = each.range.leader_epoch
        led_by = position.leader_epoch if epoch is None else epoch
        position = Position(each.range.end, led_by, position.topic_id)
    still_open = found.open[every - first :]
    if still_open and found.kind != kind:
        raise KindChanged(partition, found.kind, kind)
    anew = tuple(each for each in still_open if kind == "opaque" and each.txid > some)
    exactly = still_open[: len(still_open) - len(anew)]
    return Resumed(
        position,
        Transactions(kind, every, exactly),
        skips={sink: txid for sink, txid in committed.items() if txid > every},
        attempts={each.txid: each.attempt for each in anew},
        least_attempt=max(stored.epoch, 1) if kind == "opaque" else 1,
    )


def is_again(was: Range, now: Range) -> bool:
    """Whether a sealed range has come again; `now` has the later leader epoch of both.

    Offsets and lengths are not all: if its last record is of a later leader than the seal knows of,
    the log was cut off before it, and the record is another one.
    """
    is_as_old = not was.count or was.leader_epoch in {None, now.leader_epoch}
    return (now.count, now.digest) == (was.count, was.digest) and is_as_old


def text_of_range(covers: Range) -> str:
    digest = "" if covers.digest is None else f", digest {covers.digest}"
    led_by = "" if covers.leader_epoch is None else f" under leader epoch {covers.leader_epoch}"
    return f"{covers}{digest}{led_by}"
