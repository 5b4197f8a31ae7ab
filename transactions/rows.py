"""Rows, digests and order of transactions, and how they resume after a restart. Pure."""

import hashlib
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, takewhile
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from partition.errors import KindChanged, SinkAhead, SinkStateLost
from partition.interfaces import StoredOffset
from partition.records import (
    Offsets,
    OpenTransaction,
    Position,
    Resumed,
    TransactionKind,
    Transactions,
)
from topology.sink import Piece

Lengths = npt.NDArray[np.int64]


class RangeDigest:
    """A digest by which a replay is known to have the same records: of offsets and lengths. Pure.

    BLAKE2b of 128 bits over (offset, length) pairs, little-endian, 64 bits each. However the
    records were cut into chunks, it is the same. It finds what can happen to a log: compaction,
    retention, another log of the same name; not a payload changed in place, which Kafka's own
    checksums find.
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
        """The lowest offset. Raises IndexError when there is none."""
        return int(self._chunks[0][0][0])

    @property
    def chunk_records(self) -> int:
        return len(self._chunks[0][0]) if self._chunks else 0

    def waited(self, now: float) -> float:
        """Seconds since the first call that found records waiting."""
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
        """Take up to `count` records of the first chunk."""
        offsets, lengths = self._chunks.popleft()
        if count < len(offsets):
            self._chunks.appendleft((offsets[count:], lengths[count:]))
            offsets, lengths = offsets[:count], lengths[:count]
        self._num_records -= len(offsets)
        if not self._num_records:
            self._since = None
        return offsets, lengths


_Numbers = npt.NDArray[np.int64]


class OrderedRows(NamedTuple):
    """Rows by ascending record; `record_ids[i]` is of row i of the concatenated pieces."""

    pieces: list[Piece]
    record_ids: _Numbers


@dataclass(slots=True)
class _Collected:
    """Pieces of one transaction."""

    pieces: list[Piece] = field(default_factory=list)
    record_ids: list[_Numbers] = field(default_factory=list)
    num_rows: int = 0
    lowest: int = 0  # record id
    highest: int = -1
    discarded: dict[int, int] = field(default_factory=dict)
    """By record id: in how many first pieces its rows are of a failed attempt."""

    def add(self, piece: Piece, record_ids: _Numbers) -> None:
        lowest = int(record_ids.min())
        self.lowest = min(self.lowest, lowest) if self.pieces else lowest
        self.highest = max(self.highest, int(record_ids.max()))
        self.pieces.append(piece)
        self.record_ids.append(record_ids)
        self.num_rows += len(record_ids)

    def kept(self) -> list[npt.NDArray[np.bool_]]:
        discarded = np.array(sorted(self.discarded), np.int64)
        pieces = np.array([self.discarded[record_id] for record_id in discarded.tolist()], np.int64)
        lengths = [len(record_ids) for record_ids in self.record_ids]
        record_ids = np.concatenate(self.record_ids)
        found = np.minimum(np.searchsorted(discarded, record_ids), len(discarded) - 1)
        piece = np.repeat(np.arange(len(lengths)), lengths)
        kept = (discarded[found] != record_ids) | (piece >= pieces[found])
        return np.split(kept, np.cumsum(lengths[:-1]))


class PendingRows:
    """Rows by partition index and transaction. The owner thread calls everything.

    Costs O(pieces), not O(rows), unless a record failed.
    """

    def __init__(self) -> None:
        self._partitions: defaultdict[int, dict[int, _Collected]] = defaultdict(dict)
        self._num_rows = 0

    @property
    def num_rows(self) -> int:
        """Rows added and not taken, including discarded ones."""
        return self._num_rows

    def add(self, piece: Piece, record_ids: _Numbers, txids: _Numbers, indexes: _Numbers) -> None:
        """Add a piece; row i is of record_ids[i], txids[i], and partition indexes[i].

        Rows of no record (-1) and of no transaction (0) are dropped. Raises ValueError when the
        arrays are not as long as the piece.
        """
        length = piece.num_rows if isinstance(piece, pa.RecordBatch) else len(piece)
        if not len(record_ids) == len(txids) == len(indexes) == length:
            raise ValueError(
                f"a piece of {length} rows came with {len(record_ids)} record ids, "
                f"{len(txids)} txids, and {len(indexes)} partition indexes"
            )
        if not length:
            return
        index, txid = int(indexes[0]), int(txids[0])
        is_one = bool((indexes == index).all()) and bool((txids == txid).all())
        if is_one and int(record_ids.min()) >= 0:
            if txid > 0:
                self._add(piece, record_ids, txid, index)
            return
        known = np.flatnonzero((record_ids >= 0) & (txids > 0))
        order = known[np.lexsort((txids[known], indexes[known]))]  # it keeps the order of rows
        changes = (np.diff(indexes[order]) != 0) | (np.diff(txids[order]) != 0)
        for part in np.split(order, np.flatnonzero(changes) + 1):
            if len(part):
                first = part[0]
                rows = rows_at(piece, part)
                self._add(rows, record_ids[part], int(txids[first]), int(indexes[first]))

    def _add(self, piece: Piece, record_ids: _Numbers, txid: int, index: int) -> None:
        self._partitions[index].setdefault(txid, _Collected()).add(piece, record_ids)
        self._num_rows += len(record_ids)

    def discard_attempt(self, record_id: int, index: int) -> None:
        """Leave out the rows of a record so far; those that come after this stay."""
        for collected in self._partitions.get(index, {}).values():
            if collected.lowest <= record_id <= collected.highest:
                collected.discarded[record_id] = len(collected.pieces)

    def take(self, index: int, txid: int) -> OrderedRows:
        """Take a transaction's rows out, without the discarded ones, sorted by record.

        Results of async bolts, and retries, come behind their successors.
        """
        collected = self._partitions[index].pop(txid, None)
        if collected is None:
            return OrderedRows([], np.empty(0, np.int64))
        self._num_rows -= collected.num_rows
        if not collected.discarded:
            return in_order(collected.pieces, np.concatenate(collected.record_ids))
        pieces: list[Piece] = []
        record_ids = [np.empty(0, np.int64)]
        for piece, its_record_ids, kept in zip(
            collected.pieces, collected.record_ids, collected.kept(), strict=True
        ):
            if kept.all():
                pieces.append(piece)
                record_ids.append(its_record_ids)
            elif kept.any():
                pieces.append(rows_at(piece, np.flatnonzero(kept)))
                record_ids.append(its_record_ids[kept])
        return in_order(pieces, np.concatenate(record_ids))

    def drop(self, index: int) -> None:
        dropped = self._partitions.pop(index, {})
        self._num_rows -= sum(each.num_rows for each in dropped.values())


def rows_at(piece: Piece, indices: npt.NDArray[np.intp]) -> Piece:
    if isinstance(piece, pa.RecordBatch):
        kept = np.zeros(piece.num_rows, np.bool_)
        kept[indices] = True
        return piece.filter(pa.array(kept))
    return [piece[index] for index in indices.tolist()]


def in_order(pieces: list[Piece], record_ids: _Numbers) -> OrderedRows:
    """Sort rows by record; those of one record stay in the order they came in."""
    if len(record_ids) < 2 or bool((record_ids[1:] >= record_ids[:-1]).all()):  # noqa: PLR2004 - two to compare
        return OrderedRows(pieces, record_ids)
    order = np.argsort(record_ids, kind="stable").astype(np.int64)
    return OrderedRows(_sorted(pieces, order), record_ids[order])


def _sorted(pieces: Sequence[Piece], order: _Numbers) -> list[Piece]:
    lists = [piece for piece in pieces if isinstance(piece, list)]
    if len(lists) == len(pieces):
        rows = list(chain.from_iterable(lists))
        return [[rows[index] for index in order.tolist()]]
    batches = [piece for piece in pieces if isinstance(piece, pa.RecordBatch)]
    if len(batches) == len(pieces) and all(b.schema == batches[0].schema for b in batches):
        whole = pa.Table.from_batches(batches).combine_chunks()
        return [*whole.take(order).combine_chunks().to_batches()]
    return _by_runs(pieces, order)


def _by_runs(pieces: Sequence[Piece], order: _Numbers) -> list[Piece]:
    """Rows of different kinds: a slice for each run of rows that stood together already."""
    lengths = np.array([len(piece) for piece in pieces])
    starts = np.cumsum(lengths) - lengths
    piece_of = np.repeat(np.arange(len(pieces)), lengths)[order]
    breaks = np.flatnonzero((np.diff(order) != 1) | (np.diff(piece_of) != 0)) + 1
    slices: list[Piece] = []
    for run in np.split(np.arange(len(order)), breaks):
        piece = pieces[piece_of[run[0]]]
        first = int(order[run[0]] - starts[piece_of[run[0]]])
        if isinstance(piece, list):
            slices.append(piece[first : first + len(run)])
        else:
            slices.append(piece.slice(first, len(run)))
    return slices


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
        position = _after(each, position)
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


def _after(done: OpenTransaction, before: Position) -> Position:
    epoch = done.range.leader_epoch
    if epoch is None:
        epoch = before.leader_epoch
    return Position(done.range.end, epoch, before.topic_id)
