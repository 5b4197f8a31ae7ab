"""The rows of open transactions on their way to one sink. Pure."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from topology.sink import Piece

_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Taken:
    """One transaction's rows; `owners[i]` is the record of row i of the concatenated pieces."""

    pieces: list[Piece]
    record_ids: _Numbers
    num_rows: int


@dataclass(slots=True)
class _Collected:
    """Pieces that were added of one transaction."""

    pieces: list[Piece] = field(default_factory=list)
    record_ids: list[_Numbers] = field(default_factory=list)
    num_rows: int = 0
    lowest: int = 0  # owner
    highest: int = -1
    voids: dict[int, int] = field(default_factory=dict)  # by owner: of how many first pieces

    def add(self, piece: Piece, record_ids: _Numbers, lowest: int, highest: int) -> None:
        self.lowest = min(self.lowest, lowest) if self.pieces else lowest
        self.highest = max(self.highest, highest)
        self.pieces.append(piece)
        self.record_ids.append(record_ids)
        self.num_rows += len(record_ids)

    def kept(self) -> list[npt.NDArray[np.bool_]]:
        """Of each piece, which rows are not void."""
        void = np.array(sorted(self.voids), np.int64)
        pieces = np.array([self.voids[record_id] for record_id in void.tolist()], np.int64)
        lengths = [len(record_ids) for record_ids in self.record_ids]
        record_ids = np.concatenate(self.record_ids)
        place = np.minimum(np.searchsorted(void, record_ids), len(void) - 1)
        piece = np.repeat(np.arange(len(lengths)), lengths)
        kept = (void[place] != record_ids) | (piece >= pieces[place])
        return np.split(kept, np.cumsum(lengths[:-1]))


class Rows:
    """Rows by line and transaction. Costs O(pieces), not O(rows), unless a record failed.

    A line is named by its place, a record by its owner: a number that is its own among all
    places. One owner, the thread that has the acker, calls everything.
    """

    def __init__(self) -> None:
        self._lines: defaultdict[int, dict[int, _Collected]] = defaultdict(dict)
        self._num_rows = 0

    @property
    def num_rows(self) -> int:
        """Rows added and not taken, void ones included."""
        return self._num_rows

    def add(self, piece: Piece, record_ids: _Numbers, txids: _Numbers, places: _Numbers) -> None:
        """Take a piece whose row i is of record owners[i], transaction txids[i], line places[i].

        Rows of no record (-1) and of no transaction (0) are dropped. Raises ValueError when the
        arrays are not as long as the piece.
        """
        length = piece.num_rows if isinstance(piece, pa.RecordBatch) else len(piece)
        if not len(record_ids) == len(txids) == len(places) == length:
            raise ValueError(
                f"a piece of {length} rows came with {len(record_ids)} record ids, "
                f"{len(txids)} txids, and {len(places)} places"
            )
        if not length:
            return
        place, txid, lowest = int(places[0]), int(txids[0]), int(record_ids.min())
        if lowest >= 0 and (places == place).all() and (txids == txid).all():
            if txid > 0:
                self._add(piece, record_ids, txid, place)
            return
        known = np.flatnonzero((record_ids >= 0) & (txids > 0))
        order = known[np.lexsort((txids[known], places[known]))]  # it keeps the order of rows
        sorted_places, sorted_txids = places[order], txids[order]
        changes = (np.diff(sorted_places) != 0) | (np.diff(sorted_txids) != 0)
        for part in np.split(order, np.flatnonzero(changes) + 1):
            if len(part):
                first = part[0]
                self._add(
                    rows_at(piece, part), record_ids[part], int(txids[first]), int(places[first])
                )

    def void(self, record_id: int, place: int) -> None:
        """Leave out what was added of this record so far; what comes after this stays."""
        for collected in self._lines.get(place, {}).values():
            if collected.lowest <= record_id <= collected.highest:
                collected.voids[record_id] = len(collected.pieces)

    def take(self, place: int, txid: int) -> Taken:
        """Give and forget a transaction's rows, in the order of their records, less the void."""
        collected = self._lines[place].pop(txid, None)
        if collected is None:
            return Taken([], np.empty(0, np.int64), 0)
        self._num_rows -= collected.num_rows
        if not collected.voids:
            return _taken(collected.pieces, np.concatenate(collected.record_ids))
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
        return _taken(pieces, np.concatenate(record_ids))

    def drop(self, place: int) -> None:
        """Forget a line's rows: it is lost."""
        dropped = self._lines.pop(place, {})
        self._num_rows -= sum(each.num_rows for each in dropped.values())

    def _add(self, piece: Piece, record_ids: _Numbers, txid: int, place: int) -> None:
        collected = self._lines[place].setdefault(txid, _Collected())
        collected.add(piece, record_ids, int(record_ids.min()), int(record_ids.max()))
        self._num_rows += len(record_ids)


def _taken(pieces: list[Piece], record_ids: _Numbers) -> Taken:
    """Sort: answers of async bolts, and retries, come behind their successors until here."""
    ordered, of_rows = in_order(pieces, record_ids)
    return Taken(ordered, of_rows, len(of_rows))


def rows_at(piece: Piece, places: npt.NDArray[np.intp]) -> Piece:
    """Some rows of a piece, by ascending place."""
    if isinstance(piece, pa.RecordBatch):
        kept = np.zeros(piece.num_rows, np.bool_)
        kept[places] = True
        return piece.filter(pa.array(kept))
    return [piece[place] for place in places.tolist()]


def in_order(pieces: list[Piece], record_ids: _Numbers) -> tuple[list[Piece], _Numbers]:
    """The rows by ascending owner; those of one owner stay in the order they came in.

    `owners[i]` is the record of row i of the concatenated pieces. What is in order already is
    given back as it is.
    """
    if len(record_ids) < 2 or bool((record_ids[1:] >= record_ids[:-1]).all()):  # noqa: PLR2004 - two to compare
        return pieces, record_ids
    order = np.argsort(record_ids, kind="stable").astype(np.int64)
    return _sorted(pieces, order), record_ids[order]


def _sorted(pieces: Sequence[Piece], order: _Numbers) -> list[Piece]:
    lists = [piece for piece in pieces if isinstance(piece, list)]
    if len(lists) == len(pieces):
        rows = list(chain.from_iterable(lists))
        return [[rows[place] for place in order.tolist()]]
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
