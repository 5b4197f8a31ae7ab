"""Rows of open transactions, in the order of their records. Pure."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from topology.sink import Piece

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

    def valid_rows(self) -> list[npt.NDArray[np.bool_]]:
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
            collected.pieces, collected.record_ids, collected.valid_rows(), strict=True
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
    if (record_ids[1:] >= record_ids[:-1]).all():
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
