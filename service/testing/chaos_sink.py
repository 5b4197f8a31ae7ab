"""A sink that misbehaves by a seed, in front of a sink that does not."""

import time
from copy import copy
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from service.testing.chaos import ChaosError, check_chances, draws
from topology.errors import RowsRejected, SinkBusy
from topology.sink import Batch, Piece, Row, Sink, SinkContext

_BUSY_SECONDS = 0.01


@dataclass(slots=True)
class ChaosSinkCounts:
    """What a ChaosSink did: tries of a batch, and of them those that it spoiled."""

    writes: int = 0
    busy: int = 0
    failed_before: int = 0  # nothing was written
    failed_after: int = 0  # everything was written, and comes again
    rejected_rows: int = 0


class ChaosSink(Sink[Row]):
    """Stands in front of a sink and makes some of its writes fail.

    A try of a batch raises SinkBusy with the chance `busy`, fails with the chance
    `fail_before` with nothing written, and with the chance `fail_after` after all of it was
    written, so that its rows come twice; it takes up to `delay_seconds` longer. Each row is
    rejected with the chance `reject`, always or never. Which these are depends on the seed, on
    the number of the batch and the try, and on the row's `repr`. `counts` says what was done.

    The test kit replaces the sink behind it by one that keeps its rows. Raises ValueError
    for a chance that is none.
    """

    def __init__(
        self,
        sink: Sink[Row],
        *,
        seed: int,
        busy: float = 0.0,
        fail_before: float = 0.0,
        fail_after: float = 0.0,
        reject: float = 0.0,
        delay_seconds: float = 0.0,
    ) -> None:
        check_chances(busy=busy, fail_before=fail_before, fail_after=fail_after)
        check_chances(reject=reject)
        if delay_seconds < 0:
            raise ValueError(f"delay_seconds={delay_seconds}; 0 or more is allowed")
        self.name = sink.name
        self.batch_rows = sink.batch_rows
        self.sink = sink
        self.counts = ChaosSinkCounts()
        self._seed = seed
        self._busy = busy
        self._fail_before = fail_before
        self._fail_after = fail_after
        self._reject = reject
        self._delay_seconds = delay_seconds
        self._sequence = 0
        self._tries = 0

    def around(self, sink: Sink[Row]) -> "ChaosSink[Row]":
        """The same chaos in front of another sink; both count in the same `counts`."""
        other = copy(self)
        other.sink = sink
        return other

    def open(self, context: SinkContext) -> None:
        """Open the inner sink."""
        self.sink.open(context)

    def write(self, batch: Batch) -> None:
        """Write the batch, or fail; see the class."""
        if batch.sequence != self._sequence:
            self._sequence, self._tries = batch.sequence, 0
        self._tries += 1
        self.counts.writes += 1
        chance, delay = draws(self._seed, batch.sequence, self._tries)
        if self._delay_seconds:
            time.sleep(delay * self._delay_seconds)
        if chance < self._busy:
            self.counts.busy += 1
            raise SinkBusy(_BUSY_SECONDS)
        if chance < self._busy + self._fail_before:
            self.counts.failed_before += 1
            raise ChaosError(f"chaos fails batch {batch.sequence} before it is written")
        rejected = self._write_good(batch)
        if chance < self._busy + self._fail_before + self._fail_after:
            self.counts.failed_after += 1
            raise ChaosError(f"chaos fails batch {batch.sequence} after it was written")
        if rejected:
            raise RowsRejected(rejected)

    def close(self) -> None:
        """Close the inner sink."""
        self.sink.close()

    def _write_good(self, batch: Batch) -> dict[int, str]:
        """Write what is not to be rejected; return what was, by either of the two sinks."""
        rejected = self._refused(batch)
        good = [index for index in range(batch.num_rows) if index not in rejected]
        if not good:
            return rejected
        pieces = _without(batch.pieces, rejected) if rejected else batch.pieces
        try:
            self.sink.write(Batch(batch.sequence, pieces, len(good)))
        except RowsRejected as rejection:
            rejected |= {good[index]: reason for index, reason in rejection.reasons.items()}
        return rejected

    def _refused(self, batch: Batch) -> dict[int, str]:
        if not self._reject:
            return {}
        rows: list[Any] = []
        for piece in batch.pieces:
            rows += piece.to_pylist() if isinstance(piece, pa.RecordBatch) else piece
        refused = {
            index: "chaos rejects this row"
            for index, row in enumerate(rows)
            if draws(self._seed, "row", repr(row))[0] < self._reject
        }
        if self._tries == 1:
            self.counts.rejected_rows += len(refused)
        return refused


def _without(pieces: list[Piece], rejected: dict[int, str]) -> list[Piece]:
    """The pieces without the rejected rows."""
    kept: list[Piece] = []
    start = 0
    for piece in pieces:
        good = [place for place in range(len(piece)) if start + place not in rejected]
        start += len(piece)
        if isinstance(piece, pa.RecordBatch):
            kept.append(piece.take(pa.array(good, pa.int64())))
        else:
            kept.append([piece[place] for place in good])
    return [piece for piece in kept if len(piece)]
