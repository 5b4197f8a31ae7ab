"""Collects pieces of rows into micro-batches. Pure: no thread, no clock, no I/O.

One owner: the thread that owns the acker. Every call costs O(pieces), never O(rows).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from topology.sink import Batch, Piece
from topology.steps import BatchPolicy

_SAMPLED_ROWS = 8
_PLAIN_BYTES = 8  # a number, a date, a flag


@dataclass(frozen=True, slots=True)
class PendingBatch:
    """A micro-batch on its way to the sink, and the trees its rows resolve.

    `trees[i]` and `edges[i]` belong to row i of the batch.
    """

    batch: Batch
    num_bytes: int  # estimated, see `estimated_bytes`
    trees: npt.NDArray[np.int64]
    edges: npt.NDArray[np.uint64]


class Batcher:
    """Fills one micro-batch at a time for one sink.

    A piece is never split, so a batch may pass its limits by less than one piece.
    """

    def __init__(self, policy: BatchPolicy) -> None:
        self.policy = policy
        self._sequence = 0
        self._reset()

    def _reset(self) -> None:
        self._pieces: list[Piece] = []
        self._trees: list[npt.NDArray[np.int64]] = []
        self._edges: list[npt.NDArray[np.uint64]] = []
        self._rows = 0
        self._bytes = 0
        self._deadline: float | None = None

    @property
    def num_rows(self) -> int:
        """Rows collected and not yet taken."""
        return self._rows

    @property
    def num_bytes(self) -> int:
        """Estimated bytes collected and not yet taken."""
        return self._bytes

    @property
    def deadline(self) -> float | None:
        """When the batch is due at the latest, in the seconds of `now`; None while empty."""
        return self._deadline

    def add(
        self,
        piece: Piece,
        trees: npt.NDArray[np.int64],
        edges: npt.NDArray[np.uint64],
        now: float,
    ) -> None:
        """Take a piece whose row i belongs to `trees[i]` by the edge `edges[i]`.

        Raises ValueError when the arrays are not as long as the piece.
        """
        length = piece.num_rows if isinstance(piece, pa.RecordBatch) else len(piece)
        if len(trees) != length or len(edges) != length:
            raise ValueError(
                f"a piece of {length} rows came with {len(trees)} trees and {len(edges)} edges"
            )
        if not length:
            return
        self._pieces.append(piece)
        self._trees.append(trees)
        self._edges.append(edges)
        self._rows += length
        self._bytes += estimated_bytes(piece)
        if self._deadline is None:
            self._deadline = now + self.policy.batch_seconds

    def trees(self) -> list[npt.NDArray[np.int64]]:
        """The trees of the rows that were not taken yet."""
        return self._trees

    def due(self, now: float) -> bool:
        """Whether the batch should be taken: it is full, or its oldest row has waited enough."""
        return self._deadline is not None and (
            now >= self._deadline
            or self._rows >= self.policy.batch_rows
            or self._bytes >= self.policy.batch_bytes
        )

    def take(self) -> PendingBatch:
        """Hand over what was collected and start afresh. Raises ValueError when there is none."""
        if not self._pieces:
            raise ValueError("there is no row to take")
        self._sequence += 1
        pending = PendingBatch(
            batch=Batch(self._sequence, self._pieces, self._rows),
            num_bytes=self._bytes,
            trees=np.concatenate(self._trees),
            edges=np.concatenate(self._edges),
        )
        self._reset()
        return pending


def estimated_bytes(piece: Piece) -> int:
    """About how many bytes a piece's values have as columns.

    Exact for a RecordBatch. For rows, the mean of eight rows spread over the piece: text
    and bytes count their length, containers their parts, everything else eight bytes.
    The Python objects of the rows take several times as much.
    """
    if isinstance(piece, pa.RecordBatch):
        return int(piece.nbytes)
    if not piece:
        return 0
    sample = piece[:: max(1, len(piece) // _SAMPLED_ROWS)][:_SAMPLED_ROWS]
    return sum(map(_size, sample)) * len(piece) // len(sample)


def _size(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    names = getattr(value, "__struct_fields__", ()) or getattr(value, "__dataclass_fields__", ())
    return sum([_size(getattr(value, name)) for name in names]) or _PLAIN_BYTES
