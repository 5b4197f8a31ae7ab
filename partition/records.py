"""Records of a partition: their ids, chunks, resume keys, and the transactions they are in."""

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from operator import methodcaller
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Offsets: TypeAlias = npt.NDArray[np.int64]
RecordIds: TypeAlias = npt.NDArray[np.int64]
Places: TypeAlias = slice | npt.NDArray[np.bool_]
R = TypeVar("R", int, RecordIds)
OFFSET_BITS = 48
OFFSET_MASK = (1 << OFFSET_BITS) - 1
MAX_PARTITION_INDEX = (1 << 63 - OFFSET_BITS) - 1  # of no partition: what is no record has it
WRITTEN, DEAD_LETTERED = 1, 2  # flags: a row of a record went to a sink, a dead letter was sent
_SAMPLED = 16
_ask_headers = methodcaller("headers")


class Partition(NamedTuple):
    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.number}]"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of one partition handed over at once.

    `offsets` ascend strictly and may have gaps (compaction, transaction markers). `len` of a
    message is its payload's bytes. `leader_epochs` holds (first offset, leader epoch) of each run
    of records that one leader wrote, if known. `unusual`: one of the messages may be empty or too
    large. `other_bytes`: of keys, and of headers by an estimate.
    """

    partition: Partition
    offsets: Offsets
    messages: list[Sized]
    leader_epochs: tuple[tuple[int, int], ...] = ()
    unusual: bool = False
    other_bytes: int = 0

    def __len__(self) -> int:
        return len(self.messages)


@dataclass(frozen=True, slots=True)
class Position:
    """The resume key: an offset names a record only within one incarnation of a log.

    A topic that was deleted and created again has another id (KIP-516); a log that was cut off
    has a later leader epoch from an earlier offset on (KIP-101).
    """

    offset: int  # the next to read
    # Of the record before it, or, where none was read, of the leader then; None: not known.
    leader_epoch: int | None = None
    topic_id: str | None = None  # None: not known


def later_epoch(epoch: int | None, other: int | None) -> int | None:
    if epoch is None or other is None:
        return other if epoch is None else epoch
    return max(epoch, other)


class LeaderEpochs:
    """Gives an offset its resume key: the leader epoch of the record before it."""

    def __init__(self, start: Position) -> None:
        self._start = start
        self._runs: deque[tuple[int, int]] = deque()  # from which offset on, which

    def fetched(self, runs: Iterable[tuple[int, int]]) -> None:
        for first, epoch in runs:
            if not self._runs or self._runs[-1][1] != epoch:
                self._runs.append((first, epoch))

    def at(self, offset: int) -> Position:
        epoch = self.fetched_before(offset)
        if epoch is None:
            epoch = self._start.leader_epoch
        return Position(offset, epoch, self._start.topic_id)

    def fetched_before(self, offset: int) -> int | None:
        epoch = None
        for first, led_by in self._runs:
            if first >= offset:
                break
            epoch = led_by
        return epoch

    def forget_below(self, offset: int) -> None:
        while len(self._runs) > 1 and self._runs[1][0] < offset:
            self._runs.popleft()


def record_ids_of(index: int, offsets: RecordIds) -> RecordIds:
    return offsets | index << OFFSET_BITS


def partition_index_of(record_id: R) -> R:
    return record_id >> OFFSET_BITS


def offset_of(record_id: R) -> R:
    return record_id & OFFSET_MASK


def by_partition(record_ids: RecordIds) -> Iterator[tuple[int, Offsets, Places]]:
    """Yield partition indexes, -1 for no record's; the offsets of each, and their places."""
    indexes, offsets = partition_index_of(record_ids), offset_of(record_ids)
    if len(indexes) and (indexes == indexes[0]).all():
        yield int(indexes[0]), offsets, slice(None)
        return
    for index in (np.flatnonzero(np.bincount(indexes + 1)) - 1).tolist():
        places = indexes == index
        yield index, offsets[places], places


