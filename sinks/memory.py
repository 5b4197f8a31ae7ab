"""Sinks that keep or count what they get: for tests, trials and benchmarks."""

from collections.abc import Iterator, Sequence
from typing import Any, overload

import pyarrow as pa

from sinks.columns import fit
from topology.errors import RowsRejected
from topology.schema import schema_of
from topology.sink import (
    Batch,
    DeadLetter,
    DeadLetterSink,
    Delivered,
    Piece,
    RangeNotice,
    Row,
    Sink,
    SinkContext,
)

# A write costs nothing here, and rows that are still in the caches cost least.
_FEW_ROWS = 8_000


class MemorySink(Sink[Row]):
    """Keeps the rows in `rows`, in the order they were written.

    With a schema it rejects the rows that do not fit, as a table would; the others are
    kept as they came. Rows of a RecordBatch are kept as dictionaries.
    """

    batch_rows = _FEW_ROWS

    @overload
    def __init__(
        self: "MemorySink[Any]", name: str = "memory", *, schema: pa.Schema | None = None
    ) -> None: ...

    @overload
    def __init__(self, name: str = "memory", *, schema: type[Row]) -> None: ...

    def __init__(
        self, name: str = "memory", *, schema: type[Any] | pa.Schema | None = None
    ) -> None:
        self.name = name
        self.schema = None if schema is None else schema_of(schema)
        self.rows: list[Any] = []

    def open(self, context: SinkContext) -> None:
        """Do nothing: memory is always there."""

    def write(self, batch: Batch) -> None:
        """Keep the batch's rows. Raises RowsRejected."""
        rejected = {} if self.schema is None else fit(batch.pieces, self.schema).rejected
        self.rows.extend(
            row for index, row in enumerate(_rows(batch.pieces)) if index not in rejected
        )
        if rejected:
            raise RowsRejected(rejected)

    def close(self) -> None:
        """Do nothing: the rows stay readable."""


class DiscardSink(Sink[object]):
    """Takes rows of any type and only counts them, in `rows`."""

    batch_rows = _FEW_ROWS

    def __init__(self, name: str = "discard") -> None:
        self.name = name
        self.rows = 0

    def open(self, context: SinkContext) -> None:
        """Do nothing."""

    def write(self, batch: Batch) -> None:
        """Count the batch's rows."""
        self.rows += batch.num_rows

    def close(self) -> None:
        """Do nothing."""


class MemoryDeadLetters(DeadLetterSink):
    """Keeps the dead letters in `letters`, notices in `notices`; each is durable at once."""

    def __init__(self, name: str = "dead letters in memory") -> None:
        self.name = name
        self.letters: list[DeadLetter] = []
        self.notices: list[RangeNotice] = []
        self._untold: list[Delivered] = []

    def open(self, context: SinkContext) -> None:
        """Do nothing: memory is always there."""

    def send(self, letter: DeadLetter | RangeNotice, token: int) -> None:
        """Keep the letter or notice."""
        if isinstance(letter, RangeNotice):
            self.notices.append(letter)
        else:
            self.letters.append(letter)
        self._untold.append(Delivered(token, None))

    def poll(self) -> list[Delivered]:
        """Tell of every letter sent since the last call."""
        told, self._untold = self._untold, []
        return told

    @property
    def pending(self) -> int:
        """Letters of which `poll` has not told yet."""
        return len(self._untold)

    def flush(self, timeout_seconds: float) -> None:
        """Do nothing: no letter is on its way."""

    def close(self) -> None:
        """Do nothing: the letters stay readable."""


def _rows(pieces: Sequence[Piece]) -> Iterator[Any]:
    for piece in pieces:
        yield from piece.to_pylist() if isinstance(piece, pa.RecordBatch) else piece
