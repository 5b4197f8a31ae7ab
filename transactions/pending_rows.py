"""Rows of open transactions, in the order of their records. Pure."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from partition.records import RecordIds, partition_index_of
from topology.executor import select
from topology.sink import Piece


class OrderedRows(NamedTuple):
    """Rows by ascending record; `record_ids[i]` is of row i of the concatenated pieces."""

    pieces: list[Piece]
    record_ids: RecordIds


@dataclass(slots=True)
class _Collected:
    pieces: list[Piece] = field(default_factory=list)
    record_ids: list[RecordIds] = field(default_factory=list)
    num_rows: int = 0
    discarded: dict[int, int] = field(default_factory=dict)
    """By record id: in how many first pieces its rows are of a failed attempt."""

    def without_discarded(self) -> tuple[list[Piece], RecordIds]:
        record_ids = np.concatenate(self.record_ids)
        if not self.discarded:
            return self.pieces, record_ids
        discarded = np.array(sorted(self.discarded), np.int64)
        pieces = np.array([self.discarded[record_id] for record_id in discarded.tolist()], np.int64)
        found = np.minimum(np.searchsorted(discarded, record_ids), len(discarded) - 1)
        piece = np.repeat(np.arange(len(self.pieces)), list(map(len, self.pieces)))
        kept = np.flatnonzero((discarded[found] != record_ids) | (piece >= pieces[found]))
        return rows_at(self.pieces, kept), record_ids[kept]


class PendingRows:
    """Rows by partition index and transaction. The owner thread calls everything.

    Costs O(pieces), not O(rows), unless a record failed.
    """

    def __init__(self) -> None:
        self._partitions: defaultdict[int, dict[int, _Collected]] = defaultdict(dict)
        self.num_rows = 0
        """Rows added and not taken, including discarded ones."""

    def add(self, piece: Piece, record_ids: RecordIds, txids: RecordIds) -> None:
        """Add a piece; row i is of record_ids[i] and txids[i].

        Rows of no transaction (0) are dropped. Raises ValueError when the arrays are not as long
        as the piece.
        """
        if not len(record_ids) == len(txids) == len(piece):
            raise ValueError(
                f"a piece of {len(piece)} rows came with {len(record_ids)} record ids and "
                f"{len(txids)} txids"
            )
        if not len(piece):
            return
        indexes = partition_index_of(record_ids)
        index, txid = int(indexes[0]), int(txids[0])
        if txid > 0 and (txids == txid).all() and (indexes == index).all():
            self._add(piece, record_ids, txid, index)
            return
        known = np.flatnonzero(txids > 0)
        order = known[np.lexsort((txids[known], indexes[known]))]  # it keeps the order of rows
        changes = (np.diff(indexes[order]) != 0) | (np.diff(txids[order]) != 0)
        for part in np.split(order, np.flatnonzero(changes) + 1) if len(order) else ():
            rows = select(piece, part)
            self._add(rows, record_ids[part], int(txids[part[0]]), int(indexes[part[0]]))

    def _add(self, piece: Piece, record_ids: RecordIds, txid: int, index: int) -> None:
        collected = self._partitions[index].setdefault(txid, _Collected())
        collected.pieces.append(piece)
        collected.record_ids.append(record_ids)
        collected.num_rows += len(piece)
        self.num_rows += len(piece)

    def discard_attempt(self, record_id: int) -> None:
        """Leave out the rows of a record so far; those that come after this stay."""
        for collected in self._partitions.get(partition_index_of(record_id), {}).values():
            collected.discarded[record_id] = len(collected.pieces)

    def take(self, index: int, txid: int) -> OrderedRows:
        """Take a transaction's rows out, without the discarded ones, sorted by record.

        Results of async bolts, and retries, come behind their successors.
        """
        collected = self._partitions[index].pop(txid, None)
        if collected is None:
            return OrderedRows([], np.empty(0, np.int64))
        self.num_rows -= collected.num_rows
        return in_order(*collected.without_discarded())

    def drop(self, index: int) -> None:
        dropped = self._partitions.pop(index, {})
        self.num_rows -= sum(each.num_rows for each in dropped.values())


def rows_at(pieces: Sequence[Piece], indices: RecordIds) -> list[Piece]:
    """Return the rows at these indices, ascending, in the concatenation of pieces."""
    found: list[Piece] = []
    start = 0
    for piece in pieces:
        low, high = np.searchsorted(indices, [start, start + len(piece)])
        if high - low == len(piece):
            found.append(piece)
        elif high > low:
            found.append(select(piece, indices[low:high] - start))
        start += len(piece)
    return found


def in_order(pieces: list[Piece], record_ids: RecordIds) -> OrderedRows:
    """Sort rows by record; those of one record stay in the order they came in."""
    if (record_ids[1:] >= record_ids[:-1]).all():
        return OrderedRows(pieces, record_ids)
    order = np.argsort(record_ids, kind="stable").astype(np.int64)
    return OrderedRows(_sorted(pieces, order), record_ids[order])


def _sorted(pieces: Sequence[Piece], order: RecordIds) -> list[Piece]:
    lists = [piece for piece in pieces if isinstance(piece, list)]
    if len(lists) == len(pieces):
        rows = list(chain.from_iterable(lists))
        return [[rows[index] for index in order.tolist()]]
    batches = [piece for piece in pieces if isinstance(piece, pa.RecordBatch)]
    if len(batches) == len(pieces) and all(b.schema == batches[0].schema for b in batches):
        whole = pa.Table.from_batches(batches).combine_chunks()
        return [*whole.take(order).combine_chunks().to_batches()]
    return _by_runs(pieces, order)


def _by_runs(pieces: Sequence[Piece], order: RecordIds) -> list[Piece]:
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