def other_bytes(messages: Sequence[Any], key: Callable[[Any], bytes | None]) -> int:
    """Return the bytes of the messages' keys and, by a sample of 16, of their headers.

    Asking the client for headers costs as much as parsing a record.
    """
    keys = sum(map(len, filter(None, map(key, messages))))
    sample = messages[:: max(len(messages) // _SAMPLED, 1)]
    return keys + sum(map(_header_bytes, sample)) * len(messages) // len(sample)


def _header_bytes(message: Any) -> int:
    try:
        headers = _ask_headers(message)
    except (SystemError, UnicodeDecodeError) as error:  # topology.record.headers_of says why
        message.set_headers(error.with_traceback(None))
        return 0
    return sum(len(name) + len(value or b"") for name, value in headers or ())


def epoch_runs(
    messages: Sequence[Any], offsets: Offsets, epoch: Callable[[Any], int | None]
) -> tuple[tuple[int, int], ...]:
    """Return (first offset, leader epoch) of each run; () where an epoch is not known.

    Epochs never fall within a log: it asks the first and the last message, and bisects.
    """
    first, last = epoch(messages[0]), epoch(messages[-1])
    if first is None or last is None:
        return ()
    if first == last:
        return ((int(offsets[0]), first),)
    runs = []
    start = 0
    while start < len(messages):
        current = epoch(messages[start])
        if current is None:
            return ()
        runs.append((int(offsets[start]), current))
        start = bisect_right(messages, current, lo=start, key=lambda each: epoch(each) or 0)
    return tuple(runs)


TransactionKind: TypeAlias = Literal["transactional", "opaque"]

_DIGEST = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition, from `first` up to `end`, which it excludes.

    A planned one (the spark engine's, before it was read) has neither count nor digest, and no
    sink can have committed it; a sealed one has both.
    """

    first: int
    end: int
    count: int | None = None  # records; gaps are none
    digest: str | None = None  # 32 hex digits, of the records' offsets and lengths
    leader_epoch: int | None = None  # no record of it has a later one; None: not known

    @property
    def is_sealed(self) -> bool:
        return self.count is not None

    def __str__(self) -> str:
        held = "" if self.count is None else f" ({self.count} records)"
        return f"offsets {self.first} to {self.end}{held}"


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A stored transaction that is not known to be committed in every sink."""

    txid: int
    attempt: int  # from 1; grows with each try, over restarts too
    range: Range


@dataclass(frozen=True, slots=True)
class Transactions:
    """A partition's open transactions by txid; each begins where the one before it ends.

    All up to the txid `committed` are in every sink.
    """

    kind: TransactionKind
    committed: int = 0
    open: tuple[OpenTransaction, ...] = ()

    def checked(self, offset: int) -> "Transactions":
        """Return self. Raises ValueError, with what is wrong, unless it goes on from `offset`."""
        if self.committed < 0:
            raise ValueError(f"txid {self.committed}, expected 0 or more")
        begin, txid = offset, self.committed
        for each in self.open:
            covers, txid = each.range, txid + 1
            if each.txid != txid:
                raise ValueError(f"txid {each.txid} where {txid} was to come")
            if covers.first != begin or covers.end <= covers.first:
                found = f"txid {txid} covers {covers.first} to {covers.end}"
                raise ValueError(f"{found}; it was to begin at {begin} and not be empty")
            if each.attempt < 1:
                raise ValueError(f"txid {txid} has attempt {each.attempt}, expected 1 or more")
            _check_seal(txid, covers)
            begin = covers.end
        return self

    @property
    def is_promised(self) -> bool:
        """Whether open ranges must be replayed unchanged: the lowest of them is sealed."""
        return bool(self.open) and self.open[0].range.is_sealed

    @property
    def first(self) -> int | None:
        return self.open[0].range.first if self.open else None


def _check_seal(txid: int, covers: Range) -> None:
    if covers.leader_epoch is not None and covers.leader_epoch < 0:
        raise ValueError(f"txid {txid} has leader epoch {covers.leader_epoch}")
    if covers.count is None or covers.digest is None:
        if (covers.count, covers.digest) != (None, None):
            raise ValueError(f"txid {txid} has only one of its count and digest")
        return
    if not 0 <= covers.count <= covers.end - covers.first:
        found = f"{covers.count} records in {covers.end - covers.first} offsets"
        raise ValueError(f"txid {txid} has {found}")
    if _DIGEST.fullmatch(covers.digest) is None:
        raise ValueError(f"txid {txid} has digest {covers.digest[:40]!r}, not 32 hex digits")


@dataclass(frozen=True, slots=True)
class Resumed:
    """A partition's transactions to go on with after a restart or a takeover."""

    position: Position  # where reading begins
    transactions: Transactions  # what is open from there on, to be replayed as it stands
    skips: Mapping[str, int] = field(default_factory=dict)  # by sink, the open txid it has already
    attempts: Mapping[int, int] = field(default_factory=dict)  # of those planned anew (opaque)
    # The first attempt of a transaction; the owner's epoch if opaque: what an owner before had
    # begun may be stored nowhere any more.
    least_attempt: int = 1

    def anew(self) -> "Resumed":
        known = self.transactions
        attempts = {**self.attempts, **{each.txid: each.attempt for each in known.open}}
        return replace(self, transactions=replace(known, open=()), attempts=attempts)
