"""Rows in the order of their records, in whatever order they came. Pure."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from topology.sink import Piece

_Numbers = npt.NDArray[np.int64]


def in_order(pieces: list[Piece], owners: _Numbers) -> tuple[list[Piece], _Numbers]:
    """The rows by ascending owner; those of one owner stay in the order they came in.

    `owners[i]` is the record of row i of the concatenated pieces. What is in order already is
    given back as it is.
    """
    if len(owners) < 2 or bool((owners[1:] >= owners[:-1]).all()):  # noqa: PLR2004 - two to compare
        return pieces, owners
    order = np.argsort(owners, kind="stable").astype(np.int64)
    return _sorted(pieces, order), owners[order]


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
